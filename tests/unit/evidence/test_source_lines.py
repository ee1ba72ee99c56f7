"""What Python prints is not read as a machine's word, whatever paths and functions are called."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_signatures

from sentinel.config.rules import Form
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Evidence

NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
SIGNATURES = shipped_signatures()
MACHINE_READ = {rule.id for rule in (c.rule for c in SIGNATURES.compiled) if rule.form is not Form.PROGRAM}


def of_machines(text: str) -> list[Evidence]:
    reader = LogReader(SIGNATURES)
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return [evidence for evidence in found if evidence.rule in MACHINE_READ]


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "(Worker pid=7) "])
@pytest.mark.parametrize(
    "place",
    [
        'File "/opt/lib/deepspeed/config.py", line 191, in get_lower_precision_modules',
        'File "/site/checks.py", line 12, in check_hw_ib',
        'File "/storage/jobs/hung/run.py", line 3, in xid_79_fallen_off_the_bus',
    ],
)
def test_a_frame_of_a_traceback_is_no_word_of_a_machines(prefix: str, place: str) -> None:
    assert of_machines(f"{prefix}  {place}\n") == []


def test_a_failed_health_check_that_a_program_raises_is_the_programs() -> None:
    assert of_machines("RuntimeError: Router health check failed after 60 seconds.\n") == []
    assert of_machines("n17: health check failed: 3 GPUs\n")


LOST = "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "line",
    [
        "+ check_dmesg '{}'",
        "++ grep -c '{}' kern.log",
        "0: + log '{}'",
        'elif grep -q "{}" kern.log; then exit 79',
        'echo "{}" >> report.txt',
        "  --on-xid LIST         stop with {} as the reason",
        "   88 |        print *, '{}'",
        "[1/3] c++ -MMD -MF x.o.d '-DWHY=\"{}\"' -c /home/u/x.cpp -o x.o",
        "[1/11] /usr/local/cuda/bin/nvcc  -DWHY='{}' -c /home/u/x.cu -o x.o",
        "#  * 09 Jan  n17: {}",
        "20250217 03:10:34 [slurm] Running check:  \"check_dmesg_errors '{}'\"",
        '[sample 0] PROMPT: "{}"',
        "GpuLost | increase(errors[5m]) > 0 | {} on {{{{ $labels.host }}}}",
        "2024-01: n17 {} board exchanged, burn-in ok",
    ],
)
def test_what_a_shell_runs_a_help_text_and_a_remark_say_is_no_event(line: str) -> None:
    assert of_machines(f"{LOST}\n") != []
    assert [e.rule for e in of_machines(line.format(LOST) + "\n") if e.rule != "nhc-runs"] == []


@pytest.mark.parametrize(
    "head", ["# [12345.678901] ", "0 |  ", "# Sep 24 08:20:28 n1 kernel: ", "n17: must be replaced: "]
)
def test_what_a_collector_or_a_launcher_puts_before_a_line_takes_nothing_from_it(head: str) -> None:
    assert of_machines(f"{head}{LOST} It must be replaced.\n") != []


@pytest.mark.parametrize(
    "line", ["+++ killed by SIGSEGV +++", "# There is insufficient memory for the Java Runtime Environment"]
)
def test_what_a_program_prints_behind_a_plus_or_a_hash_is_its_word(line: str) -> None:
    reader = LogReader(SIGNATURES)
    assert [e.rule for e in reader.feed(f"{line}\n".encode(), NOW) + reader.finish(NOW)] != []


def test_what_would_happen_did_not() -> None:
    full = "No space left on device"
    for line, said in (
        (f"disk /local 97% used: {full}", True),
        (f"disk /local 3% used (would abort at 95%: {full})", False),
    ):
        reader = LogReader(SIGNATURES)
        found = reader.feed(f"{line}\n".encode(), NOW) + reader.finish(NOW)
        assert any(e.rule == "disk-full" for e in found) is said


def test_a_cell_of_a_table_that_says_pass_is_no_error() -> None:
    row = "| ECC Error                 | {:<46} |\n"
    assert of_machines(row.format("Fail - GPU: 3")) != []
    assert of_machines(row.format("Pass - All")) == []


def test_systemd_says_nothing_of_a_jobs_libraries() -> None:
    line = "{} dbus.socket:5: references a path below legacy directory /var/run/; please update the unit file accordingly.\n"
    reader = LogReader(SIGNATURES)
    for head in ("[    7.845196] systemd[1]:", "Sep 24 08:20:28 n1 systemd[1]:"):
        assert reader.feed(line.format(head).encode(), NOW) == []
    assert [e.rule for e in reader.feed(line.format("build:").encode(), NOW)] == ["versions"]
