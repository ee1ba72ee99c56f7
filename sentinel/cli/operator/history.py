"""``sentinel history``: past failures by cause, node, job, user and time; what comes again stands first."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from sentinel.cli.operator.arguments import ABOVE_ZERO, asked_filters, filter_options, filter_words
from sentinel.cli.operator.daemon_client import config_option, view
from sentinel.cli.operator.fleet import rate
from sentinel.cli.operator.incident_table import incident_table, no_incident, tell_cut
from sentinel.cli.operator.output import (
    ago,
    causes_words,
    counted,
    day,
    drawable,
    echo,
    json_option,
    paged,
    print_json,
    shown,
    span,
    table,
)

_SHOWN = 15  # rows of a table; --by shows all
_BAR = 20
_ORDER = ("cause", "node", "job", "user", "time")


@click.command()
@click.option("--days", type=ABOVE_ZERO, default=30.0, show_default=True, help="How far back, unless --since says it.")
@click.option("--by", type=click.Choice(_ORDER), help="Only this table, whole.")
@filter_options
@config_option
@json_option
@paged
def history(days: float, by: str | None, config: Path, as_json: bool, **filters: Any) -> None:
    """Past failures by cause, node, job, user and day; recurring ones first.

    Days are those of your zone, with --json those of UTC.

    \b
    Examples:
      sentinel history
      sentinel history --by node --days 90
      sentinel history --node n17 --since 7d
      sentinel history --cause numerical_nan --user ada --json
    """
    chosen = asked_filters(**filters)
    seen = view(config, "history", **({} if "since" in chosen else {"days": days}), **chosen)
    groups = {name: rows for name, rows in seen["by"].items() if by in (None, name)}
    if as_json:
        tell_cut(seen, beside=True)
        print_json({"by": name, **row} for name, rows in groups.items() for row in rows)
        return
    which = filter_words(chosen) + ("" if "since" in chosen else f" in the last {days:g} days")
    count = len(seen["incidents"])
    if not count:
        echo(f"{no_incident(seen)}{which}.")
        return
    echo(f"{'The newest ' if seen['cut'] else ''}{counted(count, 'incident')}{which}")
    tell_cut(seen)
    if "time" in groups:
        groups["time"] = _local_days(seen["incidents"])
    for name in _ORDER:
        if groups.get(name) and (by == name or name not in chosen):
            _table(name, groups[name], whole=by == name)
    if by is None:
        incident_table("Latest", seen["incidents"][:_SHOWN])


def _local_days(incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Failures by day in the zone of the terminal: the daemon, which does not know it, counts by days of UTC."""
    found: dict[str, Counter[str]] = {}
    for row in incidents:
        told = row.get("corrections")
        cause = told[-1]["cause"] if told else row["cause"]
        found.setdefault(day(row["opened_at"]), Counter())[cause or "unknown"] += 1
    return [
        {"key": key, "failures": causes.total(), "causes": dict(causes.most_common())}
        for key, causes in sorted(found.items())
    ]


def _table(name: str, rows: list[dict[str, Any]], *, whole: bool) -> None:
    most = max(row["failures"] for row in rows)
    if name == "time":
        part = rows if whole else rows[-_SHOWN:]
        cut = (
            f" (the last {len(part)} of {len(rows)} with a failure; --by time shows all)"
            if len(part) < len(rows)
            else ""
        )
        columns = ("day", "failures", "", "causes")
        table(f"By day{cut}", columns, [_day(row, most) for row in part], whole=("day", ""), cut=("causes",))
        return
    left = len(rows) - _SHOWN
    title = f"By {name}" + (f" (the first {_SHOWN}; --by {name} shows {left} more)" if left > 0 and not whole else "")
    last = "where" if name == "cause" else "causes"
    names: list[str] = [name, "failures", "", "last", "newest 3 within", last]
    if name == "node":
        names.insert(3, "per month")
    kept = rows if whole else rows[:_SHOWN]
    table(
        title,
        names,
        [_row(name, row, most) for row in kept],
        wide=("last", "per month", "newest 3 within", ""),
        whole=(name, "failures", "last", "per month", "newest 3 within", ""),
        cut=(last,),
    )


def _row(name: str, row: dict[str, Any], most: int) -> list[object]:
    burst = row.get("burst_s")
    cells = [
        row["key"],
        row["failures"],
        bar(row["failures"], most),
        ago(row.get("last_at")),
        span(burst) if burst is not None else None,
        _most(name, row),
    ]
    if name == "node":
        score = row.get("score")
        told = rate(score) if score and score["failures"] else None
        cells.insert(3, f"{told or 'not known'} LEMON" if score and score["lemon"] else told)
    return cells


def _day(row: dict[str, Any], most: int) -> tuple[object, ...]:
    return row["key"], row["failures"], bar(row["failures"], most), _most("time", row)


def _most(name: str, row: dict[str, Any]) -> str:
    """What else is remarkable of these failures."""
    if name == "cause":
        parts = [f"{row[what]} {what if row[what] != 1 else what[:-1]}" for what in ("nodes", "jobs") if row.get(what)]
        return ", ".join(parts)
    causes = row.get("causes") or {}
    return causes_words(causes) if len(causes) > 1 else ", ".join(map(shown, causes))


def bar(value: int, most: int) -> str:
    return drawable("█", "#") * max(1, round(_BAR * value / most))
