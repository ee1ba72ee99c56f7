"""A fault that two sources tell, the second one after its job has been restarted already."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.daemon import WIDE, Daemon, beside, fail, incidents_of, outcomes, silent, states
from in_memory.world import World
from made_records import AT, evidence, later

from sentinel.model.records import Kind, Source, Where

Worlds = Callable[..., World]


@pytest.mark.parametrize("shared", [True, False])
async def test_what_a_second_source_tells_late_is_of_the_attempt_that_ran_then(world: Worlds, shared: bool) -> None:
    """DCGM tells an Xid some seconds after the kernel; by then the job waits for its next node, or trains on it."""
    there = silent(world(nodes=6))
    if shared:
        beside(there, "n1", comment="{}")  # its user did not opt in
    daemon, job = Daemon(there, settings=WIDE), there.slurm.jobs[there.job]
    daemon.live.node("n1").gpus = {(there.job, 0): frozenset({0})}
    of_gpu = Where(node="n1", gpu=0)
    await fail(daemon, dataclasses.replace(evidence(Kind.XID, data={"xid": 94}, text="NVRM: Xid 94"), where=of_gpu))
    assert job.restarts == 1 and "n1" not in job.on, daemon.said
    await daemon.fleets.take()  # the snapshot shows what runs on the node by now
    now_s = (there.slurm.clock.now() - AT).total_seconds()
    late = evidence(Kind.XID, source=Source.DCGM, node="n1", at_s=0.1, data={"xid": 94}, text="DCGM: Xid 94")
    await daemon.observe([dataclasses.replace(late, where=of_gpu, seen_at=later(now_s))])
    await daemon.quiet()
    await daemon.pass_time(60.0)
    assert [row[1] for row in incidents_of(there.store).values()] == [there.job], daemon.said
    assert job.restarts == 1 and job.state == "RUNNING", daemon.said


async def test_a_job_cancelled_where_slurmctld_had_forgotten_its_requeue_is_over(world: Worlds) -> None:
    """Its next attempt, which is waited for, never begins."""
    there = silent(world(nodes=3))
    daemon, job = Daemon(there, settings=WIDE), there.slurm.jobs[there.job]
    there.slurm.submit(nodes=1)  # the released job waits for its node
    there.slurm.save_state()
    await fail(daemon, evidence(Kind.XID, node="n1", data={"xid": 79}, text="NVRM: Xid 79"))
    assert job.restarts == 1 and states(there) == ["watching"], daemon.said
    there.slurm.crash()
    there.slurm.cancel(there.job)
    await daemon.pass_time(60.0)
    assert states(there) == ["closed"] and "was cancelled before attempt 1 began" in outcomes(there)[0], daemon.said
