"""What a person asks for is found however many newer incidents and attempts there are; where a listing ends, it says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.page import serving_page
from in_memory.views import ADA, BOB, OPERATOR, Shown, name_people
from in_memory.world import World
from made_records import AT, evidence, incident, job, plan, step, verdict

from sentinel.daemon import incident_search
from sentinel.errors import UserError
from sentinel.model.approvals import APPROVAL
from sentinel.model.changes import AttemptSeen, EvidenceAdded, IncidentChanged, VerdictCorrected, VerdictReached
from sentinel.model.corrections import Correction
from sentinel.model.records import Cause, IncidentState, Kind, Scope, StepKind, Wait

Worlds = Callable[..., World]
MANY = 201  # more than a listing shows


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    name_people(monkeypatch)


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def bury(shown: Shown, count: int = MANY, user: str = "bob") -> None:
    """Newer incidents, closed, of an array of failing jobs."""
    made: list[Any] = []
    for number in range(count):
        one = incident(id=f"z{number:05}", job=9000 + number, opened_s=10.0 + number, state=IncidentState.CLOSED)
        judged = dataclasses.replace(verdict(Cause.USER_CODE, scope=Scope.APPLICATION))
        made += [IncidentChanged(one, user), VerdictReached(one.id, judged, AT)]
    shown.world.store.commit(made)


# --- the status -----------------------------------------------------------------------------------------------------------


async def test_what_is_open_and_asked_for_is_shown_behind_any_number_of_newer_incidents(world: Worlds) -> None:
    shown = Shown(world())
    drain = step(StepKind.DRAIN, node="n1")
    made = plan(drain, incident="aaa1")
    waiting = dataclasses.replace(made, waits=(Wait(APPROVAL, AT, "drain n1"),))
    shown.world.store.save_plan(waiting)
    shown.world.store.intend(waiting, drain, AT)
    bury(shown)
    for uid, seen in ((OPERATOR, {"aaa1", "bbb1", "ccc1"}), (ADA, {"aaa1"})):
        status = await shown("status", uid)
        assert set(ids(status["open_incidents"])) == seen and not status["open_cut"]
        assert [row["incident"] for row in status["asked"]] == ["aaa1"]
        assert [row["incident"] for row in status["under_way"]] == ["aaa1"]
    assert ids(status["recent_incidents"]) == ["aaa1"]
    theirs = await shown("status", BOB)
    assert theirs["asked"] == [] and theirs["under_way"] == [] and len(theirs["recent_incidents"]) == 10


async def test_what_observe_mode_would_have_done_is_shown_behind_newer_incidents(world: Worlds) -> None:
    shown = Shown(world())
    made = dataclasses.replace(plan(step(StepKind.DRAIN, node="n1"), incident="aaa1"), observe_only=True)
    shown.world.store.save_plan(made)
    bury(shown)
    assert [row["incident"] for row in (await shown("status", ADA))["would_have_done"]] == ["aaa1"]
    assert (await shown("status", BOB))["would_have_done"] == []


async def test_status_says_where_more_is_open_than_it_reads(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_search, "SEARCHED", 2)
    seen = await Shown(world())("status")
    assert len(seen["open_incidents"]) == 2 and seen["open_cut"]


# --- one incident, one node, one cause -----------------------------------------------------------------------------------


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of two, out of parts of three."""
    monkeypatch.setattr(incident_search, "SEARCHED", 2)
    monkeypatch.setattr(incident_search, "_PART", 3)


@pytest.mark.usefixtures("narrow")
async def test_an_old_incident_is_known_by_its_id_its_job_and_its_node(world: Worlds) -> None:
    shown = Shown(world())
    bury(shown, 20)
    assert (await shown("why", incident="aaa"))["incident"]["id"] == "aaa1"
    assert (await shown("why", what="aaa1"))["asked"] == {"kind": "incident", "name": "aaa1"}
    assert (await shown("why", what="201"))["incident"]["id"] == "aaa1"
    assert (await shown("why", BOB, what="n1"))["incident"]["id"] == "bbb1"  # n1: Slurm has not answered
    assert (await shown("why", what="last"))["incident"]["id"] == "z00019"
    with pytest.raises(UserError, match="is not known"):
        await shown("why", ADA, what="bbb1")


@pytest.mark.usefixtures("narrow")
async def test_a_listing_has_as_many_as_are_asked_for_and_no_more_than_sums_are_made_of(world: Worlds) -> None:
    shown = Shown(world())
    for most, count in ((1, 1), (2, 2), (99, 2)):
        seen = await shown("incidents", most=most)
        assert len(seen["incidents"]) == count and seen["cut"]
    for most in (0, True, "2", 1.5):
        with pytest.raises(UserError, match="no number of incidents"):
            await shown("incidents", most=most)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("view", ["incidents", "history", "nodes"])
async def test_incidents_of_one_node_are_found_behind_those_of_others(world: Worlds, view: str) -> None:
    shown = Shown(world())
    bury(shown, 7)
    seen = await shown(view, ADA, node="n1")
    assert ids(seen["incidents"]) == ["aaa1"] and not seen["cut"]
    many = await shown(view, node="n1")
    assert len(many["incidents"]) == (3 if view == "incidents" else 2) and many["cut"] == (view != "incidents")


@pytest.mark.usefixtures("narrow")
async def test_what_is_not_gone_through_is_told(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incident_search, "COUNTED", 6)
    shown = Shown(world())
    bury(shown, 7)
    many = ",".join(["n1", *(f"m{number}" for number in range(60))])  # more nodes than the database is asked for
    seen = await shown("incidents", node=many)
    assert seen["incidents"] == [] and seen["cut"]
    assert (await shown("lost", node=many))["cut"] and (await shown("lost"))["cut"]


async def test_the_database_is_asked_for_a_cause_and_for_corrected_ones(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not return is not gone through, and cuts no answer."""
    monkeypatch.setattr(incident_search, "COUNTED", 6)
    shown = Shown(world())
    bury(shown, 7)
    told = Correction(at=AT, by="root", cause=Cause.PCIE, scope=Scope.NODE)
    shown.world.store.commit([VerdictCorrected("aaa1", told)])
    for chosen, found in (
        ({"cause": "gpu_memory_ecc"}, {"bbb1", "ccc1"}),
        ({"cause": "pcie"}, {"aaa1"}),
        ({"corrected": True}, {"aaa1"}),
    ):
        seen = await shown("incidents", **chosen)
        assert set(ids(seen["incidents"])) == found and not seen["cut"], chosen


async def test_names_of_nodes_that_a_pattern_or_json_spells_otherwise(world: Worlds) -> None:
    shown = Shown(world())
    for number, name in enumerate(("n%", 'n"x', "nö", "n_1")):
        item = evidence(Kind.XID, node=name, id=f"e{number}")
        shown.world.store.commit([
            EvidenceAdded((item,)), IncidentChanged(incident(item, id=f"odd{number}", nodes=(name,)), "ada"),
            VerdictReached(f"odd{number}", verdict(drain=(name,)), AT),
        ])  # fmt: skip
        found = shown.views._search.newest(None, incident_search.naming_node(name), naming=(name,))
        assert ids(found.rows) == [f"odd{number}"]


# --- corrected verdicts ---------------------------------------------------------------------------------------------------


async def test_listings_and_history_choose_by_the_cause_that_an_operator_gave(world: Worlds) -> None:
    shown = Shown(world())
    told = Correction(at=AT, by="root", cause=Cause.USER_CODE, scope=Scope.APPLICATION)
    shown.world.store.commit([VerdictCorrected("aaa1", told)])
    for view in ("incidents", "history"):
        assert ids((await shown(view, cause="user_code"))["incidents"]) == ["aaa1"]
        assert "aaa1" not in ids((await shown(view, cause="gpu_memory_ecc"))["incidents"])
    (row,) = (await shown("incidents", cause="user_code"))["incidents"]
    assert row["cause"] == "gpu_memory_ecc"  # as it was judged, and beside it what it was
    assert {row["job"] for row in (await shown("jobs", cause="user_code"))["attempts"]} == {201}


async def test_pages_show_beside_the_verdict_what_an_operator_corrected_it_to(world: Worlds) -> None:
    shown = Shown(world())
    told = Correction(at=AT, by="root", cause=Cause.USER_CODE, scope=Scope.APPLICATION, note="<script>")
    shown.world.store.commit([VerdictCorrected("aaa1", told)])
    async with serving_page(shown.world) as page:
        await page.daemon.fleets.take()
        for path in ("/", "/incidents", "/incidents?cause=user_code", "/history", "/jobs/201", "/nodes/n1"):
            words = (await page.get(path))[1].replace("<wbr>", "")
            assert "user_code, judged gpu_memory_ecc" in words, path
        _, text, _ = await page.get("/incidents/aaa1")
        assert "corrected to: the program failed by itself" in text
        assert "(user_code, application), by <bdi>root</bdi>" in text
        assert "<script" not in text and "aaa1" not in (await page.get("/incidents?cause=gpu_memory_ecc"))[1]


# --- jobs -----------------------------------------------------------------------------------------------------------------


def ran(
    number: int, attempt: int, start_s: float, end_s: float | None, nodes: tuple[str, ...], *steps: int
) -> AttemptSeen:
    state = "running" if end_s is None else "failed"
    view = job(number, user="ada", nodes=nodes, restarts=attempt, started_s=start_s, state=state)
    ended = AT + timedelta(seconds=end_s) if end_s is not None else None
    first, last = steps if steps else (None, None)
    return AttemptSeen(dataclasses.replace(view, ended_at=ended), first, last, 2.0)


async def test_jobs_that_slurm_has_and_whole_others_are_listed_behind_newer_ones(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.daemon.api.views._ATTEMPTS", 5)
    shown = Shown(world())
    await shown.daemon.fleets.take()
    running = shown.world.job
    made = [ran(running, 0, -9000.0, None, ("n1",), 1, 9)]
    made += [ran(500, number, -8000.0 + 10 * number, -7995.0 + 10 * number, ("n2",), 1, 2) for number in range(3)]
    made += [ran(600 + number, 0, -5000.0 + number, -4000.0, ("n3",), 1, 2) for number in range(3)]
    shown.world.store.commit(made)
    seen = await shown("jobs")
    assert seen["cut"] and seen["attempts"][0]["job"] == running
    assert [row["job"] for row in seen["attempts"]].count(500) == 0  # three would be too many, two would be half a job
    assert {600, 601, 602, 201, 202} < {row["job"] for row in seen["attempts"]}
    assert [row["attempt"] for row in (await shown("jobs", job=500))["attempts"]] == [0, 1, 2]
    there = await shown("jobs", node="n2")
    assert [row["job"] for row in there["attempts"]].count(500) == 3 and not there["cut"]


async def test_a_job_chosen_by_a_node_is_shown_whole(world: Worlds) -> None:
    shown = Shown(world())
    await shown.daemon.fleets.take()
    shown.world.store.commit([ran(201, 1, 60.0, 600.0, ("n3", "n4"), 201, 400)])
    for chosen in ({}, {"node": "n1"}, {"node": "n3"}, {"job": 201, "node": "n3"}):
        rows = [row for row in (await shown("jobs", **chosen))["attempts"] if row["job"] == 201]
        assert [row["attempt"] for row in rows] == [0, 1], chosen
        assert (rows[0]["redone_steps"], rows[0]["down_s"]) == (50, 60.0)
    assert (await shown("jobs", job=201, node="n4,n9"))["attempts"] and not (await shown("jobs", node="n9"))["attempts"]
    assert (await shown("jobs", ADA, user="bob"))["attempts"] == []


async def test_an_attempt_that_the_store_has_twice_counts_once(world: Worlds) -> None:
    """Slurm showed the next attempt with the start and the nodes of the one before, while its epilogs ran."""
    shown = Shown(world())
    await shown.daemon.fleets.take()
    shown.world.slurm.clock.advance(7200.0)
    before = (await shown("report"))["now"]["worked_gpu_h"]
    shown.world.store.commit([
        ran(201, 1, -3600.0, 30.0, ("n1", "n2")), ran(201, 1, 3600.0, 7200.0, ("n3", "n4"), 201, 400),
    ])  # fmt: skip
    rows = (await shown("jobs", job=201))["attempts"]
    assert [row["attempt"] for row in rows] == [0, 1] and rows[0]["down_s"] == 3600.0
    (row,) = [row for row in (await shown("lost"))["rows"] if row["job"] == 201]
    assert row["down_gpu_h"] == pytest.approx(16.0)
    assert (await shown("report"))["now"]["worked_gpu_h"] == pytest.approx(before + 16.0)
