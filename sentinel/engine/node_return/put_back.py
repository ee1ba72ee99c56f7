"""Remembers which nodes Sentinel had drained and somebody has put back into service since.

What spoke against such a node before is settled in every incident, also in one that only waited to drain it as well, and
however long ago the incident was closed that did.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sentinel.engine.transition import Transition
from sentinel.errors import ProtocolError
from sentinel.model.changes import SettingChanged
from sentinel.model.records import OURS, Fleet
from sentinel.wire import time_from

KEPT = "nodes_put_back"  # stored setting: ``out`` and ``since`` of the nodes, as below
SAVED = timedelta(seconds=30)  # slurmctld saves what was changed every 5 s


@dataclass
class PutBack:
    """All times are of the daemon's snapshots."""

    out: dict[str, tuple[datetime, datetime]] = field(default_factory=dict)  # by drained node: first and last seen so
    since: dict[str, datetime] = field(default_factory=dict)  # by node that was put back: when it was last seen drained

    def settles(self, node: str, evidence_at: datetime) -> bool:
        """Whether what happened then was before the node was put back; it may be out again by now."""
        back = self.since.get(node)
        return back is not None and evidence_at <= back

    def snapshot_taken(self, out: Transition, fleet: Fleet) -> None:
        """Note what changed. A drain that was seen so shortly that slurmctld may have lost it tells nothing.

        Saved for the next daemon once that is told apart, and when the node is back.
        """
        news = False
        for name, view in fleet.nodes.items():
            seen = self.out.get(name)
            if view.drained and (seen is not None or view.reason.startswith(OURS)):  # people may write another reason
                first, last = seen or (fleet.at, fleet.at)
                news = news or last - first <= SAVED < fleet.at - first
                self.out[name] = first, fleet.at
            elif seen is not None:
                first, last = self.out.pop(name)
                if last - first > SAVED:
                    self.since[name] = last
                    news = True
        if news:
            out.save(SettingChanged(KEPT, self._stored()))

    def _stored(self) -> dict[str, Any]:
        return {
            "out": {name: [first.isoformat(), last.isoformat()] for name, (first, last) in self.out.items()},
            "since": {name: at.isoformat() for name, at in self.since.items()},
        }


def read(value: Any) -> PutBack:
    """What was stored. A time that cannot be read is left out."""
    found, kept = PutBack(), value if isinstance(value, dict) else {}
    for name, times in _items(kept.get("out")):
        with contextlib.suppress(ProtocolError, ValueError, TypeError):
            first, last = times
            found.out[name] = time_from(first), time_from(last)
    for name, at in _items(kept.get("since")):
        with contextlib.suppress(ProtocolError):
            found.since[name] = time_from(at)
    return found


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []
