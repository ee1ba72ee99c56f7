"""What a person means by "why n2", "why 8801", "why last", and what the daemon answers to each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.views import ADA, BOB, OPERATOR, Shown, name_people
from in_memory.world import World
from made_records import evidence, fleet, incident, job, later, node, plan, step, verdict

from sentinel.config.settings import Mode, Modes
from sentinel.daemon.api import status as state_of
from sentinel.daemon.api import views
from sentinel.daemon.api.explanation import drained_incidents, meant
from sentinel.errors import UserError
from sentinel.model.changes import AttemptSeen
from sentinel.model.records import Ground, IncidentState, Kind, NodeView, Outcome, Result, Source, StepKind, Trust, Wait

Worlds = Callable[..., World]


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    name_people(monkeypatch)


def row(
    name: str, *, number: int | None = None, blames: list[str] | None = None, nodes: list[str] | None = None
) -> Any:
    return {"id": name, "job": number, "culprit_nodes": blames, "seen_on": None, "nodes": nodes or []}


ROWS = [
    row("c1", number=8801, nodes=["n2", "n3"]),
    row("b1", blames=["n2"], number=7),
    row("88a", blames=["n2"], number=8801),
]


@pytest.mark.parametrize(
    ("what", "node_view", "has_job", "kind", "found"),
    [
        ("last", None, False, "last", ["c1"]),
        ("8801", None, True, "job", ["c1", "88a"]),
        ("8801", None, False, "job", ["c1", "88a"]),
        ("9", None, True, "job", []),
        ("88", None, False, "incident", ["88a"]),
        ("n2", node("n2"), False, "node", ["b1", "88a", "c1"]),
        ("n2", node("n2", flags=("drain",), reason="sentinel:88a pcie"), False, "node", ["88a", "b1", "c1"]),
        ("n2", None, False, "node", ["b1", "88a", "c1"]),
        ("n9", node("n9"), False, "node", []),
        ("b", None, False, "incident", ["b1"]),
    ],
)
def test_what_is_meant(what: str, node_view: NodeView | None, has_job: bool, kind: str, found: list[str]) -> None:
    asked = meant(what, ROWS, node=node_view, has_job=has_job)
    assert (asked.kind, [item["id"] for item in asked.found]) == (kind, found)


@pytest.mark.parametrize("what", ["", "zz", "n9", "12"])
def test_what_nobody_knows(what: str) -> None:
    with pytest.raises(UserError, match="not known as an incident, a node or a job"):
        meant(what, ROWS, node=None, has_job=False)


@pytest.mark.parametrize("name", ["4821930571", "0000000201"])
async def test_id_of_digits_alone_is_an_incident(world: Worlds, name: str) -> None:
    """One id in a hundred has no letter, and most of these are more than any job's number."""
    shown = Shown(world())
    shown.world.store.save_incident(incident(id=name), user="ada")
    assert (await shown("why", what=name))["incident"]["id"] == name


def test_no_incident_yet() -> None:
    with pytest.raises(UserError, match="no incident yet"):
        meant("last", [], node=None, has_job=False)


# --- asked of the daemon -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["sentinel:bbb1 ecc", "sentinel:root: RMA 7 [incident bbb1]"])
async def test_node_with_the_incident_that_drained_it(world: Worlds, reason: str) -> None:
    shown = Shown(world())
    shown.world.slurm.person_drains("n1", reason)
    await shown.daemon.fleets.take()
    seen = await shown("why", what="n1")
    assert seen["asked"] == {"kind": "node", "name": "n1"} and seen["incident"]["id"] == "bbb1"
    assert {item["id"] for item in seen["others"]} == {"aaa1", "ccc1"} and seen["node"]["reason"] == reason
    quiet = await shown("why", what="n4")
    assert quiet["incident"] is None and quiet["node"]["node"] == "n4" and quiet["evidence"] == []


async def test_a_node_is_shown_as_slurm_has_it_now(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_NODE_MAX_AGE_S", 0.0)
    shown = Shown(world())
    slurm = shown.world.slurm
    slurm.nodes["n1"].drained, slurm.nodes["n1"].reason = True, "sentinel:bbb1 ecc"
    await shown.daemon.fleets.take()
    slurm.nodes["n1"].drained, slurm.nodes["n1"].reason = False, ""  # returned
    assert (await shown("why", what="n1"))["node"]["state"] == "mixed"
    slurm.nodes["n1"].drained, slurm.answers = True, False
    assert (await shown("why", what="n1"))["node"]["state"] == "mixed"  # as last seen


async def test_job_with_its_attempts_and_what_it_lost(world: Worlds) -> None:
    shown = Shown(world())
    await shown.daemon.fleets.take()
    again = job(201, user="ada", nodes=("n2", "n3"), restarts=1, started_s=60.0)
    shown.world.store.save_attempt(again, first_step=201, last_step=300, step_time_s=2.0)
    seen = await shown("why", ADA, what="201")
    assert seen["asked"]["kind"] == "job" and seen["incident"]["id"] == "aaa1"
    first, second = seen["attempts"]
    assert (first["redone_steps"], first["redone_s"], first["down_s"], first["gpus"]) == (50, 100.0, 60.0, 16)
    assert first["lost_gpu_h"] == pytest.approx(16 * 160 / 3600, abs=1e-3) and second["steps_gained"] == 100
    assert "lost_gpu_h" not in second and first["cause"] == "gpu_memory_ecc"


async def test_a_heterogeneous_job_is_explained_by_the_failure_of_any_component(world: Worlds) -> None:
    """Its people know the id that sbatch printed, the first one's; slurmctld forgets all of them minutes later."""
    shown = Shown(world())
    leader, part = (dataclasses.replace(job(number), het=200) for number in (200, 201))
    shown.world.store.save_attempt(leader, first_step=1, last_step=250, step_time_s=2.0)
    shown.failed("ddd1", 200, "ada")
    shown.daemon.live.fleet = fleet(jobs=[leader, part])
    for _ in range(2):
        for view in ("incidents", "jobs"):
            found = (await shown(view, ADA, job=200))["incidents"]
            assert {item["id"] for item in found} == {"aaa1", "ddd1"}
        seen = await shown("why", ADA, what="200")
        assert seen["incident"]["id"] == "ddd1" and [item["id"] for item in seen["others"]] == ["aaa1"]
        assert (await shown("why", ADA, what="201"))["incident"]["id"] == "aaa1"
        assert {row["job"] for row in (await shown("lost", ADA, job=200))["rows"]} == {200, 201}
        assert {row["job"] for row in (await shown("jobs", ADA, job=200))["attempts"]} == {200}
        for view in (leader, part):
            shown.daemon.live.see_attempt(view)
        shown.daemon.live.fleet = fleet()


async def test_components_are_known_as_long_as_their_attempts_are(world: Worlds) -> None:
    shown = Shown(world())
    for number, user in ((200, "ada"), (201, "ada"), (202, "bob")):  # the last one's leader had this id long before
        part = dataclasses.replace(job(number, user=user, restarts=1, started_s=60.0), het=200)
        shown.world.store.save_attempt(part, first_step=None, last_step=None, step_time_s=None)
    shown.failed("ddd1", 200, "ada")
    for asked in (200, 201):
        assert {item["id"] for item in (await shown("incidents", job=asked))["incidents"]} == {"aaa1", "ddd1"}
        seen = await shown("why", what=f"{asked}")
        assert {seen["incident"]["id"], *(item["id"] for item in seen["others"])} == {"aaa1", "ddd1"}
    assert {row["job"] for row in (await shown("lost", job=201))["rows"]} == {200, 201}


async def test_the_job_is_named_as_scontrol_takes_it(world: Worlds) -> None:
    shown = Shown(world())
    assert (await shown("why", what="aaa1"))["incident"]["job_spec"] == "201"
    shown.daemon.live.fleet = fleet(jobs=[dataclasses.replace(job(201), array=(201, 3))])
    assert (await shown("why", what="aaa1"))["incident"]["job_spec"] == "201_3"


@pytest.mark.parametrize("what", ["202", "bbb1", "ccc1"])
async def test_what_belongs_to_others_is_not_known(world: Worlds, what: str) -> None:
    with pytest.raises(UserError, match="not known"):
        await Shown(world())("why", ADA, what=what)


async def test_last_is_the_newest_of_one_s_own(world: Worlds) -> None:
    shown = Shown(world())
    assert (await shown("why", BOB, what="last"))["incident"]["id"] == "bbb1"
    with pytest.raises(UserError, match="no incident of your jobs yet"):
        await shown("why", 59999, what="last")


async def test_lost_by_job_and_cause_of_one_s_own(world: Worlds) -> None:
    shown = Shown(world())
    await shown.daemon.fleets.take()
    seen = await shown("lost", ADA)
    assert [(row["job"], row["user"], row["not_known"]) for row in seen["rows"]] == [(201, "ada", 1)]
    assert {row["cause"] for row in (await shown("lost", by="cause"))["rows"]} == {"gpu_memory_ecc"}
    assert (await shown("lost", since=later(3600.0).isoformat()))["rows"] == []
    for wrong in ({"by": "moon"}, {"since": "yesterday"}, {"since": "2026-03-01"}, {"since": 7}):
        with pytest.raises(UserError):
            await shown("lost", **wrong)


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        ({}, {"aaa1", "bbb1", "ccc1"}),
        ({"user": "ada"}, {"aaa1"}),
        ({"node": "n[1-2]"}, {"aaa1", "bbb1", "ccc1"}),
        ({"node": "n2"}, set()),
        ({"cause": "pcie"}, set()),
        ({"since": later(1.0).isoformat()}, set()),
        ({"job": 202, "node": "n1"}, {"bbb1"}),
    ],
)
async def test_listings_take_the_same_filters(world: Worlds, chosen: dict[str, Any], ids: set[str]) -> None:
    shown = Shown(world())
    assert {item["id"] for item in (await shown("incidents", **chosen))["incidents"]} == ids
    assert {item["id"] for item in (await shown("history", **chosen))["incidents"]} == ids


async def test_near_miss_of_a_cause_is_told(world: Worlds) -> None:
    with pytest.raises(UserError) as caught:
        await Shown(world())("incidents", cause="gpu_memory_ec")
    assert caught.value.fix == "did you mean 'gpu_memory_ecc'?"


async def test_names_for_a_shell(world: Worlds) -> None:
    shown = Shown(world())
    await shown.daemon.fleets.take()
    names = {"nodes": ["n1", "n2", "n3", "n4"], "jobs": [201], "incidents": ["aaa1"]}
    assert await shown("names", ADA) == {**names, "own_only": True}


# --- what to repair ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["sentinel:ddd1 ecc n1:3", "sentinel:root: RMA 7 [incident ddd1]"])
async def test_drained_node_with_gpu_serial_number_and_advice(world: Worlds, reason: str) -> None:
    shown = Shown(world())
    items = [evidence(Kind.XID, node="n1", id="with-serial", text="NVRM: Xid 48", data={"serial": "165052"})]
    items = [_on_gpu(item) for item in items]
    shown.world.store.append(items)
    shown.world.store.save_incident(_incident(*items), user="ada")
    shown.world.store.save_verdict("ddd1", verdict(drain=("n1",), gpus=("n1:3",), advice="replace the GPU"), later(0))
    shown.world.slurm.person_drains("n1", reason)
    shown.world.slurm.person_drains("n2", "a person")
    shown.world.slurm.nodes["n3"].drained, shown.world.slurm.nodes["n3"].reason = True, "sentinel:ada: to look at it"
    rows = {row["node"]: row for row in (await shown("repairs"))["repairs"]}
    states = {row["node"]: row["state"] for row in (await shown("nodes"))["nodes"]}
    assert {name: row["state"] for name, row in rows.items()} == {name: states[name] for name in rows}, (
        "one word of each"
    )
    assert set(rows) == {"n1", "n3"}  # what a person drained is that person's
    one = rows["n1"]
    assert (one["gpu"], one["gpu_uuid"], one["serial"], one["advice"]) == ("3", "GPU-7", "165052", "replace the GPU")
    assert one["incident"] == "ddd1" and one["cause"] == "gpu_memory_ecc"
    assert rows["n3"]["incident"] is None and rows["n3"]["reasons"] == ["sentinel:ada: to look at it"]


async def test_what_jobs_said_is_not_shown_to_other_users(world: Worlds) -> None:
    shown = Shown(world())
    said = evidence(Kind.XID, node="n1", id="said", text="RuntimeError: /home/ada/secret")
    of_job = dataclasses.replace(said.where, job=201, attempt=0)
    said = dataclasses.replace(said, source=Source.JOB_LOG, trust=Trust.USER, where=of_job)
    printed = evidence(Kind.XID, node="n1", id="printed", text="NVRM: Xid 48")
    judged = dataclasses.replace(verdict(drain=("n1",)), grounds=(Ground(said, 1.0), Ground(printed, 1.0)))
    shown.world.store.save_incident(_incident(said, printed), user="ada")
    shown.world.store.save_verdict("ddd1", judged, later(0))
    shown.world.slurm.nodes["n1"].drained, shown.world.slurm.nodes["n1"].reason = True, "sentinel:ddd1 ecc n1:3"
    texts = {who: (await shown("repairs", who))["repairs"][0]["evidence"] for who in (BOB, OPERATOR)}
    assert texts == {BOB: ["NVRM: Xid 48"], OPERATOR: ["RuntimeError: /home/ada/secret", "NVRM: Xid 48"]}


def _on_gpu(item: Any) -> Any:
    return dataclasses.replace(item, where=dataclasses.replace(item.where, gpu=3, gpu_uuid="GPU-7"))


def _incident(*items: Any) -> Any:
    return incident(*items, id="ddd1", job=201)


# --- what it may do, does, and would have done -----------------------------------------------------------------------------


async def test_modes_by_partition_and_over_all(world: Worlds) -> None:
    shown = Shown(world())
    await shown.daemon.fleets.take()
    seen = await shown("status")
    assert seen["mode"] == "act" and seen["modes"]["train"] == {
        "mode": "act", "drain": "act", "restart": "act", "causes": {}, "known": True,
    }  # fmt: skip
    shown.world.store.put("paused", True)
    assert (await shown("status"))["mode"] == "paused"


def test_partition_that_slurm_does_not_have_is_told() -> None:
    modes = Modes(
        default=Mode("observe", "observe"), partitions={"gone": Mode("act", "act"), "train": Mode("act", "observe")}
    )
    found = state_of.modes_by_partition(modes, fleet(1), paused=False)
    assert {name: (entry["mode"], entry["known"]) for name, entry in found.items()} == {
        "gone": ("act", False), "train": ("mixed", True),
    }  # fmt: skip
    assert state_of.overall(modes, found, paused=False) == "mixed"
    assert state_of.modes_by_partition(modes, None, paused=False)["gone"]["known"] is None
    assert state_of.overall(Modes(), {}, paused=False) == "observe"


async def test_steps_under_way_and_plans_that_were_only_observed(world: Worlds) -> None:
    shown = Shown(world())
    drain = step(StepKind.DRAIN, node="n1")
    made = plan(drain, incident="aaa1")
    shown.world.store.save_plan(made)
    shown.world.store.intend(made, drain, later(0))
    observed = plan(step(StepKind.DRAIN, node="n2"), incident="bbb1", observe_only=True)
    shown.world.store.save_plan(observed)
    seen = await shown("status", OPERATOR)
    assert [(s["step"], s["node"], s["incident"]) for s in seen["under_way"]] == [("drain", "n1", "aaa1")]
    assert [(p["incident"], p["steps"]) for p in seen["would_have_done"]] == [
        ("bbb1", [{"step": "drain", "node": "n2", "job": None}])
    ]
    own = await shown("status", BOB)
    assert own["under_way"] == [] and len(own["would_have_done"]) == 1
    store = shown.world.store
    store.record(made, Outcome(drain, Result.NOT_KNOWN, later(0.5), "slurmctld did not answer"))
    seen = await shown("status", OPERATOR)
    assert [(s["step"], s["reason"]) for s in seen["under_way"]] == [("drain", "slurmctld did not answer")]
    store.record(made, Outcome(drain, Result.NOT_KNOWN, later(0.5), "it says no", {"refused_by_slurm": True}))
    assert (await shown("status", OPERATOR))["under_way"] == []  # it waits, and is shown as that
    shown.world.store.record(made, Outcome(drain, Result.DONE, later(1.0)))
    seen = await shown("status")
    assert seen["under_way"] == [] and seen["budget"]["drains_last_hour"] == {"used": 1, "limit": 6}


async def test_breaker_is_open_within_its_window(world: Worlds) -> None:
    shown = Shown(world())
    assert (await shown("status"))["breakers"]["breaker"]["open"] is False
    shown.world.store.put("breaker_told", {"incident": "aaa1", "at": later(0).isoformat()})
    seen = (await shown("status"))["breakers"]
    assert seen["breaker"] | {"last_at": None} == {
        "open": True, "last_at": None, "incident": "aaa1", "opens_at_nodes": 5, "window_s": 60.0,
    }  # fmt: skip
    assert seen["hang-breaker"]["open"] is False
    shown.world.slurm.clock.advance(61.0)
    assert (await shown("status"))["breakers"]["breaker"]["open"] is False


async def test_what_people_are_asked_stands_apart_from_what_was_only_observed(world: Worlds) -> None:
    shown = Shown(world())
    asks = Wait("approval", later(0), "A person is asked.", ("drain n2",), later(60.0))
    made = plan(step(StepKind.DRAIN, node="n2"), incident="bbb1", observe_only=True)
    shown.world.store.save_plan(dataclasses.replace(made, waits=(asks,)))
    seen = await shown("status")
    assert seen["would_have_done"] == [] and [(w["incident"], w["what"]) for w in seen["asked"]] == [
        ("bbb1", ["drain n2"])
    ]


@pytest.mark.parametrize(
    ("stage", "out", "is_shown"),
    [("waiting", True, True), ("waiting", False, False), ("repair", False, False), ("returning", False, True),
     ("probation", False, True), ("returned", False, True)],
)  # fmt: skip
async def test_the_tests_of_a_node_that_somebody_returned_are_not_shown(
    world: Worlds, stage: str, out: bool, is_shown: bool
) -> None:
    """Until the next snapshot they are still stored."""
    shown = Shown(world())
    shown.world.slurm.nodes["n1"].drained = out
    await shown.daemon.fleets.take()
    shown.world.store.put("node_returns", {"n1": {"stage": stage}})
    assert ((await shown("why", what="n1"))["node"]["return"] is not None) is is_shown
    assert ((await shown("nodes", node="n1"))["nodes"][0]["return"] is not None) is is_shown


def test_incidents_for_which_nodes_are_out_of_service_are_known_by_slurm_s_reasons_and_by_what_is_to_return() -> None:
    seen = fleet([
        node("n1", flags=("drain",), reason="sentinel:a1 pcie"), node("n2", flags=("drain",), reason="Fan [incident b1]"),
        node("n3", flags=("drain",), reason="sentinel:c1 pcie [incident d1]"), node("n4", reason="sentinel:e1 pcie"),
    ])  # fmt: skip
    returning = {"n5": {"incident": "f1"}, "n6": {"incident": None}, "n7": {}}
    assert drained_incidents(seen, returning) == {"a1", "d1", "f1"}
    assert drained_incidents(None, returning) == {"f1"}


async def test_a_drained_node_s_incident_explains_it_after_the_store_forgot_what_is_older(world: Worlds) -> None:
    shown = Shown(world())
    store, slurm = shown.world.store, shown.world.slurm
    closed = dataclasses.replace(store.incident("aaa1"), state=IncidentState.CLOSED, closed_at=later(60.0))  # type: ignore[type-var]
    store.save_incident(closed, user="ada")
    slurm.nodes["n1"] = dataclasses.replace(slurm.nodes["n1"], drained=True, reason="sentinel:aaa1 gpu_memory_ecc")
    await shown.daemon.fleets.take()
    store.forget(later(3600.0), drained_incidents(shown.daemon.live.fleet, {}))
    assert (await shown("why", what="n1"))["incident"]["id"] == "aaa1"
    (repair,) = (await shown("repairs"))["repairs"]
    assert (repair["incident"], repair["cause"], repair["gpu"]) == ("aaa1", "gpu_memory_ecc", "3")


async def test_a_job_is_explained_with_all_of_its_attempts_and_says_where_it_lists_no_more(world: Worlds) -> None:
    shown = Shown(world())
    seen = [
        AttemptSeen(job(777, user="ada", restarts=number, started_s=60.0 * number, state="failed"), 1, 10, 2.0)
        for number in range(2001)
    ]
    shown.world.store.commit(seen)
    why = await shown("why", what="777")
    assert len(why["attempts"]) == len((await shown("jobs", job=777))["attempts"]) == 2001
    assert len((await shown("curves", job=777))["curves"]) == 2001
    assert why["others"] == [] and not why["others_cut"]
    shown.world.store.save_closed(22, later(60.0))  # on n3
    node = await shown("why", what="n3")
    assert len(node["others"]) == 20 and node["others_cut"]
