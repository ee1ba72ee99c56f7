"""Of several slurmctld each was started long before it took over: what counts is since when the one that answers works."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sentinel.adapters.slurm.commands import CommandReader

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PRIMARY, BACKUP = NOON - timedelta(days=9), NOON - timedelta(days=8)  # the starts of their processes
HOSTS = "SlurmctldHost[0]        = c1\nSlurmctldHost[1]        = c2\n"


class Site:
    """Commands of a Slurm that answers as it is told to, and the time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.at = folder, NOON
        for program in ("scontrol", "sdiag"):
            command = folder / program
            command.write_text(f"#!/bin/sh\necho asked >>{folder}/{program}.asked\ncat {folder}/{program}.says\n")
            command.chmod(command.stat().st_mode | stat.S_IXUSR)

    def reader(self) -> CommandReader:
        return CommandReader(bin=f"{self.folder}:/usr/bin:/bin", now=lambda: self.at)

    def answers(self, booted: datetime, counts_since: datetime | None, *, hosts: str = HOSTS) -> None:
        said = f"Configuration data as of {self.at:%Y-%m-%dT%H:%M:%S}\nBOOT_TIME = {booted:%Y-%m-%dT%H:%M:%S}\n{hosts}"
        (self.folder / "scontrol.says").write_text(said)
        now_s, since_s = (int(at.timestamp()) if at is not None else 0 for at in (self.at, counts_since))
        since = f"Data since      Thu Jan 01 00:00:00 1970 ({since_s})\n" if counts_since is not None else ""
        (self.folder / "sdiag.says").write_text(f"sdiag output at Sun Mar 01 12:00:00 2026 ({now_s})\n{since}")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def today(hour: int, minute: int = 0, second: int = 0) -> datetime:
    return NOON.replace(hour=hour, minute=minute, second=second)


@pytest.mark.parametrize(
    ("counts_since", "since"),
    [
        (today(12, 0, 12), today(12, 0, 12)),
        (today(9), today(12, 0, 20)),  # since an earlier takeover of the same process
        (None, today(12, 0, 20)),
    ],
)
async def test_a_takeover_is_a_start(site: Site, counts_since: datetime | None, since: datetime) -> None:
    """At the latest when the backup was first seen to answer, and for as long as it does."""
    reader = site.reader()
    site.answers(PRIMARY, today(0))
    assert await reader.booted_at() == PRIMARY
    site.at += timedelta(seconds=20)
    site.answers(BACKUP, counts_since)
    assert await reader.booted_at() == since
    site.at += timedelta(hours=3)
    site.answers(BACKUP, counts_since)
    assert await reader.booted_at() == since


async def test_a_primary_that_is_started_again_takes_over_when_it_works(site: Site) -> None:
    reader = site.reader()
    site.answers(PRIMARY, today(0))
    await reader.booted_at()
    site.at += timedelta(minutes=5)
    site.answers(today(12, 4, 50), today(12, 4, 52))
    assert await reader.booted_at() == today(12, 4, 52)


@pytest.mark.parametrize(
    ("counts_since", "since"),
    [
        (today(11, 50), today(11, 50)),
        (today(0, 0, 7), BACKUP),  # every process begins to count anew at midnight
        (datetime.fromtimestamp(0, UTC), NOON),  # it is only just beginning its work
        (BACKUP, None),  # but for one that was not in charge at midnight: it has taken over again since
        (None, None),
    ],
)
async def test_who_looks_for_the_first_time_learns_it_from_sdiag(
    site: Site, counts_since: datetime | None, since: datetime | None
) -> None:
    """Such as a daemon that takes over together with the backup: it saw nobody else answer before."""
    site.answers(BACKUP, counts_since)
    assert await site.reader().booted_at() == since


async def test_a_takeover_from_one_of_which_sdiag_told_nothing_is_a_start(site: Site) -> None:
    """Who answered is known all the same."""
    reader = site.reader()
    for counts_since, since in ((None, None), (today(11, 59, 59), today(11, 59, 59))):
        site.answers(today(11, 59, 58), counts_since)
        assert await reader.booted_at() == since
    site.at += timedelta(seconds=20)
    site.answers(BACKUP, BACKUP)
    assert await reader.booted_at() == site.at


async def test_where_there_is_one_slurmctld_its_start_counts_and_nothing_else_is_asked(site: Site) -> None:
    reader = site.reader()
    for booted in (PRIMARY, BACKUP):
        site.answers(booted, today(11), hosts="SlurmctldHost[0]        = c1\n")
        assert await reader.booted_at() == booted
    assert not (site.folder / "sdiag.asked").exists()


@pytest.mark.parametrize(("hosts", "looks"), [(HOSTS, 4), ("SlurmctldHost[0] = c1\n", 2)])
async def test_only_where_there_are_several_every_snapshot_asks_who_answers(site: Site, hosts: str, looks: int) -> None:
    passed_s = 0.0
    reader = site.reader()
    reader.in_charge._seconds = lambda: passed_s  # type: ignore[assignment]
    for passed_s in (0.0, 20.0, 40.0, 700.0):  # noqa: B007
        site.answers(PRIMARY, today(0), hosts=hosts)
        await reader.in_charge.look()
    assert len((site.folder / "scontrol.asked").read_text().splitlines()) == looks


async def test_a_look_without_an_answer_spoils_no_snapshot(site: Site) -> None:
    reader, scontrol = site.reader(), site.folder / "scontrol"
    answering = scontrol.read_text()
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    await reader.in_charge.look()
    scontrol.write_text(answering)
    site.answers(PRIMARY, today(0))
    assert await reader.booted_at() == PRIMARY
