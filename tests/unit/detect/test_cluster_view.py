"""What the daemon remembers of nodes and attempts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_records import evidence, fleet, job, later, node

from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Evidence, Kind, Source, Unread, Where
from sentinel.model.vocabulary import END_NOT_SEEN


def stepped(step: int, at_s: float, attempt: int | None = 0, **data: float) -> Evidence:
    return evidence(Kind.STEP, at_s=at_s, source=Source.PROGRESS, job=101, attempt=attempt, data={"step": step, **data})


def test_progress_of_an_attempt() -> None:
    live = ClusterView()
    live.see_fleet(fleet(2, [job()]))
    for number, at_s in ((10, 0.0), (30, 2.0), (20, 1.0)):
        live.note(stepped(number, at_s, step_time_s=0.5))
    assert (live.first_step(101, 0), live.last_step(101, 0), live.attempts[101, 0].step_time_s) == (10, 30, 0.5)
    assert live.last_step(101, 1) is None and live.first_step(7, 0) is None


def test_evidence_without_an_attempt_is_of_the_newest() -> None:
    live = ClusterView()
    live.see_fleet(fleet(2, [job()]))
    live.see_fleet(fleet(2, [job(restarts=1)]))
    live.note(stepped(5, 0.0, attempt=None))
    assert live.last_step(101, 1) == 5 and live.last_step(101, 0) is None
    live.note(evidence(Kind.STEP, source=Source.PROGRESS, job=9, data={"step": 1}))  # of a job never heard of
    assert live.newest_attempt(9) is None


def test_attempt_keeps_its_nodes_after_it_ended() -> None:
    live = ClusterView()
    live.see_fleet(fleet(2, [job(nodes=("n1", "n2"))]))
    live.see_fleet(fleet(2, [job(state="failed", nodes=())]))
    assert live.nodes_of(101, 0) == ("n1", "n2")
    assert live.nodes_of(101, None) == live.nodes_of(None, 0) == live.nodes_of(101, 1) == ()


def test_a_completing_job_keeps_the_nodes_that_slurm_no_longer_lists() -> None:
    live = ClusterView()
    live.see_fleet(fleet(2, [job(nodes=("n1", "n2"))]))
    live.see_fleet(fleet(2, [job(state="completing", nodes=("n2",))]))
    assert live.nodes_of(101, 0) == ("n1", "n2") and live.ran_on(101, 0, "n1")
    assert live.fleet is not None and live.fleet.jobs[101].nodes == ("n1", "n2")
    assert [view.id for view in live.jobs_on("n1")] == [101]


def test_of_a_job_first_seen_while_completing_not_all_nodes_are_known() -> None:
    live = ClusterView()
    live.see_fleet(fleet(2, [job(state="completing", nodes=("n2",))]))
    assert live.ran_on(101, 0, "n1") and live.ran_on(101, None, "n1") and live.ran_on(101, 1, "n1") is None
    live.see_fleet(fleet(2, [job(state="failed", nodes=("n2", "n3"))]))
    assert live.ran_on(101, 0, "n1") is False and live.ran_on(101, 0, "n3")


def test_where_a_job_ran_is_what_slurm_says_and_nobody_else() -> None:
    live = ClusterView()
    assert live.ran_on(101, 0, "n1") is None, "before the first snapshot"
    live.see_fleet(fleet(4, [job(nodes=("n1", "n2"))]))
    live.see_fleet(fleet(4, [job(nodes=("n2", "n3"), restarts=1)]))
    for attempt, nodes in ((0, {"n1", "n2"}), (1, {"n2", "n3"}), (None, {"n1", "n2", "n3"})):
        assert {f"n{n}" for n in range(1, 5) if live.ran_on(101, attempt, f"n{n}")} == nodes
        assert live.ran_on(101, attempt, "n4") is False
    live.note(stepped(7, 0.0, attempt=2))
    for job_id, attempt in ((101, 2), (102, 0), (102, None)):
        assert live.ran_on(job_id, attempt, "n4") is None, "of what no snapshot has shown nothing is known"
    suspended = fleet(4, [job(102, state="suspended", nodes=("n1",))])
    live.see_fleet(replace(suspended, unread=(Unread("job", "103", "odd"),)))
    assert live.ran_on(102, 0, "n1") and live.ran_on(101, 1, "n3"), "also suspended, and after its record is gone"
    assert live.ran_on(103, 0, "n4"), "of a record that cannot be read any may be one"


def test_job_on_a_node_is_the_largest_that_runs() -> None:
    live = ClusterView()
    assert live.job_on("n1") is None  # nothing is known yet
    small, large = job(1, nodes=("n1",)), job(2, nodes=("n1", "n2"))
    live.see_fleet(fleet([node("n1"), node("n2")], [small, large, job(3, state="failed", nodes=("n1", "n2", "n3"))]))
    assert live.job_on("n1") == large and live.job_on("n3") is None


def test_recent_evidence_of_attempt_and_nodes_once_and_in_order() -> None:
    live = ClusterView()
    live.see_fleet(fleet(2, [job()]))
    late, early = evidence(node="n1", at_s=5.0), evidence("x", source=Source.JOB_LOG, job=101, attempt=0, at_s=1.0)
    old, other = evidence(node="n1", at_s=-99.0), evidence(node="n2", at_s=2.0)
    for item in (late, late, early, old, other):
        live.note(item)
    assert live.recent(101, 0, ["n1"], later(0.0)) == [early, late]
    assert live.recent(None, None, ["n2", "n9"], later(0.0)) == [other]
    assert live.recent(101, 0, ["n1", "n2"], later(0.0), {early.id, other.id}) == [late]


def test_ended_attempts_are_forgotten_after_an_hour_and_running_ones_never() -> None:
    live = ClusterView()
    live.see_fleet(fleet(2, [job(), job(102)]))
    live.note(evidence(Kind.JOB_ENDED, source=Source.SLURM, job=101, attempt=0))
    assert live.ended(101, 0) and not live.ended(102, 0)
    live.forget(later(3600.0))
    assert (101, 0) in live.attempts
    live.forget(later(3601.0))
    assert list(live.attempts) == [(102, 0)]


def test_what_a_node_said_is_kept_for_an_hour_or_as_long_as_evidence_is_grouped() -> None:
    live = ClusterView()
    old, new = (evidence(Kind.XID, node="n1", at_s=at_s) for at_s in (0.0, 3000.0))
    live.note(old)
    live.note(new)
    live.forget(later(3601.0), group_s=7200.0)
    assert live.recent(None, None, ["n1"], later(-1.0)) == [old, new]
    live.forget(later(3601.0))
    assert live.recent(None, None, ["n1"], later(-1.0)) == [new]


def test_a_job_on_its_way_back_to_the_queue_is_still_its_old_attempt() -> None:
    """Slurm counts the restart at once, while the epilogs of the old attempt still run on its nodes."""
    view = ClusterView()
    view.see_fleet(fleet(jobs=[job(nodes=("n1", "n2"), started_s=-60.0)]))
    view.see_fleet(fleet(jobs=[job(state="completing", nodes=("n2",), restarts=1, started_s=-60.0)]))
    assert (101, 1) not in view.attempts and view.attempts[101, 0].nodes == ("n1", "n2")
    view.see_fleet(fleet(jobs=[job(nodes=("n3", "n4"), restarts=1, started_s=0.0)]))
    assert view.attempts[101, 1].nodes == ("n3", "n4") and view.attempts[101, 0].ended
    view.see_fleet(fleet(jobs=[job(state="completing", nodes=("n4",), restarts=1, started_s=0.0)]))
    assert view.attempts[101, 1].nodes == ("n3", "n4") and not view.attempts[101, 1].ended


def test_a_start_that_slurm_only_forecasts_begins_no_attempt() -> None:
    """After `scontrol requeue` (22.05) start_time is a forecast, from second to second; submit_time stays."""
    view = ClusterView()
    view.see_fleet(fleet(jobs=[job(nodes=("n1", "n2"), restarts=1, started_s=-60.0)]))
    going = replace(job(state="completing", nodes=("n2",), restarts=2, started_s=0.0), submitted_at=later(-60.0))
    view.see_fleet(fleet(jobs=[going]))
    view.see_fleet(fleet(1, jobs=[replace(going, started_at=later(1.0))]))
    assert (101, 2) not in view.attempts and view.attempts[101, 1].nodes == ("n1", "n2")
    assert view.fleet is not None and view.fleet.jobs[101].nodes == ("n1", "n2")
    assert view.fleet.jobs[101].started_at == later(-60.0)
    view.see_fleet(fleet(3, jobs=[job(nodes=("n1", "n2"), restarts=2, started_s=3.0)]))
    assert view.attempts[101, 2].view.started_at == later(3.0) and view.attempts[101, 1].ended


def test_an_attempt_that_no_snapshot_showed_running_is_seen_at_its_end() -> None:
    view = ClusterView()
    view.see_fleet(fleet(jobs=[job(nodes=("n1", "n2"), restarts=1, started_s=-60.0)]))
    over = replace(job(state="completing", nodes=("n3",), restarts=2, started_s=130.0), submitted_at=later(5.0))
    view.see_fleet(fleet(132, jobs=[over]))
    assert view.attempts[101, 2].nodes == ("n3",) and view.attempts[101, 1].ended


def test_a_job_first_seen_on_its_way_back_to_the_queue_is_the_attempt_that_was_not_seen() -> None:
    """Missed from its start to its requeue, which takes seconds; its next attempt would wait for two minutes."""
    view = ClusterView()
    view.see_fleet(fleet(jobs=[job(state="completing", nodes=("n2",), restarts=2, started_s=-10.0)]))
    assert (101, 2) not in view.attempts and view.attempts[101, 1].nodes == ("n2",)
    assert view.fleet is not None and view.attempt_on(view.fleet.jobs[101]) == 1
    view.see_fleet(fleet(jobs=[job(state="pending", nodes=(), restarts=2, started_s=None)]))
    assert view.attempts[101, 1].ended
    view.see_fleet(fleet(jobs=[job(nodes=("n3",), restarts=2, started_s=0.0)]))
    assert view.attempts[101, 2].nodes == ("n3",)


def test_an_attempt_that_spoke_is_not_on_its_way_back() -> None:
    view = ClusterView()
    view.note(stepped(7, 0.0, attempt=2))
    view.see_fleet(fleet(jobs=[job(state="completing", nodes=("n2",), restarts=2, started_s=-10.0)]))
    assert view.attempts[101, 2].nodes == ("n2",) and (101, 1) not in view.attempts


def test_an_attempt_of_a_job_that_slurm_does_not_know_is_forgotten_an_hour_after_what_was_heard_of_it() -> None:
    """No snapshot will ever show its end: a log may name a job that slurmctld has long purged."""
    live = ClusterView()
    live.see_fleet(fleet(2, [job()]))
    live.note(replace(stepped(1, 0.0), where=Where(job=7, attempt=0)))
    live.note(stepped(1, 0.0))
    for at_s, unread in ((3600.0, ()), (9000.0, (Unread("job", "7", "bad json"),))):
        live.see_fleet(replace(fleet(2, [job()]), at=later(at_s), unread=unread))
        live.forget(later(at_s))
        assert set(live.attempts) == {(7, 0), (101, 0)}
    live.see_fleet(replace(fleet(2, [job()]), at=later(3600.0)))
    live.forget(later(9000.0))
    assert (7, 0) in live.attempts, "a snapshot as old as that does not have every job that runs by now"
    live.see_fleet(replace(fleet(2, [job()]), at=later(9001.0)))
    live.forget(later(9001.0))
    assert set(live.attempts) == {(101, 0)}


@pytest.mark.parametrize(("gap_s", "requeued", "gone"), [(600.0, "requeued", "unknown"), (601.0, *2 * (END_NOT_SEEN,))])
def test_an_end_between_snapshots_far_apart_was_not_seen(gap_s: float, requeued: str, gone: str) -> None:
    live = ClusterView()
    live.see_fleet(fleet(2, [job(), job(102)]))
    live.see_fleet(replace(fleet(2, [job(restarts=1)]), at=later(gap_s)))
    states = {key: seen.view.state for key, seen in live.attempts.items()}
    assert states == {(101, 0): requeued, (101, 1): "running", (102, 0): gone}
    assert live.ended(101, 0) and live.ended(102, 0) and live.attempts[102, 0].view.ended_at == later(gap_s)


def test_a_job_that_has_begun_is_known_to_ask_for_what_it_was_seen_to_wait_for() -> None:
    """Slurm shows the one partition in which it runs, and all of them in the queue."""
    live = ClusterView()

    def asked(state: str, partition: str, restarts: int = 0) -> tuple[str, ...]:
        nodes = () if state == "pending" else ("n1",)
        live.see_fleet(fleet(2, [job(state=state, partition=partition, restarts=restarts, nodes=nodes)]))
        assert live.fleet is not None
        return live.fleet.jobs[101].asked_partitions

    assert asked("running", "small") == ("small",), "none was seen to wait: what else it asks for is not known"
    assert asked("pending", "small,gpu", 1) == ("small", "gpu") == asked("running", "small", 1)
    assert asked("running", "other", 1) == ("other",), "moved by a person"
    assert asked("pending", "gpu", 2) == ("gpu",) == asked("running", "gpu", 2), "its user changed it"
    assert asked("pending", "small,gpu", 3) == ("small", "gpu")
    live.see_fleet(fleet(2))
    assert asked("running", "small") == ("small",), "another job has its id"
