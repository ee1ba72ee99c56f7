"""Renders a report as HTML: a page of the daemon, or a self-contained file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from sentinel.daemon.web.charts import bars
from sentinel.daemon.web.templates import amount, render, style

if TYPE_CHECKING:
    from sentinel.daemon.web.pages import Asked

_ROWS = 12  # most bars of a chart
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
    drawn = (
        (
            "Interruptions by cause",
            [
                (
                    row["cause"],
                    row["count"],
                    f"{row['count']} ({row['before'] if row['before'] is not None else 'not known'})",
                )
                for row in causes
            ],
        ),
        ("GPU-hours lost by cause", [(row["cause"], row["lost_gpu_h"], amount(row["lost_gpu_h"])) for row in lost]),
        ("Interruptions by day", [(row["key"], row["failures"], f"{row['failures']}") for row in made["days"][-31:]]),
    )
    found = []
    for title, rows in drawn:
        chart = bars(title, rows if title.endswith("day") else rows[:_ROWS])
        if chart is not None:
            found.append((title, chart))
    return found
