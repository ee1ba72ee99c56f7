"""Slurm refuses the step of a job that ran: neither its settings nor its checkpoint are to blame."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.daemon import RULES, WIDE, Daemon, fail, silent
from in_memory.world import World
from made_records import ended, evidence

from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Kind, Source, Where

Worlds = Callable[..., World]
NO_STEP = b"srun: error: Unable to create step for job 101: Invalid generic resource (gres) specification\n"


@pytest.mark.parametrize("ran_before", [True, False])
async def test_a_restarted_job_whose_step_slurm_refuses_is_tried_again_where_it_ran_before(
    world: Worlds, ran_before: bool
) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    job = there.slurm.jobs[there.job]
    await daemon.fleets.take()
    if ran_before:
        step = evidence(Kind.STEP, source=Source.PROGRESS, job=there.job, attempt=0, data={"step": 5})
        await daemon.observe([step])
    await fail(daemon, evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid 79"))
    assert (job.restarts, job.state) == (1, "RUNNING"), daemon.said
    there.slurm.clock.advance(5.0)
    there.slurm.end(there.job, exit_code=1)
    now = there.slurm.clock.now()
    reader = LogReader(Signatures(RULES), source=Source.JOB_LOG, where=Where(job=there.job, attempt=1, path="/log"))
    said = [*reader.feed(NO_STEP, now), *reader.finish(now)]
    end = dataclasses.replace(ended(there.job, attempt=1), at=now, seen_at=now)
    await fail(daemon, *said, end)
    await daemon.pass_time(30.0)
    assert (job.restarts, job.held) == (2, not ran_before), daemon.said
    wanted = [item for name in daemon.state.incidents for item in daemon.state.incidents[name].evidence]
    assert not [item for item in wanted if item.kind == Kind.CHECKPOINT_INVALID]
    assert daemon.bugs() == 0
