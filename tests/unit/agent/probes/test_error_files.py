"""What a job's error files say is read in a process of the job's user, and keeps back nothing of the node's end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.process.probe_programs import probe_environment

UID, GID = (65534, 65534) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
PATIENCE_S = 120.0
# The collector, with something else in the place of what reads an error file.
COLLECTOR = """
import os
from sentinel.agent.probes import collect, findings
from sentinel.model.records import Evidence, Source, Where
def as_uid(data, where, rules, began, now):
    return [Evidence("e", now, now, Source.ERROR_FILE, "error_file", where, f"read by uid {{os.geteuid()}}")]
def for_ever(*_):
    while True:
        pass
def liar(data, where, rules, began, now):
    lie = Evidence("e", now, now, Source.KERNEL, "xid", Where(node="n9", job=1, attempt=9), "not a word of it")
    return [lie] * 1000
def nonsense(*_):
    raise RecursionError("deep")
read = findings.read_error_file
findings.read_error_file = {reader}
collect.JUDGE_S += {longer_s}
collect.main()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that the job's user can enter: pytest's own are closed."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def collected(folder: Path, reader: str, longer_s: float = 0.0) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The evidence, and the last message, of a job that left an error file."""
    work = folder / "work"
    work.mkdir()
    error = {"message": {"message": "RuntimeError: of the user's", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}
    (work / "error.json").write_text(json.dumps(error))
    (folder / "bundles").mkdir()
    if os.geteuid() == 0:
        for path in (work, work / "error.json"):
            os.chown(path, UID, GID)
    arguments = {"node": "n1", "job": 7, "attempt": 0, "uid": UID, "gid": GID, "began_s": 0.0, "ended_s": 1.0, "code": "1",
                 "why": "code", "look": True, "first": True, "work_dir": str(work), "log": "", "gpus": [], "others": {},
                 "here_again": str(folder), "places": {}, "folder": str(folder / "bundles" / "7.0"), "kernel": "",
                 "gpus_seen": "", "rules": "", "user_s": PATIENCE_S, "look_s": PATIENCE_S, "files": 9, "dumps": 9,
                 "file_bytes": 9999, "total_bytes": 99999, "log_bytes": 9999, "kernel_lines": 9, "end_stray": False,
                 "term_s": 0.1, "bundles": 9, "bundles_bytes": 1 << 20}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-S", "-c", COLLECTOR.format(reader=reader, longer_s=longer_s)],
        input=json.dumps(arguments).encode() + b"\n",
        env={**probe_environment(), "PATH": os.environ["PATH"]}, capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said and said[-1]["type"] == "collected", done.stderr.decode()
    return [item for message in said if message["type"] == "evidence" for item in message["items"]], said[-1]


def test_they_are_read_as_the_jobs_user(folder: Path) -> None:
    found, _ = collected(folder, "as_uid")
    (error,) = [item for item in found if item["kind"] == "error_file"]
    assert error["text"] == f"read by uid {UID}" and error["where"]["path"].endswith("/work/error.json")


def test_what_they_say_is_told(folder: Path) -> None:
    found, last = collected(folder, "read")
    assert any("of the user's" in item["text"] for item in found) and last["notes"] == []


def test_one_that_takes_too_long_keeps_back_nothing_else(folder: Path) -> None:
    found, last = collected(folder, "for_ever", longer_s=-PATIENCE_S)
    assert [item["kind"] for item in found] == ["bundle"] and last["errors"] == 1
    (note,) = last["notes"]
    assert note.startswith(f"what the job's error files say, read as uid {UID}: it did not answer within the deadline")
    assert (folder / "bundles" / "7.0" / "error-000-error.json").exists()


def test_what_the_users_process_says_is_about_this_job_and_no_more_than_files_allow(folder: Path) -> None:
    found, _ = collected(folder, "liar")
    lies = [item for item in found if item["text"] == "not a word of it"]
    assert len(lies) == 128
    assert {(item["source"], item["where"]["node"], item["where"]["job"]) for item in lies} == {("error_file", "n1", 7)}


def test_one_on_which_the_reader_fails_is_a_note(folder: Path) -> None:
    found, last = collected(folder, "nonsense")
    assert [item["kind"] for item in found] == ["bundle"] and "RecursionError: deep" in last["notes"]
