"""Tables of the store. Every change here is a migration in ``migrations/versions`` too; a test holds the two together."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.engine import Dialect

from sentinel.model.records import require_aware
from sentinel.text import plain

metadata = MetaData()
# In a federation the high bits are the cluster's number: up to 2^32. SQLite's integers have 64 bits by any name.
JOB_ID = BigInteger().with_variant(Integer, "sqlite")


class Utc(TypeDecorator[object]):
    """An aware UTC time. SQLite keeps no zone, and PostgreSQL answers in that of its session, which is the zone of the host
    where it was installed: Python computes within one zone as if none had summer time."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> object:
        if isinstance(value, datetime):
            require_aware(value)
            return value.astimezone(UTC)
        return value

    def process_result_value(self, value: object, dialect: Dialect) -> object:
        if not isinstance(value, datetime):
            return value
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Plain(TypeDecorator[str]):
    """Text that both databases take, made so on the way in, also where it is compared: one job's name must not keep a whole
    batch out. JSON needs none of it: there each such character is an escape, and the bytes of a path are kept."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return plain(value) if isinstance(value, str) else value


class PlainText(Plain):
    impl = Text
    cache_ok = True


evidence = Table(
    "evidence",
    metadata,
    Column("id", Plain(40), primary_key=True),
    Column("at", Utc, nullable=False),
    Column("seen_at", Utc, nullable=False),
    Column("source", Plain(24), nullable=False),
    Column("kind", Plain(48), nullable=False),
    Column("trust", Plain(8), nullable=False),
    Column("node", Plain(255)),
    Column("job", JOB_ID),
    Column("attempt", Integer),
    Column("record", JSON, nullable=False),
    Index("evidence_at", "at"),
    Index("evidence_node_at", "node", "at"),
    Index("evidence_job_at", "job", "at"),
)

incident = Table(
    "incident",
    metadata,
    Column("id", Plain(40), primary_key=True),
    Column("opened_at", Utc, nullable=False),
    Column("updated_at", Utc, nullable=False),
    Column("closed_at", Utc),
    Column("state", Plain(12), nullable=False),
    Column("job", JOB_ID),
    Column("attempt", Integer),
    Column("user", Plain(64)),
    Column("nodes", JSON, nullable=False),
    Column("outcome", PlainText, nullable=False, default=""),
    Column("cause", Plain(40)),
    Column("scope", Plain(16)),
    Column("confidence", Float),
    Column("culprit_nodes", JSON),
    Column("culprit_gpus", JSON),
    Column("culprit_ranks", JSON),
    Column("seen_on", JSON),  # nodes on which what decided was seen, also where no machine is at fault
    Column("users_words", Boolean),  # nothing but what users' programs printed speaks for it; null: not known
    Column("onset_step", Integer),  # numbers went bad at this step
    Column("decided_at", Utc),
    Column("corrections", JSON),  # what operators said of the verdict, the newest last; null: nothing
    Index("incident_state", "state"),
    Index("incident_opened", "opened_at"),
    Index("incident_job", "job"),
)

incident_evidence = Table(
    "incident_evidence",
    metadata,
    Column("incident", Plain(40), primary_key=True),
    Column("evidence", Plain(40), primary_key=True),
    Index("incident_evidence_evidence", "evidence"),
)

verdict = Table(
    "verdict",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("incident", Plain(40), nullable=False),
    Column("at", Utc, nullable=False),
    Column("record", JSON, nullable=False),
    Index("verdict_incident", "incident"),
)

plan = Table(
    "plan",
    metadata,
    Column("id", Plain(40), primary_key=True),
    Column("incident", Plain(40), nullable=False),
    Column("at", Utc, nullable=False),
    Column("finished", Boolean, nullable=False, default=False),
    Column("record", JSON, nullable=False),
    Index("plan_finished", "finished"),
    Index("plan_incident", "incident"),
)

# The ledger: a row is written before the effect and completed after it.
step = Table(
    "step",
    metadata,
    Column("key", Plain(40), primary_key=True),
    Column("incident", Plain(40), nullable=False),
    Column("plan", Plain(40), nullable=False),
    Column("kind", Plain(24), nullable=False),
    Column("node", Plain(255)),
    Column("job", JOB_ID),
    Column("attempt", Integer),
    Column("intended_at", Utc, nullable=False),
    Column("result", Plain(12)),  # null: intended, and not known whether it happened
    Column("finished_at", Utc),
    Column("reason", PlainText, nullable=False, default=""),
    Column("data", JSON, nullable=False),
    Column("record", JSON, nullable=False),
    Index("step_incident", "incident"),
    Index("step_kind_at", "kind", "intended_at"),
    Index("step_job", "job"),
)

notice = Table(
    "notice",
    metadata,
    Column("id", Plain(40), primary_key=True),
    Column("receiver", Plain(255), primary_key=True),
    Column("incident", Plain(40), nullable=False),
    Column("at", Utc, nullable=False),
    Column("delivered", Boolean, nullable=False),
    Column("record", JSON, nullable=False),
    Index("notice_incident", "incident"),
)

# One row for each attempt of a job: exposure for rates, and steps for "time lost".
attempt = Table(
    "attempt",
    metadata,
    Column("job", JOB_ID, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("started_at", Utc, primary_key=True),
    Column("user", Plain(64)),
    Column("partition", Plain(64)),
    Column("name", Plain(255)),
    Column("nodes", JSON, nullable=False),
    Column("ended_at", Utc),
    Column("state", Plain(24)),
    Column("first_step", Integer),
    Column("last_step", Integer),
    Column("step_time_s", Float),
    Column("het", JOB_ID),  # of a heterogeneous job's component: the id of its leader
    Index("attempt_het", "het"),
)

# What ageing parts count (remapped rows, replays, corrected errors): the last value of each day, for trends over weeks.
counter = Table(
    "counter",
    metadata,
    Column("node", Plain(255), primary_key=True),
    Column("unit", Plain(64), primary_key=True),  # "gpu3", "mlx5_0", "" for the node itself
    Column("name", Plain(48), primary_key=True),
    Column("day", Plain(10), primary_key=True),  # 2026-03-01
    Column("at", Utc, nullable=False),
    Column("value", Float, nullable=False),
    Index("counter_at", "at"),
)

setting = Table(
    "setting",
    metadata,
    Column("name", Plain(64), primary_key=True),
    Column("value", JSON, nullable=False),
)

# Which daemon is active (``sentinel.adapters.store.lease``). The row changes only when another daemon takes over: that each
# transaction of the active one locks it for a moment holds up no renewal.
lease = Table(
    "lease",
    metadata,
    Column("name", Plain(32), primary_key=True),
    Column("holder", Plain(255), nullable=False),  # empty: nobody
    Column("until", Utc, nullable=False),  # of releases before; always far off, so that none of these takes it
    Column("token", BigInteger, nullable=False, server_default="0"),  # grows by one with each new holder
)

# Daemons on this database, active and standing by; each counts up in its own row.
daemon = Table(
    "daemon",
    metadata,
    Column("holder", Plain(255), primary_key=True),
    Column("address", Plain(255), nullable=False),
    Column("version", Plain(64), nullable=False),
    Column("beats", BigInteger, nullable=False),
    Column("commits", BigInteger, nullable=False, server_default="0"),  # transactions while it had the lease
    Column("batch", Plain(40)),  # name of the last batch of changes that it saved; null: none
    Column("since", Utc, nullable=False),  # by its own clock, for people; nothing is decided by it
)

# Who changed what: only added to, which triggers see to; the digests chain the rows (``sentinel.model.audit``).
audit = Table(
    "audit",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("at", Utc, nullable=False),
    Column("who", Plain(255), nullable=False),
    Column("origin", Plain(255), nullable=False),
    Column("action", Plain(48), nullable=False),
    Column("stage", Plain(12), nullable=False),
    Column("target", Plain(255), nullable=False),
    Column("incident", Plain(40), nullable=False),
    Column("why", PlainText, nullable=False),
    Column("before", PlainText, nullable=False),  # JSON in one spelling, which the digest covers
    Column("after", PlainText, nullable=False),
    Column("previous", Plain(64), nullable=False),
    Column("digest", Plain(64), nullable=False),
    Index("audit_at", "at"),
)
