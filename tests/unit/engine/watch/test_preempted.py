"""Attempts that Slurm preempted: told of, nobody's fault, restarted by nobody but the site's own rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.daemon import Daemon, FakeSink, fail, silent, states
from in_memory.watch import Scene
from in_memory.world import World
from made_records import evidence

from sentinel.detect.job_end import job_ended
from sentinel.model.records import Kind, Source

Worlds = Callable[..., World]

SAID = "slurmstepd-n1: error: *** JOB 201 ON n1 CANCELLED AT 2026-03-04T12:00:20 DUE TO PREEMPTION ***"


async def test_a_job_that_was_preempted_and_not_requeued_is_told_to_its_owner_and_left_alone(world: Worlds) -> None:
    """PreemptMode=CANCEL. Slurm still writes when it preempted the job, here at its end."""
    there, sink = silent(world()), FakeSink()
    daemon = Daemon(there, [sink])
    this = there.slurm.jobs[there.job]
    await daemon.fleets.take()
    await daemon.pass_time(60.0)
    saved = {"source": Source.JOB_LOG, "job": there.job, "attempt": 0, "data": {"step": 250}}
    daemon.live.note(evidence(Kind.CHECKPOINT_SAVED, **saved))
    this.record["preempt_time"] = int(there.slurm.clock.now().timestamp())
    there.slurm.end(there.job, exit_signal=15, state="PREEMPTED")
    await daemon.fleets.take()
    await fail(daemon, job_ended(daemon.live.fleet.jobs[there.job], there.slurm.clock.now(), nodes=("n1", "n2")))  # type: ignore[union-attr]
    assert states(there) == ["closed"] and this.state == "PREEMPTED" and this.restarts == 0
    assert not any(node.drained for node in there.slurm.nodes.values())
    (told,) = sink.all
    words = str(told.data["owner_text"])
    assert f"is not restarted: Slurm preempted job {there.job} by the site's rules and did not requeue it" in words
    assert f"scontrol requeue {there.job} puts it back" in words and "newest save that was seen is of step 250" in words
    assert told.data["severity"] == "info" and told.data["nodes"] == told.data["suspect"] == []
    assert daemon.bugs() == 0


@pytest.mark.parametrize("late", [False, True], ids=["before the snapshot", "after it"])
@pytest.mark.parametrize("grace", [True, False], ids=["grace time", "by its log"])
async def test_an_attempt_that_slurm_preempted_and_requeued_is_kept_as_that(
    world: Worlds, grace: bool, late: bool
) -> None:
    """Slurm forgets at the requeue that it preempted the job; its word is in the job's log, and in the grace time."""
    there = world()
    scene = Scene(there)
    await scene.fleets.take()
    this = there.slurm.jobs[there.job]
    where = {"source": Source.JOB_LOG, "job": there.job, "attempt": 0}
    if grace:
        this.record["preempt_time"] = int(this.started) + 10
        await scene.advance(20.0)
        await scene.fleets.take()
        this.record["preempt_time"] = 0
    elif not late:
        scene.live.note(evidence("preempted", text=SAID, **where))
    there.slurm.back_to_queue(this, held=False)
    await scene.advance(5.0)
    await scene.fleets.take()
    if late and not grace:
        assert scene.live.attempts[there.job, 0].view.state == "requeued"
        scene.live.note(evidence("preempted", text=SAID, **where))
    seen = scene.live.attempts[there.job, 0]
    assert seen.view.state == "preempted" and seen.ended and scene.reported == []


@pytest.mark.parametrize("text", [SAID.replace("PREEMPTION", "JOB REQUEUE"), ""], ids=["a person", "nothing"])
async def test_a_requeue_of_somebody_else_is_no_preemption(world: Worlds, text: str) -> None:
    there = world()
    scene = Scene(there)
    await scene.fleets.take()
    scene.live.note(evidence("preempted", text=text, source=Source.JOB_LOG, job=there.job, attempt=0))
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=False)
    await scene.advance(5.0)
    await scene.fleets.take()
    assert scene.live.attempts[there.job, 0].view.state == "requeued"
