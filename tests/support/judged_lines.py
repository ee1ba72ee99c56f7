"""Lines and observations judged with the shipped rules, at one moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shipped import shipped_rules, shipped_signatures

from sentinel.classify import History, classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Evidence, Incident, Scalar, Source, Verdict, Where, stable_id

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()


def seen(
    kind: str, source: Source, *, at: float = 0.0, node: str | None = None, rank: int | None = None, **data: Scalar
) -> Evidence:
    """``at``: seconds from ``NOW``."""
    when = NOW + timedelta(seconds=at)
    return Evidence(
        stable_id(kind, source, at, node, rank, sorted(data.items())), when, when, source, kind,
        Where(node=node, rank=rank, job=7, attempt=0), data=data,
    )  # fmt: skip


def log(text: str, *, at: float = 0.0, node: str | None = None, source: Source = Source.JOB_LOG) -> list[Evidence]:
    """What is read in these lines. ``at``: seconds from ``NOW``."""
    when = NOW + timedelta(seconds=at)
    reader = LogReader(SIGNATURES, source=source, where=Where(node=node, job=7, path=f"{source}-{node}"))
    return reader.feed(text.encode() + b"\n", when) + reader.finish(when)


def judge(*evidence: Evidence | list[Evidence], history: History | None = None, job: int | None = 7) -> Verdict:
    """The verdict an hour later."""
    items = [item for part in evidence for item in (part if isinstance(part, list) else [part])]
    nodes = tuple(dict.fromkeys(item.where.node for item in items if item.where.node))
    incident = Incident("i1", NOW, NOW, job=job, nodes=nodes, evidence=tuple(items))
    return classify(incident, rules=RULES, now=NOW + timedelta(hours=1), **({"history": history} if history else {}))
