"""Compares recorded verdicts and plans with those of today: one result for each incident. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sentinel.model.approvals import APPROVAL, ASKING, LAPSED, plan_words
from sentinel.model.recording import RecordedIncident, Recording
from sentinel.model.records import NODE_STEPS, Plan, StepKind, Verdict
from sentinel.replay.run import Replayed


@dataclass(frozen=True, slots=True)
class Comparison:
    """One incident as recorded and as judged today; a side is None if only the other one has it."""

    incident: str  # the recorded one's id; the replayed one's where nothing was recorded
    at: str  # when it was opened, ISO 8601
    was: dict[str, Any] | None
    now: dict[str, Any] | None
    reasons: tuple[str, ...]  # why they differ, one sentence each; empty: the same
    decided: bool = True  # whether what was decided then is known: if not, there is nothing to compare with

    @property
    def same(self) -> bool:
        return not self.reasons


def compare(recording: Recording, replayed: Sequence[Replayed]) -> list[Comparison]:
    """In order of time. Incidents belong together that share most of their evidence."""
    left = {item.incident.id: item for item in replayed}
    holders: dict[str, list[str]] = defaultdict(list)  # evidence -> replayed incidents
    for item in replayed:
        for evidence in item.incident.evidence:
            holders[evidence.id].append(item.incident.id)
    found = []
    # What was decided is compared first: of evidence that several incidents share, the others have what is left.
    for recorded in sorted(recording.incidents, key=lambda one: not one.decided):
        shared = Counter(
            name for evidence in set(recorded.evidence) for name in holders.get(evidence, ()) if name in left
        )
        # Of several with as much in common the earliest, whatever the order of the evidence.
        best = min(shared, key=lambda name: (-shared[name], left[name].incident.opened_at, name), default=None)
        now = left.pop(best) if best is not None else None
        if recorded.decided:
            found.append(_compared(recorded, now))
        elif now is not None:
            at, is_ = recorded.incident.opened_at.isoformat(), _shown(now.verdict, now.plan)
            found.append(Comparison(recorded.incident.id, at, None, is_, (), decided=False))
    found += [
        Comparison(item.incident.id, item.incident.opened_at.isoformat(), None, now, _only_now(now))
        for item, now in ((item, _shown(item.verdict, item.plan)) for item in left.values())
    ]
    return sorted(found, key=lambda item: item.at)


def as_decided(recording: Recording, replayed: Sequence[Replayed]) -> Recording:
    """The recording as if these rules and this policy had decided then: what another replay of it is compared with."""
    decided = tuple(
        RecordedIncident(
            item.incident, tuple(one.id for one in item.incident.evidence), verdict=item.verdict, plan=item.plan
        )
        for item in replayed
    )
    return replace(recording, incidents=decided)


def counts(comparisons: Sequence[Comparison]) -> dict[str, dict[str, int]]:
    """What was planned then and would be now, in all: nodes to drain, jobs to restart and to hold, plans that waited."""
    return {
        "was": _counted([item.was for item in comparisons if item.was is not None]),
        "now": _counted([item.now for item in comparisons if item.now is not None]),
    }


def _counted(sides: Sequence[dict[str, Any]]) -> dict[str, int]:
    begun = [step.split(" ")[0] for side in sides for step in side["steps"]]
    return {
        "incidents": len(sides),
        "drains": sum(word in NODE_STEPS for word in begun),
        "restarts": begun.count(StepKind.RELEASE) + begun.count(StepKind.START_RUN),
        "holds": begun.count(StepKind.HOLD),
        "refused": sum(bool(side["refusal"]) for side in sides),
    }


def _only_now(now: dict[str, Any]) -> tuple[str, ...]:
    """No difference where nothing is done now, either, and nothing would be if a limit or a mode allowed it."""
    if now["steps"]:
        return (f"nothing was decided then; now: {', '.join(now['steps'])}",)
    if now["refusal"] or now["held_back"]:
        return (f"nothing was decided then; now nothing is done: {now['explanation'] or 'no step'}",)
    return ()


def _compared(recorded: RecordedIncident, now: Replayed | None) -> Comparison:
    assert recorded.verdict is not None and recorded.plan is not None
    was = _shown(recorded.verdict, recorded.plan)
    at = recorded.incident.opened_at.isoformat()
    if now is None:
        why = "today's rules open no incident for its evidence, or join it to another one"
        return Comparison(recorded.incident.id, at, was, None, (why,))
    is_ = _shown(now.verdict, now.plan, recorded.approved)
    return Comparison(recorded.incident.id, at, was, is_, tuple(_reasons(was, is_)))


def _shown(verdict: Verdict, plan: Plan, approved: Collection[str] = ()) -> dict[str, Any]:
    """``approved``: what a person allowed then. That it is asked for holds it back no more than it did."""
    return {
        "cause": str(verdict.cause),
        "scope": str(verdict.scope),
        "confidence": round(verdict.confidence, 2),
        "drain": sorted(verdict.drain),
        "suspect": sorted(verdict.suspect),
        "restart": str(verdict.restart),
        "refusal": plan.refusal,
        "steps": [f"{step.kind} {step.node or step.job}" for step in plan.steps],
        "held_back": sorted(
            f"{name} ({wait.kind})"
            for wait in plan.waits
            if wait.kind in _MODES
            for name in wait.what
            if wait.kind not in _ASKED or name not in approved
        ),
        "explanation": plan_words(plan),
    }


_ASKED = frozenset({APPROVAL, LAPSED})  # in a replay nobody answers
_MODES = frozenset({"observe", *ASKING})  # waits that a mode is the reason of
_NAMES = {
    "cause": "cause", "scope": "scope", "drain": "nodes to drain", "suspect": "suspect nodes", "restart": "restart",
    "refusal": "refusal", "held_back": "held back by the mode",
}  # fmt: skip


def _reasons(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Confidence alone is no difference: nothing is done otherwise."""
    reasons = [
        f"{words}: {_said(was[key])} then, {_said(now[key])} now"
        for key, words in _NAMES.items()
        if was[key] != now[key]
    ]
    gone = [step for step in was["steps"] if step not in now["steps"]]
    new = [step for step in now["steps"] if step not in was["steps"]]
    if gone or new:
        parts = [f"not done now: {', '.join(gone)}"] if gone else []
        parts += [f"done now: {', '.join(new)}"] if new else []
        why = f" ({now['explanation']})" if now["explanation"] and now["explanation"] != was["explanation"] else ""
        reasons.append("; ".join(parts) + why)
    return reasons


def _said(value: Any) -> str:
    return (", ".join(value) if isinstance(value, list) else str(value)) or "none"
