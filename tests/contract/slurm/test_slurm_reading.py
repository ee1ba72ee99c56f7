"""One suite for every implementation of SlurmReader: what is told of a cluster, its nodes and jobs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from servers.slurm_worlds import RealWorld, World, running, waits_held

from sentinel.errors import Refused, Unavailable
from sentinel.text import text_of

NO_JOB = 60_000_001


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
    job = world.submit(name=name, comment=f"c={name} NodeList=n9")
    fleet = await world.reader.fleet()
    seen = await world.job(job, running)
    assert seen.name == name
    assert seen.comment == f"c={name} NodeList=n9"
    assert fleet.jobs.keys() - before.keys() == {job}
    assert fleet.jobs[job].state in {"pending", "running"}
    assert set(seen.nodes) <= set(world.names)


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
    job = world.submit(name=words, comment=f"c={words}")
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
