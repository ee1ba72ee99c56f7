"""What happens to a node or a job beside, after or in the middle of a recovery: a second fault, Slurm itself."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from datetime import timedelta

import pytest
from in_memory.daemon import WIDE, Daemon, FakeSink, fail, incidents_of, silent, states
from in_memory.held_job import drained, now_s
from in_memory.world import World
from made_records import AT, OPTED_IN, ended, evidence, later, lost_gpu
from shipped import shipped_signatures

from sentinel.config.settings import Limits, Mode, Modes
from sentinel.engine.reconcile import node_proof
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Evidence, IncidentState, Kind, Source, Where
from sentinel.simulate.slurm.records import SimulatedJob, SlurmTimes

Worlds = Callable[..., World]


def gone(node: str, at_s: float = 0.0) -> Evidence:
    return evidence(Kind.NODE_UNREACHABLE, node=node, at_s=at_s, source=Source.PROBE, text="slurmd does not answer")


@pytest.mark.parametrize("mode", ["observe", "suggest"])
async def test_a_later_job_that_fails_on_a_node_that_waits_to_be_drained_is_not_blamed(
    world: Worlds, mode: str
) -> None:
    """It began and failed between two snapshots: only its end and its log are there to be judged."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=dataclasses.replace(WIDE, modes=Modes(default=Mode(mode, mode))))
    await fail(daemon, lost_gpu("n1"))
    there.slurm.jobs[there.job].state = "CANCELLED"
    await daemon.pass_time(180.0)
    job = there.slurm.submit(nodes=99, comment=OPTED_IN)
    later_job = there.slurm.jobs[job]
    later_job.state, later_job.on, later_job.nodes = "FAILED", ("n1",), 1
    later_job.started = later_job.ended = there.slurm.time_s()
    now = now_s(there)
    words = "RuntimeError: CUDA error: no CUDA-capable device is detected\n"
    read = LogReader(shipped_signatures(), source=Source.JOB_LOG, where=Where(node="n1", job=job, attempt=0))
    await fail(daemon, *read.feed(words.encode(), later(now)), ended(job, at_s=now))
    verdicts = {i.job: daemon.state.verdicts[i.id] for i in daemon.state.incidents.values()}
    assert verdicts[job].cause == "gpu_fallen_off_bus" and verdicts[job].restart == "resume_excluding"
    assert verdicts[job].drain == ("n1",)


@pytest.mark.parametrize(
    ("fault_s", "ran_s"),
    [pytest.param(20.0, 60.0, id="after-its-end"), pytest.param(-3600.0, 1800.0, id="long-before-its-end")],
)
async def test_a_job_is_judged_by_its_own_words_where_the_fault_of_its_node_cannot_have_ended_it(
    world: Worlds, fault_s: float, ran_s: float
) -> None:
    """The node waits to be drained: its fault came after the job's end, or the job ran there for long all the same."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=dataclasses.replace(WIDE, modes=Modes(default=Mode("observe", "observe"))))
    await daemon.pass_time(7200.0)
    fault = now_s(there)
    await fail(daemon, lost_gpu("n1", at_s=fault))
    there.slurm.jobs[there.job].state, there.slurm.jobs[there.job].on = "CANCELLED", ()
    await daemon.pass_time(60.0 + max(0.0, -fault_s))
    job = there.slurm.submit(nodes=99, comment=OPTED_IN)
    later_job = there.slurm.jobs[job]
    later_job.state, later_job.on, later_job.nodes = "FAILED", ("n1",), 1
    end, began = fault - fault_s, there.slurm.time_s() - now_s(there)
    later_job.started, later_job.ended = began + end - ran_s, began + end
    words = b"Traceback (most recent call last):\n  File \"/home/u/train.py\", line 3, in <module>\nKeyError: 'lr'\n"
    read = LogReader(shipped_signatures(), source=Source.JOB_LOG, where=Where(node="n1", job=job, attempt=0))
    await fail(daemon, *read.feed(words, later(end)), ended(job, at_s=end))
    verdicts = {i.job: daemon.state.verdicts[i.id] for i in daemon.state.incidents.values()}
    assert (verdicts[job].cause, verdicts[job].drain) == ("user_code", ())


async def test_a_second_node_that_dies_while_the_job_is_being_stopped_is_set_down_at_once(world: Worlds) -> None:
    """Slurm waits for the epilog of a node that is gone: only setting it down ends the wait."""
    there = silent(world(nodes=6))
    there.slurm.times = SlurmTimes(epilog_s=1.0)
    daemon = Daemon(there, settings=WIDE)
    requeue, told = there.slurm.requeue_hold, []

    async def stopping(job: int, attempt: int | None = None) -> bool:
        held = await requeue(job, attempt)
        there.slurm.lose("n2")
        if not told:
            told.append(asyncio.create_task(daemon.runner.observe([gone("n2", at_s=now_s(there) + 0.1)])))
        return held

    there.slurm.requeue_hold = stopping  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert there.slurm.nodes["n2"].down and job.restarts == 1, daemon.said
    assert job.state == "RUNNING" and not {"n1", "n2"} & set(job.on), daemon.said
    rows = {(row["kind"], row["node"]): row for row in there.store.steps_of(next(iter(incidents_of(there.store))))}
    assert (rows["down", "n2"]["intended_at"] - rows["requeue_hold", None]["intended_at"]).total_seconds() < 10.0
    assert daemon.bugs() == 0


async def test_evidence_that_was_not_judged_yet_is_not_saved_as_the_incidents(world: Worlds) -> None:
    """A daemon that is killed before it judges: the next one finds it as news, and nobody else would judge it."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    requeue, second, next_one = there.slurm.requeue_hold, lost_gpu("n2", at_s=1.0), []

    async def stopping(job: int, attempt: int | None = None) -> None:
        await requeue(job, attempt)
        if not next_one:
            await daemon.runner.observe([second])
            (name,) = daemon.state.incidents
            assert second in daemon.state.incidents[name].evidence
            await daemon.close(name, IncidentState.OPEN, "")  # as before steps are done again
            next_one.append(Daemon(there).stored)

    there.slurm.requeue_hold = stopping  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    (stored,) = next_one
    assert second in stored.unclaimed and second not in stored.incidents[0].evidence
    assert drained(there) == {"n1", "n2"}
    assert second in Daemon(there).stored.incidents[0].evidence


async def test_a_second_node_is_taken_out_though_its_incident_closes_while_the_snapshot_is_taken(world: Worlds) -> None:
    """Evidence of the first node's incident, which is judged; before Slurm answers, the job is over."""
    there = world(nodes=6, comment="")
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    (name,) = daemon.state.incidents
    await daemon.close(name, IncidentState.OPEN, "")
    take, answers = daemon.fleets.take_until_answered, asyncio.Event()

    async def slowly(max_age_s: float) -> None:
        await answers.wait()
        await take(max_age_s)

    daemon.fleets.take_until_answered = slowly  # type: ignore[method-assign, assignment]
    daemon.state.cluster.fleet = None  # none that is fresh
    await daemon.runner.observe([lost_gpu("n2", at_s=1.0)])
    while not daemon.state.judging[name].awaits:
        await asyncio.sleep(0.1)
    await daemon.close(name, IncidentState.CLOSED, "the job was cancelled")
    answers.set()
    await daemon.quiet()
    assert drained(there) == {"n1", "n2"}, daemon.said


async def test_a_restart_waits_from_the_requeue_on_and_not_from_the_last_epilog(world: Worlds) -> None:
    """slurmd takes a start within two seconds of the requeue for the stopped attempt; epilogs count towards them."""
    there = world(nodes=6)
    there.slurm.times = SlurmTimes(epilog_s=5.0)
    daemon = Daemon(there, settings=WIDE)
    back, requeued = there.slurm.back_to_queue, []

    def at_once(job: SimulatedJob, **how: bool) -> None:
        back(job, **how)
        job.submitted -= 5.0  # as slurmctld has it: when it was asked to
        requeued.append(job.submitted)

    there.slurm.back_to_queue = at_once  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    assert there.slurm.jobs[there.job].state == "RUNNING" and requeued, daemon.said
    rows = {row["kind"]: row for row in there.store.steps_of(next(iter(incidents_of(there.store))))}
    prepared_s = (rows["exclude"]["intended_at"] - rows["requeue_hold"]["finished_at"]).total_seconds()
    assert prepared_s < 0.5, f"{prepared_s} s without a step, long after the requeue"


async def test_a_second_node_that_is_convicted_while_the_job_is_being_held_is_drained_at_once(world: Worlds) -> None:
    """The same where the job is held for a person, and the step waits for epilogs."""
    there = world(nodes=6)
    there.slurm.times = SlurmTimes(epilog_s=60.0)
    daemon = Daemon(there, settings=dataclasses.replace(WIDE, limits=Limits(drain_fraction=1.0, restarts_per_job=0)))
    requeue, told = there.slurm.requeue_hold, []

    async def stopping(job: int, attempt: int | None = None) -> None:
        await requeue(job, attempt)
        if not told:
            told.append(asyncio.create_task(daemon.runner.observe([lost_gpu("n2", at_s=now_s(there) + 0.1)])))

    there.slurm.requeue_hold = stopping  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    rows = {(row["kind"], row["node"]): row for row in there.store.steps_of(next(iter(incidents_of(there.store))))}
    assert drained(there) == {"n1", "n2"} and there.slurm.jobs[there.job].held and daemon.bugs() == 0
    assert rows["drain", "n2"]["intended_at"] < rows["hold", None]["intended_at"] + timedelta(seconds=10), daemon.said


@pytest.mark.parametrize("off_s", [0.0, -200.0, 200.0])
@pytest.mark.parametrize("by", ["release", "scontrol"])
async def test_a_new_fault_right_after_the_return_of_a_node_is_a_new_incident(
    world: Worlds, by: str, off_s: float
) -> None:
    """By how much the node's clock is off does not matter."""
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    daemon.fleets._seconds = lambda: there.slurm.clock.now().timestamp()
    daemon.live.node("n1").clock_offset_s = off_s
    await fail(daemon, lost_gpu("n1", at_s=off_s))
    assert states(there) == ["closed"] and drained(there) == {"n1"}
    await daemon.pass_time(2.0)
    there.slurm.person_resumes("n1")
    if by == "release":
        daemon.live.node("n1").released_at = there.slurm.clock.now()
    there.slurm.clock.advance(1.0)  # Slurm's newest snapshot still shows it drained
    await daemon.observe([lost_gpu("n1", at_s=now_s(there) + off_s)])
    await daemon.quiet()
    assert drained(there) == {"n1"} and states(there) == ["closed", "closed"], daemon.said
    assert len(sink.got) == 2 and daemon.bugs() == 0


@pytest.mark.parametrize("off_s", [0.0, -60.0, 60.0])
async def test_what_happened_before_the_return_and_comes_late_belongs_to_the_closed_incident(
    world: Worlds, off_s: float
) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    daemon.fleets._seconds = lambda: there.slurm.clock.now().timestamp()
    daemon.live.node("n1").clock_offset_s = off_s
    await fail(daemon, lost_gpu("n1", at_s=off_s))
    await daemon.pass_time(2.0)
    there.slurm.person_resumes("n1")
    daemon.live.node("n1").released_at = there.slurm.clock.now()
    await daemon.pass_time(2.0)
    late = evidence(Kind.XID, source=Source.DCGM, node="n1", at_s=0.5 + off_s, data={"xid": 79})
    await daemon.observe([dataclasses.replace(late, seen_at=there.slurm.clock.now())])
    await daemon.quiet()
    assert drained(there) == set() and states(there) == ["closed"] and len(sink.got) == 1, daemon.said


async def test_a_fault_under_the_epilogs_of_a_requeued_job_is_of_the_attempt_that_ended(world: Worlds) -> None:
    """Slurm counts the restart at once: nothing of the next attempt may be known by then, in the store neither."""
    there = silent(world(nodes=6))
    there.slurm.times = SlurmTimes(epilog_s=30.0)
    daemon = Daemon(there, settings=WIDE)
    await daemon.fleets.take()
    there.slurm.person_requeues(there.job)
    there.slurm.clock.advance(2.0)
    await daemon.fleets.take()
    await daemon.observe([lost_gpu("n1", at_s=2.0)])
    async with asyncio.timeout(60.0):
        while not any(incident.attempt is not None for incident in daemon.state.incidents.values()):
            await asyncio.sleep(0)
    assert {key for key in daemon.live.attempts if key[0] == there.job} == {(there.job, 0)}
    assert {i.attempt for i in daemon.state.incidents.values()} == {0}, daemon.said


async def fails_and_is_told_late(there: World, daemon: Daemon) -> Evidence:
    """A GPU of n1 fails, and its last evidence comes after the drain."""
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(1.0)
    late = evidence(Kind.XID, source=Source.DCGM, node="n1", at_s=now_s(there), data={"xid": 79}, id="late")
    await daemon.observe([late])
    return late


async def test_what_was_told_of_a_returned_node_before_a_restart_of_the_daemon_is_not_new_after_it(
    world: Worlds,
) -> None:
    """The new daemon never saw the node drained: that its last evidence came after the drain says nothing of its return."""
    there = world(nodes=4)
    daemon = Daemon(there, settings=WIDE)
    late = await fails_and_is_told_late(there, daemon)
    await daemon.pass_time(5.0)
    there.slurm.person_resumes("n1")
    await daemon.pass_time(2.0)
    there.slurm.end(there.job)
    await daemon.pass_time(2.0)
    job = there.slurm.submit(nodes=2, comment=OPTED_IN)
    there.slurm.clock.advance(2.0)
    assert there.slurm.jobs[job].on == ("n1", "n2")
    again = Daemon(there, settings=WIDE)
    await again.start()
    await again.fleets.take()
    ((name, plan),) = again.state.plans.items()
    assert late in again.state.incidents[name].evidence and not node_proof.is_of_returned_node(again.state, plan, late)
    for told in (dataclasses.replace(late, id="not told yet"), lost_gpu("n2", at_s=now_s(there))):
        await again.observe([told])
        await again.quiet()
    assert drained(there) == {"n2"}, daemon.said + again.said


async def test_what_a_daemon_grouped_stays_where_it_is_for_the_next_one(world: Worlds) -> None:
    """Nobody knows any more until when the node was seen drained: it came back while no daemon was there."""
    there = world(nodes=4)
    daemon = Daemon(there, settings=WIDE)
    late = await fails_and_is_told_late(there, daemon)
    await daemon.quiet()
    there.slurm.person_resumes("n1")
    again = Daemon(there, settings=WIDE)
    await again.start()
    await again.fleets.take()
    ((name, _),) = again.state.plans.items()
    assert late in again.state.incidents[name].evidence
    more = dataclasses.replace(lost_gpu("n1", at_s=0.2), id="more", seen_at=there.slurm.clock.now())
    await again.observe([more])
    await again.quiet()
    assert late in again.state.incidents[name].evidence and drained(there) == set(), again.said


async def test_a_hold_left_on_a_cancelled_job_is_known_to_a_daemon_that_starts_later(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = silent(world())
    verbs, job = there.verbs, there.slurm.jobs[there.job]
    real = verbs.requeue_hold

    async def requeue_hold(name: str, *, incomplete: bool) -> None:
        await real(name, incomplete=incomplete)
        there.slurm.cancel(there.job)

    monkeypatch.setattr(verbs, "requeue_hold", requeue_hold)
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    assert job.state == "CANCELLED" and states(there) == ["closed"], daemon.said
    there.slurm.clock.advance(1000.0)
    following = Daemon(there, settings=WIDE)
    await following.start()
    there.slurm.person_requeues(there.job)
    assert job.held
    await following.pass_time(20.0)
    assert not job.held, following.said


async def test_a_job_that_was_left_running_for_want_of_certainty_is_restarted_when_it_fails_after_all(
    world: Worlds,
) -> None:
    """A program takes seconds from its last words to its end: judged meanwhile, it was said to go on."""
    there = silent(world(nodes=6))
    sure = dataclasses.replace(WIDE, limits=dataclasses.replace(WIDE.limits, stop_confidence=0.95))
    daemon = Daemon(there, settings=sure)
    job = there.slurm.jobs[there.job]
    where = Where(job=there.job, attempt=0, node=job.on[0], path="out")
    hot = evidence("thermal-gpu", node=job.on[0], source=Source.DCGM, text="GPU 3 is too hot", data={"severity": 2})
    said = LogReader(shipped_signatures(), source=Source.JOB_LOG, where=where).feed(
        b"OSError: [Errno 5] Input/output error: '/shared/run/step-50'\n", AT
    )
    await fail(daemon, hot, *said)
    assert (states(there), job.state, job.restarts) == (["closed"], "RUNNING", 0), daemon.said
    there.slurm.end(there.job, exit_code=1)
    await fail(daemon, ended(there.job, at_s=now_s(there) + 0.1))
    assert (job.state, job.restarts) == ("RUNNING", 1), daemon.said
    assert states(there) == ["watching"] and daemon.bugs() == 0, daemon.said
