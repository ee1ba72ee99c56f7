"""What any user of a node can have its kernel say, with no fault of the host's: no running job of others is stopped for it,
no node drained, and an image's damage accuses none."""

from __future__ import annotations

import re

import pytest
from made_records import AT, evidence, fleet, incident, job
from shipped import shipped_rules, shipped_signatures

from sentinel import policy
from sentinel.classify import classify
from sentinel.config.rules import OWN_LOG, Drain
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.evidence.kernel import read_message
from sentinel.evidence.logs.machine_logs import kernel_line
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.changes import of_users_words
from sentinel.model.intent import Intent
from sentinel.model.records import (
    Cause,
    Evidence,
    Ground,
    Kind,
    Plan,
    Restart,
    Scope,
    Source,
    StepKind,
    Trust,
    Verdict,
    Where,
)
from sentinel.policy import Situation

RULES = shipped_rules()
BY_ID = RULES.by_id()
ACT = Modes(default=Mode(drain="act", restart="act"))
VERDICT = (Cause.GPU_GSP_OR_DRIVER, Scope.NODE, 0.9)
RESTART = Restart.RESUME_EXCLUDING
NODES = tuple(f"n{number}" for number in range(1, 3))

LIBCUDA = (
    "NVRM: API mismatch: the client 'python3' (pid 4711) has the version 550.54.14, but this kernel module has the "
    "version 535.183.01."
)
OF_IMAGES = (
    "I/O error, dev loop0, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
    "blk_update_request: I/O error, dev loop0, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0",
    "blk_update_request: critical medium error, dev loop12, sector 8 op 0x0:(READ)",
    "Buffer I/O error on dev loop3, logical block 0, async page read",
    "Buffer I/O error on device loop3p1, logical block 0",
    "EXT4-fs error (device loop0): ext4_lookup:1700: inode #12: comm ls: deleted inode referenced: 13",
    "EXT4-fs warning (device loop0): ext4_end_bio:344: I/O error 10 writing to inode 12",
    "EXT4-fs (loop1): Remounting filesystem read-only",
    "EXT4-fs (loop0): error count since last fsck: 12",
    "EXT4-fs (loop0): warning: mounting fs with errors, running e2fsck is recommended",
    "Aborting journal on device loop0-8.",
    "JBD2: Error -5 detected when updating journal superblock for loop0-8.",
    "JBD2: Detected IO errors while flushing file data on loop0-8",
    "XFS (loop0): Metadata CRC error detected at xfs_agf_read_verify+0xd2/0xf0 [xfs], xfs_agf block 0x1",
    "BTRFS error (device loop0): bad tree block start",
    "BTRFS error (device loop0 state EA): forced readonly",
    "BTRFS: error (device loop0) in btrfs_commit_transaction:2200: errno=-5 IO failure",
    "BTRFS warning (device loop0): csum failed root 5 ino 261 off 4096 csum 0x1 expected csum 0x2 mirror 1",
    "SQUASHFS error: Unable to read metadata cache entry [4d5]",
    "device-mapper: verity: 7:0: data block 5 is corrupted",
)
OTHERS = (
    LIBCUDA,
    "JBD2: recovery failed",
    "bond0: now running without any active interface!",
    "nf_conntrack: nf_conntrack: table full, dropping packet",
    "neighbour: arp_cache: neighbor table overflow!",
    "br0: received packet on ens1f0 with own address as source address (addr:0c:42:a1:2b:3c:4d, vlan:0)",
    "IPv6: eth0: IPv6 duplicate address fe80::1 used by 02:00:00:00:00:01 detected!",
    "VFS: file-max limit 1048576 reached",
    "TCP: out of memory -- consider tuning tcp_mem",
    "Buffer I/O error on dev dm-2, logical block 0, async page read",
    "mlx5_core 0000:05:00.0: mlx5_cmd_out_err:835:(pid 1836): CREATE_QP(0x500) op_mod(0x0) failed, status limits "
    "exceeded(0x8), syndrome (0x1), err(-12)",
    "mlx5_core 0000:05:00.0: mlx5_cmd_out_err:835:(pid 1836): CREATE_MKEY(0x200) op_mod(0x0) failed, status bad resource "
    "state(0x9), syndrome (0x1), err(-22)",
    "mlx5_core 0000:05:00.0: mlx5_cmd_check:795:(pid 1836): CREATE_QP(0x500) op_mod(0x0) failed, status no resources(0xf), "
    "syndrome (0x1)",
    "infiniband mlx5_0: create_qp:2774:(pid 123): Create QP type 2 failed",
)

HUNG = (
    "INFO: task python3:4242 blocked for more than 120 seconds.",
    "INFO: task kworker/u8:1:77 blocked for more than 241 seconds.",
    '"echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.',
)


def said(*messages: str, node: str = "n1") -> list[Evidence]:
    found = []
    for number, message in enumerate(messages, 1):
        line = kernel_line(f"4,{number},{number}000000,-;{message}")
        found += read_message(shipped_signatures(), line, at=AT, now=AT, where=Where(node=node), boot="b")
    return found


def judged(*items: Evidence) -> Verdict:
    return classify(incident(*items, nodes=NODES), rules=RULES, now=AT)


def decided(verdict: Verdict, *items: Evidence, run_nodes: tuple[str, ...] = ()) -> Plan:
    there = fleet(20, [job(101, nodes=NODES)])
    intent = Intent(restart=True)
    situation = Situation(fleet=there, intent=intent, job=there.jobs[101], last_step=37, run_nodes=run_nodes)
    return policy.decide(
        verdict, incident(*items), situation, limits=Limits(), modes=ACT, act_confidence=0.5, now=AT
    )  # fmt: skip


@pytest.mark.parametrize("message", [*OF_IMAGES, *OTHERS])
def test_it_is_a_users_claim_and_stops_no_running_job(message: str) -> None:
    found = said(message)
    assert {item.trust for item in found} <= {Trust.USER}
    verdict = judged(*found)
    assert verdict.drain == () and (not verdict.suspect or of_users_words(verdict))
    assert decided(verdict, *found).steps == ()


@pytest.mark.parametrize("message", HUNG)
def test_a_task_that_hangs_may_be_a_users_own_doing_until_the_host_says_more(message: str) -> None:
    """Any user can leave a task waiting for a file server of the user's own; a disk that fails leaves tasks waiting, too."""
    users = said(message, "Buffer I/O error on dev dm-2, logical block 0, async page read")
    for found in (said(message), users):
        verdict = judged(*found)
        assert (verdict.drain, of_users_words(verdict)) == ((), True)
        assert decided(verdict, *found).steps == ()
    broken = judged(*said(message, "I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0"))
    assert (broken.drain, of_users_words(broken)) == (("n1",), False)


@pytest.mark.parametrize("message", OF_IMAGES)
def test_the_file_behind_an_image_accuses_no_host(message: str) -> None:
    found = said(message)
    assert all(BY_ID[item.rule or ""].drain is Drain.NO for item in found)
    assert judged(*found).suspect == ()


_DISK = re.compile(r"\b(?:sd[a-z]\d?|nvme\d{1,2}n\d(?:p\d)?|dm-\d{1,2})\b(?=[,:)]|-8| state)")


def test_nor_does_it_where_the_line_stands_in_a_log_that_somebody_gives() -> None:
    reader = LogReader(shipped_signatures(), where=Where(path="dmesg.txt"))
    line = "[ 1741.033535] XFS (loop0): Metadata CRC error detected at xfs_dir3_block_read_verify+0x9e/0xc0 [xfs]\n"
    found = reader.feed(line.encode(), AT) + reader.finish(AT)
    assert found and all(BY_ID[item.rule or ""].drain is Drain.NO for item in found)


def test_no_rule_of_a_disks_file_system_reads_an_images() -> None:
    """Also of rules to come: their own examples, said of a loop device."""
    checked = 0
    for rule in RULES.rules:
        if OWN_LOG.get(rule.form) is not Source.KERNEL:
            continue
        for example in rule.match:
            message = kernel_line(example).text
            disk = _DISK.search(message)
            if disk is None or message.startswith(("nvme", "sd ", "md", "critical target", "INFO: task")):
                continue  # of a drive itself: no loop device prints it
            checked += 1
            told = said(f"{message[: disk.start()]}loop0{message[disk.end() :]}")
            assert all(BY_ID[i.rule or ""].drain is Drain.NO and i.trust is Trust.USER for i in told), message
    assert checked > 8


def test_a_disks_own_line_that_names_a_users_file_stays_the_machines() -> None:
    for message in (
        "EXT4-fs error (device sda1): ext4_lookup:1700: inode #12: comm loop0: deleted inode referenced: 13",
        "EXT4-fs error (device sda1): htree_dirblock_to_tree: bad entry in directory: name 'x (device loop0)'",
        "I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x0",
        "Aborting journal on device dm-0-8.",
    ):
        found = [item for item in said(message) if item.rule == "local-disk"]
        assert [item.trust for item in found] == [Trust.SYSTEM], message


def test_another_libcuda_is_no_second_word_for_a_drain() -> None:
    reset = "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62) at a.c:1"
    alone, both = judged(*said(reset)), judged(*said(LIBCUDA, reset))
    assert both.drain == alone.drain


def test_what_any_user_can_cause_adds_nothing_to_a_machines_word_for_which_a_job_gives_a_spare_node_back() -> None:
    """However sure both make the verdict."""
    machine, users = evidence(node="n1"), evidence("nvrm-api-mismatch", node="n1", trust=Trust.USER)
    for others, given_back in (((), True), ((users,), False)):
        grounds = tuple(Ground(item, 2.0) for item in (machine, *others))
        verdict = Verdict(*VERDICT, grounds=grounds, suspect=("n1",), restart=RESTART)
        steps = decided(verdict, machine, *others, run_nodes=("n2",)).steps
        assert [step.kind for step in steps] == [StepKind.GIVE_BACK] * given_back


def test_it_is_no_hardware_evidence_of_a_silent_job() -> None:
    silent = evidence(Kind.STALL, source=Source.PROGRESS, job=101, attempt=0, data={"step": 37})
    users = evidence("nvrm-api-mismatch", node="n1", trust=Trust.USER)
    verdict = Verdict(*VERDICT, grounds=(Ground(users, 2.0),), restart=RESTART)
    assert policy.from_silence(verdict, incident(silent, users))


def test_nor_is_a_task_that_hangs_until_the_host_says_more() -> None:
    silent = evidence(Kind.STALL, source=Source.PROGRESS, job=101, attempt=0, data={"step": 37})
    (hung,) = said(HUNG[0])
    for others, only in (((), True), (said("I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0"), False)):
        grounds = tuple(Ground(item, 2.0) for item in (hung, *others))
        verdict = Verdict(*VERDICT, grounds=grounds, restart=RESTART)
        assert policy.from_silence(verdict, incident(silent, hung, *others)) is only
