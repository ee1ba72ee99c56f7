"""What the simulated Slurm does over time: the contract suite holds it to the real one where nothing takes time."""

from __future__ import annotations

import pytest

from sentinel.adapters.slurm.process import Answer, SlurmSaidNo
from sentinel.adapters.slurm.writer import AT_ONCE, DEFERRED
from sentinel.simulate.slurm.cluster import SimulatedSlurm
from sentinel.simulate.slurm.records import REQUEUE_WAIT_S, SlurmTimes, StandingClock
from sentinel.simulate.slurm.requests import Requests


@pytest.fixture
def slurm() -> SimulatedSlurm:
    return SimulatedSlurm(nodes=4, clock=StandingClock(), times=SlurmTimes(epilog_s=2.0, min_job_age_s=300.0))


def after(slurm: SimulatedSlurm, seconds: float) -> None:
    slurm.clock.advance(seconds)
    slurm.catch_up()


async def test_an_ended_job_completes_keeps_its_nodes_meanwhile_and_is_forgotten_later(slurm: SimulatedSlurm) -> None:
    first, second = slurm.submit(nodes=4), slurm.submit(nodes=4)
    slurm.end(first, exit_code=3)
    view = await slurm.job(first)
    assert view is not None and view.state == "completing" and slurm.jobs[second].state == "PENDING"
    after(slurm, 2.0)
    view = await slurm.job(first)
    assert view is not None and (view.state, view.exit_code) == ("failed", 3)
    assert slurm.jobs[second].state == "RUNNING"
    after(slurm, 300.0)
    assert await slurm.job(first) is None


async def test_a_requeued_job_is_pending_and_completing_and_waits_before_it_starts(slurm: SimulatedSlurm) -> None:
    job = slurm.submit(nodes=2)
    await Requests(slurm).requeue_hold(f"{job}", incomplete=False)
    assert slurm.job_json(slurm.jobs[job])["job_state"] == "PENDING,COMPLETING" and slurm.jobs[job].restarts == 1
    after(slurm, 2.0)
    assert (slurm.jobs[job].restarts, slurm.jobs[job].held, slurm.jobs[job].on) == (1, True, ())
    slurm.person_releases(job)
    assert slurm.jobs[job].state == "RUNNING", "a release of a person lets it go at once"


async def test_node_fail_requeues_after_a_delay(slurm: SimulatedSlurm) -> None:
    job = slurm.submit(nodes=2)
    slurm.lose("n1")
    slurm.notice("n1")
    after(slurm, 2.0)
    assert slurm.job_json(slurm.jobs[job])["state_reason"] == "BeginTime"
    after(slurm, REQUEUE_WAIT_S)
    assert slurm.jobs[job].state == "RUNNING" and "n1" not in slurm.jobs[job].on


async def test_a_completing_job_waits_for_a_lost_node_until_that_is_down(slurm: SimulatedSlurm) -> None:
    job = slurm.submit(nodes=2)
    slurm.lose("n1")
    slurm.cancel(job)
    after(slurm, 60.0)
    view = await slurm.job(job)
    assert view is not None and view.state == "completing"
    await Requests(slurm).set_node("n1", "DOWN", "gone")
    view = await slurm.job(job)
    assert view is not None and view.state == "cancelled"


async def test_the_components_of_a_heterogeneous_job_start_together_or_not_at_all(slurm: SimulatedSlurm) -> None:
    leader, other = slurm.submit(nodes=2, het=101), slurm.submit(nodes=1, het=101)
    await Requests(slurm).requeue_hold(f"{other}", incomplete=False)
    after(slurm, 2.0)
    slurm.person_releases(other)
    after(slurm, REQUEUE_WAIT_S)
    assert [slurm.jobs[part].state for part in (leader, other)] == ["PENDING", "PENDING"], "the leader is held"
    slurm.person_drains("n1", "cable swap")
    slurm.person_drains("n2", "cable swap")
    slurm.person_releases(leader)
    assert [slurm.jobs[part].state for part in (leader, other)] == ["PENDING", "PENDING"], "nodes for one of them only"
    slurm.person_resumes("n2")
    assert [slurm.jobs[part].on for part in (leader, other)] == [("n2", "n3"), ("n4",)]


async def test_a_cancelled_job_does_not_come_back_from_its_requeue(slurm: SimulatedSlurm) -> None:
    job = slurm.submit(nodes=2)
    await Requests(slurm).requeue_hold(f"{job}", incomplete=False)
    slurm.cancel(job)
    after(slurm, 2.0)
    assert slurm.jobs[job].state == "CANCELLED"
    with pytest.raises(SlurmSaidNo) as caught:
        await Requests(slurm).set_job(f"{job}", {"StartTime": AT_ONCE})
    assert caught.value.answer is Answer.FINISHED


async def test_an_exclusion_that_leaves_too_few_nodes_stays_bad_until_the_list_changes(slurm: SimulatedSlurm) -> None:
    job = slurm.submit(nodes=4)
    await Requests(slurm).requeue_hold(f"{job}", incomplete=False)
    after(slurm, 2.0)
    await Requests(slurm).set_job(f"{job}", {"ExcNodeList": "n1", "StartTime": AT_ONCE})
    await Requests(slurm).release(f"{job}")
    record = slurm.job_json(slurm.jobs[job])
    assert (record["state_reason"], record["priority"]) == ("BadConstraints", 0)
    await Requests(slurm).set_job(f"{job}", {"ExcNodeList": ""})
    assert slurm.jobs[job].state == "RUNNING"


async def test_a_hold_of_a_running_job_outlasts_its_requeue(slurm: SimulatedSlurm) -> None:
    job = slurm.submit(nodes=2)
    slurm.person_holds(job)
    slurm.person_requeues(job)
    after(slurm, 2.0 + REQUEUE_WAIT_S)
    view = await slurm.job(job)
    assert view is not None and view.held and view.reason == "JobHeldUser"


async def test_a_failed_job_is_final_for_its_dependents(slurm: SimulatedSlurm) -> None:
    first = slurm.submit(nodes=2)
    second = slurm.submit(nodes=2, after_ok=first)
    assert slurm.job_json(slurm.jobs[second])["state_reason"] == "Dependency"
    slurm.end(first, exit_code=1)
    after(slurm, 2.0)
    await Requests(slurm).requeue_hold(f"{first}", incomplete=False)
    after(slurm, 2.0)
    slurm.person_releases(first)
    slurm.end(first)
    after(slurm, 2.0)
    assert slurm.job_json(slurm.jobs[second])["state_reason"] == "DependencyNeverSatisfied"


async def test_the_leader_of_a_heterogeneous_job_takes_its_components_along(slurm: SimulatedSlurm) -> None:
    leader = slurm.submit(nodes=2, het=0)
    component = slurm.submit(nodes=2, het=leader)
    slurm.schedule()
    await Requests(slurm).requeue_hold(f"{component}", incomplete=False)
    after(slurm, 2.0)
    assert slurm.jobs[leader].held and slurm.jobs[component].held
    await Requests(slurm).set_job(f"{leader}", {"StartTime": DEFERRED})
    assert slurm.jobs[component].eligible < slurm.jobs[leader].eligible, "an update is for the one that is named"


async def test_a_lost_node_of_one_component_requeues_the_whole_heterogeneous_job(slurm: SimulatedSlurm) -> None:
    """As seen on Slurm 22.05: both components pending, each with one restart."""
    leader = slurm.submit(nodes=2, het=0)
    part = slurm.submit(nodes=2, het=leader)
    slurm.schedule()
    slurm.set_down(slurm.jobs[part].on[0])
    after(slurm, 2.0)
    assert [(slurm.jobs[job].state, slurm.jobs[job].restarts) for job in (leader, part)] == [("PENDING", 1)] * 2


async def test_a_crash_of_slurmctld_forgets_what_it_had_not_saved(slurm: SimulatedSlurm) -> None:
    job = slurm.submit(nodes=2)
    slurm.save_state()
    await Requests(slurm).set_node("n1", "DRAIN", "sentinel:1 broken")
    await Requests(slurm).requeue_hold(f"{job}", incomplete=False)
    after(slurm, 2.0)
    slurm.crash()
    assert not slurm.nodes["n1"].drained
    ghost = slurm.jobs[job]
    assert (ghost.state, ghost.restarts, ghost.ghost) == ("RUNNING", 0, True)
    after(slurm, slurm.times.ghost_s)
    after(slurm, 2.0)
    assert slurm.jobs[job].state == "PENDING" and slurm.jobs[job].restarts == 1


async def test_job_that_starts_on_a_node_that_is_gone_is_requeued_and_waits_until_the_node_is_down() -> None:
    """As seen on Slurm 22.05: requeued when its prolog does not answer, and then completing there."""
    slurm = SimulatedSlurm(nodes=3, times=SlurmTimes(epilog_s=1.0, requeue_s=0.0))
    slurm.lose("n2")
    job = slurm.jobs[slurm.submit(nodes=2)]
    assert job.state == "RUNNING" and job.ghost
    after(slurm, slurm.times.launch_s)
    after(slurm, 60.0)
    assert job.completing and job.restarts == 1
    slurm.set_down("n2")
    after(slurm, 1.0)
    assert job.state == "RUNNING" and job.on == ("n1", "n3")
