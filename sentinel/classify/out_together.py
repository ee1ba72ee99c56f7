"""Finds nodes that Slurm reports as out of service together, for one reason: power, a switch, a setting. No drain helps."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice

from sentinel.classify.history import APPLICATION
from sentinel.classify.readings import Reading
from sentinel.config.rules import Drain, Form, Rules
from sentinel.errors import ProtocolError
from sentinel.model.hostlist import names_in
from sentinel.model.records import Scope, Trust

MANY = 3  # nodes that are out at once for one reason
AT_ONCE_S = 300.0  # slurmctld pings nodes in turn, and nodes boot for minutes
_MOST = 256  # counted no further: users can have written "n[1-999999]"


def out_together(readings: Sequence[Reading], rules: Rules) -> tuple[list[Reading], list[Reading]]:
    """``readings`` with what Slurm says of many nodes at once as the cluster's; and those that are about one node each."""
    rules_by_id = rules.by_id()
    said: dict[str, list[Reading]] = {}
    for reading in readings:
        rule = rules_by_id.get(reading.evidence.rule or "")
        if rule is not None and rule.form is Form.SLURM and reading.evidence.where.node and reading.weights:
            said.setdefault(reading.key, []).append(reading)
    counts = {key: most_at_once(_surest(group)) for key, group in said.items()}
    shared = {
        key: f"{'at least ' * (counts[key] >= _MOST)}{counts[key]} nodes at once, for one reason: none of them by itself"
        for key, group in said.items()
        if counts[key] >= MANY and max(group[0].weights, key=group[0].weights.__getitem__) not in APPLICATION
    }
    marked = [
        replace(reading, drain=Drain.NO, scope=Scope.CLUSTER, note=shared[reading.key])
        if reading.key in shared
        else reading
        for reading in readings
    ]
    return marked, [reading for reading in readings if reading.key not in shared]


def _surest(group: Sequence[Reading]) -> Sequence[Reading]:
    """What the system says, where it says anything: nodes that a user writes into a job's log do not acquit another."""
    return [reading for reading in group if reading.evidence.trust is Trust.SYSTEM] or group


def most_at_once(group: Sequence[Reading]) -> int:
    """Greatest number of nodes that readings in order of time name within ``AT_ONCE_S``."""
    window: deque[tuple[datetime, frozenset[str]]] = deque()
    named: Counter[str] = Counter()
    most = 0
    for reading in group:
        window.append((reading.evidence.at, nodes_of(reading.evidence.where.node or "")))
        named.update(window[-1][1])
        while (reading.evidence.at - window[0][0]).total_seconds() > AT_ONCE_S:
            for name in window.popleft()[1]:
                named[name] -= 1
                if not named[name]:
                    del named[name]
        most = max(most, len(named))
        if most >= _MOST:
            break
    return most


def nodes_of(name: str) -> frozenset[str]:
    """The nodes that a name or Slurm's short form (``n[1-3,07],m2``) stands for, ``_MOST`` at most; damaged, it is one."""
    try:
        return frozenset(islice(names_in(name), _MOST))
    except ProtocolError:
        return frozenset({name})
