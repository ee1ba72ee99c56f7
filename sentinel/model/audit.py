"""The audit's entries: who changed what, from where, why, and what it was before and after.

Each entry's digest covers the one before it, so that an entry cannot be altered, left out or put in without that all later
digests change. Who can write the database can still write the whole chain anew: a copy of the newest digest elsewhere
(``[daemon] audit_syslog``) shows that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sentinel.model.records import require_aware
from sentinel.text import clean, plain

FIRST = "0" * 64  # stands for the digest before the first entry
EXPORTED = "audit_exported"  # stored setting: number of the last entry that was copied to syslog
EXPORTED_DIGEST = "audit_exported_digest"  # stored setting: that entry's digest
REWRITTEN = "audit_rewritten"  # stored setting: number of a copied entry that was found removed or changed
MOST_TEXT = 500  # characters of a reason, and of each text in ``before`` and ``after``
_MOST_NAME = 255
_MOST_ITEMS = 64  # of a list in ``before`` or ``after``: the nodes of a large job are named elsewhere


class Stage(StrEnum):
    BEGUN = (
        "begun"  # written before the change; without a later one of the same change it is not known what became of it
    )
    DONE = "done"
    FAILED = "failed"
    REFUSED = "refused"  # nothing was changed
    NOT_KNOWN = "not_known"  # no answer came


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """
    Attributes:
        who: account, or ``sentinel`` for what the daemon decided.
        origin: address or host from which it was asked.
        action: ``drain``, ``requeue_hold``, ``pause``, ``started``, ...
        target: ``node n7``, ``job 8801``, ``cluster``.
        incident: its id; empty where none led to it.
        before, after: JSON; what is not known is left out.
    """

    at: datetime
    who: str
    origin: str
    action: str
    stage: Stage
    target: str
    incident: str = ""
    why: str = ""
    before: Mapping[str, Any] = field(default_factory=dict, hash=False)
    after: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        require_aware(self.at)


@dataclass(frozen=True, slots=True)
class ChainedEntry:
    """An entry in its place. ``digest`` is over ``previous`` and all the rest."""

    number: int  # from 1 on, without gaps
    entry: AuditEntry
    previous: str
    digest: str


def bounded(entry: AuditEntry) -> AuditEntry:
    """The entry as it is kept: texts plain and of limited length."""
    return replace(
        entry,
        at=entry.at.astimezone(UTC),
        who=plain(entry.who)[:_MOST_NAME],
        origin=plain(entry.origin)[:_MOST_NAME],
        action=plain(entry.action)[:48],
        target=plain(entry.target)[:_MOST_NAME],
        incident=plain(entry.incident)[:40],
        why=plain(entry.why)[:MOST_TEXT],
        before=_bounded(entry.before),
        after=_bounded(entry.after),
    )


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return plain(str(value))[:MOST_TEXT]
    if isinstance(value, Mapping):
        return {str(clean(str(key)))[:_MOST_NAME]: _bounded(item) for key, item in list(value.items())[:_MOST_ITEMS]}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else list(value)
        return [_bounded(item) for item in items[:_MOST_ITEMS]]
    if value is None or isinstance(value, (bool, int)):
        return value
    return str(value)[:MOST_TEXT]  # numbers with a point as well: databases do not give each of them back as it was


def canonical(value: object) -> str:
    """One spelling for each value: what digests are made of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def digest_of(number: int, entry: AuditEntry, previous: str) -> str:
    """SHA-256, in hexadecimal, of a bounded entry in its place."""
    said = [
        previous, number, entry.at.astimezone(UTC).isoformat(), entry.who, entry.origin, entry.action, entry.stage.value,
        entry.target, entry.incident, entry.why, canonical(entry.before), canonical(entry.after),
    ]  # fmt: skip
    return hashlib.sha256(canonical(said).encode()).hexdigest()


def chained(number: int, entry: AuditEntry, previous: str) -> ChainedEntry:
    kept = bounded(entry)
    return ChainedEntry(number, kept, previous, digest_of(number, kept, previous))
