"""The reason of a node that our prolog refused: only Slurm's own words are replaced, only by what the agent says now."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import RULES, SETTINGS
from in_memory.slurm import FakeSlurm
from made_records import AT, fleet, node, verdict

from sentinel.config.settings import Mode, Modes
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import Engine
from sentinel.engine.drain_reasons import DRAIN_REASONS
from sentinel.engine.events import DrainReasonWritten, FleetObserved, TimerDue
from sentinel.engine.state import State
from sentinel.engine.transition import WriteDrainReason
from sentinel.engine.watch.events import HeartbeatReceived
from sentinel.errors import Refused
from sentinel.model.records import Cause, NodeView

BAD = {"word": "BAD", "code": "gpu_lost", "sentence": "GPU 1 is lost"}
ACT = Modes(default=Mode(drain="act"))


class Case:
    """An engine that has seen these nodes; ``check`` answers what it wants written with ``result``."""

    def __init__(
        self, *nodes: NodeView, modes: Modes = ACT, incident: tuple[str, Cause] | None = None, **verdicts: Any
    ) -> None:
        cluster = ClusterView()
        settings = replace(SETTINGS, modes=modes)
        onsets = OnsetTracker(cluster, settings.judgement)
        self.engine = Engine(State(rules=RULES, settings=settings, cluster=cluster, onsets=onsets))
        self.state, self.result, self.written, self.at = self.engine.state, "written", [], AT
        self.written: list[tuple[str, str]] = []
        self.see(*nodes)
        for name, word in verdicts.items():
            self.engine.handle(HeartbeatReceived(AT, name, verdict=word))
        if incident is not None:
            self.state.verdicts[incident[0]] = verdict(incident[1], drain=("n1",))

    def see(self, *nodes: NodeView) -> None:
        self.engine.handle(FleetObserved(AT, fleet(nodes)))

    def check(self) -> list[WriteDrainReason]:
        self.at += timedelta(seconds=5)
        out = self.engine.handle(TimerDue(self.at, DRAIN_REASONS))
        wanted = [effect for effect in out.effects if isinstance(effect, WriteDrainReason)]
        for effect in wanted if self.result else ():
            if self.result == "written":
                self.written.append((effect.node, effect.reason))
            self.engine.handle(DrainReasonWritten(self.at, effect.id, effect.node, self.result, "why"))
        return wanted


def refused(name: str = "n1", reason: str = "Prolog error") -> NodeView:
    return node(name, flags=frozenset({"drain"}), reason=reason)


def test_it_is_explained_once_by_what_the_agent_says() -> None:
    case = Case(refused(), n1=BAD)
    case.check()
    case.check()
    assert case.written == [("n1", "sentinel:prolog gpu_lost: GPU 1 is lost")]


def test_an_incident_that_convicts_it_is_named() -> None:
    case = Case(refused(), n1=BAD, incident=("ab12", Cause.GPU_FALLEN_OFF_BUS))
    case.check()
    assert case.written == [("n1", "sentinel:ab12 gpu_lost: GPU 1 is lost")]


def test_without_an_agent_the_incident_of_the_prologs_proof_explains_it() -> None:
    case = Case(refused(), incident=("ab12", Cause.GPU_MEMORY_ECC))
    case.check()
    assert case.written == [("n1", "sentinel:ab12 gpu_memory_ecc")]


@pytest.mark.parametrize(
    ("view", "verdict"),
    [
        (refused(reason="under repair"), BAD),
        (refused(reason="Epilog error"), BAD),
        (refused(reason="sentinel:x ecc"), BAD),
        (node("n1", reason="Prolog error"), BAD),
        (refused(), BAD | {"word": "OK"}),
        (refused(), BAD | {"word": "UNKNOWN"}),
        (refused(), {}),
        (refused("n9"), BAD),
    ],
)
def test_everything_else_is_left_alone(view: NodeView, verdict: dict[str, str]) -> None:
    case = Case(view, n1=verdict)
    case.check()
    assert case.written == []


@pytest.mark.parametrize("modes", [Modes(), Modes(default=Mode(drain="act"), partitions={"train": Mode()})])
def test_where_it_only_observes_it_writes_nothing(modes: Modes) -> None:
    case = Case(refused(), modes=modes, n1=BAD)
    case.check()
    assert case.written == []


def test_a_partition_of_its_own_may_act() -> None:
    case = Case(refused(), modes=Modes(partitions={"train": Mode(drain="act")}), n1=BAD)
    case.check()
    assert len(case.written) == 1


def test_slurm_that_does_not_answer_is_asked_again() -> None:
    case = Case(refused(), n1=BAD)
    case.result = "unavailable"
    case.check()
    case.result = "written"
    case.check()
    assert len(case.written) == 1


def test_somebody_who_was_quicker_is_left_in_peace() -> None:
    case = Case(refused(), n1=BAD)
    case.result = "refused"
    case.check()
    case.result = "written"
    case.check()
    assert case.written == []


def test_refused_again_after_its_return_it_is_explained_again() -> None:
    case = Case(refused(), n1=BAD)
    case.check()
    case.see(node("n1"))
    case.check()
    case.see(refused())
    case.check()
    assert len(case.written) == 2


def test_without_a_snapshot_there_is_nothing_to_say() -> None:
    case = Case(n1=BAD)
    case.state.cluster.fleet = None
    case.check()
    assert case.written == []


def test_one_write_at_a_time_and_again_when_its_answer_is_lost() -> None:
    case = Case(refused(), n1=BAD)
    case.result = ""
    assert len(case.check()) == 1
    assert [case.check() for _ in range(11)] == [[]] * 11
    assert len(case.check()) == 1


def off(reason: str = "sentinel:ab12 gpu_lost") -> NodeView:
    """scontrol update State=POWER_DOWN: Slurm ends the drain, and keeps its reason until the node is switched on."""
    return node("n1", flags=frozenset({"power_down"}), reason=reason)


def test_a_node_whose_drain_ended_as_it_was_switched_off_is_drained_again() -> None:
    drained = refused(reason="sentinel:ab12 gpu_lost")
    case = Case(drained)
    case.see(off())
    view = case.state.cluster.fleet.nodes["n1"] if case.state.cluster.fleet else None
    assert view is not None and view.drained, "nobody returned it"
    case.check()
    case.see(drained)
    case.check()
    assert case.written == [("n1", "sentinel:ab12 gpu_lost")]
    case.see(off())
    case.check()
    assert len(case.written) == 2, "it was drained a moment before Slurm ended that"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (node("n1", reason="sentinel:ab12 gpu_lost"), off()),  # somebody had returned it; 24.11 keeps the reason
        (refused(reason="cable swap"), off("cable swap")),
        (refused(reason="sentinel:ab12 gpu_lost"), node("n1", reason="sentinel:ab12 gpu_lost")),  # resumed
        (refused(reason="sentinel:ab12 gpu_lost"), off("")),
    ],
)
def test_other_nodes_that_are_switched_off_are_left_alone(before: NodeView, now: NodeView) -> None:
    case = Case(before)
    case.see(now)
    case.check()
    assert case.written == []


def test_where_it_only_observes_it_drains_no_node_again() -> None:
    case = Case(refused(reason="sentinel:ab12 gpu_lost"), modes=Modes())
    case.see(off())
    case.check()
    assert case.written == []


async def test_a_drain_that_slurm_ended_as_it_switched_the_node_off_is_made_anew(fake_slurm: FakeSlurm) -> None:
    there, reason = fake_slurm.nodes["n1"], "sentinel:ab12 gpu_lost"
    there.reason, there.power = reason, "powering_down"
    with pytest.raises(Refused):
        await fake_slurm.explain("n1", "sentinel: i43 another one")
    assert not there.drained
    await fake_slurm.explain("n1", reason)
    assert there.drained and there.reason == reason
    there.drained, there.power = False, ""
    with pytest.raises(Refused):
        await fake_slurm.explain("n1", reason)  # in service, whatever the reason says
