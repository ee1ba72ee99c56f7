"""What disks say of themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sentinel.evidence.disks import DiskReader
from sentinel.model.records import Source

NOW = datetime(2031, 5, 1, tzinfo=UTC)
WELL = {"disk": "nvme0", "passed": True, "critical_warning": 0, "media_errors": 7, "percent_used": 31}


def said(reader: DiskReader, **changes: Any) -> list[tuple[str, str]]:
    return [(str(item.kind), item.text) for item in reader.read({**WELL, **changes}, NOW)]


def test_a_disk_that_is_well_says_nothing() -> None:
    reader = DiskReader("n1")
    assert said(reader) == said(reader) == []
    assert reader.counters == {"nvme0/media_errors": 7.0, "nvme0/percent_used": 31.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"passed": False}, "its own check failed"), ({"critical_warning": 1}, "spare blocks"),
     ({"critical_warning": 4 | 2}, "no longer reliable"), ({"critical_warning": 8}, "read-only")],
)  # fmt: skip
def test_its_own_judgement_counts_once(changes: dict[str, Any], words: str) -> None:
    reader = DiskReader("n1")
    (item,) = reader.read({**WELL, **changes}, NOW)
    assert (item.kind, item.source, item.where.path) == ("disk_failing", Source.HOST, "/dev/nvme0")
    assert words in item.text
    assert said(reader, **changes) == []
    assert said(reader, passed=None, critical_warning=None) == [], "not known takes nothing back"
    assert said(reader, **changes) == []
    assert said(reader) == []
    assert len(said(reader, **changes)) == 1, "and again when it comes back"


def test_heat_alone_is_not_the_disks_fault() -> None:
    assert said(DiskReader("n1"), critical_warning=2) == []


def test_errors_that_grow() -> None:
    reader = DiskReader("n1")
    assert said(reader, media_errors=7, pending=0) == [], "what was there before us is a base"
    assert said(reader, media_errors=9, pending=3) == [
        ("disk_errors", "disk nvme0: media errors 7 -> 9"),
        ("disk_errors", "disk nvme0: sectors that cannot be read 0 -> 3"),
    ]
    assert said(reader, media_errors=9, pending=0) == [], "sectors were rewritten"
    assert said(reader, media_errors=None) == []


@pytest.mark.parametrize("answer", [{}, {"disk": 5}, {"disk": "sda", "error": "no answer"}, {"disk": "sda"}])
def test_what_is_not_known_is_nothing(answer: dict[str, Any]) -> None:
    assert DiskReader("n1").read(answer, NOW) == []
