"""The dashboards of deploy/grafana, their panels, and their queries as Prometheus takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "deploy/grafana"
PATHS = sorted(FOLDER.glob("*.json"))
# What Grafana puts in the place of variables: the time shown, a window of some scrapes, all partitions.
_VARIABLES = {"$__rate_interval": "30s", "$__range": "1h", "$partition": ".*"}


def dashboard(path: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(path.read_text())
    return made


def queries(path: Path) -> Iterator[tuple[str, str]]:
    """(panel's title, query)."""
    for panel in dashboard(path)["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in _VARIABLES.items():
                query = query.replace(name, value)
            yield panel["title"], query
