"""Remembers which nodes Sentinel had drained and somebody put back into service, and what had been said of them by then.

That is settled in every incident, also in one that only waited to drain the node as well, and however long ago the incident
was closed that did. What is said later is a new failure, unless it is known to have happened before: clocks of nodes differ,
and a node may be heard again only after its return.

The same is settled of a drained node that Slurm has no more: the next of its name may be another machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sentinel.engine.transition import Transition
from sentinel.errors import ProtocolError
from sentinel.model.changes import SettingChanged
from sentinel.model.records import OURS, Fleet
from sentinel.wire import time_from

KEPT = "nodes_put_back"  # stored setting: ``out`` and ``settled``, each by node ``at`` and ``said``
SAVED = timedelta(seconds=30)  # slurmctld saves what was changed every 5 s
_CLOCKS_DIFFER = timedelta(seconds=1)  # although it is known how far a node's clock is off


@dataclass(frozen=True, slots=True)
class Out:
    """A node that snapshots show drained by Sentinel."""

    since: datetime | None  # the first of them; None: slurmctld has surely saved the drain
    at: datetime  # the last of them
    said: frozenset[str]  # ids of the reports against it by then


@dataclass(frozen=True, slots=True)
class Settled:
    """What a node's return has settled: what was reported by the last snapshot before it, and what happened before that."""

    at: datetime
    said: frozenset[str]


@dataclass
class PutBack:
    out: dict[str, Out] = field(default_factory=dict)
    settled: dict[str, Settled] = field(default_factory=dict)  # by node that was put back, or that Slurm had no more

    def settles(self, node: str, said: Mapping[str, datetime | None]) -> bool:
        """Whether all these reports are of before the node was put back; it may be out again by now.

        Args:
            said: by id, when it happened by the daemon's clock; None: not known.
        """
        known = self.settled.get(node)
        return known is not None and all(
            name in known.said or (at is not None and at <= known.at - _CLOCKS_DIFFER) for name, at in said.items()
        )

    def is_over(self, node: str, at: datetime) -> bool:
        """Whether a drain of ``at`` ended otherwise than by slurmctld's forgetting it: the node was put back after it, or
        Slurm had no such node any more, and one of that name is another machine, or was added by people again."""
        known = self.settled.get(node)
        return known is not None and known.at > at

    def snapshot_taken(
        self,
        out: Transition,
        fleet: Fleet,
        said: Mapping[str, Collection[str]],
        concerned: Collection[str],
        gone: Collection[str] = (),
    ) -> None:
        """Note what changed, and save it for the next daemon.

        A drain that was seen so shortly that slurmctld may have lost it tells nothing.

        Args:
            said: by node, of those that are drained or were: ids of the reports against it in any incident.
            concerned: nodes that any incident names; what is settled of others is forgotten.
            gone: nodes that Sentinel had drained, perhaps seen by no snapshot, and that Slurm surely has no more.
        """
        news = False
        for name in dict.fromkeys((*self.out, *drained_by_us(fleet), *gone)):
            view, known = fleet.nodes.get(name), self.out.get(name)
            if view is None:
                if not fleet.may_have_node(name):
                    self.out.pop(name, None)
                    self.settled[name], news = Settled(fleet.at, frozenset(said.get(name, ()))), True
            elif view.drained:  # also if people have written another reason
                since = known.since if known is not None else fleet.at
                since = since if since is not None and fleet.at - since <= SAVED else None
                now = Out(since, fleet.at, frozenset(said.get(name, ())))
                news = news or (since is None and (known is None or known.since is not None or known.said != now.said))
                self.out[name] = now
            elif known is not None:
                del self.out[name]
                if known.since is None:
                    self.settled[name], news = Settled(known.at, known.said), True
        for name in [name for name in self.settled if name not in concerned]:
            del self.settled[name]
        if news:
            out.save(SettingChanged(KEPT, self._stored()))

    def _stored(self) -> dict[str, Any]:
        return {
            "out": {name: _written(one) for name, one in self.out.items() if one.since is None},
            "settled": {name: _written(one) for name, one in self.settled.items()},
        }


def drained_by_us(fleet: Fleet) -> list[str]:
    return [name for name, view in fleet.nodes.items() if view.drained and view.reason.startswith(OURS)]


def _written(one: Out | Settled) -> dict[str, Any]:
    return {"at": one.at.isoformat(), "said": sorted(one.said)}


def read(value: Any) -> PutBack:
    """What was stored; what cannot be read is left out."""
    kept = value if isinstance(value, dict) else {}
    out, settled = _read(kept.get("out")), _read(kept.get("settled"))
    return PutBack({name: Out(None, one.at, one.said) for name, one in out.items()}, settled)


def _read(value: Any) -> dict[str, Settled]:
    found = {}
    for name, one in value.items() if isinstance(value, dict) else ():
        with contextlib.suppress(ProtocolError, KeyError, TypeError):
            found[name] = Settled(time_from(one["at"]), frozenset(map(str, one["said"])))
    return found
