"""Levels 2 to 4 of a diagnostic, over the double always and over a real DCGM where its plugins are scripted.

    SENTINEL_DCGM=FOLDER SENTINEL_NVVS_SCRIPT=FILE pytest tests/contract/gpu/test_installed_dcgm_levels.py

The host engine, nvvs and dcgmi are DCGM's own; what the tests find is said by tests/support/nodes/nvvs_plugin.cpp, since
DCGM's own plugins need a GPU.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes.installed_dcgm import KINDS, PATIENCE_S, REAL, SCRIPT, Dcgm, running

from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.agent.probes.diagnose import diagnose
from sentinel.config.rules_files import load_convictions
from sentinel.evidence.diagnostics import read_diagnostic


@pytest.fixture(params=KINDS)
def dcgm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dcgm]:
    lacking = "SENTINEL_DCGM names no installed DCGM, or SENTINEL_NVVS_SCRIPT no scripted plugins of it"
    with running(request.param, tmp_path, str(tmp_path / "engine"), monkeypatch, REAL and SCRIPT, lacking) as dcgm:
        dcgm.script()
        yield dcgm
        dcgm.script()


def run(dcgm: Dcgm, level: int, **changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "node": "n1", "level": level, "gpus": None, "dcgmi": dcgm.dcgmi, **dcgm.where, "deadline_s": 2 * PATIENCE_S,
        "stop_s": PATIENCE_S, "deadlines_s": [PATIENCE_S] * 4, **changes,
    }  # fmt: skip
    return diagnose(arguments)


def uuid_of(dcgm: Dcgm, number: int) -> str:
    (gpu,) = [gpu for gpu in Dcgmi(dcgm.dcgmi, **dcgm.where).gpus() if gpu["id"] == number]
    return str(gpu["uuid"])


@pytest.mark.parametrize("level", [2, 3, 4])
def test_a_level_passes_when_every_test_of_it_did(dcgm: Dcgm, level: int) -> None:
    made = run(dcgm, level)
    assert made["result"] == "pass", made["reason"]
    assert set(made["tests"].values()) == {"pass"} and len(made["tests"]) >= {2: 3, 3: 7, 4: 9}[level]


FAULTS = [
    (2, "memory", 3, 52, "replace", True),  # faulty memory
    (3, "targeted_power", 0, 63, "investigate", False),  # power below the target
    (4, "memtest", 1, 58, "replace", True),  # memory answered another value
]


@pytest.mark.parametrize(("level", "test", "gpu", "code", "remedy", "convicts"), FAULTS)
def test_one_gpu_is_blamed(dcgm: Dcgm, level: int, test: str, gpu: int, code: int, remedy: str, convicts: bool) -> None:
    dcgm.script(**{test: f"fail {gpu} {code} GPU {gpu} did not do well"})
    made = run(dcgm, level)
    blamed = [(item["gpu"], item["code"], item["remedy"], item["convicts"]) for item in made["findings"]]
    assert made["result"] == "fail", made["reason"]
    assert blamed == [(gpu, code, remedy, convicts)], made["findings"]
    assert [item["where"]["gpu_uuid"] for item in made["evidence"]] == [uuid_of(dcgm, gpu)]


def test_only_the_gpus_of_the_order_are_tested(dcgm: Dcgm) -> None:
    dcgm.script(memory="fail 3 52 GPU 3 did not do well")
    assert run(dcgm, 2, gpus=[uuid_of(dcgm, 1)])["result"] == "pass"
    assert run(dcgm, 2, gpus=[uuid_of(dcgm, 3), uuid_of(dcgm, 1)])["result"] == "fail"


def test_a_test_that_was_skipped_is_no_pass(dcgm: Dcgm) -> None:
    dcgm.script(pcie="skip")
    made = run(dcgm, 2)
    assert (made["result"], made["tests"]["pcie"]) == ("inconclusive", "skip")
    assert "skipped" in made["reason"]


def test_a_plugin_that_is_missing_is_no_pass(dcgm: Dcgm) -> None:
    dcgm.script(memory="absent")
    made = run(dcgm, 2)
    assert made["result"] == "inconclusive" and "memory" in made["reason"], made["reason"]


def test_of_two_at_once_one_finds_the_other(dcgm: Dcgm) -> None:
    dcgm.script(memory="sleep 30")
    made: list[dict[str, Any]] = []
    both = [threading.Thread(target=lambda: made.append(run(dcgm, 2))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(2 * PATIENCE_S)
    answers = {item["result"]: item["reason"] for item in made}
    assert set(answers) == {"pass", "inconclusive"}, made
    assert "another diagnostic is running" in answers["inconclusive"]


@pytest.mark.parametrize("does", ["sleep 600", "hang"])
def test_one_that_is_late_is_stopped_and_the_next_runs(dcgm: Dcgm, does: str) -> None:
    dcgm.script(memory=does)
    made = run(dcgm, 2, deadlines_s=[PATIENCE_S, 10.0, PATIENCE_S, PATIENCE_S])
    assert made["result"] == "inconclusive" and "it was stopped" in made["reason"], made["reason"]
    dcgm.script()
    assert run(dcgm, 2)["result"] == "pass"


def test_one_that_was_stopped_by_another_is_inconclusive(dcgm: Dcgm) -> None:
    """As when an operator or another tool ends it: what it had not tested is not known."""
    dcgm.script(memory="sleep 60")
    made: list[dict[str, Any]] = []

    def ours_to_its_end() -> None:
        while "another diagnostic" in (answer := run(dcgm, 2))["reason"]:  # the look below came first
            continue
        made.append(answer)

    ours = threading.Thread(target=ours_to_its_end)
    ours.start()
    end_s = time.monotonic() + PATIENCE_S
    dcgmi = Dcgmi(dcgm.dcgmi, **dcgm.where)
    while "another diagnostic" not in run(dcgm, 1)["reason"]:
        assert time.monotonic() < end_s
    assert dcgmi.stop_diagnostic(PATIENCE_S)
    ours.join(PATIENCE_S)
    assert made[0]["result"] == "inconclusive", made[0]


def test_what_it_says_can_be_read_again(dcgm: Dcgm) -> None:
    """Status and output together: a failure whose exit status alone would be another one."""
    dcgm.script(memory="fail 2 52 GPU 2 did not do well")
    status, output = Dcgmi(dcgm.dcgmi, **dcgm.where).diagnose(2, None, deadline_s=PATIENCE_S)
    assert status == 205, "an error that isolates a GPU"
    assert str(read_diagnostic(output, status, 2, convictions=load_convictions()).answer) == "fail"
