"""A line at the end of a job's own log: appended, as the user, to nothing but a file of the user's own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sentinel.agent.user_files import write_log

LINE = "sentinel: attempt 0: user_code; the job is held"


def ask(monkeypatch: pytest.MonkeyPatch, log: str) -> dict[str, object]:
    said: list[dict[str, object]] = []
    monkeypatch.setattr(write_log, "begin", lambda: {"uid": 1000, "gid": 100, "log": log, "text": LINE})
    monkeypatch.setattr(write_log, "become", lambda uid, gid: None)
    monkeypatch.setattr(write_log, "say", said.append)
    write_log.main()
    (answer,) = said
    return json.loads(json.dumps(answer))


def test_it_is_appended_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "out.txt"
    log.write_text("step 7 | loss 2.0")
    assert ask(monkeypatch, str(log)) == {"result": {"written": True}}
    assert log.read_text() == f"step 7 | loss 2.0\n{LINE}\n"


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "missing", "nowhere"])
def test_what_is_no_file_of_the_users_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    target, log = tmp_path / "target", tmp_path / "out.txt"
    target.write_text("mine")
    if kind == "link":
        log.symlink_to(target)
        with pytest.raises(OSError, match="symbolic"):
            write_log.append(log, LINE)
    elif kind == "fifo":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    if kind != "link":
        assert "error" in ask(monkeypatch, "" if kind == "nowhere" else str(log))
    assert target.read_text() == "mine"


def test_a_file_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "out.txt"
    log.write_text("x")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError):
        write_log.append(log, LINE)
    assert log.read_text() == "x"
