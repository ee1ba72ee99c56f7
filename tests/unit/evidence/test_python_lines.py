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
