"""Writes the text of an incident's notice: what failed, what is at fault, what was done, where the job resumes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sentinel.alerts.audiences import chain_words, drained_nodes, for_operators, for_owner, severity_of
from sentinel.alerts.job_log import appended
from sentinel.alerts.late import STANDS
from sentinel.alerts.stages import IncidentFacts, Stage, is_done, only_observed, queued, stage_of
from sentinel.alerts.text import culprit_words, plain, unranked, without_repeats
from sentinel.alerts.threads import Thread, is_news_to_owner
from sentinel.model.approvals import plan_words
from sentinel.model.records import (
    Cause,
    Incident,
    JobView,
    Notice,
    Outcome,
    Plan,
    Result,
    StepKind,
    Verdict,
    stable_id,
)
from sentinel.model.vocabulary import (
    BY_SCRIPT,
    CAUSE_WORDS,
    ENDED_AS_ASKED,
    HELD_BY_OTHERS,
    how_sure,
    planned_words,
    step_words,
)

_GROUNDS = 5  # lines of evidence quoted in a notice
# Of a later notice of an incident, in its title.
_NOW = {
    Stage.RUNNING: "runs again",
    Stage.RESTARTING: "is being restarted",
    Stage.HELD: "is held",
    Stage.FAILED: "does not run",
    Stage.WAITING: "waits",
    Stage.ASKED: "waits for an approval",
    Stage.LAPSED: "was not approved in time",
    Stage.REFUSED: "was refused by a person",
    Stage.CANCELLED: "was cancelled",
}
_AS_ASKED = Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
_SCOPE_WORDS = {
    "application": "the job's own code, settings or environment; no machine",
    "gpu": "a GPU",
    "link": "a link (NVLink, PCIe or NIC)",
    "node": "a whole node",
    "cluster": "something shared by many nodes",
    "unknown": "not known",
}


def compose(facts: IncidentFacts, thread: Thread, now: datetime) -> Notice:
    """The notice of the incident at its stage of now.

    Args:
        thread: what people know with this message. The id depends on the incident and the message's number in the thread
            only, so that a repeat can be dropped.
    """
    number = len(thread.stages)
    incident, verdict, plan, outcomes = facts.incident, facts.verdict, facts.plan, facts.outcomes
    job, stage = facts.job, stage_of(facts)
    place = culprit_words(verdict.culprits.nodes, verdict.culprits.gpus)
    sure = how_sure(verdict.confidence, verdict.drain_confidence)
    what = ", ".join([CAUSE_WORDS[verdict.cause], *([place] if place else [])])
    about = f"job {incident.job}" if incident.job is not None else ", ".join(incident.nodes) or "the cluster"
    where = culprit_words(verdict.culprits.nodes, verdict.culprits.gpus, verdict.culprits.ranks)
    lines = [
        f"What: {CAUSE_WORDS[verdict.cause]}{f'; {sure}' if sure else ''}. "
        f"At fault: {ENDED_AS_ASKED if verdict.cause is _AS_ASKED else _SCOPE_WORDS[verdict.scope]}.",
        *([f"Where: {where}."] if where else ()),
        *([f"Numbers went bad at step {verdict.onset_step}."] if verdict.onset_step is not None else ()),
        *_job_line(job, facts.last_step),
        *_done(facts, stage),
        *chain_words(facts),
    ]
    if verdict.advice:
        lines.append(f"Advice: {plain(verdict.advice)}")
    lines.extend(_grounds(verdict))
    lines.append(f"More: sentinel why {incident.id}")
    identity = ("notice", incident.id) if number == 1 else ("notice", incident.id, number)
    return Notice(
        id=stable_id(*identity)[:16],
        incident=incident.id,
        at=now,
        title=plain(f"{about}{_now(facts, stage, number)}: {what}", 200),
        body="\n".join(lines),
        data={
            **_data(incident, verdict, plan, outcomes, job, facts.last_step),
            "severity": severity_of(facts),
            "stage": str(stage),
            "message": number,
            "told": list(thread.stages),
            "worst": thread.worst,
            "final": thread.final,
            "joined": thread.joined,
            "labels": dict(thread.labels),
            "asked": thread.asked,
            "beside": thread.beside,
            "cluster": plain(facts.cluster, 60),
            "partition": job.partition if job else None,
            "owner_text": for_owner(facts) if is_news_to_owner(thread) else "",
            "operator_text": for_operators(facts),
            "log_text": appended(facts),
            STANDS: chain_words(facts),
        },
    )


def _now(facts: IncidentFacts, stage: Stage, number: int) -> str:
    """What is with the job, behind its number. A first message that nothing needs to be done says what happened only, and
    so does one of what Sentinel would not restart, where it only observes."""
    left = stage is Stage.WAITING and facts.incident.job is not None and only_observed(facts)
    return "" if left or (number == 1 and stage is Stage.HANDLED) else f" {_NOW.get(stage, stage)}"


def _job_line(job: JobView | None, last_step: int | None) -> list[str]:
    if job is None:
        return []
    reached = f", last step seen {last_step}" if last_step is not None else ""
    return [f"Job: {job.id} {plain(job.name, 60)} of {plain(job.user, 40)}{reached}."]


def _done(facts: IncidentFacts, stage: Stage) -> list[str]:
    plan, outcomes = facts.plan, facts.outcomes
    if plan is None:
        return []
    lines = []
    if plan.refusal:
        lines.append(f"Not done ({plan.refusal}): {plain(plan.explanation, 1000)}")
    elif why := plan_words(plan) if stage is Stage.RESTARTING else plan_words(plan).replace(queued(facts), "").strip():
        lines.append(plain(why, 1000))
    if facts.limited and stage is Stage.WAITING:
        lines.append(f"{plain(facts.limited)}.")
    if plan.observe_only and plan.steps:
        wanted = [{"kind": step.kind, "node": step.node, "job": step.job} for step in plan.steps]
        lines.append(f"Would do: {planned_words(wanted)}.")
    if drained := drained_nodes(outcomes):
        lines.append(f"Drained: {', '.join(drained)}.")
    chosen = next(
        (o for o in outcomes if o.step.kind is StepKind.CHOOSE_CHECKPOINT), None
    )  # of the job, not its components
    for outcome in outcomes:
        spec = facts.spec_of(outcome.step.job)
        if outcome.data.get(HELD_BY_OTHERS):
            who = "Somebody holds the job, not Sentinel; whoever held it lets it start"
            lines.append(f"{who}: scontrol release {spec}")
        elif (outcome.step.kind is StepKind.HOLD and is_done(outcome)) or outcome.data.get("held"):
            lines.append(f"The job is held and keeps its id; release it when it is fixed: scontrol release {spec}")
        if outcome is chosen and is_done(outcome):
            lines.append(_checkpoint_words(outcome, stage))
        if outcome.result is Result.FAILED:
            what = step_words(outcome.step.kind, outcome.step.node, outcome.step.job)
            lines.append(f"Failed: {what}: {plain(outcome.reason)}")
    return list(dict.fromkeys(lines))


def _checkpoint_words(choice: Outcome, stage: Stage) -> str:
    data = choice.data
    why = plain(str(data.get("explanation") or choice.reason), 400)
    if not data.get("path"):
        return f"{'No checkpoint was chosen' if data.get(BY_SCRIPT) else 'No checkpoint to resume from'}: {why}"
    verbs = {Stage.RUNNING: "Runs again", Stage.RESOLVED: "Restarted", Stage.FAILED: "Would have restarted"}
    verb = verbs.get(stage, "Restarts")
    return f"{verb} from step {data.get('step')} ({data.get('tier')}): {plain(str(data['path']))}. {why}".rstrip()


def _grounds(verdict: Verdict) -> list[str]:
    if not verdict.grounds:
        return []
    lines: dict[tuple[str, str], str] = {}  # no line twice, and one for what many ranks say alike
    telling = without_repeats([ground.evidence.text or ground.evidence.kind for ground in verdict.grounds])
    for ground in verdict.grounds:
        item = ground.evidence
        where = item.where.node or (f"rank {item.where.rank}" if item.where.rank is not None else "")
        text = item.text or item.kind
        if text not in telling:
            continue
        alike = "" if item.where.rank is not None else where
        shown = unranked(text) if item.where.rank is not None else text.removeprefix(f"{where}: ")
        place = f" {plain(where, 64)}" if where else ""
        lines.setdefault((alike, unranked(text)), f"  {item.at:%H:%M:%S} UTC{place}: {plain(shown, 160)}")
    return ["Because:", *list(lines.values())[:_GROUNDS]]


def _data(
    incident: Incident,
    verdict: Verdict,
    plan: Plan | None,
    outcomes: Sequence[Outcome],
    job: JobView | None,
    last_step: int | None,
) -> dict[str, object]:
    chosen = next((o.data for o in outcomes if o.step.kind is StepKind.CHOOSE_CHECKPOINT), {})
    return {
        "incident": incident.id,
        "cause": str(verdict.cause),
        "scope": str(verdict.scope),
        "confidence": round(verdict.confidence, 3),
        "job": incident.job,
        "attempt": incident.attempt,
        "user": job.user if job else None,
        "nodes": list(verdict.culprits.nodes),
        "gpus": list(verdict.culprits.gpus),
        "ranks": list(verdict.culprits.ranks),
        "drained": drained_nodes(outcomes),
        "suspect": list(verdict.suspect),
        "restart": str(verdict.restart),
        "refusal": plan.refusal if plan else "",
        "observe_only": plan.observe_only if plan else False,
        "last_step": last_step,
        "resumed_step": chosen.get("step"),
        "resumed_tier": chosen.get("tier"),
    }
