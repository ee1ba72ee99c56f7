"""``sentinel history``: past failures by cause, node, job, user and time; what comes again stands first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sentinel.cli.asking import ago, config_option, json_option, print_json, shown, table, view
from sentinel.cli.fleet import incident_table, rate

_SHOWN = 15  # rows of a table; --by shows all
_BAR = 20
_ORDER = ("cause", "node", "job", "user", "time")


@click.command()
@click.option("--days", type=float, default=30.0, show_default=True, help="How far back.")
@click.option("--by", type=click.Choice(_ORDER), help="Only this table, whole.")
@click.option("--node", help="Only failures of this node.")
@click.option("--job", type=int, help="Only failures of this job.")
@click.option("--user", help="Only failures of this user's jobs.")
@click.option("--cause", help="Only failures of this cause.")
@config_option
@json_option
def history(
    days: float,
    by: str | None,
    node: str | None,
    job: int | None,
    user: str | None,
    cause: str | None,
    config: Path,
    as_json: bool,
) -> None:
    """Past failures by cause, node, job, user and day; recurring ones first.

    \b
    Examples:
      sentinel history
      sentinel history --by node --days 90
      sentinel history --node n17
      sentinel history --cause numerical_nan --user ada --json
    """
    asked = {"node": node, "job": job, "user": user, "cause": cause}
    chosen = {name: value for name, value in asked.items() if value is not None}
    seen = view(config, "history", days=days, **chosen)
    groups = {name: rows for name, rows in seen["by"].items() if by in (None, name)}
    if as_json:
        print_json({"by": name, **row} for name, rows in groups.items() for row in rows)
        return
    which = "".join(f" of {name} {shown(value)}" for name, value in chosen.items())
    count = len(seen["incidents"])
    if not count:
        click.echo(f"No incident{which} in the last {days:g} days.")
        return
    click.echo(f"{count} incident{'s' if count != 1 else ''}{which} in the last {days:g} days")
    for name in _ORDER:
        if groups.get(name) and (by == name or name not in chosen):
            _table(name, groups[name], whole=by == name)
    if by is None:
        incident_table("Latest", seen["incidents"][:_SHOWN])


def _table(name: str, rows: list[dict[str, Any]], *, whole: bool) -> None:
    most = max(row["failures"] for row in rows)
    if name == "time":
        shown_rows = rows if whole else rows[-_SHOWN:]
        columns = ("day", "fails", "", "mostly")
        table("By day", columns, [_day(row, most) for row in shown_rows], whole=("day", ""), cut=("mostly",))
        return
    left = len(rows) - _SHOWN
    title = f"By {name}" + (f" (the first {_SHOWN}; --by {name} shows {left} more)" if left > 0 and not whole else "")
    names: list[str] = [name, "fails", "", "last", "newest 3 within", "mostly"]
    if name == "node":
        names.insert(3, "a month")
    kept = rows if whole else rows[:_SHOWN]
    table(
        title,
        names,
        [_row(name, row, most) for row in kept],
        wide=("newest 3 within", ""),
        whole=(name, "last", "a month", ""),
        cut=("mostly",),
    )


def _row(name: str, row: dict[str, Any], most: int) -> list[object]:
    burst = row.get("burst_s")
    cells = [
        row["key"],
        row["failures"],
        bar(row["failures"], most),
        ago(row.get("last_at")),
        _length(burst),
        _most(name, row),
    ]
    if name == "node":
        score = row.get("score")
        cells.insert(3, rate(score) + (" LEMON" if score["lemon"] else "") if score and score["failures"] else None)
    return cells


def _day(row: dict[str, Any], most: int) -> tuple[object, ...]:
    return row["key"], row["failures"], bar(row["failures"], most), _most("time", row)


def _most(name: str, row: dict[str, Any]) -> str:
    """What else is remarkable of these failures."""
    if name == "cause":
        parts = [f"{row[what]} {what if row[what] != 1 else what[:-1]}" for what in ("nodes", "jobs") if row.get(what)]
        return ", ".join(parts)
    causes = row.get("causes") or {}
    return ", ".join(f"{count} {cause}" if len(causes) > 1 else cause for cause, count in causes.items())


def _length(seconds: object) -> str | None:
    if not isinstance(seconds, (int, float)):
        return None
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def bar(value: int, most: int, width: int = _BAR) -> str:
    return "█" * max(1, round(width * value / most))
