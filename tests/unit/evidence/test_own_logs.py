"""A machine's own log: whose word a line is, and that what users write into it can neither hide nor use up the machine's."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_signatures

from sentinel.config.rules import OWN_LOG
from sentinel.evidence.logs.limits import LIMIT
from sentinel.evidence.logs.machine_logs import kernel_line, said
from sentinel.evidence.logs.reader import LogReader
from sentinel.evidence.logs.user_names import without_names
from sentinel.model.records import Evidence, Source, Trust, Where

NOW = datetime(2026, 3, 4, tzinfo=UTC)
SIGNATURES = shipped_signatures()
SERVICE_KILLED = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom"
    ",task_memcg=/system.slice/telegraf.service,task=telegraf,pid=2201,uid=997"
)
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."


def read(*blocks: bytes, source: Source = Source.KERNEL) -> list[Evidence]:
    reader = LogReader(SIGNATURES, source=source, where=Where(node="n7"))
    found = [item for block in blocks for item in reader.feed(block, NOW)]
    return found + reader.finish(NOW)


def xids(found: list[Evidence], trust: Trust = Trust.SYSTEM) -> list[object]:
    return [item.data["xid"] for item in found if item.rule == "xid" and item.trust is trust]


@pytest.mark.parametrize(
    ("message", "left"),
    [
        ("a, b[7]: segfault at 0 ip 0", "_[7]: segfault at 0 ip 0"),
        (
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=fatal, Fatal, Ch 00000008",
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=_, Ch 00000008",
        ),
        (  # a MIG GPU: instance and compute instance, and a pid of seven digits
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 109, pid=4194303, name=GPU is lost, Ch 00000008",
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:00): 109, pid=4194303, name=_, Ch 00000008",
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 45, pid='<unknown>', name=<unknown>, channel 0x00000008",
            "NVRM: Xid (PCI:0000:3b:00): 45, pid='<unknown>', name=_, channel 0x00000008",
        ),
        (r"INFO: task \xc3\xa9:1 \x0a:7 blocked for more than 120 s", "INFO: task _:7 blocked for more than 120 s"),
        ("oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/x,task=y", "oom-kill:constraint=CONSTRAINT_NONE,_"),
        (SERVICE_KILLED, "oom-kill:constraint=CONSTRAINT_NONE,_,global_oom,task_memcg=/system.slice/telegraf.service,_"),
        (  # a cgroup of a user's, named so
            f"{SERVICE_KILLED},global_oom,task_memcg=/user.slice/job,task=a,pid=7,uid=1000",
            "oom-kill:constraint=CONSTRAINT_NONE,_",
        ),
        ("NVRM: renamed from GPU_IS_LOST", "_: renamed from _"),
        ("NVRM: Xid (x): 79, IN=lo OUT= SRC=127.0.0.1 DST=127.0.0.1", "IN=lo OUT= SRC=127.0.0.1 DST=127.0.0.1"),
        (XID, XID),
        ("nvme nvme0: I/O 13 QID 4 timeout, aborting", "nvme nvme0: I/O 13 QID 4 timeout, aborting"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "EDAC MC0: 1 UE memory read error on CPU_SrcID#0"),
    ],
)  # fmt: skip
def test_names_are_cut_out(message: str, left: str) -> None:
    assert without_names(message) == left


def test_a_program_cannot_hide_the_line_that_names_it() -> None:
    for name in ("NCCL INFO", "IN= OUT= SRC=", "a\\x0a", "kernel: ", ", , , , ,"):
        line = XID.replace("pid=4711, GPU", f"pid=4711, name={name}, GPU")
        assert xids(read(f"[  812.500000] {line}\n".encode())) == [79], name


def test_severity_of_an_xid_is_not_the_programs_name() -> None:
    line = b"[  812.500000] NVRM: Xid (PCI:0000:3b:00): 145, pid=7, name=Fatal, RLW_RXPIPE XC0 i0 Link 13\n"
    (found,) = [item for item in read(line) if item.rule == "xid"]
    assert "fatal" not in found.data


def test_claims_do_not_use_up_what_is_kept_of_the_machines_word() -> None:
    claims = b"".join(b"Mar  4 05:06:07 n7 alice[1]: " + XID.encode() + b"\n" for _ in range(300))
    found = read(claims + f"Mar  4 05:06:08 n7 kernel: {XID}\n".encode())
    assert len(xids(found, Trust.USER)) == LIMIT + 1, "the last one is kept, too"
    assert xids(found) == [79]


def test_a_line_begins_only_at_a_line_end() -> None:
    """Neither a carriage return, nor where a block or a line that is too long was cut, begins a message."""
    assert not xids(read(b"overlayfs: failed to resolve 'a\r" + XID.encode() + b"\n"))
    assert not xids(read(b"x: \r", XID.encode() + b"\n"))
    assert not xids(read(b"x" * 70_000, XID.encode() + b"\n", b"fine\n"))
    assert xids(read(b"x" * 70_000, b"\n", XID.encode() + b"\r\n")) == [79]


def test_hidden_text_stays_part_of_its_line() -> None:
    """Terminals do not show what stands in an escape; here it says whose the line is."""
    packet = XID.encode() + b" \x1b]IN=lo OUT= MAC= SRC=127.0.0.1 DST=127.0.0.1 LEN=84\n"
    assert not xids(read(b"[  812.500000] " + packet))


def test_a_rank_in_a_programs_name_is_no_rank() -> None:
    line = b"[  812.500000] NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=[Rank 3], Ch 00000008\n"
    assert {item.where.rank for item in read(line)} == {None}


def test_a_rule_without_an_anchor_reads_nothing_there() -> None:
    """A hung task's name is its user's choice: in the machine's own log it opens no incident, not even as a claim."""
    line = b"INFO: task nvidia-smi:4242 blocked for more than 120 seconds.\n"
    found = read(b"[  812.500000] " + line)
    assert {(item.rule, item.trust) for item in found} == {("hung-task", Trust.SYSTEM)}
    assert {item.trust for item in read(line, source=Source.JOB_LOG) if item.rule == "hung-driver-task"} == {Trust.USER}


@pytest.mark.parametrize("source", [Source.KERNEL, Source.SLURM, Source.DCGM])
def test_rules_that_read_no_log_of_the_machines_own(source: Source) -> None:
    """A new rule of such a log's form needs an anchor to speak there: without one it is counted here."""
    rules = [one.rule for one in SIGNATURES.compiled if OWN_LOG.get(one.rule.form) is source]
    assert {rule.id for rule in rules if source not in rule.anchors} == QUIET[source]


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ("Oops: 0002 [#1] SMP NOPTI", "kernel-panic"),
        ("Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI", "kernel-panic"),
        ("LustreError: 167-0: scratch-OST0004-osc-ffff8800: This client was evicted by scratch-OST0004", "lustre"),
        ("Lustre: scratch-OST0004-osc-ffff8800: Connection to scratch-OST0004 (at 10.0.0.1@o2ib) was lost", "lustre"),
        ("Lustre: 4711:0:(client.c:2289:ptlrpc_expire_one_request()) @@@ Request sent has timed out", "lustre"),
        ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10", "local-disk"),
        ("nvme nvme0: Device not ready; aborting reset, CSTS=0x1", "local-disk"),
        ("blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ) flags 0x0 phys_seg 1", "local-disk"),
        ("I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x0", "local-disk"),
        ("BTRFS error (device sda1): bdev /dev/sda1 errs: wr 0, rd 1", "local-disk"),
        ("JBD2: Error -5 detected when updating journal superblock for sda1-8.", "local-disk"),
        ("mlx5_core 0000:9b:00.0 eth0: TX timeout detected", "mlx5-error"),
        ("infiniband mlx5_0: dump_cqe:273:(pid 0): dump error cqe", "cqe"),
        ("libceph: osd3 (1)10.0.0.3:6801 socket closed (con state OPEN)", "ceph-connection-closed"),
        (" rpc_wait_bit_killable+0x26/0xb0 [sunrpc]", "storage-slow"),
        ("python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0", "oom-kill"),
        ("ata1.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen", "scsi-disk"),
    ],
)
def test_the_kernels_own_words_are_still_its_own(message: str, rule: str) -> None:
    found = {item.rule for item in read(f"[  812.500000] {message}\n".encode()) if item.trust is Trust.SYSTEM}
    assert rule in found


# Words of programs, users' names and files, or another tool's report: none is how that log's own writer begins a message.
QUIET = {
    Source.KERNEL: {
        "driver-frame", "oom-frame", "xfs-internal-error",
        "ecc-words", "ecc-count", "hung-driver-task", "switch", "nhc-storage",
        "path-timeout", "stale-handle", "io-error", "io-error-system", "transport-endpoint", "fs-client-down",
        "metadata-shared", "volume-not-mounted", "subnet-manager", "nhc-disk-full", "drm-display", "page-allocation",
    },
    Source.SLURM: {
        "sacct-timeout", "sacct-cancelled", "script-lost", "submit", "node-instance-gone", "state-save-lost",
        "pending", "pending-for-its-turn",
        "slurmd-error", "slurmd-fatal", "submit-error", "step-noise", "srun-line", "srun-state",
        "node-config-differs", "slurm-plugin-missing", "state-files-clock",
        "job-not-known", "slurmd-launch-errno", "submit-controller", "srun-time-limit", "srun-launch-failed",
        "srun-error", "slurmd-syscall", "program-not-on-path", "launch-address", "srun-nodes-boot", "step-signalled",
        "launch-timeout", "reserved-port", "script-not-written", "reserved-for-maintenance", "slurm-harmless",
        "controller-takeover", "gres-without-file", "burst-buffer", "node-identity", "gres-cores", "ping-hung",
        "cyclecloud-node", "slurm-conf-broken", "slurmctld-fatal", "slurmdbd-database", "slurm-command-error",
        "pyxis-told", "spank-pyxis",
    },
    Source.DCGM: set(),
}  # fmt: skip


@pytest.mark.parametrize(
    ("raw", "message", "own"),
    [
        ("[2026-03-04T12:00:00.123] error: Nodes n[3-4] not responding", "Nodes n[3-4] not responding", True),
        ("[2026-03-04T12:00:00.123] [7.batch] error: Kill task failed", "Kill task failed", True),
        ("slurmctld: error: Node n7 unexpectedly rebooted", "Node n7 unexpectedly rebooted", True),
        ("Mar  4 05:06:07 n1 slurmctld[12]: error: Node n7 unexpectedly rebooted", "Node n7 unexpectedly rebooted", True),
        ("Mar  4 05:06:07 n1 alice[12]: Node n7 unexpectedly rebooted", "Node n7 unexpectedly rebooted", False),
    ],
)  # fmt: skip
def test_slurms_own_lines(raw: str, message: str, own: bool) -> None:
    line = said(Source.SLURM, raw)
    assert (line.message, line.own) == (message, own)
    assert line.head + line.text == raw


@pytest.mark.parametrize(
    ("raw", "message", "own"),
    [
        ("[Jul 23 2024 07:53:55] [ERROR] [tid 8] detected NVSwitch fatal error 1", "detected NVSwitch fatal error 1", True),
        ("2026-03-04 12:00:00.123 ERROR [12:34] Detected 2 volatile", "Detected 2 volatile", True),
        ("|        | GPU 2 has fallen off the bus  |", "GPU 2 has fallen off the bus  |", True),
        ('\t\t"warning" : "Page Retirement/Row Remap: GPU 4', "Page Retirement/Row Remap: GPU 4", True),
        ("Mar  4 05:06:07 n7 nv-hostengine[1]: GPU 2 has", "GPU 2 has", True),
        ("Mar  4 05:06:07 n7 alice[1]: GPU 2 has", "GPU 2 has", False),
    ],
)  # fmt: skip
def test_dcgms_own_lines(raw: str, message: str, own: bool) -> None:
    line = said(Source.DCGM, raw)
    assert (line.message, line.own) == (message, own)


def test_a_message_that_looks_like_a_prefix_is_not_read_twice() -> None:
    for text in ("[    1.000000] " + XID, "<3>" + XID, f"Mar  4 05:06:07 n7 kernel: {XID}", f"3,1,1,-;{XID}"):
        assert kernel_line(f"6,1,5000000,-;{text}").text == text
        assert said(Source.KERNEL, text, bare=True).message == text
        assert not xids(read(f"[  812.500000] {text}\n".encode())), text
