"""``sentinel classify`` on what GPU tools print: DCGM's diagnostics, health, links and fields, nvidia-smi, metrics.

All texts are made up, in the form of DCGM 2 to 4.6 and of drivers 470 to 580.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.cli.offline.classify import classify

RULE = "+---------------------------+------------------------------------------------+\n"


def ask(tmp_path: Path, content: str, name: str = "dcgm-output.txt") -> dict[str, Any]:
    (tmp_path / name).write_text(content)
    result = CliRunner().invoke(classify, ["--json", "--node", "n1", str(tmp_path / name)])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.output)
    return answer


def row(left: str, right: str) -> str:
    return f"| {left:<25} | {right:<46} |\n"


def diagnostic(test: str, gpu: int, **warning: Any) -> dict[str, Any]:
    """An answer of version 4 in which one test blames one GPU of four."""
    results = [
        {"entity_group": "GPU", "entity_id": n, "status": "Fail" if n == gpu else "Pass"}
        | ({"warnings": [warning]} if n == gpu else {})
        for n in range(4)
    ]
    tests = [{"name": test, "results": results, "test_summary": {"status": "Fail", "warnings": [warning]}}]
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": "Any", "tests": tests}]},
        "metadata": {"version": "4.4.1"},
    }


def error(code: int, severity: int, category: int, text: str) -> dict[str, Any]:
    return {"error_id": code, "error_severity": severity, "error_category": category, "warning": text}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_failed_diagnostic_convicts_by_its_code(tmp_path: Path, indent: int | None) -> None:
    answer = ask(tmp_path, json.dumps(diagnostic("memory", 2, **error(52, 2, 10, "as the test says")), indent=indent))
    assert (answer["cause"], answer["drain"]) == ("gpu_memory_ecc", ["n1"])
    assert answer["culprits"]["gpus"] == ["n1:2"]
    unnamed = ask(tmp_path, json.dumps(diagnostic("memory", 2, **error(52, 2, 10, "as the test says"))), "out.json")
    assert (unnamed["cause"], unnamed["drain"], unnamed["drain_recommended"]) == ("gpu_memory_ecc", [], True)


@pytest.mark.parametrize(
    ("warning", "cause"),
    [
        (error(46, 5, 13, "GPU 2 is running at PCI link width 8X"), "pcie"),
        (error(30, 4, 1, "Bandwidth of GPU 2 in direction d2h of 3.1 did not exceed"), "pcie"),
        (error(115, 2, 11, "GPU 2 was unsuccessfully written to by GPU 3 over NVLink"), "gpu_nvlink"),
        (error(125, 6, 15, "GPU 2 requires a reset"), "gpu_gsp_or_driver"),
        (error(120, 2, 15, "GPU 2 has fallen off the bus"), "gpu_fallen_off_bus"),
        (error(40, 1, 9, "There were thermal violations totaling 3.0 seconds for GPU 2"), "gpu_thermal_power"),
        (error(14, 4, 11, "GPU 2's NvLink link 4 is currently down"), "gpu_nvlink"),
    ],
)
def test_the_code_names_the_cause(tmp_path: Path, warning: dict[str, Any], cause: str) -> None:
    assert ask(tmp_path, json.dumps(diagnostic("pcie", 2, **warning)))["cause"] == cause


@pytest.mark.parametrize(
    "warning",
    [
        error(29, 5, 3, "Persistence mode for GPU 2 is disabled."),
        error(56, 4, 8, "Couldn't allocate at least 75.0% of GPU memory on GPU 2"),
        error(65, 4, 6, "API call cuCtxCreate failed for GPU 2: 'all CUDA-capable devices are busy or unavailable'"
              " Check DCGM and system logs for errors."),
        error(122, 2, 8, "IMEX daemon status is -3 (not READY)"),  # runs only where a domain of several nodes is in use
        error(25, 6, 8, "NVVS has detected processes with graphics contexts open running on at least one GPU."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["dcgm-output.txt", "out.json"])
def test_settings_and_neighbours_are_no_fault(tmp_path: Path, warning: dict[str, Any], name: str) -> None:
    answer = ask(tmp_path, json.dumps(diagnostic("memory", 2, **warning)), name)
    assert (answer["cause"], answer["recommendation"]) == ("unknown", "none")


@pytest.mark.parametrize(
    "text",
    [
        "Error: Unable to complete diagnostic for entities 3. Return: (-30) : The NVVS binary met an error: MIG is on.",
        "Error: Unable to complete diagnostic for entities 77. Return: (-1) : Bad parameter passed to function",
        "Error: Unable to complete diagnostic for group 0. Return: (-34) : The resource is in use",
    ],
)
def test_a_diagnostic_that_did_not_run_says_nothing(tmp_path: Path, text: str) -> None:
    for root in ("DCGM Diagnostic", "DCGM GPU Diagnostic"):
        content = json.dumps({root: {"runtime_error": text, "version": "4.4.1"}}, indent=1)
        assert ask(tmp_path, content)["recommendation"] == "none"
    assert ask(tmp_path, text + "\n")["recommendation"] == "none"


def test_the_form_of_version_3_and_of_older_ones_without_codes(tmp_path: Path) -> None:
    level1 = {"name": "Page Retirement/Row Remap", "results": [
        {"status": "Fail", "gpu_id": 1, "warnings": [
            {"warnings": "GPU 1 had uncorrectable memory errors and row remapping failed.", "error_id": 80}
        ]}]}  # fmt: skip
    answer = ask(
        tmp_path, json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"category": "D", "tests": [level1]}]}})
    )
    assert (answer["cause"], answer["drain"]) == ("gpu_memory_ecc", ["n1"])
    old = {"name": "SM Stress", "results": [
        {"gpu_ids": "3", "status": "FAIL", "warnings": "Max stress level of 21.0 did not exceed desired stress level of 99.0"
         " for GPU 3"}]}  # fmt: skip
    answer = ask(
        tmp_path, json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"category": "S", "tests": [old]}]}})
    )
    assert (answer["cause"], answer["suspect"], answer["culprits"]["gpus"]) == ("gpu_gsp_or_driver", ["n1"], ["n1:3"])


def table(*rows: str) -> str:
    return f"Successfully ran diagnostic for group.\n{RULE}{row('Diagnostic', 'Result')}{RULE}{''.join(rows)}{RULE}"


def test_tables_of_both_versions_name_gpu_and_cause(tmp_path: Path) -> None:
    new = table(
        row("memory", "Fail"), row("", "GPU0: Pass"), row("", "GPU1: Fail"),
        row("Warning: GPU1", "Found 9 faulty memory elements on GPU 1 Run a"), row("", "field diagnostic on the GPU."),
    )  # fmt: skip
    old = table(row("GPU Memory", "Fail - GPU: 1"), row("Warning", "GPU 1 Found 9 faulty memory elements on GPU 1"))
    for content in (new, old):
        answer = ask(tmp_path, content)
        assert (answer["cause"], answer["drain"], answer["culprits"]["gpus"]) == ("gpu_memory_ecc", ["n1"], ["n1:1"])


@pytest.mark.parametrize(
    "before", ["    ", "2026-03-04T05:06:07.123456789Z stdout F ", "Mar  4 05:06:07 n1 prolog[77]: "]
)
def test_a_table_is_read_behind_what_a_log_puts_before_its_lines(tmp_path: Path, before: str) -> None:
    content = table(
        row("memory", "Fail"), row("", "GPU1: Fail"), row("Warning: GPU1", "Found 9 faulty memory elements on GPU 1"),
    )  # fmt: skip
    answer = ask(tmp_path, "".join(f"{before}{line}\n" for line in content.splitlines()), "out.txt")
    assert (answer["cause"], answer["culprits"]["gpus"]) == ("gpu_memory_ecc", ["n1:1"])


def test_a_message_broken_within_a_word_is_read(tmp_path: Path) -> None:
    content = table(
        row("software", "Fail"), row("", "GPU0: Fail"),
        row("Warning: GPU0", "Page Retirement/Row Remap: GPU 0 had memory er"),
        row("", "rors and row remappings are pending"),
    )  # fmt: skip
    assert ask(tmp_path, content)["cause"] == "gpu_memory_ecc"


def test_a_test_that_some_gpus_pass_and_others_fail(tmp_path: Path) -> None:
    part = (
        row("Memory Bandwidth", "Pass - GPUs: 0, 2, 3") + row("", "Fail - GPU: 1")
        + row("Warning", "GPU 1 Thermal violations totaling 12.1 second") + row("", "s started at 8.2 seconds into the tes")
    )  # fmt: skip
    for content in (table(part), part):
        answer = ask(tmp_path, content)
        assert (answer["cause"], answer["culprits"]["gpus"]) == ("gpu_thermal_power", ["n1:1"])
        assert "12.1 seconds started" in answer["evidence"][0]["text"]
    silent = row("GPU Memory", "Pass - GPUs: 0, 2, 3") + row("", "Fail - GPU: 1")
    assert ask(tmp_path, table(silent))["recommendation"] == "drain"


def test_an_error_row_of_level_1(tmp_path: Path) -> None:
    content = table(row("Error", "GPU 3 has uncorrectable memory errors and row"), row("", " remappings are pending"))
    answer = ask(tmp_path, content)
    assert (answer["cause"], answer["drain"], answer["culprits"]["gpus"]) == ("gpu_memory_ecc", ["n1"], ["n1:3"])


def test_a_table_without_failures_says_nothing(tmp_path: Path) -> None:
    content = table(row("Persistence Mode", "Pass"), row("PCIe", "Skip - All"), row("GPU Memory", "Pass - All"))
    assert ask(tmp_path, content)["recommendation"] == "none"


def health(*rows: str) -> str:
    title = f"| {'Health Monitor Report':<84} |\n"
    return f"{RULE}{title}{RULE}{row('Overall Health', 'Failure')}{row('GPU', '')}{''.join(rows)}{RULE}"


def test_messages_of_health_are_read_whole(tmp_path: Path) -> None:
    content = health(
        row("-> 2", "Failure"), row("   -> Errors", ""), row("      -> Driver", "Failure"),
        row("", "GPU 2 fault may have left the OS in an"), row("", "inconsistent state. Recovery action: 2"),
        row("", "(NODE_REBOOT). Reboot the node."),
    )  # fmt: skip
    answer = ask(tmp_path, content)
    assert (answer["cause"], answer["suspect"], answer["drain"]) == ("gpu_gsp_or_driver", ["n1"], [])
    assert answer["culprits"]["gpus"] == ["n1:2"]
    pieces = ["GPU 2 fault may have left the OS in an", "inconsistent state. Recovery action: 2", "(NODE_REBOOT)."]
    gpu = {"children": {"Errors": {"children": {"Driver": {"overflow": pieces, "value": "Failure"}}}}}
    tree = {"header": ["Health Monitor Report"], "body": {"GPU": {"children": {"2": gpu}}}}
    assert ask(tmp_path, json.dumps(tree))["cause"] == "gpu_gsp_or_driver"


def test_links_by_letters_and_counts(tmp_path: Path) -> None:
    status = "GPUs:\n    gpuId 0:\n        U U U U\n    gpuId 1:\n        U {} U U\nKey: Up=U, Down=D, Disabled=X\n"
    down = ask(tmp_path, status.format("D"))
    assert (down["cause"], down["suspect"], down["culprits"]["gpus"]) == ("gpu_nvlink", ["n1"], ["n1:1"])
    for letter in "UX_":
        assert ask(tmp_path, status.format(letter))["recommendation"] == "none"
    counts = {"Replay Error": {"value": "{}"}, "CRC FLIT Error": {"value": "3"}}
    tree = {"header": ["NVLINK Error Counts", "GPU 0"], "body": {"Link 1": {"children": counts}}}
    assert ask(tmp_path, json.dumps(tree).replace("{}", "0"))["recommendation"] == "none"
    assert ask(tmp_path, json.dumps(tree).replace("{}", "88"))["cause"] == "gpu_nvlink"


def test_a_policy_and_the_watches_that_are_set_are_no_fault(tmp_path: Path) -> None:
    title = f"| {'Policy Information':<84} |\n"
    content = (
        f"{RULE}{title}{RULE}{row('Violation conditions', 'Double-bit ECC errors')}{row('', 'NVLink Errors')}{RULE}"
    )
    assert ask(tmp_path, content)["recommendation"] == "none"


DMON = "#Entity   XIDER     RRF       TMPTR\nID                            C\nGPU 0     {xid}       {rrf}         41\n"


def test_fields_in_columns(tmp_path: Path) -> None:
    assert ask(tmp_path, DMON.format(xid="N/A", rrf=0))["recommendation"] == "none"
    assert ask(tmp_path, DMON.format(xid="N/A", rrf=1))["cause"] == "gpu_memory_ecc"
    last = ask(tmp_path, DMON.format(xid=79, rrf=0))
    assert (last["cause"], last["drain"], last["suspect"]) == (
        "gpu_fallen_off_bus",
        [],
        ["n1"],
    )  # how long ago is not known


METRICS = (
    "# HELP DCGM_FI_DEV_THERMAL_VIOLATION Throttling duration due to thermal constraints (in us).\n"
    "# TYPE DCGM_FI_DEV_THERMAL_VIOLATION counter\n"
    'DCGM_FI_DEV_THERMAL_VIOLATION{{gpu="3",Hostname="n1"}} 0\n'
    "# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.\n"
    'DCGM_FI_DEV_XID_ERRORS{{gpu="3",Hostname="n1"}} {xid}\n'
    'DCGM_FI_DEV_ROW_REMAP_FAILURE{{gpu="3",Hostname="n1"}} {rrf}\n'
)


@pytest.mark.parametrize("name", ["dcgm-exporter.prom", "metrics.txt"])
def test_metrics_are_read_by_value(tmp_path: Path, name: str) -> None:
    assert ask(tmp_path, METRICS.format(xid=0, rrf=0), name)["recommendation"] == "none"
    assert ask(tmp_path, METRICS.format(xid=0, rrf=1), name)["cause"] == "gpu_memory_ecc"
    last = ask(tmp_path, METRICS.format(xid=79, rrf=0), name)
    assert (last["cause"], last["drain"], last["culprits"]["gpus"]) == ("gpu_fallen_off_bus", [], ["n1:3"])


XML = """<nvidia_smi_log>
    <gpu id="00000000:1B:00.0">
        <product_name>{product}</product_name>
        <max_link_width>16x</max_link_width>
        <current_link_width>{lanes}x</current_link_width>
        <ecc_errors>
            <volatile>
                <dram_uncorrectable>{now}</dram_uncorrectable>
            </volatile>
            <aggregate>
                <dram_uncorrectable>4</dram_uncorrectable>
            </aggregate>
        </ecc_errors>
        <remapped_row_failure>{failed}</remapped_row_failure>
    </gpu>
</nvidia_smi_log>
"""
WELL: dict[str, Any] = {"product": "NVIDIA H100 80GB HBM3", "lanes": 16, "now": 0, "failed": "No"}


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({}, "unknown"),
        ({"now": "N/A", "failed": "[Not Supported]"}, "unknown"),
        ({"now": 2}, "gpu_memory_ecc"),
        ({"failed": "Yes"}, "gpu_memory_ecc"),
        ({"lanes": 8}, "pcie"),
        ({"lanes": 8, "product": "Tesla T4"}, "unknown"),  # stands in a slot of eight lanes in many machines
        ({"lanes": 4, "product": "Tesla T4"}, "pcie"),
    ],
)
def test_nvidia_smi_as_xml(tmp_path: Path, change: dict[str, Any], cause: str) -> None:
    assert ask(tmp_path, XML.format(**WELL | change), "nvidia-smi.xml")["cause"] == cause


@pytest.mark.parametrize(
    ("cells", "cause"),
    [
        ("0, NVIDIA H100, 0, No, 34", "unknown"),
        ("0, NVIDIA L40S, [N/A], [Not Supported], 34", "unknown"),
        ("3, NVIDIA H100, 12, No, 34", "gpu_memory_ecc"),
        ("3, NVIDIA H100, 0, Yes, 34", "gpu_memory_ecc"),
        ("3, NVIDIA H100, [GPU is lost], [GPU is lost], [GPU is lost]", "gpu_fallen_off_bus"),
        ("3, NVIDIA H100, [GPU requires reset], [GPU requires reset], [GPU requires reset]", "gpu_gsp_or_driver"),
        ("3, [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error]", "gpu_gsp_or_driver"),
    ],
)
def test_what_nvidia_smi_was_asked_for(tmp_path: Path, cells: str, cause: str) -> None:
    names = "index, name, ecc.errors.uncorrected.volatile.total, remapped_rows.failure, temperature.gpu"
    assert ask(tmp_path, f"{names}\n{cells}\n", "gpus.csv")["cause"] == cause


def test_double_bit_errors_of_drivers_before_520_by_their_sections(tmp_path: Path) -> None:
    parts = "".join(
        f"        {since}\n            {bits} Bit\n                Total                     : {{{since[0]}{bits[0]}}}\n"
        for since in ("Volatile", "Aggregate")
        for bits in ("Single", "Double")
    )
    text = f"GPU 00000000:4E:00.0\n    Product Name                          : Tesla V100-SXM2-32GB\n    ECC Errors\n{parts}"
    healthy = text.format(VS=3, VD=0, AS=900, AD=0)
    assert ask(tmp_path, healthy, "smi.txt")["recommendation"] == "none"
    bad = ask(tmp_path, text.format(VS=0, VD=2, AS=0, AD=2), "smi.txt")
    assert (bad["cause"], bad["culprits"]["gpus"]) == ("gpu_memory_ecc", ["n1:0"])


def test_errors_in_the_columns_of_nvidia_smi_dmon(tmp_path: Path) -> None:
    head = "# gpu  sbecc  dbecc    pci \n# Idx   errs   errs   errs \n"
    text = f"{head}    0      9      0      0 \n    1      0      {{}}      0 \n"
    assert ask(tmp_path, text.format(0), "dmon.txt")["recommendation"] == "none"
    assert ask(tmp_path, text.format(4), "dmon.txt")["culprits"]["gpus"] == ["n1:1"]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("Reset Required", "gpu_gsp_or_driver"),
        ("Drain and Reset Recommended", "gpu_gsp_or_driver"),
        ("Channel Repair Pending", "gpu_memory_ecc"),
    ],
)
def test_what_a_gpu_waits_for(tmp_path: Path, name: str, cause: str) -> None:
    element = name.lower().replace(" ", "_")
    listed = f"GPU 00000000:4E:00.0\n        {name:<34}: {{}}\n"
    xml = f'<nvidia_smi_log>\n<gpu id="a">\n<{element}>{{}}</{element}>\n</gpu>\n</nvidia_smi_log>\n'
    for form in (listed, xml):
        assert ask(tmp_path, form.format("Yes"), "smi.txt")["cause"] == cause
        for word in ("No", "N/A"):
            assert ask(tmp_path, form.format(word), "smi.txt")["cause"] == "unknown"


def test_the_column_of_errors_on_the_page(tmp_path: Path) -> None:
    content = (
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
        "|   1  NVIDIA H100 80GB HBM3          On  |   00000000:3B:00.0 Off |                    {} |\n"
    )
    for word in ("0", "N/A", "Off"):
        assert ask(tmp_path, content.format(word), "smi.txt")["recommendation"] == "none"
    assert ask(tmp_path, content.format("2"), "smi.txt")["cause"] == "gpu_memory_ecc"


def test_counters_of_a_healthy_card_and_of_its_links(tmp_path: Path) -> None:
    text = (
        "GPU 0: NVIDIA B200 (UUID: GPU-1)\n         Link 0: Effective BER: 15e-255\n         Link 0: Symbol Errors: 0\n"
    )
    assert ask(tmp_path, text, "links.txt")["recommendation"] == "none"
    assert (
        ask(tmp_path, f"{text}         Link 0: Link recovery failed events: 2\n", "links.txt")["cause"] == "gpu_nvlink"
    )
    listed = "        Replays Since Reset               : 0\n        Replay Number Rollovers           : 0\n"
    assert ask(tmp_path, listed, "smi.txt")["recommendation"] == "none"


def test_uncorrectable_errors_by_block_of_rocm_smi(tmp_path: Path) -> None:
    text = "GPU[2]\t: RAS INFO\n         Block     Status    Correctable Error  Uncorrectable Error\n"
    assert (
        ask(tmp_path, f"{text}           UMC    ENABLED                   7                    0\n")["cause"]
        == "unknown"
    )
    bad = ask(tmp_path, f"{text}           UMC    ENABLED                   0                    3\n", "rocm.txt")
    assert (bad["cause"], bad["culprits"]["gpus"]) == ("gpu_memory_ecc", ["n1:2"])
