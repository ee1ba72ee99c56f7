"""What DCGM's messages say beside their codes, in the forms that 2.1 to 4.6 write. Texts as in DCGM's dcgm_errors.h."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from nodes.diagnostic_answers import RULES, read, with_codes, without_codes
from shipped import shipped_rules

from sentinel.classify import classify
from sentinel.config.convictions import Drain
from sentinel.evidence.diagnostics import Answer, Diagnosis, evidence_of
from sentinel.model.records import Cause, Incident, Recommendation, Verdict

AT = datetime(2026, 3, 4, 12, tzinfo=UTC)
POWER = "Max power of {} did not reach desired power minimum target_power_min_ratio of {} for GPU 2"
STRESS = "Max stress level of {} did not reach desired stress level of {} for GPU 2"
MEMORY = "GPU 2 only achieved a memory bandwidth of {} GB/s, failing to meet {} GB/s for test 1"
PCIE = "Bandwidth of GPU 2 in direction d2h of {} did not exceed minimum required bandwidth of {}."
LATENCY = "Latency type bidir of GPU 2 value {} exceeded maximum allowed latency of {}."
FLOPS = "Detected {} gflops for GPU 2 which is below the threshold {}"


def judged(*diagnoses: Diagnosis) -> Verdict:
    found = [item for number, made in enumerate(diagnoses) for item in evidence_of(made, "n1", number, AT, {})]
    return classify(Incident("i1", AT, AT, nodes=("n1",), evidence=tuple(found)), rules=shipped_rules(), now=AT)


# ------------------------------------------------------------------------------------ releases that write no codes


@pytest.mark.parametrize(
    ("test", "text", "code", "convicts"),
    [
        ("Page Retirement/Row Remap", "GPU 2 had uncorrectable memory errors and row remapping failed.", 80, True),
        (
            "Page Retirement/Row Remap",
            "GPU 2 has uncorrectable memory errors and row remappings are pending",
            85,
            True,
        ),
        ("Inforom", "A corrupt InfoROM has been detected in GPU 2. Flash the InfoROM.", 9, False),
        ("GPU Memory", "GPU 2 Found 12 faulty memory elements on GPU 2 Run a field diagnostic.", 52, True),
        ("GPU Memory", "CUDA APIs have indicated that a double-bit ECC error has occured on GPU 2.", 57, True),
        ("Diagnostic", "GPU 2 GPU had an uncontained error (XID 95) Drain the GPU.", 81, True),
        ("PCIe", "GPU 2 is running at PCI link width 8X, which is below the minimum allowed", 46, True),
        ("Targeted Stress", STRESS.format(7000.0, 15000.0), 50, False),
        ("Diagnostic", "GPU 2 Detected 1 ecc_dbe_volatile_total for GPU 2", 103, True),
        ("PCIe", "Detected 120 pcie_replay_counter for GPU 2 which is above the threshold 80", 107, True),
    ],
)
def test_a_fault_told_without_a_code_is_known_by_its_message(test: str, text: str, code: int, convicts: bool) -> None:
    made = read(without_codes(3, {test: text}))
    assert made.answer is Answer.FAIL, made.reason
    assert [(item.gpu, item.code, item.convicts) for item in made.findings] == [(2, code, convicts)]


@pytest.mark.parametrize(
    "text",
    [
        "Persistence mode for GPU 2 is disabled.",
        "Found driver on the denylist: nouveau",
        "GPU 2 Error using CUDA API cuCtxCreate: 'all CUDA-capable devices are busy or unavailable'.",
        "GPU 2 did something nobody knows",
        # On every board without NVLink, 2.4 to 3.1 (NVIDIA/DCGM issue 49).
        "GPU 2GPU 2's NvLink link 0 is currently down Run a field diagnostic on the GPU., GPU 2's NvLink link 1 is "
        "currently down Run a field diagnostic on the GPU.",
    ],
)
def test_what_is_no_fault_without_a_code_blames_nobody(text: str) -> None:
    made = read(without_codes(3, {"GPU Memory": text}))
    assert made.answer is Answer.INCONCLUSIVE
    assert not any(item.remedy.is_fault for item in made.findings)


def test_a_release_that_counts_gpus_as_gpu_ids_passes_only_those_it_tested() -> None:
    assert read(without_codes(3, {}), 0).answer is Answer.PASS
    missing = read(without_codes(3, {}, absent=3), 0)
    assert missing.answer is Answer.INCONCLUSIVE
    assert "GPU 3" in missing.reason


def test_a_result_of_several_gpus_blames_the_one_that_the_message_names() -> None:
    text = "Found 12 faulty memory elements on GPU 1"
    made = read(without_codes(2, {"GPU Memory": text}, gpu="0,1,2,3"), level=2)
    assert [item.gpu for item in made.findings] == [1]
    unnamed = read(
        without_codes(2, {"GPU Memory": "Detected a miscompare failure in the L1 cache."}, gpu="0,1"), level=2
    )
    assert [item.gpu for item in unnamed.findings] == [None]


def test_level_one_of_3_3_keeps_the_gpu_of_its_last_error_and_the_messages_name_the_others() -> None:
    errors = [
        {"warnings": "GPU 1 had uncorrectable memory errors and row remapping failed.", "error_id": 80,
         "error_severity": 2},
        {"warnings": "GPU 3 had memory errors and row remappings are pending", "error_id": 85, "error_severity": 6},
    ]  # fmt: skip
    document = without_codes(1, {"Page Retirement/Row Remap": ""})
    test = document["DCGM GPU Diagnostic"]["test_categories"][0]["tests"][6]
    test["results"] = [{"status": "Fail", "gpu_id": 3, "warnings": errors}]
    assert [(item.gpu, item.code) for item in read(document, 205, 1).findings] == [(1, 80), (3, 85)]


# --------------------------------------------------------------------------------------------- missed by how much


@pytest.mark.parametrize(
    ("code", "text", "close", "far"),
    [
        (63, POWER, (664.9, 665.0), (301.4, 665.0)),
        (50, STRESS, (28710.2, 29000.0), (9800.0, 29000.0)),
        (62, MEMORY, ("2695.10", "2700.00"), ("1402.10", "2700.00")),
        (30, PCIE, ("39.80", "40.00"), ("12.31", "40.00")),
        (31, LATENCY, ("101.20", "100.00"), ("340.00", "100.00")),
        (110, FLOPS, ("12071.10", "12100.00"), ("4100.00", "12100.00")),
    ],
)
def test_a_test_missed_by_little_makes_a_suspect_and_recommends_no_drain(
    code: int, text: str, close: tuple[object, ...], far: tuple[object, ...]
) -> None:
    made = read(with_codes((code, 4, text.format(*close))))
    assert (made.answer, made.findings[0].remedy) == (Answer.FAIL, "investigate")
    assert judged(made).recommendation is Recommendation.SUSPECT
    assert judged(read(with_codes((code, 4, text.format(*far))))).recommendation is Recommendation.DRAIN


def test_two_tests_missed_by_little_drain_nothing_and_two_missed_by_far_do() -> None:
    close = judged(
        read(with_codes((63, 4, POWER.format(664.9, 665)))), read(with_codes((50, 4, STRESS.format(99, 100))))
    )
    assert (close.drain, close.suspect) == ((), ("n1",))
    far = judged(read(with_codes((63, 4, POWER.format(300, 665)))), read(with_codes((50, 4, STRESS.format(20, 100)))))
    assert far.drain == ("n1",)


@pytest.mark.parametrize("text", ["", POWER.format("nan", 665), POWER.format(300, 0), POWER.format("9" * 400, "x")])
def test_a_miss_whose_size_is_not_known_counts_as_the_table_says(text: str) -> None:
    (finding,) = read(with_codes((63, 4, text))).findings
    assert (finding.missed_pct, finding.drain) == (None, Drain.ADVISE)


# ------------------------------------------------------------------------- codes and severities that say otherwise


@pytest.mark.parametrize(
    ("code", "severity", "text"),
    [
        (38, 2, "The memory copy utilization for the GPU: 2 is greater than 10%. This may affect the results"),
        (32, 2, "Failed to get the memory copy utilization for the GPU: 2"),
    ],
)
def test_alarms_of_nvbandwidth_about_its_own_measuring_blame_nobody(code: int, severity: int, text: str) -> None:
    """DCGM 4.2 to 4.5 give them the severity ISOLATE on healthy, idle GPUs (NVIDIA/DCGM issue 272)."""
    made = read(with_codes((code, severity, text), test="nvbandwidth"), 205)
    assert made.answer is Answer.INCONCLUSIVE
    assert not any(item.remedy.is_fault for item in made.findings)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (51, "Error using CUDA API cuCtxGetCurrent : 'uncorrectable ECC error encountered' (214) for GPU 2"),
        (65, "API call cudaStreamSynchronize failed for GPU 2: 'uncorrectable ECC error encountered'"),
        (65, "API call cudaMemcpyAsync failed for GPU 2: 'uncorrectable NVLink error detected during the execution'"),
    ],
)
def test_a_hardware_error_that_cuda_reports_outweighs_the_code_of_the_call(code: int, text: str) -> None:
    made = read(with_codes((code, 4, text)))
    assert (made.answer, made.findings[0].gpu, made.findings[0].convicts) == (Answer.FAIL, 2, True)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (9, "Inforom: A corrupt InfoROM has been detected in GPU 2."),
        (99, "Only 17 NvLinks are up out of the expected 18"),
        (101, "Detected XID 31 for GPU 2"),
    ],
)
def test_a_fault_that_dcgm_leaves_to_people_is_a_failure_that_convicts_nobody(code: int, text: str) -> None:
    made = read(with_codes((code, 4, text)))
    assert made.answer is Answer.FAIL
    assert not made.findings[0].convicts


@pytest.mark.parametrize("text", ["There were thermal violations totaling 45.3 seconds for GPU 2", "a contained error"])
def test_the_reason_of_a_failed_test_is_told_also_where_it_is_no_fault(text: str) -> None:
    made = read(with_codes((40, 1, text)))
    assert made.answer is Answer.INCONCLUSIVE
    assert text in made.reason


def test_an_xid_during_a_test_makes_a_suspect() -> None:
    assert judged(read(with_codes((101, 4, "Detected XID 31 for GPU 2")))).recommendation is Recommendation.SUSPECT


# ------------------------------------------------------------------------------------------ parts that are no GPUs


@pytest.mark.parametrize(
    ("group", "code", "text", "cause"),
    [
        ("Switch", 15, "Detected fatal errors on NvSwitch 2 link 12", Cause.GPU_NVLINK),
        ("Switch", 88, "NVSwitch 2's NvLink 4 is down.", Cause.GPU_NVLINK),
        ("CPU", 95, "EUD test failed", Cause.NODE_OS_OR_HOST),
    ],
)
def test_a_broken_switch_or_cpu_fails_its_node_and_blames_no_gpu(
    group: str, code: int, text: str, cause: Cause
) -> None:
    made = read(with_codes((code, 2, text), group=group), 205)
    assert made.answer is Answer.FAIL
    assert f"{group.lower()} 2" in made.reason
    (failed,) = evidence_of(made, "n1", 3, AT, {})
    assert (failed.where.gpu, failed.data["convicts"]) == (None, True)
    assert (judged(made).cause, judged(made).drain) == (cause, ("n1",))


@pytest.mark.parametrize(
    ("group", "number"), [("GPU_I", 2), ("GPU", 4294967295), ("None", 2), ("Switch", None), ("CPU", -1)]
)
def test_what_is_no_part_of_a_node_fails_nothing(group: str, number: object) -> None:
    document = with_codes((15, 2, "Detected fatal errors"), group=group)
    result = document["DCGM Diagnostic"]["test_categories"][0]["tests"][0]["results"][0]
    result["entity_id"] = number
    assert read(document, 205).answer is Answer.INCONCLUSIVE


# ------------------------------------------------------------------------------------------------------- damage


def test_a_code_beyond_all_codes_is_damage_and_the_message_stands() -> None:
    text = "GPU 2 had uncorrectable memory errors and row remapping failed."
    (finding,) = read(with_codes((10**300, 2, text)), 205).findings
    assert (finding.code, finding.gpu, finding.convicts) == (80, 2, True)


@pytest.mark.parametrize("text", ["9" * 1_000_000, "GPU 1 had uncorrectable memory errors and " * 100_000])
def test_a_message_without_end_costs_no_time(text: str) -> None:
    began_s = time.process_time()
    made = read(without_codes(1, {"Inforom": text}), level=1)
    assert made.answer is Answer.INCONCLUSIVE
    assert time.process_time() - began_s < 1.0


def test_a_key_with_two_values_is_damage() -> None:
    content = json.dumps(without_codes(1, {})).encode()
    assert read(content, 0, 1).answer is Answer.PASS
    twice = content.replace(b'"status": "Pass"', b'"status": "Fail", "status": "Pass"', 1)
    assert read(twice, 0, 1).answer is Answer.INCONCLUSIVE
    error = b'{"DCGM GPU Diagnostic": {"runtime_error": "x"}, ' + content[1:]
    assert read(error, 0, 1).answer is Answer.INCONCLUSIVE


def test_a_gpu_that_the_machine_has_not_is_damage() -> None:
    text = "Found 1 faulty memory elements on GPU 37"
    assert read(without_codes(2, {"GPU Memory": text}, gpu="0,1"), level=2).answer is Answer.INCONCLUSIVE


@pytest.mark.parametrize("code", [14, 23, 28, 29, 55])
def test_what_old_releases_call_isolate_and_is_a_setting_convicts_nobody(code: int) -> None:
    assert RULES.diagnostic(code, 2).drain in (Drain.NO, Drain.SUSPECT)


def test_braces_without_end_cost_a_few_readings_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in characters, since no machine is quiet enough for a time."""
    read_so_far = []
    decode = json.JSONDecoder.raw_decode

    def counted(self: json.JSONDecoder, text: str, start: int = 0) -> Any:
        read_so_far.append(len(text) - start)
        return decode(self, text, start)

    monkeypatch.setattr(json.JSONDecoder, "raw_decode", counted)
    output = b'{"a":' * 150 + b"[" + b"0," * 50_000
    assert read(output).answer is Answer.INCONCLUSIVE
    assert sum(read_so_far) <= 5 * len(output)
