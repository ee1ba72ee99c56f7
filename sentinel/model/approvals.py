"""What people answered when they were asked to approve a plan (mode suggest)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sentinel.model.records import NODE_STEPS, Cause, Plan, StepKind, Wait, require_aware, stable_id

APPROVAL = "approval"  # kinds of waits: a person is asked; nobody answered in time; a person refused
LAPSED = "approval-lapsed"
REFUSED = "refused"
ASKING = frozenset({APPROVAL, LAPSED, REFUSED})  # what a person may still say yes to
# What is wanted of a job, by the step that begins it, as in ``Wait.what``.
OF_JOBS: Mapping[StepKind, str] = {
    StepKind.REQUEUE_HOLD: "restart {}", StepKind.STOP_RUN: "restart {} in its allocation", StepKind.HOLD: "hold {}",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer to one request. It holds for exactly what was shown, and for that cause."""

    at: datetime
    by: str
    approved: bool
    what: tuple[str, ...]  # as in ``Wait.what``: "drain n1", "restart 8801"
    cause: Cause
    note: str = ""

    def __post_init__(self) -> None:
        require_aware(self.at)


def job_names(job: int) -> frozenset[str]:
    """The names of all steps that may be wanted for this job."""
    return frozenset(words.format(job) for words in OF_JOBS.values())


def asked(plan: Plan) -> tuple[Wait, ...]:
    """The waits of the plan that a person's answer may end."""
    return tuple(wait for wait in plan.waits if wait.kind in ASKING)


def kept_by_people(plan: Plan) -> set[str]:
    """The nodes that a person refused to have taken out of service."""
    parts = [name.partition(" ") for wait in plan.waits if wait.kind == REFUSED for name in wait.what]
    return {node for kind, _, node in parts if kind in NODE_STEPS}


_WHOLE = frozenset({*ASKING, "observe", "paused"})  # kinds of waits whose sentences need no name


def plan_words(plan: Plan) -> str:
    """Why the plan has these steps, or none, and what is waited for beside them."""
    further = [wait for wait in plan.waits if wait.explanation not in plan.explanation]
    said = [w.explanation if w.kind in _WHOLE else f"Waits ({w.kind}): {w.explanation}" for w in further]
    return " ".join(filter(None, [plan.explanation, *said]))


def beside_waits(explanation: str, waits: Iterable[Mapping[str, Any]]) -> str:
    """What a plan's explanation says beside its waits, of waits as in the daemon's answers.

    Where nothing is done it has their sentences, and in earlier releases always, after their kinds.
    """
    for wait in waits:
        for words in (f"Waits ({wait['kind']}): {wait['explanation']}", wait["explanation"]):
            explanation = explanation.replace(words, "")
    return " ".join(explanation.split())


def request_of(plan: Plan, cause: Cause) -> str:
    """An id of what a person is asked now; it changes when something else is asked, or for another cause."""
    return stable_id("request", plan.incident, cause, *(f"{w.kind} {w.since} {w.what}" for w in asked(plan)))[:8]


def open_names(waits: Sequence[Wait]) -> tuple[str, ...]:
    """What these waits are about, each once."""
    return tuple(dict.fromkeys(name for wait in waits for name in wait.what))
