"""Silence of nodes: asked about, never taken for proof, and never a fault of all of them at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from core_records import fleet, node
from core_watch import Ports, Scene, Seconds
from core_world import World

from sentinel.daemon import watch
from sentinel.daemon.probe import slurmd_answers
from sentinel.model import Kind, NodeView, Source

Worlds = Callable[..., World]
Open = Callable[..., Awaitable[Scene]]


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    made = Seconds()
    monkeypatch.setattr(watch, "time", made)
    return made


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Ports:
    made = Ports()
    monkeypatch.setattr(watch, "slurmd_answers", made)
    return made


@pytest.fixture
def opened(world: Worlds, seconds: Seconds, ports: Ports) -> Open:
    """Four nodes, heard just now; the job runs on n1 and n2."""

    async def make() -> Scene:
        scene = Scene(world())
        await scene.fleets.take()
        for name in scene.world.slurm.nodes:
            scene.watch.heard(name)
        return scene

    return make


async def pass_s(scene: Scene, seconds: Seconds, span_s: float, *heard: str) -> None:
    """Time passes in looks of a quarter second; the agents named are heard at each."""
    for _ in range(round(span_s / 0.25)):
        seconds.now_s += 0.25
        for name in heard:
            scene.watch.heard(name)
        scene.watch._look_at_nodes()
        await scene.daemon.quiet()


def state(scene: Scene) -> dict[str, str]:
    return {name: seen.state for name, seen in scene.live.nodes.items()}


async def test_lost_node_is_reported_once_with_what_its_port_said(opened: Open, seconds: Seconds, ports: Ports) -> None:
    scene = await opened()
    ports.answers["n1"] = "Connection refused"
    await pass_s(scene, seconds, 20.0, "n2", "n3", "n4")
    (item,) = scene.reported
    assert (item.kind, item.source, item.where.node) == (Kind.NODE_UNREACHABLE, Source.PROBE, "n1")
    assert item.data == {"attempts": 3, "silent_nodes": 1, "job_on_it": scene.world.job}
    assert "127.0.0.1:17001" in item.text and item.text.count("Connection refused") == 3
    assert state(scene) == {"n1": "unreachable", "n2": "heard", "n3": "heard", "n4": "heard"}
    assert "node-unreachable node=n1" in scene.daemon.said


async def test_patience_is_the_setting(opened: Open, seconds: Seconds, ports: Ports) -> None:
    scene = await opened()
    await pass_s(scene, seconds, 6.0, "n2", "n3", "n4")
    assert ports.asked == [] and state(scene)["n1"] == "heard"
    await pass_s(scene, seconds, 0.25, "n2", "n3", "n4")
    assert ports.asked == ["n1"] and state(scene)["n1"] == "silent"
    assert scene.daemon.telemetry.registry.get_sample_value("sentinel_agents_connected") == 3.0


async def test_silent_agent_of_a_node_whoseslurmd_answers_is_no_fault(
    opened: Open, seconds: Seconds, ports: Ports
) -> None:
    scene = await opened()
    await pass_s(scene, seconds, 60.0, "n2", "n3", "n4")
    assert scene.reported == [] and state(scene)["n1"] == "silent"


async def test_node_whose_agent_died_first_is_still_found_lost(opened: Open, seconds: Seconds, ports: Ports) -> None:
    """The port answered when the agent fell silent; later the node goes too, and nothing but the port can tell."""
    scene = await opened()
    await pass_s(scene, seconds, 30.0, "n2", "n3", "n4")
    ports.answers["n1"] = "no answer"
    await pass_s(scene, seconds, 10.0, "n2", "n3", "n4")
    assert scene.kinds == [Kind.NODE_UNREACHABLE]


async def test_silent_node_is_not_asked_at_every_look(opened: Open, seconds: Seconds, ports: Ports) -> None:
    scene = await opened()
    await pass_s(scene, seconds, 60.0, "n2", "n3", "n4")
    assert 2 <= len(ports.asked) <= 60 / 6.0


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_one_answer_among_refusals_is_an_answer(
    opened: Open, seconds: Seconds, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    scene = await opened()
    asked = 0

    async def answers(view: NodeView, _deadline_s: float) -> str | None:
        nonlocal asked
        asked += 1
        return None if asked > after else "Connection refused"

    monkeypatch.setattr(watch, "slurmd_answers", answers)
    await pass_s(scene, seconds, 7.0, "n2", "n3", "n4")
    assert scene.reported == [] and asked == after + 1


async def test_agent_heard_during_the_probe_ends_it(
    opened: Open, seconds: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await opened()

    async def answers(view: NodeView, _deadline_s: float) -> str | None:
        seconds.now_s += 1.0
        scene.watch.heard("n1")
        return "no answer"

    monkeypatch.setattr(watch, "slurmd_answers", answers)
    await pass_s(scene, seconds, 7.0, "n2", "n3", "n4")
    assert scene.reported == [] and state(scene)["n1"] == "heard"


async def test_all_nodes_silent_is_more_likely_our_own_network(opened: Open, seconds: Seconds, ports: Ports) -> None:
    scene = await opened()
    ports.answers.update(dict.fromkeys(scene.world.slurm.nodes, "no answer"))
    await pass_s(scene, seconds, 30.0)
    assert scene.reported == [] and scene.daemon.said.count("all-nodes-silent") == 1
    assert len(ports.asked) == 3 * 4  # in the dark nothing is learned by asking again
    assert set(state(scene).values()) == {"silent"}


async def test_node_that_did_not_come_back_with_the_others_is_lost(
    opened: Open, seconds: Seconds, ports: Ports
) -> None:
    scene = await opened()
    ports.answers.update(dict.fromkeys(scene.world.slurm.nodes, "no answer"))
    await pass_s(scene, seconds, 30.0)
    ports.answers = {"n3": "no answer"}
    await pass_s(scene, seconds, 20.0, "n1", "n2", "n4")
    assert [(item.kind, item.where.node) for item in scene.reported] == [(Kind.NODE_UNREACHABLE, "n3")]


async def test_nodes_that_come_back_a_little_later_than_the_first_are_not_lost(
    opened: Open, seconds: Seconds, ports: Ports
) -> None:
    scene = await opened()
    ports.answers.update(dict.fromkeys(scene.world.slurm.nodes, "no answer"))
    await pass_s(scene, seconds, 30.0)
    await pass_s(scene, seconds, 5.0, "n1")
    await pass_s(scene, seconds, 20.0, "n1", "n2", "n3", "n4")
    assert scene.reported == [] and set(state(scene).values()) == {"heard"}


async def test_probe_that_began_while_all_were_silent_convicts_nobody(
    opened: Open, seconds: Seconds, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first agent that is heard again must not make the others, which were asked in the dark, look lost."""
    scene = await opened()

    async def answers(view: NodeView, _deadline_s: float) -> str | None:
        asked.append(view.name)
        if len(asked) > 2 * len(scene.live.nodes):
            scene.watch.heard("n1")  # the network is back, for one of them a moment sooner
        return "no answer"

    asked: list[str] = []
    monkeypatch.setattr(watch, "slurmd_answers", answers)
    await pass_s(scene, seconds, 6.5)
    assert scene.reported == [] and len(asked) > 2 * len(scene.live.nodes)


async def test_two_nodes_of_two_may_both_be_lost(world: Worlds, seconds: Seconds, ports: Ports) -> None:
    """Two are too few to tell their silence from ours."""
    scene = Scene(world(nodes=2))
    await scene.fleets.take()
    ports.answers = {"n1": "no answer", "n2": "no answer"}
    await pass_s(scene, seconds, 10.0)
    assert {item.where.node for item in scene.reported} == {"n1", "n2"}


async def test_node_that_carries_a_job_is_expected_although_never_heard(
    world: Worlds, seconds: Seconds, ports: Ports
) -> None:
    scene = Scene(world())
    await scene.fleets.take()
    scene.watch.heard("n2")
    ports.answers = {"n1": "Connection refused", "n3": "Connection refused"}
    await pass_s(scene, seconds, 10.0, "n2")
    assert [item.where.node for item in scene.reported] == ["n1"]  # n3 has neither a job nor an agent that ever spoke


async def test_lost_connection_is_asked_about_at_once(opened: Open, seconds: Seconds, ports: Ports) -> None:
    scene = await opened()
    ports.answers = {"n1": "Connection refused"}
    scene.watch.lost_connection("n1")
    scene.watch.lost_connection("n1")
    await scene.daemon.quiet()
    assert scene.kinds == [Kind.NODE_UNREACHABLE] and ports.asked == ["n1"] * 3
    scene.watch.lost_connection("n1")  # known already
    await scene.daemon.quiet()
    assert len(scene.reported) == 1


async def test_restarted_agent_breaks_its_connection_and_is_no_fault(
    opened: Open, seconds: Seconds, ports: Ports
) -> None:
    scene = await opened()
    scene.watch.lost_connection("n1")
    await scene.daemon.quiet()
    assert scene.reported == [] and ports.asked == ["n1"] and state(scene)["n1"] == "heard"


async def test_drained_node_that_falls_silent_is_nobodys_news(opened: Open, seconds: Seconds, ports: Ports) -> None:
    scene = await opened()
    scene.world.slurm.person_drains("n4", "a person")
    await scene.fleets.take()
    ports.answers = {"n4": "no answer"}
    await pass_s(scene, seconds, 10.0, "n1", "n2", "n3")
    assert scene.reported == [] and state(scene)["n4"] == "unreachable"


async def test_node_that_is_heard_again_may_be_lost_again(opened: Open, seconds: Seconds, ports: Ports) -> None:
    scene = await opened()
    ports.answers = {"n1": "no answer"}
    await pass_s(scene, seconds, 10.0, "n2", "n3", "n4")
    scene.watch.heard("n1")
    assert "node-heard node=n1 before=unreachable" in scene.daemon.said
    await pass_s(scene, seconds, 10.0, "n2", "n3", "n4")
    assert len(scene.reported) == 2 and len({item.id for item in scene.reported}) == 2


async def test_node_that_slurm_does_not_know_is_not_probed(opened: Open, seconds: Seconds, ports: Ports) -> None:
    scene = await opened()
    scene.watch.heard("elsewhere")
    scene.live.fleet = fleet([node("n1", port=None), node("n2"), node("n3"), node("n4")])
    await pass_s(scene, seconds, 10.0, "n2", "n3", "n4")
    assert ports.asked == [] and scene.reported == []


# --- news of jobs ------------------------------------------------------------------------------------------------------


async def test_attempt_not_heard_of_is_worth_a_look_once_a_second(opened: Open, seconds: Seconds) -> None:
    scene = await opened()
    new = scene.world.slurm.submit(nodes=2)
    said = [{"job": new, "attempt": 0}]
    scene.watch.runs("n3", said)
    await scene.daemon.quiet()
    assert scene.live.nodes_of(new, 0) == ("n3", "n4")
    looks: list[None] = []
    scene.watch.reconcile = lambda: _count(looks)  # type: ignore[method-assign]
    scene.watch.runs("n3", said)  # known by now
    scene.watch.runs("n1", said)  # not there: but a look was just taken
    await scene.daemon.quiet()
    assert looks == []
    seconds.now_s += 1.0
    scene.watch.runs("n1", said)
    await scene.daemon.quiet()
    assert len(looks) == 1


async def _count(looks: list[None]) -> None:
    looks.append(None)


@pytest.mark.parametrize("said", [None, "101", [], [7], [{}], [{"job": [], "attempt": {}}], [{"job": "x"}], {"job": 1}])
async def test_torn_list_of_jobs_breaks_nothing(opened: Open, seconds: Seconds, said: object) -> None:
    scene = await opened()
    scene.watch.runs("n1", said)
    await scene.daemon.quiet()
    assert scene.reported == []


# --- the loop and the port ---------------------------------------------------------------------------------------------


async def test_loop_survives_a_bug_and_counts_it(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await opened()
    rounds: list[float] = []

    async def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            raise asyncio.CancelledError

    def broken() -> None:
        raise ZeroDivisionError("deliberate")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(scene.watch, "_look_at_nodes", broken)
    with pytest.raises(asyncio.CancelledError):
        await scene.watch.nodes_forever()
    assert scene.daemon.bugs() == 3.0 and scene.daemon.said.count("bug where=watch-nodes") == 3


async def test_port_that_listens_and_port_that_does_not() -> None:
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await slurmd_answers(node("n1", port=port), 30.0) is None
    server.close()
    await server.wait_closed()
    assert await slurmd_answers(node("n1", port=port), 30.0) == "Connection refused"


async def test_port_that_says_nothing_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_where: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", never)
    assert await slurmd_answers(node("n1"), 0.0) == "no answer"


async def test_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_where: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio, "open_connection", unknown)
    assert await slurmd_answers(node("n1"), 30.0) == "Name or service not known"


async def test_while_the_daemon_is_late_itself_silence_is_not_the_nodes(opened: Open, seconds: Seconds) -> None:
    scene = await opened()
    scene.watch.waited(4.0)  # a request waited so long before we knew who asked
    await pass_s(scene, seconds, 7.0, "n1", "n2", "n3")
    assert state(scene)["n4"] == "heard", "its heartbeat may be waiting for us"
    await pass_s(scene, seconds, 8.0, "n1", "n2", "n3")
    assert state(scene)["n4"] == "silent", "no excuse for ever"


async def test_a_look_that_comes_late_excuses_as_well(opened: Open, seconds: Seconds) -> None:
    scene = await opened()
    await pass_s(scene, seconds, 1.0, *scene.world.slurm.nodes)
    seconds.now_s += 20.0  # the process stood still
    scene.watch._look_at_nodes()
    assert set(state(scene).values()) == {"heard"}
