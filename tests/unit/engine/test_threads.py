"""One incident is one thread of messages: what is so, in order, to its end; also over a restart of the daemon."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from delivery_attempts import Attempts
from in_memory.daemon import SETTINGS, Daemon, FakeSink
from in_memory.world import World
from made_records import AT, ended, evidence, incident, plan, step, verdict

from sentinel.alerts import store_unwritable, store_writable_again
from sentinel.config.alerts import Alerts, Channel
from sentinel.config.settings import Settings
from sentinel.engine import recovery
from sentinel.model.approvals import APPROVAL
from sentinel.model.records import IncidentState, Kind, Notice, Outcome, Result, StepKind, Wait

Worlds = Callable[..., World]
XID = {"xid": 79, "pci": "0000:3b:00"}


def with_channels(**channels: dict[str, Any]) -> Settings:
    made = {name: Channel(url="x", **{"kind": "webhook", **what}) for name, what in channels.items()}
    return dataclasses.replace(SETTINGS, alerts=Alerts(channels=made))


async def fail(daemon: Daemon) -> None:
    there = daemon.world
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    await daemon.observe([evidence(Kind.XID, node="n1", data=XID, text="NVRM: Xid 79"), ended(there.job)])
    await daemon.quiet()


async def test_a_fault_of_a_node_that_a_person_has_drained_is_told_once(world: Worlds) -> None:
    """Each source says it some tenths of a second after the other, and nothing is left to do about it."""
    there, sink = world(nodes=6), FakeSink()
    there.slurm.person_drains("n5", "ticket 9")
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    for number, kind in enumerate((Kind.XID, Kind.XID, Kind.GPU_LOST)):
        data = {**XID, "number": number} if kind is Kind.XID else {"index": 1}
        await daemon.observe([evidence(kind, node="n5", at_s=number / 2, data=data, text=f"NVRM: Xid 79 ({number})")])
        await daemon.quiet()
    assert len(sink.all) == 1 and len(there.store.incident_rows()) == 1, sink.all
    assert there.slurm.nodes["n5"].reason == "ticket 9"


async def test_restart_is_told_when_it_begins_and_when_it_gains_steps(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    await fail(Daemon(there, [sink]))
    assert sink.stages == ["restarting", "running again"]
    first, last = sink.all
    assert (first.data["final"], last.data["final"]) == (False, True) and first.id != last.id
    assert "is being restarted" in str(first.data["owner_text"]) and "runs again" not in str(first.data["owner_text"])
    assert "runs again" in str(last.data["owner_text"]) and last.data["told"] == sink.stages


async def test_restart_that_fails_after_it_was_announced_has_a_second_message(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    there.progress.first_step = lambda job, attempt: None  # type: ignore[method-assign]
    daemon = Daemon(there, [sink])
    await fail(daemon)
    assert sink.stages == ["restarting"]
    there.slurm.end(there.job, exit_code=1)
    await daemon.fleets.take()
    await daemon.quiet()
    assert sink.stages[:2] == ["restarting", "failed"] and sink.all[1].data["severity"] == "warning"
    assert "was restarted: attempt 1 ended" in str(sink.all[1].data["owner_text"])


async def test_thread_goes_on_where_it_was_after_a_restart_of_the_daemon(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    first_step = there.progress.first_step
    there.progress.first_step = lambda job, attempt: None  # type: ignore[method-assign]
    await fail(Daemon(there, [sink]))
    assert sink.stages == ["restarting"]
    there.progress.first_step = first_step  # type: ignore[method-assign]
    again = Daemon(there, [sink])
    await again.start()
    await again.pass_time(20.0)
    assert sink.stages == ["restarting", "running again"] and sink.all[1].data["told"] == sink.stages


RELEASE = step(StepKind.RELEASE, job=101, attempt=0)
CONFIRM = step(StepKind.CONFIRM, job=101, attempt=0)


async def _told(
    daemon: Daemon, name: str, state: IncidentState, *outcomes: Outcome, waits: tuple[Wait, ...] = (), **made: Any
) -> None:
    """The incident is in this state, and its people are due to be told."""
    daemon.state.put(dataclasses.replace(incident(ended(), id=name, state=state), outcome="released by its user"))
    daemon.state.verdicts[name] = verdict()
    made_plan = plan(*(outcome.step for outcome in outcomes), incident=name, **made)
    daemon.state.plans[name] = dataclasses.replace(made_plan, waits=waits)
    for outcome in outcomes:
        daemon.state.ledger.intend(name, outcome.step, outcome.at)
        daemon.state.ledger.record(name, outcome)
    await daemon.runner.timer_due(recovery.notice_timer(name))
    await daemon.quiet()


async def test_what_failed_is_resolved_when_its_incident_closes_and_never_twice(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    failed = Outcome(RELEASE, Result.FAILED, there.slurm.clock.now(), "Slurm does not release it")
    for state in (IncidentState.HELD, IncidentState.HELD, IncidentState.CLOSED, IncidentState.CLOSED):
        await _told(daemon, "inc1", state, failed)
    assert sink.stages == ["failed", "resolved"]
    assert sink.all[1].data["final"] is True and sink.all[1].data["severity"] == "info"
    assert "released by its user" in str(sink.all[1].data["owner_text"])


async def test_an_incident_that_is_over_before_anything_was_told_is_not_said_to_be_restarting(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    left = Outcome(CONFIRM, Result.FAILED, there.slurm.clock.now(), "left to inc3", {"recovered_by": "inc3"})
    await _told(daemon, "inc1", IncidentState.CLOSED, Outcome(RELEASE, Result.DONE, left.at), left)
    assert sink.stages == ["resolved"] and sink.all[0].data["final"] is True


async def test_incident_that_goes_back_and_forth_has_so_many_messages_and_no_more(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    released = Outcome(RELEASE, Result.DONE, there.slurm.clock.now())
    for _ in range(9):
        await _told(daemon, "inc1", IncidentState.WAITING, refusal="drain-budget")
        await _told(daemon, "inc1", IncidentState.WATCHING, released)
    assert sink.stages == ["waiting", "restarting"] * 6
    held = Outcome(RELEASE, Result.FAILED, there.slurm.clock.now(), "no such job")
    for _ in range(2):
        await _told(daemon, "inc1", IncidentState.CLOSED, held)
    assert sink.stages[12:] == ["failed"], "its end is told, however often it was told of"


async def test_of_a_breaker_operators_get_one_message_and_each_owner_his_own(world: Worlds) -> None:
    there = world()
    settings = with_channels(ops={}, mine={"audience": "owners"})
    sinks = [FakeSink("ops"), FakeSink("mine")]
    daemon = Daemon(there, sinks, settings=settings)
    await daemon.fleets.take()
    for name in ("inc1", "inc2", "inc3"):
        await _told(daemon, name, IncidentState.WAITING, refusal="breaker")
    assert [notice.incident for notice in sinks[0].all] == ["inc1"]
    assert [notice.incident for notice in sinks[1].all] == ["inc1", "inc2", "inc3"]
    there.slurm.clock.advance(86_400.0)
    await _told(daemon, "inc4", IncidentState.WAITING, refusal="breaker")  # it opened again
    released = Outcome(RELEASE, Result.DONE, there.slurm.clock.now())
    await _told(daemon, "inc2", IncidentState.WATCHING, released)  # the first one has let go
    await _told(daemon, "inc3", IncidentState.CLOSED)  # nothing was done about this one
    heard = [[(notice.incident, notice.data["stage"]) for notice in sink.all] for sink in sinks]
    assert heard[0] == [("inc1", "waiting"), ("inc4", "waiting"), ("inc2", "restarting")]
    assert heard[1][3:] == [("inc4", "waiting"), ("inc2", "restarting"), ("inc3", "resolved")]


@pytest.mark.parametrize(
    ("choice", "number"),
    [
        ({}, 2),
        ({"least_severity": "warning"}, 2),
        ({"least_severity": "critical"}, 0),
        ({"stages": ["running again"]}, 1),
        ({"stages": ["restarting"]}, 2),  # who was told of it is told of its end
        ({"stages": ["held", "failed"]}, 0),
        ({"partitions": ["train"]}, 2),
        ({"partitions": ["other"]}, 0),
        ({"users": ["alice"]}, 2),
        ({"users": ["eve"]}, 0),
        ({"audience": "owners", "users": ["alice"]}, 2),
    ],
)
async def test_channel_gets_what_it_chose(world: Worlds, choice: dict[str, Any], number: int) -> None:
    there, sink = world(), FakeSink("mine")
    await fail(Daemon(there, [sink], settings=with_channels(mine=choice)))
    assert len(sink.all) == number


@pytest.mark.parametrize(("partitions", "number"), [(["train"], 2), (["other"], 2), (["cpu"], 0)])
async def test_channel_of_any_partition_that_a_job_asks_for_gets_its_messages(
    world: Worlds, partitions: list[str], number: int
) -> None:
    """Slurm gives all of them in one text where the job waits."""
    there, sink = world(), FakeSink("mine")
    there.slurm.jobs[there.job].record["partition"] = "train,other"
    await fail(Daemon(there, [sink], settings=with_channels(mine={"partitions": partitions})))
    assert len(sink.all) == number


async def test_resume_point_carries_a_line_for_the_job_log(world: Worlds) -> None:
    there = world()
    await fail(Daemon(there))
    ((_, values),) = there.resume.files.items()
    assert values["SENTINEL_MESSAGE"].startswith("sentinel: attempt 0 was ended: a GPU fell off the bus (GPU")


async def test_an_incident_that_is_over_after_a_request_was_told_is_not_said_to_be_restarting(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    now = there.slurm.clock.now()
    left = Outcome(CONFIRM, Result.FAILED, now, "left to inc3", {"recovered_by": "inc3"})
    done = (Outcome(RELEASE, Result.DONE, now), left)
    await _told(daemon, "inc1", IncidentState.WATCHING, *done)
    asks = Wait(APPROVAL, now + timedelta(seconds=1), "A person is asked to approve drain n1.", ("drain n1",))
    await _told(daemon, "inc1", IncidentState.WAITING, *done, waits=(asks,))
    await _told(daemon, "inc1", IncidentState.CLOSED, *done)
    assert sink.stages == ["restarting", "asked", "resolved"]


@pytest.mark.parametrize("taken", [True, False])
async def test_a_message_of_a_clock_that_was_ahead_hides_no_later_one_of_its_thread_at_a_start(
    world: Worlds, taken: bool
) -> None:
    there, sink = world(), FakeSink("mine")
    for number, ahead in ((1, timedelta(days=1)), (2, timedelta())):
        data = {"severity": "critical", "stage": "handled", "message": number}
        one = Notice(f"m{number}", "inc1", there.slurm.clock.now() + ahead, "a title", "a body", data)
        there.store.record_notice(one, "mine", delivered=taken and number == 1)
    daemon = Daemon(there, [sink], settings=with_channels(mine={}))
    await daemon.start()
    await daemon.quiet()
    assert [one.id for one in sink.all] == ["m2"]


QUIET: dict[str, Any] = {"attempts": 4, "quiet": "11:00-20:00"}  # AT is within them


async def test_what_waits_for_the_end_of_quiet_hours_has_its_own_attempts_from_then(world: Worlds) -> None:
    """Although one before it was urgent, and tried in vain: it need not be told as it was."""
    case = Attempts(world(), **QUIET)
    case.say(1, "critical")
    for _ in range(2):
        case.ends(taken=False)
        case.pause_ends()
    case.ends(taken=False)
    case.say(2)
    for attempt in range(4):
        assert case.under_way == []
        case.pause_ends()
        assert case.now >= AT.replace(hour=20) and case.under_way[0].notice.id == "m2", attempt
        case.ends(taken=attempt == 3)
    assert (case.told, case.timers, case.missing) == (["m2"], {}, [])


async def test_a_start_in_quiet_hours_tells_at_their_end_what_is_not_urgent_any_more(world: Worlds) -> None:
    case = Attempts(world(), **QUIET)
    case.say(1, "critical")
    case.ends(taken=False)
    case.say(2)
    case.starts_again()
    assert case.under_way == []
    case.pause_ends()
    assert case.now == AT.replace(hour=20)
    case.ends(taken=True)
    assert case.missing == []


async def test_what_is_urgent_still_beside_a_request_does_not_wait_for_the_end_of_quiet_hours(world: Worlds) -> None:
    case = Attempts(world(), **QUIET)
    case.say(1, "critical", stage="failed")
    case.ends(taken=False)
    case.say(2, "warning", stage="asked", beside="failed")
    assert [one.notice.id for one in case.under_way] == ["m2"]
    case.ends(taken=True)
    case.say(3, "warning", stage="lapsed", beside="failed")
    assert case.under_way == [], "they know that it failed"


async def test_what_comes_after_a_digest_that_failed_is_not_tried_before_it_is_due(world: Worlds) -> None:
    case = Attempts(world(), digest_s=3600.0)
    case.say(1)
    case.say(2)
    case.pause_ends()
    case.ends(taken=False)
    case.say(3)
    case.pause_ends()
    assert case.now == AT.replace(hour=14)
    assert {one.id for one in case.under_way[0].of} == {"m1", "m2", "m3"}


async def test_the_end_of_an_outage_is_told_at_a_start_though_the_clock_was_set_back_meanwhile(world: Worlds) -> None:
    there, sink = world(), FakeSink("mine")
    now = there.slurm.clock.now()
    since = now - timedelta(minutes=5)
    there.store.record_notice(store_unwritable(since, "no space", now + timedelta(days=1)), "mine", delivered=True)
    there.store.record_notice(over := store_writable_again(since, now), "mine", delivered=False)
    daemon = Daemon(there, [sink], settings=with_channels(mine={}))
    await daemon.start()
    await daemon.quiet()
    assert [one.id for one in sink.all] == [over.id]
