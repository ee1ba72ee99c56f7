"""Finds nodes on which two words that each only advise a drain agree: two events, not one that was told twice."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.classify.readings import Reading
from sentinel.model.records import Trust
from sentinel.model.vocabulary import OPEN_ENGINE


def agreeing(readings: Iterable[Reading]) -> list[str]:
    """Nodes of which two lines, or readings of telemetry, speak for a drain, and no rule knows both.

    One of them at least is not by an engine of DCGM in which any user of the node may write.
    """
    said: dict[str, dict[object, set[str]]] = {}  # by node and line the keys of what was read from it
    heard: set[str] = set()
    for reading in readings:
        node = reading.evidence.where.node
        if node is None or reading.evidence.trust is not Trust.SYSTEM or not reading.drain.convicts:
            continue
        said.setdefault(node, {}).setdefault(_line(reading), set()).add(reading.key)
        if reading.evidence.data.get(OPEN_ENGINE) is not True:
            heard.add(node)
    return [node for node, lines in said.items() if node in heard and _two(set(map(frozenset, lines.values())))]


def _two(words: Iterable[frozenset[str]]) -> bool:
    known = list(words)
    return any(one.isdisjoint(other) for number, one in enumerate(known) for other in known[:number])


def _line(reading: Reading) -> object:
    """What several rules know as one line has the same text and place; of a live log no numbers of lines are known."""
    evidence = reading.evidence
    return evidence.source, evidence.where.path, evidence.line, evidence.at, evidence.text or evidence.id
