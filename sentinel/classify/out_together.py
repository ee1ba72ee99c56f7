"""Finds nodes that Slurm reports as out of service together, for one reason: power, a switch, a setting. No drain helps."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sentinel.classify.history import APPLICATION
from sentinel.classify.readings import Reading
from sentinel.config.rules import Drain, Form, Rules
from sentinel.model.records import Scope

MANY = 3  # nodes that are out at once for one reason
AT_ONCE_S = 300.0  # slurmctld pings nodes in turn, and nodes boot for minutes
_BRACKETS = re.compile(r"\[((?:\d{1,9}(?:-\d{1,9})?,?){1,4000})\]")


def out_together(readings: Sequence[Reading], rules: Rules) -> tuple[list[Reading], list[Reading]]:
    """``readings`` with what Slurm says of many nodes at once as the cluster's; and those that are about one node each."""
    rules_by_id = rules.by_id()
    said: dict[str, list[Reading]] = {}
    for reading in readings:
        rule = rules_by_id.get(reading.evidence.rule or "")
        if rule is not None and rule.form is Form.SLURM and reading.evidence.where.node and reading.weights:
            said.setdefault(reading.key, []).append(reading)
    counts = {key: most_at_once(group) for key, group in said.items()}
    shared = {
        key: f"{counts[key]} nodes at once, for one reason: none of them by itself"
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


def most_at_once(group: Sequence[Reading]) -> int:
    """Greatest number of nodes that readings in order of time name within ``AT_ONCE_S``."""
    window: deque[tuple[datetime, str]] = deque()
    named: Counter[str] = Counter()
    now = most = 0
    for reading in group:
        at, name = reading.evidence.at, reading.evidence.where.node or ""
        window.append((at, name))
        now += 0 if named[name] else nodes_of(name)
        named[name] += 1
        while (at - window[0][0]).total_seconds() > AT_ONCE_S:
            gone = window.popleft()[1]
            named[gone] -= 1
            now -= 0 if named[gone] else nodes_of(gone)
        most = max(most, now)
    return most


def nodes_of(name: str) -> int:
    """Number of nodes that a name or Slurm's short form (``n[1-3,07],m2``) stands for."""
    ranges = [part.split("-") for part in ",".join(_BRACKETS.findall(name)).split(",") if part]
    plain = sum(1 for part in _BRACKETS.sub("[", name).split(",") if part and "[" not in part)
    return plain + sum(max(int(ends[-1]) - int(ends[0]) + 1, 1) for ends in ranges)
