"""Brings an incident to a verdict and a plan.

    evidence -> settle timer -> fresh Slurm snapshot -> questions to nodes and Prometheus (first verdict only) -> verdict
    and plan

An incident has at most one judgement in progress. Evidence that arrives meanwhile causes one more judgement afterwards.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sentinel import policy
from sentinel.classify import History, classify
from sentinel.config.rules import Rules
from sentinel.config.settings import Settings
from sentinel.correlate import incidents, merging
from sentinel.correlate.log_delay import log_may_still_come
from sentinel.correlate.membership import is_over
from sentinel.correlate.rank_placement import located
from sentinel.engine import backlog, decision, recovery
from sentinel.engine.mass_failures import PreliminaryVerdicts, failing_alike
from sentinel.engine.node_return import records
from sentinel.engine.questions import around, nodes_must_be_asked, prometheus_may_explain, without_a_step
from sentinel.engine.reconcile import late_evidence, node_proof, past_restarts
from sentinel.engine.reconcile.situations import ClusterNow, left_alone, situation_of, with_onset
from sentinel.engine.state import Judging, State
from sentinel.engine.transition import AskNodes, ObserveFleet, QueryMetrics, StartTimer, Transition
from sentinel.model.changes import AttemptSeen, EvidenceAdded, IncidentChanged, PlanMade, VerdictReached
from sentinel.model.records import (
    NODE_STEPS,
    Evidence,
    Fleet,
    Incident,
    IncidentState,
    JobView,
    Kind,
    Plan,
    Restart,
    Step,
    Verdict,
)
from sentinel.model.vocabulary import ABSENCE
from sentinel.policy import Situation
from sentinel.policy.drains import sure_enough

_OF_NODES = tuple(f"{kind} " for kind in NODE_STEPS)  # how what waits begins that concerns a node
FRESH_S = 1.0  # a decision uses a snapshot no older than this


def judge_timer(incident: str) -> str:
    return f"judge:{incident}"


def judge_soon(state: State, out: Transition, incident_id: str, now: datetime) -> None:
    """Judge the incident after the settle time; if a judgement is in progress, judge once more after it."""
    under_way = state.judging.get(incident_id)
    if under_way is not None:
        under_way.again = True
        return
    state.judging[incident_id] = Judging()
    _settle(state, out, incident_id, now)


def _settle(state: State, out: Transition, incident_id: str, now: datetime) -> None:
    out.do(StartTimer(judge_timer(incident_id), now + timedelta(seconds=state.settings.judgement.settle_s)))


def settle_timer_due(
    state: State, out: Transition, incident_id: str, now: datetime, looks: PreliminaryVerdicts
) -> None:
    """The settle timer is due: request a Slurm snapshot unless the newest one is fresh enough, then go on."""
    under_way, incident = state.judging.get(incident_id), state.incidents.get(incident_id)
    if under_way is None:
        return
    under_way.again = False
    if incident is None:
        del state.judging[incident_id]
        return
    if is_over(incident, state.plans.get(incident_id)) and not late_evidence.on_nodes_taken_out(state, incident):
        # late evidence that explains a closed incident is only stored
        _save_closed(state, out, incident, now, looks)
        _end_judgement(state, out, incident_id, now)
        return
    if incident_id not in state.plans and not backlog.is_in(state, incident, now):
        out.do(StartTimer(judge_timer(incident_id), now + timedelta(seconds=backlog.RECHECK_S)))
        return
    under_way.asked, under_way.answers = False, []
    fleet, fresh_s = state.cluster.fleet, _fresh_s(incident, now)
    if fleet is None or now - fleet.at > timedelta(seconds=fresh_s):
        under_way.awaits = {effect := f"fleet:{incident_id}"}
        out.do(ObserveFleet(effect, fresh_s))
        return
    _proceed(state, out, incident_id, now, looks)


def _fresh_s(incident: Incident, now: datetime) -> float:
    """How old a snapshot may be: taken after the newest evidence, since a job may just have begun on the node."""
    newest = max((item.seen_at for item in incident.evidence), default=incident.opened_at)
    return min(FRESH_S, max(0.0, (now - newest).total_seconds()))


def answer_arrived(
    state: State, out: Transition, effect: str, found: tuple[Evidence, ...], now: datetime, looks: PreliminaryVerdicts
) -> None:
    """A snapshot or answers that a judgement waited for arrived; go on when nothing more is awaited."""
    _, _, incident_id = effect.partition(":")
    under_way = state.judging.get(incident_id)
    if under_way is None or effect not in under_way.awaits:
        return
    under_way.awaits.discard(effect)
    under_way.answers.extend(found)
    if not under_way.awaits:
        _proceed(state, out, incident_id, now, looks)


def _save_closed(state: State, out: Transition, incident: Incident, now: datetime, looks: PreliminaryVerdicts) -> None:
    """Store the evidence that came late to a closed incident; what of it is another failure is grouped anew."""
    news = state.judging[incident.id].news
    kept = late_evidence.without_new_convictions(state, incident, news, partial(looks, now=now))
    records.heard_late(state, out, kept, news, partial(looks, now=now), now)
    out.save(IncidentChanged(kept))


def _proceed(state: State, out: Transition, incident_id: str, now: datetime, looks: PreliminaryVerdicts) -> None:
    """With a fresh snapshot: ask the questions if they were not asked yet, otherwise decide."""
    under_way, incident = state.judging[incident_id], late_evidence.without_new_failures(state, incident_id)
    if incident is None or is_over(incident, state.plans.get(incident_id)) or state.cluster.fleet is None:
        if incident is not None and incident.state is IncidentState.CLOSED:
            _save_closed(state, out, incident, now, looks)
        _end_judgement(state, out, incident_id, now)
        return
    if not under_way.asked:
        under_way.asked = True
        incident = _joined(state, out, incident, state.cluster.fleet, now)
        if incident_id not in state.plans:
            under_way.awaits = _ask(state, out, incident)
            if under_way.awaits:
                return
    _decide(state, out, incident_id, now, looks)


def _ask(state: State, out: Transition, incident: Incident) -> set[str]:
    """Ask nodes and Prometheus before the first verdict. Returns the ids of the awaited effects."""
    awaits = set()
    if nodes_must_be_asked(incident):
        awaits.add(effect := f"ask:{incident.id}")
        out.do(AskNodes(effect, incident))
    if state.metrics and prometheus_may_explain(incident):
        awaits.add(effect := f"metrics:{incident.id}")
        nodes = {*incident.nodes, *state.cluster.nodes_of(incident.job, incident.attempt)}
        out.do(QueryMetrics(effect, incident, tuple(sorted(nodes))))
    return awaits


def _decide(state: State, out: Transition, incident_id: str, now: datetime, looks: PreliminaryVerdicts) -> None:
    under_way, fleet = state.judging[incident_id], state.cluster.fleet
    assert fleet is not None, "a judgement begins with a snapshot"
    under_way.news.clear()
    first = incident_id not in state.plans
    told = map(state.used_ids.own, under_way.answers)
    answers = [item for item in told if state.known.add(item.id)]
    if first:
        answers.extend(item for item in around(state, incident_id, now) if state.known.add(item.id))
        known = incidents.attach(state.incidents[incident_id], answers, now)
        found = map(state.used_ids.own, without_a_step(state, known, lambda: looks(known, now).cause, now))
        answers.extend(item for item in found if state.known.add(item.id))
    if answers:
        out.save(EvidenceAdded(tuple(answers)))
    incident = located(incidents.attach(state.incidents[incident_id], answers, now), state.cluster)
    state.put(incident)
    look = partial(looks, now=now)
    cluster = ClusterNow(state, fleet, now, look, without=incident_id)
    alike = failing_alike(incident, state.incidents, state.verdicts, list(state.judging), look, cluster.owner)
    history = state.past.failures(without=incident_id)
    nodes, user = state.cluster.nodes_of(incident.job, incident.attempt), cluster.owner(incident) or None
    history = dataclasses.replace(history, failures=(*history.failures, *alike), nodes=tuple(nodes), user=user)
    situation = past_restarts.with_left_job(state, situation_of(incident, cluster))
    made = decide(incident, situation, history=history, rules=state.rules, settings=state.settings, now=now)
    log_settle_s = state.settings.judgement.log_settle_s
    if first and not made.verdict.drain and log_may_still_come(incident, log_settle_s, now):
        under_way.again = True
    elif first and not decision.matters(incident, made.verdict, state.rules):
        out.say("evidence-noted", incident=incident_id, cause=made.verdict.cause)
    elif first and (earlier := _told_already(state, incident, made)) is not None:
        state.put(earlier := incidents.attach(earlier, incident.evidence, now))
        state.drop(incident_id)
        out.save(IncidentChanged(earlier))
        out.say("incident-joined", incident=earlier.id, joined=incident_id)
        records.judged(state, out, incident, made.verdict, now, counts=False)
    else:
        _keep(state, out, incident, made.verdict, made.plan, situation.job, now)
        if first:
            recover_other_jobs(state, out, incident, fleet, now, looks)
        records.judged(state, out, incident, made.verdict, now)
    _end_judgement(state, out, incident_id, now)


def _told_already(state: State, incident: Incident, made: Decision) -> Incident | None:
    """The closed incident that told of the same on the same nodes, which nothing proved good since. One for which nothing is
    to be done closes at once, and a burst would open one, and send a message, for each of its lines."""
    if made.plan.steps or made.plan.waits:
        return None
    judged = (other for other in state.index.about(incident.job, incident.nodes) if other.id in state.verdicts)
    return next(
        (
            other
            for other in judged
            if (plan := state.plans.get(other.id)) is not None
            and not plan.steps
            and merging.says_no_more(incident, made.verdict, other, state.verdicts[other.id], state.window)
            and not node_proof.proven_good(state, other, incident.nodes)
        ),
        None,
    )


def plan_again(
    state: State, out: Transition, incident_id: str, cluster: ClusterNow, looks: PreliminaryVerdicts
) -> None:
    """Ask policy again, on the same verdict, what may be done now; carry out what is new."""
    incident, verdict, now = state.incidents[incident_id], state.verdicts[incident_id], cluster.now
    situation = past_restarts.with_left_job(state, situation_of(incident, cluster))
    plan = plan_for(verdict, incident, situation, settings=state.settings, now=now)
    _keep(state, out, incident, verdict, plan, situation.job, now)
    recover_other_jobs(state, out, incident, cluster.snapshot, now, looks)


def _with_new_ids(state: State, before: Plan | None, plan: Plan) -> Plan:
    """The plan whose job steps have new ids in the ledger where they are planned again after an earlier plan did them."""
    if before is None:
        return plan
    known = {step.key(plan.incident) for step in before.steps}

    def new(step: Step) -> Step:
        while (key := step.key(plan.incident)) not in known and step.job is not None and state.ledger.has(key):
            step = dataclasses.replace(step, tries=step.tries + 1)
        return step

    return dataclasses.replace(plan, steps=tuple(map(new, plan.steps)))


def _end_judgement(state: State, out: Transition, incident_id: str, now: datetime) -> None:
    """End this judgement; start another one if evidence arrived meanwhile."""
    under_way = state.judging.get(incident_id)
    if under_way is None:
        return
    if under_way.again and incident_id in state.incidents:
        under_way.awaits = set()
        _settle(state, out, incident_id, now)
    else:
        del state.judging[incident_id]


def _joined(state: State, out: Transition, incident: Incident, fleet: Fleet, now: datetime) -> Incident:
    """Complete the incident with its job, and merge incidents that turn out to be the same failure."""
    incident = merging.with_job(incident, state.cluster, fleet)
    if incident.id not in state.plans:
        others = list(state.incidents.values())
        for other in merging.same_failure(incident, others, state.plans, state.cluster, fleet, state.window):
            incident = incidents.attach(incident, other.evidence, now)
            state.drop(other.id)
            out.say("incident-joined", incident=incident.id, joined=other.id)
        convicting = merging.of_nodes_in_service(incident, others, state.verdicts, state.cluster, fleet, state.window)
        incident = incidents.attach(incident, convicting, now)
    state.put(incident)
    return incident


def recover_other_jobs(
    state: State, out: Transition, incident: Incident, fleet: Fleet, now: datetime, looks: PreliminaryVerdicts
) -> None:
    """Open incidents for the other jobs on the nodes being taken out, so that those are recovered too."""
    verdict, plan = state.verdicts[incident.id], state.plans[incident.id]
    known = [other for other in state.incidents.values() if not left_alone(state, other)]
    named = {*verdict.drain, *(step.node for step in plan.to_do if step.node is not None)}
    cleared = node_proof.cleared(state, incident.id, named)
    opt_in = state.settings.recovery.opt_in
    for new in merging.taken_along(
        incident, verdict, plan, state.cluster, fleet, known, cleared=cleared, opt_in=opt_in, now=now
    ):
        key = (incident.id, new.job or -1, new.attempt or 0)
        if key in state.taken_along or new.id in state.incidents:
            continue  # its own incident is over, and perhaps forgotten
        state.taken_along.add(key)
        state.put(new)
        situation = situation_of(new, ClusterNow(state, fleet, now, partial(looks, now=now)))
        own = plan_for_job(verdict, new, situation, settings=state.settings, now=now)
        out.say("job-taken-along", incident=new.id, of=incident.id, job=new.job)
        _keep(state, out, new, verdict, own, situation.job, now)


def _keep(
    state: State, out: Transition, incident: Incident, verdict: Verdict, plan: Plan, job: JobView | None, now: datetime
) -> None:
    """Save verdict and plan if they changed, and start carrying out the plan."""
    before = state.plans.get(incident.id)
    plan = decision.extend(before, _with_new_ids(state, before, plan))
    previous = state.verdicts.get(incident.id)
    known = (previous.cause, previous.broken) if previous is not None else None
    same = plan == before and known == (verdict.cause, verdict.broken)
    seen = state.cluster.attempts.get((incident.job or -1, incident.attempt or 0))
    user = job.user if job is not None else seen.view.user if seen is not None else None  # Slurm may have forgotten it
    if not same or previous is not verdict:
        out.save(IncidentChanged(incident, user or None))
    if same:
        return
    state.verdicts[incident.id], state.plans[incident.id] = verdict, plan
    if previous is not verdict:
        out.save(VerdictReached(incident.id, verdict, now))
    out.save(PlanMade(plan))
    if plan.to_do or plan.waits:
        state.open_plans.add(incident.id)
    if seen is not None:  # saved for a restarted daemon: recovery needs the attempt's nodes and last step
        # An end that nobody reported yet is not saved: the next daemon reports it, if this one is killed now.
        view = seen.view if seen.ended else dataclasses.replace(seen.view, ended_at=None)
        out.save(AttemptSeen(view, seen.first_step, seen.last_step, seen.usual_step_s()))
    nodes = state.cluster.nodes_of(incident.job, incident.attempt)
    state.past.judged(incident, verdict, user=user, nodes=nodes)
    opened = max((item.seen_at for item in incident.evidence if incidents.opens(item)), default=now)
    out.say(
        "verdict", incident=incident.id, cause=verdict.cause, scope=verdict.scope,
        confidence=f"{verdict.confidence:.2f}", drain=",".join(verdict.drain), suspect=",".join(verdict.suspect),
        restart=verdict.restart, refusal=plan.refusal, waits=",".join(wait.kind for wait in plan.waits),
        steps=",".join(f"{s.kind}:{s.node or s.job}" for s in plan.steps),
        decision_s=max(0.0, (now - opened).total_seconds()) if before is None else None,
    )  # fmt: skip
    recovery.carry_out_plan(state, out, incident.id, now, job)


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    plan: Plan


def decide(
    incident: Incident, situation: Situation, *, history: History, rules: Rules, settings: Settings, now: datetime
) -> Decision:
    """The verdict on an incident and the plan that policy allows for it. Pure."""
    verdict = classify(incident, history=history, rules=rules, now=now)
    if incidents.is_advisory_incident(incident):
        # The job keeps running; a node that slows it down is tested, and excluded when the job is restarted.
        slow = any(item.kind == Kind.SLOW for item in incident.evidence)
        suspect = (*verdict.drain, *verdict.suspect) if slow else ()
        verdict = dataclasses.replace(verdict, drain=(), suspect=suspect, restart=Restart.NONE, onset_step=None)
    elif verdict.restart is not Restart.NONE:
        # Whatever ended the job: if its numbers were bad, here or in what it began with, it must resume from before that.
        verdict = with_onset(verdict, situation.onset_step)
    broken = _broken(verdict, incident, history, rules, settings.judgement.act_confidence, now)
    verdict = dataclasses.replace(verdict, broken=broken)
    return Decision(verdict, plan_for(verdict, incident, situation, settings=settings, now=now))


def _broken(
    verdict: Verdict, incident: Incident, history: History, rules: Rules, act_confidence: float, now: datetime
) -> tuple[str, ...]:
    """Those of the nodes to drain that are convicted, surely enough to act, without what says that they are gone."""
    there = tuple(item for item in incident.evidence if item.kind not in ABSENCE)
    if not verdict.drain or len(there) == len(incident.evidence):
        return verdict.drain
    found = classify(dataclasses.replace(incident, evidence=there), history=history, rules=rules, now=now)
    sure = sure_enough(found, act_confidence)
    return tuple(name for name in verdict.drain if name in found.drain) if sure else ()


def plan_for(verdict: Verdict, incident: Incident, situation: Situation, *, settings: Settings, now: datetime) -> Plan:
    """What policy allows and what it lets wait, for a verdict that stands."""
    return policy.decide(
        verdict,
        incident,
        situation,
        limits=settings.limits,
        modes=settings.modes,
        act_confidence=settings.judgement.act_confidence,
        bad_numbers=settings.recovery.bad_numbers,
        now=now,
    )


def plan_for_job(
    verdict: Verdict, incident: Incident, situation: Situation, *, settings: Settings, now: datetime
) -> Plan:
    """The plan for another job on nodes that an incident takes out: that incident's verdict, this job's own budget."""
    plan = plan_for(verdict, incident, situation, settings=settings, now=now)
    waits = tuple(wait for wait in plan.waits if any(not name.startswith(_OF_NODES) for name in wait.what))
    steps = tuple(step for step in plan.steps if step.kind not in NODE_STEPS)
    refusal = plan.refusal if waits else ""
    return dataclasses.replace(plan, steps=steps, waits=waits, refusal=refusal)
