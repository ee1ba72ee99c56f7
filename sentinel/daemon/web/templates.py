"""Renders the templates of pages and reports. All text is escaped, and its invisible characters are made visible.

Text of users and programs (names, log lines, comments) is never markup: Jinja escapes it, and ``visible`` replaces
control characters and those that reverse the direction of a line. Nothing in it becomes a link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sentinel.alerts.text import culprit_words
from sentinel.model.hostlist import fold
from sentinel.model.vocabulary import cause_words, how_sure, planned_words, words_of
from sentinel.text import duration_words, printable

_FOLDER = Path(__file__).with_name("templates")
NOT_KNOWN = "not known"


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible,
    )
    made.filters |= {
        "ago": ago, "amount": amount, "breakable": breakable, "cause_words": cause_words, "culprit_words": culprit_words,
        "folded": folded, "hours": hours, "interval": interval, "linked": linked,
        "path": path, "percent": percent, "planned_words": planned_words, "span": span, "step_words": words_of, "sure": sure,
        "when": when,
    }  # fmt: skip
    return made


def render(template: str, **values: Any) -> str:
    return environment().get_template(template).render(**values)


def style() -> str:
    """The style sheet of pages and reports."""
    return (_FOLDER / "style.css").read_text(encoding="utf-8")


def visible(value: Any) -> Any:
    """A value as text: None becomes "not known", and each character without a glyph a dot."""
    if value is None:
        return NOT_KNOWN
    if isinstance(value, str) and not isinstance(value, Markup) and not value.isprintable():
        return printable(value, "·", keep="\n\t")
    return value


def breakable(word: object) -> Markup:
    """An id of ours, e.g. a cause, that may be wrapped after each underscore in a narrow table."""
    return Markup("_<wbr>").join(str(word).split("_"))


def path(name: object) -> str:
    """A name, quoted as one part of a URL path."""
    return quote(str(name), safe="")


def linked(action: str, query: Mapping[str, str], changes: Mapping[str, object] | None = None) -> str:
    """The address of a page with the filters of ``query`` and these changes, from the first row of its table on."""
    asked = {**query, "from": "", **(changes or {})}
    kept = {key: value for key, value in asked.items() if value != ""}
    return f"{action}?{urlencode(kept)}" if kept else action


def span(seconds: object) -> str:
    """A duration in seconds, shown in one unit."""
    return duration_words(seconds) if isinstance(seconds, (int, float)) else NOT_KNOWN


def when(value: object) -> Markup | str:
    """An ISO time as a ``time`` element in UTC."""
    at = _time(value)
    if at is None:
        return NOT_KNOWN
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S} UTC")


def ago(value: object, now: object) -> str:
    at, until = _time(value), _time(now)
    if at is None or until is None:
        return NOT_KNOWN
    return f"{span(max(0.0, (until - at).total_seconds()))} ago"


def _time(value: object) -> datetime | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    return value.astimezone(UTC) if isinstance(value, datetime) else None


def amount(value: object) -> str:
    """A number with three significant digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NOT_KNOWN if value is None else str(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def hours(value: object) -> str:
    """A duration in hours, shown in one unit."""
    return span(3600.0 * value) if isinstance(value, (int, float)) else NOT_KNOWN


def percent(value: object) -> str:
    return f"{100 * value:.1f} %" if isinstance(value, (int, float)) else NOT_KNOWN


def sure(verdict: Mapping[str, Any]) -> str:
    """How sure a verdict is, in words; empty where nothing is likely."""
    return how_sure(verdict["confidence"], verdict.get("drain_confidence", 0.0))


def interval(bounds: Sequence[float | None] | None, show: str = "amount") -> str:
    """``(low to high)``; an unknown bound has no number."""
    if bounds is None:
        return ""
    shown = {"amount": amount, "hours": hours, "span": span, "percent": percent}[show]
    low, high = bounds
    if low is None and high is None:
        return ""
    if high is None:
        return f"(at least {shown(low)})"
    return f"({shown(low)} to {shown(high)})"


def folded(names: object) -> str:
    """Node names as Slurm folds them."""
    if isinstance(names, str):
        return names
    listed = [str(name) for name in names] if isinstance(names, (list, tuple)) else []
    return fold(listed) if listed else NOT_KNOWN
