"""Divides one check over many nodes: which node reads which files, and what their answers say together. Pure.

The structural check is done once, where the question was asked. What takes long is reading: the files are dealt out by
size, each node checks its own (`sentinel checkpoints validate PATH --share I/N`), and the checkpoint is valid when every
share is; invalid when any is; not known when an answer is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sentinel.checkpoints.records import Validity


def deal(sizes: Mapping[str, int], shares: int) -> list[list[str]]:
    """Deal files out so that the largest share is small: the largest file first, to the share that has least.

    The same for all who ask, whatever the order of the files. At most a third more than the best possible (Graham 1969).
    """
    if shares < 1:
        raise ValueError("at least one share")
    dealt: list[list[str]] = [[] for _ in range(shares)]
    loads = [0] * shares
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = loads.index(min(loads))
        dealt[least].append(name)
        loads[least] += sizes[name]
    return dealt


def parse_share(text: str) -> tuple[int, int]:
    """``3/8`` is the third of eight shares (counted from 0: index 2). ValueError for anything else."""
    index, slash, count = text.partition("/")
    if not slash or not index.isdigit() or not count.isdigit() or not 1 <= int(index) <= int(count):
        raise ValueError(f"{text!r} is no share: write 1/8 ... 8/8")
    return int(index) - 1, int(count)


def join_answers(answers: Sequence[Validity], shares: int) -> Validity:
    """What the shares' answers about one path say together."""
    if not answers:
        raise ValueError("no answer at all")
    first = answers[0]
    for answer in answers:
        if answer.valid is False:
            return answer
    for answer in answers:
        if answer.valid is None:
            return answer
    if len(answers) < shares:
        return replace(first, valid=None, reason=f"only {len(answers)} of {shares} shares were answered")
    if len({(answer.path, answer.step, answer.bytes) for answer in answers}) > 1:
        return replace(first, valid=None, reason="the nodes do not see the same checkpoint")
    return first
