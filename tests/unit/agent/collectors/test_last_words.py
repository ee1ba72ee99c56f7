"""What a kernel left in pstore: which of it says that it died, how old it may be, and where systemd-pstore moves it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

import pytest
from shipped import shipped_signatures

from sentinel.adapters.host.kmsg import Record
from sentinel.agent.collectors.kernel_log import KernelWatch, rules_reader
from sentinel.agent.settings import AgentSettings, Kernel
from sentinel.model.records import Evidence, Kind, Source, stable_id, utc

XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
DIED = "Panic#1 Part1\n<4>[ 99.1] NVRM: Xid 79\n<0>[ 99.2] Kernel panic - not syncing: Fatal\n"
DAY_S = 86_400.0
Reader = Callable[[Sequence[Record], datetime], list[Evidence]]


def xids(records: Sequence[Record], now: datetime) -> list[Evidence]:
    return [
        Evidence(
            stable_id(record.sequence, record.text), utc(record.at_s), now, Source.KERNEL, Kind.XID, text=record.text
        )
        for record in records
        if "Xid" in record.text
    ]


def left(tmp_path: Path, name: str, text: str, folder: str = "pstore", age_s: float = 60.0) -> Path:
    path = tmp_path / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    at_s = time.time() - age_s
    os.utime(path, (at_s, at_s))
    return path


def told(tmp_path: Path, reader: Reader = xids) -> list[Evidence]:
    """What an agent that starts now tells."""
    (tmp_path / "state").mkdir(exist_ok=True)
    kernel = Kernel(
        path=str(tmp_path / "kmsg"), pstore=str(tmp_path / "pstore"), pstore_archive=str(tmp_path / "moved")
    )
    kept: list[Evidence] = []
    KernelWatch(
        "n1", AgentSettings(node="n1", state=str(tmp_path / "state"), kernel=kernel), reader, kept.append
    ).panics()
    return kept


def test_the_kernels_last_words_are_told_once(tmp_path: Path) -> None:
    left(tmp_path, "dmesg-erst-1", DIED)
    first = told(tmp_path)
    assert [item.kind for item in first] == [Kind.XID, "kernel_panic"]
    assert first[0].text == "NVRM: Xid 79"
    assert told(tmp_path) == []


@pytest.mark.parametrize("header", ["Oops#1 Part1\n", "Shutdown#1 Part1\n", "Emergency#1 Part1\n", ""])
def test_only_a_panic_says_that_the_kernel_died(tmp_path: Path, header: str) -> None:
    """After an oops it may go on, an ordinary shutdown may leave a record, and what is not told is not known."""
    left(tmp_path, "dmesg-erst-1", f"{header}<4>[ 99.1] NVRM: Xid 79\n")
    assert [item.kind for item in told(tmp_path)] == [Kind.XID]


def test_a_log_in_parts_is_one_panic(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        left(tmp_path, f"dmesg-efi-{part}", f"Panic#1 Part{part}\n<4>[ 99.1] NVRM: Xid 79 of part {part}\n")
    assert [item.kind for item in told(tmp_path)].count("kernel_panic") == 1


def test_last_words_of_long_ago_are_of_a_failure_that_people_have_seen_to(tmp_path: Path) -> None:
    left(tmp_path, "dmesg-erst-1", DIED, age_s=200 * DAY_S)
    assert told(tmp_path) == []
    left(tmp_path, f"dmesg-efi-{int(time.time() - 200 * DAY_S)}01001", DIED, folder="moved/000", age_s=1.0)
    assert told(tmp_path) == [], "moved at this boot, written long before"


@pytest.mark.parametrize("below", ["moved", "moved/1764460000", "moved/1764460000/000"])
def test_what_systemd_moved_is_found_and_is_the_same(tmp_path: Path, below: str) -> None:
    left(tmp_path, "dmesg-erst-7", DIED)
    left(tmp_path, "dmesg-erst-7", DIED, folder=below)
    left(tmp_path, "dmesg.txt", DIED, folder=below)
    assert [item.kind for item in told(tmp_path)] == [Kind.XID, "kernel_panic"]
    (tmp_path / "pstore" / "dmesg-erst-7").unlink()
    assert told(tmp_path) == []


def test_what_an_agent_before_this_release_told_is_not_told_again(tmp_path: Path) -> None:
    """It kept names and times of files; the node may have been returned to service since."""
    record = left(tmp_path, "dmesg-erst-1", DIED, age_s=DAY_S)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "pstore.json").write_text(json.dumps({record.name: record.stat().st_mtime}))
    assert told(tmp_path) == []
    left(tmp_path, "dmesg-erst-1", DIED.replace("99", "98"))
    assert [item.kind for item in told(tmp_path)] == [Kind.XID, "kernel_panic"], "another crash under the same name"


def test_of_last_words_only_the_kernels_count(tmp_path: Path) -> None:
    """Neither what user space had written into its log, nor what a name with a line separator looks like."""
    hidden = f"<4>[ 99.000002] overlayfs: failed to resolve 'a\u2028{XID}\x1c{XID}\r{XID}'"
    panic = "<0>[ 99.2] Kernel panic - not syncing: Fatal\n"
    left(tmp_path, "dmesg-erst-1", f"Panic#1 Part1\n<12>[ 99.000001] {XID}\n{hidden}\n{panic}")
    found = told(tmp_path, rules_reader("n1", "boot", shipped_signatures()))
    assert {item.rule for item in found} == {"kernel-panic", "overlay-refused", None}


def test_no_pstore_is_nothing_to_tell(tmp_path: Path) -> None:
    assert told(tmp_path) == []
