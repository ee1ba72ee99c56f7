"""When two words of a machine's agree on a drain, and when they are one event told twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.kernel import read_message
from sentinel.evidence.logs.machine_logs import KernelLine
from sentinel.model.records import Evidence, Incident, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
GSP = (
    "NVRM: Xid (PCI:0000:3b:00): 119, pid=7, name=python, Timeout after 45s of waiting for RPC response from GPU0 GSP!"
    " Expected function 76 (GSP_RM_CONTROL) (0x20801348 0x410)."
)
LINK = "NVRM: Xid (PCI:0000:3b:00): 74, pid=7, NVLink: fatal error detected on link 4(0x10000, 0x0, 0x0)"
QUEUES = "amdgpu: The cp might be in an unrecoverable state due to an unsuccessful queues preemption"
SMU = "amdgpu 0000:c1:00.0: amdgpu: SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x0000003D"
HUNG = "INFO: task python3:4242 blocked for more than 120 seconds."
STALL = "rcu: INFO: rcu_sched self-detected stall on CPU"
LOCKUP = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [kworker/3:1:77]"
SECTOR = "blk_update_request: I/O error, dev sdb, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0"
WRITEBACK = "XFS (dm-0): writeback error on inode 268536961, offset 4194304, sector 118230144"
GPU = "amdgpu 0000:03:00.0: amdgpu:"
TIMEOUT = f"{GPU} ring gfx timeout, signaled seq=5"
RESET = f"{GPU} GPU reset end with ret = -110"
FAILED = "sd 6:0:0:0: [sdb] tag#0 FAILED Result: hostbyte=DID_ERROR driverbyte=DRIVER_OK cmd_age=0s"
QUEUE = "NETDEV WATCHDOG: eth0 (ixgbe): transmit queue 3 timed out"
ONE_EVENT = [
    (HUNG, STALL),  # storage that does not answer, memory that a job used up, a machine that was paused
    (LOCKUP, STALL),
    (HUNG, STALL, LOCKUP),
    (FAILED, SECTOR),  # a BMC takes its virtual disk away
    (SECTOR, WRITEBACK),
    (TIMEOUT, "amdgpu: qcm fence wait loop timeout expired", QUEUES, "amdgpu: Failed to evict queue 1"),
    (QUEUE, "ixgbe 0000:04:00.1 eth0: NIC Link is Down"),
]


def told(node: str, *lines: str, at_s: float = 0.0) -> list[Evidence]:
    """What an agent makes of lines of its node's kernel log, a second apart."""
    found: list[Evidence] = []
    for number, text in enumerate(lines):
        line, at = KernelLine(text, None, number, at_s + number, 0), NOW + timedelta(seconds=at_s + number)
        found += read_message(SIGNATURES, line, at=at, now=at, where=Where(node=node), boot="b")
    return found


def judge(evidence: list[Evidence]) -> Verdict:
    nodes = tuple(dict.fromkeys(item.where.node for item in evidence if item.where.node))
    return classify(Incident("i", NOW, NOW, nodes=nodes, evidence=tuple(evidence)), rules=RULES, now=NOW)


@pytest.mark.parametrize("line", [GSP, LINK, RESET])
@pytest.mark.parametrize("times", [1, 3])
def test_a_line_that_several_rules_know_agrees_with_no_word_of_its_own(line: str, times: int) -> None:
    evidence = told("n1", *[line] * times)
    assert len({item.rule for item in evidence}) >= 2
    verdict = judge(evidence)
    assert (verdict.drain, verdict.suspect) == ((), ("n1",))


def test_another_line_that_another_rule_alone_knows_agrees() -> None:
    assert judge(told("n1", "amdgpu: Failed to evict queue 1", SMU)).drain == ("n1",)
    assert judge(told("n1", TIMEOUT, RESET)).drain == ("n1",)


@pytest.mark.parametrize("lines", ONE_EVENT)
def test_what_parts_of_the_kernel_say_of_one_event_does_not_agree(lines: tuple[str, ...]) -> None:
    """Such an event passes on a healthy node: each of these sources tells of it before it has."""
    evidence = told("n1", *lines)
    assert len({item.rule for item in evidence}) >= 2
    verdict = judge(evidence)
    assert (verdict.drain, verdict.suspect) == ((), ("n1",))


@pytest.mark.parametrize("stalls", [HUNG, STALL, LOCKUP])
def test_what_broke_agrees_with_a_stall(stalls: str) -> None:
    assert judge(told("n1", SECTOR, stalls)).drain == ("n1",)


def test_disks_that_fail_on_many_nodes_at_once_are_what_they_share() -> None:
    """As where a storage area network is away: none of the machines is broken."""
    many = [item for number in range(4) for item in told(f"n{number}", SECTOR, HUNG, at_s=20.0 * number)]
    assert judge(many).drain == ()
    assert judge(many).suspect == ("n0", "n1", "n2", "n3")
    apart = [item for number in range(4) for item in told(f"n{number}", SECTOR, HUNG, at_s=900.0 * number)]
    assert judge(apart).drain == ("n0", "n1", "n2", "n3")
    assert judge([*many, *told("n2", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0", at_s=90.0)]).drain == ("n2",)
