"""Silence of nodes: asked about, never taken for proof, and never a fault of all of them at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from in_memory.daemon import SETTINGS
from in_memory.watch import Ports, Scene
from in_memory.world import World
from made_records import AT, fleet, node

from sentinel.daemon.effects import perform
from sentinel.detect.visibility import is_sufficient
from sentinel.engine.events import EffectCompleted, SlurmReported
from sentinel.engine.transition import ObserveFleet, Transition
from sentinel.engine.watch import nodes, reconciliation
from sentinel.engine.watch.events import ConnectionLost, HeartbeatReceived, NodeProbed, RequestDelayed
from sentinel.errors import Unavailable
from sentinel.model.records import Kind, NodeView, Source
from sentinel.simulate.slurm.records import SlurmTimes

Worlds = Callable[..., World]
Open = Callable[..., Awaitable[Scene]]


def state(scene: Scene) -> dict[str, str]:
    return {name: seen.state for name, seen in scene.live.nodes.items()}


async def test_lost_node_is_reported_once_with_what_its_port_said(opened: Open, ports: Ports) -> None:
    scene = await opened()
    ports.answers["n1"] = "Connection refused"
    await scene.pass_s(20.0, "n2", "n3", "n4")
    (item,) = scene.reported
    assert (item.kind, item.source, item.where.node) == (Kind.NODE_UNREACHABLE, Source.PROBE, "n1")
    assert item.data == {"attempts": 3, "silent_nodes": 1, "job_on_it": scene.world.job}
    assert "127.0.0.1:17001" in item.text and item.text.endswith(": Connection refused (3 times)")
    assert state(scene) == {"n1": "unreachable", "n2": "heard", "n3": "heard", "n4": "heard"}
    assert "node-unreachable node=n1" in scene.daemon.said


@pytest.mark.parametrize("why", ["maintenance", "rebooting"])
async def test_silence_that_people_asked_for_says_nothing_until_it_is_over(
    opened: Open, ports: Ports, why: str
) -> None:
    scene = await opened()
    ports.answers["n1"] = "Connection refused"
    setattr(scene.world.slurm.nodes["n1"], why, True)
    await scene.look()
    await scene.pass_s(30.0, "n2", "n3", "n4")
    assert scene.reported == [] and state(scene)["n1"] == "silent"
    setattr(scene.world.slurm.nodes["n1"], why, False)
    await scene.look()
    await scene.pass_s(30.0, "n2", "n3", "n4")
    assert [item.where.node for item in scene.reported] == ["n1"]


@pytest.mark.parametrize("power", ["POWERING_DOWN", "POWERED_DOWN", "POWERING_UP"])
async def test_a_node_that_slurm_has_switched_off_is_not_lost_and_not_asked_before_it_is_back(
    opened: Open, ports: Ports, power: str
) -> None:
    """SuspendProgram and ResumeProgram: no agent and no slurmd is there, as is to be expected."""
    scene = await opened()
    ports.answers["n3"] = "Connection refused"
    scene.world.slurm.nodes["n3"].power = power
    await scene.look()
    await scene.pass_s(60.0, "n1", "n2", "n4")
    assert scene.reported == [] and "n3" not in ports.asked
    assert scene.daemon.said.count("node=n3") == 2, "heard, and once that it fell silent"
    scene.world.slurm.nodes["n3"].power = ""
    await scene.look()
    await scene.pass_s(30.0, "n1", "n2", "n4")
    assert [item.where.node for item in scene.reported] == ["n3"]


async def test_a_node_that_is_to_be_switched_off_after_its_job_is_found_lost(opened: Open, ports: Ports) -> None:
    scene = await opened()
    ports.answers["n1"] = "Connection refused"
    scene.world.slurm.nodes["n1"].power = "POWER_DOWN"
    await scene.look()
    await scene.pass_s(20.0, "n2", "n3", "n4")
    assert [item.where.node for item in scene.reported] == ["n1"]


async def test_patience_is_the_setting(opened: Open, ports: Ports) -> None:
    scene = await opened()
    await scene.pass_s(6.0, "n2", "n3", "n4")
    assert ports.asked == [] and state(scene)["n1"] == "heard"
    await scene.pass_s(0.25, "n2", "n3", "n4")
    assert ports.asked == ["n1"] and state(scene)["n1"] == "silent"
    assert scene.daemon.telemetry.registry.get_sample_value("sentinel_agents_connected") == 3.0


async def test_silent_agent_of_a_node_whoseslurmd_answers_is_no_fault(opened: Open, ports: Ports) -> None:
    scene = await opened()
    await scene.pass_s(60.0, "n2", "n3", "n4")
    assert scene.reported == [] and state(scene)["n1"] == "silent"


async def test_node_whose_agent_died_first_is_still_found_lost(opened: Open, ports: Ports) -> None:
    """The port answered when the agent fell silent; later the node goes too, and nothing but the port can tell."""
    scene = await opened()
    await scene.pass_s(30.0, "n2", "n3", "n4")
    ports.answers["n1"] = "no answer"
    await scene.pass_s(10.0, "n2", "n3", "n4")
    assert scene.kinds == [Kind.NODE_UNREACHABLE]


async def test_node_that_only_a_completing_job_holds_is_found_lost_by_a_daemon_that_never_heard_it(
    world: Worlds, ports: Ports
) -> None:
    """Slurm lists the job as completing until the node is set down: nobody else would look there."""
    scene = Scene(world())
    slurm = scene.world.slurm
    slurm.times = SlurmTimes(epilog_s=1.0)
    slurm.lose("n2")
    slurm.end(scene.world.job, exit_code=1)
    ports.answers["n2"] = "no answer"
    await scene.advance(5.0)
    await scene.fleets.take()
    assert slurm.jobs[scene.world.job].completing
    scene.hear("n1", "n3", "n4")
    await scene.pass_s(20.0, "n1", "n3", "n4")
    assert [(item.kind, item.where.node) for item in scene.reported] == [(Kind.NODE_UNREACHABLE, "n2")]


async def test_silent_node_is_not_asked_at_every_look(opened: Open, ports: Ports) -> None:
    scene = await opened()
    await scene.pass_s(60.0, "n2", "n3", "n4")
    assert 2 <= len(ports.asked) <= 60 / 6.0


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_one_answer_among_refusals_is_an_answer(
    opened: Open, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    scene = await opened()
    asked = 0

    async def answers(view: NodeView, _deadline_s: float) -> str | None:
        nonlocal asked
        asked += 1
        return None if asked > after else "Connection refused"

    monkeypatch.setattr(perform, "slurmd_answers", answers)
    await scene.pass_s(7.0, "n2", "n3", "n4")
    assert scene.reported == [] and asked == after + 1


async def test_that_many_are_silent_costs_each_of_them_no_look_at_all_others(
    opened: Open, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands fall silent at once when our own network is cut, or when this daemon has just taken over."""
    scene = await opened()
    looks: list[int] = []
    look = nodes._silent
    monkeypatch.setattr(nodes, "_silent", lambda state: (looks.append(1), look(state))[1])
    ports.answers.update(dict.fromkeys(scene.world.slurm.nodes, "no answer"))
    await scene.pass_s(30.0)
    assert scene.daemon.said.count("all-nodes-silent") == 1
    checks = [line for line in scene.daemon.said.splitlines() if " node-silent " in line]
    assert len(checks) == len(scene.world.slurm.nodes)
    assert len(looks) == 2  # when they fell silent, and for the one line in the log


async def test_agent_heard_during_the_probe_ends_it(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = await opened()

    async def answers(view: NodeView, _deadline_s: float) -> str | None:
        scene.world.slurm.clock.advance(1.0)
        scene.hear("n1")
        return "no answer"

    monkeypatch.setattr(perform, "slurmd_answers", answers)
    await scene.pass_s(7.0, "n2", "n3", "n4")
    assert scene.reported == [] and state(scene)["n1"] == "heard"


async def test_all_nodes_silent_is_more_likely_our_own_network(opened: Open, ports: Ports) -> None:
    scene = await opened()
    ports.answers.update(dict.fromkeys(scene.world.slurm.nodes, "no answer"))
    await scene.pass_s(30.0)
    assert scene.reported == [] and scene.daemon.said.count("all-nodes-silent") == 1
    assert len(ports.asked) == 3 * 4  # in the dark nothing is learned by asking again
    assert set(state(scene).values()) == {"silent"}


async def test_node_that_did_not_come_back_with_the_others_is_lost(opened: Open, ports: Ports) -> None:
    scene = await opened()
    ports.answers.update(dict.fromkeys(scene.world.slurm.nodes, "no answer"))
    await scene.pass_s(30.0)
    ports.answers = {"n3": "no answer"}
    await scene.pass_s(20.0, "n1", "n2", "n4")
    assert [(item.kind, item.where.node) for item in scene.reported] == [(Kind.NODE_UNREACHABLE, "n3")]


async def test_nodes_that_come_back_a_little_later_than_the_first_are_not_lost(opened: Open, ports: Ports) -> None:
    scene = await opened()
    ports.answers.update(dict.fromkeys(scene.world.slurm.nodes, "no answer"))
    await scene.pass_s(30.0)
    await scene.pass_s(5.0, "n1")
    await scene.pass_s(20.0, "n1", "n2", "n3", "n4")
    assert scene.reported == [] and set(state(scene).values()) == {"heard"}


async def test_probe_that_began_while_all_were_silent_convicts_nobody(
    opened: Open, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first agent that is heard again must not make the others, which were asked in the dark, look lost."""
    scene = await opened()

    async def answers(view: NodeView, _deadline_s: float) -> str | None:
        asked.append(view.name)
        if len(asked) > 2 * len(scene.live.nodes):
            scene.hear("n1")  # the network is back, for one of them a moment sooner
        return "no answer"

    asked: list[str] = []
    monkeypatch.setattr(perform, "slurmd_answers", answers)
    await scene.pass_s(7.5)
    assert scene.reported == [] and len(asked) > 2 * len(scene.live.nodes)


async def test_two_nodes_of_two_may_both_be_lost(world: Worlds, ports: Ports) -> None:
    """Two are too few to tell their silence from ours."""
    scene = Scene(world(nodes=2))
    await scene.fleets.take()
    ports.answers = {"n1": "no answer", "n2": "no answer"}
    await scene.pass_s(10.0)
    assert {item.where.node for item in scene.reported} == {"n1", "n2"}


async def test_node_that_carries_a_job_is_expected_although_never_heard(world: Worlds, ports: Ports) -> None:
    scene = Scene(world())
    await scene.fleets.take()
    scene.hear("n2")
    ports.answers = {"n1": "Connection refused", "n3": "Connection refused"}
    await scene.pass_s(10.0, "n2")
    assert [item.where.node for item in scene.reported] == ["n1"]  # n3 has neither a job nor an agent that ever spoke


async def test_lost_connection_is_asked_about_at_once(opened: Open, ports: Ports) -> None:
    scene = await opened()
    ports.answers = {"n1": "Connection refused"}
    scene.apply(ConnectionLost(scene.now, "n1"))
    scene.apply(ConnectionLost(scene.now, "n1"))
    await scene.settle()
    assert scene.kinds == [Kind.NODE_UNREACHABLE] and ports.asked == ["n1"] * 3
    scene.apply(ConnectionLost(scene.now, "n1"))  # known already
    await scene.settle()
    assert len(scene.reported) == 1


async def test_restarted_agent_breaks_its_connection_and_is_no_fault(opened: Open, ports: Ports) -> None:
    scene = await opened()
    scene.apply(ConnectionLost(scene.now, "n1"))
    await scene.settle()
    assert scene.reported == [] and ports.asked == ["n1"] and state(scene)["n1"] == "heard"


async def test_drained_node_that_falls_silent_is_nobodys_news(opened: Open, ports: Ports) -> None:
    scene = await opened()
    scene.world.slurm.person_drains("n4", "a person")
    await scene.reconcile()
    ports.answers = {"n4": "no answer"}
    await scene.pass_s(10.0, "n1", "n2", "n3")
    assert scene.reported == [] and state(scene)["n4"] == "unreachable"


async def test_node_that_is_heard_again_may_be_lost_again(opened: Open, ports: Ports) -> None:
    scene = await opened()
    ports.answers = {"n1": "no answer"}
    await scene.pass_s(10.0, "n2", "n3", "n4")
    scene.hear("n1")
    assert "node-heard node=n1 before=unreachable" in scene.daemon.said
    await scene.pass_s(10.0, "n2", "n3", "n4")
    assert len(scene.reported) == 2 and len({item.id for item in scene.reported}) == 2


async def test_node_that_slurm_does_not_know_is_not_probed(opened: Open, ports: Ports) -> None:
    scene = await opened()
    scene.hear("elsewhere")
    scene.live.fleet = fleet([node("n1", port=None), node("n2"), node("n3"), node("n4")])
    await scene.pass_s(10.0, "n2", "n3", "n4")
    assert ports.asked == [] and scene.reported == []


# --- news of jobs ------------------------------------------------------------------------------------------------------


async def test_attempt_not_heard_of_is_worth_a_look_once_a_second(opened: Open) -> None:
    scene = await opened()
    new = scene.world.slurm.submit(nodes=2)
    said = {"jobs": [{"job": new, "attempt": 0}]}
    await scene.advance(1.0)
    scene.beat("n3", said)
    await scene.settle()
    assert scene.live.nodes_of(new, 0) == ("n3", "n4")
    scene.beat("n3", said)  # known by now
    scene.beat("n1", said)  # not there: but a look was just taken
    assert not scene.effects
    await scene.advance(1.0)
    scene.beat("n1", said)
    assert [type(effect) for effect in scene.effects] == [ObserveFleet]


async def test_a_look_that_is_wanted_while_another_is_on_its_way_follows_it(opened: Open) -> None:
    """The first one may have begun before what the second one is wanted for."""
    scene = await opened()
    scene.apply(SlurmReported(scene.now, "node_down"))
    scene.apply(SlurmReported(scene.now, "node_down"))
    (first,) = scene.effects
    scene.effects.clear()
    scene.apply(EffectCompleted(scene.now, first.id))
    assert [effect.id for effect in scene.effects] == [first.id]
    scene.effects.clear()
    scene.apply(EffectCompleted(scene.now, first.id))
    assert not scene.effects


@pytest.mark.parametrize("said", [None, "101", [], [7], [{}], [{"job": [], "attempt": {}}], [{"job": "x"}], {"job": 1}])
async def test_torn_list_of_jobs_breaks_nothing(opened: Open, said: object) -> None:
    scene = await opened()
    scene.beat("n1", {"jobs": said})
    assert not scene.effects and scene.reported == []


async def test_a_probe_whose_answer_is_lost_is_given_up(opened: Open, ports: Ports) -> None:
    """An outcome that never comes must not keep a node from being probed for ever."""
    scene = await opened()
    scene.apply(ConnectionLost(scene.now, "n1"))
    (lost,) = scene.effects
    scene.effects.clear()
    scene.apply(ConnectionLost(scene.now, "n1"))
    assert not scene.effects, "one is under way"
    ports.answers["n1"] = "no answer"
    await scene.pass_s(60.0, "n2", "n3", "n4")
    assert scene.kinds == [Kind.NODE_UNREACHABLE]
    scene.apply(NodeProbed(scene.now, lost.id, "no answer"))
    assert len(scene.reported) == 1, "it comes too late to count"


# --- the daemon's own troubles ---------------------------------------------------------------------------------------


async def test_silent_nodes_are_not_lost_while_we_have_no_descriptors_left(
    opened: Open, ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await opened()

    async def exhausted(_view: NodeView, _deadline_s: float) -> str | None:
        raise Unavailable("no connection can be made here: Too many open files")

    monkeypatch.setattr(perform, "slurmd_answers", exhausted)
    await scene.pass_s(60.0, "n3", "n4")
    assert scene.reported == [] and scene.state.watch.visibility is not None
    assert not is_sufficient(scene.state.watch.visibility, scene.seconds(), SETTINGS.judgement)
    monkeypatch.setattr(perform, "slurmd_answers", ports)
    ports.answers["n1"] = "no answer"
    await scene.pass_s(20.0, "n2", "n3", "n4")
    assert [item.where.node for item in scene.reported] == ["n1"]  # it is asked again, and this time it counts


async def test_deadline_that_passed_while_the_daemon_stood_still_says_nothing(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = await opened()

    async def stopped(_view: NodeView, _deadline_s: float) -> str | None:
        scene.world.slurm.clock.advance(30.0)  # SIGSTOP, a suspended machine
        return "no answer"

    monkeypatch.setattr(perform, "slurmd_answers", stopped)
    scene.apply(ConnectionLost(scene.now, "n1"))
    await scene.settle()
    assert scene.reported == []


async def test_while_the_daemon_is_late_itself_silence_is_not_the_nodes(opened: Open) -> None:
    scene = await opened()
    scene.apply(RequestDelayed(scene.now, 4.0))  # a request waited so long before we knew who asked
    await scene.pass_s(7.0, "n1", "n2", "n3")
    assert state(scene)["n4"] == "heard", "its heartbeat may be waiting for us"
    await scene.pass_s(8.0, "n1", "n2", "n3")
    assert state(scene)["n4"] == "silent", "no excuse for ever"


async def test_a_look_that_comes_late_excuses_as_well(opened: Open) -> None:
    scene = await opened()
    await scene.pass_s(1.0, *scene.world.slurm.nodes)
    scene.world.slurm.clock.advance(20.0)  # the process stood still
    await scene.check_nodes()
    assert set(state(scene).values()) == {"heard"}


async def test_a_clock_of_our_own_that_is_off_is_said_once(opened: Open) -> None:
    scene = await opened()
    news = ((-300.0, ["own-clock-off"]), (-300.2, []), (None, []), (0.1, ["own-clock-right"]), (0.1, []), (None, []))
    for off_s, said in news:  # None: no agent is heard, so that it is not known
        for number, seen in enumerate(scene.state.cluster.nodes.values()):
            seen.clock_offset_s = off_s if number else 0.0  # one node has the daemon's clock
        out = Transition()
        reconciliation.snapshot_taken(scene.state, out, scene.now)
        assert [remark.name for remark in out.remarks if remark.name.startswith("own-clock")] == said


async def test_a_heartbeat_that_comes_late_does_not_set_its_nodes_clock_back(opened: Open) -> None:
    scene = await opened()

    def beat(offset_s: float) -> float | None:
        nodes.heartbeat(scene.state, Transition(), HeartbeatReceived(AT, "n1", now_s=1.0, clock_offset_s=offset_s))
        return scene.state.cluster.node("n1").clock_offset_s

    assert [beat(offset_s) for offset_s in (-0.2, -30.0, 0.1, -5.0)] == [-0.2, -0.2, 0.1, 0.1]
    assert [beat(-60.0) for _ in range(8)][-1] == -60.0  # it was set
