"""Evidence in, plans out: one incident for one failure, and limits that hold when many fail at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeOrders, FakeSink, beside, incidents_of
from in_memory.world import Fate, World
from made_records import OPTED_IN, ended, evidence, incident, later, lost_gpu

from sentinel.config.settings import Limits, Settings
from sentinel.correlate.log_delay import log_may_still_come
from sentinel.detect.job_end import job_ended
from sentinel.model.records import Evidence, IncidentState, Kind, Source, StepKind, Trust

Worlds = Callable[..., World]


def drained(there: World) -> set[str]:
    return {name for name, node in there.slurm.nodes.items() if node.drained}


def limited(**how: float) -> Settings:
    limits = {"drain_fraction": 1.0, "drain_count": 99, "drain_per_hour": 99, **how}
    return dataclasses.replace(SETTINGS, limits=Limits(**limits))  # type: ignore[arg-type]


async def test_same_evidence_twice_is_one_incident_and_one_notice(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    for _ in range(3):
        assert await daemon.observe([lost_gpu("n1")])
        await daemon.quiet()
    assert len(incidents_of(there.store)) == 1 and sink.stages == ["restarting", "running again"] and daemon.bugs() == 0


async def test_what_explains_a_closed_incident_is_kept_with_it(world: Worlds) -> None:
    """Where a node keeps what the job left is known when all else is over."""
    there = world(comment="")
    daemon = Daemon(there, [FakeSink()])
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    await daemon.observe([ended(there.job)])
    await daemon.quiet()
    ((name, (state, _, _)),) = incidents_of(there.store).items()
    assert state == "closed"
    kept = evidence(Kind.BUNDLE, source=Source.AGENT, node="n1", job=there.job, attempt=0, at_s=3.0)
    await daemon.observe([kept])
    await daemon.quiet()
    seen = there.store.incident(name)
    assert seen is not None and kept in seen.evidence
    assert incidents_of(there.store)[name][0] == "closed"


async def test_a_job_that_could_write_nothing_more_is_held_for_want_of_space(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    full = evidence(
        "log_no_space", source=Source.AGENT, trust=Trust.USER, node="n1", job=there.job, attempt=0, at_s=1.0,
        text="no space is left where the job's log lies: /shared/job.out",
    )  # fmt: skip
    await daemon.observe([full])
    await daemon.quiet()
    assert incidents_of(there.store) == {} and sink.got == [], "alone it is no failure"
    there.slurm.end(there.job, exit_code=1)
    await daemon.observe([ended(there.job)])
    await daemon.quiet()
    (told,) = sink.got
    assert (told.data["cause"], told.data["stage"]) == ("disk_full", "held") and "no space is left" in told.body
    assert not any(node.drained for node in there.slurm.nodes.values()) and daemon.bugs() == 0


async def test_a_late_word_of_a_node_that_is_out_opens_no_second_incident(world: Worlds) -> None:
    """A user who cancels the job closes the incident while the node's other sources are still telling."""
    there, sink = world(comment=""), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.observe([lost_gpu("n1")])
    await daemon.quiet()
    ((name, _),) = daemon.state.incidents.items()
    await daemon.close(name, IncidentState.CLOSED, "the job was cancelled")
    there.slurm.end(there.job, state="CANCELLED")
    word = evidence(Kind.XID, source=Source.DCGM, node="n1", at_s=1.0, data={"xid": 79})
    await daemon.observe([word])
    await daemon.quiet()
    assert list(incidents_of(there.store)) == [name] and len(sink.got) == 1
    seen = there.store.incident(name)
    assert seen is not None and word in seen.evidence


async def test_two_nodes_of_one_job_that_break_at_once_are_both_drained(world: Worlds) -> None:
    """Different causes, and slow clocks on a third node before them: one incident, which hides neither."""
    there = world(nodes=20, wide=6)
    daemon = Daemon(there, [FakeSink()])
    await daemon.fleets.take()
    hot = [evidence("clocks_slowdown", node=f"n{n}", at_s=-40.0, source=Source.DCGM) for n in (3, 4, 5)]
    assert await daemon.observe(hot)
    await daemon.quiet()
    memory = evidence(Kind.XID, node="n2", at_s=0.1, data={"xid": 48, "pci": "0000:5e:00"}, text="NVRM: Xid 48")
    await daemon.observe([lost_gpu("n1"), memory])
    await daemon.quiet()
    assert drained(there) == {"n1", "n2"}, daemon.said
    named = [set(row["culprit_nodes"]) for row in there.store.incident_rows() if row["culprit_nodes"]]
    assert set().union(*named) >= {"n1", "n2"}


async def test_node_that_is_gone_is_set_down_and_the_one_beside_it_drained(world: Worlds) -> None:
    there = world(nodes=20, wide=4)
    daemon = Daemon(there)
    await daemon.fleets.take()
    there.slurm.lose("n2")
    gone = evidence(Kind.NODE_UNREACHABLE, node="n2", source=Source.PROBE, text="slurmd does not answer")
    await daemon.observe([gone, lost_gpu("n1")])
    await daemon.quiet()
    kinds = {row["node"]: row["kind"] for row in there.store.steps_done([StepKind.DRAIN, StepKind.DOWN])}
    assert kinds == {"n1": "drain", "n2": "down"}, daemon.said


async def test_job_that_ends_by_the_fault_is_the_same_incident(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    await daemon.observe([lost_gpu("n1"), ended(there.job)])
    await daemon.quiet()
    assert [row[1] for row in incidents_of(there.store).values()] == [there.job]
    assert drained(there) == {"n1"} and sink.stages == ["restarting", "running again"]


async def test_evidence_that_means_nothing_is_kept_and_nobody_is_told(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    noise = evidence(Kind.XID, node="n1", data={"xid": 43}, text="NVRM: Xid 43")
    await daemon.observe([noise])
    await daemon.quiet()
    assert incidents_of(there.store) == {} and sink.got == [] and drained(there) == set()
    assert there.store.evidence_since(later(-1)) == [noise]


async def test_unreadable_source_is_neither_good_nor_bad(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    await daemon.observe([evidence(Kind.UNREADABLE, source=Source.AGENT, node="n1")])
    await daemon.quiet()
    assert daemon.state.incidents == {} and drained(there) == set()
    assert daemon.telemetry.registry.get_sample_value("sentinel_evidence_unreadable_total") == 1.0


async def test_nodes_failing_together_stay_within_the_budget(world: Worlds) -> None:
    """Each incident is judged by itself; what the others are about to drain counts as drained."""
    there = world(nodes=10, wide=1)
    daemon = Daemon(there, settings=limited(drain_count=2))
    await daemon.observe([lost_gpu(f"n{i}") for i in range(2, 6)])
    await daemon.quiet()
    assert len(drained(there)) == 2, daemon.said
    assert sorted(state for state, _, _ in incidents_of(there.store).values()) == ["closed"] * 2 + ["waiting"] * 2


async def test_nodes_failing_together_leave_healthy_ones(world: Worlds) -> None:
    there = world(nodes=4, wide=1)
    daemon = Daemon(there, settings=limited(keep_healthy=2))
    await daemon.observe([lost_gpu(f"n{i}") for i in range(1, 5)])
    await daemon.quiet()
    assert len(drained(there)) == 2, daemon.said


async def test_hourly_budget_counts_drains_under_way(world: Worlds) -> None:
    there = world(nodes=10, wide=1)
    daemon = Daemon(there, settings=limited(drain_per_hour=3))
    await daemon.observe([lost_gpu(f"n{i}") for i in range(2, 6)])
    await daemon.quiet()
    assert len(drained(there)) == 3
    later_daemon = Daemon(there, settings=limited(drain_per_hour=3))  # the budget outlives the daemon
    await later_daemon.observe([lost_gpu("n9", at_s=300.0)])
    await later_daemon.quiet()
    assert len(drained(there)) == 3


async def test_many_nodes_failing_together_open_the_breaker_before_the_first_is_drained(world: Worlds) -> None:
    there, sink = world(nodes=20, wide=1), FakeSink()
    daemon = Daemon(there, [sink], settings=limited(breaker_nodes=5))
    await daemon.observe([lost_gpu(f"n{i}") for i in range(2, 14)])
    await daemon.quiet()
    assert drained(there) == set() and len(incidents_of(there.store)) == 12
    assert ["breaker" in notice.body for notice in sink.got] == [True], "one shared cause, one message"


async def test_noise_on_many_nodes_does_not_stop_a_drain(world: Worlds) -> None:
    there = world(nodes=20, wide=1)
    daemon = Daemon(there, settings=limited(breaker_nodes=5))
    noise = [evidence(Kind.XID, node=f"n{i}", data={"xid": 43}, text="NVRM: Xid 43") for i in range(4, 14)]
    await daemon.observe([lost_gpu("n2"), *noise, lost_gpu("n3")])
    await daemon.quiet()
    assert drained(there) == {"n2", "n3"}


async def test_paused_daemon_does_nothing_and_goes_on_when_resumed(world: Worlds) -> None:
    there = world()
    there.store.put("paused", True)
    daemon = Daemon(there)
    await daemon.observe([lost_gpu("n1")])
    await daemon.quiet()
    assert there.slurm.calls == []


async def test_slurm_that_does_not_answer_delays_and_does_not_decide(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    fate = Fate(fail_at=0, fails=0)
    daemon = Daemon(there, [sink], fate=fate)
    there.slurm.answers = False
    assert await daemon.observe([lost_gpu("n1")])  # acknowledged: it is in the store
    real = daemon.fleets._reader.fleet
    asked = 0

    async def fleet() -> object:
        nonlocal asked
        asked += 1
        there.slurm.answers = asked > 5
        return await real()

    daemon.fleets._reader = type("Reader", (), {"fleet": staticmethod(fleet)})()
    await daemon.quiet()
    assert asked > 5 and drained(there) == {"n1"} and sink.stages == ["restarting", "running again"]
    assert "slurm-unavailable" in daemon.said and "slurm-answers-again" in daemon.said


async def test_hang_is_asked_about_before_it_is_judged(world: Worlds) -> None:
    there = world()
    tasks = {"tasks": [{"rank": 0, "state": "T", "pid": 4, "cpu_s": 1.0}]}
    orders = FakeOrders({("n1", "task_states"): tasks, ("n2", "task_states"): {"tasks": "torn"}})
    daemon = Daemon(there, orders=orders)
    await daemon.fleets.take()
    stall = evidence(Kind.STALL, source=Source.PROGRESS, job=there.job, attempt=0, data={"step": 7, "silent_s": 40.0})
    await daemon.observe([stall])
    await daemon.quiet()
    assert {node for node, kind, _ in orders.asked if kind == "task_states"} == {"n1", "n2"}
    kinds = {(item.kind, item.where.node) for item in there.store.evidence_since(later(-1))}
    assert {(Kind.TASK_STATE, "n1"), (Kind.UNREADABLE, "n2")} <= kinds
    assert drained(there) == set() and daemon.bugs() == 0


def hung(job: int, step: int = 250) -> Evidence:
    data = {"step": step, "silent_s": 40.0, "motion": "waits"}
    return evidence(Kind.STALL, source=Source.PROGRESS, job=job, attempt=0, data=data)


async def test_jobs_called_hung_together_are_left_alone_and_each_is_told_of(world: Worlds) -> None:
    there, sink = world(nodes=8, wide=1), FakeSink()
    jobs = [there.job, *(there.slurm.submit(comment=OPTED_IN) for _ in range(5))]
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    await daemon.observe([hung(job) for job in jobs])
    await daemon.quiet()
    assert there.slurm.calls == [] and {this.state for this in there.slurm.jobs.values()} == {"RUNNING"}
    assert len(incidents_of(there.store)) == 6
    assert sorted(str(notice.data["job"]) for notice in sink.got) == sorted(map(str, jobs)), "their people wait"
    assert all("hang-breaker" in notice.body for notice in sink.got)
    assert "refusal=hang-breaker" in daemon.said


async def test_budget_of_stops_for_silence_outlives_the_daemon(world: Worlds) -> None:
    there = world(nodes=8, wide=1)
    jobs = [there.job, *(there.slurm.submit(comment=OPTED_IN) for _ in range(3))]
    for number, job in enumerate(jobs):
        daemon = Daemon(there, settings=limited(silent_restarts_per_hour=2))
        await daemon.start()
        await daemon.observe([hung(job)])
        await daemon.quiet()
        assert daemon.bugs() == 0
        there.slurm.clock.advance(300.0)
        assert sum(this.restarts for this in there.slurm.jobs.values()) == min(number + 1, 2)
    assert "refusal=restart-budget" in daemon.said


async def test_job_that_makes_steps_again_before_it_could_be_stopped_is_left_alone(world: Worlds) -> None:
    """munged away, slurmctld frozen: the plan waits, and its ground is gone when it could be carried out."""
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    await daemon.observe([hung(there.job, step=249)])
    await daemon.quiet()
    assert there.slurm.calls == [] and there.slurm.jobs[there.job].state == "RUNNING"
    assert "makes steps again (step 250, it was silent after 249)" in daemon.said
    assert [state for state, _, _ in incidents_of(there.store).values()] == ["closed"]


async def test_candidates_and_closed_incidents_are_forgotten_in_time(world: Worlds) -> None:
    there = world(nodes=2, wide=1)
    daemon = Daemon(there)
    await daemon.observe([lost_gpu("n2")])
    await daemon.quiet()
    assert daemon.state.incidents
    await daemon.housekeeping()
    assert daemon.state.incidents  # late consequences still find it
    for _ in range(int(SETTINGS.judgement.group_s / 10) + 1):  # not at once: that would be an absence of the daemon
        there.slurm.clock.advance(10)
        await daemon.housekeeping()
    assert daemon.state.incidents  # until a snapshot has shown its drain, slurmctld may have lost it
    await daemon.fleets.take()
    await daemon.housekeeping()
    assert not daemon.state.incidents and not daemon.state.plans and not daemon.state.verdicts


async def test_a_job_that_slurm_has_forgotten_is_told_to_its_user(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    there.slurm.purge(there.job)
    await daemon.observe([ended(there.job)])
    await daemon.quiet()
    ((name, (state, _, _)),) = incidents_of(there.store).items()
    assert state == "closed" and [notice.data["user"] for notice in sink.got] == ["alice"]
    (row,) = there.store.incident_rows(ids=[name])
    assert row["user"] == "alice"


async def test_end_of_a_job_is_the_same_evidence_from_event_and_reconciliation(world: Worlds) -> None:
    there = world()
    there.slurm.end(there.job, exit_code=3)
    view = (await there.slurm.fleet()).jobs[there.job]
    assert job_ended(view, later(1), nodes=()) == job_ended(view, later(1), nodes=())
    assert job_ended(view, later(1), nodes=()).id == job_ended(view, later(9), nodes=("n1",)).id
    assert job_ended(view, later(1), nodes=()).data["exit_code"] == 3


# --- what belongs together after all ---------------------------------------------------------------------------------------


async def test_gpu_heard_of_before_its_job_and_the_jobs_end_are_one_incident(world: Worlds) -> None:
    """The job began a moment ago: no snapshot shows it yet, and when one does it has failed."""
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    there.slurm.end(there.job, exit_code=1)
    for item in (lost_gpu("n1"), ended(there.job)):
        await daemon.observe([item])
    await daemon.quiet()
    assert [row[1:] for row in incidents_of(there.store).values()] == [(there.job, "gpu_fallen_off_bus")]
    assert drained(there) == {"n1"} and sink.stages == ["restarting", "running again"]
    assert there.slurm.jobs[there.job].restarts == 1


async def test_gpu_lost_after_a_job_had_ended_is_not_its_failure(world: Worlds) -> None:
    there = world()
    there.slurm.end(there.job, exit_code=1)
    await Daemon(there).observe([])
    daemon = Daemon(there)
    await daemon.observe([lost_gpu("n1", at_s=60.0)])
    await daemon.quiet()
    assert [row[1] for row in incidents_of(there.store).values()] == [None]
    assert there.slurm.jobs[there.job].restarts == 0


async def test_every_job_of_a_node_that_goes_out_is_recovered_by_its_own_plan(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    other, left = beside(there, "n1"), beside(there, "n1", comment="{}")
    daemon = Daemon(there, [sink])
    await daemon.observe([dataclasses.replace(evidence("mce-uncorrected", node="n1"), rule="mce-uncorrected")])
    await daemon.quiet()
    assert sorted(row[1] for row in incidents_of(there.store).values()) == [there.job, other]
    assert [there.slurm.jobs[job].restarts for job in (there.job, other, left)] == [1, 1, 0]
    assert drained(there) == {"n1"}
    assert [call[1] for call in there.slurm.calls if call[0] == "set_node"] == ["n1"]
    assert {notice.data["user"] for notice in sink.got} == {"alice", "bo"}
    assert daemon.bugs() == 0


async def test_a_job_of_another_node_is_left(world: Worlds) -> None:
    there = world()
    other = beside(there, "n3")
    daemon = Daemon(there)
    await daemon.observe([lost_gpu("n1")])
    await daemon.quiet()
    assert there.slurm.jobs[other].restarts == 0


@pytest.mark.parametrize(("heard", "waits_s"), [(False, 6.0), (True, 2.0)])
def test_a_log_of_which_nothing_was_heard_is_waited_for(heard: bool, waits_s: float) -> None:
    """People were told that nothing is known of a job whose last lines came five seconds after its end."""
    words = [evidence("python-bug", source=Source.JOB_LOG, job=101, attempt=0, at_s=60.0)] if heard else []
    happened = incident(ended(101, at_s=60.0), *words, job=101, attempt=0)
    assert log_may_still_come(happened, 2.0, later(60.0 + waits_s - 0.1))
    assert not log_may_still_come(happened, 2.0, later(60.0 + waits_s + 0.1))


async def test_gpu_lost_under_the_next_job_is_a_new_failure_though_the_old_one_waits_for_a_person(
    world: Worlds,
) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    there.slurm.jobs[there.job].requeue = False
    there.slurm.end(there.job, exit_code=1)  # cannot be requeued: held
    await daemon.fleets.take()
    await daemon.observe([ended(there.job), lost_gpu("n1")])
    await daemon.quiet()
    there.slurm.nodes["n1"].drained = False  # returned by a person
    following = there.slurm.submit(nodes=2, comment=str(there.slurm.jobs[there.job].record["comment"]))
    await daemon.fleets.take()
    assert there.slurm.jobs[following].on == ("n1", "n2")
    await daemon.observe([lost_gpu("n1", at_s=3.0)])
    await daemon.quiet()
    assert [row[1] for row in incidents_of(there.store).values()] == [following, there.job]
    assert there.slurm.jobs[following].restarts == 1 and sink.stages[-2:] == ["restarting", "running again"]
