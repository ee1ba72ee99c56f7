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
    arguments = {"uid": 1000, "gid": 100, "job": 5602, "attempt": 1, "log": log, "text": LINE}
    monkeypatch.setattr(write_log, "begin", lambda: arguments)
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


def test_of_an_arrays_logs_it_is_the_one_in_which_the_attempt_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pattern, own, other = str(tmp_path / "t-[0-9]*_[0-9]*.out"), tmp_path / "t-56_0.out", tmp_path / "t-56_1.out"
    own.write_text("step 7\n")
    assert ask(monkeypatch, pattern) == {"result": {"written": True}}, "there is no other"
    other.write_text("step 1\n")
    assert "error" in ask(monkeypatch, pattern)
    own.write_text("step 7\nsentinel: job 5602 attempt 1 begins\n")
    assert ask(monkeypatch, pattern) == {"result": {"written": True}}
    assert LINE in own.read_text() and LINE not in other.read_text()


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
