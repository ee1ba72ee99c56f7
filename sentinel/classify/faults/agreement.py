"""Finds nodes on which two words that each only advise a drain agree: two events, not one that was told twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sentinel.classify.readings import Reading
from sentinel.config.rules import Role
from sentinel.model.records import Source, Trust
from sentinel.model.vocabulary import OPEN_ENGINE


@dataclass(frozen=True, slots=True)
class _Word:
    """What one line, or one reading of telemetry, says: the keys of all that was read from it."""

    source: Source
    keys: frozenset[str]
    is_symptom: bool

    def agrees(self, other: _Word) -> bool:
        # A CPU that stands still, storage or memory that does not answer: each watchdog of the kernel tells of it.
        echo = self.is_symptom and other.is_symptom and self.source is other.source
        return not echo and self.keys.isdisjoint(other.keys)


def agreeing(readings: Iterable[Reading]) -> list[str]:
    """Nodes of which two lines, or readings of telemetry, speak for a drain: no rule knows both, and they are no two
    symptoms in one log.

    One of them at least is not by an engine of DCGM in which any user of the node may write.
    """
    said: dict[str, dict[object, list[Reading]]] = {}  # by node and line what was read from it
    heard: set[str] = set()
    for reading in readings:
        node = reading.evidence.where.node
        if node is None or reading.evidence.trust is not Trust.SYSTEM or not reading.drain.convicts:
            continue
        said.setdefault(node, {}).setdefault(_line(reading), []).append(reading)
        if reading.evidence.data.get(OPEN_ENGINE) is not True:
            heard.add(node)
    return [node for node, lines in said.items() if node in heard and _two(set(map(_word, lines.values())))]


def _two(words: Iterable[_Word]) -> bool:
    known = list(words)
    return any(one.agrees(other) for number, one in enumerate(known) for other in known[:number])


def _word(line: list[Reading]) -> _Word:
    keys = frozenset(reading.key for reading in line)
    return _Word(line[0].evidence.source, keys, all(reading.role is Role.SYMPTOM for reading in line))


def _line(reading: Reading) -> object:
    """What several rules know as one line has the same text and place; of a live log no numbers of lines are known."""
    evidence = reading.evidence
    return evidence.source, evidence.where.path, evidence.line, evidence.at, evidence.text or evidence.id
