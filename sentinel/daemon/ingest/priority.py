"""Recognises evidence that convicts a node on its own, so that it is handled before other evidence."""

from __future__ import annotations

from sentinel.classify.readings import read
from sentinel.config.rules import Drain, Rules
from sentinel.model.records import Evidence, Trust


class ConvictingEvidence:
    """Whether one item from a trusted source is enough, by the rules, to drain its node.

    Used only for the order in which evidence is handled.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._by_id = rules.by_id()

    def __call__(self, item: Evidence) -> bool:
        if item.trust is not Trust.SYSTEM:
            return False
        reading = read(item, self._rules, self._by_id)
        return reading is not None and reading.drain is Drain.YES
