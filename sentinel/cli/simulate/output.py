"""How ``sentinel simulate`` shows its answers: tables, a curve, and every assumption."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sentinel.cli.offline import chart
from sentinel.cli.operator.output import chart_width, counted, rich_console
from sentinel.cli.simulate.scenarios import Sweep
from sentinel.text import printable

_LOG_FROM = 10.0  # a sweep over values so many times apart has a logarithmic axis
_CAUSES = 12  # rows of the table by cause; all of them are in the JSON


def show(
    answers: Sequence[dict[str, Any]], sweep: Sweep | None, file: Path | None, *, quiet: bool, curve: bool
) -> None:
    """Print the answers, and write the curve. ``quiet``: only write it."""
    figure = _swept(answers, sweep) if sweep is not None else _days(answers)
    if not quiet:
        _print(answers, sweep, figure if curve else None)
    if file is not None:
        chart.write(figure, file)


def _print(answers: Sequence[dict[str, Any]], sweep: Sweep | None, figure: chart.Figure | None) -> None:
    from rich.text import Text

    console = rich_console()
    console.print(Text(f"Simulated: {_scenario(answers)}", style="bold"))
    console.print(_table("", _HEAD if sweep is None else (sweep.key, *_HEAD), [_row(one, sweep) for one in answers]))
    for one in answers:
        console.print(Text(_intervals(one, sweep), style="dim"))
    console.print()
    if sweep is None:
        console.print(_by_cause(answers))
    if figure is not None:
        console.print()
        unicode = console.encoding.lower().startswith("utf")
        for line in chart.terminal(figure, chart_width(), unicode=unicode):
            console.print(Text(line), no_wrap=True, overflow="crop")
    for one in answers:
        for cause, count in one["by_person_causes"].items():
            console.print(Text(f"a person was needed ({one['as']}): {cause}, {counted(count, 'time')}", style="dim"))
        for words in one["unsafe"]:
            console.print(Text(f"unsafe ({one['as']}): {words}", style="red"))
    console.print()
    console.print(Text("Assumptions", style="bold"))
    told: set[str] = set()
    for one in answers:
        for row in one["assumptions"]:
            line = f"{row['name']} = {_value(row['value'])} {row['unit']}".rstrip()
            if line not in told:
                told.add(line)
                console.print(Text.assemble(line, (f"  {row['source']}", "dim")))
    console.print(Text(f"simulated in {sum(one['wall_s'] for one in answers):.1f} s of computing", style="dim"))


def _scenario(answers: Sequence[dict[str, Any]]) -> str:
    """What all the answers have in common: a sweep changes one of it."""
    first, *others = map(_parts, answers)
    return ", ".join(part for part in first if all(part in other for other in others))


def _parts(one: dict[str, Any]) -> tuple[str, ...]:
    seeds = one["seeds"]
    return (
        f"{counted(one['nodes'], 'node')} of {counted(one['gpus_per_node'], 'GPU')}",
        *(() if one["jobs"] == 1 else (f"{one['jobs']} jobs",)),
        counted(one["spare_nodes"], "spare"),
        counted(one["days"], "day"),
        f"failures as {one['failures']}",
        f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}",
    )


_HEAD = ("simulated", "ETTR", "incidents", "no person", "wrong drains", "unsafe", "GPU-h lost")


def _row(one: dict[str, Any], sweep: Sweep | None) -> tuple[str, ...]:
    row = (
        str(one["as"]),
        _percent(one["ettr"]),
        f"{one['incidents']:,}",
        _percent(one["automated_fraction"]),
        str(one["wrong_drains"]),
        str(one["unsafe_actions"]),
        f"{one['lost_gpu_hours']:,.0f}",
    )
    return row if sweep is None else (str(one["sweep"][sweep.key]), *row)


def _by_cause(answers: Sequence[dict[str, Any]]) -> Any:
    causes = sorted(
        {cause for one in answers for cause in one["lost_by_cause"]},
        key=lambda cause: -max(one["lost_by_cause"].get(cause, 0.0) for one in answers),
    )
    rows = [(cause, *(f"{one['lost_by_cause'].get(cause, 0.0):,.0f}" for one in answers)) for cause in causes[:_CAUSES]]
    rows.append(("all", *(f"{one['lost_gpu_hours']:,.0f}" for one in answers)))
    return _table("GPU-hours lost to (simulated)", ("cause", *(str(one["as"]) for one in answers)), rows)


def _percent(value: float | None) -> str:
    return "not known" if value is None else f"{100 * value:.2f} %"


def _intervals(one: dict[str, Any], sweep: Sweep | None) -> str:
    def shown(bounds: Sequence[float] | None) -> str:
        return "not known" if bounds is None else f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f} %"

    name = str(one["as"]) if sweep is None else f"{one['as']}, {sweep.key} {one['sweep'][sweep.key]}"
    return (
        f"{name}: 95 % interval of ETTR {shown(one['ettr_interval'])} (over {one['ettr_interval_over']}), "
        f"without a person {shown(one['automated_interval'])}"
    )


def _value(value: object) -> str:
    if isinstance(value, list):
        return " / ".join(_value(part) for part in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


# -- curves ------------------------------------------------------------------------------------------------------------


def _days(answers: Sequence[dict[str, Any]]) -> chart.Figure:
    curves = tuple(
        (str(one["as"]), tuple((float(day + 1), value) for day, value in enumerate(_running(one["daily_ettr"]))))
        for one in answers
    )
    return chart.Figure(
        title=f"Simulated ETTR so far ({_scenario(answers)})",
        x_label="day",
        y_label="ETTR",
        curves=curves,
        marks=tuple((name, points[-1][0], points[-1][1]) for name, points in curves),
        y_from_zero=False,
        x_whole=True,
        show_x=lambda x: f"{x:.0f}",
        show_y=_percents([value for _, points in curves for _, value in points]),
    )


def _running(values: Sequence[float]) -> list[float]:
    found, total = [], 0.0
    for number, value in enumerate(values, 1):
        total += value
        found.append(total / number)
    return found


def _swept(answers: Sequence[dict[str, Any]], sweep: Sweep) -> chart.Figure:
    names = list(dict.fromkeys(str(one["as"]) for one in answers))
    curves = tuple(
        (name, tuple(sorted((place, float(one["ettr"])) for place, one in _placed(answers, sweep, name))))
        for name in names
    )
    spans = {
        name: tuple(
            (place, *one["ettr_interval"]) for place, one in _placed(answers, sweep, name) if one["ettr_interval"]
        )
        for name in names
    }
    least, most, written = min(sweep.places), max(sweep.places), dict(zip(sweep.places, sweep.texts, strict=True))
    return chart.Figure(
        title=f"Simulated ETTR by {sweep.key} ({_scenario(answers)})",
        x_label=sweep.key,
        y_label="ETTR",
        curves=curves,
        marks=tuple((name, *points[-1]) for name, points in curves) if len(curves) > 1 else (),
        intervals=tuple((name, found) for name, found in spans.items() if found),  # none of one seed in one day
        x_log=least > 0 and most >= _LOG_FROM * least,
        x_ticks=tuple(written.items()),
        show_x=lambda x: written.get(x, f"{x:g}"),
        y_from_zero=False,
        show_y=_percents([value for _, points in curves for _, value in points]),
    )


def _percents(values: Sequence[float]) -> Callable[[float], str]:
    """Shares with as many digits as tell the ends of the axis and its labels apart."""
    span = 100 * (max(values) - min(values)) if values else 0.0
    digits = 1 if span >= 1 or span <= 0 else min(4, 1 - math.floor(math.log10(span)))
    return lambda share: f"{100 * share:.{digits}f} %"


def _placed(answers: Sequence[dict[str, Any]], sweep: Sweep, name: str) -> list[tuple[float, dict[str, Any]]]:
    of_name = [one for one in answers if one["as"] == name]
    return list(zip(sweep.places, of_name, strict=True))
