"""Our own deafness: agents that are not heard, a daemon that stood still. Healthy jobs are left alone, hangs found later."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.deaf_world import Deaf
from in_memory.watch import Ports
from in_memory.world import World

from sentinel.daemon.effects import perform
from sentinel.model.records import Kind

Worlds = Callable[..., World]
JOBS = 10
SHARES = {"one": 2, "half": JOBS, "all": 2 * JOBS}  # nodes, of which each job has two


@pytest.fixture
def cluster(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Deaf]:
    """Twenty nodes whose slurmd answers all the while."""
    monkeypatch.setattr(perform, "slurmd_answers", Ports())
    return lambda **how: Deaf(world(nodes=2 * JOBS, wide=2), jobs=JOBS, **how)


def untouched(cluster: Deaf) -> None:
    assert cluster.scene.reported == [] and cluster.world.slurm.calls == []
    assert cluster.scene.daemon.bugs() == 0.0


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("for_s", [1.0, 5.0, 25.0, 120.0, 600.0])
async def test_healthy_jobs_whose_agents_are_not_heard_for_a_while(
    cluster: Callable[..., Deaf], for_s: float, share: str
) -> None:
    """Whatever their processes look like: between two steps they may well seem only to wait."""
    there = cluster()
    there.orders.moves = for_s == 25.0
    await there.run(40.0)
    await there.run(for_s, unheard=there.nodes[: SHARES[share]])
    await there.run(60.0)
    untouched(there)
    assert all(there.scene.live.last_step(t.job, 0) == t.step for t in there.jobs), "the backlog came in"


@pytest.mark.parametrize("share", SHARES)
async def test_cut_off_again_and_again(cluster: Callable[..., Deaf], share: str) -> None:
    there = cluster()
    there.orders.moves = False
    await there.run(40.0)
    for for_s in (8.0, 13.0, 3.0, 30.0, 14.0):
        await there.run(for_s, unheard=there.nodes[: SHARES[share]])
        await there.run(for_s / 2)
    untouched(there)


@pytest.mark.parametrize("for_s", [6.0, 30.0, 300.0])
@pytest.mark.parametrize("moves", [True, False], ids=["move", "wait"])
async def test_daemon_that_stood_still(cluster: Callable[..., Deaf], for_s: float, moves: bool) -> None:
    """SIGSTOP: when it goes on, the first thing it finds is heartbeats that are as old."""
    there = cluster()
    there.orders.moves = moves
    await there.run(40.0)
    await there.run(for_s, daemon=False)
    await there.run(60.0)
    untouched(there)
    assert "the daemon stood still for" in there.scene.daemon.said
    assert "silence-judged" in there.scene.daemon.said.rpartition("silence-not-judged")[2]


async def test_first_pause_that_falls_into_a_cut_is_no_hang(cluster: Callable[..., Deaf]) -> None:
    there = cluster()
    await there.run(40.0)
    for training in there.jobs:
        training.still = (there.now_s + 5.0, there.now_s + 50.0)
    await there.run(25.0, unheard=there.nodes[: SHARES["half"]])
    await there.run(90.0)
    untouched(there)


@pytest.mark.parametrize("share", SHARES)
async def test_true_hang_that_began_in_a_cut_is_found_soon_after_it(cluster: Callable[..., Deaf], share: str) -> None:
    there = cluster()
    await there.run(40.0)
    there.jobs[0].still = (there.now_s + 2.0, float("inf"))
    await there.run(25.0, unheard=there.nodes[: SHARES[share]])
    there.orders.moves = False
    await there.run(25.0)
    stalls = [item.where.job for item in there.scene.reported if item.kind == Kind.STALL]
    assert stalls == [there.jobs[0].job]


async def test_true_hang_while_all_are_in_contact_is_found_at_the_floor(cluster: Callable[..., Deaf]) -> None:
    there = cluster()
    there.orders.moves = False
    await there.run(40.0)
    began_s = there.now_s
    there.jobs[7].still = (began_s, float("inf"))
    while not there.scene.reported:
        await there.run(0.25)
        assert there.now_s - began_s < 15.0, "the floor is 12 s, a heartbeat comes every 2 s at least"
    assert there.scene.reported[0].where.job == there.jobs[7].job


async def test_agent_that_says_nothing_of_its_logs_leaves_them_unobserved_and_that_is_said_once(
    cluster: Callable[..., Deaf], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier release: its job is neither silent nor healthy, it is not known."""
    there = cluster()
    there.orders.moves = False
    await there.run(40.0)
    old = next(agent for agent in there.agents if agent.training is there.jobs[3])
    monkeypatch.setattr(old, "heartbeat", lambda _now_s: {})
    there.jobs[3].still = (there.now_s, float("inf"))
    await there.run(300.0)
    untouched(there)
    assert there.scene.daemon.said.count(f"log-not-observed job={there.jobs[3].job}") == 1


async def test_evidence_that_waits_in_a_spool_is_no_silence(cluster: Callable[..., Deaf]) -> None:
    """Heartbeats and orders get through, evidence does not: a store that cannot write acknowledges nothing."""
    there = cluster()
    there.orders.moves = False
    await there.run(40.0)
    note, there.scene.live.note = there.scene.live.note, lambda _item: None  # type: ignore[method-assign]
    taken = [agent.acknowledged for agent in there.agents]
    for _ in range(240):
        await there.run(0.25)
        for agent, before in zip(there.agents, taken, strict=True):
            agent.acknowledged = before
    there.scene.live.note = note  # type: ignore[method-assign]
    await there.run(30.0)
    untouched(there)
