"""Draws curves and bars as inline SVG: no script, no outside resource, colours from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from markupsafe import Markup

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 8, 24, 38
_TICKS = 5
_CHARACTER = 7  # assumed width of a character beside a bar, in SVG units; on the wide side
_MOST_VALUE = 1e30
_MARK = Markup('<line class="mark" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>')
_WORDS = Markup('<text class="mark" x="{}" y="{}" text-anchor="{}">{}</text>')

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line with a label."""

    x: float
    words: str


def curve(
    title: str,
    series: Sequence[tuple[str, Points]],
    *,
    x_label: str,
    y_label: str,
    marks: Sequence[Mark] = (),
) -> Markup | None:
    """A line chart; an unknown value leaves a gap in its line. None: there is nothing to draw."""
    known = [(x, y) for _, points in series for x, y in points if _drawable(y)]
    if len(known) < 2:
        return None
    low_x, high_x = _widened(min(x for x, _ in known), max(x for x, _ in known))
    low_y, high_y = _widened(min(y for _, y in known), max(y for _, y in known))

    def at_x(x: float) -> float:
        return LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)

    def at_y(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)

    parts = [_axes(low_x, high_x, low_y, high_y, at_x, at_y)]
    for number, mark in enumerate(marks):
        if low_x <= mark.x <= high_x:
            x = at_x(mark.x)
            ends = x > WIDTH * 0.7
            parts.append(_MARK.format(_px(x), TOP, HEIGHT - BOTTOM))
            level = TOP + 10 + 13 * (number % 4)
            parts.append(_WORDS.format(_px(x - 4 if ends else x + 4), level, "end" if ends else "start", mark.words))
    for number, (_, points) in enumerate(series):
        for line in _lines(points):
            if len(line) == 1:
                x, y = line[0]
                parts.append(Markup('<circle class="s{}" cx="{}" cy="{}" r="2"/>').format(
                    number % 4, _px(at_x(x)), _px(at_y(y))))  # fmt: skip
                continue
            drawn = " ".join(f"{_px(at_x(x))},{_px(at_y(y))}" for x, y in line)
            parts.append(Markup('<polyline class="s{}" points="{}"/>').format(number % 4, drawn))
    parts.append(
        Markup('<text x="{}" y="{}" text-anchor="middle">{}</text><text x="{}" y="{}">{}</text>').format(
            (LEFT + WIDTH - RIGHT) // 2, HEIGHT - 4, x_label, 2, 12, y_label
        )
    )
    return _figure(title, Markup("").join(parts), HEIGHT)


def bars(title: str, rows: Sequence[tuple[str, float, str]]) -> Markup | None:
    """Horizontal bars: (name, value >= 0, label beside it). None: there are no rows."""
    if not rows:
        return None
    most = max(value for _, value, _ in rows) or 1.0
    step, names = 22, 150
    width = WIDTH - names - 14 - _CHARACTER * max(len(words) for _, _, words in rows)  # width left for the bars
    parts = []
    for number, (name, value, words) in enumerate(rows):
        y = number * step
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="end">{}</text><rect class="bar" x="{}" y="{}" width="{}" height="14"/>'
                   '<text x="{}" y="{}">{}</text>').format(
                names - 8, y + 15, name[:22], names, y + 4, _px(max(1.0, width * value / most)),
                _px(names + width * value / most + 6), y + 15, words,
            )
        )  # fmt: skip
    return _figure(title, Markup("").join(parts), step * len(rows) + 4)


def of_rows(title: str, shown: int, rows: int) -> str:
    """The title of a chart of the first rows of a table, which says how many there are where it shows a part."""
    return title if shown >= rows else f"{title}: the first {shown} of {rows}"


def of_days(title: str, shown: int, days: int) -> str:
    """The same of the last days; those on which there was nothing are no rows."""
    return f"{title} (UTC)" if shown >= days else f"{title} (UTC): the last {shown} of {days} with any"


def _figure(title: str, inside: Markup, height: int) -> Markup:
    return Markup('<svg class="chart" role="img" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        title, WIDTH, height, inside
    )


def _axes(
    low_x: float, high_x: float, low_y: float, high_y: float,
    at_x: Callable[[float], float], at_y: Callable[[float], float],
) -> Markup:  # fmt: skip
    parts = []
    for y in _ticks(low_y, high_y):
        parts.append(Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/><text x="{}" y="{}" text-anchor="end">{}'
                            '</text>').format(LEFT, WIDTH - RIGHT, _px(at_y(y)), _px(at_y(y)), LEFT - 5, _px(at_y(y) + 4),
                                              f"{y:.3g}"))  # fmt: skip
    for x in _ticks(low_x, high_x):
        words = f"{x:,.0f}"
        inside = min(at_x(x), WIDTH - _CHARACTER * len(words) / 2)
        parts.append(Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
            _px(inside), HEIGHT - BOTTOM + 15, words))  # fmt: skip
    return Markup("").join(parts)


def _ticks(low: float, high: float) -> list[float]:
    rough = (high - low) / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def _widened(low: float, high: float) -> tuple[float, float]:
    """Widen an empty range, so that a constant line is drawn in the middle."""
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-30):
        return low, high
    return low - max(abs(low) * 0.1, 0.5), high + max(abs(high) * 0.1, 0.5)


def _lines(points: Points) -> list[list[tuple[float, float]]]:
    lines: list[list[tuple[float, float]]] = [[]]
    for x, y in points:
        if _drawable(y):
            lines[-1].append((x, y))
        else:
            lines.append([])
    return [line for line in lines if line]


def _drawable(y: float | None) -> TypeGuard[float]:
    """Whether a value can be drawn: a program may print any number as its loss, also NaN."""
    return y is not None and abs(y) < _MOST_VALUE


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
