"""Describes the current state of cluster, job and budgets, as policy reads it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cached_property

from sentinel.classify import PastFailure, each_once
from sentinel.detect.failed_resume import is_left_out
from sentinel.engine.mass_failures import called_hung, failing_together, hung_together
from sentinel.engine.pending_drains import stops_of, unfinished, with_pending_drains
from sentinel.engine.reconcile import in_allocation, node_proof
from sentinel.engine.state import State
from sentinel.model.approvals import APPROVAL, LAPSED
from sentinel.model.identity import taken_along_id
from sentinel.model.intent import intent_of
from sentinel.model.jobs.chains import SINGLETON
from sentinel.model.records import (
    INTERRUPTIONS,
    STOPS,
    Fleet,
    Incident,
    IncidentState,
    JobView,
    Result,
    Step,
    StepKind,
    Verdict,
    Wait,
)
from sentinel.model.vocabulary import ASKED, MISSING_NODE
from sentinel.planning.restart_size import remaining_wait_s
from sentinel.policy import NO_NODE, NodeHurt, Situation, Stop, components_with
from sentinel.policy.drains import SWITCH
from sentinel.policy.exclusions import BESIDE
from sentinel.text import names

HOUR = timedelta(hours=1)  # for which drains and stops count
_PROGRESS_AFTER = timedelta(seconds=10)  # a step line this long after a fault was not under way when it happened


class ClusterNow:
    """What policy reads that is the same for every incident: each part is computed once, when it is first asked for.

    Drains and stops that are decided count already, so a plan that is added or extended asks for another one of these.

    Args:
        look: gives the preliminary verdict of an incident that waits for its judgement.
        without: the incident that is being judged: policy counts what its own verdict convicts.
    """

    def __init__(
        self, state: State, fleet: Fleet, now: datetime, look: Callable[[Incident], Verdict], *, without: str = ""
    ) -> None:
        self.state, self.snapshot, self.now = state, fleet, now
        self._look, self._without = look, without

    @cached_property
    def _going_on(self) -> frozenset[str]:
        state = self.state
        # Of a plan that nobody carries out no step goes on: most of those are done, and wait for a budget.
        names = sorted(state.recoveries.keys() & state.open_plans & state.plans.keys())
        return unfinished((state.plans[name] for name in names), state.ledger)

    @cached_property
    def _with_drains(self) -> tuple[Fleet, list[datetime]]:
        rows = self.state.ledger.drains(self.now - HOUR)
        return with_pending_drains(self.snapshot, self.state.plans.values(), rows, self.now, self._going_on)

    @property
    def fleet(self) -> Fleet:
        """The snapshot as it will be after the drains under way."""
        return self._with_drains[0]

    @property
    def drains(self) -> list[datetime]:
        """Times of ours in the last hour."""
        return self._with_drains[1]

    @cached_property
    def failing_nodes(self) -> frozenset[str]:
        state = self.state
        waiting = [name for name in state.judging if name != self._without]
        failing = failing_together(
            state.incidents, state.verdicts, waiting, self._look, state.settings.limits, self.now
        )
        return failing | frozen_nodes(state, self.snapshot, "breaker")

    @cached_property
    def under_suspect_switch(self) -> frozenset[str]:
        return frozen_nodes(self.state, self.snapshot, SWITCH)

    @cached_property
    def stops(self) -> tuple[Stop, ...]:
        rows = self.state.ledger.stops(self.now - HOUR)
        return stops_of(self.state.plans.values(), rows, self.now, self._going_on, self.state.past.owner)

    @cached_property
    def _hung(self) -> Mapping[int, Incident]:
        hung = hung_together(self.state.incidents.values(), self.state.settings.limits, self.now)
        return frozen_jobs(self.state) | hung

    @cached_property
    def hung_jobs(self) -> Mapping[int, datetime]:
        """Jobs called hung just now, or frozen and silent since: when they were called so."""
        return {job: called_hung(incident) or incident.updated_at for job, incident in self._hung.items()}

    def hung_with(self, incident: Incident) -> Mapping[int, str]:
        """Those that were called hung within the window of when this incident's job was, and their users."""
        window = timedelta(seconds=self.state.settings.limits.hung_window_s)
        at = called_hung(incident) or self.now
        return {job: self.owner(self._hung[job]) for job, when in self.hung_jobs.items() if abs(when - at) <= window}

    def owner(self, incident: Incident) -> str:
        """Whose job the incident is of; empty: not known."""
        view = self.state.cluster.job(self.snapshot, incident.job, incident.attempt)
        return view.user if view is not None else self.state.past.owner(incident.id) or ""

    @cached_property
    def convicted_nodes(self) -> frozenset[str]:
        return frozenset(node_proof.convicted(self.state))

    @cached_property
    def bad_nodes(self) -> frozenset[str]:
        return node_proof.bad_nodes(self.state)


def situation_of(incident: Incident, cluster: ClusterNow) -> Situation:
    """What policy reads about this incident."""
    state, now = cluster.state, cluster.now
    job = state.cluster.job(cluster.snapshot, incident.job, incident.attempt)
    reached = saved = None
    if incident.job is not None and incident.attempt is not None:
        reached = state.cluster.last_step(incident.job, incident.attempt)
        saved = state.cluster.last_save(incident.job, incident.attempt)
    named = set(state.verdicts[incident.id].drain) if incident.id in state.verdicts else set()
    named |= {*incident.nodes, *state.cluster.nodes_of(incident.job, incident.attempt)}
    added, kept = exclusions_of_ours(state, incident.job)
    required = required_by_user(state, job) if job is not None else ()
    waiting = state.cluster.dependents.get(job.id, {}) if job is not None else {}
    return Situation(
        fleet=cluster.fleet,
        intent=intent_of(job.comment if job else ""),
        job=job,
        last_step=reached,
        last_save=saved,
        observed=was_observed(state, incident),
        drains=tuple(cluster.drains),
        failing_nodes=cluster.failing_nodes,
        under_suspect_switch=cluster.under_suspect_switch,
        restarts=state.past.restarts(incident.job),
        hurt=hurt(state, incident),
        stops=cluster.stops,
        hung_jobs=cluster.hung_with(incident),
        paused=state.paused,
        opt_in=state.settings.recovery.opt_in,
        onset_step=_onset_step(state, incident, cluster.fleet),
        slow_nodes=state.past.slow_nodes(incident.job, incident.attempt),
        bad_nodes=cluster.bad_nodes,
        convicted_nodes=cluster.convicted_nodes,
        good_nodes=node_proof.proven_good(state, incident, named),
        put_back=node_proof.returned(state, incident, named),
        excluded_by_us=kept,
        on_probation=state.returns.on_probation(incident.job),
        added_by_us=added,
        required=required,
        goes_on=goes_on(state, incident),
        held=_hold_of(state, incident),
        recovered_by=_recovered_by(state, incident, cluster.fleet),
        wait_s=wait_s(state, incident, now),
        restart_takes_s=state.settings.recovery.restart_takes_s,
        smaller_for_s=state.settings.recovery.smaller_for_s,
        run_nodes=in_allocation.run_nodes_of(state, job) if job is not None else (),
        spares=cluster.fleet.spares,
        allocation_failed=in_allocation.has_failed(state, incident),
        steps_back=any(is_left_out(item) for item in incident.evidence),
        chain=tuple(sorted(job for job, kind in waiting.items() if kind == SINGLETON)),
        unread_components=_unread_components(state, job, cluster.snapshot),
        breaker_passed=incident.id in state.breaker_passed,
        missing_since=_missing_since(state, incident),
        refused=state.refused_drains.get(incident.id, {}),
        answers=state.answers.get(incident.id, ()),
        request=_request(state, incident),
        request_cause=state.verdicts[incident.id].cause if incident.id in state.verdicts else None,
    )


def _unread_components(state: State, job: JobView | None, fleet: Fleet) -> tuple[JobView, ...]:
    """The components of the job whose records cannot be read, as they were last seen: they are stopped with it, and start
    with it again."""
    if job is None or job.het is None or not fleet.unread:
        return ()
    newest = {name: seen.view for (name, _), seen in sorted(state.cluster.attempts.items()) if seen.view.het == job.het}
    return tuple(view for name, view in newest.items() if name not in fleet.jobs and fleet.may_have_job(name))


def with_onset_known_now(state: State, incident: Incident, verdict: Verdict) -> Verdict:
    """A plan may have waited since it was judged (a pause, a slow slurmctld), and the job trained on."""
    fleet = state.cluster.fleet
    return with_onset(verdict, _onset_step(state, incident, fleet)) if fleet is not None else verdict


def with_onset(verdict: Verdict, step: int | None) -> Verdict:
    """The verdict, with the job's numbers bad from this step on at the latest."""
    onsets = [known for known in (verdict.onset_step, step) if known is not None]
    return dataclasses.replace(verdict, onset_step=min(onsets, default=None))


def _onset_step(state: State, incident: Incident, fleet: Fleet) -> int | None:
    """The step at which the job's numbers went bad; of a heterogeneous job those of any component: all resume together."""
    parts = components_with(fleet, incident.job) if incident.job is not None else ()
    # One that slurmctld forgot has saved, too: a later attempt than the incident's.
    newest = max(incident.attempt or 0, state.onsets.newest_run(incident.job) or 0)
    runs = {(incident.job, incident.attempt), (incident.job, newest), *((part.id, part.restarts) for part in parts)}
    onsets = (state.onsets.onset_step(job, attempt) for job, attempt in runs)
    return min((step for step in onsets if step is not None), default=None)


def wait_s(state: State, incident: Incident, now: datetime) -> float | None:
    """How long the job still has to wait for another node; None: one was expected by now."""
    plan = state.plans.get(incident.id)
    since = next((wait.since for wait in plan.waits if wait.kind == NO_NODE), now) if plan is not None else now
    return remaining_wait_s(state.settings.recovery.wait_s, (now - since).total_seconds())


def _missing_since(state: State, incident: Incident) -> datetime | None:
    plan = state.plans.get(incident.id)
    return next((wait.since for wait in plan.waits if wait.kind == MISSING_NODE), None) if plan is not None else None


def _request(state: State, incident: Incident) -> Wait | None:
    """What people are asked about the incident's plan, or were and did not answer."""
    plan = state.plans.get(incident.id)
    waits = plan.waits if plan is not None else ()
    return next((wait for wait in waits if wait.kind in (APPROVAL, LAPSED)), None)


def hurt(state: State, incident: Incident) -> tuple[NodeHurt, ...]:
    """Nodes that earlier incidents of this job convicted, for other attempts of it; not those from which the job was only
    taken along, as one that shares nodes with a job that breaks them. None if it is taken along now."""
    if incident.job is None:
        return ()

    def is_of_job(past: PastFailure) -> bool:
        return past.job == incident.job and past.node is not None and past.blamed and past.attempt != incident.attempt

    nodes = {past.node for past in state.past.of_job(incident.job, without=incident.id) if is_of_job(past)}
    key = (incident.job, incident.attempt or 0)
    if not nodes or any(taken_along_id(name, *key) == incident.id for name in state.incidents):
        return ()
    failures = state.past.failures(without=incident.id).failures
    found = [
        NodeHurt(past.at, past.cause, past.node, past.attempt)
        for past in each_once([past for past in failures if past.node in nodes])
        if past.node is not None and is_of_job(past)
    ]
    return tuple(sorted(found, key=lambda one: one.at))


def _recovered_by(state: State, incident: Incident, fleet: Fleet) -> str:
    """Another incident whose plan for the same attempt is being carried out; empty if there is none."""
    if incident.job is None:
        return ""
    together = {incident.job, *(other.id for other in components_with(fleet, incident.job))}
    for name in sorted(state.recoveries.keys() & state.plans.keys() - {incident.id}):
        if in_allocation.began_at(state, name) is not None:
            continue  # its run is the one that failed now
        for step in state.plans[name].to_do:
            if step.kind in INTERRUPTIONS and step.job in together and step.attempt == incident.attempt:
                outcome = state.ledger.outcome(name, step)
                if outcome is None or outcome.result is not Result.FAILED:
                    return name
    return ""


def left_alone(state: State, incident: Incident) -> bool:
    """Whether the incident's job was to be stopped and was not, as it goes on: another fault may still concern it."""
    plan = state.plans.get(incident.id)
    if plan is None or incident.state is not IncidentState.CLOSED:
        return False
    stops = [outcome for outcome in state.ledger.outcomes(incident.id, plan.steps) if outcome.step.kind in STOPS]
    return any(outcome.result is Result.FAILED and outcome.data.get("goes_on") for outcome in stops)


def exclusions_of_ours(state: State, job: int | None) -> tuple[frozenset[str], tuple[str, ...]]:
    """The nodes that Sentinel ever added to the job's exclusions, and those of them that are not proven good since.

    The latter in the order in which they are to be kept where the job cannot do without all: the newest first, since older
    ones had longer to be found bad, and last the neighbours of suspects, on which the job itself did not fail.
    """
    if job is None:
        return frozenset(), ()
    added: dict[str, datetime] = {}
    levels: dict[str, int] = {}
    not_by_agent: set[str] = set()
    neighbours: set[str] = set()
    suspects: set[str] = set()
    for row in state.ledger.of_job(job, StepKind.EXCLUDE):
        if row.outcome is None:
            continue
        neighbours.update(names(row.step.data.get(BESIDE)))
        if row.incident in state.verdicts:
            suspects.update(state.verdicts[row.incident].suspect, state.verdicts[row.incident].drain)
        listed = row.outcome.data.get("added", row.step.data.get("nodes"))
        incident = state.incidents.get(row.incident)
        for name in names(listed):
            added[name] = row.outcome.at
            levels[name] = max(levels.get(name, 0), node_proof.proving_level(state, incident, name))
            if not node_proof.agent_judges(state, incident, name):
                not_by_agent.add(name)
    neighbours -= suspects
    kept = [
        name
        for name, at in added.items()
        if not node_proof.good_since(state, name, at, levels[name], agent=name not in not_by_agent)
    ]
    kept.sort(key=lambda name: (name in neighbours, -added[name].timestamp()))
    return frozenset(added), tuple(kept)


def requires_ours(state: State, job: JobView) -> bool:
    """Whether the job asks for the nodes of a node-local checkpoint, as Sentinel wrote it."""
    rows = state.ledger.of_job(job.id, StepKind.EXCLUDE)
    last = rows[-1].outcome if rows else None
    return last is not None and bool(job.required) and {*job.required} == {*names(last.data.get("required"))}


def required_before(state: State, job: JobView) -> str:
    """The nodes that the job's user required when Sentinel first wrote others in their place; empty: none."""
    rows = state.ledger.of_job(job.id, StepKind.EXCLUDE)
    return next(
        (str(row.outcome.data[ASKED]) for row in rows[::-1] if row.outcome is not None and ASKED in row.outcome.data),
        "",
    )


def required_by_user(state: State, job: JobView) -> tuple[str, ...]:
    """The nodes that the job's user insists on."""
    return tuple(names(required_before(state, job))) if requires_ours(state, job) else job.required


def was_observed(state: State, incident: Incident) -> bool:
    """Whether this daemon watched the incident's attempt from its beginning, or one before it had, which held it."""
    attempt = incident.job or -1, incident.attempt if incident.attempt is not None else -1
    if state.began_before is not None and attempt not in state.began_before:
        return True
    hold = _hold_of(state, incident)
    return hold is not None and hold.data.get("observed") is True and state.cluster.ended(*attempt)


def _hold_of(state: State, incident: Incident) -> Step | None:
    """The incident's own hold of its attempt, planned or done."""
    plan = state.plans.get(incident.id)
    holds = (step for step in plan.steps if step.kind is StepKind.HOLD) if plan is not None else ()
    return next((step for step in holds if (step.job, step.attempt) == (incident.job, incident.attempt)), None)


def frozen_nodes(state: State, fleet: Fleet, kind: str) -> frozenset[str]:
    """Nodes in service, or perhaps, whose incidents this breaker or suspicion holds back, and that nothing clears: its cause
    goes on."""
    return frozenset(
        name
        for incident in _held_back(state, kind)
        for name in state.verdicts[incident].drain
        if fleet.may_have_node(name) and not (name in fleet.nodes and fleet.nodes[name].drained)
        if not node_proof.cleared(state, incident, (name,))
    )


def frozen_jobs(state: State) -> dict[int, Incident]:
    """Jobs that are still silent, and their incidents, which the breaker of hangs holds back."""
    found = {}
    for name in _held_back(state, "hang-breaker"):
        incident = state.incidents[name]
        if incident.job is None or incident.attempt is None or state.cluster.ended(incident.job, incident.attempt):
            continue
        view = state.cluster.job(state.cluster.fleet, incident.job, incident.attempt) if state.cluster.fleet else None
        if view is not None and view.state == "running" and not goes_on(state, incident):
            found[incident.job] = incident
    return found


def _held_back(state: State, kind: str) -> list[str]:
    """Incidents whose plan waits for this."""
    return [
        name
        for name in sorted(state.open_plans & state.incidents.keys() & state.verdicts.keys())
        if any(wait.kind == kind for wait in state.plans[name].waits)
    ]


def goes_on(state: State, incident: Incident) -> bool:
    """Whether the attempt printed a step well after the newest evidence of its trouble."""
    return state.stepped_after(incident, _PROGRESS_AFTER)
