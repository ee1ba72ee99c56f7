"""The report as CSV: one row for each number that the page and the Markdown tell."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sentinel.text import printable

# Where a cell may begin: spreadsheets split at the list separator of their locale, in much of Europe the semicolon.
# The full-width signs are read as the others in East Asia. Behind ``"`` a cell that began within a text goes on as it is.
_FORMULA = re.compile(r"(^|[;|])(?=[\s\"]*[=+@\uff1d\uff0b\uff0d\uff20-])")
_COLUMNS = ("table", "what", "of", "now", "low", "high", "before", "unit", "not_known", "beyond_chance")
# Numbers of a period that stand nowhere else: table, what, unit, and where a period has it.
_OF_PERIOD = (
    ("reliability", "worked", "GPU-h", ("worked_gpu_h",)),
    ("reliability", "gpus_at_work", "count", ("mtbf", "mean_gpus")),
    ("reliability", "mttr_half_within", "s", ("mttr", "median_s")),
    ("reliability", "mttr_nine_of_ten_within", "s", ("mttr", "p90_s")),
    ("reliability", "mttr_known", "count", ("mttr", "known")),
    ("reliability", "mttr_not_known", "count", ("mttr", "not_known")),
    *(("closed", name, "count", ("automation", name)) for name in ("alone", "person", "otherwise", "open")),
    ("cost", "steps_made_twice", "GPU-h", ("redone_gpu_h",)),
    ("cost", "without_steps", "GPU-h", ("down_gpu_h",)),
    ("cost", "failures_not_known", "count", ("lost_not_known",)),
    ("out_of_service", "nodes", "count", ("downtime", "nodes")),
    ("out_of_service", "ends_not_known", "count", ("downtime", "not_known")),
    ("beside", "ended_on_purpose", "count", ("on_purpose",)),
    ("beside", "without_job", "count", ("without_job",)),
    ("beside", "corrected", "count", ("corrected",)),
)


def cell(value: object) -> object:
    """What a spreadsheet would take for a formula in a text gets an apostrophe before it; what is not known is empty."""
    if isinstance(value, str):
        return _FORMULA.sub(r"\1'", printable(value, "·"))
    return value


def yes_or_no(value: bool | None) -> str:
    """Empty: there is no answer."""
    return "" if value is None else "yes" if value else "no"


def as_csv(made: Mapping[str, Any]) -> str:
    """One row for each number; ``not_known``: of so many failures the cost, or a part of it, is not in the sum."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(_COLUMNS)
    for item in _rows(made):
        rows.writerow([cell(value) for value in item] + [None] * (len(_COLUMNS) - len(item)))
    return out.getvalue()


def _at(period: Any, path: Sequence[str]) -> Any:
    for name in path:
        period = (period or {}).get(name)
    return period


def _rows(made: Mapping[str, Any]) -> Iterable[tuple[object, ...]]:
    # Where nothing is known of the time before, its numbers are none, and not zero.
    was_seen = any(row["before"] is not None for row in made["changes"])
    missing = made["cut"] and not was_seen  # what was read begins after that time
    yield "period", "since", "", made["since"], None, None, None if missing else made["before"], "time"
    yield "period", "until", "", made["until"], None, None, None if missing else made["since"], "time"
    yield "period", "oldest_missing", "", yes_or_no(made["cut"]), None, None, None, ""
    for row in made["changes"]:
        beside = None, yes_or_no(row["beyond_chance"])
        yield "summary", row["what"], "", row["now"], None, None, row["before"], row["unit"], *beside
    now, before = made["now"], made["previous"] if was_seen else None
    for name in ("mtbf", "mtbf_machines"):
        for key, unit in (("hours", "h"), ("gpu_h", "GPU-h")):
            mean, low, high = (_at(now, (name, key, which)) for which in ("mean", "low", "high"))
            yield "reliability", name, "", mean, low, high, _at(before, (name, key, "mean")), unit
    mean, low, high = (_at(now, ("mttr", which)) for which in ("mean_s", "low_s", "high_s"))
    yield "reliability", "mttr", "", mean, low, high, _at(before, ("mttr", "mean_s")), "s"
    for table, name, unit, path in _OF_PERIOD:
        yield table, name, "", _at(now, path), None, None, _at(before, path), unit
    for row in made["causes"]:
        beside = None, yes_or_no(row["beyond_chance"])
        yield "interruptions", row["cause"], row["scope"], row["count"], None, None, row["before"], "count", *beside
        yield "lost", row["cause"], row["scope"], *_lost_cells(row)
    for row in made["corrections"]:
        yield "corrected", row["judged"], row["corrected"], row["count"], None, None, None, "count"
    for row in made["nodes"]:
        yield "node", row["node"], "; ".join(row["causes"]), row["failures"], None, None, None, "count"
        yield "node_lost", row["node"], "", *_lost_cells(row)
        for cause, count in row["causes"].items():
            yield "node_cause", row["node"], cause, count, None, None, None, "count"
    for row in made["jobs"]:
        yield "job", row["job"], row["name"], *_lost_cells(row)
        yield "job_failures", row["job"], row["user"], row["failures"], None, None, None, "count"
    for row in made["partitions"]:
        yield "ettr", row["partition"], "", row["ettr"], None, None, row["before"], "share"
    for row in made["days"]:
        yield "day", row["key"], "", row["failures"], None, None, None, "count"


def _lost_cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    return row["lost_gpu_h"], None, None, None, "GPU-h", row["not_known"]
