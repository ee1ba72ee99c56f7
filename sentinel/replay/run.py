"""Drives the engine over a recording, on the recording's own time.

What only Slurm or the nodes knew is rebuilt from the recording: a node is there from the start; a job is there while an
attempt of it ran; a node that the replay drains is out until an attempt starts on it again. Questions to nodes are answered
by the evidence that came of them. A step of a plan ends as the recorded step of the same kind and target did, or succeeds.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.config.rules import Rules
from sentinel.config.settings import Settings
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import Engine
from sentinel.engine.engine import HOUSEKEEPING
from sentinel.engine.events import EffectCompleted, Event, EvidenceReceived, FleetObserved, TimerDue
from sentinel.engine.state import State
from sentinel.engine.transition import AskNodes, CarryOutStep, ObserveFleet, QueryMetrics, StartTimer, Transition
from sentinel.errors import SentinelError
from sentinel.model.changes import AttemptSeen, IncidentChanged, PlanMade, VerdictReached
from sentinel.model.recording import RecordedAttempt, RecordedIncident, Recording
from sentinel.model.records import (
    STOPS,
    Fleet,
    Incident,
    JobView,
    Kind,
    NodeView,
    Outcome,
    Plan,
    Result,
    Scalar,
    Step,
    StepKind,
    Task,
    Verdict,
)
from sentinel.text import names

STEP_S = 0.5  # a step without a recorded outcome takes this long: what a request to slurmctld takes
QUIET = timedelta(
    hours=1
)  # after the last recorded event: what still waits then waits for something that was not recorded
FORGOTTEN = timedelta(hours=1)  # after its end Slurm no longer lists a job: MinJobAge and the time to requeue it
HOUSEKEEPING_EVERY = timedelta(minutes=1)  # what is over is forgotten, as in the live daemon, which does it every 10 s
LOOKS = timedelta(seconds=10)  # the live daemon's next snapshot, before it forgets what proved a node good
ANSWER_S = 3.0  # nodes answer within it; what they answered is in the recording and arrives at its own time
# Of one step of one incident: a job that waits for months has its exclusions written some dozens of times
MOST_TIMES = 500
PARTITION = "recorded"  # of nodes on which no recorded attempt ran
_OPTED_IN = '{"sentinel": {"restart": true}}'


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the present rules and policy make of one incident."""

    incident: Incident
    verdict: Verdict
    plan: Plan


class Replay:
    """One run over one recording."""

    def __init__(self, recording: Recording, *, rules: Rules, settings: Settings) -> None:
        self._recording = recording
        view = ClusterView()
        self._state = State(rules=rules, settings=settings, cluster=view, onsets=OnsetTracker(view, settings.judgement))
        self._engine = Engine(self._state)
        self._past = PastCluster(recording)
        self._queue: list[tuple[datetime, int, Event]] = []
        self._number = itertools.count()
        self._timers: dict[str, datetime] = {}
        self._incidents: dict[str, Incident] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._plans: dict[str, Plan] = {}
        self._seen: dict[tuple[int, int], RecordedAttempt] = {}
        self._carried_out: Counter[tuple[object, ...]] = Counter()

    def run(self, progress: Callable[[int], None] = lambda _: None) -> list[Replayed]:
        """Returns what is judged now, in order of time. ``progress`` is told of each item of evidence that is through.

        Raises SentinelError where it would not end.
        """
        for item in self._recording.evidence:
            self._add(item.seen_at, EvidenceReceived(item.seen_at, (item,)))
        for at in self._past.changes:
            self._add(at, FleetObserved(at, Fleet(at, {}, {})))  # looked at when it is due
        recorded = sorted(at for at, _, _ in self._queue)
        housekept = recorded[0] if recorded else None
        while self._queue:
            at, _, event = heapq.heappop(self._queue)
            if isinstance(event, TimerDue) and self._timers.get(event.timer) != at:
                continue  # replaced by a later one
            passed = bisect_right(recorded, at)
            if not recorded or at - recorded[passed - 1] > QUIET:
                if passed < len(recorded) and isinstance(event, TimerDue):
                    self._timers[event.timer] = recorded[passed]
                    self._add(recorded[passed], event)
                continue
            if isinstance(event, FleetObserved):  # with what the replay itself has drained by now
                event = FleetObserved(at, self._past.fleet(at))
            self._handle(event)
            if isinstance(event, EvidenceReceived):
                progress(1)
                if any(item.kind == Kind.DIAG_PASSED for item in event.items):
                    self._add(at + LOOKS, FleetObserved(at + LOOKS, Fleet(at + LOOKS, {}, {})))
            if housekept is None or at - housekept >= HOUSEKEEPING_EVERY:
                housekept = at
                self._handle(TimerDue(at, HOUSEKEEPING))
                self._state.cluster.forget(at, self._state.settings.judgement.group_s)
        made = (name for name in self._verdicts if name in self._plans and name in self._incidents)
        found = [Replayed(self._incidents[name], self._verdicts[name], self._plans[name]) for name in made]
        return sorted(found, key=lambda replayed: replayed.incident.opened_at)

    @property
    def begun(self) -> list[RecordedAttempt]:
        """Attempts that incidents are about and that the recording does not have, as a daemon would have recorded them: each
        ran until the replay's Slurm forgot its job."""
        recorded = self._recording.attempts
        known = {(attempt.job, attempt.attempt) for attempt in recorded}
        ends = {attempt.job: attempt.ended_at for attempt in recorded}
        return [
            dataclasses.replace(
                attempt, ended_at=end + FORGOTTEN if (end := ends.get(job)) else None, state="completed"
            )
            for (job, number), attempt in self._seen.items()
            if (job, number) not in known
        ]

    def _see(self, job: JobView) -> None:
        if job.started_at is not None and job.nodes:
            self._seen[job.id, job.restarts] = RecordedAttempt(
                job.id, job.restarts, job.started_at, job.nodes, job.user, job.partition, job.name
            )

    def _handle(self, event: Event) -> None:
        self._state.housekept_at = event.at  # the recorded daemon did not stand still where nothing happened
        self._apply(event.at, self._engine.handle(event))

    def _add(self, at: datetime, event: Event) -> None:
        heapq.heappush(self._queue, (at, next(self._number), event))

    def _apply(self, now: datetime, out: Transition) -> None:
        for change in out.changes:
            match change:
                case IncidentChanged():
                    self._incidents[change.incident.id] = change.incident
                case VerdictReached():
                    self._verdicts[change.incident] = change.verdict
                case PlanMade():
                    self._plans[change.plan.incident] = change.plan
                case AttemptSeen():
                    self._see(change.job)
        for effect in out.effects:
            match effect:
                case StartTimer():
                    due = max(effect.due, now)
                    self._timers[effect.id] = due
                    self._add(due, TimerDue(due, effect.id))
                case ObserveFleet():
                    self._add(now, FleetObserved(now, self._past.fleet(now)))
                    self._add(now, EffectCompleted(now, effect.id))
                case AskNodes() | QueryMetrics():
                    answered = now + timedelta(seconds=ANSWER_S)
                    self._add(answered, EffectCompleted(answered, effect.id))
                case CarryOutStep():
                    self._count(effect.task)
                    ended, outcome = self._past.outcome(effect.task, now)
                    self._add(ended, EffectCompleted(ended, effect.id, outcome=outcome))

    def _count(self, task: Task) -> None:
        """Raises SentinelError where a step is done again and again: outcomes that were recorded need not fit what this
        replay asks for, and a plan that they never satisfy would go on for ever."""
        step = task.step
        key = (task.incident.id, step.kind, step.node, step.job)
        self._carried_out[key] += 1
        if self._carried_out[key] > MOST_TIMES:
            of = f"of job {step.job}" if step.job is not None else step.node
            raise SentinelError(
                f"step {step.kind} {of} in incident {task.incident.id} was done {MOST_TIMES} times, and what was "
                "recorded of it never satisfies what is asked for now: this replay does not end",
                fix="please report it, with a bundle of that incident; a later --since leaves it out",
            )


class PastCluster:
    """Nodes and jobs at any time of the recording, and how steps ended then."""

    def __init__(self, recording: Recording) -> None:
        attempts = (*recording.attempts, *_attempts_not_recorded(recording))
        self._attempts = sorted(attempts, key=lambda attempt: attempt.started_at)
        self._begun = 0  # so many of them have begun by the newest snapshot
        self._newest: dict[int, RecordedAttempt] = {}  # by job
        self._partitions: dict[str, set[str]] = defaultdict(set)
        for attempt in self._attempts:
            for node in attempt.nodes:
                self._partitions[node].add(attempt.partition or PARTITION)
        named = {item.where.node for item in recording.evidence} | {
            n for i in recording.incidents for n in i.incident.nodes
        }
        names = sorted({name for name in named if name} | set(self._partitions))
        self._node_views = {name: self._node(name, busy=False, drained=False) for name in names}
        self._busy: set[str] = set()
        self._were_drained: frozenset[str] = frozenset()
        self._drained: dict[str, datetime] = {}
        self._stopped: dict[int, int] = {}  # job -> attempt that the replay ended
        self._released: dict[int, datetime] = {}
        self._excluded: dict[int, frozenset[str]] = {}  # by job: nodes on which the replay lets it start no more
        self._not_wanted = _jobs_that_did_not_ask(recording.incidents)
        self._outcomes: dict[tuple[object, ...], list[tuple[datetime, Outcome]]] = defaultdict(list)
        for recorded in recording.incidents:
            for step in recorded.steps:
                if step.outcome is not None:
                    key = (step.step.kind, step.step.node, step.step.job, step.step.attempt)
                    self._outcomes[key].append((step.intended_at, step.outcome))

    @property
    def changes(self) -> Iterator[datetime]:
        """When an attempt started or ended."""
        for attempt in self._attempts:
            yield attempt.started_at
            if attempt.ended_at is not None:
                yield max(attempt.ended_at, attempt.started_at)

    def fleet(self, at: datetime) -> Fleet:
        """Slurm's snapshot at a time; each call is at the time of the one before or later."""
        while self._begun < len(self._attempts) and self._attempts[self._begun].started_at <= at:
            attempt = self._attempts[self._begun]
            self._begun += 1
            self._newest[attempt.job] = attempt
            for node in attempt.nodes:
                if self._drained.get(node, attempt.started_at) < attempt.started_at:
                    del self._drained[node]  # it was given work again, so it was back in service
        busy: set[str] = set()
        jobs = {}
        for attempt in tuple(self._newest.values()):
            over = attempt.ended_at is not None and attempt.ended_at <= at
            if over and attempt.ended_at is not None and at - attempt.ended_at > FORGOTTEN:
                del self._newest[attempt.job]
                continue
            if not over:
                busy.update(attempt.nodes)
            jobs[attempt.job] = (
                self._job(attempt, over)
                if attempt.attempt > self._stopped.get(attempt.job, -1)
                else (self._restarted(attempt))
            )
        return Fleet(at, self._views(busy), jobs)

    def _views(self, busy: set[str]) -> Mapping[str, NodeView]:
        """All nodes; made anew are only those that changed, since months have a hundred thousand snapshots."""
        drained = frozenset(self._drained)
        for name in (busy ^ self._busy) | (drained ^ self._were_drained):
            self._node_views[name] = self._node(name, name in busy, name in drained)
        self._busy, self._were_drained = busy, drained
        return dict(self._node_views)

    def _node(self, name: str, busy: bool, drained: bool) -> NodeView:
        return NodeView(
            name,
            "allocated" if busy else "idle",
            flags=frozenset({"drain"}) if drained else frozenset(),
            reason="sentinel: drained in this replay" if drained else "",
            partitions=tuple(sorted(self._partitions.get(name, {PARTITION}))),
        )

    def _job(self, attempt: RecordedAttempt, over: bool) -> JobView:
        return JobView(
            id=attempt.job,
            state=(attempt.state or "completed") if over else "running",
            user=attempt.user or "",
            name=attempt.name or "",
            partition=attempt.partition or PARTITION,
            nodes=attempt.nodes,
            batch_host=attempt.nodes[0] if attempt.nodes else "",
            restarts=attempt.attempt,
            comment="" if attempt.job in self._not_wanted else _OPTED_IN,
            node_count=len(attempt.nodes) or None,
            requeue=True,
            started_at=attempt.started_at,
            ended_at=attempt.ended_at if over else None,
        )

    def _restarted(self, attempt: RecordedAttempt) -> JobView:
        """A job that the replay stopped and of which no later attempt is recorded yet: held, or running again."""
        job = self._job(attempt, over=False)
        restarts, at = self._stopped[attempt.job] + 1, self._released.get(attempt.job)
        if at is None:
            return dataclasses.replace(job, state="pending", nodes=(), restarts=restarts, held=True, started_at=None)
        out = {*self._drained, *self._excluded.get(attempt.job, ())}
        nodes = tuple(name for name in job.nodes if name not in out)  # which others it would get is not known
        return dataclasses.replace(job, restarts=restarts, started_at=at, nodes=nodes)

    def outcome(self, task: Task, now: datetime) -> tuple[datetime, Outcome]:
        """When and how the step ends: as the recorded one of the same kind and target that is nearest in time."""
        step = task.step
        known = self._outcomes.get((step.kind, step.node, step.job, step.attempt), [])
        intended, outcome = min(known, key=lambda pair: abs(pair[0] - now), default=(now, None))
        took = outcome.at - intended if outcome is not None else timedelta(seconds=STEP_S)
        ended = now + max(took, timedelta(milliseconds=1))
        data: Mapping[str, Scalar] = outcome.data if outcome is not None else {}
        result = outcome.result if outcome is not None and outcome.result is not Result.NOT_KNOWN else Result.DONE
        reason = outcome.reason if outcome is not None else "replayed"
        if step.kind in (StepKind.DRAIN, StepKind.DOWN) and step.node is not None and result is Result.DONE:
            self._drained[step.node] = now
        if step.job is not None and result is Result.DONE:
            if step.kind in STOPS:
                self._stopped[step.job] = step.attempt or 0
                self._released.pop(step.job, None)
            elif step.kind is StepKind.EXCLUDE:
                self._excluded[step.job] = frozenset(names(step.data.get("nodes")))
                data = _as_asked(step, data)
            elif step.kind is StepKind.RELEASE:
                self._released[step.job] = ended
        return ended, Outcome(step, result, ended, reason, data)


def _as_asked(step: Step, recorded: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """What writing a job's exclusions comes to: what its user had excluded is recorded, and the step names ours of now."""
    if "excluded" not in recorded:
        return recorded
    theirs = {*names(recorded["excluded"])} - {*names(recorded.get("added"))}
    ours = {*names(step.data.get("nodes"))}
    return {**recorded, "excluded": ",".join(sorted(theirs | ours)), "added": ",".join(sorted(ours - theirs))}


def _attempts_not_recorded(recording: Recording) -> Iterator[RecordedAttempt]:
    """Of jobs that incidents name and of which no attempt is kept: the daemon first saw them when they were over."""
    known = {(attempt.job, attempt.attempt) for attempt in recording.attempts}
    ended = {item.where.job: item.at for item in recording.evidence if item.kind == Kind.JOB_ENDED}
    ends: dict[int, list[datetime]] = defaultdict(list)  # by job: of the attempts that are kept
    for attempt in recording.attempts:
        if attempt.ended_at is not None:
            ends[attempt.job].append(attempt.ended_at)
    for recorded in recording.incidents:
        incident = recorded.incident
        if incident.job is None or (incident.job, incident.attempt or 0) in known:
            continue
        before = max((end for end in ends[incident.job] if end <= incident.opened_at), default=None)
        hour = incident.opened_at - timedelta(hours=1)
        started = max(hour, before) if before is not None else hour
        yield RecordedAttempt(
            incident.job, incident.attempt or 0, started, incident.nodes, recorded.user,
            ended_at=ended.get(incident.job), state="failed",
        )  # fmt: skip


def _jobs_that_did_not_ask(incidents: tuple[RecordedIncident, ...]) -> set[int]:
    """Jobs whose recorded plans say that they did not ask to be restarted; the comment itself is not recorded."""
    plans = [(recorded.incident.job, recorded.plan) for recorded in incidents if recorded.plan is not None]
    return {job for job, plan in plans if job is not None and "did not ask to be restarted" in plan.explanation}
