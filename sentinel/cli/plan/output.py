"""Answers of ``sentinel plan``: a sentence, tables, a curve, the inputs with their origin; or one JSON object."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from sentinel.cli.offline import chart
from sentinel.cli.operator.output import chart_width, rich_console
from sentinel.cli.plan.inputs import Inputs, Row
from sentinel.planning import quantities
from sentinel.text import visible

_NUMERIC = re.compile(r"[+-]?\d[\d,.e+-]*(?: [%\w/]{1,5})?")


@dataclass(frozen=True)
class Section:
    """A table with a title; cells are plain text."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    mark: int | None = None  # the row that is the answer


@dataclass
class Answer:
    """What a command found. ``document`` is the JSON; the rest is for people."""

    headline: str
    document: dict[str, Any]
    sections: list[Section] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    figure: chart.Figure | None = None
    bars: Sequence[tuple[str, float, str]] = ()
    commands: list[str] = field(default_factory=list)  # of a shell; printed under the notes


def show(key: str, value: float) -> str:
    """A value as its key's unit reads."""
    if key.endswith("_bytes_per_s"):
        return quantities.show_rate(value)
    if key.endswith("_bytes"):
        return quantities.show_bytes(value)
    if key.endswith("_s"):
        return quantities.show_duration(value)
    if key.endswith("_fraction"):
        return quantities.show_share(value)
    return f"{value:,.0f}" if float(value).is_integer() else quantities.figures(value)


def emit(answer: Answer, inputs: Inputs) -> None:
    """Prints the answer the way that was asked for, and writes the plot."""
    path = chart.check_file(inputs.options.get("plot"))
    if path is not None:
        if answer.figure is None:
            answer.warnings.append("these inputs leave no curve to draw: no plot was written")
        else:
            chart.write(answer.figure, path)
    warnings = list(dict.fromkeys([*inputs.warnings, *answer.warnings]))
    if inputs.options["as_json"]:
        document = {**answer.document, "inputs": inputs.as_json(), "notes": answer.notes, "warnings": warnings}
        click.echo(json.dumps(_plain(document), allow_nan=False))
        return
    _print(answer, inputs, warnings)


def _plain(value: Any) -> Any:
    """JSON without infinities: what has no finite value is null."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _print(answer: Answer, inputs: Inputs, warnings: list[str]) -> None:
    from rich.text import Text

    console = rich_console()
    unicode = console.encoding.lower().startswith("utf")
    console.print(Text(visible(answer.headline), style="bold"))
    for section in answer.sections:
        console.print()
        console.print(_table(section))
    if not inputs.options["no_chart"]:
        width = chart_width()
        lines = [] if answer.figure is None else chart.terminal(answer.figure, width, unicode=unicode)
        if answer.bars:
            lines = chart.bars(answer.bars, width, unicode=unicode)
        if lines:
            console.print()
        for line in lines:
            console.print(Text(line), no_wrap=True, overflow="crop")
    console.print()
    rows = [_input_cells(row) for row in inputs.rows.values()]
    console.print(_table(Section("Inputs", ("input", "value", "source", "note"), rows)))
    for kind, style, texts in (("note", "dim", answer.notes), ("warning", "yellow", warnings)):
        for text in texts:
            console.print(Text.assemble((f"{kind}: ", style), visible(text)))
    for command in answer.commands:
        lines = textwrap.wrap(command, max(40, console.width - 8), break_long_words=False, break_on_hyphens=False)
        console.print(Text("  " + " \\\n      ".join(lines)), soft_wrap=True)


def _input_cells(row: Row) -> tuple[str, str, str, str]:
    """A given value shows the text it was read from, where that says more than the value."""
    value = show(row.key, row.value)
    same = row.source == "given" and row.note.replace(",", "") in (value.replace(" ", ""), value.replace(",", ""))
    return row.key, value, row.source, "" if same else row.note


def _table(section: Section) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=section.title or None,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_header=any(section.columns),
    )
    for number, column in enumerate(section.columns):
        numeric = number > 0 and all(_NUMERIC.fullmatch(r[number]) for r in section.rows)
        table.add_column(column, justify="right" if numeric else "left")
    for number, row in enumerate(section.rows):
        table.add_row(
            *(Text(visible(cell, None)) for cell in row), style="bold green" if number == section.mark else ""
        )
    return table
