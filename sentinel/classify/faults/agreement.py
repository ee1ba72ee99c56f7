"""Finds nodes on which two words that each only advise a drain agree: two events, not one that was told twice; and whose
words say how many nodes share a fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sentinel.classify.readings import Reading
from sentinel.config.rules import Drain
from sentinel.model.changes import may_be_of_any_user
from sentinel.model.records import Trust

# Rules that know what different parts of the kernel say of one event, each. A reset that works, or storage that answers
# again, is told later than they are.
_ONE_EVENT = (
    frozenset({"hung-task", "rcu-stall", "soft-lockup"}),  # watchdogs of a CPU, or of a wait, that goes on for too long
    frozenset({"scsi-disk", "local-disk", "disk-given-up"}),  # one command of a disk: SCSI, block layer, file system
    frozenset({"amd-ring-timeout", "amd-queue-stuck"}),  # a program that does not let go of the GPU, before its reset
    frozenset({"netdev-watchdog", "port-down"}),  # a queue that stopped, and the link while the driver starts it anew
)
_EVENT_OF = {key: "+".join(sorted(keys)) for keys in _ONE_EVENT for key in keys}


def agreeing(readings: Iterable[Reading]) -> list[str]:
    """Nodes of which two lines, or readings of telemetry, speak for a drain: no rule knows both, and they are not known to
    tell of one event.

    One of them at least no user of the node can have caused, as by an engine of DCGM in which any may write.
    """
    said: dict[str, dict[object, set[str]]] = {}  # by node and line what was read from it
    heard: set[str] = set()
    for reading in readings:
        node = reading.evidence.where.node
        if node is None or reading.evidence.trust is not Trust.SYSTEM or not reading.drain.convicts:
            continue
        said.setdefault(node, {}).setdefault(_line(reading), set()).add(_EVENT_OF.get(reading.key, reading.key))
        if not may_be_of_any_user(reading.evidence):
            heard.add(node)
    return [node for node, lines in said.items() if node in heard and _two(set(map(frozenset, lines.values())))]


def widely_told(readings: Sequence[Reading]) -> Sequence[Reading]:
    """Those that tell how many share a fault: where machines' own words convict a node, these words alone.

    A program may print any node's name, and the peers of a broken one print that they lost it: neither acquits it.
    """
    own = [reading for reading in readings if reading.evidence.trust is Trust.SYSTEM]
    convicted = any(reading.drain is Drain.YES and reading.evidence.where.node for reading in own) or agreeing(own)
    return own if convicted else readings


def _two(words: Iterable[frozenset[str]]) -> bool:
    known = list(words)
    return any(one.isdisjoint(other) for number, one in enumerate(known) for other in known[:number])


def _line(reading: Reading) -> object:
    """What several rules know as one line has the same text and place; of a live log no numbers of lines are known."""
    evidence = reading.evidence
    return evidence.source, evidence.where.path, evidence.line, evidence.at, evidence.text or evidence.id
