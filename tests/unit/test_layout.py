"""The layout that CONTRIBUTING.md describes, read from the source: who may import whom, sizes, clocks, commands."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import click
import pytest

from sentinel.cli import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "sentinel"

# What everybody may import: records, protocols and the arithmetic of files that are data. Nothing here acts, waits or reads.
BASE = {"", "model", "errors", "ports", "wire", "protocol", "text", "graphs", "gpu_values", "inert_pickle"}
STAGES = {"evidence", "detect", "correlate", "classify", "policy", "actions", "alerts", "checkpoints", "planning"}
RUNNERS = {"daemon", "replay", "simulate", "agent", "cli", "hook", "launcher", "__main__"}
SHARED = {"adapters", "config", "given_files", "log", "telemetry"}
EVERYTHING = BASE | STAGES | RUNNERS | SHARED | {"engine"}
# Part of the package -> what it may import besides itself. No stage needs a later one, an adapter or a runner.
MAY_IMPORT = {
    **dict.fromkeys(
        BASE | {"alerts", "actions", "planning", "given_files", "log", "telemetry", "hook", "launcher"},
        BASE,
    ),
    "checkpoints": BASE | {"planning"},
    "config": BASE | {"given_files", "log"},
    "evidence": BASE | {"config"},
    "detect": BASE | {"config", "evidence"},
    "correlate": BASE | {"config", "evidence", "detect"},
    "classify": BASE | {"config"},
    "policy": BASE | {"config", "planning"},
    "engine": BASE | {"config", "evidence", "detect", "correlate", "classify", "policy", "alerts", "planning"},
    "adapters": BASE | {"config", "given_files", "log"},
    "replay": BASE | {"config", "detect", "engine"},
    "daemon": EVERYTHING - {"replay", "simulate", "agent", "cli", "hook", "launcher", "__main__"},
    "simulate": EVERYTHING - {"replay", "agent", "cli", "hook", "launcher", "__main__"},
    "agent": EVERYTHING - {"daemon", "replay", "simulate", "engine", "cli", "launcher", "__main__"},
    "cli": EVERYTHING - {"__main__"},
    "__main__": {"cli"},
}
PURE = (BASE - {""}) | {"evidence", "detect", "correlate", "classify", "policy", "engine", "alerts", "planning"}

# Imports against the grain, each with its reason; (importing file, imported part). Kept short on purpose.
LOANS = {
    # A second way to answer the same question: held to the plain screen's protocol, falls back to it.
    ("adapters/hyperscan.py", "evidence"),
    # Rules are held to how the logs they are for are read, signals to the records of their reader and of trends.
    ("config/rules_toml.py", "evidence"),
    ("config/signals_toml.py", "evidence"),
    ("config/signals_toml.py", "classify"),
    # A length of time or a size is written in settings as it is to `sentinel plan`.
    ("config/settings_toml.py", "planning"),
    # What nodes held when a job ended is told in the form in which checkpoints are listed.
    ("detect/listings.py", "checkpoints"),
    # Shards of all nodes are joined by the same rules as when a checkpoint is chosen.
    ("detect/joined_saves.py", "checkpoints"),
    # Who is slow is named with its node.
    ("detect/slow_steps.py", "correlate"),
}
# File names that tell an outsider nothing.
BANNED_NAMES = {
    "asking", "beside", "blind", "blindness", "common", "dropbox", "hard", "helper", "helpers", "holders", "holding",
    "house", "insist", "joining", "judge", "keeping", "lateness", "live", "manager", "misc", "near", "past", "placing",
    "reasons", "recover", "room", "rounds", "saving", "sending", "story", "strays", "tell", "things", "told", "uncounted",
    "utils", "view", "who", "word", "words",
}  # fmt: skip

# Metaphors that were explained nowhere.
BANNED_WORDS = re.compile(r"(?<![-\w])(?:rooms?|house|dice)(?![-\w])", re.IGNORECASE)  # "saves-no-room" is an id

IMPURE = {
    "time",
    "sqlalchemy",
    "random",
    "secrets",
    "os",
    "socket",
    "subprocess",
    "asyncio",
    "threading",
    "shutil",
    "tempfile",
    "signal",
}
CLOCKS = {"now", "utcnow", "today"}

# Outside library -> the only files that may import it ("cli/" is a folder).
PLACES = {
    "msgspec": ("wire.py",),
    "aiohttp": (
        "adapters/notify/http_post.py",
        "adapters/prometheus.py",
        "daemon/api/server.py",
        "daemon/api/transport.py",
        "daemon/standby.py",
        "daemon/web/server.py",
    ),
    "jinja2": ("daemon/web/templates.py",),
    "markupsafe": ("daemon/web/",),
    "sqlalchemy": ("adapters/store/",),
    "alembic": ("adapters/store/database.py", "adapters/store/migrations/"),
    "psycopg": ("adapters/store/database.py",),
    "apscheduler": ("daemon/periodic.py", "agent/agent.py"),
    "prometheus_client": (
        "telemetry.py",
        "daemon/run.py",
        "agent/metrics.py",
        "simulate/daemon.py",
    ),
    "apprise": ("adapters/notify/chat.py",),
    "click": ("cli/",),
    "rich": ("cli/",),
    "matplotlib": ("cli/offline/chart.py",),
    "uvloop": ("daemon/run.py",),
    "hyperscan": ("adapters/hyperscan.py",),
    "pyslurm": ("adapters/slurm/pyslurm_reader.py", "adapters/slurm/pyslurm_child.py"),
    "pynvml": ("adapters/gpu/nvml.py",),
    "amdsmi": ("adapters/gpu/amd_smi.py",),
    "pydcgm": ("adapters/gpu/dcgm.py",),
    "dcgm_structs": ("adapters/gpu/dcgm.py",),
    "dcgm_fields": ("adapters/gpu/dcgm.py",),
}
OURS = {"sentinel", "__future__"}

MAX_LINES = {"adapters": 500}
MAX_LINES_ELSEWHERE = 400
MAX_FUNCTION_LINES = 60

# Commands whose module is not written yet. This only shrinks: an entry that resolves must leave it.
COMMANDS_TO_COME: set[str] = set()

SOURCES = sorted(path for path in PACKAGE.rglob("*.py"))
DEPLOY = sorted((REPOSITORY / "deploy").rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def place(path: Path) -> str:
    """Where a file of the package lies in it, and one of ``deploy`` in the repository."""
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else REPOSITORY).as_posix()


def part(path: Path) -> str:
    """The part of the package that a file belongs to: "classify", "model", "adapters", "" for the package itself."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


@cache
def imports(path: Path) -> list[tuple[str, int]]:
    """Full names of imported modules with their lines, those inside functions and TYPE_CHECKING too."""
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(path)}:{node.lineno}: relative import; write sentinel.…"
            assert node.module is not None
            yield node.module, node.lineno
            if node.module == "sentinel":
                for alias in node.names:
                    yield f"sentinel.{alias.name}", node.lineno


def imported_parts(path: Path) -> Iterator[tuple[str, int]]:
    for name, line in imports(path):
        if name.startswith("sentinel."):
            found = name.split(".")[1]
            yield ("" if found.startswith("__version") else found), line


def complain(faults: list[str]) -> None:
    assert not faults, "\n" + "\n".join(faults)


def test_every_part_of_the_package_has_its_place() -> None:
    complain(
        [f"{place(path)}: not in this test's table" for path in SOURCES if part(path) not in {*MAY_IMPORT, "_data"}]
    )
    assert set(MAY_IMPORT) <= {part(path) for path in SOURCES}, "this test names parts that do not exist"


def test_imports_follow_the_order_of_the_stages() -> None:
    complain(
        [
            f"{place(path)}:{line}: {part(path)} imports sentinel.{name}"
            for path in SOURCES
            if part(path) in MAY_IMPORT
            for name, line in imported_parts(path)
            if name != part(path) and name not in MAY_IMPORT[part(path)] and (place(path), name) not in LOANS
        ]
    )


def test_no_module_needs_itself_to_be_imported() -> None:
    """Through others: such a circle holds only as long as its modules are imported in one order. CycleError names it."""
    order = TopologicalSorter[str]()
    for path in SOURCES:
        if path.name != "__init__.py":
            found = [node for node in tree_of(path).body if isinstance(node, ast.ImportFrom)]
            needed = {
                name for node in found for name in (node.module, *(f"{node.module}.{a.name}" for a in node.names))
            }
            order.add(".".join(path.relative_to(REPOSITORY).with_suffix("").parts), *filter(None, needed))
    assert list(order.static_order())


def test_file_names_say_what_is_in_them() -> None:
    complain([f"{place(path)}: name it by what it holds" for path in [*SOURCES, *DEPLOY] if path.stem in BANNED_NAMES])


def test_words_are_the_fields_own() -> None:
    pages = [*SOURCES, REPOSITORY / "CONTRIBUTING.md"]
    lines = [(path, number, line) for path in pages for number, line in enumerate(path.read_text().splitlines(), 1)]
    complain([f"{path.name}:{number}: {line.strip()}" for path, number, line in lines if BANNED_WORDS.search(line)])


def test_folders_hold_one_concern() -> None:
    everywhere = [*SOURCES, *DEPLOY, *TESTS.rglob("*.py")]
    counts = Counter(path.parent for path in everywhere if path.name != "__init__.py")
    complain(
        [
            f"{folder.relative_to(REPOSITORY)}: {count} files, at most 20"
            for folder, count in counts.items()
            if count > 20
        ]
    )


def test_programs_of_the_labs_jobs_import_only_each_other_of_the_lab() -> None:
    """Jobs see copies of this folder alone, and run as somebody who may not read the checkout."""
    programs = [path for path in DEPLOY if path.parent.name == "training"]
    assert programs
    complain(
        [
            f"{place(path)}:{line}: imports {name}"
            for path in programs
            for name, line in imports(path)
            if name.split(".")[0] == "lab" and not name.startswith("lab.training")
        ]
    )


def test_outside_libraries_are_imported_only_in_their_place() -> None:
    faults = []
    for path in SOURCES:
        for name, line in imports(path):
            top = name.split(".")[0]
            if top in OURS or top in sys.stdlib_module_names:
                continue
            if not any(place(path).startswith(allowed) for allowed in PLACES.get(top, ())):
                faults.append(f"{place(path)}:{line}: imports {top}; its place is {PLACES.get(top, 'nowhere')}")
    complain(faults)


def test_pure_parts_have_no_clock_no_chance_and_no_outside() -> None:
    faults = []
    for path in SOURCES:
        if part(path) not in PURE:
            continue
        faults += [
            f"{place(path)}:{line}: imports {name}" for name, line in imports(path) if name.split(".")[0] in IMPURE
        ]
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id in {"open", "print", "input", "eval", "exec"}:
                faults.append(f"{place(path)}:{node.lineno}: calls {node.func.id}()")
            if (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in CLOCKS
                and ast.unparse(node.func.value).split(".")[-1] in {"datetime", "date"}
            ):
                faults.append(f"{place(path)}:{node.lineno}: reads the clock")
    complain(faults)


def test_sizes() -> None:
    faults = []
    for path in [*SOURCES, *DEPLOY]:
        lines = len(path.read_text().splitlines())
        limit = MAX_LINES.get(part(path) if path.is_relative_to(PACKAGE) else "", MAX_LINES_ELSEWHERE)
        if lines > limit:
            faults.append(f"{place(path)}: {lines} lines, at most {limit}: split it")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES and "migrations" not in path.parts:  # a schema is a list
                    faults.append(
                        f"{place(path)}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION_LINES}"
                    )
    complain(faults)


# Here every event of the daemon passes, and every heartbeat: their loops, in functions.
EVERY_EVENT = {"daemon/runner.py", "daemon/api/transport.py"}


def broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(item, ast.Name) and item.id in {"Exception", "BaseException"} for item in types)


def raises_again(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def guards(node: ast.AST, in_loop: bool = False) -> Iterator[tuple[ast.ExceptHandler, bool]]:
    """Broad handlers, and whether each stands in a loop or around a whole task (the last statement of an async function)."""
    for child in ast.iter_child_nodes(node):
        inside = in_loop or isinstance(child, (ast.While, ast.For, ast.AsyncFor))
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            inside = False
        if isinstance(child, ast.Try):
            whole_task = isinstance(node, ast.AsyncFunctionDef) and node.body[-1] is child
            for handler in child.handlers:
                if broad(handler) and not raises_again(handler):
                    yield handler, inside or whole_task
        yield from guards(child, inside)


def test_every_exception_is_caught_only_in_loops_of_the_runners() -> None:
    """There it is logged as the event ``bug``; acceptance tests fail on that. What raises again catches nothing."""
    faults = []
    for path in SOURCES:
        for handler, in_loop in guards(tree_of(path)):
            where = f"{place(path)}:{handler.lineno}"
            if part(path) not in RUNNERS or not (in_loop or place(path) in EVERY_EVENT):
                faults.append(f"{where}: catches every exception outside a runner's loop")
            elif not re.search(r"['\"]bug\b|\bbug\(", ast.unparse(handler)):
                faults.append(f"{where}: catches every exception without logging the event bug")
    complain(faults)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_resolves(command: str) -> None:
    module, _, attribute = COMMANDS[command][0].partition(":")
    exists = (REPOSITORY / (module.replace(".", "/") + ".py")).exists()
    assert exists != (command in COMMANDS_TO_COME), (
        f"{module} {'exists: shorten COMMANDS_TO_COME' if exists else 'is missing'}"
    )
    if exists:
        assert isinstance(getattr(importlib.import_module(module), attribute), click.Command)


def test_contributing_names_what_exists() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(names) > 20
    # Short names of a row ("agent/", "contract") stand beside a full one of the same folder.
    homes = (REPOSITORY, PACKAGE, REPOSITORY / "tests")
    complain([f"CONTRIBUTING.md names {name}" for name in names if not any((home / name).exists() for home in homes)])


def test_every_file_says_what_it_holds() -> None:
    complain(
        [
            f"{place(path)}: no docstring"
            for path in SOURCES
            if path.name != "__main__.py" and "migrations" not in path.parts and not ast.get_docstring(tree_of(path))
        ]
    )


def test_help_imports_no_heavy_library() -> None:
    program = (
        "import json, sys\n"
        "from sentinel.cli import cli\n"
        "try:\n    cli(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    *shown, last = done.stdout.splitlines()
    assert any("classify" in line for line in shown)
    loaded = {name.split(".")[0] for name in json.loads(last)}
    assert not loaded & ({*PLACES, "torch", "numpy", "asyncio"} - {"click"})


TESTS = REPOSITORY / "tests"
Functions = dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]


def functions_of(path: Path) -> Functions:
    """Functions of a module and methods of its classes, by name."""
    found: Functions = {}
    for node in ast.parse(path.read_text()).body:
        for one in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.setdefault(one.name, []).append(one)
    return found


def left_to(node: ast.AST) -> str:
    """The name of a helper whose answer nobody takes: it must assert by itself what the test is about."""
    call = node.value if isinstance(node, ast.Expr) else node.context_expr if isinstance(node, ast.withitem) else None
    call = call.value if isinstance(call, ast.Await) else call
    return ast.unparse(call.func).split(".")[-1] if isinstance(call, ast.Call) else ""


def can_fail(name: str, homes: tuple[Functions, ...], seen: frozenset[str] = frozenset()) -> bool:
    """Whether a function asserts, expects an exception, or leaves that to a helper that does."""
    left: list[ast.AST] = [*next((home[name] for home in homes if name in home), ())]
    while left:
        node = left.pop()
        helper = left_to(node)
        if isinstance(node, ast.Assert) or helper in {"raises", "warns", "fail"}:
            return True
        if helper and helper not in seen and can_fail(helper, homes, seen | {name}):
            return True
        left.extend(ast.iter_child_nodes(node))
    return False


def test_every_test_can_fail() -> None:
    """One that only calls what it is about passes whatever that answers."""
    shared: Functions = {}
    for path in (TESTS / "support").rglob("*.py"):
        for name, functions in functions_of(path).items():
            shared.setdefault(name, []).extend(functions)
    faults = []
    for path in TESTS.rglob("test_*.py"):
        own = functions_of(path)
        tests = [name for name in own if name.startswith("test_") and not can_fail(name, (own, shared))]
        faults += [f"{path.relative_to(REPOSITORY)}:{own[name][0].lineno}: {name} checks nothing" for name in tests]
    complain(faults)
