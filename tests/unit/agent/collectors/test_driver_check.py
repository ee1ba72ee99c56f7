"""What a host engine says in which any user may write, and what the driver itself says of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.collectors import driver_check as module
from sentinel.agent.collectors.gpus import GpuWatch
from sentinel.agent.health.verdict import VerdictKeeper
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings, Dcgm
from sentinel.config.rules_files import load_convictions, load_rules
from sentinel.model.records import Evidence, Source
from sentinel.model.vocabulary import OPEN_ENGINE

WELL, FAILED = {"1523": 0, "395": 0, "150": 40}, {"1523": 0, "395": 1, "150": 40}


class Node:
    """The agent's watch of GPUs, with a clock that the test sets."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kept: list[Evidence] = []
        self.asked: list[Program] = []
        self.now_s, self.changes = 1000.0, 0
        monkeypatch.setattr(module, "monotonic", lambda: self.now_s)
        self.folder = folder
        self.start_agent()

    def start_agent(self) -> None:
        settings = AgentSettings(node="n1", state=str(self.folder), gpus=2, dcgm=Dcgm(nvml="/opt/nvml"))
        self.watch = GpuWatch("n1", settings, self, self.program, self.kept.append, load_convictions())  # type: ignore[arg-type]
        self.watch.on_change = self.changed
        watch, rules = self.watch, load_rules()
        self.verdict = VerdictKeeper(self.folder, self.folder, "b", watch.facts, watch.unproven, rules)

    def word(self) -> str:
        return self.verdict.now().word

    def changed(self) -> None:
        self.changes += 1

    def program(self, name: str, module: str, arguments: Any, **rest: Any) -> Program:
        return Program(name, [module], arguments, **rest)

    def start(self, program: Program) -> bool:
        self.asked.append(program)
        return True

    def message(self, fields: dict[str, int], **more: Any) -> dict[str, Any]:
        gpus = [{"id": n, "uuid": f"GPU-{n}", "status": 1, "fields": fields if n else WELL} for n in range(2)]
        return {"type": "sample", "gpus": gpus, "events": [], **more}

    def dcgm(self, fields: dict[str, int], **more: Any) -> None:
        self.watch.heard(self.message(fields, via="dcgm", **more))

    def driver(self, answer: dict[str, Any] | None, ending: Ending | None = None) -> None:
        program = self.asked[-1]
        if answer is not None:
            program.on_message(answer)
        program.on_end(ending or Ending(program.name, 0, False, "", ""))

    def facts(self) -> list[str]:
        return [fact.code for fact in self.watch.facts()]

    def told(self) -> list[tuple[str, Source]]:
        return [(str(item.kind), item.source) for item in self.kept if item.kind == "row_remap_failure"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_what_the_driver_says_as_well_is_a_fact_and_convicts_at_once(node: Node) -> None:
    node.dcgm(WELL)
    assert node.asked == []
    node.dcgm(FAILED)
    (asked,) = node.asked
    assert asked.command == ["sentinel.agent.probes.dcgm"]
    assert asked.arguments == {"driver_alone": True, "nvml": "/opt/nvml"}
    assert node.facts() == []
    before = node.changes
    node.driver(node.message(FAILED, via="nvml"))
    assert node.facts() == ["row_remap_failure"] and node.changes == before + 1, "the verdict is written anew"
    assert node.told() == [("row_remap_failure", Source.DCGM), ("row_remap_failure", Source.NVML)]
    assert [OPEN_ENGINE in item.data for item in node.kept] == [True, False]


def test_what_the_driver_does_not_say_stays_dcgms_word(node: Node) -> None:
    node.dcgm(FAILED)
    node.driver(node.message(WELL, via="nvml"))
    assert node.facts() == [] and node.told() == [("row_remap_failure", Source.DCGM)]
    assert node.word() == "OK", "it denies it"


def test_a_fault_ends_when_the_driver_says_so(node: Node) -> None:
    node.dcgm(FAILED)
    node.driver(node.message(FAILED, via="nvml"))
    node.now_s += module.AGAIN_S
    node.dcgm(WELL)
    assert len(node.asked) == 2
    node.driver(node.message(WELL, via="nvml"))
    assert node.facts() == []
    node.now_s += 10 * module.AGAIN_S
    node.dcgm(WELL)
    assert len(node.asked) == 2, "nothing is left to ask"


def test_however_often_something_is_injected_the_driver_is_asked_now_and_then(node: Node) -> None:
    for turn in range(10):
        node.dcgm(FAILED if turn % 2 else WELL)
    assert len(node.asked) == 1, "one question at a time"
    node.driver(node.message(WELL, via="nvml"))
    node.dcgm(FAILED)
    assert len(node.asked) == 1, "and a pause between two"
    node.now_s += module.LEAST_S
    node.dcgm(FAILED)
    assert len(node.asked) == 2


@pytest.mark.parametrize(
    "ending", [Ending("gpu-driver", None, True, "", "D"), Ending("gpu-driver", 1, False, "oh", "")]
)
def test_a_driver_that_cannot_be_asked_is_not_known_and_asked_again(node: Node, ending: Ending) -> None:
    node.dcgm(FAILED)
    node.driver(None, ending)
    assert node.facts() == [] and node.watch.trouble() is None and node.word() == "UNKNOWN"
    node.now_s += module.AGAIN_S
    node.dcgm(FAILED)
    node.driver({"type": "unreadable", "reason": "nvidia-ml-py is not installed"})
    assert len(node.asked) == 2 and node.facts() == []


HUNG = Ending("gpu-driver", None, True, "", "D in nvidia_ioctl")


def test_a_driver_that_hangs_takes_nothing_back(node: Node) -> None:
    node.dcgm(FAILED)
    assert node.word() == "UNKNOWN", "the driver has not answered yet"
    node.driver(node.message(FAILED, via="nvml"))
    node.now_s += module.FRESH_S + 1.0
    node.dcgm(FAILED)
    node.driver(None, HUNG)
    assert (node.facts(), node.word()) == (["row_remap_failure"], "BAD"), "DCGM shows it still"
    node.dcgm(WELL)
    assert (node.facts(), node.word()) == ([], "UNKNOWN"), "anybody may have written that into the engine"
    node.now_s += module.AGAIN_S
    node.dcgm(WELL)
    node.driver(node.message(WELL, via="nvml"))
    assert node.word() == "OK"


def test_an_agent_that_is_started_again_knows_what_the_driver_said(node: Node) -> None:
    node.dcgm(FAILED)
    node.driver(node.message(FAILED, via="nvml"))
    node.start_agent()
    assert node.word() == "UNKNOWN"
    node.dcgm(FAILED)
    assert (node.facts(), node.word()) == (["row_remap_failure"], "BAD")
    node.start_agent()
    node.dcgm(WELL)
    assert (node.facts(), node.word()) == ([], "UNKNOWN")


def test_a_driver_that_does_not_tell_denies_nothing(node: Node) -> None:
    """NVML has no reading of unrepairable memory; of a GPU that fails it has none at all."""
    unrepairable = {**WELL, "1507": 1}
    node.dcgm(unrepairable)
    node.driver(node.message(WELL, via="nvml"))
    assert (node.facts(), node.word()) == ([], "UNKNOWN")
    node.dcgm({**WELL, "1507": 0})
    assert node.word() == "OK", "nobody shows it any more"
    node.dcgm(FAILED)
    node.now_s += module.AGAIN_S
    node.dcgm(FAILED)
    node.driver(node.message(dict.fromkeys(WELL), via="nvml"))  # type: ignore[arg-type]
    assert (node.facts(), node.word()) == ([], "UNKNOWN")


def test_an_xid_that_convicts_has_the_driver_asked(node: Node) -> None:
    node.dcgm(WELL, events=[[1, 13, int(time.time() * 1e6)]])
    assert node.asked == [], "a program's"
    node.dcgm(WELL, events=[[1, 79, int(time.time() * 1e6)]])
    assert len(node.asked) == 1


def test_of_an_engine_that_users_cannot_reach_the_driver_is_not_asked(node: Node) -> None:
    node.dcgm(FAILED, closed=True)
    assert node.asked == [] and node.facts() == ["row_remap_failure"]
