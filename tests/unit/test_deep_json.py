"""JSON and TOML that others wrote, nested 100,000 deep: everywhere one refusal, never a traceback."""

from __future__ import annotations

import ast
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sentinel import hook
from sentinel.adapters.spool import Spool
from sentinel.agent.probes.collect import FRAME, Frames
from sentinel.agent.process.state_files import restore
from sentinel.checkpoints.quarantine import JOURNAL, read_journal, store_of
from sentinel.cli.checkpoints.slurm import parse_answers
from sentinel.cli.simulate.job_array import read_part
from sentinel.config.rules_document import Document
from sentinel.config.settings import Settings
from sentinel.config.settings_toml import parsed
from sentinel.config.signals_toml import parse_signals
from sentinel.errors import FileError, ProtocolError

DEEP = b"[" * 100_000
PACKAGE = Path(hook.__file__).parent
# What we ourselves wrote a moment before, into a pipe of our own or a store that nobody else writes.
OUR_OWN = {
    "adapters/slurm/pyslurm_child.py", "adapters/store/audit.py", "agent/probes/__init__.py", "cli/checkpoints/deadline.py",
    "model/orders.py",
}  # fmt: skip


def test_the_prolog_takes_a_diagnostic_that_says_this_for_one_that_said_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hook, "run", lambda *_: DEEP + b"\n")
    found = hook.diagnosed({}, "n1", 1.0)
    assert found == {"result": "inconclusive", "reason": "level 1 said nothing that can be read"}


def test_a_spool_leaves_out_the_item_and_counts_it(tmp_path: Path) -> None:
    rest = b"1 1 " + DEEP
    (tmp_path / "00000000000000000001.log").write_bytes(b"%08x %s\n" % (zlib.crc32(rest), rest))
    (tmp_path / "cursor").write_bytes(DEEP)
    spool = Spool(tmp_path)
    try:
        spool.append({"said": "after it"})
        assert spool.wait(20.0)
        assert [item.content for item in spool.batch(10)] == [{"said": "after it"}]
        assert spool.corrupt >= 1
    finally:
        spool.close()


def test_a_state_of_the_agents_is_as_none(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(DEEP)
    path.chmod(0o600)
    assert restore(path) is None


def test_what_a_users_process_says_is_trouble() -> None:
    reading, writing = os.pipe()
    header = DEEP[:4096]
    os.write(writing, FRAME.pack(len(header), 0) + header)
    os.close(writing)
    frames = Frames(reading, 1 << 20, time.monotonic() + 20.0)
    assert list(frames) == [] and "cannot be read" in frames.trouble
    os.close(reading)


def _journal(folder: Path) -> None:
    store = store_of(folder / "run")
    store.mkdir(parents=True, mode=0o700)
    store.parent.chmod(0o700)
    (folder / "run").mkdir()
    (store / JOURNAL).write_bytes(b'{"a":' * 100_000 + b"}\n")
    (store / JOURNAL).chmod(0o600)
    read_journal(folder / "run")


REFUSED: dict[str, tuple[type[Exception], Callable[[Path], object]]] = {
    "settings": (FileError, lambda _: parsed(Path("x.toml"), f"cluster = {DEEP.decode()}", Settings)),
    "rules": (FileError, lambda _: Document("x.toml", f"rule = {DEEP.decode()}")),
    "signals": (FileError, lambda _: parse_signals([("x.toml", f"signal = {DEEP.decode()}")], site=[])),
    "a journal": (FileError, _journal),
    "an answer of a task": (ProtocolError, lambda _: parse_answers(DEEP.decode())),
    "a part of a simulation": (ProtocolError, lambda folder: read_part(_written(folder / "part.json"))),
}


def _written(path: Path) -> Path:
    path.write_bytes(DEEP)
    return path


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused(what: str, tmp_path: Path) -> None:
    error, read = REFUSED[what]
    with pytest.raises(error):
        read(tmp_path)


PARSERS = ("json.loads", "json.load", "tomllib.loads")


def test_whoever_parses_json_of_others_is_ready_for_it() -> None:
    """``sentinel.text`` makes a ValueError of it; who calls ``json.loads`` must catch RecursionError."""
    unready = []
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in PARSERS):
            continue
        tree = ast.parse(text)
        ready = {
            id(call)
            for tried in ast.walk(tree)
            if isinstance(tried, ast.Try)
            and any("RecursionError" in ast.unparse(one.type) for one in tried.handlers if one.type is not None)
            for part in tried.body
            for call in ast.walk(part)
        }
        for call in ast.walk(tree):
            named = isinstance(call, ast.Call) and ast.unparse(call.func) in PARSERS
            if named and id(call) not in ready and place not in OUR_OWN:
                unready.append(f"{place}:{call.lineno}")
    assert unready == []
