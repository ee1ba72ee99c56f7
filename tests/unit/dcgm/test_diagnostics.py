"""Diagnostic outputs → pass, fail, inconclusive. Outputs are generated in the form of DCGM 4.6.0 and 3.3."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from sentinel.config.rules_files import load_convictions
from sentinel.evidence.diagnostics import Answer, Diagnosis, evidence_of, read_diagnostic
from sentinel.model.records import Kind, utc

RULES = load_convictions()

TESTS = {
    1: ["software"],
    2: ["memory", "pcie"],
    3: ["diagnostic", "nvbandwidth", "memory_bandwidth", "targeted_stress", "targeted_power"],
    4: ["memtest", "pulse_test"],
}
OLD = {
    1: ["Denylist", "NVML Library", "CUDA Main Library", "Permissions and OS Blocks", "Persistence Mode",
        "Environment Variables", "Page Retirement/Row Remap", "Graphics Processes", "Inforom"],
    2: ["GPU Memory", "PCIe"],
    3: ["Diagnostic", "Targeted Stress", "Targeted Power"],
    4: ["Memtest", "Pulse Test"],
}  # fmt: skip


def warning(code: int, severity: int, text: str = "something is off") -> dict[str, Any]:
    return {"error_category": 10, "error_id": code, "error_severity": severity, "warning": text}


def new_form(
    level: int, gpus: int = 8, blame: dict[tuple[str, int], dict[str, Any]] | None = None, absent: tuple[str, ...] = ()
) -> dict[str, Any]:
    blame = blame or {}
    tests = []
    for name in [name for number in range(1, level + 1) for name in TESTS[number] if name not in absent]:
        mine = {gpu: item for (test, gpu), item in blame.items() if test == name}
        results = []
        for gpu in range(gpus):
            bad = bool(mine) if name == "software" else gpu in mine
            result = {
                "entity_group": "GPU",
                "entity_group_id": 1,
                "entity_id": gpu,
                "status": "Fail" if bad else "Pass",
            }
            if gpu in mine:
                result["warnings"] = [mine[gpu]]
            results.append(result)
        summary: dict[str, Any] = {"status": "Fail" if mine else "Pass"}
        if mine:
            summary["warnings"] = list(mine.values())
        tests.append({"name": name, "results": results, "test_summary": summary})
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": "Any", "tests": tests}]},
        "metadata": {"version": "4.6.0"},
    }


def old_form(level: int, gpus: int = 8) -> dict[str, Any]:
    tests: list[dict[str, Any]] = [{"name": name, "results": [{"status": "PASS"}]} for name in OLD[1]]
    for number in range(2, level + 1):
        for name in OLD[number]:
            tests.append({"name": name, "results": [{"gpu_id": str(gpu), "status": "PASS"} for gpu in range(gpus)]})
    body = {"test_categories": [{"category": "Any", "tests": tests}], "version": "3.3.9"}
    return {"DCGM GPU Diagnostic": body}


def read(document: Any, status: int = 0, level: int = 1, **rest: Any) -> Diagnosis:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_diagnostic(content, status, level, convictions=RULES, **rest)


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_a_clean_run_of_either_version_passes(level: int) -> None:
    assert read(new_form(level), level=level, gpus=range(8)).answer is Answer.PASS
    assert read(old_form(level), level=level, gpus=range(8)).answer is Answer.PASS


def test_the_name_that_a_test_had_before_is_known() -> None:
    document = json.loads(json.dumps(old_form(2)).replace("Denylist", "Blacklist"))
    assert read(document, level=2, gpus=range(8)).answer is Answer.PASS


def test_a_missing_plugin_is_no_pass_although_the_status_is_0() -> None:
    made = read(new_form(2, absent=("memory",)), level=2)
    assert made.answer is Answer.INCONCLUSIVE
    assert "memory" in made.reason


def test_blame_only_where_the_warning_is() -> None:
    made = read(new_form(1, blame={("software", 5): warning(85, 6)}), 226)
    assert made.answer is Answer.FAIL
    assert [(finding.gpu, finding.code, finding.remedy) for finding in made.findings] == [(5, 85, "reset")]


def test_a_bad_gpu_is_named_with_its_remedy() -> None:
    made = read(new_form(2, blame={("memory", 3): warning(52, 2)}), 205, level=2)
    assert (made.answer, made.findings[0].gpu, made.findings[0].remedy) == (Answer.FAIL, 3, "replace")
    assert made.findings[0].convicts


@pytest.mark.parametrize("number", [-1, 4096, 10**400, "-3", True, None, "two"])
def test_a_number_that_no_gpu_has_is_damage_and_blames_nobody(number: object) -> None:
    document = new_form(2, blame={("memory", 3): warning(52, 2)})
    for test in document["DCGM Diagnostic"]["test_categories"][0]["tests"]:
        for result in test["results"]:
            result["entity_id"] = number if result["entity_id"] == 3 else result["entity_id"]
    made = read(document, 205, level=2)
    assert made.answer is Answer.INCONCLUSIVE
    assert not any(finding.convicts for finding in made.findings)


@pytest.mark.parametrize(
    ("code", "severity", "answer", "remedy"),
    [
        (80, 6, Answer.FAIL, "replace"),  # reset for DCGM since 4.6
        (46, 5, Answer.FAIL, "replace"),  # configuration for DCGM
        (62, 4, Answer.FAIL, "investigate"),
        (29, 5, Answer.INCONCLUSIVE, "configure"),
        (25, 6, Answer.INCONCLUSIVE, "busy"),
        (24, 2, Answer.INCONCLUSIVE, "configure"),
        (56, 4, Answer.INCONCLUSIVE, "busy"),
        (44, 4, Answer.INCONCLUSIVE, "unclear"),
        (9999, 3, Answer.INCONCLUSIVE, "unclear"),
    ],
)
def test_severities_and_their_overrides(code: int, severity: int, answer: Answer, remedy: str) -> None:
    made = read(new_form(2, blame={("memory", 1): warning(code, severity)}), 226, level=2)
    assert (made.answer, made.findings[0].remedy) == (answer, remedy)


def test_investigate_is_a_failure_that_convicts_nobody() -> None:
    made = read(new_form(2, blame={("pcie", 1): warning(30, 4)}), 226, level=2)
    assert made.answer is Answer.FAIL
    assert not made.findings[0].convicts


def test_busy_in_the_text_outweighs_the_code() -> None:
    busy = warning(51, 2, "CUDA call failed: all CUDA-capable devices are busy or unavailable")
    assert read(new_form(2, blame={("memory", 1): busy}), 205, level=2).answer is Answer.INCONCLUSIVE


def test_a_warning_beside_passes_is_no_pass() -> None:
    document = new_form(2)
    test = document["DCGM Diagnostic"]["test_categories"][0]["tests"][1]
    test["results"][0]["warnings"] = [warning(56, 4)]
    test["test_summary"]["status"] = "Fail"
    assert read(document, 226, level=2).answer is Answer.INCONCLUSIVE


def test_an_error_of_the_whole_system_blames_no_gpu() -> None:
    document = new_form(1)
    summary = document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["test_summary"]
    summary.update(status="Fail", warnings=[warning(20, 5, "found 7 devices, expected 8")])
    made = read(document, 226)
    assert made.answer is Answer.INCONCLUSIVE
    assert made.findings[0].gpu is None


def test_a_switch_is_no_gpu() -> None:
    document = new_form(1)
    results = document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["results"]
    results.append({"entity_group": "NVSwitch", "entity_group_id": 3, "entity_id": 0, "status": "Fail",
                    "warnings": [warning(15, 2)]})  # fmt: skip
    made = read(document, 226)
    assert made.findings[0].gpu is None
    assert (made.answer, made.reason) == (Answer.FAIL, "nvswitch 0: replace (error 15 in software)")


def test_a_gpu_that_was_not_tested_is_no_pass() -> None:
    made = read(new_form(1, gpus=7), gpus=range(8))
    assert made.answer is Answer.INCONCLUSIVE
    assert "7" in made.reason


def test_all_skipped_is_no_pass() -> None:
    document = new_form(1)
    test = document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]
    for result in test["results"]:
        result["status"] = "Skip"
    test["test_summary"]["status"] = "Skip"
    assert read(document).answer is Answer.INCONCLUSIVE


def test_a_status_that_contradicts_the_json_is_no_pass() -> None:
    assert read(new_form(1), 226).answer is Answer.INCONCLUSIVE


@pytest.mark.parametrize("code", [-34, -39, -11, -1, -21, -53, -58, -66])
def test_dcgms_own_refusals_are_inconclusive(code: int) -> None:
    error = f"Error: Unable to complete diagnostic for entities *,cpu:*. Return: ({code}) : so it is\n"
    for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic"):
        made = read({key: {"runtime_error": error}}, (256 + code) & 255)
        assert made.answer is Answer.INCONCLUSIVE
        assert made.reason


def test_mig_is_not_applicable() -> None:
    text = "Return: (-30) : Cannot run diagnostic: CUDA does not support enumerating GPUs with MIG mode enabled"
    assert "not applicable" in read({"DCGM Diagnostic": {"runtime_error": text}}, 226).reason


def test_text_around_the_json_does_no_harm() -> None:
    content = b"[./a.h][81] key [X] {not json} \n" + json.dumps(new_form(1)).encode() + b"\nbye {\n"
    assert read(content).answer is Answer.PASS


def test_an_engine_inside_dcgmi_answers_for_nobody() -> None:
    content = (
        b"Error: unable to establish a connection to the specified host: 127.0.0.1\n" + json.dumps(new_form(1)).encode()
    )
    assert read(content).answer is Answer.INCONCLUSIVE


def test_the_old_form_of_level_one_keeps_its_text_under_another_key() -> None:
    document = old_form(1)
    tests = document["DCGM GPU Diagnostic"]["test_categories"][0]["tests"]
    tests[6]["results"] = [
        {"status": "Fail", "gpu_id": 2, "warnings": [{"warnings": "row remap failed", "error_id": 80}]}
    ]
    made = read(document, 205)
    assert (made.answer, made.findings[0].gpu, made.findings[0].text) == (Answer.FAIL, 2, "row remap failed")


def test_evidence_of_the_three_answers() -> None:
    at = utc(2_000_000_000)
    uuids = {3: "GPU-three"}
    (passed,) = evidence_of(read(new_form(1)), "n1", 1, at, uuids)
    assert passed.kind == Kind.DIAG_PASSED
    (failed,) = evidence_of(read(new_form(2, blame={("memory", 3): warning(52, 2)}), 205, 2), "n1", 2, at, uuids)
    assert (failed.kind, failed.where.gpu_uuid, failed.data["convicts"]) == (Kind.DIAG_FAILED, "GPU-three", True)
    (width,) = evidence_of(read(new_form(2, blame={("pcie", 3): warning(46, 5)}), 226, 2), "n1", 2, at, uuids)
    assert (width.data["severity"], width.data["dcgm_severity"], width.data["category"]) == (2, 5, 10)
    (unknown,) = evidence_of(read(b""), "n1", 1, at, uuids)
    assert unknown.kind == Kind.UNREADABLE


def _mutations(random_: random.Random) -> tuple[bytes, int, int, bool]:
    """One output, its status, its level, and whether a careful person would call it a pass."""
    level = random_.randint(1, 4)
    document = new_form(level) if random_.random() < 0.6 else old_form(level)
    content = json.dumps(document, indent=random_.choice([None, 1])).encode()
    kind = random_.randrange(8)
    status, good = 0, False
    if kind == 0:
        content = content[: random_.randrange(len(content))]
    elif kind == 1:
        place = random_.randrange(1, len(content) - 1)
        content = content[:place] + random_.choice([b"\x00", b"[log] line\n", b"\xff\xfe", b'"']) + content[place:]
    elif kind == 2:
        content = re.sub(
            rb'"(Pass|PASS)"', random_.choice([b"7", b"null", b"[]", b'"Maybe"', b'""', b"{}"]), content, count=1
        )
    elif kind == 3:
        content = content.replace(b'"tests":', random_.choice([b'"test":', b'"Tests_":']))
    elif kind == 4:
        body = next(iter(document.values()))
        tests = body["test_categories"][0]["tests"]
        optional = {"nvbandwidth"}  # not there before 4.0
        victim = random_.choice([test for test in tests if test["name"] not in optional])
        tests.remove(victim)
        content = json.dumps(document).encode()
    elif kind == 5:
        status = random_.choice([1, 190, 203, 205, 222, 226, 245, 254, 255])
    elif kind == 6:
        body = next(iter(document.values()))
        random_.choice(body["test_categories"][0]["tests"])["results"] = random_.choice(
            [None, [], {}, "Pass", [1, "x"], [None]]
        )
        content = json.dumps(document).encode()
    else:
        good = True
    return content, status, level, good


def test_a_thousand_outputs_none_read_as_pass_that_is_none() -> None:
    random_ = random.Random(20310506)
    passes = 0
    for _ in range(1000):
        content, status, level, good = _mutations(random_)
        made = read_diagnostic(content, status, level, range(8), convictions=RULES)
        assert made.answer in Answer
        if made.answer is Answer.PASS:
            passes += 1
            assert good or _same_meaning(content, level), content[:300]
    assert passes > 50


def _same_meaning(content: bytes, level: int) -> bool:
    """A cut or an insertion that left the document whole."""
    start = content.find(b"{")
    try:
        document, _ = json.JSONDecoder().raw_decode(content[start:].decode("utf-8", "replace"))
    except ValueError:
        return False
    return _statuses(document) == _statuses(new_form(level)) or _statuses(document) == _statuses(old_form(level))


def _statuses(document: Any) -> list[tuple[str, list[str]]]:
    body = next(iter(document.values()))
    return [
        (test["name"], [result["status"] for result in test["results"]])
        for category in body["test_categories"]
        for test in category["tests"]
    ]


SAMPLES = Path(__file__).resolve().parents[4] / "shared" / "samples" / "dcgm"


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="recorded outputs of DCGM are not at hand")
def test_recorded_outputs() -> None:
    passed = set()
    for line in (SAMPLES / "INDEX.md").read_text().splitlines():
        match = re.match(r"- (\S+) rc=(\d+)(.*)", line)
        if match is None or not re.search(r"diag|took", match[3]):
            continue
        level = re.search(r"-r (\d)", match[3])
        made = read_diagnostic(
            (SAMPLES / f"v4_{match[1]}.out").read_bytes(),
            int(match[2]),
            int(level[1]) if level else 2,
            convictions=RULES,
        )
        assert made.answer is not Answer.FAIL, match[1]
        if made.answer is Answer.PASS:
            passed.add(match[1])
    assert passed == {
        "l1_pass", "one_gpu", "diag_after_inject", "nonroot_client_diag", "diag_no_hostengine_embedded",
        "l2_pass", "l3_pass", "l4_pass", "after_timeout", "l1_persistence_param",
    }  # fmt: skip
