"""A node with several broken GPUs: each is named, and none decides for the others by being read first."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from nodes.diagnostic_answers import read
from shipped import shipped_rules

from sentinel.agent.health import level1
from sentinel.agent.health.verdict import VerdictKeeper
from sentinel.classify import classify
from sentinel.evidence.dcgm import Fact
from sentinel.evidence.diagnostics import evidence_of
from sentinel.model.records import Evidence, Incident, Kind, Recommendation, Source, Where, utc
from sentinel.wire import to_json

AT = datetime(2026, 3, 4, 12, tzinfo=UTC)
POWER = "Max power of {} did not reach desired power minimum target_power_min_ratio of 500.0 for GPU {}"
MEMORY, REMAP, WIDTH = (52, 2, "faulty memory"), (80, 6, "row remapping failed"), (46, 5, "link width 8X")


def found(*faults: tuple[int, tuple[int, int, str]]) -> list[Evidence]:
    """Evidence of a diagnostic that found (GPU, (code, severity, text))."""
    results = [
        {"entity_group": "GPU", "entity_id": gpu, "status": "Fail",
         "warnings": [{"error_id": code, "error_severity": severity, "warning": text}]}
        for gpu, (code, severity, text) in faults
    ]  # fmt: skip
    tests: list[dict[str, Any]] = [{"name": "memory", "results": results}]
    answer = {"DCGM Diagnostic": {"test_categories": [{"category": "Any", "tests": tests}]}}
    return evidence_of(read(answer, 205), "n1", 2, AT, {})


def judged(evidence: list[Evidence]) -> Any:
    return classify(Incident("i1", AT, AT, nodes=("n1",), evidence=tuple(evidence)), rules=shipped_rules(), now=AT)


@pytest.mark.parametrize(
    "faults",
    [
        ((0, MEMORY), (3, MEMORY)),
        ((0, MEMORY), (3, REMAP)),
        ((0, MEMORY), (3, WIDTH)),
        ((0, WIDTH), (1, WIDTH), (3, MEMORY)),
    ],
)
def test_every_gpu_with_a_convicting_finding_is_a_culprit(faults: tuple[tuple[int, tuple[int, int, str]], ...]) -> None:
    for order in permutations(faults):
        verdict = judged(found(*order))
        assert verdict.drain == ("n1",)
        assert set(verdict.culprits.gpus) == {f"n1:{gpu}" for gpu, _ in faults}


def test_a_gpu_whose_finding_convicts_nobody_is_no_culprit_of_anothers_fault() -> None:
    slow = (30, 4, "Bandwidth of GPU 0 in direction d2h of 12.0 did not exceed minimum required bandwidth of 40.0.")
    assert judged(found((0, slow), (3, MEMORY))).culprits.gpus == ("n1:3",)


def test_a_gpu_that_missed_a_test_by_little_decides_nothing_for_one_that_missed_it_by_far() -> None:
    near, far = (63, 4, POWER.format(499.0, 0)), (63, 4, POWER.format(250.0, 3))
    for order in permutations([(0, near), (3, far)]):
        verdict = judged(found(*order))
        assert (verdict.recommendation, verdict.drain) == (Recommendation.DRAIN, ()), order
    assert judged(found((0, near), (3, near))).recommendation is Recommendation.SUSPECT


def test_an_nvlink_event_that_means_nothing_decides_nothing_for_one_of_another_gpu() -> None:
    """They have one number; whether a reset is asked for, unit, sub-code and status say."""
    by_bucket = {(key[0], row.immediate): key for key, row in shipped_rules().nvlink5.items()}
    number = next(one for one, _ in by_bucket if {(one, "ignore"), (one, "reset_gpu")} <= set(by_bucket))

    def event(gpu: int, bucket: str) -> Evidence:
        _, unit, subcode, status = by_bucket[number, bucket]
        data = {"xid": number, "unit": unit, "subcode": subcode, "status": status}
        return Evidence(
            f"x{gpu}", AT, AT, Source.KERNEL, Kind.XID, Where(node="n1", gpu=gpu), f"Xid of {gpu}", data=data
        )

    for order in permutations([event(0, "ignore"), event(3, "reset_gpu")]):
        assert judged(list(order)).recommendation is Recommendation.DRAIN, order


def test_the_reason_of_a_failed_diagnostic_names_every_gpu() -> None:
    many = [(number, 2, f"{number}") for number in (4, 7, 8, 52, 57, 58, 79, 81, 103)]
    results = [
        {"entity_group": "GPU", "entity_id": gpu, "status": "Fail",
         "warnings": [{"error_id": code, "error_severity": severity, "warning": text} for code, severity, text in faults]}
        for gpu, faults in ((0, many), (3, [MEMORY]))
    ]  # fmt: skip
    tests = [{"name": "memory", "results": results}]
    made = read({"DCGM Diagnostic": {"test_categories": [{"category": "Any", "tests": tests}]}}, 205)
    assert "GPU 0: replace (error 4 in memory)" in made.reason
    assert "GPU 3: replace (error 52 in memory)" in made.reason
    assert len(made.reason) < 1000


def test_the_verdict_of_the_node_names_every_gpu(tmp_path: Path) -> None:
    facts = [Fact("gpu_lost", "a GPU is lost: GPU-1"), Fact("gpu_lost", "a GPU is lost: GPU-2")]
    for evidence, said in (
        (found((0, MEMORY), (3, MEMORY)), ["GPU 0", "GPU 3"]),
        ([_xid(f"0000:{bus}:00") for bus in ("3b", "5d")], ["0000:3b:00", "0000:5d:00"]),
    ):
        keeper = VerdictKeeper(tmp_path, tmp_path, str(said), list, lambda: None, shipped_rules())
        for item in evidence:
            keeper.consider(item)
        again = VerdictKeeper(tmp_path, tmp_path, str(said), list, lambda: None, shipped_rules())
        for one in (keeper, again):  # and after a restart of the agent
            assert one.now().word == "BAD"
            assert [word for word in said if word in one.now().line] == said
    with_facts = VerdictKeeper(tmp_path, tmp_path, "b", lambda: facts, lambda: None, shipped_rules())
    assert "GPU-1" in with_facts.now().line and "GPU-2" in with_facts.now().line


def _xid(pci: str) -> Evidence:
    return Evidence(pci, AT, AT, Source.KERNEL, Kind.XID, Where(node="n1"), data={"xid": 79, "pci": pci})


def test_the_health_check_names_every_gpu() -> None:
    answer = {
        "result": "fail",
        "evidence": [to_json(item) for item in found((0, MEMORY), (3, REMAP), (5, (30, 4, "x")))],
    }
    word, code, sentence = level1.verdict_of(answer)
    assert (word, code) == ("BAD", "diagnostic")
    assert "GPU 0: DCGM error 52" in sentence and "GPU 3: DCGM error 80" in sentence and "GPU 5" not in sentence


def test_a_failure_of_one_gpu_reads_as_before(tmp_path: Path) -> None:
    keeper = VerdictKeeper(
        tmp_path, tmp_path, "b", list, lambda: None, shipped_rules(), clock=lambda: utc(7).timestamp()
    )
    for _ in range(2):
        for item in found((3, (52, 2, "Found 1 faulty memory elements on GPU 3"))):
            keeper.consider(item)
    assert keeper.now().line == "BAD 7 diagnostic Found 1 faulty memory elements on GPU 3\n"
