"""One notice for each incident and receiver, over failures and restarts of the daemon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World
from made_records import ended, incident, plan, step, verdict

from sentinel.engine import recovery
from sentinel.errors import Refused
from sentinel.model.records import (
    Cause,
    Incident,
    Notice,
    Outcome,
    Plan,
    Restart,
    Result,
    Scope,
    Step,
    StepKind,
    Verdict,
)

Worlds = Callable[..., World]
ABOUT = (incident(ended()), verdict(), plan(refusal="breaker"))


class Deaf(FakeSink):
    async def send(self, notice: Notice) -> None:
        self.fails += 1
        raise Refused("404")


async def _about(daemon: Daemon, happened: Incident, judged: Verdict, made: Plan) -> None:
    """Its people are due to be told."""
    daemon.state.put(happened)
    daemon.state.verdicts[happened.id], daemon.state.plans[happened.id] = judged, made
    await daemon.runner.timer_due(recovery.notice_timer(happened.id))


async def _tell(there: World, sinks: list[FakeSink], times: int = 1) -> Daemon:
    daemon = Daemon(there, sinks)
    await daemon.start()
    for _ in range(times):
        await _about(daemon, *ABOUT)
    await daemon.quiet()
    return daemon


async def test_each_receiver_once_however_often_it_is_told_and_started(world: Worlds) -> None:
    there, sinks = world(), [FakeSink("a"), FakeSink("b")]
    await _tell(there, sinks, times=3)
    await _tell(there, sinks, times=2)
    assert [len(sink.got) for sink in sinks] == [1, 1]
    assert sinks[0].got[0].incident == "inc1"


async def test_receiver_that_answers_later_gets_it(world: Worlds) -> None:
    there, sink = world(), FakeSink(fails=2)
    daemon = await _tell(there, [sink])
    assert len(sink.got) == 1 and "notice-not-delivered" in daemon.said
    assert daemon.telemetry.registry.get_sample_value("sentinel_alerts_total", {"result": "delivered"}) == 1.0


async def test_what_was_not_delivered_is_sent_after_the_next_start(world: Worlds) -> None:
    there, sink = world(), FakeSink(fails=3)
    daemon = await _tell(there, [sink])
    assert sink.got == [] and len(there.store.undelivered()) == 1
    assert daemon.telemetry.registry.get_sample_value("sentinel_alerts_total", {"result": "failed"}) == 1.0
    await _tell(there, [sink])
    assert len(sink.got) == 1 and there.store.undelivered() == []


async def test_receiver_that_refuses_is_not_asked_again_and_again(world: Worlds) -> None:
    there, deaf, other = world(), Deaf("deaf"), FakeSink()
    daemon = await _tell(there, [deaf, other])
    assert deaf.fails == 1 and len(other.got) == 1 and "notice-refused" in daemon.said


async def test_receiver_that_is_no_longer_there_is_left_out(world: Worlds) -> None:
    there, other = world(), FakeSink("other")
    await _tell(there, [FakeSink("old", fails=9), other])
    daemon = Daemon(there, [other])
    await daemon.start()
    await daemon.quiet()
    assert len(other.got) == 1, "it has heard of it"


async def test_one_breaker_is_one_message_also_after_a_start_and_the_next_breaker_another(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = await _tell(there, [sink])
    for name in ("inc2", "inc3"):
        await _about(daemon, incident(ended(), id=name), verdict(), plan(incident=name, refusal="breaker"))
    await daemon.quiet()
    again = await _tell(there, [sink])
    await _about(again, incident(ended(), id="inc4"), verdict(), plan(incident="inc4", refusal="breaker"))
    await again.quiet()
    assert [notice.incident for notice in sink.got] == ["inc1"]
    there.slurm.clock.advance(61.0)
    await _about(again, incident(ended(), id="inc5"), verdict(), plan(incident="inc5", refusal="breaker"))
    await again.quiet()
    assert [notice.incident for notice in sink.got] == ["inc1", "inc5"]


async def test_jobs_frozen_by_the_breaker_of_hangs_are_one_message_beside_that_of_nodes(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = await _tell(there, [sink])
    for name in ("inc2", "inc3", "inc4"):
        refused = plan(incident=name, refusal="hang-breaker")
        await _about(daemon, incident(ended(), id=name), verdict(), refused)
    await daemon.quiet()
    assert [notice.incident for notice in sink.got] == ["inc1", "inc2"]


STORAGE = verdict(Cause.FILESYSTEM_STORAGE, scope=Scope.CLUSTER, restart=Restart.RESUME)
GOES_ON = (step(StepKind.REQUEUE_HOLD, job=101, attempt=0), step(StepKind.RELEASE, job=101, attempt=0))


async def _shared(
    daemon: Daemon, name: str, *steps: Step, found: Verdict = STORAGE, job: int | None = 101, **more: Any
) -> None:
    await _about(daemon, incident(ended(), id=name, job=job), found, plan(*steps, incident=name, **more))
    await daemon.quiet()


async def test_what_many_jobs_share_is_told_once_also_after_a_start(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await _shared(daemon, "signal", job=None)
    for name in ("inc2", "inc3", "inc2"):
        await _shared(daemon, name, *GOES_ON)
    again = Daemon(there, [sink])
    there.slurm.clock.advance(1000.0)
    await _shared(again, "inc2", *GOES_ON)  # it is over
    assert [notice.incident for notice in sink.got] == ["signal"]
    assert daemon.said.count("notice-joined") == 2
    await _shared(again, "inc4", *GOES_ON)
    assert [notice.incident for notice in sink.got] == ["signal", "inc4"], "another time"


@pytest.mark.parametrize(
    ("steps", "found", "more"),
    [
        ((step(StepKind.HOLD, job=101, attempt=0),), STORAGE, {}),
        ((), STORAGE, {}),
        (GOES_ON, STORAGE, {"observe_only": True}),
        ((), STORAGE, {"refusal": "drain-budget"}),
        (GOES_ON, verdict(Cause.FILESYSTEM_STORAGE, scope=Scope.NODE), {}),
        (GOES_ON, verdict(Cause.NETWORK_FABRIC, scope=Scope.CLUSTER), {}),
        (GOES_ON, verdict(Cause.FILESYSTEM_STORAGE, scope=Scope.CLUSTER, drain=["n1"]), {}),
    ],
)
async def test_whoever_does_not_go_on_by_the_same_fault_is_told_of_his_own(
    world: Worlds, steps: tuple[Step, ...], found: Verdict, more: dict[str, Any]
) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await _shared(daemon, "signal", job=None)
    await _shared(daemon, "inc2", *steps, found=found, **more)
    assert [notice.incident for notice in sink.all] == ["signal", "inc2"]


async def test_what_joined_and_was_left_to_another_incident_is_not_told_of_by_the_next_daemon(world: Worlds) -> None:
    """Nothing of its thread was sent, so that no thread of it is stored; the next daemon told of a restart that was over."""
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await _shared(daemon, "signal", job=None)
    await _shared(daemon, "inc2", *GOES_ON)
    again, left = Daemon(there, [sink]), step(StepKind.CONFIRM, job=101, attempt=0)
    again.state.ledger.intend("inc2", left, there.slurm.clock.now())
    other = {"recovered_by": "inc3"}
    again.state.ledger.record("inc2", Outcome(left, Result.FAILED, there.slurm.clock.now(), "left to inc3", other))
    await _shared(again, "inc2", *GOES_ON, left)
    assert [notice.incident for notice in sink.all] == ["signal"]


async def test_what_joined_and_asks_for_nothing_is_not_told_of_by_the_next_daemon(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    for name in ("signal", "inc2"):
        await _shared(daemon, name, job=None)
    there.slurm.clock.advance(1000.0)
    await _shared(Daemon(there, [sink]), "inc2", job=None)
    assert [notice.incident for notice in sink.all] == ["signal"]


async def test_a_job_that_could_not_be_restarted_after_all_is_told_of(world: Worlds) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await _shared(daemon, "signal", job=None)
    await _shared(daemon, "inc2", *GOES_ON)
    daemon.state.ledger.intend("inc2", GOES_ON[1], there.slurm.clock.now())
    failed = Outcome(GOES_ON[1], Result.FAILED, there.slurm.clock.now(), "Slurm does not release it")
    daemon.state.ledger.record("inc2", failed)
    await _shared(daemon, "inc2", *GOES_ON)
    assert [notice.incident for notice in sink.all] == ["signal", "inc2"]


async def _array(there: World, sink: FakeSink, count: int, *, user: str = "ada", first: int = 0, **judged: Any) -> None:
    """So many jobs of one user that fail alike, each with an incident of its own."""
    daemon = Daemon(there, [sink])
    await daemon.start()
    for number in range(first, first + count):
        job = there.slurm.submit(nodes=1, user=user, comment="")
        await daemon.fleets.take()
        there.slurm.end(job, exit_code=1)
        about = incident(ended(job), id=f"{user}{number}", job=job)
        made = plan(refusal="not-opted-in", incident=about.id)
        await _about(daemon, about, verdict(Cause.USER_CODE, **{"drain": (), **judged}), made)
    await daemon.quiet()
    assert daemon.bugs() == 0, daemon.said


async def test_an_array_of_failing_jobs_sends_a_few_notices(world: Worlds) -> None:
    there, sink = world(nodes=8), FakeSink()
    await _array(there, sink, 15)
    assert [notice.incident for notice in sink.got] == [f"ada{number}" for number in range(10)]
    texts = [sink.got[-1].body, *(str(sink.got[-1].data[key]) for key in ("owner_text", "operator_text"))]
    assert all("no more notices" in text and "--user ada --cause user_code" in text for text in texts)
    assert not any("no more notices" in notice.body for notice in sink.got[:-1])
    (stands,) = cast(list[str], sink.got[9].data["stands"])
    assert stands in sink.got[9].body
    await _array(there, sink, 2, first=20)  # nor does a daemon that was started again
    await _array(there, sink, 2, user="bob")  # and others are told
    assert [notice.incident for notice in sink.got[10:]] == ["bob0", "bob1"]
    there.slurm.clock.advance(3601.0)
    await _array(there, sink, 1, first=30)
    assert sink.got[-1].incident == "ada30"


async def test_of_a_drained_node_people_are_always_told(world: Worlds) -> None:
    there, sink = world(nodes=8), FakeSink()
    await _array(there, sink, 12, drain=("n1",))
    assert len(sink.got) == 12
