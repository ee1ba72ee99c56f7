"""What DCGM joins to one message: each error has its own words, numbers, GPU and part. Texts as in DCGM's dcgm_errors.h."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from nodes.diagnostic_answers import RULES, read, without_codes
from shipped import shipped_rules

from sentinel.classify import classify
from sentinel.config.convictions import Conviction, Convictions, Drain, Remedy
from sentinel.evidence.diagnostics import MOST_FINDINGS, MOST_MESSAGE, Answer, evidence_of, read_diagnostic
from sentinel.model.records import Incident

AT = datetime(2026, 3, 4, 12, tzinfo=UTC)


def test_two_faults_in_one_sentence_blame_two_gpus() -> None:
    text = (
        "GPU 0 had uncorrectable memory errors and row remapping failed.,A corrupt InfoROM has been detected in GPU 3."
    )
    made = read(without_codes(1, {"Page Retirement/Row Remap": text}), level=1)
    assert [(item.gpu, item.code) for item in made.findings] == [(0, 80), (3, 9)]


def test_of_two_errors_in_one_message_the_one_that_convicts_counts() -> None:
    """DCGM 2.x joins them; evidence with one id would be kept once."""
    inforom = "A corrupt InfoROM has been detected in GPU 2."
    remap = "GPU 2 had uncorrectable memory errors and row remapping failed."
    for text in (f"{inforom},{remap}", f"{remap},{inforom}"):
        found = evidence_of(read(without_codes(1, {"Page Retirement/Row Remap": text})), "n1", 1, AT, {})
        kept = {item.id: item for item in found}
        incident = Incident("i1", AT, AT, nodes=("n1",), evidence=tuple(kept.values()))
        assert classify(incident, rules=shipped_rules(), now=AT).drain == ("n1",), text


def test_each_of_joined_messages_is_held_to_its_own_numbers_and_words() -> None:
    power = "Max power of {} did not reach desired power minimum target_power_min_ratio of 500.0 for GPU {}"
    for near, far in ((0, 1), (1, 0)):
        texts = [power.format(499.9, near), power.format(250.0, far)]
        document = without_codes(3, {"Targeted Power": ". ".join(texts)}, gpu="0,1")
        drains = {finding.gpu: finding.drain for finding in read(document, level=3).findings}
        assert drains == {near: Drain.SUSPECT, far: Drain.ADVISE}
    text = "Found 12 faulty memory elements on GPU 1. There was an error: out of memory"
    (finding,) = read(without_codes(2, {"GPU Memory": text}, gpu="0,1"), level=2).findings
    assert finding.gpu == 1


# Of errors that are no fault of a GPU, or that are one only by what CUDA says: a message with each beginning.
NO_FAULTS = [
    "GPU {gpu}'s NvLink link 3 is currently down Run a field diagnostic on the GPU.",
    "Error using CUDA API cuCtxCreate: 'all CUDA-capable devices are busy or unavailable'.",
    "API call cuMemAlloc failed: 'out of memory'",
    "API call cudaStreamSynchronize failed for GPU {gpu}: 'out of memory'",
    "GPU {gpu} failed to create a CUDA context: out of memory",
    "Error using DCGM API dcgmGetLatestValues",
    "Couldn't allocate at least 75.0% of GPU memory on GPU {gpu} out of memory",
    "Cannot allocate 512 bytes on the host, out of memory",
    "Persistence mode for GPU {gpu} is currently disabled.",
    "There was an internal error during the test: 'busy or unavailable'",
    "Unable to find a corresponding CUDA device for GPU {gpu}: 'busy or unavailable'",
    "Cuda GPU {gpu} is no longer bound to a CUDA context...Aborting",
    "There were thermal violations totaling 5.0 seconds for GPU {gpu}",
    "Clocks are being throttled for GPU {gpu} because of clock throttling starting 3.0 seconds into the test.",
    "Temperature 91 of GPU {gpu} exceeded user-specified maximum allowed temperature 80",
    "Detected 12 nvlink_replay_error_count_total for GPU {gpu} which is above the threshold 3",
    "Unable to generate / collect stat power_usage for GPU {gpu}",
    "Could not query field power_usage for GPU {gpu}",
    "Skipping test memory because ECC is not enabled on GPU {gpu}",
    "The Targeted Power test is skipped for this GPU.",
    "Test was aborted early due to user signal",
    "Enforced power limit on GPU {gpu} set to 200.0, which is too low to attempt to achieve target power 700.0",
    "Had to restore GPU state on NVML GPU(s): {gpu}",
    "GPU {gpu} had PCIe replays, see dmesg for more information",
    "power_violation met or exceeded the threshold of 5 per second: 9 at 3.0 seconds into the test.",
]


@pytest.mark.parametrize("prefix", ["", "GPU 1", "GPU 1 "], ids=["no-prefix", "2.1", "2.4"])
@pytest.mark.parametrize("message", NO_FAULTS)
def test_a_joined_message_without_a_fault_lends_its_words_to_no_other(message: str, prefix: str) -> None:
    """DCGM 2.x joins with ", ", and writes before each message which GPU it is about."""
    fault, other = "Found 12 faulty memory elements on GPU 0", prefix + message.format(gpu=1)
    for texts in ([fault, other], [other, fault], [other, fault, other]):
        made = read(without_codes(2, {"GPU Memory": ", ".join(texts)}, gpu="0,1"), level=2)
        faults = [(item.gpu, item.code, item.text.strip(", ")) for item in made.findings if item.remedy.is_fault]
        assert (made.answer, faults) == (Answer.FAIL, [(0, 52, fault)]), texts


def test_what_cuda_says_of_a_failed_call_is_of_the_gpu_that_the_call_was_for() -> None:
    said = "'uncorrectable ECC error encountered'"
    busy = "Error using CUDA API cuInit: 'busy or unavailable' for GPU 0"
    for call in (
        f"API call cudaStreamSynchronize failed for GPU 3: {said}",
        f"Error using CUDA API cuCtxGetCurrent : {said} (214) for GPU 3",
        f"GPU 3 Error using CUDA API cuCtxGetCurrent : {said}",
        f"GPU 3 failed to create a CUDA context: {said}",
    ):
        for texts in ([call], [busy, call], [call, busy], [call, "GPU 1 Error using CUDA API cuInit: 'unknown error'"]):
            made = read(without_codes(2, {"GPU Memory": ", ".join(texts)}, gpu="0,1,3"), level=2)
            assert [(item.gpu, item.code) for item in made.findings if item.convicts] == [(3, 57)], texts


def test_the_gpu_before_a_message_is_its_own_where_it_names_none() -> None:
    texts = ["GPU 0 GPU had an uncontained error (XID 95)", "GPU 3Detected a miscompare failure in the L1 cache."]
    made = read(without_codes(2, {"GPU Memory": ", ".join(texts)}, gpu="0,3"), level=2)
    assert [(item.gpu, item.code) for item in made.findings] == [(0, 81), (3, 79)]


@pytest.mark.parametrize(
    "start", ["GPU 2 Row remapping failed", "GPU 2 had uncorrectable memory errors and row remapping failed"]
)
@pytest.mark.parametrize(
    ("rest", "code"),
    [
        (": No", None), (":no", None), (" = No", None), (" (No)", None), (" - NO.", None), (" No", None), (":\tno, ", None),
        ("", 80), (". Run a field diagnostic.", 80), (": Yes", 80), (" = yes", 80), (": GPU must be replaced", 80),
        (": Now replace it", 80), (": not repaired", 80), (" - no spare rows are left", 80), (". No further tests", 80),
        (": 0", None), (": N/A", None), (" = false", None), (": [No]", None), (" -> No", None), (": 0.5", 80),
    ],
)  # fmt: skip
def test_only_a_value_that_says_no_is_no_failure(start: str, rest: str, code: int | None) -> None:
    made = read(without_codes(1, {"Page Retirement/Row Remap": start + rest}), level=1)
    assert [item.code for item in made.findings] == [code]
    assert any(item.convicts for item in made.findings) is (code == 80)


REMAP = "GPU 3 had uncorrectable memory errors and row remapping failed."
HARMLESS = "Persistence mode for GPU 0 is currently disabled."


def with_warnings(warnings: list[str]) -> dict[str, Any]:
    document = without_codes(2, {}, gpu="0,1")
    results = document["DCGM GPU Diagnostic"]["test_categories"][0]["tests"][-1]["results"]
    results[0] = {"gpu_ids": "0,1,2,3", "status": "Fail", "warnings": warnings}
    return document


@pytest.mark.parametrize(
    "warnings",
    [
        [REMAP, *[HARMLESS] * 2500],
        [*[HARMLESS] * 2500, REMAP],
        [", ".join([*[HARMLESS] * 64, REMAP])],
        [", ".join([*[HARMLESS] * 2500, REMAP])],
        [", ".join([*["Found 12 faulty memory elements on GPU 1"] * 2500, REMAP])],
        [", ".join([*["GPU 1 is running at PCI link width 8X"] * 2500, REMAP])],
        [REMAP, "GPU 0 is well. " * 100_000],
        ["GPU 0 is well. " * 100_000, REMAP],
        [REMAP, *[""] * 100_000],
    ],
    ids=["first", "last", "65th", "joined", "faults", "others-convict", "before-long", "behind-long", "empty"],
)
def test_proof_stands_however_much_is_said_beside_it(warnings: list[str]) -> None:
    made = read(with_warnings(warnings), level=2)
    assert made.answer is Answer.FAIL and 3 in [item.gpu for item in made.findings if item.convicts]
    assert "GPU 3: replace" in made.reason and len(made.findings) <= MOST_FINDINGS


def test_of_many_faults_each_part_keeps_some_and_those_that_convict_come_first() -> None:
    link, lost = (
        "GPU {} is running at PCI link width 8X",
        "GPU {} had uncorrectable memory errors and row remapping failed",
    )
    joined = [*[link.format(0)] * 2000, *[lost.format(1)] * 2000, lost.format(2), link.format(3)]
    made = read(with_warnings([", ".join(joined)]), level=2)
    assert len(made.findings) == MOST_FINDINGS
    assert {item.gpu for item in made.findings} == {0, 1, 2, 3}
    assert [item.gpu for item in made.findings] == sorted(item.gpu or 0 for item in made.findings), "in DCGM's order"


@pytest.mark.parametrize(
    "warnings",
    [
        ["GPU 1 " * 680] * 1500,
        [HARMLESS] * 100_000,
        [HARMLESS * 100_000],
        [""] * 1_000_000,
        ["Detected " * 700_000],
        [f"Detected {'9' * 5_000_000}"],
        ["An excess of 1 retired pages due to DBEs have been detected " * 100_000],
    ],
    ids=["words", "many", "joined", "empty", "beginnings", "digits", "dots"],
)
def test_an_answer_with_too_many_warnings_and_no_fault_says_nothing_and_is_read_in_time(warnings: list[str]) -> None:
    document = json.dumps(with_warnings(warnings)).encode()
    began_s = time.process_time()
    made = read(document, level=2)
    assert time.process_time() - began_s < 6.0
    assert (made.answer, made.findings) == (Answer.INCONCLUSIVE, ()) and "too large" in made.reason


def test_a_gpus_number_is_not_cut() -> None:
    for many in range(60):
        text = "." * (MOST_MESSAGE - many) + "Found 12 faulty memory elements on GPU 13"
        document = json.dumps(with_warnings([text])).encode()
        made = read_diagnostic(document, 226, 2, range(16), convictions=RULES)
        assert {item.gpu for item in made.findings} <= {None, 13}
        assert (made.answer is Answer.FAIL) is (many >= 41)


def test_what_is_too_long_to_be_read_is_no_pass() -> None:
    """Also where nothing that was read speaks against one."""
    row = Conviction(remedy=Remedy.WATCH)
    rules = Convictions({("dcgm_words", "persistence mode"): row})
    for warnings, answer in ((1, Answer.PASS), (100_000, Answer.INCONCLUSIVE)):
        document = with_warnings([HARMLESS] * warnings)
        for test in document["DCGM GPU Diagnostic"]["test_categories"][0]["tests"]:
            for result in test["results"]:
                result["status"] = "Pass"
        made = read_diagnostic(json.dumps(document).encode(), 0, 2, range(4), convictions=rules)
        assert made.answer is answer


def test_an_error_is_judged_by_the_words_that_are_kept_of_it() -> None:
    """The daemon judges the evidence, which has the first thousand characters."""
    text = f"Found 12 faulty memory elements on GPU 1 {'.' * 1000} out of memory"
    (finding,) = (made := read(without_codes(2, {"GPU Memory": text}, gpu=1), level=2)).findings
    (item,) = evidence_of(made, "n1", 2, AT, {})
    assert finding.drain is RULES.of(item) is Drain.YES
