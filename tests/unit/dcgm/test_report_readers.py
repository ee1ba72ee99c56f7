"""Reports of GPU tools that are cut, damaged or huge: read or left as text, never an error, never more than they say."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import pytest

from sentinel.config.rules_files import load_convictions
from sentinel.evidence.reports.reading import MOST_BYTES, in_sentences, with_reports
from sentinel.model.records import Kind, Source, Trust, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
CONVICTIONS = load_convictions()
WARNING = {
    "error_id": 52,
    "error_severity": 2,
    "error_category": 10,
    "warning": "Found 3 faulty memory elements on GPU 1",
}
RESULTS = [
    {"entity_group": "GPU", "entity_id": 0, "status": "Pass"},
    {"entity_group": "GPU", "entity_id": 1, "status": "Fail", "warnings": [WARNING]},
]
DIAGNOSTIC = json.dumps(
    {"DCGM Diagnostic": {"test_categories": [{"category": "H", "tests": [{"name": "memory", "results": RESULTS}]}]}},
    indent=1,
)
HEALTHY = DIAGNOSTIC.replace("Fail", "Pass").replace(json.dumps([WARNING], indent=1), "[]")
TABLE = (
    "| Diagnostic                | Result                                         |\n"
    "| memory                    | Fail                                           |\n"
    "|                           | GPU1: Fail                                     |\n"
    "| Warning: GPU1             | Found 9 faulty memory elements on GPU 1        |\n"
)
DMON = "#Entity   XIDER     RRF\nID\nGPU 0     79        1\n"
METRICS = 'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 79\nDCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0"} 1\n'
XML = "<nvidia_smi_log>\n<gpu id='a'>\n<remapped_row_failure>Yes</remapped_row_failure>\n</gpu>\n</nvidia_smi_log>\n"
ALL = (DIAGNOSTIC, TABLE, DMON, METRICS, XML)


def sentences(text: str) -> list[str]:
    data, _ = in_sentences(text.encode(), CONVICTIONS)
    return [line for line in data.decode().split("\n") if line]


@pytest.mark.parametrize("text", ALL)
def test_wherever_it_is_cut_or_damaged_it_keeps_its_lines(text: str) -> None:
    draw = random.Random(7)
    for end in range(0, len(text), 7):
        bad = bytearray(text[:end].encode())
        if bad:
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        for data in (text[:end].encode(), bytes(bad), bytes(bad) + b"\xff" + text.encode()):
            read, reports = in_sentences(data, CONVICTIONS)
            assert read.count(b"\n") == data.count(b"\n")
            assert all(line <= data.count(b"\n") + 1 for line in reports.gpus)


def test_only_what_is_whole_is_evidence_of_a_failed_diagnostic() -> None:
    _, reports = in_sentences(DIAGNOSTIC.encode(), CONVICTIONS)
    assert [(told.gpu, told.data["code"]) for told in reports.told] == [(1, 52)]
    assert "faulty" in DIAGNOSTIC.split("\n")[reports.told[0].line]
    for end in range(len(DIAGNOSTIC) - 1):
        assert in_sentences(DIAGNOSTIC[:end].encode(), CONVICTIONS)[1].told == ()


@pytest.mark.parametrize(
    "value",
    [
        "",
        "-1",
        "NaN",
        "+Inf",
        "9223372036854775794",
        "9.2e18",
        "1e999",
        "0",
        "9.2",
        "0.0",
        "N/A",
        "[Not Supported]",
        "1" * 5000,
    ],
)
def test_blanks_and_impossible_numbers_say_nothing(value: str) -> None:
    assert (
        sentences(METRICS.replace(" 79", f" {value}").replace(" 1\n", f" {value}\n").replace("DCGM_FI_DEV_", "X")) != []
    )
    text, reports = in_sentences(
        METRICS.replace(" 79", f" {value}").replace(" 1\n", f" {value}\n").encode(), CONVICTIONS
    )
    assert not reports.told and b"remapping" not in text


@pytest.mark.parametrize("gpu", [-1, None, True, 10**400, "\u0664", [], {}, "0,1", 70000])
def test_a_gpu_that_is_no_number_is_blamed_by_the_message_or_not_at_all(gpu: object) -> None:
    results = [
        {"entity_group": "GPU", "entity_id": gpu, "status": "Fail", "warnings": [{**WARNING, "warning": "bad memory"}]}
    ]
    document = {"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "memory", "results": results}]}]}}
    _, reports = in_sentences(json.dumps(document).encode(), CONVICTIONS)
    assert all(told.gpu is not None and 0 <= told.gpu < 100000 for told in reports.told)


@pytest.mark.parametrize("levels", [400, 950, 100_000])
def test_nesting_without_end_is_damage(levels: int) -> None:
    for part in ("[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels):
        text = '{"DCGM Diagnostic": {"test_categories": ' + part + "}}"
        assert not in_sentences(text.encode(), CONVICTIONS)[1].told


def test_a_file_beyond_the_limit_is_left_to_the_rules() -> None:
    data = (DIAGNOSTIC + "\n" * MOST_BYTES).encode()
    assert in_sentences(data, CONVICTIONS)[0] is data


def test_who_is_to_be_trusted_goes_by_the_source_and_the_last_xid_never_is() -> None:
    for text, kind in ((DIAGNOSTIC, Kind.DIAG_FAILED), (METRICS, Kind.XID)):
        _, reports = in_sentences(text.encode(), CONVICTIONS)
        for source in (Source.DCGM, Source.JOB_LOG):
            (made,) = with_reports([], reports, source, Where(node="n1"), NOW)
            trusted = source is Source.DCGM and kind is Kind.DIAG_FAILED
            assert (made.kind, made.trust) == (kind, Trust.SYSTEM if trusted else Trust.USER)


def test_text_that_is_no_report_stays_as_it_is() -> None:
    for text in (
        "step 1 | loss 2.0 | x |\n",
        "index of names, and more\n",
        "{'a': 1}\n",
        "GPU 0: fine\n",
        "#Entity list of DCGM fields\n",
    ):
        assert in_sentences(text.encode(), CONVICTIONS)[0] == text.encode()


def test_lines_behind_a_table_are_no_part_of_it() -> None:
    said = "GPU 0 has fallen off the bus"
    for table in (
        "#Entity   XIDER  RRF  TMPTR  POWER  A_B\nID\nGPU 0     0  0  41  71.5  0\n",
        "#Entity   XIDER     RRF\nID\n",
    ):
        assert sentences(f"{table}{said}\n") == [said]
    failed = "RuntimeError: copy_ + 0x12 failed"
    for table in (TABLE, "| Health Monitor Report    |\n| Overall Health    | Healthy |\n"):
        assert sentences(f"{table}{failed}\n") == [failed]
    rows = "step,name,value\n7,loader,CUDA error: out of memory\n"
    assert in_sentences(rows.encode(), CONVICTIONS)[0] == rows.encode()
    rows = f"index,name,value\n7,loader,{said}\n"
    assert in_sentences(rows.encode(), CONVICTIONS)[0] == rows.encode()
