"""What convicts a machine makes a suspect where its own log says that it passed, or that the machine was being shut down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.config.rules import Drain, Role
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Recommendation, Source, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
OFF = "ACPI: PM: Preparing to enter system sleep state S5"
FATAL = "{1}[Hardware Error]: event severity: fatal"
STUCK = "amdgpu 0000:2b:00.0: amdgpu: MES failed to respond to msg=2"
QUEUE = "amdgpu: Failed to suspend process 0x8007"
STARTS = "[drm:amdgpu_device_fw_loading [amdgpu]] *ERROR* resume of IP block <psp> failed -62"
RESET = "amdgpu 0000:2b:00.0: amdgpu: GPU reset succeeded, trying to resume"
DOWN = "mlx5_core 0000:9b:00.0 ibp155s0: Link down"
UP = "mlx5_core 0000:9b:00.0 ibp155s0: Link up"


def judge(*lines: tuple[float, str], source: Source = Source.KERNEL) -> Verdict:
    """Each line with the seconds after boot."""
    reader = LogReader(SIGNATURES, source=source, where=Where(node="c4", path="dmesg"))
    text = "".join(f"[{at:12.6f}] {line}\n" for at, line in lines)
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i1", NOW, NOW, nodes=("c4",), evidence=tuple(found)), rules=RULES, now=NOW)


def said(*lines: tuple[float, str]) -> tuple[Recommendation, tuple[str, ...], tuple[str, ...]]:
    verdict = judge(*lines)
    return verdict.recommendation, verdict.drain, verdict.suspect


def asked(*lines: tuple[float, str]) -> Recommendation:
    return judge(*lines).recommendation


DRAINED = (Recommendation.DRAIN, ("c4",), ())
SUSPECTED = (Recommendation.SUSPECT, (), ("c4",))


@pytest.mark.parametrize("stop", [OFF, "reboot: Restarting system", "reboot: Power down"])
def test_what_a_machine_reports_while_it_is_shut_down_makes_a_suspect(stop: str) -> None:
    assert said((70.0, FATAL)) == DRAINED
    assert said((68.0, stop), (70.0, FATAL)) == SUSPECTED
    assert said((70.0, FATAL), (72.0, stop)) == DRAINED  # it was shut down for it
    assert said((68.0, stop), (500.0, FATAL)) == DRAINED
    assert said((68.0, stop), (12.0, FATAL)) == DRAINED  # after the next start


def test_a_gpu_that_its_driver_reset_makes_a_suspect() -> None:
    stuck, reset = [(7.0, STUCK), (7.5, QUEUE)], (9.0, RESET)
    assert judge(*stuck).recommendation is Recommendation.DRAIN
    assert said(*stuck, reset) == SUSPECTED
    assert judge(*stuck, reset, (9.5, STARTS)).recommendation is Recommendation.DRAIN  # it failed again
    assert (
        judge(*stuck, (9.0, RESET.replace("2b:", "65:"))).recommendation is Recommendation.DRAIN
    )  # another one was reset


def test_a_reset_mends_no_memory() -> None:
    consumed = "amdgpu: sq_intr: error, se 0, data 0x0, sh 0, priv 1, wave_id 1, simd_id 0, cu_id 3, err_type 3"
    assert judge((7.0, consumed)).recommendation is Recommendation.DRAIN
    assert judge((7.0, consumed), (9.0, RESET)).recommendation is Recommendation.DRAIN


def test_a_reset_brings_back_no_gpu_that_is_gone() -> None:
    gone = "amdgpu 0000:2b:00.0: amdgpu: device lost from bus!"
    assert said((7.0, gone), (9.0, RESET)) == DRAINED


@pytest.mark.parametrize(
    ("down", "up"),
    [
        (DOWN, UP),
        ("mlx5_core 0000:9b:00.0: Port: 1 Link DOWN", "mlx5_core 0000:9b:00.0: Port: 1 Link UP"),
        ("ixgbe 0000:08:00.1 eth9: NIC Link is Down", "ixgbe 0000:08:00.1 eth9: NIC Link is Up 10 Gbps"),
        ("i40e 0000:08:00.1: eth9: NIC Link is Down", "i40e 0000:08:00.1: eth9: NIC Link is Up 10 Gbps Full Duplex"),
        ("bnxt_en 0000:1a:00.0 enp26s0: NIC Link is Down", "bnxt_en 0000:1a:00.0 enp26s0: NIC Link is Up, 100000 Mbps"),
        ("ice 0000:08:00.1: eth9: NIC Link is Down", "ice 0000:08:00.1: eth9: NIC Link is Up 25 Gbps, Full Duplex"),
    ],
)  # fmt: skip
def test_a_link_that_came_up_again_makes_a_suspect(down: str, up: str) -> None:
    assert asked((700.0, down)) is Recommendation.DRAIN
    assert asked((700.0, down), (709.0, up)) is Recommendation.SUSPECT
    assert asked((690.0, up), (700.0, down)) is Recommendation.DRAIN
    other = (
        up.replace("0000:9b", "0000:c2")
        .replace("0000:08", "0000:09")
        .replace("0000:1a", "0000:1b")
        .replace("eth0", "eth1")
    )
    assert asked((700.0, down), (709.0, other)) is Recommendation.DRAIN  # another port came up


@pytest.mark.parametrize("other_at", [690.0, 800.0])
def test_a_port_that_is_down_hides_no_other_port_that_was(other_at: float) -> None:
    other = DOWN.replace("9b:", "c2:").replace("ibp155s0", "ibp194s0")
    verdict = judge((700.0, DOWN), (709.0, UP), (other_at, other))
    assert (verdict.recommendation, verdict.drain) == (asked((800.0, other)), judge((800.0, other)).drain)
    told = [f"{item.note} {item.evidence.text}" for item in verdict.grounds]
    assert any("the link came up again" in text and "9b:00.0" in text for text in told), told
    assert any("c2:00.0" in text for text in told), told


@pytest.mark.parametrize(
    ("down", "up"),
    [
        (
            "bond0: (slave eth1): link status definitely down, disabling slave",
            "bond0: (slave eth1): link status definitely up, 40000 Mbps full duplex",
        ),
        (
            "bond0: link status definitely down for interface eth1, disabling it",
            "bond0: link status definitely up for interface eth1, 40000 Mbps full duplex",
        ),
    ],
)
def test_a_port_of_a_bond_is_known_by_its_own_name(down: str, up: str) -> None:
    def asked(*lines: tuple[float, str]) -> Recommendation:
        return judge(*lines, source=Source.JOB_LOG).recommendation

    assert asked((700.0, down), (709.0, up)) is Recommendation.SUSPECT
    assert asked((700.0, down), (709.0, up.replace("eth1", "eth2"))) is asked((700.0, down))
    each = [(700.0 + n, text.replace("eth1", f"eth{n}")) for text in (down, up) for n in (1, 2, 3)]
    assert asked(*each) is Recommendation.SUSPECT  # the switch was started anew: no port came and went
    flaps = [(700.0 + 10 * n, up if n % 2 else down) for n in range(6)]
    assert asked(*flaps) is asked((700.0, down)) is Recommendation.DRAIN


def test_a_link_that_comes_and_goes_is_drained() -> None:
    flaps = [(700.0 + 60 * i, DOWN if i % 2 == 0 else UP) for i in range(6)]
    assert asked(*flaps[:2]) is asked(*flaps[:4]) is Recommendation.SUSPECT
    assert asked(*flaps[:3]) is asked(*flaps) is Recommendation.DRAIN


def test_a_port_that_is_down_while_the_machine_starts_makes_a_suspect() -> None:
    """A driver says so of each port before its link is trained, and of one without a cable."""
    assert asked((25.0, DOWN)) is Recommendation.SUSPECT
    assert asked((25.0, DOWN), (700.0, DOWN)) is Recommendation.DRAIN
    assert asked((25.0, DOWN), (26.0, "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")) is Recommendation.DRAIN


@pytest.mark.parametrize(
    ("writer", "later_s", "expected"), [("kernel", 5, SUSPECTED), ("kernel", 90, DRAINED), ("train[7]", 5, DRAINED)]
)
def test_only_the_kernel_says_that_it_stops_and_only_for_a_minute(writer: str, later_s: int, expected: object) -> None:
    """After that the machine has started again. What a program prints into the log lowers nothing."""
    at = datetime(2026, 3, 4, 11, tzinfo=UTC)
    lines = [(at, writer, OFF), (at + timedelta(seconds=later_s), "kernel", FATAL)]
    reader = LogReader(SIGNATURES, source=Source.KERNEL, where=Where(node="c4", path="messages"))
    text = "".join(f"{when.isoformat()} c4 {who}: {line}\n" for when, who, line in lines)
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    verdict = classify(Incident("i1", NOW, NOW, nodes=("c4",), evidence=tuple(found)), rules=RULES, now=NOW)
    assert (verdict.recommendation, verdict.drain, verdict.suspect) == expected


def test_rules_that_know_no_line_of_their_own_convict_nobody() -> None:
    assert [rule.id for rule in RULES.rules if rule.role is Role.FALLBACK and rule.drain.convicts] == []
    assert Drain.ADVISE.convicts and not Drain.SUSPECT.convicts


BOOTS, GONE = "srun: error: Nodes c7 are still not ready\n", "srun: error: Node failure on c7\n"


@pytest.mark.parametrize(
    ("text", "boots"), [(GONE + BOOTS, True), (GONE, False), (f"{BOOTS}step 1 loss 2.1\n{GONE}", False)]
)
def test_a_node_that_slurm_started_for_the_job_and_that_does_not_come_up_is_looked_at(text: str, boots: bool) -> None:
    reader = LogReader(SIGNATURES, where=Where(job=52, path="out.txt"))
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    verdict = classify(Incident("i1", NOW, NOW, job=52, evidence=tuple(found)), rules=RULES, now=NOW)
    assert verdict.recommendation is (Recommendation.SUSPECT if boots else Recommendation.DRAIN)


def test_a_diagnostic_that_broke_makes_a_suspect() -> None:
    """DCGM marks the test as failed where its own helper was missing, or printed what it could not read."""

    def asked_by(*rows: tuple[str, str]) -> Recommendation:
        reader = LogReader(SIGNATURES, where=Where(path="diag.txt"))
        found = reader.feed("".join(f"| {left:25} | {right:46} |\n" for left, right in rows).encode(), NOW)
        return classify(Incident("i1", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW).recommendation

    failed, advice = ("pcie", "Fail"), ("", "Check DCGM and system logs for errors. Reset")
    assert asked_by(failed, ("Warning", "GPU 3: Detected more than 8 PCIe replays")) is Recommendation.DRAIN
    assert (
        asked_by(failed, ("Warning", "There was an internal error during the test:"), advice) is Recommendation.SUSPECT
    )
    memory = ("memory", "Fail"), ("Warning", "Found 3 faulty memory elements on GPU 2.")
    broke = ("Warning", "There was an internal error during the test:")
    assert asked_by(*memory, failed, broke) is Recommendation.DRAIN
    assert asked_by(*memory[:1], failed, broke) is Recommendation.DRAIN  # of the other test


def of_journal(*lines: str) -> Verdict:
    reader = LogReader(SIGNATURES, source=Source.KERNEL, where=Where(node="c4", path="kern.log"), own_times=True)
    text = "".join(f"2026-03-04T06:{line}\n" for line in lines)
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i1", NOW, NOW, nodes=("c4",), evidence=tuple(found)), rules=RULES, now=NOW)


def test_a_port_without_a_cable_that_a_boot_finds_makes_a_suspect() -> None:
    boot = "02:11+00:00 c4 kernel: Linux version 5.14.0-427.13.1.el9_4.x86_64 (gcc 11.4.1)"
    ports = (
        "{}:15+00:00 c4 kernel: mlx5_core 0000:9c:00.1: Port module event: module 1, Cable unplugged",
        "{}:16+00:00 c4 kernel: mlx5_core 0000:9c:00.1 ens9f1np1: Link down",
    )
    told = [
        of_journal(*lines)
        for lines in ((boot, *(p.format("02") for p in ports)), (boot, *(p.format("22") for p in ports)))
    ]
    assert [verdict.recommendation for verdict in told] == [Recommendation.SUSPECT, Recommendation.DRAIN]


def test_a_log_without_times_says_not_when_a_link_was_lost() -> None:
    boot, down = (
        "Linux version 5.14.0-427.13.1.el9_4.x86_64 (gcc 11.4.1)",
        "mlx5_core 0000:9c:00.1 ens9f1np1: Link down",
    )
    cable = "mlx5_core 0000:9c:00.1: Port module event: module 1, Cable unplugged"
    reader = LogReader(SIGNATURES, source=Source.KERNEL, where=Where(node="c4", path="dmesg"), bare=True)
    found = reader.feed(f"{boot}\n{cable}\n{down}\n".encode(), NOW) + reader.finish(NOW)
    verdict = classify(Incident("i1", NOW, NOW, nodes=("c4",), evidence=tuple(found)), rules=RULES, now=NOW)
    assert verdict.recommendation is Recommendation.DRAIN


def test_a_contained_error_that_the_program_is_told_of_makes_a_suspect() -> None:
    contained = (
        7.0,
        "NVRM: Xid (PCI:0000:c3:00): 94, pid=10388, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
    )
    worse = (7.1, "NVRM: Xid (PCI:0000:c3:00): 95, pid=10388, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No")
    told = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    reader = LogReader(SIGNATURES, where=Where(path="out.txt"))
    by_program = tuple(reader.feed(told.encode(), NOW) + reader.finish(NOW))

    def judged(*lines: tuple[float, str]) -> Recommendation:
        text = "".join(f"[{at:12.6f}] {line}\n" for at, line in lines)
        kernel = LogReader(SIGNATURES, source=Source.KERNEL, where=Where(node="c4", path="dmesg"))
        found = tuple(kernel.feed(text.encode(), NOW) + kernel.finish(NOW))
        return classify(Incident("i1", NOW, NOW, evidence=found + by_program), rules=RULES, now=NOW).recommendation

    assert judged(contained) is Recommendation.SUSPECT
    assert judged(contained, worse) is Recommendation.DRAIN
    assert judged() is Recommendation.DRAIN


def test_an_adapter_below_a_pcie_link_that_failed_is_not_the_cause() -> None:
    link = (
        7.0,
        "pcieport 0000:42:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)",
    )
    adapter = [
        (7.5, "mlx5_core 0000:44:00.0: mlx5_error_sw_reset:237:(pid 1210): start"),
        (7.6, "mlx5_core 0000:44:00.0: assert_var[0] 0x00000000"),
    ]
    assert judge(*adapter).cause is Cause.NETWORK_FABRIC
    assert judge(link, *adapter).cause is Cause.PCIE
    assert judge(*adapter, (90.0, link[1])).cause is Cause.NETWORK_FABRIC


def test_the_registers_that_a_warning_shows_are_no_fault() -> None:
    registers = "CR2: 000055e1d15c83c4 CR3: 0000000140042006 CR4: 0000000000770ee0"
    warning = (
        "WARNING: CPU: 15 PID: 1439 at drivers/gpu/drm/drm_gem_shmem_helper.c:304 drm_gem_shmem_vmap_locked+0x1a8/0x1d0"
    )
    assert judge((14.0, registers)).cause is Cause.NODE_OS_OR_HOST
    assert judge((14.0, warning), (14.1, registers)).cause is Cause.UNKNOWN
    place = "pc : __efi_queue_work+0xf0/0x130"  # in the kernel's own code
    assert judge((14.0, place)).cause is Cause.NODE_OS_OR_HOST
    assert judge((14.0, warning), (14.1, place)).cause is Cause.UNKNOWN
    others = [(14.1, "usb 1-1: new high-speed USB device")] * 70
    assert judge((14.0, warning), *others, (14.2, registers)).cause is Cause.NODE_OS_OR_HOST


MANAGEMENT_DOWN = "r8169 0000:2a:00.0 enp42s0: Link is Down"
MANAGEMENT_UP = "r8169 0000:2a:00.0 enp42s0: Link is Up - 1Gbps/Full - flow control rx/tx"


def test_a_management_port_that_was_not_up_yet_or_came_up_again_is_no_failure() -> None:
    assert judge((4000.0, MANAGEMENT_DOWN)).cause is Cause.NETWORK_FABRIC
    assert judge((8.4, MANAGEMENT_DOWN)).cause is Cause.UNKNOWN
    assert judge((4000.0, MANAGEMENT_DOWN), (4004.0, MANAGEMENT_UP)).cause is Cause.UNKNOWN
    flapping = [(4000.0 + 10 * n, line) for n, line in enumerate([MANAGEMENT_DOWN, MANAGEMENT_UP] * 3)]
    assert judge(*flapping).cause is Cause.NETWORK_FABRIC


def test_a_port_of_a_driver_for_1_gbit_s_that_says_link_down_in_the_words_of_others_drains_nothing() -> None:
    down = "r8169 0000:03:00.2 eth0: link down"
    flapping = [(4000.0 + 10 * n, line) for n, line in enumerate([down, down.replace("down", "up")] * 3)]
    for lines in ([(4000.0, down)], flapping):
        verdict = judge(*lines)
        assert (verdict.cause, verdict.drain_recommended) == (Cause.NETWORK_FABRIC, False)
    assert judge((4000.0, down), (4014.0, down.replace("down", "up"))).cause is Cause.UNKNOWN


def test_a_kernel_that_crashes_or_spins_is_no_consequence_of_a_server_that_closed_a_socket() -> None:
    closed = (4000.0, "libceph: osd2 (1)51.168.30.2:6805 socket closed (con state V1_BANNER)")
    receive = (4000.0, "block nbd2: Receive control failed (result -32)")
    assert judge(closed).cause is judge(receive).cause is Cause.FILESYSTEM_STORAGE
    spun = [
        (4080.4, "rcu: INFO: rcu_sched self-detected stall on CPU"),
        (4107.3, "watchdog: BUG: soft lockup - CPU#65 stuck for 22s! [kcompactd4:925]"),
    ]
    crashed = [
        (4080.4, "BUG: unable to handle kernel paging request at ffffffffffffffe0"),
        (4080.5, "Oops: 0000 [#1] SMP"),
        (4081.9, "BUG: soft lockup - CPU#20 stuck for 67s! [libvirtd:21321]"),
    ]
    assert judge(closed, *spun).cause is judge(receive, *crashed).cause is Cause.NODE_OS_OR_HOST


def test_a_stack_whose_modules_carry_build_ids_shows_the_file_system_too() -> None:
    frame = " smb2_reconnect+0x33c/0x610 [cifs{}]"
    hung = (4000.0, "INFO: task zsh:5217 blocked for more than 245 seconds.")
    plain = judge(hung, (4000.1, frame.format("")))
    with_id = judge(hung, (4000.1, frame.format(" 3f21c0de9a77b1d24b6f0a5c8e19d7f2430b6a11")))
    assert judge(hung).alternatives != plain.alternatives
    assert (plain.cause, plain.confidence) == (with_id.cause, with_id.confidence)
