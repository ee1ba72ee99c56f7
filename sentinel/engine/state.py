"""The engine's state between two events: plain records and dictionaries, no decisions.

What must survive a restart is also in the store: the engine returns each such change with the transition that makes it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sentinel.alerts import Thread
from sentinel.config.alerts import Channel
from sentinel.config.rules import Rules
from sentinel.config.settings import Settings
from sentinel.correlate.index import IncidentIndex
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.joined_saves import JoinedSaves
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.detect.own_host import OwnDelays
from sentinel.detect.slow_steps import SlowdownWatch
from sentinel.detect.used_ids import UsedIds
from sentinel.engine.backlog import Absence
from sentinel.engine.diagnostics.state import DiagnosticsState
from sentinel.engine.history import PastEvents
from sentinel.engine.ledger import Ledger
from sentinel.engine.node_return.put_back import SAVED, PutBack
from sentinel.engine.node_return.state import NodeReturns
from sentinel.engine.transition import DeliverNotice
from sentinel.engine.watch.state import WatchState
from sentinel.model.approvals import Answer
from sentinel.model.records import (
    LOST_WITHIN,
    NODE_STEPS,
    OURS,
    Evidence,
    Fleet,
    Incident,
    IncidentState,
    Kind,
    NodeView,
    Notice,
    Outcome,
    Plan,
    Result,
    Step,
    StepKind,
    Verdict,
)
from sentinel.model.stored import LEFT_RUNNING, left_running
from sentinel.policy import RefusedDrain, is_startable

# A held incident whose job Slurm no longer knows leaves memory this long after its last change: agents that were away
# deliver within hours, and each event costs more the more incidents are kept.
RESTS = timedelta(days=1)
KNOWN_EVIDENCE = 100_000  # ids: ten times a burst of the largest cluster; 20 MB


@dataclass(slots=True)
class Judging:
    """A judgement in progress: evidence is settling, or a Slurm snapshot or answers are awaited."""

    awaits: set[str] = field(default_factory=set)  # ids of effects
    asked: bool = False  # whether nodes and Prometheus were asked
    answers: list[Evidence] = field(default_factory=list)
    again: bool = False  # evidence arrived meanwhile: one more judgement follows
    news: set[str] = field(default_factory=set)  # ids of evidence that came since the last verdict


@dataclass(slots=True)
class Recovery:
    """Progress of carrying out one incident's plan."""

    under_way: Step | None = None
    beside: set[str] = field(default_factory=set)  # keys of node steps carried out while a job step is under way
    not_known: int = 0  # outcomes NOT_KNOWN in a row
    waits: bool = False  # for the retry timer
    looks: int = 0  # snapshots taken to confirm the restart


class KnownEvidence:
    """Ids of the newest evidence, to drop evidence that is delivered twice."""

    def __init__(self, ids: Iterable[str] = (), most: int = KNOWN_EVIDENCE) -> None:
        self._ids = OrderedDict.fromkeys(ids)
        self._most = most

    def add(self, identity: str) -> bool:
        """Remember this id; False if it was known."""
        if identity in self._ids:
            return False
        self._ids[identity] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
        return True

    def __contains__(self, identity: str) -> bool:
        return identity in self._ids

    def discard(self, identity: str) -> None:
        """Forget this id: what it stood for was not taken after all."""
        self._ids.pop(identity, None)


@dataclass(frozen=True, slots=True)
class DrainReason:
    """A reason that is being written on a drained node."""

    effect: str
    reason: str
    at: datetime


@dataclass(slots=True)
class DrainReasons:
    """Reasons written on nodes that a hook of Slurm drained, by node: a snapshot may still show the old one."""

    written: dict[str, str] = field(default_factory=dict)
    under_way: dict[str, DrainReason] = field(default_factory=dict)


class Places:
    """How many nodes of a fleet are alike for the budgets of drains, counted anew only where a node has changed."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[object, ...]] = Counter()
        self._seen: dict[str, tuple[NodeView, tuple[object, ...]]] = {}

    def counted(self, fleet: Fleet) -> dict[tuple[object, ...], int]:
        for name in self._seen.keys() - fleet.nodes.keys():
            self._counts[self._seen.pop(name)[1]] -= 1
        for name, node in fleet.nodes.items():
            before = self._seen.get(name)
            if before is not None and before[0] is node:
                continue
            ours = node.drained and node.reason.startswith(OURS)
            alike = (is_startable(node), ours, node.topology, node.partitions)
            self._seen[name] = (node, alike)
            self._counts[alike] += 1
            if before is not None:
                self._counts[before[1]] -= 1
        return {alike: count for alike, count in self._counts.items() if count}


@dataclass(slots=True)
class Compared:
    """What ``reconcile.conditions`` compares with: the last snapshot, and what each waiting plan was last asked about by."""

    nodes: dict[str, object] = field(default_factory=dict)
    jobs: dict[str, object] = field(default_factory=dict)  # by incident
    asked: dict[str, tuple[object, ...]] = field(default_factory=dict)  # by incident; missing: something has changed
    places: Places = field(default_factory=Places)


@dataclass(slots=True)
class State:
    rules: Rules
    settings: Settings
    cluster: ClusterView
    onsets: OnsetTracker
    receivers: tuple[str, ...] = ()  # of notices
    metrics: bool = False  # whether a Prometheus is configured
    incidents: dict[str, Incident] = field(default_factory=dict)  # open ones, candidates, and those closed lately
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    open_plans: set[str] = field(default_factory=set)  # ids of incidents whose plan is not finished
    judging: dict[str, Judging] = field(default_factory=dict)
    regrouped: list[Evidence] = field(default_factory=list)  # taken out of their incidents, to be grouped anew at once
    grouped_before: frozenset[str] = frozenset()  # evidence of the loaded incidents: a daemon before this grouped it
    recoveries: dict[str, Recovery] = field(default_factory=dict)
    carried_out: set[str] = field(default_factory=set)  # keys (in the ledger) of steps whose actions are under way
    ledger: Ledger = field(default_factory=Ledger)
    past: PastEvents = field(default_factory=PastEvents)
    known: KnownEvidence = field(default_factory=KnownEvidence)
    told: dict[str, Thread] = field(default_factory=dict)  # by incident: what people know of it
    left_out: set[str] = field(default_factory=set)  # ids of incidents of which nothing is told: their user had enough
    held_back: dict[str, list[Notice]] = field(default_factory=dict)  # by receiver: for its next digest
    # By thread and receiver, or digest: under way, or waiting for another attempt.
    deliveries: dict[str, DeliverNotice] = field(default_factory=dict)
    in_digest: dict[str, str] = field(default_factory=dict)  # by thread and receiver: the digest under way that has it
    behind: dict[str, list[Notice]] = field(default_factory=dict)  # by those: what waits for the end of that attempt
    standing: dict[str, dict[str, Notice]] = field(default_factory=dict)  # by receiver and thread: see ``repeat_due``
    repeated_at: datetime | None = None  # when they were sent again last
    paused: bool = False
    watching_since: datetime | None = None  # when this daemon started; None: from the beginning
    # Attempts that began before this daemon watched; None: no snapshot was taken yet.
    began_before: frozenset[tuple[int, int]] | None = frozenset()
    housekept_at: datetime | None = None  # the last housekeeping of this daemon
    judged_until: datetime | None = None  # as noted: evidence of later is looked for by the next daemon
    # Jobs and their attempts, put off by Sentinel before restarts of which an older copy of the store told nothing.
    left_stopped: set[tuple[int, int]] = field(default_factory=set)
    late_since: datetime | None = None  # as noted: older evidence that came late and may not be judged yet
    absence: Absence | None = None  # the last time for which this daemon was away
    answers: dict[str, tuple[Answer, ...]] = field(default_factory=dict)  # by incident: to requests for approval
    breaker_passed: set[str] = field(default_factory=set)  # ids of incidents that an operator let go on in spite of it
    judged_again: dict[str, datetime] = field(default_factory=dict)  # by waiting incident: when policy was last asked
    judge_first: set[str] = field(
        default_factory=set
    )  # waiting incidents that policy is to be asked about before others
    compared: Compared = field(default_factory=Compared)  # for those that wait
    spares_busy_until: datetime | None = None  # requests about spare nodes are under way, or were refused just now
    seen_drained: dict[str, datetime] = field(
        default_factory=dict
    )  # by drain (key in the ledger): newest snapshot with it
    seen_in_service: dict[str, datetime] = field(
        default_factory=dict
    )  # by drain: the first snapshot after it, and after all that showed it, with the node in service
    called_bad: set[str] = field(default_factory=set)  # nodes that their agent called bad
    called_good: dict[str, datetime] = field(default_factory=dict)  # and when it took that back
    taken_along: set[tuple[str, int, int]] = field(default_factory=set)  # incident, job, attempt: once is enough
    # by ``reconcile.jobs_on_bad_nodes``: incident, job, attempt
    on_bad_nodes: set[tuple[str, int, int]] = field(default_factory=set)
    refused_drains: dict[str, dict[str, RefusedDrain]] = field(default_factory=dict)  # by incident and node
    breakers_told: dict[str, Any] = field(default_factory=dict)  # by refusal: see ``notices.BREAKERS_TOLD``
    shared_told: dict[str, Any] = field(default_factory=dict)  # by cause: see ``notices.SHARED_TOLD``
    users_told: dict[str, list[str]] = field(default_factory=dict)  # see ``notices.USERS_TOLD``
    blind_since: datetime | None = None  # since when Slurm cannot be read; None while it can
    blind_told: datetime | None = None  # the ``blind_since`` of the notice that was sent; None if none was
    diagnostics: DiagnosticsState = field(default_factory=DiagnosticsState)
    drain_reasons: DrainReasons = field(default_factory=DrainReasons)
    returns: NodeReturns = field(default_factory=NodeReturns)
    put_back: PutBack = field(default_factory=PutBack)
    watch: WatchState = field(init=False)
    joined_saves: JoinedSaves = field(init=False)
    used_ids: UsedIds = field(default_factory=UsedIds)  # jobs whose ids other ones had before
    index: IncidentIndex = field(init=False)

    def __post_init__(self) -> None:
        self.index = IncidentIndex(self.incidents, self.cluster.nodes_of)
        self.joined_saves = JoinedSaves(self.cluster)
        delays = OwnDelays(2 * self.settings.daemon.heartbeat_lost_s)
        self.watch = WatchState(delays, SlowdownWatch(self.cluster))

    @property
    def window(self) -> timedelta:
        """The time within which evidence of one failure arrives (``judgement.group_s``)."""
        return timedelta(seconds=self.settings.judgement.group_s)

    def channel(self, receiver: str) -> Channel | None:
        """The settings of a receiver; None: a plain webhook."""
        return self.settings.alerts.channels.get(receiver)

    def judged(self, incident: Incident) -> Incident:
        """The incident as it is saved while a judgement is due: what no judgement has seen is nobody's in the store, so that
        a daemon that starts before it groups that anew."""
        under_way = self.judging.get(incident.id)
        if under_way is None or not under_way.news:
            return incident
        return dataclasses.replace(incident, evidence=tuple(i for i in incident.evidence if i.id not in under_way.news))

    def put(self, incident: Incident) -> None:
        """Add a new incident, or replace the one with this id."""
        before = self.incidents.get(incident.id)
        self.incidents[incident.id] = incident
        filed = (before.nodes, before.job, before.attempt) if before is not None else None
        if filed != (incident.nodes, incident.job, incident.attempt):
            self.index.add(incident)

    def drop(self, incident: str) -> None:
        self.index.remove(self.incidents.pop(incident))
        self.plans.pop(incident, None)
        self.verdicts.pop(incident, None)
        self.recoveries.pop(incident, None)
        self.judging.pop(incident, None)
        self.open_plans.discard(incident)
        self.told.pop(incident, None)
        self.left_out.discard(incident)
        self.breaker_passed.discard(incident)
        self.refused_drains.pop(incident, None)
        self.answers.pop(incident, None)
        self.judged_again.pop(incident, None)

    def forget_history(self, before: datetime, spared: Collection[str] = ()) -> None:
        """Drop held incidents that did not change since ``before``, but ``spared``: the store has deleted them."""
        for incident in list(self.incidents.values()):
            old = incident.state is IncidentState.HELD and incident.updated_at < before
            if old and incident.id not in self.open_plans and incident.id not in spared:
                self.drop(incident.id)

    def unfinished(self) -> set[str]:
        """Incidents of which something is still to be done or taken back, however long ago they changed."""
        return self.open_plans | self._excluding() | self._holding()

    def forget(self, now: datetime) -> None:
        """Drop incidents without a plan and closed incidents, once they are older than ``window``, and held ones that rest.

        While Slurm cannot be read none is dropped: what was done last may have to be done again.
        """
        if self.blind_since is not None:
            return
        kept = self._excluding() | self._holding() | self._perhaps_lost(now) | self._failing_together(now)
        kept |= self._may_still_fail(now)
        for incident in list(self.incidents.values()):
            last = incident.closed_at if incident.closed_at is not None else incident.updated_at
            if self.absence is not None:
                last = max(last, self.absence.ended_at)  # the backlog may bring news of it
            if incident.id in kept or incident.id in self.judging or incident.id in self.recoveries:
                continue
            if incident.id not in self.plans or incident.state is IncidentState.CLOSED:
                if now - last > self.window:
                    self.drop(incident.id)
            elif now - last > RESTS and self._rests(incident):
                self.drop(incident.id)
        running = {job for job, _ in self.cluster.attempts}
        self.past.forget(now, running)
        self.ledger.forget(now, self.incidents, running, after=timedelta(hours=1))

    def _failing_together(self, now: datetime) -> set[str]:
        """Incidents that the breakers count still (``mass_failures``): their windows may be longer than ``window``."""
        limits = self.settings.limits
        nodes_since = now - timedelta(seconds=limits.breaker_window_s)
        jobs_since = now - timedelta(seconds=limits.hung_window_s)
        convicting = {name for name, verdict in self.verdicts.items() if verdict.drain}
        return {
            incident.id
            for incident in self.incidents.values()
            if (incident.id in convicting and incident.updated_at >= nodes_since)
            or (incident.updated_at >= jobs_since and any(item.kind == Kind.STALL for item in incident.evidence))
        }

    def _may_still_fail(self, now: datetime) -> set[str]:
        """Incidents that left their job running, which made no steps since for longer than ``window``: if it ends or is
        called hung, they say why, and which nodes it leaves."""
        found = set()
        for name, incident in self.incidents.items():
            if incident.closed_at is None or now - incident.closed_at > LEFT_RUNNING:
                continue
            attempt = self.cluster.attempts.get((incident.job or -1, incident.attempt or 0))
            if attempt is None or attempt.ended or not left_running(self.plans.get(name), self.verdicts.get(name)):
                continue
            if not self.stepped_after(incident, self.window):
                found.add(name)
        return found

    def stepped_after(self, incident: Incident, passed: timedelta) -> bool:
        """Whether the incident's attempt was seen to make a step longer than ``passed`` after the newest of its evidence.
        False also where that is not known: of the steps before a start of the daemon no times are."""
        seen = self.cluster.attempts.get((incident.job or -1, incident.attempt if incident.attempt is not None else -1))
        at = seen.rhythm.last_at if seen is not None else None
        if at is None or (self.watching_since is not None and at <= self.watching_since):
            return False
        return at > max((item.at for item in incident.evidence), default=incident.opened_at) + passed

    def _rests(self, incident: Incident) -> bool:
        """Whether nothing that can still come concerns this held incident: its job is gone, and it names no node."""
        verdict, plan, fleet = self.verdicts.get(incident.id), self.plans.get(incident.id), self.cluster.fleet
        if incident.state is not IncidentState.HELD or verdict is None or plan is None or fleet is None:
            return False
        if incident.id in self.open_plans or incident.id in self.recoveries:
            return False
        of_node = verdict.drain or verdict.suspect or any(step.kind in NODE_STEPS for step in plan.to_do)
        return incident.job is not None and not fleet.may_have_job(incident.job) and not of_node

    def was_saved(self, drain: str, outcome: Outcome) -> bool:
        """Whether a snapshot showed this drain (its key in the ledger) long enough after it was done for slurmctld to have
        saved it."""
        return self.seen_drained.get(drain, outcome.at) - outcome.at > SAVED

    def _perhaps_lost(self, now: datetime) -> set[str]:
        """Incidents with a drain of ours that slurmctld may have lost: no snapshot has shown it for long. During a pause,
        say, it is not done again at once."""
        return {
            name
            for name in self.incidents.keys() & self.plans.keys()
            for outcome in self.ledger.outcomes(name, self.plans[name].to_do)
            if outcome.step.kind in NODE_STEPS
            and outcome.result is Result.DONE
            and not outcome.reason
            and now - outcome.at <= LOST_WITHIN
            and not self.was_saved(outcome.step.key(name), outcome)
        }

    def _holding(self) -> set[str]:
        """Incidents whose job was cancelled with our hold on it, as long as somebody may requeue it."""
        jobs = self.cluster.fleet.jobs.values() if self.cluster.fleet is not None else ()
        waiting = {job.id for job in jobs if job.state == "cancelled" or (job.state == "pending" and job.held)}
        if not waiting:
            return set()
        return {
            name
            for name, plan in self.plans.items()
            if name in self.incidents and self.incidents[name].job in waiting
            for outcome in self.ledger.outcomes(name, plan.to_do)
            if outcome.data.get("left_hold")
        }

    def _excluding(self) -> set[str]:
        """Incidents that wrote the exclusions which a job still has: these are ended with their reason, however late."""
        found = set()
        for job in self.cluster.fleet.jobs.values() if self.cluster.fleet is not None else ():
            rows = self.ledger.of_job(job.id, StepKind.EXCLUDE) if job.excluded else ()
            if rows and job.state in ("pending", "running", "completing", "configuring", "suspended"):
                found.add(rows[-1].incident)
        return found
