"""Bytes that users and operators choose (job names, comments, paths, reasons) as Slurm's JSON passes them on: unchecked."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.adapters.slurm.commands import CommandReader
from sentinel.adapters.slurm.parse import fleet_of, job_view, node_view, records
from sentinel.adapters.slurm.pyslurm_child import answer
from sentinel.adapters.slurm.pyslurm_reader import probe
from sentinel.model.records import Fleet

AT = datetime(2026, 3, 1, tzinfo=UTC)
JOB: dict[str, Any] = {
    "job_id": 7, "job_state": "RUNNING", "user_name": "alice", "user_id": 1001, "name": "run", "partition": "train",
    "nodes": "n[1-2]", "batch_host": "n1", "restart_cnt": 2, "priority": 5, "comment": "c", "batch_flag": True,
    "requeue": True, "account": "",
}  # fmt: skip
NODE: dict[str, Any] = {"name": "n1", "state": "idle", "reason": "", "partitions": ["train"], "gres": "gpu:8"}
TEXTS = (
    "name",
    "comment",
    "admin_comment",
    "account",
    "features",
    "wckey",
)
ATTACKS = (
    b"\xff\xfe", b"\xed\xa0\x80", b"\xc3", b"\xf0\x9f\x92", b"a\nJobId=1 JobState=FAILED|x,y = NodeName=n1 State=DOWN",
    b'"}], "nodes": [{"name": "n9"}], "jobs": [{"job_id": 1}], "x": "', b"\\ud800", b"\\u0000", b"\\", b"\\\xff",
    b"\x1b[31m\x07", b"x" * 100_000, b"\xff" * 10_000, "\u202e\u2028☃".encode(),
)  # fmt: skip


def printed(value: object) -> bytes:
    """JSON as json-c prints it, with which Slurm does: bytes in strings pass through, only what JSON forbids is escaped."""
    if isinstance(value, dict):
        return b"{" + b", ".join(printed(key) + b": " + printed(item) for key, item in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b", ".join(printed(item) for item in value) + b"]"
    if not isinstance(value, bytes | str):
        return json.dumps(value).encode()
    raw = value if isinstance(value, bytes) else value.encode()
    made = b"".join(
        b"\\" + bytes([byte]) if byte in b'"\\/' else b"\\u%04x" % byte if byte < 32 else bytes([byte]) for byte in raw
    )
    return b'"' + made + b'"'


def told(jobs: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> Fleet:
    answered = printed({"meta": {}, "errors": [], "jobs": jobs, "nodes": nodes})
    return fleet_of(AT, records(answered, "nodes"), records(answered, "jobs"))


def storable(fleet: Fleet) -> None:
    """Every text of it can be written to a database, a file and a terminal."""
    for view in (*fleet.jobs.values(), *fleet.nodes.values()):
        for name in type(view).__slots__:
            if isinstance(value := getattr(view, name), str):
                value.encode()
                assert "\0" not in value, name


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
@pytest.mark.parametrize("field", TEXTS)
def test_no_text_of_a_user_hides_or_changes_another_record(field: str, attack: bytes) -> None:
    fleet = told([JOB, JOB | {"job_id": 8, field: attack}, JOB | {"job_id": 9}], [NODE, NODE | {"name": "n2"}])
    assert set(fleet.jobs) == {7, 8, 9} and set(fleet.nodes) == {"n1", "n2"} and not fleet.unread
    plainly = told([JOB | {"job_id": 8}], [NODE]).jobs[8]
    seen = fleet.jobs[8]
    assert (seen.state, seen.nodes, seen.restarts, seen.uid) == (plainly.state, plainly.nodes, 2, 1001)
    storable(fleet)


@pytest.mark.parametrize("attack", ATTACKS, ids=range(len(ATTACKS)))
def test_no_reason_of_an_operator_hides_or_changes_another_node(attack: bytes) -> None:
    fleet = told([JOB], [NODE | {"reason": attack}, NODE | {"name": "n2"}])
    assert set(fleet.nodes) == {"n1", "n2"} and fleet.nodes["n1"].state == "idle" and fleet.nodes["n1"].reason
    storable(fleet)


@given(st.binary(max_size=40).filter(lambda raw: 0 not in raw), st.sampled_from(TEXTS), st.binary(max_size=20))
def test_arbitrary_bytes_are_read_and_change_nothing_else(raw: bytes, field: str, reason: bytes) -> None:
    fleet = told([JOB | {field: raw}, JOB | {"job_id": 8}], [NODE | {"reason": reason}, NODE | {"name": "n2"}])
    assert set(fleet.jobs) == {7, 8} and set(fleet.nodes) == {"n1", "n2"} and not fleet.unread
    assert fleet.jobs[8] == job_view(JOB | {"job_id": 8}) and fleet.nodes["n2"] == node_view(NODE | {"name": "n2"})
    storable(fleet)


def test_bytes_that_are_no_text_are_shown_by_their_escapes() -> None:
    fleet = told([JOB | {"name": b"evil\xff\xed\xa0\x80"}], [NODE])
    assert fleet.jobs[7].name == "evil\\xff\\xed\\xa0\\x80"


def commands(folder: Path, answered: bytes) -> CommandReader:
    """A reader over commands that print ``answered``."""
    (folder / "answer").write_bytes(answered)
    says = f"printf '\\377' >&2\ncat {folder}/answer\n"
    (folder / "scontrol").write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo slurm 24.11.5 && exit 0\n{says}')
    (folder / "scontrol").chmod(0o755)
    return CommandReader(bin=f"{folder}:/usr/bin:/bin", deadline_s=60.0)


async def test_the_reader_over_commands_survives_bytes(tmp_path: Path) -> None:
    answered = printed({"errors": [], "jobs": [JOB | {"name": b"\xff"}, JOB | {"job_id": 8}], "nodes": [NODE]})
    reader = commands(tmp_path, answered)
    fleet = await reader.fleet()
    assert fleet.jobs[7].name == "\\xff" and 8 in fleet.jobs
    assert (await reader.job(7)) == fleet.jobs[7] and (await reader.node("n1")) == fleet.nodes["n1"]


class Strange:
    """A job as pyslurm gives it: fields are decoded when they are read, and bytes that are no UTF-8 raise then."""

    def __init__(self, number: int, **fields: object) -> None:
        self._fields = {
            "id": number, "state": "RUNNING", "user_name": "alice", "user_id": 1001, "name": b"run", "partition": "train",
            "allocated_nodes": "n1", "batch_host": "n1", "is_batch_job": True, "requeue_count": 0, "state_reason": None,
            "priority": 5, "comment": b"c", "admin_comment": None, "array_id": None, "array_task_id": None,
            "excluded_nodes": None, "required_nodes": None,
            "num_nodes": 1, "exit_code": 0, "exit_code_signal": 0, "is_requeueable": True, "submit_time": 1772366400,
            "start_time": 1772366401, "end_time": None, "eligible_time": 1772366400, "heterogeneous_id": None,
            "reservation": None, "cpus_per_task": 1, **fields,
        }  # fmt: skip

    def __getattr__(self, name: str) -> object:
        try:
            value = self._fields[name]
        except KeyError:
            raise AttributeError(name) from None
        if isinstance(value, Exception):
            raise value
        return value.decode() if isinstance(value, bytes) else value


def over_pyslurm(*jobs: Strange) -> Fleet:
    node = SimpleNamespace(name="n1", state="IDLE", reason=None, partitions=["train"], address="", configured_gres={})
    loaded = SimpleNamespace(
        Nodes=SimpleNamespace(load=lambda: {"n1": node}),
        Jobs=SimpleNamespace(load=lambda: {job.id: job for job in jobs}),
    )
    found = {}
    for verb in ("nodes", "jobs"):
        line = json.dumps(answer(loaded, json.dumps({"verb": verb, "arguments": []}))).encode()
        found[verb] = json.loads(line)["ok"]
    return fleet_of(AT, found["nodes"], found["jobs"])


def test_pyslurm_that_cannot_decode_a_field_still_gives_its_bytes() -> None:
    fleet = over_pyslurm(Strange(7, name=b"evil\xff", comment=b"\xfe"), Strange(8))
    assert (fleet.jobs[7].name, fleet.jobs[7].comment) == ("evil\\xff", "\\xfe")
    assert fleet.jobs[8].name == "run" and not fleet.unread


def test_a_job_that_pyslurm_cannot_give_is_left_out_with_the_reason() -> None:
    fleet = over_pyslurm(Strange(7, exit_code=ValueError("what is 4294967294?")), Strange(8))
    assert set(fleet.jobs) == {8} and fleet.may_have_job(7)
    assert (fleet.unread[0].name, "4294967294" in fleet.unread[0].reason) == ("7", True)


def test_a_pyslurm_whose_complaint_is_no_text_is_told_of_all_the_same() -> None:
    _, why_not = probe({}, 60.0, ("/bin/sh", "-c", r"printf 'no \377' >&2; exit 3"))
    assert "no \\xff" in why_not
