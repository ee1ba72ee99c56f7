"""Parses positions of ranks in their collective calls, as watchdogs, dumps and people print them.

``[Rank 5] ... Last enqueued NCCL work: 136, last completed NCCL work: 135`` (PyTorch ProcessGroupNCCL.cpp),
``last_enqueued_collective: 136`` (its flight recorder's ``pg_status``), ``rank 2: enqueued=9 completed=8``,
``[rank3] stuck at seq 4410 op=BROADCAST shape=[1]``. One line may speak of several ranks; that from which it heard of a
timeout (``from rank 1``) is none of them.
"""

from __future__ import annotations

import re

from sentinel.model.rank_states import RankState

MOST = 64  # ranks of one line that are read

_RANK = re.compile(r"(?i)(?<!\bfrom )(?<!\bfrom  )\branks?[ =:_#]{0,2}(\d{1,6})\b")
_GROUP = re.compile(r"(?i)\b(?:pg|group|process[ _]group)(?: ?(?:id|guid))?[ =:#]{1,2}(\w{1,32})")
_COUNTER = re.compile(
    r"(?i)\b(?:last[_ ])?(enqueued|started|completed|enq|comp)(?:[_ ](?:NCCL[_ ])?(?:works?|collectives?|seq|op)\b)?"
    r"['\"]?(?: ?[:=#] ?| )(\d{1,12})\b"
)
_SEQUENCE = re.compile(
    r"(?i)\b(?:seq(?:num|uence[_ ](?:number|id))?|collective_seq_id|opcount|work sequence id)['\"]?"
    r"(?: ?[:=#] ?| )(\d{1,12})\b"
)
_OP = re.compile(
    r"(?i)(_?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|send|recv|reduce|gather|scatter)"
    r"(?:_base|_into_tensor(?:_coalesced)?|_tensor(?:_coalesced)?|_coalesced|v)?)\b"
)
_SIZE = re.compile(r"(?i)\b(?:numel(?:in)?|count|shape|size)\b['\"]?(?: ?[:=] ?| )(?:\[\[?([\d, ]{0,60})\]|(\d{1,16}))")
_NAMES = {"enq": "enqueued", "comp": "completed"}


def rank_states(line: str) -> list[RankState]:
    """The ranks that the line speaks of, in its order; none where it names no rank, or no counter of its calls."""
    marks = list(_RANK.finditer(line))
    if not marks:
        return []
    group = _GROUP.search(line)
    found: dict[int, RankState] = {}
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        rank = int(mark[1])
        state = _state(
            rank, line[mark.end() : following.start() if following else len(line)], group[1] if group else ""
        )
        if state is not None and rank not in found and len(found) < MOST:
            found[rank] = state
    return list(found.values())


def _state(rank: int, text: str, group: str) -> RankState | None:
    counters = {_NAMES.get(name.lower(), name.lower()): int(value) for name, value in reversed(_COUNTER.findall(text))}
    sequence = _SEQUENCE.search(text)
    if sequence is None and not counters.keys() & {"enqueued", "completed"}:
        return None
    op, size = _OP.search(text), _SIZE.search(text)
    return RankState(
        rank,
        group,
        counters.get("enqueued"),
        counters.get("started"),
        counters.get("completed"),
        int(sequence[1]) if sequence else None,
        _name(op[1]) if op else "",
        (size[1] or size[2] or "").replace(" ", "") if size else "",
    )


def _name(op: str) -> str:
    """One name for ``all_reduce``, ``AllReduce``, ``nccl:all_reduce`` and ``ALLREDUCE``."""
    plain = op.upper().strip("_")
    for long, short in (("ALL_", "ALL"), ("REDUCE_SCATTER", "REDUCE_SCATTER"), ("TO_ALL", "TOALL")):
        plain = plain.replace(long, short)
    return plain
