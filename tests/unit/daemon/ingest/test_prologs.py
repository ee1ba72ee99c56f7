"""On which nodes no prolog of ours reports jobs: one such job proves little, and what is not known is said as that."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.server import OPERATOR, Served, serving
from in_memory.world import World
from made_records import AT as NOW
from made_records import fleet, job

from sentinel import protocol
from sentinel.daemon.ingest.prologs import ENOUGH, Prologs
from sentinel.daemon.ingest.unreported_jobs import AFTER, RunningHere

Pair = tuple[int, int]


class Site:
    """A daemon's knowledge of n1. Jobs begin one after the other, a minute apart."""

    def __init__(self) -> None:
        self.prologs, self.now = Prologs(), NOW
        self.running: list[RunningHere] = []
        self.prologs.heard("n1", [], (), NOW, NOW)

    def begins(self, number: int, attempt: int = 0) -> None:
        self.now += timedelta(minutes=1)
        self.running.append(RunningHere(number, attempt, self.now, True))

    def beat(self, *by_prolog: Pair, snapshot_s: float = 1.0) -> None:
        """Two heartbeats, the second a while later and after a new snapshot."""
        self.prologs.heard("n1", self.running, by_prolog, self.now - timedelta(seconds=5), self.now)
        seen_at = self.now + timedelta(seconds=snapshot_s)
        self.now += AFTER + timedelta(seconds=1)
        self.prologs.heard("n1", self.running, by_prolog, seen_at, self.now)

    @property
    def runs(self) -> object:
        found = self.prologs.of("n1")
        return "nothing" if found is None else found["runs"]


@pytest.fixture
def site() -> Site:
    return Site()


def test_of_a_node_that_ran_no_job_nothing_is_said(site: Site) -> None:
    assert site.runs == "nothing" and not site.prologs.missing("n1")


def test_jobs_that_a_prolog_reports(site: Site) -> None:
    site.begins(7)
    site.beat((7, 0))
    assert site.prologs.of("n1") == {"runs": True, "without": [], "last_at": None}


def test_the_last_jobs_all_without_a_report(site: Site) -> None:
    for number in range(1, ENOUGH + 2):
        site.begins(number)
        began = site.now
        site.beat()
        assert site.runs is (None if number < ENOUGH else False)
    assert site.prologs.of("n1") == {"runs": False, "without": [2, 3, 4], "last_at": began}


def test_jobs_that_are_over_still_count(site: Site) -> None:
    for number in range(ENOUGH):
        site.running.clear()
        site.begins(number)
        site.beat()
    assert site.runs is False


def test_one_report_ends_it(site: Site) -> None:
    """The hooks are installed while jobs run: the next job shows it."""
    for number in range(ENOUGH):
        site.begins(number)
    site.beat()
    site.begins(9)
    site.beat((9, 0))
    assert site.runs is True


def test_a_report_of_an_earlier_job_does_not(site: Site) -> None:
    """It runs since before somebody took the prolog out of slurm.conf."""
    for number in range(ENOUGH + 1):
        site.begins(number)
    site.beat((0, 0))
    assert site.runs is False


def test_a_prolog_that_comes_late(site: Site) -> None:
    site.begins(7)
    site.beat()
    assert site.runs is None
    site.beat((7, 0))
    assert site.runs is True


@pytest.mark.parametrize("ahead_s", [0.0, 300.0])
def test_a_job_that_just_began_is_no_sign(site: Site, ahead_s: float) -> None:
    """Its prolog may run still; when it began is a time of slurmctld's clock, and this host's may be ahead of that."""
    site.begins(7)
    for after_s in (0, 10, AFTER.total_seconds()):
        at = site.running[0].began + timedelta(seconds=ahead_s + after_s)
        site.prologs.heard("n1", site.running, (), at, at)
    assert site.runs == "nothing"


def test_jobs_from_before_the_node_was_first_heard_are_no_sign(site: Site) -> None:
    """The hooks may have been installed while they ran; a report of theirs counts."""
    site.prologs = Prologs()
    for number in range(ENOUGH):
        site.begins(number)
    site.beat()
    site.beat()
    assert site.runs == "nothing"
    site.beat((0, 0))
    assert site.runs is True


def test_a_restarted_job_that_slurmd_remembers_is_no_sign(site: Site) -> None:
    for number in range(2 * ENOUGH):
        site.begins(number, attempt=1)
    site.beat()
    assert site.runs == "nothing"
    site.begins(50, attempt=2)
    site.beat((50, 2))
    assert site.runs is True, "its report counts"


def test_a_snapshot_from_before_the_end_of_jobs_is_no_sign(site: Site) -> None:
    """Their epilogs took their files away; of a daemon that has just begun, nobody has told it of them."""
    for number in range(ENOUGH):
        site.begins(number)
    site.beat(snapshot_s=-1.0)
    assert site.runs == "nothing"


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as server:
        yield server


async def shown(served: Served, view: str) -> Any:
    return (await served.post(protocol.VIEW, {"view": view}, uid=OPERATOR)).body


async def beats(served: Served, found: list[dict[str, Any]]) -> None:
    """Heartbeats of n1 before and while jobs begin there, with these entries for each."""
    clock = served.world.slurm.clock
    served.daemon.live.see_fleet(dataclasses.replace(fleet(4), at=clock.at))
    await served.post(protocol.HEARTBEAT, {"node": "n1", "boot_id": "b", "jobs": []})
    for number in range(ENOUGH):
        began_s = 60.0 * number
        running = [job(101 + number, nodes=("n1",), started_s=began_s)]
        for after_s in (5.0, 40.0):
            clock.at = NOW + timedelta(seconds=began_s + after_s)
            served.daemon.live.see_fleet(dataclasses.replace(fleet(4, running), at=clock.at))
            told = [{**entry, "job": 101 + number} for entry in found]
            await served.post(protocol.HEARTBEAT, {"node": "n1", "boot_id": "b", "jobs": told})


ENTRY = {"job": 101, "attempt": 0, "gpus": ""}


@pytest.mark.parametrize("found", [[], [{**ENTRY, "found_by": "squeue"}]], ids=str)
async def test_from_heartbeats_to_the_views(served: Served, found: list[dict[str, Any]]) -> None:
    """What an agent has from slurmctld is no report of a prolog."""
    await beats(served, found)
    doctor, status = await shown(served, "doctor"), await shown(served, "status")
    assert doctor["nodes"]["n1"]["prolog"]["runs"] is False and doctor["nodes"]["n2"]["prolog"] is None
    assert status["without_prolog"] == ["n1"]


@pytest.mark.parametrize(("entry", "runs"), [({**ENTRY, "found_by": ""}, True), (ENTRY, None)], ids=str)
async def test_an_agent_that_does_not_say_from_whom_it_has_its_jobs_tells_nothing_of_a_prolog(
    served: Served, entry: dict[str, Any], runs: bool | None
) -> None:
    """One of an older release, in the middle of an upgrade."""
    await beats(served, [entry])
    prolog = (await shown(served, "doctor"))["nodes"]["n1"]["prolog"]
    assert (prolog and prolog["runs"]) == runs
