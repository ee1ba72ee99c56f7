"""Mode suggest: nothing is done before a person approves it, as it was shown; a refusal and a silence are told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from in_memory.daemon import SETTINGS, Daemon, FakeSink, answer, beside, fail, open_plan, outcomes, silent, states
from in_memory.world import World
from made_records import OPTED_IN, lost_gpu

from sentinel.adapters.store import tables
from sentinel.config.modes import CauseMode
from sentinel.config.settings import Limits, Mode, Modes, Settings
from sentinel.daemon.api.explanation import explained
from sentinel.errors import Refused
from sentinel.model.approvals import Answer, asked, open_names, request_of
from sentinel.model.records import Cause
from sentinel.wire import to_json

Worlds = Callable[..., World]


def settings(drain: str = "suggest", restart: str = "suggest", **how: Any) -> Settings:
    modes = Modes(default=Mode(drain, restart), **how)
    return dataclasses.replace(SETTINGS, modes=modes, limits=Limits(drain_fraction=0.5))


def drained(there: World) -> set[str]:
    return {name for name, node in there.slurm.nodes.items() if node.drained}


def waits(there: World) -> list[str]:
    return [wait.kind for plan in there.store.open_plans() for wait in plan.waits]


async def test_nothing_is_done_before_it_is_approved_and_then_all_of_it(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=settings())
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert drained(there) == set() and job.restarts == 0 and waits(there) == ["approval"]
    assert open_names(asked(open_plan(there))) == ("drain n1", f"restart {there.job}")
    assert sink.stages == ["asked"] and f"sentinel approve {open_plan(there).incident}" in sink.all[0].body
    to_owner = str(sink.all[0].data["owner_text"])
    assert "is restarted when an operator approves it: An operator is asked to approve" in to_owner
    assert "is not restarted" not in to_owner and "The operators are asked." in to_owner
    await answer(daemon, note="go")
    assert drained(there) == {"n1"} and job.restarts == 1 and "n1" not in job.on
    assert sink.stages == ["asked", "restarting", "running again"] and there.store.open_plans() == []
    (entry,) = [kept.entry for kept in there.store.audit() if kept.entry.action == "approve"]
    assert (entry.origin, entry.why, entry.stage) == ("10.0.0.9", "go", "done") and daemon.bugs() == 0


async def test_what_was_approved_part_by_part_is_asked_nowhere_any_more(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=settings())
    await fail(daemon, lost_gpu("n1"))
    incident = open_plan(there).incident
    await answer(daemon, what=[f"restart {there.job}"])
    assert "asked to approve drain n1" in sink.all[-1].body and drained(there) == set()
    await answer(daemon)
    assert drained(there) == {"n1"} and "asked" not in daemon.state.plans[incident].explanation
    begun = [kept.entry for kept in there.store.audit() if kept.entry.stage == "begun"]
    assert {entry.action for entry in begun} >= {"drain", "requeue_hold", "release"}
    assert all("approved by" in entry.why and "is asked" not in entry.why for entry in begun), begun


async def test_who_approved_another_cause_is_not_named_in_the_audit(world: Worlds) -> None:
    there = world(nodes=6)
    daemon = Daemon(there, settings=settings())
    await fail(daemon, lost_gpu("n1"))
    incident = open_plan(there).incident
    other = next(cause for cause in Cause if cause is not daemon.state.verdicts[incident].cause)
    what = open_names(asked(open_plan(there)))
    yes = Answer(there.slurm.clock.now(), "olga", True, what, other)
    there.store.put("approvals", to_json({incident: (yes,)}))
    daemon = Daemon(there, settings=settings("act", "act"))
    await daemon.start()
    await daemon.pass_time(20.0)
    begun = [kept.entry for kept in there.store.audit() if kept.entry.stage == "begun"]
    assert drained(there) == {"n1"} and not any("olga" in entry.why for entry in begun)


async def test_a_refusal_does_nothing_is_told_and_can_be_taken_back(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=settings())
    await fail(daemon, lost_gpu("n1"))
    await answer(daemon, "refuse", note="known, ticket 7")
    await daemon.pass_time(8000.0)
    assert drained(there) == set() and there.slurm.jobs[there.job].restarts == 0 and waits(there) == ["refused"]
    assert sink.stages == ["asked", "refused"] and "ticket 7" in sink.all[1].body
    await answer(daemon)
    assert drained(there) == {"n1"} and there.slurm.jobs[there.job].restarts == 1


async def test_a_request_lapses_is_told_and_can_still_be_approved(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=settings(approval_s=600.0))
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(590.0)
    assert waits(there) == ["approval"]
    await daemon.pass_time(20.0)
    assert waits(there) == ["approval-lapsed"] and sink.stages == ["asked", "lapsed"] and drained(there) == set()
    await answer(daemon)
    assert drained(there) == {"n1"}


async def test_an_answer_to_what_is_not_asked_any_more_changes_nothing_and_is_in_the_audit(world: Worlds) -> None:
    there = world(nodes=8)
    daemon = Daemon(there, settings=settings(approval_s=600.0))
    await fail(daemon, lost_gpu("n1"))
    plan = open_plan(there)
    request = request_of(plan, daemon.runner.state.verdicts[plan.incident].cause)
    await daemon.pass_time(700.0)  # it has lapsed: another request
    with pytest.raises(Refused, match="another one by now"):
        await answer(daemon, request=request)
    with pytest.raises(Refused, match="drain n7 is not asked"):
        await answer(daemon, what=["drain n7"])
    with pytest.raises(Refused, match="nothing of incident"):
        await answer(daemon, incident="0000")
    assert drained(there) == set() and there.slurm.jobs[there.job].restarts == 0
    assert [kept.entry.stage for kept in there.store.audit() if kept.entry.action == "approve"] == ["refused"] * 3


async def test_a_restart_goes_round_the_node_whose_drain_is_only_asked_for(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=settings("suggest", "act"))
    await fail(daemon, lost_gpu("n1"))
    job = there.slurm.jobs[there.job]
    assert job.restarts == 1 and "n1" not in job.on and drained(there) == set() and waits(there) == ["approval"]
    assert sink.stages == ["restarting", "running again"] and "approve drain n1" in sink.all[0].body
    await answer(daemon)
    assert drained(there) == {"n1"} and there.store.open_plans() == []


async def test_drains_act_while_restarts_are_asked_for(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=settings("act", "suggest"))
    await fail(daemon, lost_gpu("n1"))
    assert drained(there) == {"n1"} and there.slurm.jobs[there.job].restarts == 0 and sink.stages[-1] == "asked"
    await answer(daemon)
    assert there.slurm.jobs[there.job].restarts == 1 and there.store.open_plans() == []


async def test_a_cause_has_a_mode_of_its_own(world: Worlds) -> None:
    there = world(nodes=6)
    own = Modes(default=Mode("suggest", "suggest", {"gpu_fallen_off_bus": CauseMode(drain="act")}))
    daemon = Daemon(there, settings=dataclasses.replace(settings(), modes=own))
    await fail(daemon, lost_gpu("n1"))
    assert drained(there) == {"n1"} and there.slurm.jobs[there.job].restarts == 0


async def test_an_approval_is_kept_over_a_restart_and_lapses_where_it_could_not_be_carried_out(world: Worlds) -> None:
    there = world(nodes=6)
    narrow = dataclasses.replace(settings(approval_s=600.0), limits=Limits(drain_count=1, drain_fraction=1.0))
    daemon = Daemon(there, settings=narrow)
    await fail(daemon, lost_gpu("n1"))
    there.slurm.nodes["n6"].drained, there.slurm.nodes["n6"].reason = True, "sentinel:old gpu_memory_ecc"
    await daemon.pass_time(2.0)
    await answer(daemon)
    assert drained(there) == {"n6"} and "drain-budget" in waits(there)
    second = Daemon(there, settings=narrow)
    await second.start()
    await second.quiet()
    there.slurm.nodes["n6"].drained = False
    await second.pass_time(20.0)
    assert drained(there) == {"n1"}


async def test_an_approval_that_could_not_be_carried_out_in_time_is_asked_again(world: Worlds) -> None:
    there = world(nodes=6)
    narrow = dataclasses.replace(settings(approval_s=600.0), limits=Limits(drain_count=1, drain_fraction=1.0))
    daemon = Daemon(there, settings=narrow)
    await fail(daemon, lost_gpu("n1"))
    there.slurm.nodes["n6"].drained, there.slurm.nodes["n6"].reason = True, "sentinel:old gpu_memory_ecc"
    await daemon.pass_time(2.0)
    await answer(daemon, what=["drain n1"])
    await daemon.pass_time(700.0)
    there.slurm.nodes["n6"].drained = False
    await daemon.pass_time(20.0)
    assert drained(there) == set() and "drain n1" in open_names(asked(open_plan(there)))


async def test_what_was_asked_is_no_outcome_of_what_was_done(world: Worlds) -> None:
    there = world(nodes=6, wide=1)
    daemon = Daemon(there, settings=settings())
    await fail(daemon, lost_gpu("n5"))
    assert "sentinel approve" in outcomes(there)[0]
    await answer(daemon)
    assert drained(there) == {"n5"} and states(there) == ["closed"]
    assert "approve" not in outcomes(there)[0]


async def test_nothing_is_asked_that_is_over(world: Worlds) -> None:
    there, sink = world(nodes=10, wide=1), FakeSink()
    daemon = Daemon(there, [sink], settings=settings())
    await fail(daemon, lost_gpu("n5"))
    there.slurm.person_drains("n5", "ticket 7")
    await daemon.pass_time(20.0)
    assert there.store.open_plans() == [] and sink.stages == ["asked", "resolved"]


async def test_who_asks_why_sees_what_is_asked(world: Worlds) -> None:
    there = world(nodes=6)
    daemon = Daemon(there, settings=settings())
    await fail(daemon, lost_gpu("n1"))
    (row,) = there.store.incident_rows()
    seen = explained(there.store, row, None)  # type: ignore[arg-type]
    assert seen["request"]["what"] == ["drain n1", f"restart {there.job}"] and len(seen["request"]["id"]) == 8


async def test_a_refused_drain_is_told_also_when_the_job_runs_again_long_since(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=settings("suggest", "act", approval_s=600.0))
    await fail(daemon, lost_gpu("n1"))
    await answer(daemon, "refuse", note="known")
    assert sink.stages == ["restarting", "running again", "refused"] and drained(there) == set()
    assert "runs again" in sink.all[-1].data["owner_text"]  # type: ignore[operator]


async def test_another_job_on_the_node_has_a_request_of_its_own(world: Worlds) -> None:
    there = world(nodes=8)
    other = there.slurm.submit(nodes=99, comment=OPTED_IN)
    this = there.slurm.jobs[other]
    this.state, this.on, this.nodes = "RUNNING", ("n1",), 1
    daemon = Daemon(there, settings=settings())
    await fail(daemon, lost_gpu("n1"))
    named = [set(open_names(asked(plan))) for plan in there.store.open_plans()]
    assert {"drain n1", f"restart {there.job}"} in named and {"drain n1", f"restart {other}"} in named
    assert drained(there) == set() and there.slurm.jobs[other].restarts == 0


async def test_answers_of_incidents_that_are_gone_are_not_kept_for_ever(world: Worlds) -> None:
    there = world(nodes=6)
    daemon = Daemon(there, settings=settings())
    await fail(daemon, lost_gpu("n1"))
    await answer(daemon)
    kept = there.store.get("approvals")
    there.store.put("approvals", {**kept, "gone": kept[next(iter(kept))], "spoilt": [{"at": 7}]})
    second = Daemon(there, settings=settings())
    await second.start()
    await second.quiet()
    assert set(second.runner.state.answers) <= set(kept) and second.bugs() == 0


async def test_a_pause_that_outlasts_an_approval_has_the_rest_asked_anew(world: Worlds) -> None:
    """The pause came while the drain was carried out."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=settings(approval_s=600.0))
    await fail(daemon, lost_gpu("n1"))
    inner = there.slurm.drain

    async def drain(name: str, reason: str) -> None:
        await inner(name, reason)
        await daemon.runner.command("pause", "olga")

    there.slurm.drain = drain  # type: ignore[method-assign]
    await answer(daemon)
    assert drained(there) == {"n1"} and there.slurm.jobs[there.job].restarts == 0
    await daemon.pass_time(3 * 3600.0)
    await daemon.runner.command("resume", "olga")
    await daemon.quiet()
    await daemon.pass_time(30.0)
    assert there.slurm.jobs[there.job].restarts == 0 and "approval" in waits(there)


async def restarted(daemon: Daemon) -> Daemon:
    again = Daemon(daemon.world, daemon.sinks, settings=daemon.settings)
    await again.start()
    await again.pass_time(20.0)
    return again


@pytest.mark.parametrize("required", [(), ("n1", "n2")], ids=["the job runs again", "its job waits for the node"])
async def test_what_is_asked_for_only_after_a_maintenance_is_told_once(
    world: Worlds, required: tuple[str, ...]
) -> None:
    there, sink = world(nodes=6), FakeSink()
    job = there.slurm.jobs[there.job]
    job.required = required
    daemon = Daemon(there, [sink], settings=settings("suggest", "act"))
    there.slurm.person_reserves(["n1"])
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    before = sink.stages
    assert before == (["restarting"] if required else ["restarting", "running again"]) and waits(there) == [
        "maintenance"
    ]
    daemon = await restarted(daemon)
    there.slurm.reservation_ends(["n1"])
    for _ in range(2):
        await daemon.pass_time(20.0)
    assert waits(there) == ["approval"] and drained(there) == set()
    assert sink.stages == [*before, "asked"], daemon.said
    assert f"sentinel approve {open_plan(there).incident}" in str(sink.all[-1].data["operator_text"])
    said = "is being restarted" if required else "runs again"
    assert said in str(sink.all[-1].data["owner_text"]) and sink.all[-1].data["severity"] == "warning"
    daemon = await restarted(daemon)
    assert sink.stages == [*before, "asked"], "the next daemon knows that people were told"
    await answer(daemon)
    assert drained(there) == {"n1"}
    there.slurm.person_resumes("n1")
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert sink.stages[-1] == "running again" and there.store.open_plans() == [], sink.stages


async def test_a_further_node_that_is_asked_for_later_is_told_too(world: Worlds) -> None:
    there, sink = world(nodes=8), FakeSink()
    daemon = Daemon(there, [sink], settings=settings())
    there.slurm.person_reserves(["n2"])
    await fail(daemon, lost_gpu("n1"), lost_gpu("n2"))
    for _ in range(2):
        await daemon.pass_time(20.0)
    assert sink.stages == ["asked"] and "approve drain n1, restart" in sink.all[0].body
    there.slurm.reservation_ends(["n2"])
    for _ in range(2):
        await daemon.pass_time(20.0)
    assert sink.stages == ["asked", "asked"] and "drain n2" in str(sink.all[-1].data["operator_text"])


@pytest.mark.parametrize("restart", ["suggest", "act"])
@pytest.mark.parametrize("refused", [False, True])
async def test_nobody_is_asked_again_since_an_earlier_release_did_not_keep_that_it_had_asked(
    world: Worlds, restart: str, refused: bool
) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=settings("suggest", restart))
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    if refused:
        await answer(daemon, "refuse")
        await daemon.pass_time(20.0)
    before = sink.stages
    with there.store.engine.begin() as connection:
        for row in connection.execute(sa.select(tables.notice)).all():
            data = {key: value for key, value in row.record["data"].items() if key not in ("asked", "beside")}
            this = sa.and_(tables.notice.c.id == row.id, tables.notice.c.receiver == row.receiver)
            connection.execute(sa.update(tables.notice).where(this).values(record={**row.record, "data": data}))
    daemon = await restarted(daemon)
    for _ in range(2):
        await daemon.pass_time(20.0)
    assert sink.stages == before, daemon.said


async def test_that_a_part_was_refused_is_told_once_nothing_more_is_asked_for(world: Worlds) -> None:
    there, sink = world(nodes=8), FakeSink()
    daemon = Daemon(there, [sink], settings=settings())
    await fail(daemon, lost_gpu("n1"), lost_gpu("n2"))
    await daemon.pass_time(20.0)
    await answer(daemon, "refuse", ["drain n1"])
    for _ in range(2):
        await daemon.pass_time(20.0)
    assert waits(there) == ["refused", "approval"] and sink.stages == ["asked"], "a person is needed still"
    await answer(daemon, "refuse", ["drain n2", f"restart {there.job}"])
    for _ in range(2):
        await daemon.pass_time(20.0)
    assert sink.stages == ["asked", "refused"], daemon.said


async def test_a_second_refusal_of_a_part_of_what_was_refused_is_no_news(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=settings())
    await fail(daemon, lost_gpu("n1"))
    for what in (None, ["drain n1"]):
        await answer(daemon, "refuse", what)
        await daemon.pass_time(20.0)
    assert sink.stages == ["asked", "refused"], daemon.said


@pytest.mark.parametrize("required", [(), ("n1", "n2")], ids=["the job runs again", "its job waits for the node"])
async def test_a_maintenance_that_comes_and_goes_is_no_news_of_the_job(
    world: Worlds, required: tuple[str, ...]
) -> None:
    there, sink = world(nodes=6), FakeSink()
    there.slurm.jobs[there.job].required = required
    daemon = Daemon(there, [sink], settings=settings("suggest", "act"))
    there.slurm.person_reserves(["n1"])
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    before = sink.stages
    for times in (1, 2, 3):
        there.slurm.reservation_ends(["n1"])
        for _ in range(2):
            await daemon.pass_time(20.0)
        assert sink.stages == [*before, *["asked"] * times], "operators are asked each time"
        there.slurm.person_reserves(["n1"])
        for _ in range(2):
            await daemon.pass_time(20.0)
        assert waits(there) == ["maintenance"] and len(sink.stages) == len(before) + times, sink.stages
    told = [str(notice.data["owner_text"]) for notice in sink.all[len(before) :]]
    assert "The operators are asked" in told[0] or "which it is kept from" in told[0]
    assert told[1:] == ["", ""], "and its owner hears of it once"
    daemon = await restarted(daemon)
    there.slurm.reservation_ends(["n1"])
    for _ in range(2):
        await daemon.pass_time(20.0)
    await answer(daemon)
    assert drained(there) == {"n1"}
    there.slurm.person_resumes("n1")
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert sink.stages[-1] == "running again" and "runs again" in str(sink.all[-1].data["owner_text"])


@pytest.mark.parametrize("drain", ["suggest", "act"])
async def test_a_job_that_begins_on_a_node_whose_drain_a_person_refused_goes_on(world: Worlds, drain: str) -> None:
    there = world(nodes=8)
    daemon = Daemon(there, settings=settings())
    await fail(daemon, lost_gpu("n1"))
    await answer(daemon, what=["drain n1"], word="refuse", note="known, ticket 7")
    await daemon.pass_time(60.0)
    daemon = Daemon(there, settings=settings(drain, "act"))
    await daemon.start()
    await daemon.pass_time(20.0)
    later = there.slurm.jobs[beside(there, "n1")]
    later.started = there.slurm.clock.now().timestamp()
    for _ in range(3):
        await daemon.pass_time(20.0)
    assert drained(there) == set() and "n1" not in there.slurm.jobs[there.job].on
    assert (later.restarts, later.on) == (0, ("n1",)), daemon.said
