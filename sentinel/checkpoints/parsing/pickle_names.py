"""What the names in a pickle mean for whoever loads it with the ordinary reader, which imports and calls them.

Source of what ``torch.load(weights_only=True)`` accepts by itself: torch/_weights_only_unpickler.py of torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sentinel.checkpoints.files import NotKnown
from sentinel.text import visible

_ACCEPTED = re.compile(
    r"torch\.(\w+(Storage|Tensor)|Tensor|Size|device|b?float\d+(_\w+)?|complex\d+|u?int\d+|q?u?int\d+(x\d)?|quint\dx\d|bool|bits\w+)"
    r"|torch\.per_(tensor|channel)_\w+"
    r"|torch\.(cuda|sparse|cuda\.sparse)\.\w+(Storage|Tensor)"
    r"|torch\._utils\._rebuild_\w+|torch\._tensor\._rebuild_from_type_v2|torch\.nn\.parameter\.\w+"
    r"|torch\.storage\.(Typed|Untyped)Storage|torch\.serialization\._get_layout"
    r"|torch\.distributed\.(_?tensor|device_mesh)\.\S+"
    r"|collections\.(OrderedDict|Counter)|builtins\.(bytearray|set|complex)|_codecs\.encode"
)
# Modules whose functions start programs, open files or connections, or run code.
_RUNS_CODE = re.compile(
    r"(os|posix|nt|subprocess|_posixsubprocess|sys|importlib|_frozen_importlib\w*|runpy|pty|shutil|ctypes|_ctypes|code|codeop|pickle"
    r"|_pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve|webbrowser|multiprocessing|asyncio|timeit|profile|cProfile|pdb|bdb|trace"
    r"|doctest|distutils|setuptools|pip|pkgutil|zipimport|imp|commands|platform|socket|_socket|ssl|urllib|http|ftplib|smtplib"
    r"|telnetlib|xmlrpc|requests|sqlite3|tempfile|fileinput|linecache|atexit|site|pydoc|venv|ensurepip|gc|inspect|test|idlelib"
    r"|cffi|torch\.hub|torch\.utils\.cpp_extension|torch\.serialization\.load|torch\.load|numpy\.testing|numpy\.f2py|numpy\.load"
    r"|bdb|sched|threading|concurrent|signal\.(?!Signals|Handlers)|types\.(FunctionType|CodeType|MethodType)"
    r"|operator\.methodcaller|functools\.(reduce|partialmethod)|io\.(open|FileIO|open_code)|_io\.(open|FileIO|open_code))(\.|$)"
)
_BUILTINS = frozenset({
    "set", "frozenset", "complex", "slice", "bytearray", "bytes", "int", "float", "str", "bool", "list", "dict", "tuple",
    "range", "object", "type", "getattr", "NoneType", "ellipsis", "NotImplementedType",
})  # fmt: skip


def runs_code(name: str) -> bool:
    """Whether that is a name by which a pickle does something, and that no training state needs."""
    module, _, rest = name.partition(".")
    if module in ("builtins", "__builtin__"):
        return rest not in _BUILTINS and not rest.endswith(("Error", "Exception", "Warning"))
    return bool(_RUNS_CODE.match(name))


def judge(names: Iterable[str], what: str) -> str:
    """What is worth saying about the names of one file; empty where there is nothing.

    Raises:
        NotKnown: to load it would run something.
    """
    refused = [name for name in names if not _ACCEPTED.fullmatch(name)]
    bad = [name for name in refused if runs_code(name)]
    if bad:
        raise NotKnown(
            f"{what}: its pickle names {visible(bad[0], 120)}: to load it would run that"
            " (torch.load(weights_only=True) refuses it)"
        )
    if not refused:
        return ""
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    return f"torch.load(weights_only=True) refuses {what}: it names {visible(refused[0], 120)}{more}"
