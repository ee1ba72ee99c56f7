"""What a child of the agent loads, it loads as root: the user that it becomes may be unable to read Python's own files.

Python below a folder of root's (``/root/.pyenv``) works as long as nothing is imported afterwards. Besides ``import`` in a
function, Python loads codecs and some helpers of its library when they are first used.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[4] / "sentinel"
BUILT_IN = {"utf-8", "utf8", "ascii", "latin-1"}  # codecs that are no modules
# Calls that load a module when they are first made.
LOADS = {"strptime": "_strptime", "create_connection": "encodings.idna", "getaddrinfo": "encodings.idna"}
# Of the functions of a module that a child loads: those that only the daemon calls.
NOT_IN_CHILDREN = {("sentinel.wire", "large_json"), ("sentinel.wire", "record_from")}
BECOMING = PACKAGE / "agent" / "probes" / "__init__.py"  # its own imports come before the rights are dropped


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def functions(path: Path) -> Iterator[Function]:
    yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, Function))


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    return [str(node.module)] if isinstance(node, ast.ImportFrom) else []


def becomes_at(function: Function) -> int:
    """The line at which it drops its rights; 0 if it does not."""
    return max(
        (node.lineno for node in ast.walk(function) if isinstance(node, ast.Call) and called(node) == "become"),
        default=0,
    )


def children() -> dict[str, list[str]]:
    """Modules of children that become users → what else they import before that."""
    found: dict[str, list[str]] = {}
    for path in sorted((PACKAGE / "agent").rglob("*.py")):
        if path == BECOMING:
            continue
        for function in functions(path):
            if at := becomes_at(function):
                name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
                before = [
                    name for node in ast.walk(function) if getattr(node, "lineno", at) < at for name in imported(node)
                ]
                found.setdefault(name, []).extend(before)
    return found


@cache
def loaded(names: tuple[str, ...]) -> dict[str, str]:
    """Every module that is there once these are imported, and its file."""
    code = (
        f"import importlib, json, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        "print(json.dumps({name: getattr(module, '__file__', None) or '' for name, module in sys.modules.items()}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def late(function: Function) -> Iterator[tuple[int, str]]:
    """The modules that a function loads when it is called, as far as its text tells."""
    at = becomes_at(function)
    for node in ast.walk(function):
        if getattr(node, "lineno", 0) < at:
            continue
        yield from ((node.lineno, name) for name in imported(node))  # type: ignore[attr-defined]
        if not isinstance(node, ast.Call):
            continue
        if (name := called(node)) in LOADS:
            yield node.lineno, LOADS[name]
        if name in ("encode", "decode"):
            given = [word.value for word in (*node.args[:1], *(k.value for k in node.keywords if k.arg == "encoding"))
                     if isinstance(word, ast.Constant) and isinstance(word.value, str)]  # fmt: skip
            yield from (
                (node.lineno, f"encodings.{codec.replace('-', '_')}") for codec in given if codec not in BUILT_IN
            )


@pytest.mark.parametrize("child", children())
def test_a_child_loads_nothing_once_it_is_the_user(child: str) -> None:
    there = loaded((child, *children()[child], "pwd", "ctypes", "resource"))
    found = [
        f"{name}:{line}: {module}"
        for name, file in there.items()
        if name.startswith("sentinel.") and file and Path(file) != BECOMING
        for function in functions(Path(file))
        if (name, getattr(function, "name", "")) not in NOT_IN_CHILDREN
        for line, module in late(function)
        if module not in there
    ]
    assert found == [], "import it at the top of the module"


FOLLOWER = """
import sys
from sentinel.agent import probes
class Closed:
    def find_spec(self, name, path=None, target=None):
        raise ModuleNotFoundError(f"{name} is loaded too late", name=name)
probes.become = lambda uid, gid: sys.meta_path.insert(0, Closed())
from sentinel.agent.probes import joblog
joblog.main()
"""


def test_a_follower_reads_any_line_as_a_user_who_cannot_read_python(tmp_path: Path) -> None:
    odd = "".join(map(chr, (*range(1, 10), *range(11, 32), 127, 133, 160, 0x202E, 0x2028, 0xE0001, 0xFFFF)))
    log = tmp_path / "job.out"
    log.write_bytes(
        f'Traceback (most recent call last):\n  File "a.py", line 1\nValueError:\t{odd} x\nstep 5 loss 1.5 {odd}\n'.encode()
        + b"RuntimeError: \xff\xfe\x00 bytes\n"
    )
    (tmp_path / "ended").touch()
    arguments = {"uid": os.getuid(), "gid": os.getgid(), "node": "n1", "job": 103, "attempt": 0, "path": str(log),
                 "ended": str(tmp_path / "ended"), "cursor": None, "read_bytes": 1 << 20, "lines_per_s": 50, "burst": 500,
                 "linger_s": 0.0, "poll_s": 0.01, "began_s": 0.0}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWER],
        input=json.dumps(arguments) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert any("ValueError" in item["text"] for one in said if one["type"] == "evidence" for item in one["items"]), said
