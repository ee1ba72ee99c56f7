"""Takes people's answers to requests for approval (mode suggest); what they allow is judged anew at once.

An answer counts for exactly what was shown: the parts of the plan by name, for the cause of the verdict. Whether it still
holds is for policy to say, each time that it is asked (``sentinel.policy.permissions``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sentinel.classify.history import WINDOW
from sentinel.engine import notices, recovery
from sentinel.engine.events import ApprovalGiven
from sentinel.engine.reconcile import waits
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.errors import ProtocolError
from sentinel.model.approvals import ASKING, LAPSED, REFUSED, Answer, asked, open_names, request_of
from sentinel.model.audit import AuditEntry, Stage
from sentinel.model.changes import Audited, PlanFinished, PlanMade, SettingChanged
from sentinel.model.records import NODE_STEPS, Cause, IncidentState, Plan
from sentinel.policy.permissions import OBSERVED
from sentinel.wire import time_from, to_json

ANSWERS = "approvals"  # stored setting: by incident, what people answered, oldest first
_SHOWN = 5  # parts of an answer that is not taken
_MOST = 20  # answers kept of one incident
_UNWANTED = frozenset({LAPSED, REFUSED, OBSERVED})  # kinds of waits that only people end


def problem(state: State, incident: str, request: str, what: Sequence[str]) -> str:
    """Why this cannot be answered now; empty if it can."""
    plan, verdict = state.plans.get(incident), state.verdicts.get(incident)
    waiting = asked(plan) if plan is not None and incident in state.open_plans else ()
    if plan is None or verdict is None or not waiting:
        return f"nothing of incident {incident} waits for an approval"
    if strange := sorted(set(what) - set(open_names(waiting))):
        return f"{', '.join(strange[:_SHOWN])} is not asked; asked are: {', '.join(open_names(waiting))}"
    if request != request_of(plan, verdict.cause):
        return "the plan is another one by now than the one that was shown"
    return ""


def answered(state: State, out: Transition, event: ApprovalGiven) -> None:
    """Keep the answer, and have policy asked again. One to a request that is not open any more changes nothing."""
    action = "approve" if event.approved else "refuse"
    why = problem(state, event.incident, event.request, event.what)
    # What was not asked is anybody's words: a few say enough. What was asked is known, and kept whole.
    parts = list(event.what[:_SHOWN] if why else event.what)
    further = {"further": len(event.what) - len(parts)} if len(parts) < len(event.what) else {}
    before = {"asked": parts, "request": event.request, **further}
    target, stage = f"incident {event.incident}", Stage.REFUSED if why else Stage.DONE
    entry = AuditEntry(
        event.at, event.by, event.origin, action, stage, target, event.incident, why or event.note, before,
        {} if why else {"approved" if event.approved else "refused": list(event.what)},
    )  # fmt: skip
    out.save(Audited(entry))
    if why:
        out.say("answer-not-taken", incident=event.incident, by=event.by, reason=why, warning=True)
        return
    answer = Answer(event.at, event.by, event.approved, event.what, state.verdicts[event.incident].cause, event.note)
    state.answers[event.incident] = (*state.answers.get(event.incident, ()), answer)[-_MOST:]
    out.save(SettingChanged(ANSWERS, to_json(state.answers)))
    out.say("answered", incident=event.incident, by=event.by, answer=action, what=",".join(event.what))
    waits.look(state, out, (event.incident,))


def let_go(state: State, out: Transition, now: datetime) -> None:
    """Close what waits for nothing but a person's yes, or another mode, to drain nodes, once that is as old as the failures
    that count in the history: nobody wanted it for a month in which nothing new spoke against these nodes.

    Not while Slurm cannot be read, nor where a node's agent is not heard or calls it bad.
    """
    if state.blind_since is not None or state.paused or state.cluster.fleet is None:
        return
    for name in sorted(state.open_plans & state.incidents.keys() & state.verdicts.keys()):
        plan = state.plans[name]
        wanted = _only_wanted_drains(plan)
        if not wanted or name in state.judging or name in state.recoveries:
            continue
        known = [state.cluster.nodes.get(node) for node in wanted]
        if any(seen is None or seen.state != "heard" or seen.verdict.get("word") == "BAD" for seen in known):
            continue
        answered = [wait.since for wait in plan.waits if wait.kind in ASKING]
        if now - max([state.incidents[name].updated_at, *answered]) < WINDOW:
            continue
        words = (
            f"{', '.join(open_names(plan.waits))}: not wanted any more. For {WINDOW.days} days nobody had it done, nothing "
            "new was seen of it, and no agent calls its node bad."
        )
        state.plans[name] = dataclasses.replace(plan, refusal="", waits=(), explanation=words)
        out.save(PlanMade(state.plans[name]))
        out.save(PlanFinished(plan.id))
        recovery.come_to_rest(state, out, name, IncidentState.CLOSED, words, now)
        notices.notify(state, out, name, now)
        out.say("incident-let-go", incident=name, waited_for=",".join(wait.kind for wait in plan.waits))


def _only_wanted_drains(plan: Plan) -> list[str]:
    """The nodes whose drain is all that the plan waits for; none where it may go on by itself, or with a job."""
    parts = [name.partition(" ") for name in open_names(plan.waits)]
    only = all(wait.kind in _UNWANTED for wait in plan.waits) and all(kind in NODE_STEPS for kind, _, _ in parts)
    return [node for _, _, node in parts] if only else []


def stored_answers(stored: Any) -> dict[str, tuple[Answer, ...]]:
    """What an earlier daemon kept. What cannot be read is no answer: people are asked again."""
    found = {}
    for incident, answers in stored.items() if isinstance(stored, Mapping) else ():
        try:
            found[str(incident)] = tuple(
                Answer(
                    time_from(one["at"]), one["by"], one["approved"] is True, tuple(one["what"]), Cause(one["cause"]),
                    one["note"],
                )
                for one in answers
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, ProtocolError):
            continue
    return found
