"""Jobs whose users insist on nodes (``--nodelist``), of which one is drained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from in_memory.daemon import SETTINGS, Daemon, FakeSink, fail, outcomes, states
from in_memory.world import World
from made_records import evidence

from sentinel.config.modes import Mode, Modes
from sentinel.config.settings import Limits
from sentinel.model.records import Evidence, Kind, StepKind

Worlds = Callable[..., World]
WIDE = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0))
NAMES_N1 = "own --nodelist names n1, which is drained"


def bus(node: str) -> Evidence:
    return evidence(Kind.XID, node=node, data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid 79")


async def test_a_job_that_waits_for_a_drained_node_of_its_own_list_says_so(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    job.required = ("n1", "n2")
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, bus("n1"))
    await daemon.pass_time(20.0)
    assert job.state == "PENDING" and job.required == ("n1", "n2") and not job.bad, daemon.said
    assert states(there) == ["watching"] and NAMES_N1 in outcomes(there)[0]
    change = f"scontrol update JobId={there.job} ReqNodeList=n2"
    assert any(NAMES_N1 in plan.explanation and change in plan.explanation for plan in daemon.state.plans.values())
    rows = daemon.state.ledger.of_job(there.job, StepKind.EXCLUDE)
    assert [row.outcome.data["excluded"] for row in rows if row.outcome is not None] == [""], "its list is never tried"
    for text in ("owner_text", "operator_text"):
        assert [NAMES_N1 in str(notice.data[text]) and change in str(notice.data[text]) for notice in sink.all] == [
            True
        ]
    job.required = ("n2",)  # as its user is told
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.required == ("n2",) and "n1" not in job.on, daemon.said


async def test_a_list_that_sentinel_wrote_is_not_called_the_jobs_own(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    there.checkpoints.chosen = {"path": "/nvme/step-250", "step": 250, "tier": "local", "hosts": "n2,n3"}
    daemon = Daemon(there, [sink], settings=WIDE)
    blocker = there.slurm.submit(nodes=4)
    await fail(daemon, bus("n1"))
    there.slurm.person_drains("n3", "ticket 7")
    for _ in range(2):
        await daemon.pass_time(20.0)
    assert there.slurm.jobs[blocker].state == "RUNNING"
    assert there.slurm.jobs[there.job].state == "PENDING" and "--nodelist" not in outcomes(there)[0], daemon.said
    assert sink.all and all("--nodelist" not in notice.body for notice in sink.all)


SUGGESTS = dataclasses.replace(SETTINGS, modes=Modes(default=Mode(drain="suggest", restart="act")))


async def test_a_job_begins_on_no_convicted_node_that_comes_out_of_maintenance_undrained(world: Worlds) -> None:
    """A reservation ends at any second, and Slurm starts what waits for the node before anybody has looked."""
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    job.required = ("n1", "n2")
    daemon = Daemon(there, [sink], settings=SUGGESTS)
    there.slurm.person_reserves(["n1"])
    await fail(daemon, bus("n1"))
    for _ in range(4):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and job.excluded == ("n1",), daemon.said
    there.slurm.reservation_ends(["n1"])
    assert job.state == "PENDING", "in the same second"
    for _ in range(4):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and job.restarts == 1 and job.excluded == ("n1",), daemon.said
    there.slurm.person_drains("n1", "riser")  # no exclusion is needed any more, and with it the job would never start
    await daemon.pass_time(20.0)
    assert job.excluded == () and job.state == "PENDING", daemon.said
    there.slurm.person_resumes("n1")
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and "n1" in job.on, daemon.said
