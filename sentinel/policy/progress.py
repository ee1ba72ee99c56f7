"""Judges what earlier attempts of a job gained: whether it may be tried again, and which nodes failed it in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import accumulate

from sentinel.config.settings import Limits
from sentinel.model.records import JobView, Step, Verdict
from sentinel.policy.shares import at_least
from sentinel.policy.situation import PastRestart, Situation

_ANY_CAUSE = 2  # different causes are more likely bad luck than one that comes again: twice as many tries


def breaks_nodes(verdict: Verdict, job: JobView, situation: Situation, limits: Limits, now: datetime) -> str:
    """Why this job must get no more nodes, or empty: another one broke for the same cause in attempt after attempt.

    Several nodes of one attempt count once: they more likely share a cause of their own.
    """
    since = now - timedelta(seconds=limits.suspect_job_window_s)
    earlier: dict[int | None, list[str]] = {}
    for hurt in situation.hurt:
        if hurt.cause is verdict.cause and hurt.at >= since:
            earlier.setdefault(hurt.attempt, []).append(hurt.node)
    nodes: dict[str, None] = {}
    attempts = 0
    for named in (*earlier.values(), verdict.drain):
        attempts += any(name not in nodes for name in named)
        nodes.update(dict.fromkeys(named))
    width = job.node_count or len(job.nodes)
    if not verdict.drain or attempts < max(limits.suspect_job_nodes, at_least(limits.suspect_job_fraction, width)):
        return ""
    return (
        f"In {attempts} attempts of job {job.id} another node broke each time, of {verdict.cause}: {', '.join(nodes)}. "
        "The job may break them, and is held so that it gets no more; the nodes stay drained."
    )


def no_progress(verdict: Verdict, situation: Situation, limits: Limits) -> str:
    """Why the job must not be tried again, or empty (promise 4: a budget in steps gained, not in tries)."""
    past = situation.restarts
    most = min(limits.restarts_per_job, situation.intent.retries if situation.intent.retries is not None else 10**9)
    if len(past) >= most:
        return f"Restarted {len(past)} times, {most} are allowed: held."
    fruitless, alike = _fruitless(verdict, situation)
    if alike >= limits.restarts_without_progress and not situation.steps_back:  # from an older one it was not tried yet
        return f"The same cause {alike + 1} times in a row without a step gained: held."
    if fruitless >= _ANY_CAUSE * limits.restarts_without_progress:
        return f"{fruitless + 1} failures in a row without a step gained, of different causes: held."
    return ""


def still_held(hold: Step, situation: Situation) -> Step | None:
    """The hold that was planned, where the advice is still the same and the attempt is not known to have got further.

    What it was held for is not counted again: a window that has passed or a changed limit releases no job of which people
    were told that they do.
    """
    before, reached = situation.held, situation.last_step
    if before is None or before.data.get("reason") != hold.data.get("reason"):
        return None
    known = before.data.get("reached", reached)
    got_further = reached is not None and reached > (known if isinstance(known, int) else -1)
    return None if got_further else before


def failed_in_turn(verdict: Verdict, situation: Situation) -> tuple[str, ...]:
    """Nodes on which attempts in a row failed without a step gained, the newest first; only what was blamed alone counts.

    If the next attempt gets one of them again, the job goes round between them until it is held.
    """
    fruitless, _ = _fruitless(verdict, situation)
    if not fruitless:
        return ()
    before = situation.restarts[: -fruitless - 1]
    attempts: dict[int | None, list[str]] = {}
    for hurt in situation.hurt:
        if not before or hurt.at >= before[-1].at:
            attempts.setdefault(hurt.attempt, []).append(hurt.node)
    blamed = [*attempts.values(), [*verdict.drain, *verdict.suspect]]
    return tuple(dict.fromkeys(names[0] for names in reversed(blamed) if len(set(names)) == 1))


def _fruitless(verdict: Verdict, situation: Situation) -> tuple[int, int]:
    """Restarts in a row without a step gained, and how many of them in a row were of the present cause."""
    fruitless = alike = 0
    same = True
    reached, observed, resumed = situation.last_step, situation.observed, None
    if verdict.onset_step is not None and reached is not None:
        reached = min(reached, verdict.onset_step)  # what came after bad numbers is nothing gained
    steps = _highest([restart.step_before for restart in situation.restarts])
    begun = _highest([restart.resumed_step for restart in situation.restarts])
    for restart, highest, latest in reversed(list(zip(situation.restarts, steps, begun, strict=True))):
        if _gained(restart, highest, latest, reached, resumed, observed=observed) is not False:
            break
        same = same and restart.cause is verdict.cause
        fruitless += 1
        alike += same
        reached, observed, resumed = restart.step_before, restart.observed, restart.resumed_step
    return fruitless, alike


def _highest(steps: Sequence[int | None]) -> Iterator[int]:
    """Of each restart's step, the highest up to it; -1 while none is known."""
    return accumulate((-1 if step is None else step for step in steps), max)


def _gained(
    restart: PastRestart, highest: int, latest: int, reached: int | None, resumed: int | None, *, observed: bool
) -> bool | None:
    """Whether the attempt after ``restart`` got further than all before it; None if not known.

    Args:
        highest: the highest step that an attempt before it reached.
        latest: the latest checkpoint from which that attempt, or one before it, began.
        reached: the last step of that attempt that was seen.
        resumed: the step of the checkpoint from which the job resumed after that attempt.
        observed: whether that attempt was watched from its beginning; if not, it may have reached more.
    """
    if resumed is not None and restart.resumed_step is not None and resumed > latest:
        return (
            True  # a later checkpoint than any before: one that was chosen already may only have been passed over since
        )
    if reached is not None and reached > highest:
        return True
    return False if observed else None
