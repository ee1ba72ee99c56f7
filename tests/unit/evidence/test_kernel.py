"""Kernel lines: what the kernel said, and what only looks like it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_signatures

from sentinel.config.convictions import Drain
from sentinel.config.rules_files import load_convictions
from sentinel.evidence.kernel import read_message
from sentinel.evidence.logs.machine_logs import kernel_line
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Kind, Source, Trust, Where

NOW = datetime(2026, 3, 4, tzinfo=UTC)
SIGNATURES = shipped_signatures()
XID = "NVRM: Xid (PCI:0000:3B:00): 79, pid=4711, GPU has fallen off the bus."


def read(raw: str, **options: object):
    return read_message(SIGNATURES, kernel_line(raw), at=NOW, now=NOW, where=Where(node="n7"), boot="b1")


def test_forms_of_a_kernel_line() -> None:
    record = kernel_line(f"4,1234,5678901,-;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0")
    assert (record.text, record.sequence, record.since_boot_s, record.own) == (XID, 1234, 5.678901, True)
    syslog = kernel_line(f"Mar  4 05:06:07 gpu12 kernel: [ 812.500000] {XID}")
    assert (syslog.text, syslog.node, syslog.since_boot_s) == (XID, "gpu12", 812.5)
    assert kernel_line(f"[  812.500000] {XID}").text == XID
    assert kernel_line(f"<3>[  812.5] {XID}").since_boot_s == 812.5
    assert kernel_line(f"[Sun Jan  5 18:28:55 2026] {XID}").text == XID
    talos = kernel_line(f"10.0.3.7: kern: warning: [2026-03-04T05:06:07.123456789Z]: {XID}")
    assert (talos.text, talos.node, talos.own) == (XID, "10.0.3.7", True)
    assert not kernel_line(f"10.0.3.7: user: warning: [2026-03-04T05:06:07.1Z]: {XID}").own


def test_an_xid_of_the_kernel_convicts_and_is_one_evidence_when_read_twice() -> None:
    first, again = read(f"4,1234,5678901,-;{XID}"), read(f"4,1234,5678901,-;{XID}")
    xid = next(item for item in first if item.kind == Kind.XID)
    assert (xid.data["xid"], xid.data["pci"], xid.where.node, xid.trust) == (79, "0000:3b:00", "n7", Trust.SYSTEM)
    assert [item.id for item in first] == [item.id for item in again]


@pytest.mark.parametrize(
    ("device", "pci"),
    [
        ("PCI:0000:3b:00", "0000:3b:00"),
        ("PCI:0000:3b:00 GPU-I:05", "0000:3b:00"),
        ("0000:3b:00", "0000:3b:00"),
        ("GPU 3", None),
        ("PCI:", None),
    ],
)
def test_one_line_is_one_xid(device: str, pci: str | None) -> None:
    (found,) = [item for item in read(f"4,1,1,-;NVRM: Xid ({device}): 31, pid=7, name=python") if item.kind == Kind.XID]
    assert (found.data["xid"], found.data.get("pci")) == (31, pci)


# As driver 580 (open kernel module) wrote them on an H200 for programs that read where nothing is mapped, ran `trap`, or
# left a block's shared memory; flag c, since the driver continues lines.
OF_PROGRAMS = [
    (
        31,
        "pid=1529, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted"
        " @ 0x0_dead0000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    ),
    (43, "pid=1539, name=python3, channel 0x0000000a"),
    (13, "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Out Of Range Address"),
    (13, "Graphics Exception: ESR 0x519730=0xc00000e 0x519734=0x0 0x519728=0x1f81fb60 0x51972c=0x1174"),
    (
        13,
        "pid=1545, name=python3, Graphics Exception: channel 0x0000000a, Class 0000cbc0, Offset 00000510, Data 0017e2ac",
    ),
]


@pytest.mark.parametrize(("xid", "rest"), OF_PROGRAMS)
def test_what_the_driver_says_of_a_programs_fault(xid: int, rest: str) -> None:
    for named in (
        "GPU at PCI:0000:00:06: GPU-1ef3f4ec-0000-4000-8000-00000000ffa2",
        "GPU Board Serial Number: 1650000000001",
    ):
        assert read(f"4,358,40362141,c;NVRM: {named}") == []
    (found,) = read(f"4,360,40362150,c;NVRM: Xid (PCI:0000:00:06): {xid}, {rest}")
    assert (found.kind, found.data["xid"], found.data["pci"], found.trust) == (
        Kind.XID,
        xid,
        "0000:00:06",
        Trust.SYSTEM,
    )
    assert load_convictions().of(found) is not Drain.YES


@pytest.mark.parametrize(
    ("line", "pci"),
    [
        (XID, "0000:3b:00"),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "0000:3b:00"),
        ("NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.", "0000:3b:00"),
        ("NVRM: GPU has fallen off the bus.", None),
        (
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 79, pid=7, name=GPU 0000:5e:00.0:, GPU has fallen off the bus.",
            "0000:3b:00",
        ),
    ],
)
def test_all_that_is_read_in_a_line_of_the_driver_is_of_the_gpu_with_which_it_begins(
    line: str, pci: str | None
) -> None:
    found = read(f"4,1234,5678901,-;{line}")
    assert "gpu-off-bus" in {item.rule for item in found}
    assert {item.data.get("pci") for item in found} == {pci}


def test_user_space_writing_into_kmsg_is_not_the_kernel() -> None:
    assert read(f"12,1234,5678901,-;{XID}") == []  # facility 1


def test_a_process_named_like_an_xid_is_not_one() -> None:
    raw = "4,9,9,-;INFO: task NVRM: Xid (PCI:0000): 79 blocked for more than 120 seconds."
    assert not [item for item in read(raw) if item.kind == Kind.XID]


def test_recovery_action_and_nvlink_severity_are_read() -> None:
    changed = read(
        "4,1,1,-;NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    )
    assert changed[0].data["action"] == "reboot"
    fatal = read("4,2,2,-;NVRM: Xid (PCI:0000:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x1 0x2)")
    mild = read("4,3,3,-;NVRM: Xid (PCI:0000:01:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 01 (0x1 0x2)")
    assert next(i for i in fatal if i.kind == Kind.XID).data["fatal"] is True
    assert next(i for i in mild if i.kind == Kind.XID).data["fatal"] is False


@pytest.mark.parametrize("day", ["Nov  7", "nov 07", "févr. 07", "Mär 07", "окт 07", "11月 07", "11월 07"])
def test_a_journal_is_read_in_the_language_of_whoever_printed_it(day: str) -> None:
    reader = LogReader(SIGNATURES, source=Source.JOB_LOG, where=Where(path="journal.txt"))
    line = f"{day} 01:36:56 gpu7 kernel: NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.\n"
    found, *_ = reader.feed(line.encode(), NOW) + reader.finish(NOW)
    assert (found.where.node, found.data["writer"]) == ("gpu7", "kernel")
