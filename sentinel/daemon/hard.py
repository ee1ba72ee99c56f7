"""Hard evidence goes first: what convicts a node by itself must not wait for a burst of what does not."""

from __future__ import annotations

from sentinel.classify.readings import read
from sentinel.model import Evidence, Trust
from sentinel.rules import Drain, Rules


class Hard:
    """Whether one item, by the rules and from a source that can be trusted, is enough to drain its node. It decides the
    order in which things are looked at and nothing else."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._by_id = rules.by_id()

    def __call__(self, item: Evidence) -> bool:
        if item.trust is not Trust.SYSTEM:
            return False
        reading = read(item, self._rules, self._by_id)
        return reading is not None and reading.drain is Drain.YES
