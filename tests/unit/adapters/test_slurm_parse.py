"""Shapes of Slurm's JSON that releases differ in; each record is made here in the form that the release prints."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.adapters.slurm.parse import (
    array_spec,
    depends_of,
    exit_of,
    fleet_of,
    gpu_count,
    het_leader,
    job_of,
    job_view,
    node_of,
    node_view,
    record_of,
    records,
    whole,
)
from sentinel.errors import ProtocolError, Unavailable
from sentinel.text import plain

AT = datetime(2026, 3, 1, tzinfo=UTC)


def boxed(number: int | None) -> dict[str, Any]:
    return {"set": number is not None, "infinite": False, "number": number or 0}


OLD_JOB: dict[str, Any] = {
    "job_id": 7, "job_state": "RUNNING", "user_name": "alice", "user_id": 1001, "name": "run", "partition": "train",
    "nodes": "n[1-2]", "batch_host": "n1", "restart_cnt": 2, "state_reason": "None", "priority": 5, "comment": "c",
    "admin_comment": "", "batch_flag": True,
    "excluded_nodes": "n4", "required_nodes": "", "node_count": 2, "exit_code": 0, "requeue": True,
    "submit_time": 1772366400, "start_time": 1772366401, "end_time": 1803902401, "eligible_time": 1772366400,
    "array_job_id": 0, "array_task_id": None, "het_job_id": 0,
}  # fmt: skip
NEW_JOB: dict[str, Any] = OLD_JOB | {
    "job_state": ["RUNNING"], "priority": boxed(5), "node_count": boxed(2), "array_job_id": boxed(0),
    "array_task_id": boxed(None), "het_job_id": boxed(0), "submit_time": boxed(1772366400),
    "start_time": boxed(1772366401), "end_time": boxed(1803902401), "eligible_time": boxed(1772366400),
    "exit_code": {"status": ["SUCCESS"], "return_code": boxed(0), "signal": {"id": boxed(None), "name": ""}},
}  # fmt: skip


def test_old_and_new_releases_tell_the_same_job() -> None:
    old, new = job_view(OLD_JOB), job_view(NEW_JOB)
    assert old == new
    assert (old.nodes, old.excluded, old.required, old.restarts, old.node_count) == (("n1", "n2"), ("n4",), (), 2, 2)
    assert old.ended_at is None and old.exit_code is None  # the forecast of a running job is no end
    assert old.started_at == datetime(2026, 3, 1, 12, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("state", "seen"),
    [
        ("COMPLETING", "completing"),
        (["FAILED", "COMPLETING"], "completing"),
        (["PENDING", "COMPLETING"], "completing"),
        (["RUNNING", "CONFIGURING"], "running"),
        ("CONFIGURING", "running"),
        (["PENDING"], "pending"),
        ("NODE_FAIL", "node_fail"),
        (["SUSPENDED"], "suspended"),
        (["RUNNING", "STOPPED"], "suspended"),  # scancel -s STOP
        ("OUT_OF_MEMORY", "out_of_memory"),
        # Without the base state: squeue of 22.05, and pyslurm.
        ("RESIZING", "running"),
        ("SIGNALING", "running"),
        ("STOPPED", "suspended"),
        ("EXPEDITING", "completing"),
        ("REQUEUE_HOLD", "pending"),
        ("RESV_DEL_HOLD", "pending"),
        (["RUNNING", "SIGNALING"], "running"),
        ([], "unknown"),
        (None, "unknown"),
    ],
)
def test_job_states(state: object, seen: str) -> None:
    assert job_view(OLD_JOB | {"job_state": state}).state == seen


# From scontrol --json of Slurm 26.05 after a program's error; the job had asked for an expedited requeue.
_EXPEDITED: dict[str, Any] = {
    "job_state": ["PENDING", "REQUEUE_HOLD"],
    "state_reason": "JobHeldUser",
    "priority": {"set": True, "infinite": False, "number": 0},
    "restart_cnt": 1,
    "exit_code": {
        "status": ["ERROR"],
        "return_code": {"set": True, "infinite": False, "number": 1},
        "signal": {"id": {"set": False, "infinite": False, "number": 0}, "name": ""},
    },
}


@pytest.mark.parametrize(
    ("change", "by_slurm"),
    [
        ({}, True),
        ({"job_state": ["PENDING"]}, False),  # somebody's requeuehold
        ({"job_state": ["PENDING", "COMPLETING", "EXPEDITING"]}, False),  # its epilogs run
        ({"state_reason": "JobHoldMaxRequeue"}, False),  # it could not be launched
        ({"exit_code": {"return_code": 0}}, False),
        ({"exit_code": None}, False),
    ],
)
def test_a_failed_job_that_an_expedited_requeue_holds(change: dict[str, Any], by_slurm: bool) -> None:
    seen = job_view(OLD_JOB | _EXPEDITED | change)
    assert seen.exit_held is by_slurm
    assert seen.exit_code == (1 if by_slurm else None)


@pytest.mark.parametrize(("words", "by_requeue"), [("job requeued in held state", True), ("", False), (None, False)])
def test_a_hold_by_the_request_that_requeued_the_job(words: object, by_requeue: bool) -> None:
    """The same of 22.05, 24.11 and 26.05."""
    record = {"job_state": "PENDING", "priority": 0, "state_reason": "JobHeldUser", "state_description": words}
    assert job_view(OLD_JOB | record).requeue_held is by_requeue


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ({"job_state": "PENDING", "priority": 0}, True),
        ({"job_state": ["PENDING"], "priority": boxed(0)}, True),
        ({"job_state": "PENDING", "priority": 9, "state_reason": "JobHeldAdmin"}, True),
        ({"job_state": "COMPLETING", "priority": 0}, True),
        ({"job_state": "PENDING", "priority": 9, "state_reason": "Resources"}, False),
        ({"job_state": "PENDING", "priority": None}, False),
        ({"job_state": "RUNNING", "priority": 0}, False),
        ({"job_state": "CANCELLED", "priority": 0, "state_reason": "JobHeldUser"}, False),
    ],
)
def test_held(change: dict[str, Any], held: bool) -> None:
    assert job_view(OLD_JOB | change).held is held


@pytest.mark.parametrize(
    ("value", "code", "signal"),
    [
        (768, 3, 0),
        (9, 0, 9),
        (15, 0, 15),
        (0, 0, 0),
        (None, None, None),
        (0xFFFFFFFE, None, None),
        ({"return_code": boxed(3), "signal": {"id": boxed(None), "name": ""}}, 3, 0),
        ({"return_code": boxed(None), "signal": {"id": boxed(9), "name": "KILL"}}, 0, 9),
        ({"return_code": 1, "signal": {"signal_id": 0}}, 1, 0),
        ({"return_code": boxed(None), "signal": {"id": boxed(None)}}, None, None),
        ("3:0", None, None),
    ],
)
def test_exit_codes(value: object, code: int | None, signal: int | None) -> None:
    assert exit_of(value) == (code, signal)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5), (5.0, 5), ("5", 5), (boxed(5), 5), (boxed(None), None), ({"set": True, "infinite": True, "number": 0}, None),
        (None, None), (True, None), ("five", None), (0xFFFFFFFE, None), ([], None), (5.5, None),
    ],
)  # fmt: skip
def test_numbers(value: object, number: int | None) -> None:
    assert whole(value) == number


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:8", 8), ("gpu:h100:8(S:0-1)", 8), ("gpu:a100:4,gpu:h100:2", 6), ("gpu", 1), ("nvme:1", 0), ("", 0),
        ("nvme:2,gpu:tesla:8(IDX:0-7)", 8), ("gres:gpu:4", 4), ("gpu:8(S:0,1),shard:16", 8), ("gpumem:80", 0), ("(null)", 0),
    ],
)  # fmt: skip
def test_gpus_that_gres_promises(gres: str, count: int) -> None:
    assert gpu_count(gres) == count


@pytest.mark.parametrize(
    ("record", "state", "flags"),
    [
        ({"state": "idle", "state_flags": ["DRAIN"]}, "idle", {"drain"}),
        ({"state": ["IDLE", "DRAIN"]}, "idle", {"drain"}),
        ({"state": "DOWN+DRAIN+NOT_RESPONDING"}, "down", {"drain", "not_responding"}),
        ({"state": ["DOWN", "NO_RESPOND"]}, "down", {"not_responding"}),
        ({"state": ["MIXED", "MAINTENANCE", "RESERVED"]}, "mixed", {"maintenance", "reserved"}),
        ({"state": "IDLE*"}, "idle", set()),
        ({"state": ["ALLOCATED", "COMPLETING"]}, "allocated", {"completing"}),
        ({"state": ["IDLE", "POWERING_DOWN"]}, "idle", {"power_down"}),
        ({}, "unknown", set()),
    ],
)
def test_node_states(record: dict[str, Any], state: str, flags: set[str]) -> None:
    node = node_view({"name": "n1", **record})
    assert (node.state, node.flags) == (state, frozenset(flags))


def test_a_node_of_which_nothing_is_told_is_not_usable() -> None:
    node = node_view({"name": "n1"})
    assert not node.usable
    assert (node.gpus, node.port) == (None, None)


def test_a_forecast_is_no_start() -> None:
    waiting = job_view(OLD_JOB | {"job_state": "PENDING", "nodes": "", "start_time": 1772370000})
    assert (waiting.started_at, waiting.ended_at) == (None, None)
    ended = job_view(OLD_JOB | {"job_state": "FAILED", "exit_code": 256, "end_time": 1772370000})
    assert (ended.ended_at, ended.exit_code) == (datetime(2026, 3, 1, 13, 0, tzinfo=UTC), 1)
    never = job_view(
        OLD_JOB | {"job_state": "CANCELLED", "start_time": 0, "end_time": 6090219370, "eligible_time": None}
    )
    assert (never.started_at, never.ended_at, never.eligible_at) == (None, None, None)
    cancelled = {"job_state": "CANCELLED", "nodes": "", "start_time": 1772370000, "end_time": 1772370000}
    while_held = job_view(OLD_JOB | cancelled)  # Slurm writes the time of scancel as start and as end
    assert (while_held.started_at, while_held.ended_at) == (None, datetime(2026, 3, 1, 13, 0, tzinfo=UTC))
    for untold in ({}, {"nodes": None}):
        record = {name: value for name, value in (OLD_JOB | cancelled).items() if name != "nodes"} | untold
        assert job_view(record).started_at == datetime(2026, 3, 1, 13, 0, tzinfo=UTC), "whether it ran is not known"


@pytest.mark.parametrize(
    ("record", "batch"),
    [
        ({"batch_flag": True, "restart_cnt": 0}, True),
        ({"batch_flag": False, "restart_cnt": 0}, False),
        # BatchFlag=2 in scontrol: its launch failed, Slurm requeued it.
        ({"batch_flag": False, "restart_cnt": 1}, True),
        ({"batch_flag": None, "restart_cnt": 0}, None),
    ],
)
def test_a_job_whose_launch_failed_is_still_a_batch_job(record: dict[str, Any], batch: bool | None) -> None:
    assert job_view(OLD_JOB | record).batch == batch


def test_one_task_of_an_array_is_named_by_its_task() -> None:
    assert array_spec({"job_id": 7, "array_job_id": 7, "array_task_id": 2}) == "7_2"
    assert job_view({"job_id": 7, "array_job_id": 7, "array_task_id": 2}).spec == "7_2"
    assert job_view({"job_id": 7, "array_job_id": boxed(0), "array_task_id": boxed(None)}).spec == "7"
    assert array_spec({"job_id": 7, "array_job_id": boxed(7), "array_task_id": boxed(0)}) == "7_0"
    assert array_spec({"job_id": 7, "array_job_id": 0, "array_task_id": None}) == "7"
    assert array_spec({"job_id": 7, "array_job_id": 7, "array_task_id": None}) == "7"


def test_components_of_a_heterogeneous_job_know_their_leader() -> None:
    assert het_leader({"job_id": 8, "het_job_id": 7}) == 7
    assert het_leader({"job_id": 7, "het_job_id": 7}) is None
    assert het_leader({"job_id": 7, "het_job_id": 0}) is None


def test_an_answer_with_errors_is_no_answer() -> None:
    with pytest.raises(ProtocolError):
        records(json.dumps({"nodes": [], "errors": [{"error": "Unspecified error", "errno": -1}]}), "nodes")
    with pytest.raises(ProtocolError):
        records(json.dumps({"nodes": [{"name": "n1"}], "errors": [{"errno": 1}]}), "nodes")


def test_a_cluster_without_nodes_hides_them() -> None:
    with pytest.raises(Unavailable):
        fleet_of(AT, [], [OLD_JOB])


def test_a_cluster_with_work_and_without_jobs_hides_them() -> None:
    """PrivateData=jobs, and an account without rights: no job is known, and none is known to be gone."""
    idle, busy = {"name": "n1", "state": "idle"}, {"name": "n2", "state": ["MIXED", "DRAIN"]}
    with pytest.raises(Unavailable, match="n2 has work"):
        fleet_of(AT, [idle, busy], [])
    assert fleet_of(AT, [idle, {"name": "n3", "state": "idle", "state_flags": ["COMPLETING"]}], []).jobs == {}
    assert len(fleet_of(AT, [idle, busy], [OLD_JOB]).jobs) == 1


@pytest.mark.parametrize("broken", [{}, {"job_id": "x"}, {"job_id": None}, {"no record": 17}])
def test_a_job_without_an_id_is_left_out_and_may_be_any_other(broken: dict[str, Any]) -> None:
    fleet = fleet_of(AT, [{"name": "n1"}], [OLD_JOB, broken])
    assert set(fleet.jobs) == {7} and [(item.what, item.name) for item in fleet.unread] == [("job", "")]
    assert fleet.may_have_job(7) and fleet.may_have_job(8) and not fleet.may_have_node("n2")


@pytest.mark.parametrize("broken", [{"nodes": "n[1-"}, {"nodes": "n[" + "9" * 5000 + "]"}, {"unread": "pyslurm: why"}])
def test_a_job_that_cannot_be_read_hides_no_other_and_is_not_known(broken: dict[str, Any]) -> None:
    fleet = fleet_of(AT, [{"name": "n1"}], [OLD_JOB | {"job_id": 8} | broken, OLD_JOB])
    assert set(fleet.jobs) == {7} and [(item.what, item.name) for item in fleet.unread] == [("job", "8")]
    assert fleet.may_have_job(8) and not fleet.may_have_job(9) and fleet.unread[0].reason
    with pytest.raises(Unavailable):
        job_of(record_of([OLD_JOB | {"job_id": 8} | broken], 8))


@pytest.mark.parametrize(
    "state", [["IDLE", "POWER_DRAIN"], "IDLE+POWER_DRAIN", "idle+power_down", ["IDLE", "POWERING_DOWN"]]
)
def test_a_node_that_slurm_is_about_to_switch_off_is_not_usable(state: object) -> None:
    """scontrol update state=power_down_asap: once its job ends."""
    node = node_view({"name": "n1", "state": state})
    assert (node.state, node.flags, node.usable) == ("idle", frozenset({"power_down"}), False)


def test_a_list_that_cannot_be_read_hides_nothing_else_of_its_job() -> None:
    """Users write these lists: a job that runs would be followed by nobody, and a held one never be let go."""
    lists = {"excluded_nodes": "n1, n2", "required_nodes": "n3,,n4"}
    job = job_view(OLD_JOB | lists)
    assert (job.excluded, job.required, job.unread_lists) == (("n1", "n2"), ("n3", "n4"), ())
    job = job_view(OLD_JOB | {"excluded_nodes": "n[1"})
    assert (job.state, job.nodes, job.excluded, job.unread_lists) == ("running", ("n1", "n2"), (), ("excluded",))
    job = job_view(OLD_JOB | {"required_nodes": "n[a]"})
    assert (job.excluded, job.required, job.unread_lists) == (("n4",), (), ("required",))


def test_a_node_that_cannot_be_read_hides_no_other_and_is_not_known() -> None:
    found = [{"name": "n1"}, {"name": "n2", "unread": "pyslurm: why"}]
    fleet = fleet_of(AT, found, [])
    assert set(fleet.nodes) == {"n1"} and fleet.may_have_node("n2") and not fleet.may_have_node("n3")
    assert node_of(found, "n1") is not None and node_of(found, "n3") is None
    with pytest.raises(Unavailable, match="n2"):
        node_of(found, "n2")
    with pytest.raises(Unavailable, match="n3"):  # it may be the one without a name
        node_of([*found, {}], "n3")
    with pytest.raises(Unavailable):
        fleet_of(AT, [found[1]], [])


def test_a_job_is_purged_only_when_every_record_says_which_job_it_is_of() -> None:
    assert record_of([OLD_JOB], 8) is None
    assert record_of([OLD_JOB, {}], 7) is OLD_JOB
    with pytest.raises(Unavailable):
        record_of([OLD_JOB, {}], 8)


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_words_of_a_user_change_another_field(name: str, comment: str) -> None:
    told = json.dumps({"jobs": [OLD_JOB | {"name": name, "comment": comment}], "errors": []})
    seen = job_view(records(told, "jobs")[0])
    assert (seen.name, seen.comment) == (plain(name) if name not in {"(null)", "N/A"} else "", seen.comment)
    without = job_view(OLD_JOB)
    assert (seen.id, seen.state, seen.nodes, seen.held) == (without.id, without.state, without.nodes, False)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(sorted(set(OLD_JOB) - {"job_id"})),
)
def test_any_value_in_any_field_is_read_or_is_a_protocol_error(value: object, key: str) -> None:
    try:
        read = job_view(OLD_JOB | {key: value})
    except ProtocolError:
        return
    assert read.id == OLD_JOB["job_id"]
    hash(read)  # nothing of the answer's own lists and objects is kept in it


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("afternotok:316(unfulfilled)", (("afternotok", 316),)),
        ("afterok:7:8(failed),afterany:9_4(unfulfilled)", (("afterok", 7), ("afterok", 8), ("afterany", 9))),
        ("after:5+10(unfulfilled)?afterok:6_*(unfulfilled)", (("after", 5), ("afterok", 6))),
        ("singleton(unfulfilled)", ()),
        ("afterok:99999999999999999999", ()),
        ("afterok:" + ":".join("1" for _ in range(5000)), (("afterok", 1),) * 100),
    ],
)
def test_what_a_job_waits_for(text: str, found: tuple[tuple[str, int], ...]) -> None:
    assert depends_of(text) == found
    assert job_view(OLD_JOB | {"dependency": text}).singleton == text.startswith("singleton")


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("sbatch -p small,gpu train.sh", ("small", "gpu")),
        ("sbatch -N2 --partition=gpu,small train.sh", ("gpu", "small")),
        ("sbatch --partition 'small,gpu' train.sh", ("small", "gpu")),
        ("sbatch -p other,gpu train.sh", ("small",)),  # not that of this job any more
        ("sbatch train.sh --partition=", ("small",)),
        (None, ("small",)),
    ],
)
def test_the_partitions_that_a_running_job_asked_for(line: str | None, asked: tuple[str, ...]) -> None:
    view = job_view({"job_id": 7, "job_state": "RUNNING", "partition": "small", "submit_line": line})
    assert view.asked_partitions == asked and view.partition == "small"
