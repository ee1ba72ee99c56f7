"""The kernel's log by journald, over a scripted journalctl and over the real one where it has something to say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.adapters.host.journal import Journal
from sentinel.adapters.host.kmsg import Record
from sentinel.agent.collectors.kernel_log import KernelWatch
from sentinel.agent.settings import AgentSettings, Kernel
from sentinel.errors import Denied, Unavailable

JOURNALCTL = """#!{python} -u
import json, os, sys, time
sys.stdout.reconfigure(errors="surrogateescape")
folder = os.path.dirname(os.path.abspath(__file__))
with open(folder + "/asked", "a") as stream:
    stream.write(json.dumps(sys.argv[1:]) + "\\n")
if os.path.exists(folder + "/denied"):
    print("Hint: You are currently not seeing messages from other users and the system.", file=sys.stderr)
if "--follow" not in sys.argv:
    if not os.path.exists(folder + "/empty"):
        print("{}")
    sys.exit(0)
after = [int(word.partition("=")[2]) for word in sys.argv if word.startswith("--after-cursor=")]
place = after[0] if after else 0
while not os.path.exists(folder + "/over"):
    said = folder + "/lines"
    lines = open(said, errors="surrogateescape").read().splitlines() if os.path.exists(said) else []
    for line in lines[place:]:
        place += 1
        print(line.replace("@@", str(place)))
    time.sleep(0.01)
"""


class Journald:
    """A scripted journalctl and what it has to say."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = folder / "journalctl"
        self.command.write_text(JOURNALCTL.replace("{python}", sys.executable))
        self.command.chmod(0o755)

    def say(self, message: object, at_us: int, **rest: object) -> None:
        entry = {
            "__CURSOR": "@@", "__REALTIME_TIMESTAMP": str(1_900_000_000_000_000 + at_us), "MESSAGE": message,
            "__MONOTONIC_TIMESTAMP": str(at_us + 7), "_SOURCE_MONOTONIC_TIMESTAMP": str(at_us), "PRIORITY": "3",
            "SYSLOG_FACILITY": "0", **rest,
        }  # fmt: skip
        self.write(json.dumps(entry))

    def write(self, line: str) -> None:
        with (self.folder / "lines").open("a") as stream:
            stream.write(line + "\n")

    @property
    def asked(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]


@pytest.fixture
def journald(tmp_path: Path) -> Journald:
    return Journald(tmp_path)


def take(source: Journal, count: int) -> list[Record]:
    found: list[Record] = []
    for _ in range(600):
        source.wait(0.1)
        found.extend(source.read())
        if len(found) >= count:
            break
    return found


def test_journald_gives_the_same_records_as_the_device(journald: Journald) -> None:
    journald.say("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", 5_000_001)
    journald.say([72, 105, 255], 5_000_002, SYSLOG_FACILITY="3", PRIORITY="6")
    journald.write("not JSON")
    journald.say("last", 5_000_003)
    source = Journal(str(journald.command), boot="b1")
    first, second, third = take(source, 3)
    assert (first.text[:9], first.facility, first.priority, first.since_boot_s) == ("NVRM: Xid", 0, 3, 5.000001)
    assert first.at_s == 1_900_000_005.000001
    assert (second.text, second.facility) == ("Hi\ufffd", 3), "user space says so: no kernel line"
    assert (third.text, source.unparsable) == ("last", 1)
    cursor = source.cursor
    source.close()
    journald.say("new", 9_000_000)
    again = Journal(str(journald.command), cursor, boot="b1")
    assert [record.text for record in take(again, 1)] == ["new"]
    again.close()
    followed = [asked for asked in journald.asked if "--follow" in asked]
    assert "--lines=0" in followed[0]
    assert followed[1][4:6] == ["--after-cursor=4", "_TRANSPORT=kernel"]


def test_what_journald_missed_is_a_gap_and_only_by_its_own_word(journald: Journald) -> None:
    missed = {"MESSAGE_ID": "e9bf28e6e834481bb6f48f548ad13606"}
    journald.say("Missed 4711 kernel messages", 5_000_001, _TRANSPORT="driver", **missed)
    journald.say("Missed 4711 kernel messages", 5_000_002, _TRANSPORT="journal", SYSLOG_FACILITY="3", **missed)
    journald.say("last", 5_000_003, _TRANSPORT="kernel")
    source = Journal(str(journald.command), boot="b1")
    assert [(record.text, record.facility) for record in take(source, 2)][-1] == ("last", 0)
    assert source.overruns == 1
    source.close()
    (asked,) = [asked for asked in journald.asked if "--follow" in asked]
    assert asked[-4:] == ["_TRANSPORT=kernel", "+", "_TRANSPORT=driver", "MESSAGE_ID=e9bf28e6e834481bb6f48f548ad13606"]


def test_bytes_that_are_no_text_hide_no_line(journald: Journald) -> None:
    journald.say("half a pair \ud800", 5_000_001)
    journald.say("bytes @", 5_000_002)
    lines = journald.folder / "lines"
    lines.write_bytes(lines.read_bytes().replace(b'@"', b'\xff"'))
    source = Journal(str(journald.command), boot="b1")
    assert [record.text for record in take(source, 2)] == ["half a pair \\ud800", "bytes \\xff"]
    assert source.unparsable == 0
    source.close()


def test_a_message_stays_whole_and_without_a_facility_it_is_nobodys(journald: Journald) -> None:
    """What stands behind a line end says whose the message is: a packet that a rule logs, for one."""
    packet = "NVRM: Xid (PCI:0000:3b:00): 79\nIN=lo OUT= MAC= SRC=127.0.0.1 DST=127.0.0.1 LEN=84"
    journald.say(packet, 5_000_001)
    journald.say("of whom?", 5_000_002, SYSLOG_FACILITY=None)
    source = Journal(str(journald.command), boot="b1")
    first, second = take(source, 2)
    source.close()
    assert first.text == packet
    assert second.facility != 0


def test_a_user_who_may_not_read_the_journal_is_told(journald: Journald) -> None:
    (journald.folder / "denied").touch()
    with pytest.raises(Denied, match="systemd-journal"):
        Journal(str(journald.command))


def test_a_journal_without_the_kernel_is_none(journald: Journald) -> None:
    """To follow it would be to wait for ever and to look well."""
    (journald.folder / "empty").touch()
    with pytest.raises(Unavailable, match="no messages of the kernel"):
        Journal(str(journald.command))


def test_a_journalctl_that_ends_is_unavailable(journald: Journald) -> None:
    (journald.folder / "over").touch()
    source = Journal(str(journald.command))
    with pytest.raises(Unavailable, match="ended"):
        take(source, 1)
    source.close()
    with pytest.raises(Unavailable):
        Journal(str(journald.folder / "no"))


def test_the_watch_reads_journald_where_the_device_may_not_be_read(
    tmp_path: Path, journald: Journald, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise Denied("/dev/kmsg: Operation not permitted")

    monkeypatch.setattr("sentinel.agent.collectors.kernel_log.KernelLog", denied)
    settings = AgentSettings(state=str(tmp_path), kernel=Kernel(journalctl=str(journald.command)))
    watch = KernelWatch("n1", settings, lambda records, now: [], lambda item: None)
    source, state = watch._open()
    assert isinstance(source, Journal)
    assert state == tmp_path / "journal.json"
    source.close()
    off = AgentSettings(state=str(tmp_path), kernel=Kernel(journalctl=""))
    with pytest.raises(Denied, match="kmsg"):
        KernelWatch("n1", off, lambda records, now: [], lambda item: None)._open()


def test_the_real_journalctl_understands_what_it_is_asked() -> None:
    command = shutil.which("journalctl")
    if command is None:
        pytest.skip("there is no journalctl here")
    for where in ("--lines=0", "--boot"):
        asked = [command, "--output=json", "--all", "--no-pager", where, "_TRANSPORT=kernel"]
        done = subprocess.run(asked, capture_output=True, timeout=60, check=False)
        assert b"option" not in done.stderr, done.stderr
