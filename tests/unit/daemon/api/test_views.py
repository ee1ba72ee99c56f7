"""What the command line is shown: a researcher sees his own incidents and attempts, operators all, nobody a traceback."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import tracemalloc
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hanging_threads import fails_on_the_event_loop
from in_memory.daemon import SETTINGS
from in_memory.views import ADA, BOB, OPERATOR, Shown, name_people
from in_memory.world import World
from made_records import AT, evidence, incident, job, later, plan, step

from sentinel.config.alerts import Alerts, Channel
from sentinel.daemon.api.status import settings_digest
from sentinel.engine.delivery import due
from sentinel.errors import SentinelError, Unavailable, UserError
from sentinel.model.records import Delivery, IncidentState, Kind, NodeView, Notice, Outcome, Result, Source, StepKind

Worlds = Callable[..., World]


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    name_people(monkeypatch)


def ids(rows: list[dict[str, Any]]) -> set[str]:
    return {row["id"] for row in rows}


ALL = {"aaa1", "bbb1", "ccc1"}
OWN = [(OPERATOR, ALL), (ADA, {"aaa1"}), (BOB, {"bbb1"}), (59999, set())]


@pytest.mark.parametrize(("uid", "seen"), OWN)
async def test_own_incidents_or_all(world: Worlds, uid: int, seen: set[str]) -> None:
    shown = Shown(world())
    assert ids((await shown("incidents", uid))["incidents"]) == seen
    assert ids((await shown("status", uid))["open_incidents"]) == seen
    assert ids((await shown("status", uid))["recent_incidents"]) == seen
    assert ids((await shown("history", uid))["incidents"]) == seen
    assert ids((await shown("nodes", uid, node="n1"))["incidents"]) == seen


@pytest.mark.parametrize(("uid", "seen"), OWN)
async def test_own_attempts_or_all(world: Worlds, uid: int, seen: set[str]) -> None:
    shown = Shown(world())
    attempts = {{"ada": "aaa1", "bob": "bbb1"}[row["user"]] for row in (await shown("jobs", uid))["attempts"]}
    assert attempts == seen - {"ccc1"}


@pytest.mark.parametrize("view", ["incidents", "jobs"])
async def test_naming_anothers_job_shows_nothing(world: Worlds, view: str) -> None:
    shown = Shown(world())
    seen = {uid: dict(await shown(view, uid, job=202)) for uid in (ADA, BOB)}
    assert all(one.pop("own_only") for one in seen.values())
    assert not any(seen[ADA].values()) and any(seen[BOB].values())


async def test_history_of_others_is_in_no_group(world: Worlds) -> None:
    by = (await Shown(world())("history", ADA))["by"]
    counted = {name: [(group["key"], group["failures"]) for group in groups] for name, groups in by.items()}
    assert counted == {
        "user": [("ada", 1)], "job": [("201", 1)], "cause": [("gpu_memory_ecc", 1)], "node": [("n1", 1)],
        "time": [("2026-03-01", 1)],
    }  # fmt: skip


async def test_researcher_whose_failure_is_behind_many_of_others_still_sees_it(world: Worlds) -> None:
    shown = Shown(world())
    for number in range(205):
        one = incident(id=f"zzz{number:03}", job=9000 + number, opened_s=10.0 + number)
        shown.world.store.save_incident(one, user="bob")
    assert ids((await shown("incidents", ADA))["incidents"]) == {"aaa1"}
    assert ids((await shown("status", ADA))["open_incidents"]) == {"aaa1"}
    assert len((await shown("incidents"))["incidents"]) == 200


# --- why ----------------------------------------------------------------------------------------------------------------


async def test_why_shows_grounds_plan_and_what_was_done(world: Worlds) -> None:
    shown = Shown(world())
    drain = step(StepKind.DRAIN, node="n1")
    made = plan(drain, incident="aaa1")
    shown.world.store.save_plan(made)
    shown.world.store.intend(made, drain, AT)
    shown.world.store.record(made, Outcome(drain, Result.DONE, later(2.0), "drained"))
    seen = await shown("why", ADA, incident="aaa1")
    assert seen["incident"]["id"] == "aaa1" and seen["verdict"]["cause"] == "gpu_memory_ecc"
    assert [s["kind"] for s in seen["plan"]["steps"]] == ["drain"]
    assert [(s["kind"], s["node"], s["result"], s["reason"]) for s in seen["steps"]] == [
        ("drain", "n1", "done", "drained")
    ]
    assert {item["kind"] for item in seen["evidence"]} == {"xid", "job_ended"}


async def test_why_takes_the_beginning_of_an_id(world: Worlds) -> None:
    assert (await Shown(world())("why", incident="aa"))["incident"]["id"] == "aaa1"


async def test_incident_that_is_not_judged_yet_can_be_asked_about(world: Worlds) -> None:
    shown = Shown(world())
    shown.world.store.save_incident(incident(id="ddd1"), user="ada")
    seen = await shown("why", ADA, incident="ddd1")
    assert seen["verdict"] is None and seen["plan"] is None and seen["steps"] == []


@pytest.mark.parametrize(
    ("uid", "name", "what"),
    [
        (ADA, "bbb1", "is not known"),
        (ADA, "ccc1", "is not known"),
        (OPERATOR, "nothing", "is not known"),
        (OPERATOR, "", "is not known"),
        (OPERATOR, "%", "is not known"),
        (OPERATOR, ["aaa1"], "is not known"),
    ],
)
async def test_what_may_not_be_seen_is_not_known(world: Worlds, uid: int, name: object, what: str) -> None:
    with pytest.raises(UserError, match=what) as caught:
        await Shown(world())("why", uid, incident=name)
    assert caught.value.fix == "sentinel incidents lists them"


async def test_beginning_of_several_ids_is_ambiguous_only_among_those_seen(world: Worlds) -> None:
    shown = Shown(world())
    shown.failed("aaa2", 203, "bob")
    with pytest.raises(UserError, match="ambiguous"):
        await shown("why", incident="aaa")
    assert (await shown("why", ADA, incident="aaa"))["incident"]["id"] == "aaa1"


# --- the fleet ----------------------------------------------------------------------------------------------------------


async def test_status_before_slurm_answered_says_so(world: Worlds) -> None:
    seen = await Shown(world())("status")
    nothing = {"answers": False, "problem": "", "snapshot_at": None, "unread_count": 0, "unread": []}
    assert seen["slurm"] == nothing and seen["nodes"] == {}


async def test_status_of_a_fleet(world: Worlds) -> None:
    shown = Shown(world())
    slurm = shown.world.slurm
    slurm.person_drains("n3", "a person")
    slurm.nodes["n2"].drained, slurm.nodes["n2"].reason = True, "sentinel:inc1 ecc"
    slurm.nodes["n4"].silent = True
    await shown.daemon.fleets.take()
    shown.daemon.live.node("n1").state = "heard"
    shown.world.store.put("paused", True)
    shown.world.store.save_incident(incident(id="ccc1", job=None, state=IncidentState.CLOSED))
    seen = await shown("status")
    assert seen["nodes"] == {"mixed": 1, "draining": 1, "drained": 1, "not responding": 1}
    assert seen["agents"] == {"heard": 1, "unknown": 3} and seen["jobs"] == {"running": 1}
    assert seen["drained_by_us"] == ["n2"] and seen["paused"] is True and seen["slurm"]["answers"] is True
    assert ids(seen["open_incidents"]) == {"aaa1", "bbb1"} and ids(seen["recent_incidents"]) == ALL


async def test_nodes_with_what_is_known_of_them(world: Worlds) -> None:
    shown = Shown(world())
    shown.daemon.live.node("n1").state = "heard"
    shown.daemon.live.node("n1").clock_offset_s = 0.25
    shown.world.slurm.nodes["n4"].down = True
    rows = {row["node"]: row for row in (await shown("nodes"))["nodes"]}
    assert list(rows) == ["n1", "n2", "n3", "n4"]
    assert (rows["n1"]["agent"], rows["n1"]["clock_offset_s"], rows["n1"]["job"]) == ("heard", 0.25, shown.world.job)
    assert (rows["n1"]["failures_30d"], rows["n2"]["failures_30d"], rows["n1"]["gpus"]) == (3, 0, 8)
    assert rows["n4"]["state"] == "down" and rows["n3"]["agent"] == "unknown" and rows["n3"]["job"] is None


async def test_one_node_and_none(world: Worlds) -> None:
    shown = Shown(world())
    assert [row["node"] for row in (await shown("nodes", node="n2"))["nodes"]] == ["n2"]
    assert (await shown("nodes"))["incidents"] == []
    for unknown in ("ghost", "n[1-9]", "(null)"):
        with pytest.raises(UserError, match="knows no node"):
            await shown("nodes", node=unknown)
    for wrong in ("", 7, ["n1"], {"n1": 1}, "n[1-", "n[2-1]"):
        with pytest.raises(UserError) as caught:
            await shown("nodes", node=wrong)
        assert caught.value.fix == "write a node or a list of them, as n7 or n[1-3,7]"
    assert [row["node"] for row in (await shown("nodes", node="n[2-3],n1"))["nodes"]] == ["n1", "n2", "n3"]


@pytest.mark.parametrize("view", ["nodes", "jobs", "incidents", "lost", "history"])
@pytest.mark.parametrize("text", ["a" * 15_900 + "[1-80000]", "n" + "[0-9]" * 7, "n[1-999999]"])
async def test_a_list_of_more_nodes_than_any_cluster_has_is_refused(world: Worlds, view: str, text: str) -> None:
    shown = Shown(world())
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="node list has more than"):
            await shown(view, ADA, node=text)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


async def test_of_many_unknown_nodes_the_first_are_named(world: Worlds) -> None:
    shown = Shown(world())
    with pytest.raises(UserError, match=r"knows no node 'n\[5-104\]' and 99896 more"):
        await shown("nodes", node="n[1-100000]")


async def test_the_nodes_there_are_are_gone_through_a_few_times_however_many_are_named(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each name: 2,048 nodes and 20,000 names are 41 million comparisons."""
    shown, read = Shown(world(nodes=40)), 0

    def getattribute(self: NodeView, name: str) -> Any:
        nonlocal read
        read += name == "name"
        return object.__getattribute__(self, name)

    monkeypatch.setattr(NodeView, "__getattribute__", getattribute, raising=False)
    with pytest.raises(UserError, match="knows no node"):
        await shown("nodes", node="n[1-1000]")
    assert 40 <= read < 400


async def test_nodes_without_slurm_are_not_known(world: Worlds) -> None:
    shown = Shown(world())
    shown.world.slurm.answers = False
    with pytest.raises(Unavailable):
        await shown("nodes")


async def test_a_months_failures_are_read_once_a_minute_however_often_jobs_are_asked_for(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Shown(world())
    store, reads = shown.world.store, list[StepKind]()
    steps_done = store.steps_done

    def read_steps(kinds: Any, **how: Any) -> Any:
        reads.extend(kind for kind in kinds if kind is StepKind.DRAIN)
        return steps_done(kinds, **how)

    monkeypatch.setattr(store, "steps_done", read_steps)
    for after_s, read in ((0.0, 1), (59.0, 1), (1.0, 2)):
        shown.world.slurm.clock.advance(after_s)
        await shown("jobs")
        assert len(reads) == read


async def test_running_job_with_how_often_it_saves(world: Worlds) -> None:
    shown = Shown(world())
    slurm, live = shown.world.slurm, shown.daemon.live
    await shown.daemon.fleets.take()
    shown.world.store.save_attempt(live.attempts[slurm.jobs[shown.world.job].id, 0].view, first_step=None,
                                   last_step=None, step_time_s=None)  # fmt: skip
    for number in range(4):
        live.note(evidence(Kind.CHECKPOINT_SAVED, source=Source.JOB_LOG, job=shown.world.job, attempt=0,
                           at_s=600.0 * number, data={"time_s": 20.0}))  # fmt: skip
    live.note(evidence(Kind.STEP, source=Source.PROGRESS, job=shown.world.job, attempt=0, data={"step": 7}))
    slurm.clock.advance(3600.0)
    (row,) = (await shown("jobs", job=shown.world.job))["attempts"]
    assert (row["last_step"], row["state"], row["save_interval_s"], row["save_s"]) == (7, "running", 600.0, 20.0)
    assert row["recommended_interval_s"] is None or row["recommended_interval_s"] > 0.0
    assert row["interval_verdict"]
    (other,) = (await shown("jobs", job=201))["attempts"]
    assert "save_interval_s" not in other and other["last_step"] == 250


async def test_a_job_whose_log_its_agent_cannot_read_says_so_until_a_step_is_seen(world: Worlds) -> None:
    shown = Shown(world())
    live, job = shown.daemon.live, shown.world.job
    await shown.daemon.fleets.take()
    shown.world.store.save_attempt(live.attempts[job, 0].view, first_step=None, last_step=None, step_time_s=None)
    told = evidence(Kind.UNREADABLE, source=Source.AGENT, job=job, attempt=0, text="log of job 101: gid 0")
    live.note(dataclasses.replace(told, where=dataclasses.replace(told.where, path="/logs/101.out")))
    (row,) = (await shown("jobs", job=job))["attempts"]
    assert row["log_unread"] == "log of job 101: gid 0"
    live.note(evidence(Kind.STEP, source=Source.PROGRESS, job=job, attempt=0, at_s=1.0, data={"step": 7}))
    (row,) = (await shown("jobs", job=job))["attempts"]
    assert row["log_unread"] is None


async def test_who_asks_is_looked_up_while_the_event_loop_goes_on(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of accounts that does not answer holds up who asks, and no heartbeat."""
    shown = Shown(world())
    asked = fails_on_the_event_loop(monkeypatch, pwd, "getpwuid")
    assert ids((await shown("history", ADA))["incidents"]) == {"aaa1"} and asked == [ADA]


async def test_doctor_and_past(world: Worlds) -> None:
    shown = Shown(world())
    first = await shown("doctor")
    assert first["nodes"] == {} and first["uid"] == os.getuid() and first["resume_writable"] is None
    assert first["spares"] is None
    assert first["partitions"] == {} and first["settings"] == settings_digest(SETTINGS)
    await shown.daemon.fleets.take()
    shown.daemon.live.node("n2").state = "silent"
    shown.daemon.live.node("n2").clock_offset_s = -3.0
    nodes = (await shown("doctor", ADA))["nodes"]
    untold = {"version": "", "verdict": {}, "prolog": None, "kernel_readable": None, "evidence_lost": None}
    untold["switched"] = False
    assert nodes["n2"] == {"agent": "silent", "clock_offset_s": -3.0, **untold}
    assert nodes["n1"] == {"agent": "unknown", "clock_offset_s": None, **untold}
    past = await shown("past", ADA, days=2)
    assert [failure["cause"] for failure in past["failures"]] == ["gpu_memory_ecc"] * 2
    assert "ada" not in json.dumps(past)


async def test_doctor_tells_what_became_of_messages_about_ones_own_jobs(world: Worlds) -> None:
    """Their reasons name people, jobs and receivers."""
    shown = Shown(world())
    for name, user in (("aaa1", "ada"), ("bbb1", "bob"), ("ccc1", None)):
        failed = Delivery(tries=3, reason=f"of {name}", given_up=True)
        notice = Notice(f"note-{name}", name, AT, "failed", "", {"user": user}, delivery=failed)
        shown.world.store.record_notice(notice, "users", delivered=False)
    for uid, seen in OWN:
        told = (await shown("doctor", uid))["undelivered"]
        assert {row["reason"] for row in told} == {f"of {name}" for name in seen}


async def test_doctor_counts_the_age_of_a_message_from_when_it_was_due(world: Worlds) -> None:
    """Until then it waits for its digest, and a day more a start sends it."""
    weekly = Alerts(channels={"ops": Channel(kind="webhook", url="x", digest_s=7 * 86_400.0)})
    shown = Shown(world(), dataclasses.replace(SETTINGS, alerts=weekly))
    failed = Notice("n", "aaa1", AT, "failed", "", {"severity": "info"}, delivery=Delivery(tries=3, given_up=True))
    shown.world.store.record_notice(failed, "ops", delivered=False)
    (row,) = (await shown("doctor"))["undelivered"]
    assert datetime.fromisoformat(row["at"]) == due(weekly.channels["ops"], failed)


async def test_doctor_tells_whether_the_resume_folder_can_be_written(world: Worlds, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, daemon=dataclasses.replace(SETTINGS.daemon, resume=str(tmp_path)))
    assert (await Shown(world(), settings)("doctor"))["resume_writable"] is True
    tmp_path.rmdir()
    assert (await Shown(world(), settings)("doctor"))["resume_writable"] is False


async def test_history_reaches_back_as_far_as_asked(world: Worlds) -> None:
    shown = Shown(world())
    shown.world.slurm.clock.at += timedelta(days=10)
    assert ids((await shown("history", days=11))["incidents"]) == ALL
    assert (await shown("history", days=9.5))["incidents"] == []
    assert (await shown("history"))["days"] == 30.0


# --- hostile arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["history", "past"])
@pytest.mark.parametrize("days", ["week", [], {}, float("nan"), float("inf"), -1, 0.0, 1e9, True])
async def test_days_that_are_none(world: Worlds, view: str, days: object) -> None:
    shown = Shown(world())
    with pytest.raises(UserError, match="days") as caught:
        await shown(view, days=days)
    assert caught.value.fix


@pytest.mark.parametrize("view", ["incidents", "jobs"])
@pytest.mark.parametrize("number", ["101", "x'; drop table", [1], {}, 2**70, -1, 1.5, True])
async def test_job_that_is_none(world: Worlds, view: str, number: object) -> None:
    with pytest.raises(UserError, match="job"):
        await Shown(world())(view, job=number)


@pytest.mark.parametrize("name", ["", "show", "_nodes", "__class__", "nodes\n"])
async def test_unknown_view(world: Worlds, name: str) -> None:
    with pytest.raises(SentinelError, match="no view"):
        await Shown(world())(name)


@pytest.mark.parametrize("forgotten", [False, True])
async def test_who_had_a_jobs_id_before_sees_no_curve_of_its_next_owner(world: Worlds, forgotten: bool) -> None:
    shown = Shown(world())
    live = shown.daemon.live
    theirs = job(201, user="bob", started_s=7200.0)
    shown.world.store.save_attempt(theirs, first_step=1, last_step=9, step_time_s=2.0)
    live.see_attempt(theirs)
    live.note(
        evidence(Kind.STEP, source=Source.JOB_LOG, job=201, attempt=0, at_s=7300.0, data={"step": 9, "loss": 3.0})
    )
    if forgotten:
        live.attempts[201, 0].ended = True
        live.forget(later(30 * 86400.0))
        assert not live.attempts
    curves = {uid: (await shown("curves", uid, job=201))["curves"] for uid in (ADA, BOB, OPERATOR)}
    assert curves[ADA] == [{"attempt": 0, "points": []}]
    (own,) = (await shown("jobs", ADA, job=201))["attempts"]
    assert (own["last_step"], own.get("log_unread", "not hers")) == (250, "not hers")
    assert [point[2] for row in curves[BOB] for point in row["points"]] == [3.0] and curves[OPERATOR] == curves[BOB]
