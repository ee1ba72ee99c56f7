"""Records of /dev/kmsg in a file, cursors, and floods."""

from __future__ import annotations

import json
import os
import pty
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from shipped import shipped_signatures

from sentinel.adapters.host.kmsg import KernelLog, Record
from sentinel.agent.collectors.kernel_log import Flood, KernelWatch, rules_reader
from sentinel.agent.settings import AgentSettings, Kernel
from sentinel.errors import Unavailable
from sentinel.model.records import Evidence, Kind, Source, stable_id, utc


def put(path: Path, *texts: str, first: int = 0, priority: int = 4) -> None:
    with path.open("a") as stream:
        for number, text in enumerate(texts, first):
            stream.write(f"{priority},{number},{1000 * number},-;{text}\n")


def texts(log: KernelLog) -> list[str]:
    return [record.text for record in log.read()]


@pytest.fixture
def kmsg(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    put(path, "before the agent")
    return path


@pytest.fixture
def opened() -> Any:
    logs: list[KernelLog] = []

    def made(*arguments: Any, **rest: Any) -> KernelLog:
        logs.append(KernelLog(*arguments, **rest))
        return logs[-1]

    yield made
    for log in logs:
        log.close()


class Device:
    """A character device that gives one record at a time, as /dev/kmsg does: a terminal."""

    def __init__(self) -> None:
        self._end, self._terminal = pty.openpty()
        self.path = os.ttyname(self._terminal)

    def put(self, *sequences: int) -> None:
        for number in sequences:
            os.write(self._end, f"4,{number},{1000 * number},-;record {number}\n".encode())

    def close(self) -> None:
        os.close(self._end)
        os.close(self._terminal)


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("boot", "oldest", "lost"),
    [("b", 7, 0), ("b", 5, 0), ("b", 8, 1), ("before", 0, 0), ("before", 3, 1)],
)
def test_records_that_went_while_no_agent_was_there_are_missed(
    device: Device, opened: Any, boot: str, oldest: int, lost: int
) -> None:
    """The kernel keeps the newest: the first that is left says by its number how far an agent had read."""
    log = opened(device.path, {"boot": boot, "sequence": 6}, boot="b")
    device.put(*range(oldest, 12))
    assert texts(log)[-1] == "record 11" and log.overruns == lost
    device.put(14)
    assert texts(log) == ["record 14"] and log.overruns == lost, "while it reads, the device itself says so"


def test_of_records_before_the_first_agent_none_is_missed(device: Device, opened: Any) -> None:
    log = opened(device.path, replay=True)
    device.put(9)
    assert texts(log) == ["record 9"] and log.overruns == 0


def test_a_gap_over_a_restart_is_said(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Evidence] = []
    made = watch(tmp_path, kept, device.path)
    (tmp_path / "state" / "kernel.json").write_text(json.dumps({"boot": made._boot, "sequence": 6}))
    device.put(9)
    monkeypatch.setattr(KernelLog, "wait", lambda *_: made.stop())
    made.run()
    assert [item.kind for item in kept] == [Kind.UNREADABLE] and "threw records away" in kept[0].text


def test_the_first_start_reads_from_now_on(kmsg: Path, opened: Any) -> None:
    log = opened(str(kmsg))
    put(kmsg, "one", "two", first=1)
    assert texts(log) == ["one", "two"]
    assert texts(log) == []


def test_replay_reads_what_was_there(kmsg: Path, opened: Any) -> None:
    assert texts(opened(str(kmsg), replay=True)) == ["before the agent"]


def test_a_restart_neither_repeats_nor_misses(kmsg: Path, opened: Any) -> None:
    first = opened(str(kmsg), boot="b")
    put(kmsg, "one", first=1)
    assert texts(first) == ["one"]
    cursor = first.cursor
    put(kmsg, "while it was away", first=2)
    assert texts(opened(str(kmsg), cursor, boot="b")) == ["while it was away"]


def test_a_cursor_of_another_boot_reads_all_of_this_one(kmsg: Path, opened: Any) -> None:
    cursor = {**opened(str(kmsg), boot="old").cursor}
    assert texts(opened(str(kmsg), cursor, boot="new")) == ["before the agent"]


def test_a_line_is_read_when_it_is_whole(kmsg: Path, opened: Any) -> None:
    log = opened(str(kmsg))
    with kmsg.open("a") as stream:
        stream.write("4,7,9,-;half a ")
        stream.flush()
        assert texts(log) == []
        stream.write("line\n")
    assert texts(log) == ["half a line"]


def test_waiting_ends_when_the_file_has_more(kmsg: Path, opened: Any) -> None:
    log = opened(str(kmsg))
    put(kmsg, "new", first=1)
    log.wait(3600.0, 0.001)
    assert texts(log) == ["new"]
    kmsg.unlink()
    log.wait(3600.0, 0.001)


def test_truncation_and_replacement(kmsg: Path, opened: Any) -> None:
    log = opened(str(kmsg))
    kmsg.write_text("")
    assert texts(log) == []
    put(kmsg, "a")
    assert texts(log) == ["a"]
    other = kmsg.with_name("other")
    put(other, "from the new file")
    other.replace(kmsg)
    assert texts(log) == ["from the new file"]


def test_continuations_and_rubbish(kmsg: Path, opened: Any) -> None:
    log = opened(str(kmsg))
    with kmsg.open("ab") as stream:
        stream.write(
            b"6,9,1,-;usb 1-1: text\n SUBSYSTEM=usb\n DEVICE=c1\nrubbish\n6,x,1,-;no\n\xff\xfe\n3,10,2,-;last \xff\n"
        )
    assert texts(log) == ["usb 1-1: text", "last �"]
    assert log.unparsable == 3


def test_who_wrote_it_and_how_grave(kmsg: Path, opened: Any) -> None:
    log = opened(str(kmsg))
    put(kmsg, "by the kernel", priority=3)
    put(kmsg, "by a user", priority=(1 << 3) | 3)
    kernel, user = log.read()
    assert (kernel.priority, kernel.facility) == (3, 0)
    assert (user.priority, user.facility) == (3, 1)


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="kmsg"):
        KernelLog(str(tmp_path / "kmsg"))


def test_a_flood_never_hides_the_first_of_another_kind() -> None:
    flood = Flood(lines=3, window_s=60)
    passed = [flood.passes(f"nvme nvme1: I/O {n} timeout", n / 10) for n in range(100)]
    assert sum(passed) == 3
    assert flood.passes("NVRM: Xid (PCI:0000:3b:00): 79", 10.1)
    assert flood.suppressed == 97
    assert flood.passes("nvme nvme1: I/O 1 timeout", 61.0), "the next window"


@pytest.mark.parametrize(
    ("line", "one", "other"),
    [
        ("blk_update_request: I/O error, dev {}, sector {} op 0x0:(READ)", "nvme0n1", "nvme1n1"),
        ("critical medium error, dev {}, sector {} op 0x0:(READ)", "sda", "sdb"),
        ("pcieport {}: AER: Uncorrected (Fatal) error received, count {}", "0000:3b:00.0", "0000:9a:00.0"),
        ("EDAC {}: {} UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0", "MC0", "MC1"),
        ("mlx5_core 0000:3b:00.0 {}: Port: {} Link DOWN", "mlx5_0", "mlx5_1"),
    ],
)
def test_a_flood_of_one_device_hides_no_other_one(line: str, one: str, other: str) -> None:
    flood = Flood(lines=3, window_s=60)
    assert sum(flood.passes(line.format(one, n), n / 10) for n in range(50)) == 3
    assert flood.passes(line.format(other, 1), 6.0)


def test_a_clock_that_is_set_back_hides_no_line() -> None:
    flood = Flood(lines=1, window_s=60)
    assert flood.passes("NVRM: Xid (PCI:0000:3b:00): 79", 7200.0)
    assert flood.passes("NVRM: Xid (PCI:0000:5e:00): 79", 3600.0)
    assert not flood.passes("NVRM: Xid (PCI:0000:5e:00): 79", 3601.0)


def test_a_flood_of_one_gpus_xid_hides_neither_another_gpu_nor_another_number() -> None:
    """The lines of Xid 43 and 45 differ in their number alone, and those of two GPUs in their address alone."""
    flood = Flood(lines=5, window_s=60)
    line = "NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=python3, channel 0x0000000a"
    assert sum(flood.passes(line, n / 10, ("0000:3b:00", 43)) for n in range(50)) == 5
    assert flood.passes(line.replace("3b", "5d"), 6.0, ("0000:5d:00", 43))
    assert flood.passes(line.replace("43", "45"), 6.0, ("0000:3b:00", 45))


def test_of_one_fault_in_all_processors_few_lines_pass(by_rules: Any) -> None:
    """As driver 580 wrote them on an H100: three lines for each processor of the GPU, some naming a process on whose
    turn they were printed, and only the last one the process that failed."""
    lines = []
    for number in range(128):
        at = f"(GPC {number // 18}, TPC {number // 2 % 9}, SM {number % 2})"
        who = "" if number < 3 else "pid=1995, name=pt_elastic, "
        lines += [f"{who}Graphics SM Warp Exception on {at}: Illegal Instruction Parameter"]
        lines += [f"{who}Graphics SM Global Exception on {at}: Multiple Warp Errors"]
        lines += [f"{who}Graphics Exception: ESR 0x5{number:03x}30=0xc02000b 0x5{number:03x}34=0x24"]
    texts = [f"NVRM: Xid (PCI:0000:00:06): 13, {line}" for line in lines]
    texts.append("NVRM: Xid (PCI:0000:00:06): 43, pid=2194, name=histo, channel 0x0000000a")
    found = by_rules([record(number, text) for number, text in enumerate(texts)], NOW)
    flood = Flood(lines=20, window_s=60)
    passed = [item for item in found if flood.passes(item.text, 1.0, (item.data.get("pci"), item.data.get("xid")))]
    assert [item.data["xid"] for item in passed] == [*[13] * 20, 43]


def watch(tmp_path: Path, kept: list[Evidence], path: str = "") -> KernelWatch:
    def reader(records: Sequence[Record], now: datetime) -> list[Evidence]:
        return [
            Evidence(stable_id(record.sequence), utc(record.at_s), now, Source.KERNEL, Kind.XID, text=record.text)
            for record in records
            if "Xid" in record.text
        ]

    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    settings = AgentSettings(
        node="n1", state=str(state), kernel=Kernel(path=path or str(tmp_path / "kmsg"), pstore=str(tmp_path / "pstore"))
    )
    return KernelWatch("n1", settings, reader, kept.append)


def test_what_rules_know_becomes_evidence(tmp_path: Path, kmsg: Path, opened: Any) -> None:
    kept: list[Evidence] = []
    made = watch(tmp_path, kept)
    log = opened(str(kmsg))
    put(kmsg, "harmless", "NVRM: Xid 79", first=1)
    assert made.turn(log) == 2
    assert [item.text for item in kept] == ["NVRM: Xid 79"]


@pytest.fixture(scope="module")
def by_rules() -> Any:
    return rules_reader("n1", "boot", shipped_signatures())


def record(number: int, text: str, facility: int = 0) -> Record:
    return Record(number, 1_900_000_000.0 + number, 4, facility, text, float(number))


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
NOW = utc(1_900_001_000)


def test_a_batch_reads_like_its_lines(by_rules: Any) -> None:
    """The screen over many lines finds what a look at each of them finds."""
    texts = [
        "usb 1-1: new device",
        XID,
        "",
        "eth0: link up",
        XID.replace("79", "48"),
        "x" * 3000,
        "harmless\nrest",
        XID,
    ]
    records = [record(number, text) for number, text in enumerate(texts * 3)]
    together = by_rules(records, NOW)
    one_by_one = [item for each in records for item in by_rules([each], NOW)]
    assert [item.id for item in together] == [item.id for item in one_by_one]
    assert sum(item.kind == Kind.XID and item.data["xid"] == 79 for item in together) >= 6
    assert by_rules([], NOW) == []


def test_what_user_space_wrote_into_the_kernel_log_is_no_kernel_line(by_rules: Any) -> None:
    assert by_rules([record(1, XID, facility=1)], NOW) == []
    assert by_rules([record(1, XID)], NOW) != []


class Growing(KernelLog):
    """A file that gets another line before each look at it; ``lines`` are all that come, then its reader is stopped."""

    def __init__(self, path: Path, lines: list[str], stop: Any) -> None:
        super().__init__(str(path), boot="b")
        self._coming, self._stop = lines, stop

    def read(self) -> Iterator[Record]:
        with Path(self.path).open("a") as stream:
            stream.write(self._coming.pop(0) + "\n")
        if not self._coming:
            self._stop()
        return super().read()

    def wait(self, *_: float) -> None:
        return


def test_lines_of_another_form_are_a_log_that_cannot_be_read_which_is_told_once(tmp_path: Path) -> None:
    """As where kernel.path names what rsyslog writes, all the time: nothing would ever be seen there."""
    path, kept = tmp_path / "kern.log", list[Evidence]()
    path.touch()
    made = watch(tmp_path, kept, str(path))
    coming = [f"Mar  4 12:00:0{number} n1 kernel: [ 99.1] NVRM: Xid (PCI:0000:3b:00): 79" for number in range(5)]
    made._open = lambda: (Growing(path, coming, made.stop), tmp_path / "cursor")  # type: ignore[method-assign]
    made.run()
    (told,) = kept
    assert (told.kind, made.readable) == (Kind.UNREADABLE, False) and "no records of the kernel" in told.text


def test_a_record_behind_a_torn_one_is_of_a_log_that_can_be_read(tmp_path: Path) -> None:
    path, kept = tmp_path / "kern.log", list[Evidence]()
    path.touch()
    made = watch(tmp_path, kept, str(path))
    coming = ["the end of a line", "4,1,1000,-;NVRM: Xid (PCI:0000:3b:00): 79"]
    made._open = lambda: (Growing(path, coming, made.stop), tmp_path / "cursor")  # type: ignore[method-assign]
    made.run()
    assert made.readable and kept[-1].kind == Kind.XID


def test_times_never_lie_in_the_future(kmsg: Path, opened: Any) -> None:
    log = opened(str(kmsg))
    with kmsg.open("a") as stream:
        stream.write("4,1,99999999999999999,-;from the future\n")
    (record,) = log.read()
    assert utc(record.at_s) <= datetime.now(UTC)


def test_a_line_has_one_id_in_both_sources(by_rules: Any) -> None:
    """The device counts, journald does not; both have the kernel's stamp."""
    both = [Record(sequence, 1.9e9, 3, 0, XID, 5.000001) for sequence in (812, 5_000_001)]
    first, second = ([item.id for item in by_rules([each], NOW)] for each in both)
    assert first
    assert first == second


def test_pauses_begin_anew_once_the_log_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures that lie months apart do not add up to a minute of blindness."""
    made = watch(tmp_path, [])
    pauses: list[float] = []
    there = iter([False, False, False, True, False])

    class Breaks:
        cursor = ("boot", 1)
        overruns = 0

        def close(self) -> None:
            pass

    def opened() -> tuple[Any, Path]:
        found = next(there, None)
        if found is None:
            made.stop()
        if not found:
            raise Unavailable("the device is away")
        return Breaks(), tmp_path / "cursor.json"

    def read(_source: Any) -> int:
        raise Unavailable("the device is gone again")

    def paused(seconds: float) -> bool:
        pauses.append(seconds)
        return False

    monkeypatch.setattr(made, "_open", opened)
    monkeypatch.setattr(made, "turn", read)
    monkeypatch.setattr(made._stopped, "wait", paused)
    monkeypatch.setattr("sentinel.agent.process.retries.random.random", lambda: 0.5)
    made.run()
    assert pauses[:5] == [0.2, 0.4, 0.8, 0.2, 0.4]
