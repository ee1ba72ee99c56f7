"""Verdicts without a cause: nothing failed, nothing was recognised, or several causes are as likely."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sentinel.classify.recurrence import onset
from sentinel.classify.weights import Weighed, grounds
from sentinel.config.rules import Rules
from sentinel.model.records import Alternative, Cause, Evidence, Incident, Kind, Restart, Scope, UnknownKind, Verdict
from sentinel.model.vocabulary import RUN_START

UNREAD = "unread_error"  # kind of a line that looks like an error and that no rule knows
EPOCH = "epoch"  # kind of a line that tells which epoch of how many it is
FINISHED = "finished"  # kind of a line that says that the training came to its end
ENDED = "ended"  # kind of a line that a program prints at its end, also after an error, or where it was told to end
STEPS_AFTER = 8  # so many step lines after an error show that the job survived it
_QUIET = frozenset(
    {Kind.STEP, EPOCH, Kind.CHECKPOINT_SAVED, UNREAD, FINISHED, ENDED, RUN_START}
    | {"pause", "preparing", "resumed", "straggler"}
)
_ADVICE = {
    UnknownKind.NO_FAILURE: "No failure is shown: steps go on, or the end is clean.",
    UnknownKind.NOTHING_RECOGNISED: "No rule knows what is written here: read the lines that look like errors.",
    UnknownKind.UNDECIDED: "The evidence does not decide between these causes: retry once, keep the logs and dumps.",
}


def unanswered(
    incident: Incident, weighed: Sequence[Weighed], ranked: Sequence[tuple[Cause, float]], rules: Rules
) -> Verdict:
    """The verdict *unknown*, with one of its three kinds."""
    best = ranked[0][0] if ranked else None
    shown = best is not None and any(item.of(best) > 0 and not item.reading.survived for item in weighed)
    if best is not None and shown:
        spoke_for, against = grounds(weighed, best)
        return Verdict(
            cause=Cause.UNKNOWN,
            scope=Scope.UNKNOWN,
            confidence=0.0,
            restart=Restart.RESUME,
            onset_step=onset(incident),
            alternatives=tuple(Alternative(cause, round(share, 3)) for cause, share in ranked[:3]),
            grounds=spoke_for,
            against=against,
            would_change=(rules.causes[best].confirm,),
            advice=_ADVICE[UnknownKind.UNDECIDED],
            unknown_kind=UnknownKind.UNDECIDED,
        )
    survived = [item for item in weighed if item.reading.survived]
    of_survived = {item.reading.evidence.id for item in survived}
    read = [item for item in incident.evidence if item.id not in of_survived]
    kind = UnknownKind.NO_FAILURE if _went_well(read) else UnknownKind.NOTHING_RECOGNISED
    # What the job went on after, strongest first: where it did fail, one of these is the likeliest cause.
    others = [(cause, share) for cause, share in ranked if any(item.of(cause) > 0 for item in survived)]
    went_on_after = grounds(survived, others[0][0])[0] if others else ()
    return Verdict(
        cause=Cause.UNKNOWN,
        scope=Scope.UNKNOWN,
        confidence=0.0,
        restart=Restart.NONE if kind is UnknownKind.NO_FAILURE else Restart.RESUME,
        onset_step=onset(incident),
        alternatives=tuple(Alternative(cause, round(share, 3)) for cause, share in others[:3]),
        against=tuple(replace(ground, weight=-ground.weight) for ground in went_on_after),
        advice=_ADVICE[kind],
        unknown_kind=kind,
    )


def steps_and_epochs(evidence: Iterable[Evidence]) -> list[Evidence]:
    """The lines of steps, and of epochs: of those about one epoch the first, as each rank may say that it begins it."""
    found = []
    epochs: dict[str | None, object] = {}  # by log: of which the last line told
    for item in evidence:
        if item.kind == EPOCH:
            number, path = item.data.get("epoch"), item.where.path
            again, epochs[path] = epochs.get(path) == number, number
            if again:
                continue
        elif item.kind != Kind.STEP:
            continue
        found.append(item)
    return found


def _went_well(evidence: Sequence[Evidence]) -> bool:
    """Whether steps go on after all that looks like an error, or the log reports success, and nothing else was reported."""
    if any(item.kind not in _QUIET for item in evidence):
        return False
    lines = [item.line or 0 for item in evidence if item.kind == UNREAD]
    last = max(lines, default=-1)
    if any((item.line or 0) > last for item in evidence if item.kind == FINISHED):
        return True
    if not lines and any(item.kind == ENDED for item in evidence):
        return True
    steps = sum((item.line or 0) > last for item in steps_and_epochs(evidence))
    return steps >= (STEPS_AFTER if lines else 1)
