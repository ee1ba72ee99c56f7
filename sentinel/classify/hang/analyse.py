"""Finds which rank blocks the others, in which collective, and why, from dumps of all ranks or some. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sentinel.classify.hang.group_state import GroupStates, build, newest_of_each
from sentinel.classify.hang.mismatch import Mismatch, describe, find_mismatches
from sentinel.classify.hang.stuck import left_behind, not_completed, not_started, oldest_pending
from sentinel.classify.hang.wait_graph import Wait, Waits, final, find_waits
from sentinel.model.collectives import Call, RankTrace, Unreadable

MAX_NAMED = 12  # ranks that a sentence lists
MAX_WAITING = 200_000  # pairs in ``waiting``; beyond it only who waits for the culprits


@dataclass(frozen=True, slots=True)
class HangFinding:
    """``kind``: ``missing`` (a member never called), ``mismatch``, ``stuck`` (all called, none completes), ``none``."""

    kind: str
    culprit_ranks: tuple[int, ...] = ()
    collective: str | None = None
    sequence: int | None = None
    group: str | None = None  # its label; ``group_name`` is as the dumps have it
    group_name: str | None = None
    group_ranks: tuple[int, ...] = ()
    waiting: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    explanation: str = ""
    confidence: float = 0.0
    basis: str = ""  # on what grounds the culprits were chosen
    without_dump: tuple[int, ...] = ()


# By grounds; never above how often the culprits were exactly right on generated failures (tests/bench/hang).
CONFIDENCE: dict[str, float] = {
    "idle": 0.95,
    "unseen": 0.9,
    "order": 0.9,
    "several": 0.7,
    "rest": 0.7,
    "cycle": 0.5,
    "minority": 0.95,
    "tie": 0.5,
    "not started": 0.9,
    "not completed": 0.6,
    "stuck": 0.5,
    "none": 0.9,
}


def analyse(
    traces: Iterable[RankTrace], unreadable: Iterable[Unreadable] = (), *, world_size: int | None = None
) -> HangFinding:
    chosen = newest_of_each(traces)
    torn = frozenset(item.rank for item in unreadable if item.rank is not None).difference(chosen)
    picture = build(chosen, (*torn, *range(world_size or 0)))
    waits = find_waits(picture)
    culprits, basis = final(picture, waits)
    mismatch = _deciding_mismatch(find_mismatches(picture), culprits, basis)
    if mismatch is not None:
        return _mismatch_finding(picture, waits, mismatch, torn)
    if basis in ("cycle", "order"):
        return _cycle_finding(picture, waits, culprits, basis, torn)
    if basis == "inside":
        return _stuck_finding(picture, torn, culprits)
    if culprits and basis == "rest":
        return _rest_finding(picture, culprits, torn)
    if culprits:
        return _missing_finding(picture, waits, culprits, basis, torn)
    if waits.open:
        return _stuck_finding(picture, torn, frozenset())
    return _finding(
        picture,
        torn,
        kind="none",
        basis="none",
        explanation="No rank has a collective that is not completed: nobody waits. If the job stands still, look at what "
        "its processes do on the host.",
    )


def _deciding_mismatch(mismatches: list[Mismatch], culprits: frozenset[int], basis: str) -> Mismatch | None:
    """A mismatch explains the rest unless somebody who took no part in it, and waits for nobody, is waited for."""
    for mismatch in mismatches:
        if (
            not culprits
            or basis in ("cycle", "order", "unseen")
            or culprits <= mismatch.everyone
            or (basis == "inside" and culprits & mismatch.everyone)
        ):
            return mismatch
    return None


def _finding(picture: GroupStates, torn: frozenset[int], **fields: object) -> HangFinding:
    basis = fields.get("basis")
    assert isinstance(basis, str)
    confidence = CONFIDENCE[basis]
    everyone = len(picture.traces) + len(picture.without_dump)
    if basis in ("idle", "minority", "stuck", "none") and everyone:
        # What was not seen could have changed it.
        confidence *= 0.5 + 0.5 * len(picture.traces) / everyone
    return HangFinding(
        confidence=round(confidence, 2),
        without_dump=tuple(sorted(picture.without_dump - torn)),
        **fields,  # type: ignore[arg-type]
    )


def some(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 2", "ranks 0, 1, 2 and 37 others"."""
    listed = sorted(ranks)
    if len(listed) == 1:
        return f"rank {listed[0]}"
    if len(listed) > MAX_NAMED:
        shown = [*map(str, listed[: MAX_NAMED - 1]), f"{len(listed) - MAX_NAMED + 1} others"]
    else:
        shown = [str(rank) for rank in listed]
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"


def _waiting(waits: Waits, culprits: frozenset[int], *, unseen: bool) -> dict[int, tuple[int, ...]]:
    graph = waits.graph(MAX_WAITING + 1)
    if sum(len(others) for others in graph.values()) > MAX_WAITING:
        graph = {}
        for wait in waits.waits:
            for rank, sequence in wait.waiting.items():
                direct = {other for other in culprits if wait.absent.get(other, sequence + 1) <= sequence}
                if direct:
                    graph.setdefault(rank, set()).update(direct)
    if unseen:
        left = MAX_WAITING
        for wait in waits.waits:
            possible = wait.unseen & culprits if left > 0 else frozenset()
            for rank in wait.waiting if possible else ():
                if left > 0 and (others := possible - {rank}):
                    left -= len(others)
                    graph.setdefault(rank, set()).update(others)
    return {rank: tuple(sorted(graph[rank])) for rank in sorted(graph)}


def _decisive(waits: Waits, culprits: frozenset[int]) -> Wait:
    """Where the culprits are missed most plainly: the fewest absent, then the earliest call."""
    candidates = [wait for wait in waits.waits if culprits & (wait.absent.keys() | wait.unseen)]

    def order(wait: Wait) -> tuple[int, int]:
        call = _missed(wait, culprits)[1]
        times = [call.created_ns] if call and call.created_ns else []
        return len(wait.absent) + len(wait.unseen - wait.absent.keys()), min(times, default=1 << 62)

    return min(candidates, key=order)


def _missed(wait: Wait, culprits: frozenset[int]) -> tuple[int, Call | None]:
    """The first sequence number that the culprits have not called and others wait in, and somebody's call of it."""
    if wait.call is not None:
        return wait.call.sequence, wait.call
    group = wait.group
    first = min((wait.absent[rank] for rank in culprits & wait.absent.keys()), default=0)
    pending = [
        call.sequence
        for rank in wait.waiting
        for call in group.traces[rank].calls
        if call.state != "completed" and call.sequence >= first
    ]
    sequence = min(pending or (newest for newest in wait.waiting.values() if newest >= first), default=first)
    return sequence, group.call_at(sequence)


def _missing_finding(
    picture: GroupStates, waits: Waits, culprits: frozenset[int], basis: str, torn: frozenset[int]
) -> HangFinding:
    wait = _decisive(waits, culprits)
    sequence, call = _missed(wait, culprits)
    operation = wait.operation or (call.operation if call else None)
    waiting = _waiting(waits, culprits, unseen=basis == "unseen")
    held = frozenset(rank for rank, others in waiting.items() if culprits & set(others))
    place = f"{operation or 'a collective'} number {sequence} of group {wait.group.label}"
    if basis == "unseen":
        text = (
            f"{some(held or wait.waiting)} wait{_s(held or wait.waiting)} in {place}, which every member whose dump was "
            f"read has called; {_unseen_because(culprits - torn, culprits & torn)}."
        )
    else:
        never = "has not called it and waits" if len(culprits) == 1 else "have not called it and wait"
        text = f"{some(held)} wait{_s(held)} in {place}; {some(culprits)} {never} for nobody in any group."
    others = sorted(frozenset(waiting) - held - culprits)
    if others:
        text += f" {some(others)} wait{_s(others)} for ranks that are themselves held up."
    if len(culprits) > 1:
        basis = "several" if basis == "idle" or len(culprits) > 2 else basis
    return _finding(
        picture,
        torn,
        kind="missing",
        basis=basis,
        culprit_ranks=tuple(sorted(culprits)),
        collective=operation,
        sequence=sequence,
        group=wait.group.label,
        group_name=wait.group.name,
        group_ranks=tuple(sorted(wait.group.members)),
        waiting=waiting,
        explanation=text,
    )


def _rest_finding(picture: GroupStates, culprits: frozenset[int], torn: frozenset[int]) -> HangFinding:
    """Old dumps do not list the members of groups; all but these have something pending."""
    others = frozenset(picture.traces) - culprits
    group, sequence = oldest_pending(picture, frozenset())
    call = group.call_at(sequence) if group is not None else None
    text = (
        f"{some(others)} wait{_s(others)} in groups whose members the dumps do not list; {some(culprits)} "
        f"{'has' if len(culprits) == 1 else 'have'} nothing pending."
    )
    return _finding(
        picture,
        torn,
        kind="missing",
        basis="rest",
        culprit_ranks=tuple(sorted(culprits)),
        collective=call.operation if call else None,
        sequence=sequence if call else None,
        group=group.label if group is not None else None,
        group_name=group.name if group is not None else None,
        waiting={rank: tuple(sorted(culprits)) for rank in sorted(others)},
        explanation=text,
    )


def _unseen_because(silent: frozenset[int], damaged: frozenset[int]) -> str:
    reasons = [f"{some(silent)} left no dump"] if silent else []
    if damaged:
        reasons.append(f"the dump of {some(damaged)} cannot be read")
    return " and ".join(reasons)


def _s(ranks: Iterable[int]) -> str:
    return "s" if len(list(ranks)) == 1 else ""


def _mismatch_finding(picture: GroupStates, waits: Waits, mismatch: Mismatch, torn: frozenset[int]) -> HangFinding:
    culprits = mismatch.odd
    called = "; ".join(f"{some(ranks)} called {what}" for ranks, what in mismatch.parties[:MAX_NAMED])
    text = (
        f"Number {mismatch.sequence} of group {mismatch.group.label} is not the same on all members "
        f"({mismatch.difference} differs): {called}."
    )
    if mismatch.even:
        text += " There is no majority, so all of them are named."
    waiting = {
        rank: others
        for rank in sorted(mismatch.everyone)
        if mismatch.group.outstanding(rank) is not None
        and (others := tuple(sorted((culprits if rank not in culprits else mismatch.everyone) - {rank})))
        and (rank not in culprits or mismatch.even)
    }
    for rank, more in _waiting(waits, culprits, unseen=False).items():
        waiting.setdefault(rank, more)
    majority = mismatch.group.calls_at(min(mismatch.parties[0][0]), mismatch.sequence)
    return _finding(
        picture,
        torn,
        kind="mismatch",
        basis="tie" if mismatch.even else "minority",
        culprit_ranks=tuple(sorted(culprits)),
        collective=majority[0].operation if majority else None,
        sequence=mismatch.sequence,
        group=mismatch.group.label,
        group_name=mismatch.group.name,
        group_ranks=tuple(sorted(mismatch.group.members)),
        waiting=waiting,
        explanation=text,
    )


def _cycle_finding(
    picture: GroupStates, waits: Waits, ranks: frozenset[int], basis: str, torn: frozenset[int]
) -> HangFinding:
    """All that are waited for wait themselves: calls in another order, or one of them ran ahead and stopped."""
    whole = basis == "order" or len(ranks) == 1 or _facing(waits, ranks)
    behind = ranks if whole else _furthest_behind(picture, ranks)
    culprits = behind or ranks
    wait = _decisive(waits, culprits)
    sequence, call = _missed(wait, culprits)
    operation = wait.operation or (call.operation if call else None)
    text = f"{some(ranks)} wait for one another: each has called something that another has not"
    if basis == "order":
        text = (
            f"Ranks wait for one another in a circle. {some(ranks)} left out a call, or made it later, which others make "
            f"before what {some(ranks)} called next."
        )
    elif whole and len(ranks) > 1:
        text = f"{some(ranks)} wait for one another: each receives before it sends, or sends before it receives."
    elif len(ranks) == 1:
        text = f"Ranks wait for one another in a circle, and by far the most wait for {some(ranks)}."
    elif behind:
        text += f"; {some(behind)} made the fewest calls of them and stopped first."
    else:
        text += ". They made the same number of calls, so they called them in different orders; all are named."
    return _finding(
        picture,
        torn,
        kind="missing" if behind else "mismatch",
        basis=basis,
        culprit_ranks=tuple(sorted(culprits)),
        collective=operation,
        sequence=sequence,
        group=wait.group.label,
        group_name=wait.group.name,
        group_ranks=tuple(sorted(wait.group.members)),
        waiting=_waiting(waits, culprits, unseen=False),
        explanation=text,
    )


def _facing(waits: Waits, ranks: frozenset[int]) -> bool:
    """Are these two ranks, both of which receive from the other first, or send to it first?"""
    sides = {
        (rank, wait.operation)
        for wait in waits.waits
        if wait.call is not None
        for rank, other in wait.edges()
        if rank in ranks and other in ranks
    }
    return len(ranks) == 2 and len(sides) == 2 and len({side for _, side in sides}) == 1


def _furthest_behind(picture: GroupStates, ranks: frozenset[int]) -> frozenset[int]:
    """Those with the fewest calls since the start, where all of them are comparable and some have more."""
    counts = {rank: picture.traces[rank].records for rank in ranks if rank in picture.traces}
    known = [count for count in counts.values() if count is not None]
    if len(known) != len(ranks) or len(set(known)) < 2:
        return frozenset()
    return frozenset(rank for rank, count in counts.items() if count == min(known))


def _stuck_finding(picture: GroupStates, torn: frozenset[int], within: frozenset[int]) -> HangFinding:
    """Everybody has called what is pending: the network, or a GPU inside the operation. ``within``: who sits in it."""
    behind, group, sequence = left_behind(picture)
    if not behind:
        group, sequence = oldest_pending(picture, within)
    operation, text, culprits, basis = None, "", frozenset[int](), "stuck"
    waiting: dict[int, tuple[int, ...]] = {}
    if group is not None:
        call = group.call_at(sequence)
        operation = call.operation if call else None
        what = describe([call]) if call else "a collective"
        text = f"All members have called number {sequence} of group {group.label} ({what}) and it does not complete: "
    culprits, reason = (behind, frozenset[int]()) if behind else not_started(picture)
    if behind and group is not None:
        here = behind & group.traces.keys()
        basis, why = "not completed", f"others finished it and went on, {some(here)} never did: the device stopped."
        if behind - here:
            why += f" The same holds of {some(behind - here)} in other groups."
        text = text.replace(" and it does not complete", "")
    elif culprits:
        basis, why = "not started", f"on {some(culprits)} the GPU has not begun it, while on others it runs."
    else:
        culprits = not_completed(group, sequence) if group is not None else frozenset()
        if culprits:
            basis, why = "not completed", f"it is done on the others and not on {some(culprits)}."
        else:
            why = "the network or a GPU inside the operation. No rank stands out, so none is named."
            if group is None:
                text = "Point-to-point calls are pending, and each has its counterpart: "
    if culprits and group is not None:
        pending = {rank for rank in group.traces if group.outstanding(rank) is not None}
        waiting = {rank: tuple(sorted(culprits)) for rank in sorted((reason or pending) - culprits)}
    return _finding(
        picture,
        torn,
        kind="stuck",
        basis=basis,
        culprit_ranks=tuple(sorted(culprits)),
        collective=operation,
        sequence=sequence if group is not None else None,
        group=group.label if group is not None else None,
        group_name=group.name if group is not None else None,
        group_ranks=tuple(sorted(group.members)) if group is not None else (),
        waiting=waiting,
        explanation=text + why,
    )
