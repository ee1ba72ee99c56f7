"""What the process around pyslurm answers, with a pyslurm of the documented shapes (23.2.3 and newer, and older ones)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from sentinel.adapters.slurm.parse import array_spec, job_view, node_view
from sentinel.adapters.slurm.pyslurm_child import answer, hello
from sentinel.adapters.slurm.writer import Writer
from sentinel.model.records import JobView, NodeView


class RPCError(Exception):
    def __init__(self, message: str, errno: int) -> None:
        super().__init__(message)
        self.errno = errno


JOB = SimpleNamespace(
    id=7, state="RUNNING", user_name="alice", user_id=1001, name="x\nJobState=FAILED", partition="train",
    allocated_nodes="n[1-2]", batch_host="n1", is_batch_job=True, requeue_count=1, state_reason="None", priority=5,
    comment=None, admin_comment=None, array_id=None, array_task_id=None,
    excluded_nodes="n4", required_nodes=None, num_nodes=2, exit_code=0,
    exit_code_signal=0, is_requeueable=True, submit_time=1772366400, start_time=1772366401, end_time=1803902401,
    eligible_time=1772366400, heterogeneous_id=None, reservation=None, cpus_per_task=1,
)  # fmt: skip
NODE = SimpleNamespace(
    name="n1", state="IDLE+DRAIN", reason="sentinel: i42", partitions=["train"], address="10.0.0.1", slurmd_port=6818,
    configured_gres={"gpu:h100": 8},
)  # fmt: skip


class Described:
    """Node, Job and JobSubmitDescription: remembers how it was made and what was called."""

    calls: ClassVar[list[tuple[Any, ...]]] = []

    def __init__(self, *made: object, **fields: object) -> None:
        self.made, self.fields = made, fields

    def modify(self, changes: Described) -> None:
        self.calls.append(("modify", self.made, changes.fields))

    def release(self) -> None:
        raise RPCError("Invalid job id specified", 2017)


def pyslurm(**more: object) -> Any:
    Described.calls = []
    nodes, jobs = SimpleNamespace(load=lambda: {"n1": NODE}), SimpleNamespace(load=lambda: {7: JOB})
    return SimpleNamespace(
        __version__="25.11.2", Nodes=nodes, Jobs=jobs, Node=Described, Job=Described, JobSubmitDescription=Described,
        RPCError=RPCError, **more,
    )  # fmt: skip


def ask(verb: str, *arguments: object) -> Any:
    return json.loads(json.dumps(answer(pyslurm(), json.dumps({"verb": verb, "arguments": arguments}))))


def test_records_come_in_the_shape_that_the_parser_reads() -> None:
    node = node_view(ask("nodes")["ok"][0])
    assert (node.name, node.state, node.flags, node.gpus) == ("n1", "idle", frozenset({"drain"}), 8)
    assert (node.reason, node.partitions, node.address, node.port) == ("sentinel: i42", ("train",), "10.0.0.1", 6818)
    job = job_view(ask("jobs")["ok"][0])
    assert (job.id, job.state, job.name, job.nodes, job.excluded) == (
        7,
        "running",
        "x\nJobState=FAILED",
        ("n1", "n2"),
        ("n4",),
    )
    assert (job.restarts, job.exit_code, job.requeue) == (1, None, True)


def test_writing() -> None:
    assert ask("set_node", "n1", "DRAIN", "sentinel: i42") == {"ok": None}
    assert Described.calls == [("modify", ("n1",), {"state": "DRAIN", "reason": "sentinel: i42"})]
    assert ask("set_node", "n1", "RESUME", None) == {"ok": None}
    assert Described.calls == [("modify", ("n1",), {"state": "RESUME"})]


def test_slurms_no_and_a_pyslurm_that_does_not_fit_are_told_apart() -> None:
    assert ask("release", 7) == {"no": "Invalid job id specified (2017)"}
    assert "notify" in ask("notify", 7, "words")["broken"]  # this pyslurm has no such method
    assert "broken" in ask("nonsense")


def test_an_old_interface_is_named_as_such() -> None:
    old = SimpleNamespace(__version__="21.8.1", node=object(), job=object())
    assert hello(old)["lacks"] == ["Nodes", "Jobs", "Node", "Job", "JobSubmitDescription", "RPCError"]
    assert hello(pyslurm())["lacks"] == []


# The same jobs and node over the commands (JSON of 22.05) and over pyslurm. Together they set every field of a view.
COMMANDS_JOB: dict[str, Any] = {
    "job_id": 8, "job_state": "RUNNING", "state_reason": "None", "state_description": "", "user_name": "alice",
    "user_id": 1001, "name": "run", "partition": "train,other", "nodes": "n[1-2]", "batch_host": "n1", "batch_flag": True,
    "restart_cnt": 1, "priority": 0, "comment": "c", "admin_comment": "a",
    "excluded_nodes": "n4", "required_nodes": "n1", "node_count": 2,
    "tasks_per_node": 8, "cpus_per_task": 4, "exit_code": 256 + 9, "requeue": True,
    "dependency": "afterany:6(unfulfilled),singleton(unfulfilled)",
    "submit_time": 1772366400, "start_time": 1772366401, "end_time": 1772366402, "eligible_time": 1772366403,
    "suspend_time": 1772366404, "preempt_time": 1772366405, "array_job_id": 5, "array_task_id": 3, "het_job_id": 8,
    "resv_name": "mine", "time_limit": 60, "time_minimum": 0, "deadline": 1772380000,
}  # fmt: skip
PYSLURM_JOB: dict[str, Any] = {
    "id": 8, "state": "RUNNING", "state_reason": "None", "user_name": "alice", "user_id": 1001, "name": "run",
    "partition": "train,other", "allocated_nodes": "n[1-2]", "batch_host": "n1", "is_batch_job": True, "requeue_count": 1,
    "priority": 0, "comment": "c", "admin_comment": "a",
    "excluded_nodes": "n4", "required_nodes": "n1", "num_nodes": 2,
    "ntasks_per_node": 8, "cpus_per_task": 4, "exit_code": 1, "exit_code_signal": 9, "is_requeueable": True,
    "dependencies": {"afterany": [6], "singleton": True, "satisfy": "all"},
    "submit_time": 1772366400, "start_time": 1772366401, "end_time": 1772366402,
    "eligible_time": 1772366403, "suspend_time": 1772366404, "preempt_time": 1772366405, "array_id": 5, "array_task_id": 3,
    "heterogeneous_id": 8, "reservation": "mine", "time_limit": 60, "deadline": 1772380000,
}  # fmt: skip
HELD = "job requeued in held state"
# What differs from these: over the commands, and over pyslurm, which tells a description in the reason's place.
STATES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"job_state": "FAILED"}, {"state": "FAILED"}),
    ({"partition": "train", "submit_line": "sbatch -p train,other a"},) * 2,
    ({"job_state": "CONFIGURING"}, {"state": "CONFIGURING"}),
    (
        {"job_state": "SPECIAL_EXIT", "state_reason": "JobHeldUser"},
        {"state": "SPECIAL_EXIT", "state_reason": "JobHeldUser"},
    ),
    (
        {"job_state": "PENDING", "state_reason": "JobHeldUser", "state_description": HELD},
        {"state": "PENDING", "state_reason": HELD},
    ),
    ({"excluded_nodes": "n[1"}, {"excluded_nodes": "n[1"}),
]
COMMANDS_NODE: dict[str, Any] = {
    "name": "n1", "state": "idle", "state_flags": ["DRAIN"], "reason": "r", "partitions": ["train", "other"],
    "address": "10.0.0.1", "port": 6818, "gres": "gpu:h100:8", "topology": "leaf1",
}  # fmt: skip
PYSLURM_NODE: dict[str, Any] = {
    "name": "n1", "state": "IDLE+DRAIN", "reason": "r", "partitions": ["train", "other"], "address": "10.0.0.1",
    "slurmd_port": 6818, "configured_gres": {"gpu:h100": 8},
}  # fmt: skip


class Seen(dict[str, Any]):
    """A record that keeps which of its keys are read."""

    def __init__(self, record: Mapping[str, Any], keys: set[str]) -> None:
        super().__init__(record)
        self.keys_read = keys

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.keys_read.add(key)
        return super().__getitem__(key)


def over_pyslurm(verb: str, **fields: object) -> dict[str, Any]:
    module = pyslurm()
    setattr(module, verb.title(), SimpleNamespace(load=lambda: {1: SimpleNamespace(**fields)}))
    (record,) = json.loads(json.dumps(answer(module, json.dumps({"verb": verb, "arguments": []}))))["ok"]
    found: dict[str, Any] = record
    return found


def test_both_ways_into_slurm_tell_the_same_of_a_job() -> None:
    views = []
    for by_commands, by_pyslurm in STATES:
        known = job_view(COMMANDS_JOB | by_commands)
        seen = job_view(over_pyslurm("jobs", **(PYSLURM_JOB | by_pyslurm)))
        reason = known.reason if known.requeue_held else seen.reason  # hidden by the description
        assert dataclasses.replace(seen, reason=reason) == known
        views.append(seen)
    never_set = {f.name for f in dataclasses.fields(JobView) if all(getattr(v, f.name) == f.default for v in views)}
    assert not never_set, "add a state that sets it, so that both ways are compared"


def test_both_ways_into_slurm_tell_the_same_of_a_node() -> None:
    seen, known = node_view(over_pyslurm("nodes", **PYSLURM_NODE)), node_view(COMMANDS_NODE)
    assert dataclasses.replace(seen, topology="leaf1") == known  # pyslurm knows of none: scontrol is asked
    older = {key: value for key, value in PYSLURM_NODE.items() if key != "slurmd_port"} | {"port": 6818}
    assert node_view(over_pyslurm("nodes", **older)) == seen
    assert all(getattr(known, field.name) != field.default for field in dataclasses.fields(NodeView))


async def test_pyslurms_record_has_every_key_that_is_read() -> None:
    """What it lacks is read as none: a job's reservation was, and the job moved to the spare nodes' one for good."""
    read: set[str] = set()
    for by_commands, _ in STATES:
        record = Seen(COMMANDS_JOB | by_commands, read)
        job_view(record)
        array_spec(record)

    class Verbs:
        async def job_record(self, _job: int) -> Mapping[str, Any]:
            return Seen(COMMANDS_JOB | {"het_job_id": 0}, read)

        async def set_job(self, _job: str, fields: Mapping[str, str]) -> None:
            assert fields["NumCPUs"] == "64"

    await Writer(Verbs()).update_job(8, size=(1, 2, 16))  # type: ignore[arg-type]
    given = over_pyslurm("jobs", **PYSLURM_JOB).keys()
    assert read - given == {"unread"}  # the record could be read
    read.clear()
    node_view(Seen(COMMANDS_NODE, read))
    assert read - over_pyslurm("nodes", **PYSLURM_NODE).keys() == {"state_flags", "topology", "unread"}


@pytest.mark.parametrize("cpus", [None, 4])
def test_cpus_of_a_task_that_are_not_told_are_not_known(cpus: int | None) -> None:
    assert over_pyslurm("jobs", **(PYSLURM_JOB | {"cpus_per_task": cpus}))["cpus_per_task"] == cpus
