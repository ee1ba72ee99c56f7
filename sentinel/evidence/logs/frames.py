"""The innermost frame of a Python traceback: whose code it is, and whether it refused or failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sentinel.config.rules import Form, Rule
from sentinel.evidence.logs.being_read import What, being_read
from sentinel.evidence.logs.writers import REACH, begins_as, text_above
from sentinel.model.records import Evidence, Scalar

BEFORE = 2048  # bytes before an exception that are looked at
BETWEEN = 4  # lines between a frame and the exception that ends its traceback: the source, its marks, a note
BETWEEN_DRAWN = 14  # the same where the source around the line is shown, as IPython and rich do
_FRAME = re.compile(rb'\bFile "([^"\n]{1,300})", line \d{1,7}, in ([\w<>.]{1,80})(?:(?=[^\n]{0,40}\n([^\n]{0,240})))?')
# IPython: "File ~/b.py:12, in f(x)" and, before release 8, "/a/b.py in f(x)"; rich: "| /a/b.py:12 in f |".
_DRAWN = re.compile(
    rb"(?m)^(?:[^\n]{0,24}?File |\W{0,8}\[?)(~?/[^\s:\]]{1,240}\.py)(?::\d{1,7})?(?:\]\([^)\n]{0,240}\))?"
    rb",? in ([\w<>.]{1,80})"
)
# A cell of a notebook, as IPython 8, 8.0, 7 and VS Code name it; the function is empty for the cell's own lines.
CELL = (
    rb"(?:(?:Cell|Input) In ?\[\d{1,6}\]|<ipython-input-[\w-]{1,60}>|(?:~?/|[A-Za-z]:)[^\n]{1,240}\.ipynb Cell \d{1,6})"
)
_CELL = re.compile(rb"(?m)^(%s)(?:,? line \d{1,7})?(?:,? in )?([\w<>.]{0,80})" % CELL)
_NUMBER = rb"(?:\d{1,7}|<a href=[^>\n]{1,300}>\d{1,7}</a>)"  # of a line of source; a link in VS Code
_POINTED = re.compile(
    rb"(?m)^[^\n]{0,24}?(?:-{2,}> ?|\xe2\x9d\xb1 {1,4})%s([^\n]{0,240})" % _NUMBER
)  # the line that they point at
# Source that they show around it, of which a statement may have many lines.
_SHOWN = re.compile(rb"(?m)^[^\w\n]{0,24}(?:%s(?: [^\n]{0,400})?|\(\.\.\.\))$" % _NUMBER)
# What a person typed: at a prompt, or in a cell. Other names in brackets are generated code's.
_TYPED = re.compile(rb"<(?:ipython-input-|stdin>)")
_STANDARD = re.compile(
    rb"/python\d[\d.]{0,6}/(?!(?:site|dist)-packages/)|^<frozen |^[A-Za-z]:/[^\n]{1,240}/[Ll]ib/(?!site-packages/)"
)
_OF_WINDOWS = re.compile(rb'(?<=File ")[A-Za-z]:\\[^"\n]{1,300}')
# What only hands on the exception of another: of a worker, of a wrapped call.
_HANDS_ON = re.compile(
    rb"/torch/_utils\.py$|/tblib/|/traceback_util(?:s)?\.py$|/multiprocess/pool\.py$"
    rb"|/joblib/(?:parallel|_parallel_backends|externals/loky/(?:process_executor|_base))\.py$"
)
_INSTALLED = re.compile(rb"/(?:site|dist)-packages/([^/]{1,60})/")
_IGNORING = re.compile(rb"Exception ignored (?:in|while)\b|Error in atexit\._run_exitfuncs")
_IGNORED = re.compile(rb"(?:%s)[^\n]{0,240}\n[^\n]{0,40}$" % _IGNORING.pattern)
# Its last frame, and the source that it shows: the exception itself is the next line. A line can be taken in one way only:
# with several, those of sixteen lines multiply.
_ENDS_TRACEBACK = re.compile(
    rb"File \"[^\"\n]{1,300}\", line \d{1,7}, in [^\n]{1,120}\n(?:(?=[^\n]{0,100}?[ \t]{4})[^\n]{1,504}\n){0,16}$"
)
# Python asks it for what an object has not: who asked stands above (torch/nn/modules/module.py, and others alike).
_LOOKS_UP = re.compile(rb"(?:^|\.)__getattr__$")
# It calls what it was given with what it was given, as a decorator does, or a module its forward: what does not fit in that
# call, or is not there, is between the one who asked, above, and what was asked.
_PASSES_ON = re.compile(
    rb"^(?!\s{0,240}(?:raise|assert)\b)[^\n]{0,240}\w\(\*[\w.]{1,40}(?:\[0\])?, {0,2}\*\*[\w.]{1,40}(?:\[0\])?\){1,3}"
    rb"(?:[ \t]{0,4}#[^\n]{0,80})?$|\braise \w{1,20}\.with_traceback\("
)
# A kernel, which no frame is of, stands below it.
_CALLS_KERNEL = re.compile(rb"/torch/_ops\.py$")
# Where no source is shown.
_PASSES_ON_BY_NAME = re.compile(rb"^(?:_wrapped_call_impl|_call_impl|decorate_(?:context|autocast))$")
# A function that was called with what it does not take.
_ASKED = re.compile(r"\bTypeError: (?:[\w.<>]{1,120}\.)?(\w{2,60})\(\) (?:missing|takes|got)\b")
# Where devices are laid out as a mesh, or one is taken by a rank's number: how many there are decides whether they fit.
_MESH = re.compile(
    rb"\w\[[^\]\n]{0,40}\blocal_rank\]|devices\b[^\n]{0,24}\.reshape\("
    rb"|\breshape\((?:\w{1,6}\.(?:as)?array\()?[\w.]{0,20}devices\b"
)
# Its line passes on all that a file, or an object, of settings has.
_SPREAD = re.compile(
    rb"\*\*(?:[\w.]{0,40}(?:cfg|conf|settings|opt(?:ion)?s?\b|params)\w{0,16}|yaml\.|json\.|toml\w{0,4}\.|OmegaConf\.|vars\()"
)
# Its line reads a file of settings.
_READS_SETTINGS = re.compile(
    rb"\b\w{0,24}(?:(?:options|params|args)\w{0,16} = \w{1,12}\.load\("
    rb"|(?:conf(?:ig)?|cfg|settings|hparams)\w{0,16}(?:: [\w\[\], .]{1,40})? = \w{1,12}\.\w{0,8}loads?\()"
)
# Its line works with a setting, takes one apart, or takes one for a path.
_A_SETTING = rb"\b(?:[a-z]{1,12}_)?(?:args|cfg|conf|config|hparams|opts?|options|settings|flags|FLAGS)\.[a-z]"
_WHOLE = _A_SETTING + rb"[\w.]{0,60}"
_OPTION = re.compile(_A_SETTING)
_TAKES_APART = re.compile(
    rb"%s\[|\bin %s(?![\w.(])|(?<!\*)\*%s(?![\w.(])|, ?\w{1,40} = %s$"
    rb"|\b(?:enumerate|len|list|tuple|set|sorted|sum|min|max|iter|zip|map|any|all|reversed)\((?:[\w.]{1,40}, )?%s[,)]"
    % ((_WHOLE,) * 5)
)
_OPENS = re.compile(
    rb"\b(?:[Pp]ath|join|fspath|open\w*|exists|is_?file|is_?dir|make_?dirs|mkdir|listdir|scandir|walk|basename|dirname|splitext"
    rb"|expanduser|abspath|realpath|load\w*|read\w*|save\w*|write\w*|copy\w*|rmtree|chdir)\((?:[^()\n]{0,60}, ?)?%s[,)]"
    % _WHOLE
)
# Its line checks what was read by its length or a mark: it may be one line of an assertion of several.
_MEASURES = re.compile(
    rb"\blen\((?:\w{1,24}\.)?(?:\w{0,12}_)?(?:data|buf(?:fer)?|blob|raw|bytes|payload|chunk|content|body|header|packet|result)\)"
    rb" {0,2}(?:[=!<>]=|[<>])|(?i:\b\w{0,16}(?:magic|checksum|crc\d{1,2}|n_?bytes|num_bytes)\b)"
)
_TABLE = re.compile(rb"\b[A-Z][A-Z0-9_]{3,40}\[")
# Compiled by Cython: the path is the package's own.
_COMPILED = re.compile(rb"^(\w{1,60})/(?:\w{1,60}/){0,8}\w{1,60}\.pyx$")
# What faulthandler prints of the thread in which a process crashed: the innermost frame first.
STACK = 2048  # bytes behind its headline that are looked at
_OF_STACK = re.compile(rb'[^\n]{0,100}?  File "([^"\n]{1,300})", line \d{1,7} in ')
_CHECKS = re.compile(rb"(?:^| {2}|\t)(?:raise|assert)\b")  # a page takes what a line begins with


@dataclass(frozen=True, slots=True)
class Frame:
    """The last frame that is not the standard library's, and what stands within it.

    ``refused``: its line is a ``raise`` or an ``assert``: somebody looked and said no; otherwise the language failed there.
    ``standard``: file and function of the standard library's frame in which it ended, empty where it did not.
    """

    file: str
    function: str
    refused: bool
    standard: str = ""
    table: bool = False  # its line looks a name up in a constant of the program, as ``MODELS[name]`` does
    source: str = ""  # the line itself, where it is a check
    caller: str = ""  # file of the nearest frame above it that is of another package; empty where none is near
    inside: bool = False  # the frame right above it is of its own package: it was called by itself
    spread: bool = False  # its line passes on all settings of a file or an object
    settings: bool = False  # its line reads a file of settings
    mesh: bool = False  # its line lays devices out as a mesh, or takes one by a rank's number
    option: bool = False  # its line works with a setting, and is no check of it
    taken: bool = False  # its line iterates over a setting, subscripts or measures it
    opened: bool = False  # its line takes a setting for a path
    importing: str = ""  # file of the module that was being imported meanwhile; empty where none was
    ignored: bool = False  # Python says that it ignores the exception: in a destructor, or at exit
    prefix: str = ""  # what stands on its line before it, as a record's time and level
    reads: What = ""  # what was being read meanwhile; empty where no name tells
    measures: bool = False  # its line compares a length, a size or a mark of what was read
    raises: bool = False  # its line raises, be it behind a condition


def innermost(before: bytes) -> Frame | None:
    """The last frame in ``before``, the text up to the line of an exception; None where none is near.

    Frames of the standard library raise for whom they were called by, and are passed over.
    """
    if before.count(b"\n\n") > before.count(b"\n") // 3:  # a page has put an empty line behind each
        before = before.replace(b"\n\n", b"\n")
    before = _OF_WINDOWS.sub(lambda path: path[0].replace(b"\\", b"/"), before)
    frames, between = list(_FRAME.finditer(before)), BETWEEN
    drawn = sorted([*_DRAWN.finditer(before), *_CELL.finditer(before)], key=lambda frame: frame.start())
    if drawn and (not frames or frames[-1].start() < drawn[-1].start()):
        frames, between = drawn, BETWEEN_DRAWN
    if not frames or _lines_after(before, frames[-1]) > between:
        return None
    named = [f for f in frames if not _STANDARD.search(f[1]) and not _HANDS_ON.search(f[1]) and not _is_generated(f[1])]
    last, begin = frames[-1], before.rfind(b"Traceback (most recent")
    ignored = _IGNORED.search(before[: max(begin, 0)]) is not None
    prefix = _text(before[before.rfind(b"\n", 0, last.start()) + 1 : last.start()].rstrip())
    standard = f"{_text(last[1]).rsplit('/', 1)[-1]}:{_text(last[2])}" if _STANDARD.search(last[1]) else ""
    if not named:
        return Frame("", "", False, standard, ignored=ignored, prefix=prefix) if standard else None
    deepest = named[-1]
    while len(named) > 1 and (_only_looks_up(before, named[-1]) or _only_passes_on(before, named[-1])):
        named.pop()
    frame = named[-1]
    line = _source(before, frame)
    source = line if frame is last else b""
    refused, table, mesh = (known.search(source) is not None for known in (_CHECKS, _TABLE, _MESH))
    checked = _text(source.strip()) if refused else ""
    own, above = _package(frame[1]), [_package(f[1]) for f in named[:-1]]
    caller = next((f[1] for f, package in zip(named[-2::-1], above[::-1], strict=True) if package != own), b"")
    inside = own != b"" and bool(above) and above[-1] == own
    spread = _SPREAD.search(source) is not None
    settings = _READS_SETTINGS.search(line) is not None
    return Frame(
        _text(frame[1]),
        _text(frame[2]),
        refused,
        standard,
        table,
        checked,
        _text(caller),
        inside,
        spread,
        settings,
        mesh,
        not refused and _OPTION.search(source) is not None,
        not refused and _TAKES_APART.search(source) is not None,
        not refused and _OPENS.search(line if standard and frame is deepest else source) is not None,
        _imported(before, frames),
        ignored,
        prefix,
        being_read((f[1], f[2], _source(before, f)) for f in reversed(named) if f.start() > begin),
        _MEASURES.search(line) is not None,
        b"raise " in line,
    )


def crashed_in(evidence: Evidence, behind: bytes) -> Evidence:
    """With the file of the innermost frame, not the standard library's, of the stack below this headline."""
    for line in behind[:STACK].split(b"\n")[:12]:
        frame = _OF_STACK.match(line)
        if frame is None and line:
            break
        if frame is not None and not _STANDARD.search(frame[1]) and not _is_generated(frame[1]):
            return replace(evidence, data={**evidence.data, "frame": _text(frame[1])})
    return evidence


def framed(evidence: Evidence, before: bytes) -> Evidence:
    """With the innermost frame of the traceback that the exception ends."""
    frame = innermost(before)
    if frame is None:
        return evidence
    found: dict[str, Scalar] = {"frame": frame.file, "function": frame.function, "standard": frame.standard}
    found |= {"check": frame.source[:200], "caller": frame.caller, "importing": frame.importing}
    found |= {"prefix": frame.prefix[:120], "reads": frame.reads}
    if frame.reads and frame.measures:
        found |= {"measures": True, "raises": frame.raises}
    found = {name: value for name, value in found.items() if value}
    found |= {"refused": frame.refused, "table": frame.table, "inside": frame.inside}
    found |= {"spread": frame.spread, "settings": frame.settings, "mesh": frame.mesh, "option": frame.option}
    found |= {"ignored": frame.ignored, "taken": frame.taken, "opened": frame.opened}
    if (asked := _ASKED.search(evidence.text)) and _hands_over(before, asked[1].encode()):
        found |= {"handed": True}
    return replace(evidence, data={**evidence.data, **found})


def _hands_over(before: bytes, name: bytes) -> bool:
    """Whether a line of the program's own hands the function over by its name, as ``dataset.map(name)`` does."""
    own = (frame for frame in _FRAME.finditer(before) if not _package(frame[1]) and not _STANDARD.search(frame[1]))
    handed = re.compile(rb"[(,=] {0,2}(?:\w{1,40}\.){0,2}" + name + rb" {0,2}[,)]")
    return any(handed.search(_source(before, frame)) for frame in own)


def what_was_read(before: bytes) -> What:
    """By the traceback that an exception ends; empty where none is near, or no name tells."""
    frame = innermost(before)
    return frame.reads if frame is not None else ""


def text_before(block: bytes, start: int, rule: Rule) -> bytes:
    """What is kept of its writer's text above a line: all where the rule asks for frames, else what may call it ignored."""
    if rule.frame or rule.content:
        return text_above(block, start, BEFORE)
    if rule.form is not Form.PROGRAM or not _IGNORING.search(block, max(0, start - REACH), start):
        return b""
    before = text_above(block, start, BEFORE)
    return before if _IGNORING.search(before) else b""


def is_ignored(line: bytes, before: bytes) -> bool:
    """Whether Python says that it ignores the exception that ``line`` names: it ended nothing."""
    if _IGNORING.search(line):
        return True
    frame = innermost(before) if before else None
    return frame is not None and frame.ignored and _ENDS_TRACEBACK.search(before) is not None


def _lines_after(before: bytes, frame: re.Match[bytes]) -> int:
    """Lines between the frame and the end, without those of the source that is shown: of a statement, or by a notebook."""
    if frame.re is not _FRAME:
        return before.count(b"\n", frame.end(2)) - len(_SHOWN.findall(before, frame.end(2)))
    further_in = before[before.rfind(b"\n", 0, frame.start()) + 1 : frame.start()] + b"  "
    lines = before[frame.end(2) :].split(b"\n")[1:]
    return sum(not begins_as(line, further_in) for line in lines)


def _only_looks_up(before: bytes, frame: re.Match[bytes]) -> bool:
    """Whether the frame is an installed package's lookup that says no."""
    if not _LOOKS_UP.search(frame[2]) or not _package(frame[1]):
        return False
    source = _source(before, frame)
    return not source or b"__name__" in source or _CHECKS.search(source) is not None


def _only_passes_on(before: bytes, frame: re.Match[bytes]) -> bool:
    """Whether the frame is an installed package's that hands a call on as it came."""
    if not _package(frame[1]) or _CALLS_KERNEL.search(frame[1]):
        return False
    source = _source(before, frame).rstrip()
    return _PASSES_ON.search(source) is not None or (not source and _PASSES_ON_BY_NAME.search(frame[2]) is not None)


def _imported(before: bytes, frames: Sequence[re.Match[bytes]]) -> str:
    """File of the innermost module that was being imported: a module's body below a line that imports."""
    begin = before.rfind(b"Traceback (most recent")
    own = [frame for frame in frames if frame.start() > begin]
    pairs = zip(own[1:], own, strict=False)
    bodies = [frame for frame, above in pairs if frame[2] == b"<module>" and _imports(before, above)]
    return _text(bodies[-1][1]) if bodies else ""


def _imports(before: bytes, frame: re.Match[bytes]) -> bool:
    """Whether the frame is at an import; the importer's own frame shows no source."""
    return frame[1].startswith(b"<frozen importlib") or b"import" in _source(before, frame)


def _is_generated(file: bytes) -> bool:
    """Whether the code is in no file, and nobody typed it: what ``exec`` was given, an import's own frames."""
    return file[:1] == b"<" and not _TYPED.match(file)


def _package(file: bytes) -> bytes:
    """The installed package that a file is of; empty for what is not installed."""
    found = _INSTALLED.search(file) or _COMPILED.search(file)
    return found[1] if found else b""


def _source(before: bytes, frame: re.Match[bytes]) -> bytes:
    """The line of source that the frame shows; empty where it shows none."""
    if frame.re is _FRAME:
        return frame[3] or b""
    pointed = _POINTED.findall(before, frame.end())
    return b"    " + pointed[-1].strip(b" \xe2\x94\x82|") if pointed else b""


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
