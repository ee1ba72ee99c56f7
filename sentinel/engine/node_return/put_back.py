"""Remembers which nodes Sentinel had drained and somebody put back into service, and what had been said of them by then.

That is settled in every incident, also in one that only waited to drain the node as well, and however long ago the incident
was closed that did. What is said later is a new failure. Reports are told apart by their ids: clocks of nodes differ.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sentinel.engine.transition import Transition
from sentinel.model.changes import SettingChanged
from sentinel.model.records import OURS, Fleet

KEPT = "nodes_put_back"  # stored setting: ``out`` and ``settled``, each by node the ids of reports
SAVED = timedelta(seconds=30)  # slurmctld saves what was changed every 5 s
_NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Out:
    """A node that snapshots show drained by Sentinel."""

    since: datetime | None  # the first of them; None: slurmctld has surely saved the drain
    said: frozenset[str]  # ids of the reports against it by the last of them


@dataclass
class PutBack:
    out: dict[str, Out] = field(default_factory=dict)
    settled: dict[str, frozenset[str]] = field(default_factory=dict)  # by node that was put back: ids of reports

    def settles(self, node: str, said: Collection[str]) -> bool:
        """Whether all these reports were known before the node was put back; it may be out again by now."""
        known = self.settled.get(node)
        return known is not None and known.issuperset(said)

    def snapshot_taken(
        self, out: Transition, fleet: Fleet, said: Mapping[str, frozenset[str]], concerned: Collection[str]
    ) -> None:
        """Note what changed, and save it for the next daemon.

        A drain that was seen so shortly that slurmctld may have lost it tells nothing.

        Args:
            said: by node, of those that are drained or were: ids of the reports against it in any incident.
            concerned: nodes that any incident names; what is settled of others is forgotten.
        """
        news = False
        for name in [*self.out, *(name for name in drained_by_us(fleet) if name not in self.out)]:
            view, known = fleet.nodes.get(name), self.out.get(name)
            if view is None:
                if not fleet.may_have_node(name):
                    news = self.out.pop(name, None) is not None or news
            elif view.drained:  # also if people have written another reason
                since = known.since if known is not None else fleet.at
                since = since if since is not None and fleet.at - since <= SAVED else None
                now = Out(since, said.get(name, _NOTHING))
                news = news or (since is None and now != known)
                self.out[name] = now
            elif known is not None:
                del self.out[name]
                if known.since is None:
                    self.settled[name], news = known.said, True
        for name in [name for name in self.settled if name not in concerned]:
            del self.settled[name]
        if news:
            out.save(SettingChanged(KEPT, self._stored()))

    def _stored(self) -> dict[str, Any]:
        return {
            "out": {name: sorted(one.said) for name, one in self.out.items() if one.since is None},
            "settled": {name: sorted(said) for name, said in self.settled.items()},
        }


def drained_by_us(fleet: Fleet) -> list[str]:
    return [name for name, view in fleet.nodes.items() if view.drained and view.reason.startswith(OURS)]


def read(value: Any) -> PutBack:
    """What was stored; what cannot be read is left out."""
    kept = value if isinstance(value, dict) else {}
    return PutBack(
        out={name: Out(None, said) for name, said in _ids(kept.get("out"))}, settled=dict(_ids(kept.get("settled")))
    )


def _ids(value: Any) -> list[tuple[str, frozenset[str]]]:
    named = value.items() if isinstance(value, dict) else ()
    return [
        (name, frozenset(ids)) for name, ids in named if isinstance(ids, list) and all(isinstance(i, str) for i in ids)
    ]
