"""The reason of a node that our prolog refused: only Slurm's own words are replaced, only by what the agent says now."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from core_records import fleet, node
from prometheus_client import CollectorRegistry

from sentinel.daemon.live import Live
from sentinel.daemon.reasons import Reasons
from sentinel.errors import Refused, Unavailable
from sentinel.log import Log
from sentinel.model import NodeView
from sentinel.settings import Mode, Modes
from sentinel.telemetry import Telemetry

BAD = {"word": "BAD", "code": "gpu_lost", "sentence": "GPU 1 is lost"}
ACT = Modes(default=Mode(drain="act"))


class Writer:
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.error: Exception | None = None

    async def explain(self, name: str, reason: str) -> None:
        if self.error is not None:
            raise self.error
        self.said.append((name, reason))


class Case:
    def __init__(
        self, *nodes: NodeView, modes: Modes = ACT, incident: tuple[str, str] | None = None, **verdicts: Any
    ) -> None:
        self.writer, self.live, self.log = Writer(), Live(), StringIO()
        self.see(*nodes)
        for name, verdict in verdicts.items():
            self.live.node(name).verdict = verdict
        self.reasons = Reasons(
            writer=self.writer,  # type: ignore[arg-type]
            live=self.live,
            modes=modes,
            incident=lambda _: incident,
            telemetry=Telemetry(CollectorRegistry()),
            log=Log(self.log),
        )

    def see(self, *nodes: NodeView) -> None:
        self.live.see_fleet(fleet(nodes))


def refused(name: str = "n1", reason: str = "Prolog error") -> NodeView:
    return node(name, flags=frozenset({"drain"}), reason=reason)


async def test_it_is_explained_once_by_what_the_agent_says() -> None:
    case = Case(refused(), n1=BAD)
    await case.reasons.look()
    await case.reasons.look()
    assert case.writer.said == [("n1", "sentinel:prolog gpu_lost: GPU 1 is lost")]


async def test_an_incident_that_convicts_it_is_named() -> None:
    case = Case(refused(), n1=BAD, incident=("ab12", "gpu_fallen_off_bus"))
    await case.reasons.look()
    assert case.writer.said == [("n1", "sentinel:ab12 gpu_lost: GPU 1 is lost")]


async def test_without_an_agent_the_incident_of_the_prologs_proof_explains_it() -> None:
    case = Case(refused(), incident=("ab12", "gpu_memory_ecc"))
    await case.reasons.look()
    assert case.writer.said == [("n1", "sentinel:ab12 gpu_memory_ecc")]


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
async def test_everything_else_is_left_alone(view: NodeView, verdict: dict[str, str]) -> None:
    case = Case(view, n1=verdict)
    await case.reasons.look()
    assert case.writer.said == []


@pytest.mark.parametrize("modes", [Modes(), Modes(default=Mode(drain="act"), partitions={"train": Mode()})])
async def test_where_it_only_observes_it_writes_nothing(modes: Modes) -> None:
    case = Case(refused(), modes=modes, n1=BAD)
    await case.reasons.look()
    assert case.writer.said == []


async def test_a_partition_of_its_own_may_act() -> None:
    case = Case(refused(), modes=Modes(partitions={"train": Mode(drain="act")}), n1=BAD)
    await case.reasons.look()
    assert len(case.writer.said) == 1


async def test_slurm_that_does_not_answer_is_asked_again() -> None:
    case = Case(refused(), n1=BAD)
    case.writer.error = Unavailable("slurmctld does not answer")
    await case.reasons.look()
    case.writer.error = None
    await case.reasons.look()
    assert len(case.writer.said) == 1


async def test_somebody_who_was_quicker_is_left_in_peace() -> None:
    case = Case(refused(), n1=BAD)
    case.writer.error = Refused("not drained by a failed prolog: mine")
    await case.reasons.look()
    case.writer.error = None
    await case.reasons.look()
    assert case.writer.said == []


async def test_refused_again_after_its_return_it_is_explained_again() -> None:
    case = Case(refused(), n1=BAD)
    await case.reasons.look()
    case.see(node("n1"))
    await case.reasons.look()
    case.see(refused())
    await case.reasons.look()
    assert len(case.writer.said) == 2


async def test_without_a_snapshot_there_is_nothing_to_say() -> None:
    case = Case(n1=BAD)
    case.live.fleet = None
    await case.reasons.look()
    assert case.writer.said == []
