"""Renders a report as HTML: a page of the daemon, or a self-contained file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from sentinel.daemon.web.charts import bars, of_days, of_rows
from sentinel.daemon.web.templates import amount, render, style

if TYPE_CHECKING:
    from sentinel.daemon.web.pages import Asked

_ROWS = 12  # most bars of a chart
_DAYS = 31  # most days of one
WORDS = {
    "interruptions": "Interruptions",
    "of_machines": "of them not programs'",
    "lost_gpu_h": "GPU-hours lost",
    "ettr": "Effective training time (ETTR)",
    "mttr": "Mean time to recover (MTTR)",
    "automation": "Closed without a person",
    "downtime": "Nodes out of service",
}


async def make(asked: Asked) -> tuple[str, dict[str, Any]]:
    made = await asked.view("report", **asked.filters("since"))
    return "report.html", values(made)


def values(made: Mapping[str, Any]) -> dict[str, Any]:
    """The values that the templates use."""
    return {"report": made, "charts": charts(made), "words": WORDS}


def html_file(made: Mapping[str, Any]) -> str:
    """The report as one self-contained HTML file."""
    return render("report_file.html", **values(made), style=Markup(style()))  # noqa: S704  our own file


def charts(made: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    causes = [row for row in made["causes"] if row["count"]]
    lost = sorted((row for row in made["causes"] if row["lost_gpu_h"]), key=lambda row: -row["lost_gpu_h"])
    days = made["days"][-_DAYS:]
    counted = [(row["cause"], row["count"], f"{row['count']} ({_before(row)})") for row in causes[:_ROWS]]
    cost = [(row["cause"], row["lost_gpu_h"], amount(row["lost_gpu_h"])) for row in lost[:_ROWS]]
    drawn = (
        (of_rows("Interruptions by cause (before)", len(counted), len(causes)), counted),
        (of_rows("GPU-hours lost by cause", len(cost), len(lost)), cost),
        (
            of_days("Interruptions by day", len(days), len(made["days"])),
            [(row["key"], row["failures"], f"{row['failures']}") for row in days],
        ),
    )
    return [(title, chart) for title, rows in drawn if (chart := bars(title, rows)) is not None]


def _before(row: Mapping[str, Any]) -> str:
    return "not known" if row["before"] is None else f"{row['before']}"
