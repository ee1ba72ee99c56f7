"""What is remembered of each node that Sentinel drained; all of it is in the store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sentinel.config.returns import Remedial
from sentinel.errors import SentinelError
from sentinel.model.records import Cause, NodeView
from sentinel.wire import time_from

KEPT = "node_returns"  # stored setting, by node
HAS_WORK = frozenset({"allocated", "mixed", "completing"})  # states of a node that a job holds, drained or not
_BY_SLURM = re.compile(r"( : reboot [a-z ]{1,40})+\Z")  # what slurmctld appends to the reason of a node that it reboots


class Stage(StrEnum):
    WAITING = "waiting"  # for what ``waits`` says
    TESTING = "testing"
    ACTING = "acting"  # its reset or reboot was ordered
    STARTING = "starting"  # rebooted, and its agent is not heard yet
    PASSED = "passed"  # all tests; a person, or the agent's own verdict, is missing
    RETURNING = "returning"
    PROBATION = "probation"  # in service
    RETURNED = "returned"  # in service; only its failures are remembered
    REPAIR = "repair"  # stays drained for people


IN_SERVICE = frozenset({Stage.PROBATION, Stage.RETURNED})
UNDER_WAY = frozenset({Stage.TESTING, Stage.ACTING, Stage.RETURNING})  # an effect is being performed


@dataclass(frozen=True, slots=True)
class NodeReturn:
    """One node, from its drain until ``returns.within_s`` after its return."""

    incident: str
    cause: Cause
    since: datetime  # of the drain
    changed_at: datetime  # of the stage
    stage: Stage = Stage.WAITING
    also: tuple[Cause, ...] = ()  # other causes for which it was convicted while it was out
    broke_at: datetime | None = None  # the newest of what convicted it while it was out
    jobs: tuple[int, ...] = ()  # that it hurt
    reboot: bool = False  # asked of Slurm before the drain, which it may end, and not over
    reason: str = ""  # of the drain, as Slurm showed it first; empty: no snapshot showed it yet
    passed: int = 0  # tests of this round
    acted: Remedial = Remedial.NONE  # what was done in this round
    missing: str = ""  # what its causes ask for and the site does not allow
    failures: tuple[datetime, ...] = ()
    failed: str = ""  # what failed last, in words
    unclear: str = ""  # why the last test gave no result; empty once one does
    waits: str = ""  # for what, in words
    free_since: datetime | None = None  # no job holds it; None: one does, or it is not known
    not_before: datetime | None = None  # the next step
    effect: str = ""  # id of the effect under way
    until: datetime | None = None  # its deadline, or that of the start after a reboot
    boot: str = ""  # of the agent's host before the reboot; empty: not known
    level: int = 0  # of the test under way
    returned_at: datetime | None = None
    ticket: str = ""  # "", "sent", or why it was not
    tickets: int = 0  # how often it was tried

    @property
    def causes(self) -> tuple[Cause, ...]:
        return (self.cause, *self.also)

    def failures_since(self, now: datetime, within_s: float) -> int:
        return sum(1 for at in self.failures if now - at <= timedelta(seconds=within_s))


@dataclass(slots=True)
class NodeReturns:
    known: dict[str, NodeReturn] = field(default_factory=dict)  # by node

    def proves(self, node: str, since: datetime) -> bool | None:
        """Whether the node was proven good after ``since``; None: nothing is known here, or its drain is older."""
        record = self.known.get(node)
        if record is None:
            return None
        if record.returned_at is not None:
            return True if record.returned_at > since else None
        return False

    def on_probation(self, job: int | None) -> tuple[str, ...]:
        """Nodes that hurt this job, and that were returned, or are about to be: it must not be their first."""
        return tuple(
            sorted(
                name
                for name, record in self.known.items()
                if job in record.jobs and record.stage in (Stage.RETURNING, Stage.PROBATION)
            )
        )

    def under_test(self, node: str | None) -> bool:
        """Whether the node is out of service, and what a diagnostic finds there is the answer to a test from here."""
        record = self.known.get(node or "")
        return record is not None and record.stage not in IN_SERVICE


def is_out(node: NodeView) -> bool:
    """Whether the node takes no new work: drained, or down."""
    return node.drained or node.state == "down"


def plain_reason(reason: str) -> str:
    """A drain's reason without what slurmctld appended to it."""
    return _BY_SLURM.sub("", reason)


def written(known: Mapping[str, NodeReturn]) -> dict[str, dict[str, Any]]:
    """JSON for the store."""
    return {
        name: {one.name: _json(getattr(record, one.name)) for one in fields(record)} for name, record in known.items()
    }


def of_node(kept: Mapping[str, Any], node: NodeView) -> Any:
    """What is stored of the node, if it still fits what Slurm shows: whoever returned it, its tests are over."""
    found = kept.get(node.name)
    fits = isinstance(found, dict) and (is_out(node) or found.get("stage") in (*IN_SERVICE, Stage.RETURNING))
    return found if fits else None


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return [_json(item) for item in value] if isinstance(value, tuple) else value


_TIME_FIELDS = ("since", "changed_at", "not_before", "until", "returned_at", "free_since", "broke_at")


def read(value: Any) -> dict[str, NodeReturn]:
    """Read what ``written`` made. An entry that cannot be read is left out: its node waits for a person."""
    found = {}
    for name, entry in value.items() if isinstance(value, dict) else ():
        try:
            made = {**entry, **{key: time_from(entry[key]) for key in _TIME_FIELDS if entry.get(key) is not None}}
            made.update(
                cause=Cause(entry["cause"]), stage=Stage(entry["stage"]), acted=Remedial(entry["acted"]),
                also=tuple(Cause(cause) for cause in entry.get("also", ())),
                jobs=tuple(entry["jobs"]), failures=tuple(time_from(at) for at in entry["failures"]),
            )  # fmt: skip
            found[str(name)] = NodeReturn(**made)
        except (TypeError, ValueError, KeyError, AttributeError, SentinelError):
            continue
    return found
