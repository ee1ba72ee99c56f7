"""Where a rank stands in the collective calls of its group, as a log says it."""

from __future__ import annotations

from dataclasses import astuple, dataclass

RANK_STATE = "rank_state"  # kind of evidence: a line that says where ranks stand
OP_COUNT = "op_count"  # kind of evidence: a call that NCCL logged, of one communicator of one process


@dataclass(frozen=True, slots=True)
class RankState:
    """What was said of one rank. Counters are numbers of calls of its group; ``sequence`` is the call it is in."""

    rank: int
    group: str = ""
    enqueued: int | None = None
    started: int | None = None
    completed: int | None = None
    sequence: int | None = None
    op: str = ""
    size: str = ""

    @property
    def call(self) -> int | None:
        """The call that the rank is in: the one named, else the first that it has not completed."""
        if self.sequence is not None:
            return self.sequence
        if self.completed is None or (self.enqueued is not None and self.enqueued <= self.completed):
            return None
        return self.completed + 1

    def packed(self) -> str:
        """As one text, for the data of an evidence."""
        return ":".join("" if value is None else str(value) for value in astuple(self))


def states_of(packed: str) -> list[RankState]:
    """The states that ``packed`` holds, each ended by a semicolon."""
    states = []
    for text in packed.split(";")[:-1]:
        rank, group, enqueued, started, completed, sequence, op, size = text.split(":")
        states.append(
            RankState(
                int(rank), group, _count(enqueued), _count(started), _count(completed), _count(sequence), op, size
            )
        )
    return states


def _count(text: str) -> int | None:
    return int(text) if text else None
