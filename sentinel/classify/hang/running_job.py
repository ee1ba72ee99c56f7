"""Finds the rank that blocks a running job, from answers obtained without stopping it. Pure.

RAS counts say how many operations each rank has launched: polled twice, what does not move is frozen, and of frozen
ranks those with the lowest count hold up the others. Flight-recorder answers go further (groups, sequence numbers);
stacks say where a rank is that waits in no collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sentinel.classify.hang.analyse import HangFinding, analyse, some
from sentinel.model.collectives import RankTrace, Unreadable
from sentinel.model.live_collectives import Communicator, Member, RasPoll, StackGroups

MIN_POLL_GAP_S = 10.0  # a step of a large model takes seconds: closer polls would call every job frozen

# By grounds; set from what each can show, not measured: live answers of real hangs are not among the samples.
CONFIDENCE: dict[str, float] = {"dead": 0.9, "laggard": 0.85, "stacks": 0.6, "frozen": 0.5, "moving": 0.8}


@dataclass(frozen=True, slots=True)
class CommunicatorState:
    """Two polls of one communicator. ``moved`` None: not known (a member or a count is missing in one of them)."""

    key: str
    moved: bool | None
    laggards: tuple[Member, ...] = ()
    dead: tuple[Member, ...] = ()
    operation: str | None = None
    lowest: int | None = None
    highest: int | None = None


def compare_polls(first: RasPoll, second: RasPoll) -> list[CommunicatorState]:
    before = {communicator.key: communicator for communicator in first.communicators}
    return [_compare(before.get(after.key), after) for after in second.communicators]


def _compare(before: Communicator | None, after: Communicator) -> CommunicatorState:
    dead = tuple(member for member in after.members if member.dead or member.unresponsive)
    counted = [member for member in after.members if member.counts]
    earlier = {member.local_rank: member for member in before.members} if before else {}
    known = [member for member in counted if member.local_rank in earlier and earlier[member.local_rank].counts]
    moved: bool | None = None
    if any(earlier[member.local_rank].counts != member.counts for member in known):
        moved = True
    elif before is not None and before.told != after.told:
        moved = True  # the text names ranks only where they are few, but each count
    elif (known and len(known) == len(counted)) or (before is not None and after.told):
        moved = False
    if moved is not False:
        return CommunicatorState(after.key, moved, dead=dead)
    different: tuple[str, int, int] | None = None
    by_operation: dict[str, list[Member]] = {name: [] for name in after.told}
    for member in counted:
        for name in member.counts:
            by_operation.setdefault(name, []).append(member)
    for operation, having in sorted(by_operation.items()):
        numbers = [*(member.counts[operation] for member in having), *after.told.get(operation, ())]
        lowest, highest = min(numbers), max(numbers)
        if lowest < highest:
            laggards = tuple(member for member in having if member.counts[operation] == lowest)
            if laggards:
                return CommunicatorState(after.key, False, laggards, dead, operation, lowest, highest)
            different = different or (operation, lowest, highest)
    if different is not None:  # those behind are too many to be listed
        return CommunicatorState(after.key, False, (), dead, *different)
    return CommunicatorState(after.key, False, dead=dead)


def analyse_live(
    polls: tuple[RasPoll, RasPoll] | None = None,
    *,
    gap_s: float | None = None,
    least_gap_s: float = MIN_POLL_GAP_S,
    traces: Iterable[RankTrace] = (),
    unreadable: Iterable[Unreadable] = (),
    stacks: StackGroups | None = None,
    ranks: Mapping[tuple[str, int], int] | None = None,
) -> HangFinding:
    """The strongest of what was answered.

    Args:
        polls: two answers of NCCL's RAS port, ``gap_s`` apart.
        least_gap_s: closer polls say nothing; less than the default only of a job that is silent for several of its steps.
        ranks: (host, process id) -> global rank; without it a communicator's own numbers can be named only where it
            holds as many ranks as the largest one, which is the job.
    """
    traces = tuple(traces)
    finding = analyse(traces, unreadable) if traces else None
    states = compare_polls(*polls) if polls and gap_s is not None and gap_s >= least_gap_s else []
    if any(state.moved for state in states) and not any(state.dead for state in states):
        return HangFinding(
            kind="none",
            explanation=f"Operation counts moved within {gap_s:.0f} s: the job is not frozen.",
            confidence=CONFIDENCE["moving"],
            basis="moving",
        )
    if finding is not None and finding.culprit_ranks:
        return _supported(finding, states, stacks, ranks, polls)
    for grounds in ("dead", "laggard"):
        named = _from_states(states, grounds, ranks, polls)
        if named is not None:
            return named
    if stacks is not None and stacks.clear and stacks.outliers:
        return _from_stacks(stacks)
    if finding is not None:
        return finding
    frozen = bool(states) and all(state.moved is False for state in states)
    text = "What was answered does not tell whether anybody waits."
    if frozen and any(state.operation is not None for state in states):
        text = "Counts are frozen and differ, but the answer does not list the ranks that are behind."
    elif frozen:
        text = "All ranks launched the same operations and none moves: the network, or a GPU inside the operation."
    return HangFinding(
        kind="stuck" if frozen else "none",
        explanation=text,
        confidence=CONFIDENCE["frozen"] if frozen else 0.0,
        basis="frozen" if frozen else "not known",
    )


def _global(member: Member, ranks: Mapping[tuple[str, int], int] | None, *, whole_job: bool) -> int | None:
    if ranks is not None and member.pid is not None and (member.host, member.pid) in ranks:
        return ranks[member.host, member.pid]
    return member.local_rank if whole_job else None


def _from_states(
    states: list[CommunicatorState],
    grounds: str,
    ranks: Mapping[tuple[str, int], int] | None,
    polls: tuple[RasPoll, RasPoll] | None,
) -> HangFinding | None:
    sizes = {item.key: item.size or len(item.members) for item in polls[1].communicators} if polls else {}
    largest = max(sizes.values(), default=0)

    def order(state: CommunicatorState) -> tuple[int, int]:
        # The fewest behind is the closest to the cause: the others of a larger group may wait for those themselves.
        count = len(state.dead if grounds == "dead" else state.laggards)
        return count if ranks is not None else 0, -sizes.get(state.key, 0)

    for state in sorted(states, key=order):
        members = state.dead if grounds == "dead" else state.laggards
        if not members:
            continue
        whole_job = ranks is None and sizes.get(state.key) == largest
        named = [rank for member in members if (rank := _global(member, ranks, whole_job=whole_job)) is not None]
        places = ", ".join(f"{member.host} process {member.pid}" for member in members[:5])
        if grounds == "dead":
            text = f"NCCL cannot reach {len(members)} of communicator {state.key}: {places}."
        else:
            text = (
                f"Counts are frozen: {len(members)} of communicator {state.key} launched {state.lowest} {state.operation}, "
                f"others {state.highest}. Behind: {places}."
            )
        waiting = [
            rank
            for item in (polls[1].communicators if polls else ())
            if item.key == state.key
            for member in item.members
            if member not in members and (rank := _global(member, ranks, whole_job=whole_job)) is not None
        ]
        return HangFinding(
            kind="missing",
            culprit_ranks=tuple(sorted(named)),
            collective=state.operation,
            sequence=None if state.lowest is None else state.lowest + 1,
            group=state.key,
            waiting={rank: tuple(sorted(named)) for rank in sorted(waiting)} if named else {},
            explanation=text,
            confidence=CONFIDENCE[grounds],
            basis=grounds,
        )
    return None


def _from_stacks(stacks: StackGroups) -> HangFinding:
    ranks = tuple(sorted(stacks.outliers))
    return HangFinding(
        kind="missing",
        culprit_ranks=ranks,
        waiting=dict.fromkeys(stacks.ranks, ranks),
        explanation=f"{some(stacks.ranks)} are in the same place ({_innermost(stacks.dominant)}); "
        f"{some(ranks)} not: rank {ranks[0]} is in {_innermost(stacks.outliers[ranks[0]])}.",
        confidence=CONFIDENCE["stacks"],
        basis="stacks",
    )


def _innermost(frames: tuple[str, ...]) -> str:
    return frames[0] if frames else "no Python frame"


def _supported(
    finding: HangFinding,
    states: list[CommunicatorState],
    stacks: StackGroups | None,
    ranks: Mapping[tuple[str, int], int] | None,
    polls: tuple[RasPoll, RasPoll] | None,
) -> HangFinding:
    """What the flight recorders say, with what the other answers add to it or hold against it."""
    text = finding.explanation
    for grounds in ("dead", "laggard"):
        other = _from_states(states, grounds, ranks, polls)
        if other is not None and other.culprit_ranks:
            agree = set(other.culprit_ranks) & set(finding.culprit_ranks)
            text += f" NCCL's own counts {'agree' if agree else 'name others'}: {other.explanation}"
            break
    if stacks is not None:
        for rank in finding.culprit_ranks[:3]:
            if stacks.outliers.get(rank):
                text += f" Rank {rank} is in {stacks.outliers[rank][0]}."
    return replace(finding, explanation=text)
