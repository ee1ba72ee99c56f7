"""What is read from dcgmi where the bindings cannot be used."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from nodes.dcgm_double import DOUBLE, State

from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.config.rules_files import load_convictions
from sentinel.errors import Timeout, Unavailable
from sentinel.evidence.diagnostics import Answer, read_diagnostic
from sentinel.evidence.gpu_samples import (
    WATCHED,
)

RULES = load_convictions()


def test_dcgmi_names_its_gpus(dcgmi: Dcgmi) -> None:
    assert dcgmi.gpus()[2] == {"id": 2, "status": 1, "pci": "0000:1d:00.0", "uuid": "GPU-00000002"}


def test_dcgmi_takes_nothing_else_for_a_gpu(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a node with a single switch and a CPU; a GPU without attributes has no identity."""
    said = b"""2 GPUs found.
| GPU ID | Device Information                                                   |
| 0      | Name: NVIDIA GH200 480GB                                             |
|        | PCI Bus ID: 00000009:01:00.0                                         |
|        | Device UUID: GPU-a                                                   |
| 1      | Error: Cannot get device attributes for GPU.                         |
|        | Return: GPU is lost                                                  |
1 NvSwitch found.
| 8         |
1 CPU found.
| 0      | Name: Grace TH500                                                    |
"""
    monkeypatch.setattr(dcgmi, "run", lambda *_: (0, said))
    assert dcgmi.gpus() == [{"id": 0, "status": 1, "pci": "00000009:01:00.0", "uuid": "GPU-a"}, {"id": 1, "status": 4}]


RECORDED = Path(__file__).parents[2] / "support" / "nodes" / "dcgm_4_6"


@pytest.mark.parametrize(("name", "status"), [("discovery", 0), ("discovery_module_missing", 223)])
def test_all_gpus_are_listed_where_an_optional_module_is_missing(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch, name: str, status: int
) -> None:
    said = (RECORDED / f"{name}.out").read_bytes()
    monkeypatch.setattr(dcgmi, "run", lambda *_: (status, said))
    assert [(gpu["id"], gpu["status"]) for gpu in dcgmi.gpus()] == [(n, 1) for n in range(8)]
    assert dcgmi.gpus()[7]["uuid"] == "GPU-00000007-1111-2222-3333-444444444447"


@pytest.mark.parametrize("cut", [0, 40, 400, 1500])
def test_a_list_that_is_not_whole_is_none(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    said = (RECORDED / "discovery.out").read_bytes()[:cut]
    monkeypatch.setattr(dcgmi, "run", lambda *_: (0, said))
    with pytest.raises(Unavailable):
        dcgmi.gpus()


def test_a_lost_gpu_is_named(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: list[str], _deadline_s: float) -> tuple[int, bytes]:
        return 0, (RECORDED / ("discovery_lost_all.out" if "-a" in arguments else "discovery_lost.out")).read_bytes()

    monkeypatch.setattr(dcgmi, "run", run)
    found = dcgmi.gpus()
    assert found[3] == {"id": 3, "status": 4}, "its name, address and UUID are DCGM's words for not known"
    assert [gpu["status"] for gpu in found].count(1) == 7


def test_gpus_of_a_detached_driver_are_named(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: list[str], _deadline_s: float) -> tuple[int, bytes]:
        return 0, (
            RECORDED / ("discovery_detached_all.out" if "-a" in arguments else "discovery_detached.out")
        ).read_bytes()

    monkeypatch.setattr(dcgmi, "run", run)
    assert [(gpu["status"], gpu["pci"]) for gpu in dcgmi.gpus()][:2] == [
        (7, "00000000:1B:00.0"),
        (7, "00000000:2B:00.0"),
    ]


@pytest.mark.parametrize(
    ("name", "level", "status", "reason"),
    [
        ("l2_pcie_skipped", 2, 0, "no GPU passed pcie: skipped or without result"),
        ("l2_memory_plugin_missing", 2, 0, "tests are missing from the answer: memory"),
        ("l2_stopped", 2, 190, "the diagnostic was stopped"),
        ("l1_another_runs", 1, 222, "another diagnostic is running"),
        ("l1_detached", 1, 226, "All 8 requested GPUs are detached"),
    ],
)
def test_what_a_real_engine_answered_without_a_pass(name: str, level: int, status: int, reason: str) -> None:
    made = read_diagnostic((RECORDED / f"{name}.out").read_bytes(), status, level, range(8), convictions=RULES)
    assert made.answer is Answer.INCONCLUSIVE and reason in made.reason, made.reason


def test_an_engine_that_ended_meanwhile_is_no_pass(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dcgmi` would start an engine inside itself; its answer alone cannot be told from the real one's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = Dcgmi(str(DOUBLE / "dcgmi"), host=f"127.0.0.1:{server.getsockname()[1]}")
        run = made.run

        def ends(arguments: list[str], deadline_s: float) -> tuple[int, bytes]:
            answer = run(arguments, deadline_s)
            server.close()
            return answer

        monkeypatch.setattr(made, "run", ends)
        with pytest.raises(Unavailable, match="no DCGM host engine"):
            made.diagnose(1, None, deadline_s=60)


def test_dcgmi_samples(dcgmi: Dcgmi, state: State) -> None:
    state.xid(1, 63)
    made = dcgmi.sample([150, 1004, 1523])
    assert made["gpus"][0]["fields"] == {"150": 38, "1004": None, "1523": 0}
    assert made["last_xids"] == {1: 63}


def test_dcgmi_asks_for_no_field_that_it_has_not(dcgmi: Dcgmi, state: State) -> None:
    state.write(unknown_fields=[1507, 1523])
    (first, *_) = dcgmi.sample(WATCHED)["gpus"]
    assert first["fields"]["150"] == 38
    assert "1523" not in first["fields"]


@pytest.mark.parametrize(
    ("script", "level", "answer"),
    [
        ({}, 1, Answer.PASS),
        ({}, 4, Answer.PASS),
        ({"absent": ["pcie"]}, 2, Answer.INCONCLUSIVE),
        ({"errors": [{"test": "memory", "gpu": 3, "code": 52, "severity": 2}]}, 2, Answer.FAIL),
        ({"errors": [{"test": "software", "gpu": 1, "code": 29, "severity": 5}]}, 1, Answer.INCONCLUSIVE),
        ({"busy": True}, 1, Answer.INCONCLUSIVE),
        ({"truncate": 300}, 1, Answer.INCONCLUSIVE),
        ({"text_before": "[x][1] noise {\n"}, 1, Answer.PASS),
        ({"text_before": "Error: unable to establish a connection to the specified host: h\n"}, 1, Answer.INCONCLUSIVE),
        ({"status": 203}, 1, Answer.INCONCLUSIVE),
    ],
)
def test_dcgmi_diagnostics(dcgmi: Dcgmi, state: State, script: dict[str, Any], level: int, answer: Answer) -> None:
    state.write(diag=script)
    status, output = dcgmi.diagnose(level, None, deadline_s=60)
    assert read_diagnostic(output, status, level, range(4), convictions=RULES).answer is answer


def test_dcgmi_without_an_engine(state: State) -> None:
    with pytest.raises(Unavailable, match="no DCGM host engine"):
        Dcgmi(str(DOUBLE / "dcgmi"), host="127.0.0.1:1").check()


def test_dcgmi_that_is_not_there(listener: str) -> None:
    with pytest.raises(Unavailable):
        Dcgmi("/nowhere/dcgmi", host=listener).gpus()


def test_a_late_diagnostic_is_killed_then_stopped_in_the_engine(dcgmi: Dcgmi, state: State) -> None:
    state.write(diag={"sleep_s": 600})
    deadline_s = 1.0
    while not state.has_diagnostic:  # one that is killed before it has begun leaves none in the engine
        with pytest.raises(Timeout):
            dcgmi.diagnose(1, None, deadline_s=deadline_s)
        deadline_s *= 2
    status, output = dcgmi.diagnose(1, None, deadline_s=60)
    assert "another diagnostic" in read_diagnostic(output, status, 1, convictions=RULES).reason, (
        "it goes on without its client"
    )
    assert dcgmi.stop_diagnostic(10)
    state.write(diag={})
    status, output = dcgmi.diagnose(1, None, deadline_s=60)
    assert read_diagnostic(output, status, 1, convictions=RULES).answer is Answer.PASS
