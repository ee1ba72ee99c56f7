"""Jobs whose users insist on nodes (``--nodelist``), of which one is drained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from in_memory.daemon import SETTINGS, Daemon, FakeSink, answer, fail, outcomes, states
from in_memory.world import World
from made_records import evidence, lost_gpu

from sentinel.config.modes import Mode, Modes
from sentinel.config.settings import Limits
from sentinel.model.records import Kind, Source, StepKind

Worlds = Callable[..., World]
WIDE = dataclasses.replace(SETTINGS, limits=Limits(drain_fraction=1.0))
NAMES_N1 = "own --nodelist names n1, which is drained"


async def test_a_job_that_waits_for_a_drained_node_of_its_own_list_says_so(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    job.required = ("n1", "n2")
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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
    await fail(daemon, lost_gpu("n1"))
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


def now_s(there: World) -> float:
    return (there.slurm.clock.now() - evidence().at).total_seconds()


async def held_by_its_user(there: World, *sinks: FakeSink) -> Daemon:
    """A daemon whose requeued job needs n1, which is convicted and waits to be drained, and which its user holds."""
    there.slurm.jobs[there.job].required = ("n1", "n2")
    daemon = Daemon(there, sinks, settings=SUGGESTS)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    there.slurm.person_holds(there.job)
    for _ in range(2):
        await daemon.pass_time(20.0)
    assert states(there) == ["held"] and "not by Sentinel" in outcomes(there)[0], daemon.said
    return daemon


async def mended(daemon: Daemon) -> None:
    found = evidence(Kind.DIAG_PASSED, node="n1", at_s=now_s(daemon.world), source=Source.DIAGNOSTIC, data={"level": 4})
    await daemon.observe([found])
    for _ in range(4):
        await daemon.pass_time(20.0)


async def test_a_job_that_its_user_held_and_released_gets_its_node_once_that_is_good(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon, job = await held_by_its_user(there, sink), there.slurm.jobs[there.job]
    there.slurm.person_releases(there.job)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and job.excluded == ("n1",), "n1 is convicted, and in service"
    assert states(there) != ["held"], "nobody is to release what is released"
    await mended(daemon)
    assert job.state == "RUNNING" and "n1" in job.on and job.excluded == () and job.restarts == 1, daemon.said
    assert daemon.bugs() == 0


async def test_a_job_that_its_user_held_meanwhile_gets_a_node_that_is_good_by_then(world: Worlds) -> None:
    there = world(nodes=6)
    daemon, job = await held_by_its_user(there), there.slurm.jobs[there.job]
    await mended(daemon)
    assert job.held and job.state == "PENDING"
    there.slurm.person_releases(there.job)
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and "n1" in job.on and job.excluded == () and job.restarts == 1, daemon.said


async def test_a_job_that_is_kept_from_a_node_of_its_own_list_says_what_to_do_once_the_drain_is_refused(
    world: Worlds,
) -> None:
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    job.required = ("n1", "n2")
    daemon = Daemon(there, [sink], settings=SUGGESTS)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    change = f"scontrol update JobId={there.job} ReqNodeList=n2"
    first = sink.all[0]
    assert job.state == "PENDING" and job.excluded == ("n1",) and sink.stages == ["restarting"], daemon.said
    assert change in str(first.data["owner_text"]) and change in first.body
    await answer(daemon, "refuse", note="known")
    for _ in range(2):
        await daemon.pass_time(20.0)
    assert job.state == "PENDING" and sink.stages == ["restarting", "refused"], daemon.said
    (incident,) = [plan.incident for plan in there.store.open_plans()]
    for text in ("owner_text", "operator_text"):
        assert change in str(sink.all[-1].data[text]), sink.all[-1].data[text]
    assert f"sentinel approve {incident}" in str(sink.all[-1].data["operator_text"])
    assert change in outcomes(there)[0] and "kept from" in outcomes(there)[0]
    job.required, job.bad = ("n2",), False  # as its user is told; Slurm looks at the job anew
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and "n1" not in job.on, daemon.said
    assert "ReqNodeList" not in outcomes(there)[0]


async def test_a_name_of_the_users_list_that_is_gone_from_slurm_conf_is_dropped(world: Worlds) -> None:
    """Slurm keeps such a name for a job that has it, and takes no list that names it."""
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    job.excluded = ("gone1", "n6")
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    assert job.state == "RUNNING" and job.restarts == 1 and {"n1", "n6"}.isdisjoint(job.on), daemon.said
    assert "gone1" not in job.excluded and "n6" in job.excluded
    rows = daemon.state.ledger.of_job(there.job, StepKind.EXCLUDE)
    assert rows[-1].outcome is not None and "Slurm has no node gone1" in rows[-1].outcome.reason
