"""What repeated steps cost is counted by the job's usual step, not by the last one that it printed.

A rank that was stopped and is let go by the end of its attempt prints one last step that took as long as the hang.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from in_memory.checkpoints import SHARED, Nodes, failed, shared
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World
from made_records import AT, ended, evidence, incident, plan, step, verdict

from sentinel.daemon.api.jobs import JobAttempts
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import recovery
from sentinel.model.records import Cause, Kind, Outcome, Result, Source, StepKind

Worlds = Callable[..., World]
HUNG = [*[0.3] * 20, 8.1]  # seconds of each step
LONGER = [*[0.3] * 100, 8.1]


def trained(live: ClusterView, job: int, took: Sequence[float], last: int) -> None:
    first, at_s = last - len(took) + 1, 0.0
    for number, seconds in enumerate(took):
        at_s += seconds
        data = {"step": first + number, "step_time_s": seconds}
        live.note(evidence(Kind.STEP, at_s=at_s, source=Source.PROGRESS, job=job, attempt=0, data=data))


@pytest.mark.parametrize("took", [HUNG, LONGER])
async def test_the_owner_is_told_what_the_repeated_steps_took(world: Worlds, took: list[float]) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.start()
    trained(daemon.live, there.job, took, 214)
    kinds = (StepKind.CHOOSE_CHECKPOINT, StepKind.REQUEUE_HOLD, StepKind.RELEASE)
    steps = [step(kind, job=there.job, attempt=0) for kind in kinds]
    about, found = incident(ended(there.job), job=there.job, attempt=0), verdict(Cause.NCCL_HANG_UNKNOWN)
    daemon.state.put(about)
    daemon.state.verdicts[about.id], daemon.state.plans[about.id] = found, plan(*steps)
    daemon.state.ledger.intend(about.id, steps[0], there.slurm.clock.now())
    chosen = {"step": 200, "path": "/shared/run/step-200"}
    daemon.state.ledger.record(about.id, Outcome(steps[0], Result.DONE, there.slurm.clock.now(), "", chosen))
    await daemon.runner.timer_due(recovery.notice_timer(about.id))
    await daemon.quiet()
    assert "14 steps are made again (4 s)." in sink.got[0].data["owner_text"], sink.got[0].data["owner_text"]


async def test_a_checkpoint_is_chosen_by_what_the_repeated_steps_take(world: Worlds) -> None:
    case = await failed(world(), Nodes(shared(200)), comment=SHARED)
    trained(case.daemon.live, case.world.job, HUNG, 210)
    assert "10 steps lost, about 23 s until" in (await case.choose())["explanation"], "20 s of them to read it"


async def test_an_attempt_without_a_step_lost_what_the_one_before_it_had(world: Worlds) -> None:
    """It could not read its checkpoint: the job was where the attempt before had left it."""
    case = await failed(world(), Nodes(shared(80)), comment=SHARED)
    view = case.daemon.live.attempts[case.world.job, 0].view
    older = dataclasses.replace(view, started_at=AT - timedelta(days=99), ended_at=AT - timedelta(days=98), restarts=3)
    case.world.store.save_attempt(older, first_step=1, last_step=999, step_time_s=7.0)  # another job's, with this id
    case.world.store.save_attempt(view, first_step=1, last_step=89, step_time_s=0.5)
    case.daemon.live.see_attempt(dataclasses.replace(view, restarts=1))
    found = await case.choose(attempt=1)
    assert (found["step"], found["lost_steps"], found["last_step"]) == (80, 9, 89)
    assert "9 steps lost, about 25 s until" in found["explanation"], "20 s of them to read it"


async def test_listings_and_sums_have_the_usual_step(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    await daemon.start()
    trained(daemon.live, there.job, HUNG, 214)
    (seen,) = (seen for key, seen in daemon.live.attempts.items() if key == (there.job, 0))
    there.store.save_attempt(seen.view, first_step=1, last_step=150, step_time_s=0.3)
    (row,) = JobAttempts(there.store, daemon.live, there.slurm.clock).read(job=there.job)
    assert (row["last_step"], row["step_time_s"]) == (214, 0.3)


async def test_a_rhythm_that_was_put_together_anew_invents_no_step_time(world: Worlds) -> None:
    there = world()
    before = Daemon(there)
    await before.start()
    there.store.save_attempt(before.live.attempts[there.job, 0].view, first_step=1, last_step=150, step_time_s=None)
    after = Daemon(there)
    await after.start()
    trained(after.live, there.job, [0.3], 151)
    assert after.live.attempts[there.job, 0].usual_step_s() == 0.3
