"""What a daemon judged and did is judged and planned the same when its store is replayed; with other rules it is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from in_memory.daemon import RULES, SETTINGS, Daemon, FakeSink, answer
from in_memory.world import World
from made_records import ended, evidence, incident, plan, step, verdict

from sentinel.adapters.store.recording import LOOK_BACK
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.errors import SentinelError
from sentinel.model.recording import RecordedAttempt, RecordedIncident, Recording
from sentinel.model.records import Evidence, Incident, Kind, Outcome, Plan, Source, StepKind, Task
from sentinel.replay.compare import Comparison, compare
from sentinel.replay.run import PastCluster, Replay, Replayed

Worlds = Callable[..., World]

BUS = evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid (PCI:0000:3b:00): 79, pid=7")
ERROR = dataclasses.replace(
    evidence("x", source=Source.JOB_LOG, job=101, attempt=0, text="IndexError: list index out of range", at_s=0.5),
    rule="python-bug",
)
STORM = [
    evidence(
        Kind.XID, node=f"n{n}", data={"xid": 79, "pci": "0000:3b:00"}, text=f"NVRM: Xid (PCI:0000:3b:00): 79, n{n}"
    )
    for n in range(3, 9)
]


async def recorded(world: World, items: list[Evidence]) -> Recording:
    daemon = Daemon(world, [FakeSink()])
    await daemon.start()
    assert await daemon.observe(items)
    await daemon.quiet()
    assert daemon.bugs() == 0, daemon.said
    now = world.slurm.clock.now()
    return world.store.recording(since=now - 10 * LOOK_BACK, until=now + LOOK_BACK)


def replayed(recording: Recording, settings: object = SETTINGS) -> list[Comparison]:
    return compare(recording, Replay(recording, rules=RULES, settings=settings).run())  # type: ignore[arg-type]


@pytest.mark.parametrize("case", ["gpu", "user", "storm"])
async def test_the_same_rules_judge_the_same(world: Worlds, case: str) -> None:
    there = world(nodes=20)
    if case == "user":
        there.slurm.end(there.job, exit_code=1)
    items = {"gpu": [BUS], "user": [ERROR, ended(101)], "storm": STORM}[case]
    recording = await recorded(there, items)
    found = replayed(recording)
    assert [(item.incident, item.reasons) for item in found] == [(i.incident.id, ()) for i in recording.incidents]
    assert len(found) == (len(STORM) if case == "storm" else 1)
    assert all(
        item.was is not None and item.was["cause"] == item.now["cause"] for item in found if item.now is not None
    )


NONE = {"excluded": "", "added": ""}


async def with_other_nodes(world: World) -> Recording:
    """Of a job that left n1; there are others that it may have instead, as another job shows."""
    recording = await recorded(world, [BUS])
    nodes, (first, *_) = tuple(f"n{number}" for number in range(3, 21)), recording.attempts
    other = dataclasses.replace(first, job=7, nodes=nodes, ended_at=first.started_at + timedelta(seconds=1))
    return dataclasses.replace(recording, attempts=(other, *recording.attempts))


def without_exclusions(recording: Recording) -> Recording:
    """As if its own list had named n1, so that its exclusion was taken back."""
    (one,) = recording.incidents
    steps = (
        dataclasses.replace(step, outcome=dataclasses.replace(step.outcome, data={**step.outcome.data, **NONE}))
        if step.step.kind is StepKind.EXCLUDE and step.outcome is not None
        else step
        for step in one.steps
    )
    return dataclasses.replace(recording, incidents=(dataclasses.replace(one, steps=tuple(steps)),))


async def test_exclusions_are_those_that_the_replay_asks_for_not_the_recorded_ones(world: Worlds) -> None:
    recording = without_exclusions(await with_other_nodes(world(nodes=20)))
    (only,) = replayed(recording)
    assert only.same, only.reasons


async def test_a_replay_that_would_not_end_says_so(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = await with_other_nodes(world(nodes=20))
    outcome = PastCluster.outcome

    def excluded_nothing(past: PastCluster, task: Task, now: datetime) -> tuple[datetime, Outcome]:
        ended, made = outcome(past, task, now)
        return ended, dataclasses.replace(made, data=NONE) if task.step.kind is StepKind.EXCLUDE else made

    monkeypatch.setattr(PastCluster, "outcome", excluded_nothing)
    with pytest.raises(SentinelError, match=r"exclude of job 101 .* does not end"):
        replayed(recording)


async def test_another_limit_shows_what_it_would_have_changed(world: Worlds) -> None:
    recording = await recorded(world(nodes=20), [BUS])
    strict = dataclasses.replace(SETTINGS, limits=dataclasses.replace(Limits(), drain_count=0, drain_fraction=0.0))
    (only,) = replayed(recording, strict)
    assert not only.same and only.now is not None
    assert only.now["refusal"] == "drain-budget"
    assert any(reason.startswith("refusal: none then, drain-budget now") for reason in only.reasons)


async def test_another_mode_shows_what_it_would_have_asked_for_or_only_observed(world: Worlds) -> None:
    recording = await recorded(world(nodes=20), [BUS])
    careful = dataclasses.replace(SETTINGS, modes=Modes(default=Mode("suggest", "observe")))
    (only,) = replayed(recording, careful)
    (reason,) = only.reasons
    assert reason == "held back by the mode: none then, drain n1 (approval), restart 101 (observe) now"


async def test_what_a_person_approved_is_asked_for_in_both(world: Worlds) -> None:
    """By the same policy it was asked for then, too; by another one that asks it was not."""
    there = world(nodes=20)
    careful = dataclasses.replace(SETTINGS, modes=Modes(default=Mode("suggest", "suggest")))
    daemon = Daemon(there, [FakeSink()], settings=careful)
    await daemon.start()
    assert await daemon.observe([BUS])
    await daemon.quiet()
    await answer(daemon)
    now = there.slurm.clock.now()
    recording = there.store.recording(since=now - 10 * LOOK_BACK, until=now + LOOK_BACK)
    (one,) = recording.incidents
    assert one.approved == ("drain n1", "restart 101")
    (only,) = replayed(recording, careful)
    assert only.same, only.reasons
    (only,) = replayed(dataclasses.replace(recording, incidents=(dataclasses.replace(one, approved=()),)), careful)
    assert only.reasons == ("held back by the mode: none then, drain n1 (approval), restart 101 (approval) now",)


async def test_evidence_that_nobody_judged_is_shown_when_it_is_judged_now(world: Worlds) -> None:
    recording = await recorded(world(nodes=20), [BUS])
    (only,) = replayed(dataclasses.replace(recording, incidents=()))
    assert only.was is None and only.now is not None and only.now["drain"] == ["n1"]


def test_snapshots_of_the_past_are_those_that_each_moment_alone_would_give() -> None:
    """They are taken one after another, each from what changed; one that starts anew sees the same."""
    at = datetime(2026, 3, 1, tzinfo=UTC)
    attempts = tuple(
        RecordedAttempt(
            job=job, attempt=number, started_at=at + timedelta(minutes=40 * number + job), nodes=(f"n{job}", f"n{number}"),
            ended_at=at + timedelta(minutes=40 * number + job + 30), state="failed",
        )
        for job in range(3) for number in range(4)
    )  # fmt: skip
    recording = Recording(attempts=attempts)
    stepwise = PastCluster(recording)
    for minute in range(0, 400, 7):
        moment = at + timedelta(minutes=minute)
        assert stepwise.fleet(moment) == PastCluster(recording).fleet(moment)


async def test_an_incident_whose_evidence_is_gone_differs(world: Worlds) -> None:
    recording = await recorded(world(nodes=20), [BUS])
    (only,) = replayed(dataclasses.replace(recording, evidence=()))
    assert only.now is None and not only.same


AT = datetime(2026, 3, 1, tzinfo=UTC)


def lost(node: str, after_min: float) -> Evidence:
    at = AT + timedelta(minutes=after_min)
    return dataclasses.replace(
        BUS, id=f"{node}{after_min}", at=at, seen_at=at, where=dataclasses.replace(BUS.where, node=node)
    )


def judged(recording: Recording) -> tuple[Replay, Recording]:
    """What a daemon would have recorded that did what the replay does."""
    replay = Replay(recording, rules=RULES, settings=SETTINGS)
    incidents = [
        RecordedIncident(one.incident, tuple(item.id for item in one.incident.evidence), "ada", one.verdict, one.plan)
        for one in replay.run()
    ]
    return replay, dataclasses.replace(recording, incidents=tuple(incidents))


def test_a_replay_of_what_a_replay_judged_and_began_finds_no_difference() -> None:
    """The job fails again in the attempt that the first replay began: on which nodes is known to nobody else."""
    nodes = tuple(f"n{number}" for number in range(8))
    first = RecordedAttempt(101, 0, AT, nodes, "ada", "train", "train", AT + timedelta(hours=2), "failed")
    idle = RecordedAttempt(7, 0, AT, tuple(f"m{number}" for number in range(40)), "bob", "train", "other")
    past = Recording((lost("n1", 30.0), lost("n2", 60.0)), (), (first, idle))
    replay, recording = judged(past)
    assert [item.incident.attempt for item in recording.incidents] == [0, 1]
    (begun,) = replay.begun
    assert (begun.job, begun.attempt, begun.nodes) == (101, 1, tuple(name for name in nodes if name != "n1"))
    again = dataclasses.replace(recording, attempts=(*recording.attempts, begun))
    assert [item.reasons for item in replayed(again)] == [(), ()]


def test_an_attempt_of_which_only_an_incident_is_kept_begins_after_the_one_before_it() -> None:
    first = RecordedAttempt(101, 0, AT, ("n1", "n2"), "ada", "train", "train", AT + timedelta(minutes=50), "failed")
    about = Incident("two", AT + timedelta(hours=1), AT + timedelta(hours=1), job=101, attempt=1, nodes=("n2",))
    past = PastCluster(Recording((), (RecordedIncident(about),), (first,)))
    restarts = [past.fleet(AT + timedelta(minutes=minute)).jobs[101].restarts for minute in (10, 49, 51)]
    assert restarts == [0, 0, 1]


async def test_what_was_decided_elsewhere_is_not_compared(world: Worlds) -> None:
    """A bundle of one incident has evidence of others beside it; that nothing was decided of that is not what it says."""
    recording = await recorded(world(nodes=20), STORM)
    first, *others = recording.incidents
    bare = tuple(RecordedIncident(one.incident, one.evidence) for one in others)
    found = replayed(dataclasses.replace(recording, incidents=(*bare, first)))
    assert [(item.incident, item.same) for item in found if item.decided] == [(first.incident.id, True)]
    rest = [item for item in found if not item.decided]
    assert {item.incident for item in rest} == {one.incident.id for one in others}
    assert all(item.was is None and item.now is not None and item.same for item in rest)


@pytest.mark.parametrize(
    ("made", "same"),
    [(plan(), True), (plan(step(StepKind.DRAIN, node="n1")), False), (plan(refusal="drain-budget"), False)],
    ids=["nothing", "a step", "a step that a limit forbids"],
)
def test_nothing_decided_then_and_nothing_done_now_is_the_same(made: Plan, same: bool) -> None:
    (only,) = compare(Recording(), [Replayed(incident(), verdict(), made)])
    assert (only.same, only.decided, only.was) == (same, True, None)
