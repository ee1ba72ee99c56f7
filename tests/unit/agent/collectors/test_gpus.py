"""What the agent makes of the GPU probe: facts while they are fresh, hangs, trouble said once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.collectors import gpus as module
from sentinel.agent.collectors.gpus import GpuWatch
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings, Dcgm
from sentinel.config.rules_files import load_convictions
from sentinel.model.records import Evidence, Kind, Source, Where, utc


class Bench:
    def __init__(self) -> None:
        self.programs: list[Program] = []

    def start(self, program: Program) -> bool:
        self.programs.append(program)
        return True


class Node:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.kept: list[Evidence] = []
        self.changes = 0
        self.bench = Bench()

        def program(name: str, module: str, arguments: Any, **rest: Any) -> Program:
            return Program(name, [module], arguments, **rest)

        made = AgentSettings(node="n1", state=str(folder), gpus=2, **settings)
        self.watch = GpuWatch("n1", made, self.bench, program, self.kept.append, load_convictions())  # type: ignore[arg-type]
        self.watch.on_change = self.changed
        self.watch.start()

    def changed(self) -> None:
        self.changes += 1

    def sample(self, *statuses: int, via: str = "dcgm", closed: bool = True, **fields: Any) -> None:
        gpus = [
            {
                "id": n,
                "uuid": f"GPU-{n}",
                "pci": f"00000000:{0x1B + n:02X}:00.0",
                "status": status,
                "fields": {"150": 40, **fields},
            }
            for n, status in enumerate(statuses or (1, 1))
        ]
        self.watch.heard({"type": "sample", "via": via, "closed": closed, "gpus": gpus, "events": []})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def kinds(node: Node) -> list[str]:
    return [str(item.kind) for item in node.kept]


def test_fresh_telemetry_has_no_trouble(node: Node) -> None:
    assert node.watch.trouble() == "no telemetry yet"
    node.sample()
    assert node.watch.trouble() is None
    assert node.changes == 1, "the verdict is written at once"
    node.sample()
    assert node.changes == 1


def test_old_telemetry_says_nothing_about_now(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.sample(1, 4)
    assert node.watch.facts()
    monkeypatch.setattr(module, "FRESH_S", -1.0)
    assert node.watch.facts() == []
    assert node.watch.trouble() is not None


def test_a_change_is_told_at_once(node: Node) -> None:
    node.sample()
    node.sample(1, 4)
    assert (kinds(node), node.changes) == ([Kind.GPU_LOST], 2)


def test_what_was_said_is_known_after_a_restart(node: Node, tmp_path: Path) -> None:
    node.sample(1, 4)
    again = Node(tmp_path)
    again.sample(1, 4)
    assert again.kept == []
    assert again.watch.facts()[0].code == "gpu_lost"


def test_a_probe_that_hangs(node: Node) -> None:
    node.watch.ended(Ending("dcgm", None, True, "", "D in nvidia_ioctl"))
    assert kinds(node) == [Kind.PROBE_HUNG]
    assert "nvidia_ioctl" in node.kept[0].text
    assert node.watch.trouble() == "GPU telemetry hangs"


def test_trouble_is_said_once(node: Node) -> None:
    for _ in range(3):
        node.watch.heard({"type": "unreadable", "reason": "no bindings"})
    assert kinds(node) == [Kind.UNREADABLE]
    node.sample(via="nvml")
    node.watch.heard({"type": "unreadable", "reason": "no bindings"})
    assert len(node.kept) == 1, "NVML in its place does not unsay it"
    node.sample()
    node.watch.heard({"type": "unreadable", "reason": "no bindings"})
    assert len(node.kept) == 2


def test_a_message_of_another_shape_is_unreadable(node: Node) -> None:
    node.watch.heard({"type": "sample", "via": "dcgm", "gpus": "many"})
    node.watch.heard({"type": "unparsable", "text": "garbage"})
    assert kinds(node) == [Kind.UNREADABLE] * 2
    assert node.watch.trouble() is not None


def test_a_pci_address_finds_its_gpu(node: Node) -> None:
    at = utc(1_900_000_000)
    evidence = Evidence("x", at, at, Source.KERNEL, Kind.XID, Where("n1"), data={"pci": "0000:1c:00"})
    assert node.watch.placed(evidence) is evidence, "not known yet"
    node.sample()
    assert node.watch.placed(evidence).where == Where("n1", gpu=1, gpu_uuid="GPU-1")


def test_switched_off_is_not_known(tmp_path: Path) -> None:
    node = Node(tmp_path, dcgm=Dcgm(off=True))
    assert node.bench.programs == []
    assert "switched off" in (node.watch.trouble() or "")


def test_a_part_that_is_missing_is_told_once_and_the_rest_is_read(node: Node) -> None:
    gpus = [{"id": n, "uuid": f"GPU-{n}", "status": 1, "fields": {"150": 40}} for n in range(2)]
    message = {
        "type": "sample",
        "via": "dcgm",
        "gpus": gpus,
        "missing": {"health": "module is not loaded", "traffic": "-33"},
    }
    for _ in range(3):
        node.watch.heard(message)
    assert [(item.kind, item.data["part"]) for item in node.kept] == [(Kind.UNREADABLE, "health")]
    assert "module is not loaded" in node.kept[0].text
    assert node.watch.trouble() is None, "what can be read is fresh"
    node.watch.heard({**message, "missing": {}})
    node.watch.heard(message)
    assert len(node.kept) == 2, "there again, and gone again"


BLANK: dict[str, Any] = {"150": None, "155": None, "112": None, "203": None, "252": None}


def message(fields: dict[str, Any], *statuses: int, **more: Any) -> dict[str, Any]:
    gpus = [{"id": n, "uuid": f"GPU-{n}", "status": status, "fields": fields} for n, status in enumerate(statuses)]
    return {"type": "sample", "via": "dcgm", "closed": True, "gpus": gpus, "events": [], **more}


@pytest.mark.parametrize(
    ("blind", "told"),
    [
        (message(BLANK, 1, 1), "dcgm_all_blank"),
        (message({}, 1, 1, missing={"fields": "DCGM has not renewed a value for 10 s"}), "unreadable"),
        (message({}, 7, 7), "unreadable"),
        (message({}, 0, 0), "unreadable"),
        (message({}), "unreadable"),
    ],
    ids=["blank", "not renewed", "detached", "not known", "none listed"],
)
def test_a_source_that_is_blind_is_not_known_and_told(node: Node, blind: dict[str, Any], told: str) -> None:
    for _ in range(5):
        node.watch.heard(blind)
        assert node.watch.trouble() and node.watch.unproven(), "from the first sample on"
    assert told in kinds(node) and len(kinds(node)) == len({item.where.gpu for item in node.kept}), "each once"
    assert all(item.kind != Kind.GPU_LOST for item in node.kept) and node.watch.facts() == []
    before = node.changes
    node.sample()
    assert node.watch.trouble() is None and node.watch.unproven() is None
    assert node.changes > before, "the verdict is written anew"
    for _ in range(5):
        node.watch.heard(blind)
    assert node.watch.trouble() is not None


def test_a_source_that_was_away_is_blind_until_something_is_read(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.sample()
    node.watch.heard(message(BLANK, 1, 1))
    assert node.watch.trouble() is None, "one sample of several"
    with monkeypatch.context() as patched:
        patched.setattr(module, "FRESH_S", -1.0)
        node.watch.heard(message(BLANK, 1, 1))
    assert node.watch.trouble() is not None


def test_a_node_that_promises_no_gpu_has_none_to_read(tmp_path: Path) -> None:
    watch = GpuWatch(
        "n1", AgentSettings(node="n1", state=str(tmp_path), gpus=0), Bench(), None, None, load_convictions()
    )  # type: ignore[arg-type]
    watch.heard(message({}))
    assert watch.trouble() is None and watch.unproven() is None


def test_a_node_with_one_gpu_that_cannot_be_read_is_not_known_to_be_well(node: Node) -> None:
    def heard(fields: dict[str, Any]) -> None:
        made = message({"150": 40}, 1, 1)
        made["gpus"][1]["fields"] = fields
        node.watch.heard(made)

    heard({"150": 40})
    before = node.changes
    for _ in range(3):
        heard(BLANK)
    assert node.watch.unproven() == "nothing can be read of GPU 1 (GPU-1)"
    assert node.watch.trouble() is None, "the other is read"
    assert node.watch.facts() == [] and node.changes == before + 1
    heard({"150": 41})
    assert node.watch.unproven() is None
