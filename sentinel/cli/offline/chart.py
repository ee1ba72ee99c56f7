"""Curves for a terminal (braille dots, or plain marks where the terminal knows no Unicode) and for a file.

One ``Figure`` feeds both. The file goes through matplotlib, an optional extra that is imported only when asked for.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import FileError, Unavailable, UserError

FILE_KINDS = (".png", ".svg")
_TITLE_WIDTH = 78  # characters of the file's title in a line
_SYMBOLS = {True: "●◆■▲▼★", False: "o#%@+x"}  # of marks, with Unicode and without
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille cell: 4 rows of 2


@dataclass(frozen=True)
class Figure:
    """Curves over one x axis. ``marks`` are single points with a name: the answer, what was asked about."""

    title: str
    x_label: str
    y_label: str
    curves: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    marks: tuple[tuple[str, float, float], ...] = ()
    x_log: bool = False
    y_log: bool = False
    y_from_zero: bool = True  # where there is no logarithm
    x_whole: bool = False  # ticks of the file at whole numbers only
    x_ticks: tuple[tuple[float, str], ...] = ()  # the values that were tried, as they were written; else evenly spaced
    intervals: tuple[
        tuple[str, tuple[tuple[float, float, float], ...]], ...
    ] = ()  # of curves, in the file: x, low, high
    show_x: Callable[[float], str] = "{:g}".format
    show_y: Callable[[float], str] = "{:g}".format


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    log: bool

    def at(self, value: float) -> float:
        """Where between 0 and 1 the value lies."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return 0.5 if high == low else (value - low) / (high - low)

    def value(self, at: float) -> float:
        if self.log:
            return math.exp(math.log(self.low) + at * (math.log(self.high) - math.log(self.low)))
        return self.low + at * (self.high - self.low)


def _axes(figure: Figure) -> tuple[_Axis, _Axis]:
    points = [point for _, curve in figure.curves for point in curve]
    points += [(x, y) for _, x, y in figure.marks]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low = min(0.0, *ys) if figure.y_from_zero and not figure.y_log else min(ys)
    return _Axis(min(xs), max(xs), figure.x_log), _Axis(low, max(ys), figure.y_log)


def terminal(figure: Figure, width: int, height: int = 12, *, unicode: bool = True) -> list[str]:
    """The figure as lines of at most ``width`` characters."""
    x_axis, y_axis = _axes(figure)
    labels = [
        figure.show_y(y_axis.value(1 - row / (height - 1))) if _labelled(row, height) else "" for row in range(height)
    ]
    margin = max(len(label) for label in labels)
    columns = max(16, width - margin - 3)
    grid = _dots(figure, x_axis, y_axis, columns, height)
    cells = [[_cell(grid, row, column, unicode) for column in range(columns)] for row in range(height)]
    for number, (_, x, y) in enumerate(figure.marks):
        column = round(x_axis.at(x) * (columns - 1))
        cells[round((1 - y_axis.at(y)) * (height - 1))][column] = _SYMBOLS[unicode][number % 6]
    bar, corner, line = ("│", "└", "─") if unicode else ("|", "+", "-")
    lines = textwrap.wrap(figure.title, width)
    for row in range(height):
        lines.append(f"{labels[row]:>{margin}} {bar}{''.join(cells[row])}".rstrip())
    lines.append(f"{'':>{margin}} {corner}{line * columns}")
    lines.append(f"{'':>{margin}}  {_ticks(figure, x_axis, columns)}".rstrip())
    legend = [f"{_SYMBOLS[unicode][i % 6]} {name}" for i, (name, _, _) in enumerate(figure.marks)]
    words = f"{figure.y_label} against {figure.x_label}"
    indent = " " * (margin + 2)
    for entry in legend:
        if len(indent) + len(words) + 3 + len(entry) > width:
            lines.append(indent + words)
            words = entry
        else:
            words += f"   {entry}"
    lines.append(indent + words)
    return [entry if len(entry) <= width else entry[: width - 1] + "…" for entry in lines]


def _labelled(row: int, height: int) -> bool:
    """Every third row and the last have a label, but not two neighbours."""
    return row == height - 1 or (row % 3 == 0 and row != height - 2)


def _dots(figure: Figure, x_axis: _Axis, y_axis: _Axis, columns: int, height: int) -> set[tuple[int, int]]:
    """The dots that the curves touch, on a grid of 2 x 4 dots a cell."""
    wide, high = 2 * columns - 1, 4 * height - 1
    found = set()
    for _, curve in figure.curves:
        spots = [(x_axis.at(x) * wide, (1 - y_axis.at(y)) * high) for x, y in curve]
        for (x0, y0), (x1, y1) in zip(spots, spots[1:] or spots, strict=False):
            steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
            for i in range(steps + 1):
                found.add((round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps)))
    return found


def _cell(grid: set[tuple[int, int]], row: int, column: int, unicode: bool) -> str:
    bits = 0
    for down in range(4):
        for right in range(2):
            if (2 * column + right, 4 * row + down) in grid:
                bits |= _DOTS[down][right]
    if not bits:
        return " "
    return chr(0x2800 + bits) if unicode else "*"


def _ticks(figure: Figure, axis: _Axis, columns: int) -> str:
    count = 5 if columns >= 60 else 3
    evenly = [i / (count - 1) for i in range(count)]
    ticks = [(axis.at(x), text) for x, text in sorted(figure.x_ticks)]
    ticks = ticks or [(at, figure.show_x(axis.value(at))) for at in evenly]
    row = [" "] * columns
    end = -2
    for at, label in ticks:
        centre = round(at * (columns - 1))
        start = min(max(0, centre - len(label) // 2), columns - len(label))
        if start > end + 1:
            row[start : start + len(label)] = label
            end = start + len(label)
    return "".join(row)


def check_file(path: str | None) -> Path | None:
    """The plot's path, refused if it is neither PNG nor SVG or its folder is missing."""
    if path is None:
        return None
    target = Path(path)
    if target.suffix.lower() not in FILE_KINDS:
        raise UserError(f"--plot: {target.name!a:.80} is neither PNG nor SVG", fix="End the name in .png or .svg.")
    if not target.parent.is_dir():
        raise FileError(target, "the folder does not exist", fix="Create it first.")
    return target


def write(figure: Figure, path: Path) -> None:
    """The figure as a PNG or SVG file."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Sheet
        from matplotlib.ticker import FuncFormatter, MaxNLocator
    except ImportError as error:
        raise Unavailable(
            "plots as files need matplotlib, which is not installed",
            fix="pip install 'slurm-sentinel[plots]', or leave out --plot: the terminal shows the curve without it.",
        ) from error
    mpl.rcParams["svg.hashsalt"] = "sentinel"  # the same input gives the same file
    sheet = Sheet(figsize=(8, 4.8), dpi=150, layout="constrained")
    axes = sheet.add_subplot()
    at_one_x = len({x for _, x, _ in figure.marks}) == 1 and len(figure.marks) > 1  # where the curves end
    told = {
        name: f"{name} ({figure.show_y(y)})" if at_one_x else f"{name} ({figure.show_x(x)}, {figure.show_y(y)})"
        for name, x, y in figure.marks
    }
    colours = {}
    for name, curve in figure.curves:
        (line,) = axes.plot(
            [x for x, _ in curve], [y for _, y in curve], label=told.get(name, name), linewidth=1.8,
            marker="o" if figure.x_ticks else None, markersize=5,
        )  # fmt: skip
        colours[name] = line.get_color()
    for name, x, y in figure.marks:  # one that is named like a curve is a point of it
        known = {"color": colours[name]} if name in colours else {"label": told[name]}
        axes.plot([x], [y], "o", markersize=7, **known)
    for number, (name, spans) in enumerate(figure.intervals):
        xs, lows, highs = zip(*spans, strict=True)
        told_once = ["" if number or at else "95 % interval" for at in range(len(spans))]  # no empty label is told
        # As lines: the legend takes a place where they are not, but would cover what vlines draws.
        axes.plot(
            [xs, xs], [lows, highs], color=colours[name], alpha=0.3, linewidth=4, solid_capstyle="butt", label=told_once
        )
    axes.xaxis.set_major_formatter(FuncFormatter(_formatter(figure.show_x)))
    axes.yaxis.set_major_formatter(FuncFormatter(_formatter(figure.show_y)))
    if figure.x_log:
        _log_ticks(axes.xaxis, _axes(figure)[0], axes.set_xscale, figure.show_x)
    if figure.y_log:
        _log_ticks(axes.yaxis, _axes(figure)[1], axes.set_yscale, figure.show_y)
    elif figure.y_from_zero:
        axes.set_ylim(bottom=0)
    if figure.x_whole:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if figure.x_ticks:
        axes.set_xticks([x for x, _ in figure.x_ticks], [text for _, text in figure.x_ticks])
    axes.set_title(_lines(figure.title), fontsize="medium")
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="best", fontsize="small")
    try:
        sheet.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise FileError(
            path, f"cannot be written: {error.strerror}", fix="Check the folder's rights and free space."
        ) from error


def _lines(title: str) -> str:
    """The title; one that is too long is cut before what stands in brackets, and again where that is too long."""
    if len(title) <= _TITLE_WIDTH:
        return title
    what, bracket, about = title.partition(" (")
    parts = [what, f"({about}"] if bracket else [what]
    return "\n".join(line for part in parts for line in textwrap.wrap(part, _TITLE_WIDTH))


def _formatter(show: Callable[[float], str]) -> Callable[[float, int], str]:
    return lambda value, _position: show(value)


def _log_ticks(axis: object, span: _Axis, set_scale: Callable[[str], None], show: Callable[[float], str]) -> None:
    """Evenly spaced ticks with our own labels: powers of ten say little about minutes and hours."""
    from matplotlib.axis import Axis
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    assert isinstance(axis, Axis)
    set_scale("log")
    axis.set_major_locator(FixedLocator([span.value(i / 6) for i in range(7)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(_formatter(show)))


def bars(rows: Sequence[tuple[str, float, str]], width: int, *, unicode: bool = True) -> list[str]:
    """Horizontal bars: (name, value of zero or more, text behind the bar)."""
    if not rows:
        return []
    names = max(len(name) for name, _, _ in rows)
    texts = max(len(text) for _, _, text in rows)
    bar_width = max(8, width - names - texts - 4)
    top = max(value for _, value, _ in rows)
    mark = "█" if unicode else "#"
    return [
        f"{name:>{names}}  {mark * (round(value / top * bar_width) if top > 0 else 0)} {text}"
        for name, value, text in rows
    ]
