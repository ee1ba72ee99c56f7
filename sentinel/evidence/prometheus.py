"""Evaluates answers of Prometheus range queries: which signals have fired for the whole required time. Pure.

A series that has no value for a while is *not known* for that time and does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import isfinite

from sentinel.errors import ProtocolError
from sentinel.model.records import Cause, Evidence, Scope, Source, Where, stable_id

KIND = "signal"  # of the evidence; data: signal, cause, scope, weight, value, limit, series
MOST_NODES = 64  # that one signal names
MOST_WEIGHT = 4.0
POINTS = 6  # values that a range is asked for
_NAMED = 3  # series that the text names


@dataclass(frozen=True, slots=True)
class Signal:
    """One query and what it means; from ``rules/signals/*.toml``."""

    id: str
    words: str
    query: str
    cause: Cause
    above: float | None = None
    below: float | None = None
    for_s: float = 60.0
    scope: Scope = Scope.CLUSTER
    weight: float = 2.5
    node_label: str = ""
    node_pattern: str = ""
    file: str = ""

    @property
    def limit(self) -> str:
        return f"above {self.above:g}" if self.above is not None else f"below {self.below:g}"

    def beyond(self, value: float) -> bool:
        if not isfinite(value):
            return False
        return value > self.above if self.above is not None else self.below is not None and value < self.below

    @property
    def step_s(self) -> float:
        """Between the values that are asked for."""
        return max(1.0, self.for_s / (POINTS - 1))


@dataclass(frozen=True, slots=True)
class FiringSeries:
    """One series of a signal that fires now and has fired for the required time."""

    labels: Mapping[str, str]
    value: float

    def node(self, signal: Signal) -> str | None:
        text = self.labels.get(signal.node_label, "")
        found = re.search(signal.node_pattern, text) if signal.node_pattern and text else None
        if signal.node_pattern:
            return (found[1] if found.re.groups else found[0]) if found else None
        return text or None


def holding(signal: Signal, answer: Mapping[str, object], now: datetime) -> list[FiringSeries]:
    """
    Raises:
        ProtocolError: no answer of a range query.
    """
    data = answer.get("data")
    result = data.get("result") if isinstance(data, dict) else None
    if answer.get("status") != "success" or not isinstance(result, list):
        raise ProtocolError(f"no answer of a range query: {str(answer)[:120]}")
    found = []
    for series in result:
        try:
            labels = {str(name): str(value) for name, value in series["metric"].items()}
            points = [(float(at), float(value)) for at, value in series["values"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"no series of a range query: {str(series)[:120]}") from error
        if _held(signal, points, now.timestamp()):
            found.append(FiringSeries(labels, points[-1][1]))
    found.sort(key=lambda series: series.value, reverse=signal.above is not None)
    return found


def _held(signal: Signal, points: Sequence[tuple[float, float]], now_s: float) -> bool:
    if not points or now_s - points[-1][0] > 1.5 * signal.step_s:
        return False
    due = [value for at, value in points if at >= now_s - signal.for_s - 1.0]
    whole = signal.for_s <= 0 or points[0][0] <= now_s - signal.for_s + signal.step_s / 2
    gaps = any(later[0] - earlier[0] > 1.5 * signal.step_s for earlier, later in pairwise(points))
    return whole and not gaps and all(signal.beyond(value) for value in due)


def evidence_of(
    signal: Signal, series: Sequence[FiringSeries], since: Mapping[str | None, datetime], now: datetime
) -> list[Evidence]:
    """One evidence for a cluster-wide signal, one for each node of another; ids are the same while it goes on.

    Args:
        since: when it began, by node (None: cluster-wide); what is missing begins now.
    """
    if not series:
        return []
    if signal.scope is Scope.CLUSTER:
        return [_evidence(signal, series, None, since.get(None, now), now)]
    by_node: dict[str, list[FiringSeries]] = {}
    for one in series:
        node = one.node(signal)
        if node is not None:
            by_node.setdefault(node, []).append(one)
    # Those named before come first: where more fire than are named, each would begin anew whenever others are worse.
    some = sorted(by_node.items(), key=lambda one: one[0] not in since)[:MOST_NODES]
    return [_evidence(signal, members, node, since.get(node, now), now) for node, members in some]


def _evidence(
    signal: Signal, series: Sequence[FiringSeries], node: str | None, since: datetime, now: datetime
) -> Evidence:
    named = "; ".join(filter(None, (_labels(one) for one in series[:_NAMED])))
    more = f" and {len(series) - _NAMED} more" if len(series) > _NAMED else ""
    where = f" ({named}{more})" if named else ""
    return Evidence(
        id=stable_id("signal", signal.id, node, since.isoformat()),
        at=since,
        seen_at=now,
        source=Source.PROMETHEUS,
        kind=KIND,
        where=Where(node=node),
        text=f"{signal.words}: {series[0].value:.4g}, {signal.limit} counts{where}",
        data={
            "signal": signal.id,
            "words": signal.words,
            "cause": str(signal.cause),
            "scope": str(signal.scope),
            "weight": signal.weight,
            "value": series[0].value if isfinite(series[0].value) else None,
            "limit": signal.limit,
            "series": len(series),
        },
    )


def _labels(one: FiringSeries) -> str:
    return ", ".join(f"{name}={value[:60]}" for name, value in sorted(one.labels.items()) if name != "__name__")[:160]
