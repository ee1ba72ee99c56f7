"""Splits what a plan wants by the modes: what may be done, what a person is asked for, what is only observed (promise 7).

Pieces of a plan are named as in ``Wait.what``: "drain n1", "restart 8801". An approval holds for the names that were
shown, for the cause that was shown, and for ``modes.approval_s``; what is wanted beside them is asked for anew. So a
restart in the allocation has a name of its own: who allowed it has not allowed the requeue that follows when it fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.config.modes import ACT, SUGGEST, Modes
from sentinel.model.approvals import APPROVAL, LAPSED, OF_JOBS, REFUSED, Answer
from sentinel.model.records import NODE_STEPS, Cause, Incident, Step, StepKind, Wait
from sentinel.policy.situation import Situation, components_of

OBSERVED = "observe"  # kind of the wait of what a mode only observes


def names(steps: Sequence[Step]) -> tuple[str, ...]:
    """What the steps do, in the words of a listing: a restart is one thing."""
    named = []
    for step in steps:
        if step.kind in NODE_STEPS:
            named.append(f"{step.kind} {step.node}")
        elif step.kind in OF_JOBS:
            named.append(OF_JOBS[step.kind].format(step.job))
        elif step.kind is StepKind.GIVE_BACK:
            named.append(f"give back nodes of {step.job}")
    return tuple(named)


def observed_only(named: Sequence[str]) -> str:
    """Words of a plan of which these parts are observed, and others are done."""
    return f"Observed only: {', '.join(named)}."


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the modes and people's answers allow for one verdict at one moment."""

    incident: Incident
    cause: Cause
    situation: Situation
    modes: Modes
    now: datetime

    def of(self, step: Step) -> str:
        """The mode that holds for this step."""
        if step.node is not None and step.node in self.situation.fleet.nodes:
            partitions = self.situation.fleet.nodes[step.node].partitions
        else:
            job = self.situation.job
            parts = (job, *components_of(self.situation)) if job is not None else ()
            partitions = tuple(name for part in parts for name in part.asked_partitions)
        mode = self.modes.of(partitions, self.cause)
        return mode.drain if step.kind in NODE_STEPS else mode.restart

    def allowed(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """The steps that may be carried out now. Those of a job go together: they are allowed under its restart's name."""
        yes = []
        of_job = names([step for step in steps if step.kind not in NODE_STEPS])
        for step in steps:
            mode = self.of(step)
            named = names([step]) if step.kind in NODE_STEPS else of_job
            may = mode == ACT or (mode == SUGGEST and all(map(self._approved, named)))
            if may and not any(map(self._is_refused, named)):
                yes.append(step)
        return tuple(yes)

    def waits(self, skipped: Sequence[Step], *, alone: bool) -> tuple[Wait, ...]:
        """What the steps that are not allowed wait for.

        Args:
            alone: whether nothing of the plan is allowed.
        """
        # In act, too, what a person has refused is for a person to allow.
        suggested = [step for step in skipped if self.of(step) in (ACT, SUGGEST)]
        observed = [step for step in skipped if step not in suggested]
        found = [*self._refused(names(suggested)), *self._asked(names(suggested))]
        if observed:
            what = names(observed)
            said = "Observe mode: nothing is done." if alone and not suggested else observed_only(what)
            found.append(Wait(OBSERVED, self.now, said, what))
        return tuple(found)

    def _answer(self, name: str) -> Answer | None:
        """The newest answer about this, if it was about this cause."""
        about = [a for a in self.situation.answers if name in a.what and a.cause is self.cause]
        return about[-1] if about else None

    def _approved(self, name: str) -> bool:
        answer = self._answer(name)
        return answer is not None and answer.approved and self.now - answer.at <= self._valid

    def _is_refused(self, name: str) -> bool:
        answer = self._answer(name)
        return answer is not None and not answer.approved

    @property
    def _valid(self) -> timedelta:
        return timedelta(seconds=self.modes.approval_s)

    def _refused(self, named: Sequence[str]) -> list[Wait]:
        """One wait for each refusal that stands."""
        found: dict[Answer, list[str]] = {}
        for name in named:
            if (answer := self._answer(name)) is not None and not answer.approved:
                found.setdefault(answer, []).append(name)
        waits = []
        for answer, what in found.items():
            note = f": {answer.note}" if answer.note else ""
            words = (
                f"{', '.join(what)}: refused by {answer.by}{note}. Not done, unless an operator approves it after all: "
                f"sentinel approve {self.incident.id}."
            )
            waits.append(Wait(REFUSED, answer.at, words, tuple(what)))
        return waits

    def _asked(self, named: Sequence[str]) -> list[Wait]:
        """The request for what nobody has answered, if there is anything."""
        what = tuple(name for name in named if not self._is_refused(name))
        if not what:
            return []
        before = self.situation.request
        same = before is not None and self.situation.request_cause is self.cause and set(what) <= set(before.what)
        if before is not None and same and before.kind == LAPSED:
            return [self._lapsed(what, before.since)]
        since = before.since if before is not None and same else self.now
        until = before.until if before is not None and same and before.until is not None else since + self._valid
        if until <= self.now:
            return [self._lapsed(what, until)]
        words = (
            f"An operator is asked to approve {', '.join(what)} until {until:%Y-%m-%d %H:%M} UTC: "
            f"sentinel approve {self.incident.id}, or sentinel refuse {self.incident.id}."
        )
        return [Wait(APPROVAL, since, words, what, until)]

    def _lapsed(self, what: tuple[str, ...], at: datetime) -> Wait:
        words = (
            f"Nobody approved {', '.join(what)} until {at:%Y-%m-%d %H:%M} UTC: not done. An operator still can approve it: "
            f"sentinel approve {self.incident.id}."
        )
        return Wait(LAPSED, at, words, what)
