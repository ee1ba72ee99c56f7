"""The audit as operators see it, and its copy in syslog."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from in_memory.views import ADA, Shown
from in_memory.world import World
from made_records import later

from sentinel.adapters.store import tables
from sentinel.adapters.syslog import Syslog
from sentinel.daemon.audit import listing
from sentinel.daemon.audit.export import COPIED, AuditExport
from sentinel.daemon.audit.listing import PAGE
from sentinel.errors import Denied, ProtocolError, Unavailable, UserError
from sentinel.model.audit import EXPORTED, EXPORTED_DIGEST, FIRST, REWRITTEN, AuditEntry, Stage
from sentinel.model.changes import Audited, Change

Worlds = Callable[..., World]


def fill(there: World, count: int, **changed: Any) -> None:
    given: dict[str, Any] = {
        "who": "ada",
        "origin": "10.0.0.7",
        "action": "pause",
        "stage": Stage.DONE,
        "target": "cluster",
    }
    there.store.commit([Audited(AuditEntry(later(number), **given | changed)) for number in range(count)])


async def test_operators_see_it_page_by_page_and_researchers_do_not(world: Worlds) -> None:
    shown = Shown(world())
    fill(shown.world, PAGE + 10)
    newest = await shown("audit")
    assert [row["number"] for row in newest["entries"]] == list(range(PAGE - 39, PAGE + 11)) and not newest["more"]
    first = await shown("audit", all=True)
    assert len(first["entries"]) == PAGE and first["more"] and first["entries"][0]["previous"] == FIRST
    rest = await shown("audit", all=True, after=PAGE)
    assert [row["number"] for row in rest["entries"]] == list(range(PAGE + 1, PAGE + 11)) and not rest["more"]
    since = await shown("audit", since=later(PAGE).isoformat())
    assert len(since["entries"]) == 10
    assert (await shown("audit", verify=True))["checked"]["entries"] == PAGE + 10
    with pytest.raises(Denied, match="only operators"):
        await shown("audit", uid=ADA)


async def test_it_is_checked_part_by_part(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_CHECKED", 1000)
    shown = Shown(world())
    fill(shown.world, 1500)
    first = await shown("audit", verify=True, part=True)
    assert first["checked"]["entries"] == 1000 and first["more"] and first["of"] == 1500
    rest = await shown("audit", verify=True, part=True, after=1000, head=first["checked"]["head"])
    assert rest["checked"] == (await shown("audit", verify=True))["checked"] and not rest["more"]
    wrong = await shown("audit", verify=True, part=True, after=1000, head="0" * 64)
    assert "does not follow" in wrong["checked"]["fault"] and not wrong["more"]
    for arguments in ({"after": "x"}, {"after": True}, {"head": 7}):
        with pytest.raises(UserError):
            await shown("audit", verify=True, part=True, **arguments)


@pytest.mark.parametrize(
    "arguments", [{"after": "x"}, {"after": -1}, {"after": 2**40}, {"after": True}, {"since": "soon"}]
)
async def test_what_it_cannot_show_is_said(world: Worlds, arguments: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        await Shown(world())("audit", **arguments)


@contextlib.contextmanager
def listening(family: int, address: Any) -> Iterator[socket.socket]:
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        made.bind(address)
        made.settimeout(20)
        yield made


def entry_in(line: bytes) -> dict[str, Any]:
    """The JSON behind syslog's header."""
    found: dict[str, Any] = json.loads(line[line.index(b"{") :])
    return found


def exporting(there: World, address: str) -> AuditExport:
    return AuditExport(there.store, Syslog(address))


async def test_each_entry_is_handed_over_once_and_in_order(world: Worlds, tmp_path: Path) -> None:
    there, path = world(), str(tmp_path / "log")
    fill(there, 3)
    with listening(socket.AF_UNIX, path) as log:
        made = exporting(there, path)
        while made.export():
            pass
        lines = [log.recv(65536) for _ in range(3)]
        assert all(line.startswith(b"<109>sentinel-audit[") for line in lines)
        said = [entry_in(line) for line in lines]
        assert [row["number"] for row in said] == [1, 2, 3]
        assert said[2]["digest"] == there.store.check_audit().head and there.store.get(EXPORTED) == 3
        fill(there, 1)
        assert exporting(there, path).export()  # a daemon started again goes on where the last one was, and says where
        assert entry_in(log.recv(65536)) == {"audit_continued": 3, "digest": said[2]["digest"]}
        assert entry_in(log.recv(65536))["number"] == 4


@pytest.mark.parametrize("restarted", [False, True])
async def test_entries_that_take_the_numbers_of_removed_ones_are_sent_and_told(
    world: Worlds, tmp_path: Path, restarted: bool
) -> None:
    """Found as an attack: with the number alone, nothing was copied until the new entries outnumbered the old ones."""
    there, path = world(), str(tmp_path / "log")
    fill(there, 5)
    with listening(socket.AF_UNIX, path) as log:
        made = exporting(there, path)
        while made.export():
            pass
        for _ in range(5):
            log.recv(65536)
        with there.store.engine.begin() as connection:
            connection.execute(sa.delete(tables.audit).where(tables.audit.c.number > 2))
        fill(there, 2, target="node n66")
        made = exporting(there, path) if restarted else made
        while made.export():
            pass
        if restarted:
            assert entry_in(log.recv(65536)) == {"audit_continued": 5, "digest": ""}
        said = [entry_in(log.recv(65536)) for _ in range(5)]
    assert said[0]["audit_rewritten"] == 5
    assert [row["number"] for row in said[1:]] == [1, 2, 3, 4] and said[4]["target"] == "node n66"
    assert there.store.get(REWRITTEN) == 5 and not made.export()


@pytest.mark.parametrize("digest", ["that of the new entry", "", "none"])
async def test_a_mark_that_was_set_to_fit_while_no_daemon_ran_is_told(
    world: Worlds, tmp_path: Path, digest: str
) -> None:
    """Found as an attack: 3 to 5 taken out, others put in their place, and the store's record of the copy, too."""
    there, path, copied = world(), str(tmp_path / "log"), tmp_path / COPIED
    fill(there, 5)
    with listening(socket.AF_UNIX, path) as log:
        made = AuditExport(there.store, Syslog(path), copied)
        while made.export():
            pass
        first = [entry_in(log.recv(65536)) for _ in range(5)]
        with there.store.engine.begin() as connection:
            connection.execute(sa.delete(tables.audit).where(tables.audit.c.number > 2))
        fill(there, 3, target="node n66")
        head = there.store.check_audit().head
        there.store.put(EXPORTED_DIGEST, head if digest.startswith("that") else digest)
        made = AuditExport(there.store, Syslog(path), copied)
        while made.export():
            pass
        said = [entry_in(log.recv(65536)) for _ in range(7)]
    assert said[0] == {"audit_continued": 5, "digest": head} and head != first[4]["digest"], (
        "whoever reads both sees it"
    )
    assert said[1]["audit_rewritten"] == 5
    assert [row["number"] for row in said[2:]] == [1, 2, 3, 4, 5] and said[6]["target"] == "node n66"
    assert there.store.get(REWRITTEN) == 5 and not made.export()


@pytest.mark.parametrize("content", ["", "[]", "[true, 5]", '["x", "y"]', "no JSON", "[7, 8, 9]", "{}", "\udcff"])
async def test_a_file_that_says_nothing_of_the_copy_harms_nothing(world: Worlds, tmp_path: Path, content: str) -> None:
    there, path, copied = world(), str(tmp_path / "log"), tmp_path / COPIED
    copied.write_text(content, errors="surrogateescape")
    fill(there, 2)
    with listening(socket.AF_UNIX, path) as log:
        made = AuditExport(there.store, Syslog(path), copied)
        assert made.export() and [entry_in(log.recv(65536))["number"] for _ in range(2)] == [1, 2]
    assert json.loads(copied.read_text()) == [2, there.store.check_audit().head]
    assert copied.stat().st_mode & 0o777 == 0o600
    assert there.store.get(REWRITTEN) is None


async def test_killed_at_any_moment_the_copy_is_not_taken_for_rewritten(
    world: Worlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, path, copied = world(), str(tmp_path / "log"), tmp_path / COPIED
    with listening(socket.AF_UNIX, path):
        made = AuditExport(there.store, Syslog(path), copied)
        fill(there, 2)
        assert made.export()
        commit = there.store.commit

        def killed(wanted: Sequence[Change]) -> None:
            commit(wanted)
            raise Unavailable("killed")

        for number in range(3):  # after each write of the third to fifth entry
            fill(there, 1)
            monkeypatch.setattr(there.store, "commit", killed)
            with pytest.raises(Unavailable):
                made.export()
            monkeypatch.setattr(there.store, "commit", commit)
            made = AuditExport(there.store, Syslog(path), copied)
            made.export()
            assert there.store.get(REWRITTEN) is None, number


async def test_a_full_disk_leaves_no_files_behind(
    world: Worlds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, path, copied = world(), str(tmp_path / "log"), tmp_path / COPIED
    fill(there, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with listening(socket.AF_UNIX, path), pytest.raises(Unavailable, match="No space left"):
        AuditExport(there.store, Syslog(path), copied).export()
    assert [file.name for file in tmp_path.iterdir() if COPIED in file.name] == []


async def test_a_copied_entry_that_cannot_be_read_any_more_is_told(world: Worlds, tmp_path: Path) -> None:
    there, path = world(), str(tmp_path / "log")
    fill(there, 2)
    with listening(socket.AF_UNIX, path) as log:
        made = exporting(there, path)
        made.export()
        copied = [log.recv(65536) for _ in range(2)]
        with there.store.engine.begin() as connection:
            connection.execute(sa.update(tables.audit).where(tables.audit.c.number == 2).values(before="no JSON"))
        for _ in range(2):  # what can be read no more is not copied, and is told once
            with pytest.raises(ProtocolError):
                made.export()
        told = log.recv(65536).decode()
        log.setblocking(False)
        with pytest.raises(BlockingIOError):
            log.recv(65536)
    assert len(copied) == 2 and '"audit_rewritten": 2' in told and there.store.get(REWRITTEN) == 2


async def test_what_syslog_does_not_take_is_kept_for_later(world: Worlds, tmp_path: Path) -> None:
    there, path = world(), str(tmp_path / "log")
    fill(there, 2)
    made = exporting(there, path)
    with pytest.raises(Unavailable, match="syslog"):
        made.export()
    assert there.store.get(EXPORTED, 0) == 0
    with listening(socket.AF_UNIX, path) as log:
        assert made.export() and log.recv(65536) and log.recv(65536)


async def test_a_collector_gets_it_by_udp_and_by_tcp(world: Worlds) -> None:
    there = world()
    fill(there, 1)
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as udp:
        assert exporting(there, f"udp://127.0.0.1:{udp.getsockname()[1]}").export()
        assert b" sentinel-audit " in udp.recv(65536)
    there.store.put(EXPORTED, 0)
    with socket.create_server(("127.0.0.1", 0)) as tcp:
        assert exporting(there, f"tcp://127.0.0.1:{tcp.getsockname()[1]}").export()
        connection, _ = tcp.accept()
        with connection, connection.makefile("rb") as stream:
            size = b""
            while (digit := stream.read(1)) != b" ":
                size += digit
            assert json.loads(stream.read(int(size)).partition(b"- - ")[2])["number"] == 1


async def test_a_long_entry_keeps_its_digest(world: Worlds, tmp_path: Path) -> None:
    there, path = world(), str(tmp_path / "log")
    odd = "\U0001f600" * 500
    fill(there, 1, who=odd, target=odd, why=odd, after={str(n): odd for n in range(64)})
    with listening(socket.AF_UNIX, path) as log:
        assert exporting(there, path).export()
        line = log.recv(1 << 20)
    row = entry_in(line)
    assert row["cut"] and row["digest"] == there.store.check_audit().head and len(line) <= 7000


@pytest.mark.parametrize("address", ["syslog", "http://host", "udp://", "udp://host:99999", "tcp://:5"])
def test_an_odd_address_is_an_error(address: str) -> None:
    with pytest.raises(UserError, match="audit_syslog"):
        Syslog(address)
