"""The launcher's block: who failed first, with which status; and lines of source that a traceback quotes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped import shipped_signatures

from sentinel.cli.offline.classify import judge_path
from sentinel.evidence.logs.launcher import BLOCK, first_failure
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Evidence

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
SIGNATURES = shipped_signatures()


def block(rank: int, host: str, status: str) -> str:
    return (
        f"  time      : 2026-03-04_11:02:03\n  host      : {host}\n  rank      : {rank} (local_rank: {rank % 8})\n"
        f"  exitcode  : {status}\n  error_file: <N/A>\n  traceback : To enable traceback see the documentation\n"
    )


LAUNCHER = (
    "============================================================\nfit.py FAILED\n"
    "------------------------------------------------------------\nFailures:\n[1]:\n"
    + block(0, "c1", "-15 (pid: 700)  (SIGTERM)")
    + "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
    + block(13, "c2", "-9 (pid: 713)  (SIGKILL)")
    + "============================================================\n"
)


def read(text: str) -> list[Evidence]:
    reader = LogReader(SIGNATURES)
    return [*reader.feed(text.encode(), NOW), *reader.finish(NOW)]


def test_the_block_names_rank_host_and_signal() -> None:
    (found,) = [item for item in read(LAUNCHER) if item.kind == "first-failure"]
    assert (found.where.rank, found.where.node) == (13, "c2")
    assert (found.data["exit_code"], found.data["signal"], found.data["pid"]) == (-9, 9, 713)


def test_the_first_rank_to_fail_leads_the_culprits(tmp_path: Path) -> None:
    log = tmp_path / "slurm-5.out"
    log.write_text(LAUNCHER)
    answer = judge_path(log, SIGNATURES, NOW)
    assert (answer["cause"], answer["culprits"]["ranks"][0]) == ("app_oom_host", 13)


@pytest.mark.parametrize("text", ["", "[0]:\n", "  rank      : many\n  exitcode  : ?\n", "x" * 5000])
def test_a_block_without_its_fields_says_nothing(text: str) -> None:
    found = first_failure(text.encode())
    assert (found.rank, found.host, found.exit_code, dict(found.data)) == (None, None, None, {})


def test_localhost_is_nobody() -> None:
    assert first_failure(block(3, "localhost", "1 (pid: 9)").encode()).host is None


@given(st.binary(max_size=2 * BLOCK))
def test_any_bytes_are_read_without_harm(data: bytes) -> None:
    found = first_failure(data)
    assert found.host is None or len(found.host) <= 64
    assert all(number is None or abs(number) < 10**9 for number in (found.rank, found.exit_code, found.pid))


def test_a_line_of_source_that_a_traceback_quotes_is_no_message() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/srv/fit.py", line 8, in load\n'
        "    raise FileNotFoundError(path) if strict else OSError(\n"
        "OSError: [Errno 122] Disk quota exceeded: '/home/c/run'\n"
    )
    assert {item.rule for item in read(text) if item.rule} == {"quota"}


def test_an_error_file_in_a_folder_is_read_with_its_own_time(tmp_path: Path) -> None:
    worker = tmp_path / "attempt_0" / "1"
    worker.mkdir(parents=True)
    stack = "Traceback (most recent call last):\n  File \"/srv/fit.py\", line 8, in body\nKeyError: 'labels'\n"
    message = {"message": "KeyError: 'labels'", "extraInfo": {"py_callstack": stack, "timestamp": "1772620000"}}
    (worker / "error.json").write_text(json.dumps({"message": message}))
    (worker / "stderr.log").write_text("terminate called without an active exception\n")
    answer = judge_path(tmp_path, SIGNATURES, NOW)
    assert answer["cause"] == "user_code"
    assert Path(answer["evidence"][0]["file"]).name == "error.json"
    assert answer["evidence"][0]["trust"] == "user"


def test_a_json_log_that_is_no_error_file_is_read_as_a_log(tmp_path: Path) -> None:
    (tmp_path / "events.json").write_text(
        '{"message": "nothing"}\n{"text": "OSError: [Errno 28] No space left on device"}\n'
    )
    assert judge_path(tmp_path, SIGNATURES, NOW)["cause"] == "disk_full"
