"""One suite for every implementation of SlurmReader and SlurmWriter."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import pytest
from in_memory.slurm import FakeSlurm
from servers.slurm_cluster import Cluster
from servers.slurm_worlds import FakeWorld, RealWorld, World

from sentinel.adapters.slurm import pyslurm_reader
from sentinel.adapters.slurm.commands import CommandReader, CommandWriter
from sentinel.adapters.slurm.writer import REVOKED_S, Writer
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import JobView
from sentinel.simulate.slurm.records import SlurmTimes
from sentinel.text import plain, text_of

NO_JOB = 60_000_001
DEADLINE_S = 60.0
HASTY_S = 3.0  # where no answer is to be expected


@pytest.fixture(
    params=[
        "memory",
        pytest.param("commands", marks=pytest.mark.slurm),
        pytest.param("pyslurm", marks=pytest.mark.slurm),
    ]
)
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param == "memory":
        yield FakeWorld()
        return
    if request.param == "pyslurm" and find_spec("pyslurm") is None:
        pytest.skip("optional: pyslurm is not installed")
    cluster: Cluster = request.getfixturevalue("real_slurm")
    settings = {"SLURM_CONF": str(cluster.conf)}
    if request.param == "commands":
        reader = CommandReader(environment=settings, deadline_s=DEADLINE_S)
        real = RealWorld(cluster, reader, CommandWriter(environment=settings, deadline_s=DEADLINE_S))
        hasty = CommandReader(environment=settings, deadline_s=HASTY_S)
        real.hasty = hasty, CommandWriter(environment=settings, deadline_s=HASTY_S)
        yield real
        real.reset()
        return
    version, why_not = pyslurm_reader.probe(settings, DEADLINE_S)
    if not version:
        pytest.skip(f"optional: {why_not}")
    over_pyslurm, writer, child = pyslurm_reader.connect(environment=settings, deadline_s=20.0)
    real = RealWorld(cluster, over_pyslurm, writer)
    yield real
    await child.close()
    real.reset()


def running(job: JobView) -> bool:
    return job.state == "running"


def waiting(job: JobView) -> bool:
    return job.state == "pending"


def waits_held(job: JobView) -> bool:
    return job.state == "pending" and job.held


# -- reading ------------------------------------------------------------------------------------------------------------


async def test_fleet_shows_every_node_as_promised(world: World) -> None:
    fleet = await world.reader.fleet()
    assert sorted(fleet.nodes) == world.names
    for node in fleet.nodes.values():
        assert (node.state, node.flags, node.reason, node.gpus) == ("idle", frozenset(), "", 8)
        assert node.partitions == ("train",)
        assert node.address == "127.0.0.1"
        assert node.usable
    assert len({node.port for node in fleet.nodes.values()}) == len(world.names)


async def test_fleet_and_single_questions_agree(world: World) -> None:
    job = world.submit(nodes=2)
    await world.job(job, running)
    fleet = await world.reader.fleet()
    assert await world.reader.job(job) == fleet.jobs[job]
    for name, node in fleet.nodes.items():
        assert await world.reader.node(name) == node
    assert all(fleet.nodes[name].state in {"allocated", "mixed"} for name in fleet.jobs[job].nodes)


async def test_a_running_job_is_told_in_full(world: World) -> None:
    job = world.submit(nodes=2, name="run 7", comment='{"sentinel": {"budget": 3}}', excluded=world.names[3])
    seen = await world.job(job, running)
    assert seen.nodes == tuple(world.names[:2])
    assert seen.batch_host == world.names[0]
    assert (seen.node_count, seen.restarts, seen.held, seen.requeue) == (2, 0, False, True)
    assert (seen.name, seen.comment, seen.partition) == ("run 7", '{"sentinel": {"budget": 3}}', "train")
    assert seen.excluded == (world.names[3],)
    assert seen.user and seen.uid is not None
    assert seen.stdout.endswith(f"/slurm-{job}.out")
    assert (seen.exit_code, seen.exit_signal, seen.ended_at) == (None, None, None)
    assert seen.submitted_at and seen.started_at and seen.eligible_at
    assert seen.submitted_at <= seen.started_at


@pytest.mark.parametrize(
    "name",
    [
        "a JobState=FAILED b",
        "x\nJobId=1 JobState=FAILED",
        "café ☃ 100%",
        '"quoted" {"jobs": []}',
        "tab\tand [red]markup[/]",
    ],
)
async def test_users_words_forge_nothing(world: World, name: str) -> None:
    before = (await world.reader.fleet()).jobs  # an earlier run of this case may have left its job
    job = world.submit(
        name=name, comment=f"c={name} NodeList=n9", stdout="/tmp/%x of %j.log" if "/" not in name else ""
    )
    fleet = await world.reader.fleet()
    seen = await world.job(job, running)
    assert seen.name == name
    assert seen.comment == f"c={name} NodeList=n9"
    assert fleet.jobs.keys() - before.keys() == {job}
    assert fleet.jobs[job].state in {"pending", "running"}
    assert set(seen.nodes) <= set(world.names)
    if "/" not in name:
        assert seen.stdout == f"/tmp/{name} of {job}.log"


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xfe evil",
        b"half \xed\xa0\x80 a pair",
        b"cut \xf0\x9f\x92",
        b"x\xff\nJobId=1 JobState=FAILED|NodeName=n1 State=DOWN,\x1b[2J",
        b'\xff"}], "nodes": [{"name": "n9"}], "x": "\\',
        b"\\ud800 \\u0000 \\",
        b"long \xff" + b"x" * 900,
    ],
    ids=range(7),
)
async def test_bytes_that_are_no_text_hide_nothing_and_forge_nothing(world: World, raw: bytes) -> None:
    """While such a job waits or runs every other job and every node is seen, and its own fields are its own."""
    before = (await world.reader.fleet()).jobs
    words, shown = os.fsdecode(raw), text_of(raw)
    other = world.submit(name="other")
    job = world.submit(name=words, comment=f"c={words}", stdout=f"/tmp/{words[:2]}-%j.log")
    held = world.submit(name=words, comment=words, held=True)
    node = world.names[3]
    world.person_drains(node, f"cable {words}")
    await world.job(job, running)
    fleet = await world.reader.fleet()
    assert fleet.jobs.keys() - before.keys() == {other, job, held} and sorted(fleet.nodes) == world.names
    assert not fleet.unread
    seen = fleet.jobs[job]
    assert (seen.name, seen.comment, seen.state, seen.restarts) == (shown, f"c={shown}", "running", 0)
    assert set(seen.nodes) <= set(world.names)
    if words[0] != "\\":
        assert seen.stdout == f"/tmp/{plain(words[:2])}-{job}.log"
    else:  # a backslash of the user's own switches Slurm's patterns off; what 24.11 states hides the file's name
        assert seen.stdout in {"", f"/tmp/{words[1]}-%j.log"}
    assert (fleet.jobs[held].name, fleet.jobs[held].held, fleet.jobs[other].name) == (shown, True, "other")
    assert fleet.nodes[node].drained and fleet.nodes[node].reason == f"cable {shown}"
    assert await world.reader.job(held) == fleet.jobs[held] and await world.reader.node(node) == fleet.nodes[node]
    with pytest.raises(Refused, match="cable"):
        await world.writer.undrain(node)
    await world.writer.requeue_hold(job)
    assert (await world.job(job, waits_held)).name == shown


@pytest.mark.parametrize("option", ["account", "wckey", "mcs-label", "chdir", "network", "mail-user"])
async def test_bytes_in_any_option_hide_no_job(world: World, option: str) -> None:
    if not isinstance(world, RealWorld):
        pytest.skip("optional: only a real sbatch takes this option")
    value = os.fsdecode(b"\xff\xed\xa0\x80")
    if option == "chdir":
        value = f"{world.cluster.folder}/jobs/{value}"
        Path(value).mkdir(exist_ok=True)
    job = world.cluster.submit("sleep 600\n", f"--{option}={value}")
    fleet = await world.reader.fleet()
    assert job in fleet.jobs and not fleet.unread and sorted(fleet.nodes) == world.names
    if option == "chdir":
        assert "/\\xff\\xed\\xa0\\x80/" in fleet.jobs[job].stdout


async def test_an_exit_code_is_told_apart_from_a_signal(world: World) -> None:
    failed, killed = world.submit("fail"), world.submit("signal")
    first = await world.job(failed, lambda job: job.state == "failed")
    second = await world.job(killed, lambda job: job.state == "failed")
    assert (first.exit_code, first.exit_signal) == (3, 0)
    assert (second.exit_code, second.exit_signal) == (0, 9)
    assert first.ended_at is not None and not first.held


async def test_what_is_not_there_is_none(world: World) -> None:
    assert await world.reader.node("nowhere") is None
    assert await world.reader.node("n1 n2") is None
    assert await world.reader.job(NO_JOB) is None


async def test_version_is_a_release(world: World) -> None:
    assert re.match(r"\d\d\.\d\d\.\d", await world.reader.version())


async def test_slurmctld_says_when_it_was_started(world: World) -> None:
    booted = await world.reader.booted_at()
    assert booted is not None and booted <= (await world.reader.fleet()).at


async def test_a_frozen_controller_is_not_known_and_passes(world: World) -> None:
    job = world.submit()
    await world.job(job, running)
    async with world.frozen():
        with pytest.raises(Unavailable):
            await world.reader.fleet()
        with pytest.raises(Unavailable):
            await world.reader.job(job)
        with pytest.raises(Unavailable):
            await world.writer.drain(world.names[0], "sentinel: i1")
    await world.job(job, running)
    assert (await world.reader.fleet()).nodes[world.names[0]].reason == ""


# -- nodes --------------------------------------------------------------------------------------------------------------


async def test_drain_and_undrain_twice_each(world: World) -> None:
    node = world.names[1]
    for _ in range(2):
        await world.writer.drain(node, "sentinel: i42 Xid 79 on GPU 3\nsecond line")
    seen = await world.node(node, lambda seen: seen.drained)
    assert seen.reason == "sentinel: i42 Xid 79 on GPU 3 second line"
    assert not seen.usable
    for _ in range(2):
        await world.writer.undrain(node)
    seen = await world.node(node, lambda seen: seen.usable)
    assert not seen.drained


async def test_the_reason_of_a_drain_of_ours_is_replaced_where_that_is_asked_for(world: World) -> None:
    node = world.names[1]
    await world.writer.drain(node, "sentinel: i42 Xid 79")
    await world.writer.drain(node, "sentinel:root: fan broken", replace=True)
    seen = await world.node(node, lambda seen: seen.reason != "sentinel: i42 Xid 79")
    assert seen.drained and seen.reason == "sentinel:root: fan broken"


async def test_a_running_job_outlives_the_drain_of_its_node(world: World) -> None:
    job = world.submit()
    node = (await world.job(job, running)).nodes[0]
    await world.writer.drain(node, "sentinel: i42")
    assert (await world.node(node, lambda seen: seen.drained)).state in {"allocated", "mixed"}
    await world.job(job, running)


async def test_somebody_elses_drain_stays_theirs(world: World) -> None:
    node = world.names[2]
    world.person_drains(node, "cable is being replaced")
    with pytest.raises(Refused, match="cable is being replaced"):
        await world.writer.drain(node, "sentinel: i42")
    with pytest.raises(Refused, match="cable is being replaced"):
        await world.writer.drain(node, "sentinel:root: mine", replace=True)
    with pytest.raises(Refused, match="cable is being replaced"):
        await world.writer.undrain(node)
    assert (await world.node(node, lambda seen: seen.drained)).reason == "cable is being replaced"


async def test_down_of_somebody_elses_drain_keeps_their_reason(world: World) -> None:
    node = world.names[2]
    world.person_drains(node, "cable is being replaced")
    world.lose(node)
    await world.writer.down(node, "sentinel: i42 lost")
    seen = await world.node(node, lambda seen: seen.state == "down")
    assert seen.drained and seen.reason == "cable is being replaced"
    with pytest.raises(Refused):
        await world.writer.undrain(node)


async def test_unknown_nodes_are_refused(world: World) -> None:
    for verb in (world.writer.drain, world.writer.down):
        with pytest.raises(Refused, match="nowhere"):
            await verb("nowhere", "sentinel: i42")
    with pytest.raises(Refused, match="nowhere"):
        await world.writer.undrain("nowhere")


async def test_down_ends_the_jobs_of_a_lost_node_and_keeps_it_out(world: World) -> None:
    job = world.submit(nodes=2)
    node = (await world.job(job, running)).nodes[1]
    world.lose(node)
    for _ in range(2):
        await world.writer.down(node, "sentinel: i42 lost")
    seen = await world.node(node, lambda seen: seen.state == "down")
    assert seen.drained and seen.reason == "sentinel: i42 lost"
    back = await world.job(job, waiting)
    assert back.restarts == 1 and not back.held
    world.revive(node)
    seen = await world.node(node, lambda seen: "not_responding" not in seen.flags)
    assert seen.drained and not seen.usable and seen.reason == "sentinel: i42 lost"
    await world.writer.undrain(node)
    await world.node(node, lambda seen: seen.usable)


async def test_down_frees_a_job_that_completes_on_a_lost_node(world: World) -> None:
    job = world.submit(nodes=2)
    node = (await world.job(job, running)).nodes[1]
    world.lose(node)
    await world.writer.requeue_hold(job)
    await world.writer.down(node, "sentinel: i42 lost")
    assert (await world.job(job, waits_held)).restarts == 1


async def test_a_job_that_completes_on_a_lost_node_keeps_its_times_over_the_requeue(world: World) -> None:
    """So the time of its submission does not tell one requeue from the next."""
    job = world.submit()
    first = await world.job(job, running)
    if isinstance(world, FakeWorld):
        world.slurm.times = SlurmTimes(epilog_s=1.0)
        world.slurm.clock.advance(2.0)
    else:
        await asyncio.sleep(2.0)  # Slurm counts whole seconds
    world.lose(first.nodes[0])
    await world.writer.requeue_hold(job)
    await world.writer.down(first.nodes[0], "sentinel: i42 lost")
    back = await world.job(job, waits_held)
    assert back.restarts == 1 and back.requeue_held and back.submitted_at == first.submitted_at


# -- jobs ---------------------------------------------------------------------------------------------------------------


async def test_restart_on_other_nodes_without_the_wait(world: World) -> None:
    job = world.submit(nodes=2, excluded=world.names[3], stdout="/tmp/%j.sentinel-contract")
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


async def test_only_slurms_own_words_for_a_refused_node_are_replaced(world: World) -> None:
    name = world.names[1]
    world.person_drains(name, "Prolog error")
    await world.node(name, lambda node: node.reason == "Prolog error")
    await world.writer.explain(name, "sentinel:ab12 gpu_lost: GPU 1 is lost")
    await world.writer.explain(name, "sentinel:ab12 something else")
    assert (await world.node(name, lambda node: node.drained)).reason == "sentinel:ab12 gpu_lost: GPU 1 is lost"
    with pytest.raises(Refused):
        await world.writer.explain(world.names[2], "sentinel:ab12 it is in service")


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
