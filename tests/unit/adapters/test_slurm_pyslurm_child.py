"""What the process around pyslurm answers, with a pyslurm of the documented shapes (23.2.3 and newer, and older ones)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, ClassVar

from sentinel.adapters.slurm.parse import job_view, node_view
from sentinel.adapters.slurm.pyslurm_child import answer, hello


class RPCError(Exception):
    def __init__(self, message: str, errno: int) -> None:
        super().__init__(message)
        self.errno = errno


JOB = SimpleNamespace(
    id=7, state="RUNNING", user_name="alice", user_id=1001, name="x\nJobState=FAILED", partition="train",
    allocated_nodes="n[1-2]", batch_host="n1", is_batch_job=True, requeue_count=1, state_reason="None", priority=5,
    comment=None, admin_comment=None, array_id=None, array_task_id=None, standard_output="/home/alice/slurm-7.out",
    working_directory="/home/alice", excluded_nodes="n4", required_nodes=None, num_nodes=2, exit_code=0,
    exit_code_signal=0, is_requeueable=True, submit_time=1772366400, start_time=1772366401, end_time=1803902401,
    eligible_time=1772366400, heterogeneous_id=None,
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
    assert (job.restarts, job.stdout, job.exit_code, job.requeue) == (1, "/home/alice/slurm-7.out", None, True)


def test_a_waiting_array_has_no_log_yet() -> None:
    waiting = SimpleNamespace(**vars(JOB) | {"array_id": 7, "standard_output": "/home/alice/slurm-7_4294967294.out"})
    module = pyslurm()
    module.Jobs = SimpleNamespace(load=lambda: {7: waiting})
    record = answer(module, '{"verb": "jobs", "arguments": []}')["ok"][0]
    assert record["stdout_expanded"] == ""


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
