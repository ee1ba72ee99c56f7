"""The cluster's own history: exposure of what ran, failures that are the fleet's, and a form that planning takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from in_memory.direct_store import DirectStore
from in_memory.world import World
from made_records import AT, ended, fleet, incident, job, later, node, plan, step, verdict

from sentinel.daemon.api.fleet_history import fleet_history
from sentinel.model.changes import VerdictCorrected
from sentinel.model.corrections import Correction
from sentinel.model.records import Cause, JobView, Outcome, Result, Scalar, Scope, StepKind, Verdict
from sentinel.model.vocabulary import END_NOT_SEEN
from sentinel.planning.history import history_from
from sentinel.wire import to_json

Worlds = Callable[..., World]
DAY_S = 86400.0
NOW = later(DAY_S)


@pytest.fixture
def store(world: Worlds) -> DirectStore:
    return world().store


def ran(
    store: DirectStore, id: int, from_s: float, until_s: float | None, nodes: tuple[str, ...] = ("n1", "n2")
) -> None:
    state = "running" if until_s is None else "failed"
    view = job(id, state=state, nodes=nodes, started_s=from_s)
    made = JobView(
        id=id,
        state=state,
        nodes=nodes,
        started_at=view.started_at,
        ended_at=None if until_s is None else later(until_s),
    )
    store.save_attempt(made, first_step=None, last_step=None, step_time_s=None)


def failed(store: DirectStore, name: str, at_s: float, judged: Verdict | None, job_id: int | None = 101) -> None:
    store.save_incident(incident(ended(at_s=at_s), id=name, job=job_id, opened_s=at_s, updated_s=at_s))
    if judged is not None:
        store.save_verdict(name, judged, later(at_s + 2.0))


def did(
    store: DirectStore, name: str, kind: StepKind, at_s: float, result: Result = Result.DONE, **data: Scalar
) -> None:
    this = step(kind, node="n1") if kind in (StepKind.DRAIN, StepKind.DOWN) else step(kind, job=101, attempt=0)
    made = plan(this, incident=name)
    store.intend(made, this, later(at_s))
    store.record(made, Outcome(this, result, later(at_s + 1.0), data=data))


def past(store: DirectStore, gpus: int | None = 8, now: datetime = NOW) -> dict[str, Any]:
    views = [node(f"n{i}") for i in range(1, 5)]
    seen = fleet(views) if gpus == 8 else None
    return fleet_history(store, seen, AT, now)


def test_nothing_ran(store: DirectStore) -> None:
    found = past(store)
    assert (found["gpu_s"], found["failures"], found["start"]) == (0.0, [], "2026-03-01T12:00:00Z")


def test_exposure_of_what_ended_and_of_what_runs(store: DirectStore) -> None:
    ran(store, 101, 600.0, 4200.0)
    ran(store, 102, DAY_S - 100.0, None, nodes=("n3",))
    found = past(store)
    assert found["gpu_s"] == 3600.0 * 16 + 100.0 * 8 and found["start"] == "2026-03-01T12:10:00Z"
    assert found["end"] == "2026-03-02T12:00:00Z" and found["gpus_per_node"] == 8
    read = history_from(found)
    assert read.gpu_s == found["gpu_s"] and read.failures == ()


def test_an_attempt_whose_end_was_not_seen_adds_nothing(store: DirectStore) -> None:
    view = dataclasses.replace(job(101, state=END_NOT_SEEN, started_s=600.0), ended_at=later(4200.0))
    store.save_attempt(view, first_step=None, last_step=None, step_time_s=None)
    assert past(store)["gpu_s"] == 0.0


def test_nodes_that_slurm_does_not_tell_of_have_eight_gpus(store: DirectStore) -> None:
    ran(store, 101, 0.0, 10.0, nodes=("gone",))
    assert past(store)["gpu_s"] == past(store, gpus=None)["gpu_s"] == 80.0
    assert past(store, gpus=None)["gpus_per_node"] == 8


def test_gpus_per_node_are_the_usual_ones(store: DirectStore) -> None:
    views = [node(f"n{i}") for i in range(3)]
    views = [dataclasses.replace(view, gpus=gpus) for view, gpus in zip(views, (4, None, 4), strict=True)]
    ran(store, 101, 0.0, 10.0, nodes=("n0", "n1", "n2"))
    found = fleet_history(store, fleet(views), AT, NOW)
    assert found["gpus_per_node"] == 4 and found["gpu_s"] == 10.0 * (4 + 8 + 4)


def test_what_starts_after_now_and_clocks_that_jumped_add_nothing(store: DirectStore) -> None:
    ran(store, 101, DAY_S + 5.0, None)
    ran(store, 102, 500.0, 400.0)
    assert past(store)["gpu_s"] == 0.0


@pytest.mark.parametrize(
    ("judged", "job_id"),
    [
        (None, 101),  # not judged yet
        (verdict(Cause.USER_CODE, scope=Scope.APPLICATION), 101),
        (verdict(Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, scope=Scope.CLUSTER), 101),  # ended on purpose
        (verdict(), None),  # no job was hit
    ],
)
def test_what_is_no_failure_of_the_fleet(store: DirectStore, judged: Verdict | None, job_id: int | None) -> None:
    ran(store, 101, 0.0, 3600.0)
    failed(store, "x", 3600.0, judged, job_id)
    assert past(store)["failures"] == []


def test_failure_with_what_became_of_it(store: DirectStore) -> None:
    ran(store, 101, 0.0, 3600.0)
    failed(store, "x", 3600.0, verdict(drain=("n1",)))
    did(store, "x", StepKind.DRAIN, 3602.0)
    did(store, "x", StepKind.CHOOSE_CHECKPOINT, 3603.0, tier="local", path="/nvme", step=7)
    did(store, "x", StepKind.CONFIRM, 3660.0)
    assert past(store)["failures"] == [
        {"time": "2026-03-01T13:00:00Z", "cause": "gpu_memory_ecc", "node_lost": True, "repaired_by": "local",
         "restart_s": 59.0}
    ]  # fmt: skip
    (read,) = history_from(past(store)).failures
    assert (read.repaired_by, read.node_lost, read.restart_s) == ("local", True, 59.0)


def test_what_failed_or_is_not_known_is_not_claimed(store: DirectStore) -> None:
    ran(store, 101, 0.0, 3600.0)
    failed(store, "x", 3600.0, verdict())
    did(store, "x", StepKind.DRAIN, 3602.0, Result.FAILED)
    did(store, "x", StepKind.CHOOSE_CHECKPOINT, 3603.0)
    did(store, "x", StepKind.CONFIRM, 3660.0, Result.NOT_KNOWN)
    (found,) = past(store)["failures"]
    assert found == {"time": "2026-03-01T13:00:00Z", "cause": "gpu_memory_ecc", "node_lost": False}


def test_failures_before_the_first_attempt_are_left_out(store: DirectStore) -> None:
    """Planning refuses a failure outside of the time that was watched."""
    ran(store, 101, 3000.0, 3600.0)
    failed(store, "early", 100.0, verdict())
    failed(store, "late", 3600.0, verdict())
    found = past(store)
    assert [failure["time"] for failure in found["failures"]] == ["2026-03-01T13:00:00Z"]
    assert len(history_from(found).failures) == 1


def test_failures_are_as_operators_corrected_them(store: DirectStore) -> None:
    ran(store, 101, 0.0, 3600.0)
    for name, told in (("a1", (Cause.USER_CODE, Scope.APPLICATION)), ("a2", (Cause.PCIE, Scope.NODE))):
        failed(store, name, 3600.0, verdict())
        cause, scope = told
        store.commit([VerdictCorrected(name, Correction(at=AT, by="root", cause=cause, scope=scope))])
    failed(store, "a3", 3600.0, verdict(Cause.USER_CODE, scope=Scope.APPLICATION))
    store.commit([VerdictCorrected("a3", Correction(at=AT, by="root", cause=Cause.GPU_NVLINK, scope=Scope.NODE))])
    assert sorted(row["cause"] for row in past(store)["failures"]) == ["gpu_nvlink", "pcie"]


def test_all_failures_of_the_time_count_however_many_newer_ones_there_are(store: DirectStore) -> None:
    ran(store, 101, 0.0, 3600.0)
    failed(store, "a1", 60.0, verdict())
    store.save_closed(5001, later(120.0), every_s=0.1)  # of programs
    found = past(store)
    assert [row["cause"] for row in found["failures"]] == ["gpu_memory_ecc"] and found["start"] == to_json(AT)
