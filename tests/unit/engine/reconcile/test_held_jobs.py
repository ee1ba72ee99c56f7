"""What others do with a job that is restarted or held, and late words that explain why it failed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from in_memory.daemon import WIDE, Daemon, FakeSink, fail, heard, outcomes, silent, states
from in_memory.held_job import drained, held, now_s
from in_memory.world import World
from made_records import OPTED_IN, ended, evidence, lost_gpu, step_line
from shipped import shipped_signatures

from sentinel.config.settings import Settings
from sentinel.errors import Timeout
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Kind, Source, Where
from sentinel.simulate.slurm.records import SimulatedJob

Worlds = Callable[..., World]


async def test_the_failure_of_a_second_component_ends_the_wait_for_a_heterogeneous_job(world: Worlds) -> None:
    there = silent(world(nodes=8))
    leader = there.slurm.submit(nodes=1, comment=OPTED_IN, het=0)
    second = there.slurm.submit(nodes=1, comment=OPTED_IN, het=leader)
    daemon = Daemon(there, settings=WIDE)
    await daemon.fleets.take()
    (bad,) = there.slurm.jobs[leader].on
    await fail(daemon, lost_gpu(bad))
    assert there.slurm.jobs[second].restarts == 1 and states(there) == ["watching"]
    there.slurm.end(second, exit_code=1, state="FAILED")
    await daemon.pass_time(30.0)
    assert states(there) == ["held"] and f"component {second}" in outcomes(there)[0], daemon.said


async def test_an_incident_whose_job_another_incident_restarts_ends_as_recovered_by_it(world: Worlds) -> None:
    there, sink = silent(world(nodes=8)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert states(there) == ["watching"]
    on = job.on[0]
    there.slurm.clock.advance(5.0)
    there.slurm.end(there.job, exit_code=1)
    await fail(daemon, lost_gpu(on, at_s=now_s(there)), ended(there.job, 1, at_s=now_s(there)))
    await daemon.pass_time(20.0)
    assert job.restarts == 2 and states(there) == ["closed", "watching"], daemon.said
    assert any("incident" in words for words in outcomes(there)), outcomes(there)
    await daemon.observe([step_line(there.job, 2, 201, now_s(there))])
    await daemon.quiet()
    assert states(there) == ["closed", "closed"] and "failed" not in sink.stages and "held" not in sink.stages


async def test_a_held_job_that_an_operator_releases_is_told_as_resolved(world: Worlds) -> None:
    there, sink = world(nodes=8), FakeSink()
    daemon = await held(there, sink)
    await daemon.pass_time(20.0)
    assert states(there) == ["held"] and sink.stages == ["held"]
    there.slurm.person_releases(there.job)
    await daemon.pass_time(20.0)
    assert there.slurm.jobs[there.job].state == "RUNNING"
    assert states(there) == ["closed"] and sink.stages == ["held", "resolved"], daemon.said
    assert "released" in outcomes(there)[0] and there.store.open_plans() == [] and daemon.bugs() == 0


async def test_a_held_job_that_its_user_cancels_or_that_is_gone_is_over(world: Worlds) -> None:
    there, sink = world(nodes=8), FakeSink()
    daemon = await held(there, sink)
    there.slurm.cancel(there.job)
    second = Daemon(there, [sink], settings=daemon.state.settings)  # also the daemon after a restart sees it
    await second.start()
    await second.pass_time(20.0)
    assert states(there) == ["closed"] and sink.stages == ["held", "resolved"] and "cancelled" in outcomes(there)[0]


async def test_a_job_that_waited_until_its_deadline_waits_for_nobody(world: Worlds) -> None:
    """sbatch --deadline: Slurm ends it in the queue, also one that is held or was released."""
    there, sink = world(nodes=8), FakeSink()
    daemon = await held(there, sink)
    this = there.slurm.jobs[there.job]
    this.state, this.held = "DEADLINE", False
    await daemon.pass_time(20.0)
    assert states(there) == ["closed"] and sink.stages == ["held", "resolved"]
    assert outcomes(there)[0] == f"job {there.job} is over: its deadline passed"


async def test_a_held_job_whose_record_cannot_be_read_stays_held(world: Worlds) -> None:
    there, sink = world(nodes=8), FakeSink()
    daemon = await held(there, sink)
    there.slurm.unreadable.add(there.job)
    await daemon.pass_time(20.0)
    assert states(there) == ["held"] and sink.stages == ["held"]


async def unexplained(there: World, *sinks: FakeSink) -> Daemon:
    """A daemon that holds the world's job for its user, whose program seems to have failed."""
    daemon = Daemon(there, sinks, settings=WIDE)
    daemon.fleets._seconds = lambda: there.slurm.clock.now().timestamp()
    await daemon.fleets.take()
    there.slurm.clock.advance(60.0)
    there.slurm.end(there.job, exit_code=1)
    where = Where(node="n1", job=there.job, attempt=0, path="/log")
    reader = LogReader(shipped_signatures(), source=Source.JOB_LOG, where=where)
    now = there.slurm.clock.now()
    said = [*reader.feed(b"[rank0]: IndexError: list index out of range\n", now), *reader.finish(now)]
    await fail(daemon, *said, ended(there.job, at_s=60.0))
    assert states(there) == ["held"] and there.slurm.jobs[there.job].held, daemon.said
    return daemon


@pytest.mark.parametrize("node", ["n1", "n2"])
async def test_a_late_word_that_explains_a_held_job_releases_it(world: Worlds, node: str) -> None:
    there, sink = world(nodes=8), FakeSink()
    daemon = await unexplained(there, sink)
    job = there.slurm.jobs[there.job]
    await daemon.pass_time(30.0)
    await daemon.observe([dataclasses.replace(lost_gpu(node, at_s=59.0), seen_at=there.slurm.clock.now())])
    await daemon.quiet()
    assert job.state == "RUNNING" and job.restarts == 1 and node not in job.on, daemon.said
    assert states(there) == ["closed"] and drained(there) == {node}
    assert sink.stages == ["held", "restarting", "running again"] and daemon.bugs() == 0


async def test_what_the_job_printed_before_its_end_belongs_to_the_incident_however_late_it_is_read(
    world: Worlds,
) -> None:
    """It is no consequence of the hold."""
    there = world(nodes=8)
    daemon = await unexplained(there)
    words = evidence("nccl-ib-error", source=Source.JOB_LOG, node="n1", job=there.job, attempt=0, at_s=58.0)
    await daemon.observe([dataclasses.replace(words, seen_at=there.slurm.clock.now())])
    await daemon.quiet()
    (seen,) = (i for i in daemon.state.incidents.values())
    assert words.id in {item.id for item in seen.evidence}, daemon.said


async def test_a_late_word_leaves_a_job_alone_that_somebody_has_released_or_holds_himself(world: Worlds) -> None:
    there = world(nodes=8)
    daemon = await unexplained(there)
    job = there.slurm.jobs[there.job]
    job.record["admin_comment"] = job.admin_comment = ""
    await daemon.observe([dataclasses.replace(lost_gpu("n1", at_s=59.0), seen_at=there.slurm.clock.now())])
    await daemon.quiet()
    assert job.held and job.restarts == 1 and drained(there) == {"n1"}, daemon.said


async def gained_nothing(there: World, *sinks: FakeSink) -> Daemon:
    """A daemon that holds the world's job, which failed three times in a row at the same step."""
    daemon = Daemon(there, sinks, settings=WIDE)
    await daemon.fleets.take()
    for attempt in range(3):
        await daemon.pass_time(60.0)
        there.slurm.end(there.job, exit_code=1)
        await fail(daemon, step_line(there.job, attempt, 5, now_s(there)), ended(there.job, attempt, at_s=now_s(there)))
    assert states(there)[-1] == "held" and "without a step gained" in notices_of(sinks), daemon.said
    return daemon


def notices_of(sinks: Iterable[FakeSink]) -> str:
    return "\n".join(notice.body for sink in sinks for notice in sink.all)


MORE = dataclasses.replace(WIDE, limits=dataclasses.replace(WIDE.limits, restarts_without_progress=9))


@pytest.mark.parametrize("settings", [None, WIDE, MORE], ids=["same-daemon", "after-a-restart", "with-another-limit"])
async def test_late_words_of_an_attempt_without_gain_do_not_release_its_job(
    world: Worlds, settings: Settings | None
) -> None:
    """Also the daemon after a restart, which did not watch that attempt, holds what the one before it counted."""
    there, sink = silent(world(nodes=8)), FakeSink()
    daemon = await gained_nothing(there, sink)
    if settings is not None:
        daemon = Daemon(there, [sink], settings=settings)
        await daemon.start()
    await daemon.pass_time(5.0)
    late = evidence(Kind.UNREADABLE, source=Source.AGENT, node="n1", job=there.job, attempt=2, at_s=now_s(there))
    await daemon.observe([late])
    await daemon.quiet()
    assert any(late.id in {item.id for item in incident.evidence} for incident in daemon.state.incidents.values())
    job = there.slurm.jobs[there.job]
    assert job.held and job.restarts == 3 and states(there)[-1] == "held", daemon.said
    there.slurm.person_releases(there.job)
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and set(states(there)) == {"closed"}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ReservationDeleted", "its reservation is over, and released it runs outside of it"),
        ("JobHoldMaxRequeue", "its start failed too often"),
    ],
)
async def test_a_waiting_job_that_slurm_itself_holds_is_held_by_nobody(world: Worlds, reason: str, words: str) -> None:
    there, sink = silent(world(nodes=2)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    await daemon.pass_time(20.0)
    assert states(there) == ["watching"] and job.state == "PENDING", "it waits for a node"
    there.slurm.person_holds(there.job)
    job.held_by = reason
    await daemon.pass_time(20.0)
    assert states(there) == ["held"] and outcomes(there)[0].startswith(f"Slurm holds job {there.job}: {words}")
    told = str(sink.all[-1].data["owner_text"])
    assert "somebody else" not in told and "Whoever" not in told and f"scontrol release {there.job}" in told
    there.slurm.nodes["n1"].drained = False
    there.slurm.person_releases(there.job)
    await daemon.pass_time(20.0)
    assert states(there) != ["held"], daemon.said


def successor(there: World) -> SimulatedJob:
    """The next one of the world's job, which waits for it."""
    first = there.slurm.jobs[there.job].record
    same: dict[str, Any] = {key: first[key] for key in ("user_name", "user_id", "name") if key in first}
    job = there.slurm.jobs[there.slurm.submit(nodes=1, held=True, comment=OPTED_IN)]
    job.record |= {**same, "dependency": "singleton(unfulfilled)"}
    return job


def begins(job: SimulatedJob, node: str) -> None:
    """Slurm forgets what it waited for."""
    job.record["dependency"] = ""
    job.state, job.held, job.on = "RUNNING", False, (node,)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_job_whose_successor_has_begun_is_held_and_not_restarted_beside_it(world: Worlds, begun: bool) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    other = successor(there)
    await daemon.pass_time(30.0)
    there.slurm.end(there.job, exit_code=1)
    if begun:
        begins(other, "n6")
    await fail(daemon, lost_gpu("n1"), ended(there.job))
    job = there.slurm.jobs[there.job]
    assert there.slurm.nodes["n1"].drained and job.restarts == 1
    assert (job.held, job.state) == ((True, "PENDING") if begun else (False, "RUNNING"))
    assert states(there) == (["held"] if begun else ["watching"])
    assert heard(sink) == (["held"] if begun else ["restarting"])
    said = "\n".join(notice.body for notice in sink.got)
    assert (f"Job {other.id}, which waited for job {job.id} (--dependency=singleton), has begun" in said) is begun


async def test_a_successor_that_begins_while_the_job_is_prepared_is_found_before_the_release(world: Worlds) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    other = successor(there)
    await daemon.pass_time(30.0)
    there.slurm.end(there.job, exit_code=1)
    requeue_hold = there.slurm.requeue_hold

    async def too_late(*arguments: int) -> bool:
        begins(other, "n6")
        return await requeue_hold(*arguments)

    there.slurm.requeue_hold = too_late  # type: ignore[method-assign,assignment]
    await fail(daemon, lost_gpu("n1"), ended(there.job))
    job = there.slurm.jobs[there.job]
    assert (job.held, job.state, states(there)) == (True, "PENDING", ["held"])
    assert any("has begun: for Slurm the failure was the end" in notice.body for notice in sink.got)


@pytest.mark.parametrize("ended_first", [True, False])
async def test_a_job_beside_which_its_successor_was_made_to_run_is_restarted(world: Worlds, ended_first: bool) -> None:
    """Its user took the dependency away: it did not begin in the place of a job that ran."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    other = successor(there)
    await daemon.pass_time(30.0)
    begins(other, "n6")
    await daemon.pass_time(30.0)
    if ended_first:
        there.slurm.end(there.job, exit_code=1)
    await fail(daemon, lost_gpu("n1"), *([ended(there.job)] if ended_first else []))
    job = there.slurm.jobs[there.job]
    assert (job.restarts, job.held, job.state, states(there)) == (1, False, "RUNNING", ["watching"])


async def test_a_hold_before_the_release_that_finds_no_answer_is_done_to_its_end(world: Worlds) -> None:
    """It is Sentinel's own, and whoever releases the job has it start at once."""
    there, sink = silent(world(nodes=6)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    other = successor(there)
    await daemon.pass_time(30.0)
    there.slurm.end(there.job, exit_code=1)
    requeue_hold, update_job = there.slurm.requeue_hold, there.slurm.update_job

    async def too_late(*arguments: int) -> bool:
        if other.state == "PENDING":
            begins(other, "n6")
        return await requeue_hold(*arguments)

    missed = 0

    async def unheard(job: int, **changes: Any) -> None:
        nonlocal missed
        if "held" in changes.get("admin_comment", "") and not missed:
            missed += 1
            raise Timeout("scontrol did not answer")
        await update_job(job, **changes)

    there.slurm.requeue_hold, there.slurm.update_job = too_late, unheard  # type: ignore[method-assign,assignment]
    await fail(daemon, lost_gpu("n1"), ended(there.job))
    await daemon.pass_time(60.0)
    assert missed and states(there) == ["held"]
    assert any("has begun: for Slurm the failure was the end" in notice.body for notice in sink.got)
    there.slurm.person_releases(there.job)
    await daemon.pass_time(20.0)
    assert there.slurm.jobs[there.job].state == "RUNNING"


@pytest.mark.parametrize("beside", [False, True])
async def test_the_first_task_of_an_array_that_begins_is_a_successor(world: Worlds, beside: bool) -> None:
    """Slurm gives it another id: the array's own stays that of the tasks that wait."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    array = successor(there)
    await daemon.pass_time(30.0)
    if not beside:
        there.slurm.end(there.job, exit_code=1)
    array.record["dependency"] = ""
    begins(there.slurm.jobs[there.slurm.submit(nodes=1, held=True, array=(array.id, 1))], "n6")
    if beside:
        await daemon.pass_time(30.0)
        there.slurm.end(there.job, exit_code=1)
    await fail(daemon, lost_gpu("n1"), ended(there.job))
    assert states(there) == (["watching"] if beside else ["held"])
