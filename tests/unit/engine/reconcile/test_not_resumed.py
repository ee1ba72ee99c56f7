"""Restarted attempts that end without a step and say nothing: the checkpoint is tried twice, then the one before, once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import pytest
from in_memory.daemon import RULES, WIDE, Daemon, fail, silent
from in_memory.world import FakeCheckpoints, World
from made_records import ended, evidence

from sentinel.detect.failed_resume import is_left_out
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Cause, JobView, Kind, Scalar, Source, Task, Where

Worlds = Callable[..., World]


class TwoSaves(FakeCheckpoints):
    """At steps 200 and 100; says what it was told of the attempt that failed, as ``FleetCheckpoints`` does."""

    async def choose(self, task: Task, job: JobView) -> Mapping[str, Scalar]:
        told = [item for item in task.incident.evidence if item.kind == Kind.NOT_RESUMED]
        step = 100 if any(map(is_left_out, told)) else 200
        before = f"{told[0].data['path']}@{told[0].data['step']}" if told else ""
        return {"path": f"/shared/run/step-{step}", "step": step, "tier": "global", "level": "checksum",
                "failed_before": before}  # fmt: skip


async def _ends_silently(daemon: Daemon, there: World, attempt: int, said: str = "") -> None:
    there.slurm.clock.advance(5.0)
    there.slurm.end(there.job, exit_code=1)
    now = there.slurm.clock.now()
    where = Where(job=there.job, attempt=attempt, path="/log")
    reader = LogReader(Signatures(RULES), source=Source.JOB_LOG, where=where)
    text = f"sentinel: job {there.job} attempt {attempt} begins\n{said}"
    end = dataclasses.replace(ended(there.job, attempt=attempt), at=now, seen_at=now)
    await fail(daemon, *reader.feed(text.encode(), now), *reader.finish(now), end)
    await daemon.pass_time(30.0)


async def _restarted(there: World, reached: int | None) -> Daemon:
    """Attempt 0 printed this step, and was restarted for a fault of its node; attempt 1 is there."""
    there.checkpoints = TwoSaves()
    daemon = Daemon(silent(there), settings=WIDE)
    await daemon.fleets.take()
    if reached is not None:
        data = {"step": reached}
        await daemon.observe([evidence(Kind.STEP, source=Source.PROGRESS, job=there.job, attempt=0, data=data)])
    await fail(daemon, evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid 79"))
    assert there.slurm.jobs[there.job].restarts == 1, daemon.said
    return daemon


def _told(daemon: Daemon) -> list[Scalar]:
    found = {item.id: item for one in daemon.state.incidents.values() for item in one.evidence}
    return sorted(item.data["times"] for item in found.values() if item.kind == Kind.NOT_RESUMED)  # type: ignore[type-var]


async def test_the_checkpoint_is_tried_twice_then_the_one_before_then_the_job_is_held(world: Worlds) -> None:
    there = world(nodes=6)
    daemon, job = await _restarted(there, 250), there.slurm.jobs[there.job]
    chosen = [200]
    for attempt in (1, 2, 3):
        await _ends_silently(daemon, there, attempt)
        chosen.append(int(there.resume.files[there.job]["SENTINEL_RESUME_STEP"]))
    assert (chosen, job.restarts, job.held) == ([200, 200, 100, 100], 4, True), daemon.said
    assert _told(daemon) == [1, 1, 2]
    causes = {verdict.cause for verdict in daemon.state.verdicts.values()}
    assert Cause.CHECKPOINT_CORRUPT not in causes, "nothing says that it is damaged"
    assert daemon.bugs() == 0


@pytest.mark.parametrize(
    ("reached", "said"),
    [
        (200, ""),  # a complete training, whose script fails after it
        (None, ""),  # no step of the job was ever read
        (250, "Restored all states from the checkpoint at /shared/run/step-200\n"),
        (250, "licence server: no seats\n"),
    ],
)
async def test_the_checkpoint_stays_where_it_may_be_good(world: Worlds, reached: int | None, said: str) -> None:
    there = world(nodes=6)
    daemon, job = await _restarted(there, reached), there.slurm.jobs[there.job]
    for attempt in (1, 2, 3):
        if not job.held:
            await _ends_silently(daemon, there, attempt, said)
    assert job.held and there.resume.files[there.job]["SENTINEL_RESUME_STEP"] == "200", daemon.said
    assert _told(daemon) == [] and daemon.bugs() == 0
