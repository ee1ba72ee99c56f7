"""GPUs that go away and come back, and restarts on both sides: over the double always, over a real engine with made-up GPUs
(NVML injection) where SENTINEL_DCGM names one.

    NVML_INJECTION_MODE=True NVML_YAML_FILE=FILE SENTINEL_DCGM=FOLDER pytest tests/contract/gpu/test_installed_dcgm_states.py
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nodes import nvml_gpus
from nodes.installed_dcgm import KINDS, MADE_UP, PATIENCE_S, REAL, Dcgm, Said, running

from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.agent.probes.diagnose import diagnose
from sentinel.config.rules_files import load_convictions
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import sample_from
from sentinel.model.records import Evidence

RULES = load_convictions()
XID = 230
LACKING = "SENTINEL_DCGM names no installed DCGM, or its GPUs are not made up"


@pytest.fixture(params=KINDS)
def dcgm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dcgm]:
    with running(request.param, tmp_path, str(tmp_path / "engine"), monkeypatch, REAL and MADE_UP, LACKING) as dcgm:
        yield dcgm


class Agent:
    """A probe and what is read into it, as the agent does; ``restarted`` is the next one, with what this one kept."""

    def __init__(self, dcgm: Dcgm, state: Any = None) -> None:
        self.dcgm = dcgm
        self.reader = DcgmReader("n1", RULES, state=state)
        self.told: list[Evidence] = []

    def restarted(self) -> Agent:
        return Agent(self.dcgm, json.loads(json.dumps(self.reader.state)))

    @property
    def kinds(self) -> Counter[str]:
        # A real engine's health watches see some of it too, and say so beside.
        return Counter(str(item.kind) for item in self.told if item.kind != "gpu_health")

    def watches(self, *steps: Callable[[], bool], quiet: int = 6) -> None:
        """Looks at samples: each step is asked until it is true, then the next; then ``quiet`` samples more."""
        left, rest = list(steps), [quiet]

        def enough(said: Said) -> bool:
            if said[-1]["type"] != "sample":
                return False
            self.told.extend(self.reader.read(sample_from(said[-1], datetime.now(UTC))))
            if left:
                if left[0]():
                    left.pop(0)
                return False
            rest[0] -= 1
            return rest[0] < 0

        self.dcgm.probe(enough)
        assert not left, (len(left), self.kinds)


def does(act: Callable[..., object], *arguments: object) -> Callable[[], bool]:
    def acts() -> bool:
        act(*arguments)
        return True

    return acts


def test_a_lost_gpu_is_told_once_and_forgotten_when_it_is_back(dcgm: Dcgm) -> None:
    agent = Agent(dcgm)
    seen: list[set[str]] = []

    def facts() -> bool:
        seen.append({fact.code for fact in agent.reader.facts()})
        return True

    agent.watches(
        does(dcgm.lose, 2), lambda: agent.kinds["gpu_lost"] > 0, *[lambda: True] * 6, facts,
        does(dcgm.gives_back, 2), lambda: not agent.reader.facts(),
    )  # fmt: skip
    assert agent.kinds == {"gpu_lost": 1}, agent.told
    assert seen == [{"gpu_lost"}]
    (lost,) = [item for item in agent.told if item.kind == "gpu_lost"]
    assert lost.where.gpu == 2 and str(lost.where.gpu_uuid).startswith("GPU-")
    again = agent.restarted()
    again.watches(does(dcgm.lose, 2), lambda: again.kinds["gpu_lost"] > 0)
    assert again.kinds == {"gpu_lost": 1}, "lost once more"


def seen_lost(dcgm: Dcgm, lost: int) -> None:
    """Lose a GPU and wait until the engine knows: a real one looks now and then."""
    before = Dcgmi(dcgm.dcgmi, **dcgm.where).gpus()
    dcgm.lose(lost)
    wanted = {gpu["id"]: 4 if gpu["id"] == lost else 1 for gpu in before}
    end_s = time.monotonic() + PATIENCE_S
    while (now := {gpu["id"]: gpu["status"] for gpu in Dcgmi(dcgm.dcgmi, **dcgm.where).gpus()}) != wanted:
        assert time.monotonic() < end_s, now
        time.sleep(0.2)


def test_level_1_with_a_lost_gpu_is_no_pass(dcgm: Dcgm) -> None:
    seen_lost(dcgm, 2)
    arguments = {"node": "n1", "level": 1, "gpus": None, "dcgmi": dcgm.dcgmi, **dcgm.where, "deadline_s": 120.0}
    made = diagnose({**arguments, "stop_s": 20.0, "tells_missing": True})
    assert made["result"] == "inconclusive" and "known to DCGM" in made["reason"], made["reason"]
    assert [item["kind"] for item in made["evidence"]] == ["gpu_lost", "unreadable"]
    dcgm.gives_back(2)


def test_a_driver_that_was_detached_is_not_known_and_no_fault(dcgm: Dcgm) -> None:
    """As an operator does before the driver is changed (DCGM 4.5 and later)."""
    agent = Agent(dcgm)
    agent.watches(does(dcgm.detach), lambda: agent.kinds["unreadable"] > 0, *[lambda: True] * 10)
    assert set(agent.kinds) == {"unreadable"}, agent.told
    assert len({item.where.gpu for item in agent.told}) == len(agent.told), "each GPU once"
    assert agent.reader.facts() == []
    dcgm.attach()
    after = agent.restarted()
    after.watches()
    assert not after.kinds


def test_xids_are_told_once_over_restarts_of_agent_and_engine(dcgm: Dcgm) -> None:
    first = Agent(dcgm)
    first.watches(does(dcgm.inject, 1, XID, 31), lambda: first.kinds["xid"] > 0)
    second = first.restarted()
    second.watches(*[lambda: True] * 4)
    assert not second.kinds, "the engine gives it again"
    third = second.restarted()
    third.watches(does(dcgm.inject, 1, XID, 79), lambda: third.kinds["xid"] > 0)
    assert [item.data["xid"] for item in third.told if item.kind == "xid"] == [79]
    dcgm.kill()
    dcgm.start()
    fourth = third.restarted()
    fourth.watches(*[lambda: True] * 4, does(dcgm.inject, 3, XID, 48), lambda: fourth.kinds["xid"] > 0)
    assert [(item.where.gpu, item.data["xid"]) for item in fourth.told if item.kind == "xid"] == [(3, 48)]
    healths = [
        (item.where.gpu, item.text) for one in (first, second, third) for item in one.told if item.kind == "gpu_health"
    ]
    assert len(healths) == len(set(healths)), "an engine's incident of health is told once"


def test_dcgmi_says_which_gpu_is_lost(dcgm: Dcgm) -> None:
    seen_lost(dcgm, 1)
    dcgm.gives_back(1)


def test_mig_is_not_applicable_to_diagnostics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real engine alone: it refuses all GPUs where one is in MIG mode."""
    gpus = nvml_gpus.node()
    mig = dict.fromkeys(("currentMode", "pendingMode", "current", "pending"), 1)
    gpus["Device"][nvml_gpus.uuid_of(1)]["MigMode"]["ReturnValue"] = mig
    (tmp_path / "gpus.yaml").write_text(json.dumps(gpus))
    monkeypatch.setenv("NVML_YAML_FILE", str(tmp_path / "gpus.yaml"))
    with running("real", tmp_path, str(tmp_path / "engine"), monkeypatch, REAL and MADE_UP, LACKING) as dcgm:
        arguments = {"node": "n1", "level": 1, "gpus": None, "dcgmi": dcgm.dcgmi, **dcgm.where, "deadline_s": 120.0}
        made = diagnose({**arguments, "stop_s": 20.0})
    assert (made["result"], made["findings"]) == ("inconclusive", [])
    assert made["reason"].startswith("not applicable: a GPU is in MIG mode")
