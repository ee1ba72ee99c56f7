"""One suite for every implementation of SlurmWriter: holds, requeues and what goes with them."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from in_memory.slurm import FakeSlurm
from servers.slurm_worlds import FakeWorld, RealWorld, World, running, waiting, waits_held

from sentinel.adapters.slurm.writer import REVOKED_S, Writer
from sentinel.errors import Refused

NO_JOB = 60_000_001


async def test_restart_on_other_nodes_without_the_wait(world: World) -> None:
    job = world.submit(nodes=2, excluded=world.names[3])
    first = await world.job(job, running)
    for _ in range(2):
        await world.writer.requeue_hold(job)
    assert (await world.job(job, waits_held)).restarts == 1
    excluded = [*first.excluded, first.nodes[0]]
    for _ in range(2):
        await world.writer.update_job(job, excluded=excluded, admin_comment="sentinel: i42", start_now=True)
    for _ in range(2):
        await world.writer.release(job)
    again = await world.job(job, running)
    assert again.id == job and again.restarts == 1 and not again.held
    assert set(again.nodes) == set(world.names[1:3])
    assert set(again.excluded) == set(excluded) and again.admin_comment == "sentinel: i42"
    # The daemon may die after the release and ask for the same again.
    await world.writer.update_job(job, excluded=excluded, admin_comment="sentinel: i42", start_now=True)
    await world.writer.release(job)


async def test_a_failed_job_goes_back_to_the_queue(world: World) -> None:
    job = world.submit("fail")
    await world.job(job, lambda job: job.state == "failed")
    await world.writer.requeue_hold(job)
    seen = await world.job(job, waits_held)
    assert (seen.restarts, seen.exit_code, seen.ended_at) == (1, None, None)


@pytest.mark.parametrize("script", ["sleep", "stubborn"])
async def test_a_job_cancelled_between_our_look_and_our_request_stays_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    job = world.submit(script)
    await world.job(job, running)
    verbs = cast(Writer, world.writer).verbs
    asked = verbs.requeue_hold

    async def late(spec: str, *, incomplete: bool) -> None:
        world.cancel(job)
        await asked(spec, incomplete=incomplete)

    monkeypatch.setattr(verbs, "requeue_hold", late)
    await world.writer.requeue_hold(job)  # it is on its way to its end, or has ended
    await world.writer.requeue_hold(job)
    seen = await world.job(job, lambda job: job.state == "cancelled")
    assert (seen.restarts, seen.held, seen.hold_kept) == (0, False, False)


async def test_a_job_that_slurm_requeued_first_is_held(world: World) -> None:
    job = world.submit(nodes=2)
    node = (await world.job(job, running)).nodes[1]
    world.lose(node)
    await world.writer.down(node, "sentinel: i42 lost")
    for _ in range(2):
        await world.writer.requeue_hold(job)
    assert (await world.job(job, waits_held)).restarts == 1


async def test_a_pending_job_is_held_and_not_requeued(world: World) -> None:
    await world.job(world.submit(nodes=len(world.names)), running)
    job = world.submit()  # no node is free
    assert (await world.job(job, waiting)).held is False
    await world.writer.requeue_hold(job)
    assert (await world.job(job, waits_held)).restarts == 0


async def test_a_job_held_by_its_user_is_seen_as_such(world: World) -> None:
    job = world.submit(held=True)
    assert (await world.job(job, waits_held)).reason == "JobHeldUser"
    await world.writer.requeue_hold(job)
    assert (await world.job(job, waits_held)).reason == "JobHeldUser"


async def test_a_deferred_job_waits_without_a_hold_and_its_users_hold_shows(world: World) -> None:
    job = world.submit()
    await world.job(job, running)
    await world.writer.requeue_hold(job)
    await world.job(job, lambda job: waits_held(job) and not job.nodes)
    for _ in range(2):
        await world.writer.defer(job)
    seen = await world.job(job, waiting)
    assert not seen.held and seen.eligible_at is not None
    assert seen.eligible_at - datetime.now(UTC) > timedelta(days=29) or not isinstance(world, RealWorld)
    world.hold(job)
    assert (await world.job(job, waits_held)).reason == "JobHeldUser"
    await world.writer.update_job(job, start_now=True)
    assert (await world.job(job, waits_held)).state == "pending"
    if isinstance(world, RealWorld):
        await asyncio.sleep(REVOKED_S)  # sooner than any person would: slurmd takes the start for the old one
    world.unhold(job)
    assert (await world.job(job, running)).restarts == 1


async def test_a_hold_of_a_job_that_could_start_empties_its_eligible_time(world: World) -> None:
    """Not that of a requeued one within Slurm's wait: so one hold is told from the other."""
    requeued = world.submit()
    await world.job(requeued, running)
    world.requeue(requeued)
    await world.job(requeued, lambda job: waiting(job) and not job.nodes and job.eligible_at is not None)
    world.hold(requeued)
    assert (await world.job(requeued, waits_held)).eligible_at is not None
    await world.job(world.submit(nodes=len(world.names)), running)
    ready = world.submit()  # no node is free
    await world.job(ready, lambda job: waiting(job) and job.eligible_at is not None)
    if isinstance(world, FakeWorld):
        world.slurm.clock.advance(2.0)
    else:
        await asyncio.sleep(2.0)  # Slurm counts whole seconds
    world.hold(ready)
    assert (await world.job(ready, waits_held)).eligible_at is None


async def test_the_hold_of_a_requeue_outlives_a_cancellation(world: World) -> None:
    """And the restart is counted as soon as the job is stopped, also when it never comes to it."""
    job = world.submit("stubborn")
    await world.job(job, running)
    await world.writer.requeue_hold(job)
    world.cancel(job)
    await world.job(job, lambda job: job.state == "cancelled")
    world.requeue(job)
    assert (await world.job(job, waits_held)).restarts == 2
    await world.writer.release(job)
    assert not (await world.job(job, waiting)).held


async def test_a_suspension_between_two_looks_is_seen(world: World) -> None:
    job = world.submit()
    assert (await world.job(job, running)).suspended_at is None
    world.suspend_and_resume(job)
    assert (await world.job(job, running)).suspended_at is not None


async def test_requeue_0_is_mended_while_the_job_runs(world: World) -> None:
    job = world.submit(requeue=False)
    assert (await world.job(job, running)).requeue is False
    await world.writer.requeue_hold(job)
    seen = await world.job(job, waits_held)
    assert seen.restarts == 1 and seen.requeue is True


async def test_requeue_0_of_an_ended_job_is_refused(world: World) -> None:
    job = world.submit("fail", requeue=False)
    await world.job(job, lambda job: job.state == "failed")
    with pytest.raises(Refused, match="Requeue=0"):
        await world.writer.requeue_hold(job)


async def test_an_interactive_job_is_refused(world: World) -> None:
    job = world.submit_interactive()
    await world.job(job, running)
    with pytest.raises(Refused):
        await world.writer.requeue_hold(job)
    await world.job(job, running)


async def test_a_purged_job_is_refused(world: World) -> None:
    with pytest.raises(Refused, match=f"{NO_JOB}"):
        await world.writer.requeue_hold(NO_JOB)
    with pytest.raises(Refused):
        await world.writer.release(NO_JOB)
    with pytest.raises(Refused):
        await world.writer.update_job(NO_JOB, admin_comment="x")


async def test_one_task_of_an_array_and_not_its_siblings(world: World) -> None:
    first, second, last = world.submit_array(3)
    for job in (first, second, last):
        await world.job(job, running)
    await world.writer.requeue_hold(last)
    await world.job(last, waits_held)
    await world.writer.update_job(last, excluded=[world.names[0]], admin_comment="sentinel: i42", start_now=True)
    assert (await world.job(last, waits_held)).excluded == (world.names[0],)
    for job in (first, second):
        sibling = await world.job(job, running)
        assert (sibling.restarts, sibling.admin_comment) == (0, "")
    await world.writer.release(last)
    assert not (await world.job(last, lambda job: not job.held)).held


async def test_lists_are_replaced_and_cleared(world: World) -> None:
    job = world.submit(held=True, excluded=world.names[0])
    await world.writer.update_job(job, excluded=world.names[1:3], required=[world.names[3]])
    seen = await world.job(job, waiting)
    assert set(seen.excluded) == set(world.names[1:3]) and seen.required == (world.names[3],)
    await world.writer.update_job(job, excluded=[], required=[])
    seen = await world.job(job, waiting)
    assert seen.excluded == () and seen.required == () and seen.held
    await world.writer.update_job(job)
    with pytest.raises(Refused):
        await world.writer.update_job(job, excluded=["nowhere"])


@pytest.mark.parametrize(
    "text",
    ["plain", "a=b 'c' \"d\" $(e) `f` ;g", '{"incident": "i42", "step": 900}', "ünïcode ☃", "-leading", "x" * 500],
)
async def test_an_admin_comment_arrives_as_written(world: World, text: str) -> None:
    job = world.submit(held=True)
    await world.writer.update_job(job, admin_comment=text)
    assert (await world.job(job, waiting)).admin_comment == text


async def test_the_nodes_of_a_running_job_are_not_changed(world: World) -> None:
    job = world.submit()
    await world.job(job, running)
    with pytest.raises(Refused):
        await world.writer.update_job(job, excluded=[world.names[3]])
    assert (await world.job(job, running)).excluded == ()


async def test_release_of_a_job_that_ran_and_ended(world: World) -> None:
    job = world.submit("fail")
    await world.job(job, lambda job: job.state == "failed")
    await world.writer.release(job)
    assert (await world.job(job, lambda job: job.state == "failed")).restarts == 0


async def steps_of(world: World, job: int, wanted: dict[int, str]) -> None:
    deadline_s = time.monotonic() + 60.0
    while (found := await world.reader.steps(job)) != wanted:
        assert time.monotonic() < deadline_s, found
        await asyncio.sleep(0.2)


async def test_a_step_is_ended_and_its_job_goes_on_with_fewer_nodes(world: World) -> None:
    job = world.submit("steps", nodes=3)
    seen = await world.job(job, running)
    await steps_of(world, job, {0: "sentinel-run-0"})
    await world.writer.end_step(job, 0)
    await world.writer.end_step(job, 0)
    await steps_of(world, job, {})
    await world.writer.keep_nodes(job, [seen.nodes[0], seen.nodes[2]])
    after = await world.job(job, lambda job: len(job.nodes) == 2)
    assert (after.nodes, after.state, after.restarts) == ((seen.nodes[0], seen.nodes[2]), "running", 0)
    with pytest.raises(Refused):
        await world.writer.keep_nodes(job, [seen.nodes[2]])  # the script runs on the other
    world.cancel(job)
    await world.job(job, lambda job: job.state == "cancelled")
    await world.writer.end_step(job, 0)
    with pytest.raises(Refused):
        await world.writer.keep_nodes(job, [seen.nodes[0]])
    assert await world.reader.steps(NO_JOB) == {}


async def test_notify_writes_into_the_output_or_nowhere(world: World) -> None:
    job = world.submit()
    seen = await world.job(job, running)
    await world.writer.notify(job, "sentinel: node n2 is being replaced")
    if isinstance(world, RealWorld):
        # A job counts as running before its script is there to be told: until then the line goes nowhere.
        deadline_s = time.monotonic() + 60.0
        while "node n2 is being replaced" not in world.output(seen):
            assert time.monotonic() < deadline_s, "no line in the output"
            await asyncio.sleep(0.5)
            await world.writer.notify(job, "sentinel: node n2 is being replaced")
    else:
        assert "node n2 is being replaced" in world.output(seen)
    await world.writer.notify(world.submit(held=True), "nobody listens")
    await world.writer.notify(NO_JOB, "nobody is there")


async def test_memory_tells_what_was_written(fake_slurm: FakeSlurm) -> None:
    await fake_slurm.drain("n1", "sentinel: i42")
    await fake_slurm.drain("n1", "sentinel: i42")
    assert fake_slurm.calls == [("set_node", "n1", "DRAIN", "sentinel: i42")]


@pytest.mark.slurm
async def test_a_job_stopped_by_a_signal_holds_its_nodes_and_is_requeued(world: World) -> None:
    """Slurm says STOPPED of it (22.05 that alone): it has ended nowhere, and no hold of a person's is on it."""
    if not isinstance(world, RealWorld):
        pytest.skip("optional: what Slurm says of it")
    job = world.submit()
    await world.job(job, running)
    world.cluster.command("scancel", "--signal=STOP", f"{job}")
    seen = await world.job(job, lambda job: job.state != "running")
    assert (seen.state, len(seen.nodes), seen.hold_kept, seen.ended_at) == ("suspended", 1, False, None)
    await world.writer.requeue_hold(job)
    assert (await world.job(job, waits_held)).restarts == 1


@pytest.mark.slurm
async def test_a_singleton_waits_for_a_job_that_is_requeued_and_not_for_one_that_failed(world: World) -> None:
    """What was let go runs beside the failed one, should that be requeued."""
    if not isinstance(world, RealWorld):
        pytest.skip("optional: what Slurm does with it")
    options = ("--job-name=chain", "--dependency=singleton", "--requeue", "--exclusive")
    go = world.cluster.folder / "jobs" / "go"
    first = world.cluster.submit(f"until [ -e {go} ]; do sleep 0.1; done; exit 1\n", *options)
    await world.job(first, running)
    second, third = (world.cluster.submit("sleep 600\n", *options) for _ in range(2))
    for job in (second, third):
        assert (await world.job(job, lambda job: job.reason == "Dependency")).singleton
    go.touch()
    await world.job(first, lambda job: job.state == "failed")
    assert not (await world.job(second, running)).singleton
    await world.writer.requeue_hold(second)
    await world.job(second, waits_held)
    assert (await world.job(third, waiting)).singleton, "it waits for the one that waits again"


@pytest.mark.slurm
async def test_a_running_job_that_gives_a_node_back_names_it_no_more(world: World) -> None:
    if not isinstance(world, RealWorld):
        pytest.skip("optional: what Slurm says of it")
    job = world.submit(nodes=3)
    kept = (await world.job(job, running)).nodes[:2]
    world.cluster.command("scontrol", "update", f"JobId={job}", f"NodeList={','.join(kept)}")
    seen = await world.job(job, lambda job: running(job) and len(job.nodes) < 3)
    assert (seen.nodes, seen.restarts) == (kept, 0)
    await world.writer.requeue_hold(job)
    await world.job(job, waits_held)
    world.unhold(job)
    world.cluster.start_requeued(job)
    assert len((await world.job(job, running)).nodes) == 3, "it asks for as many as before"
