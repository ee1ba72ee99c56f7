"""What the scheduling of diagnostics remembers; ``known`` is also in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sentinel.classify import NodeScore
from sentinel.classify.ageing import Trend
from sentinel.engine.diagnostics.due_tests import DiagnosticRecord
from sentinel.engine.transition import RunDiagnostic

KEPT = "diagnoses"  # stored setting


@dataclass(slots=True)
class DiagnosticsState:
    known: dict[str, DiagnosticRecord] = field(default_factory=dict)  # by node
    idle: dict[str, datetime] = field(default_factory=dict)  # since when each idle node is
    running: dict[str, RunDiagnostic] = field(default_factory=dict)  # by node
    scores: Mapping[str, NodeScore] = field(default_factory=dict)
    trends: Mapping[str, tuple[Trend, ...]] = field(default_factory=dict)
    scores_at: datetime | None = None  # when they were read
