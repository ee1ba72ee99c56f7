"""How commands print: tables that fit the terminal, sentences, times, JSON. Cell texts are data, never markup.

A pipe or a file gets every column and no broken line; a terminal gets what fits, and a narrow one a block for each row.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sentinel.model.hostlist import fold
from sentinel.text import duration_words, printable

if TYPE_CHECKING:
    from rich.console import Console

BETWEEN = 2  # characters between two columns
LEAST_CUT = 12  # a column that is cut keeps so many characters
LEAST_WRAPPED = 14  # a column whose cells are broken is not made narrower than this
_UNBROKEN_SPACE = "\ue000"  # of the private use area: no text that is shown has it
LEAST_SENTENCE = 30  # a sentence is not broken before this many characters
UNLIMITED = 100_000  # characters of a line that goes into a pipe or a file
MOST_NAMES = 72  # characters of a folded list in a cell; the rest is counted
CAUSES = 3  # causes named in a cell; the rest is counted
MOST_CHART = 120  # columns of a curve
PIPED_CHART = 80  # the same in a pipe or a file, whose width nobody knows
DAY_S = 86400.0
_CLOCKS_S = 5.0  # what hosts' clocks may differ by: a time so little ahead is now
F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for machines.")(command)


def echo(text: str = "", *, err: bool = False) -> None:
    """As ``click.echo``, in the terminal's own encoding: where that is ASCII, click writes UTF-8 all the same."""
    click.echo(text, file=sys.stderr if err else sys.stdout)


def print_json(rows: Iterable[object]) -> None:
    for row in rows:
        echo(json.dumps(row, sort_keys=False))


def line_width(*, err: bool = False) -> int:
    """Characters of a line: the terminal's; ``$COLUMNS`` where it is set; no limit in a pipe or a file."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return shutil.get_terminal_size().columns if on_terminal(err=err) else UNLIMITED


def on_terminal(*, err: bool = False) -> bool:
    if err:
        return sys.stderr.isatty()
    return _PAGED[-1] if _PAGED else sys.stdout.isatty()


# --- tables --------------------------------------------------------------------------------------------------------------


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    wide: Sequence[str] = (),
    whole: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> None:
    """Print a table that fits the line; where even its narrow form does not fit, a block of lines for each row.

    Args:
        wide: columns that are left out where the line is too short for them, the last one first; those that fit beside
            what is left are kept. Which are not, is said below the table, on stderr where the output is no terminal.
        whole: columns whose cells are not broken.
        cut: columns, at most one, whose cells are one line, cut where the line ends.
    """
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else Text(shown(cell)) for cell in row] for row in rows]
    natural = [max([len(name), *(row[n].cell_len for row in cells)]) for n, name in enumerate(columns)]

    def least(n: int) -> int:
        if columns[n] in cut:
            return min(natural[n], LEAST_CUT)
        return natural[n] if columns[n] in whole else min(natural[n], LEAST_WRAPPED)

    width = line_width()
    kept = list(range(len(columns)))
    for name in reversed(wide):
        if name in columns and _sum(kept, least) > width:
            kept.remove(columns.index(name))
    for n in (columns.index(name) for name in wide if name in columns):
        if n not in kept and _sum([*kept, n], least) <= width:  # beside what is left it fits
            kept = sorted([*kept, n])
    if title:
        echo()
        echo(_styled(title, "bold"))
    if _sum(kept, least) > width:
        _blocks(columns, cells)
        return
    for n in (n for n in kept if columns[n] in cut):
        others = _sum([k for k in kept if k != n], lambda k: natural[k] if columns[k] in whole else least(k))
        for row in cells:
            _cut(row[n], max(LEAST_CUT, width - others - BETWEEN))
    _grid([columns[n] for n in kept], [[row[n] for n in kept] for row in cells], whole, width)
    if left_out := [name for n, name in enumerate(columns) if n not in kept and name]:
        # On a terminal below its table, also in a pager.
        say(f"too narrow for: {', '.join(left_out)}", err=not on_terminal())


def _cut(cell: Any, most: int) -> None:
    if cell.cell_len > most:
        mark = drawable("…", "...")
        cell.truncate(most - len(mark))
        cell.append(mark)


def _sum(kept: Sequence[int], size: Callable[[int], int]) -> int:
    return sum(size(n) for n in kept) + BETWEEN * (len(kept) - 1)


def _grid(columns: Sequence[str], cells: Sequence[Sequence[Any]], whole: Sequence[str], width: int) -> None:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, BETWEEN, 0, 0), header_style="bold", collapse_padding=False)
    for name in columns:
        made.add_column(name, overflow="fold", no_wrap=name in whole)
    for row in cells:
        made.add_row(*row)
    console = rich_console(width)
    with console.capture() as captured:
        console.print(made)
    for line in captured.get().splitlines():
        echo(line.rstrip())


def chart_width() -> int:
    """Characters of a curve: the line's, as far as a curve gains from them."""
    return min(line_width(), MOST_CHART) if line_width() != UNLIMITED else PIPED_CHART


def rich_console(width: int | None = None) -> Console:
    """rich's console with our width: what goes into a pipe or a file is not broken at 80 columns."""
    from rich.console import Console

    class OurConsole(Console):
        def on_broken_pipe(self) -> None:
            """rich would end the command itself, with the status of what is bad."""
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return OurConsole(
        highlight=False,
        width=width or line_width(),
        force_terminal=on_terminal(),
        no_color=_no_colour(),
    )


def _blocks(columns: Sequence[str], cells: Sequence[Sequence[Any]]) -> None:
    """Each row as its first cell and, indented, a line for each other cell that says something."""
    names = max((len(name) for name in columns[1:]), default=0)
    for row in cells:
        echo(f"{columns[0]} {row[0].plain}" if columns[0] else row[0].plain)
        for name, cell in zip(columns[1:], row[1:], strict=True):
            if cell.plain not in ("-", ""):
                say(f"{name:{names}}  {cell.plain}", "  ", hanging=2)


def _no_colour() -> bool:
    return bool(os.environ.get("NO_COLOR"))


def _styled(text: str, style: str) -> str:
    harmless = shown(text)
    plain = not on_terminal() or _no_colour() or os.environ.get("TERM") == "dumb"
    return harmless if plain else click.style(harmless, **{style: True})


def styled_state(state: object) -> Any:
    """A node's or incident's state in its colour, and always in its word."""
    from rich.text import Text

    colours = {
        "idle": "green", "allocated": "green", "mixed": "green", "heard": "green", "closed": "green",
        "drained": "yellow", "draining": "yellow", "held": "yellow", "watching": "cyan", "open": "red",
        "waiting": "yellow", "down": "red", "unreachable": "red", "silent": "yellow", "not responding": "red",
    }  # fmt: skip
    return Text(shown(state), style=colours.get(str(state), ""))


# --- sentences and values ----------------------------------------------------------------------------------------------


def say(text: str, indent: str = "", *, hanging: int = 4, err: bool = False) -> None:
    """A sentence, broken between words where the line ends; what follows is indented by ``hanging`` more."""
    echo(broken(text, indent, hanging=hanging, err=err), err=err)


def broken(text: str, indent: str = "", *, hanging: int = 4, err: bool = False) -> str:
    """The lines that ``say`` prints."""
    wrapped = textwrap.wrap(
        printable(text, "·", keep="\n\t\u00a0" + _UNBROKEN_SPACE),
        max(LEAST_SENTENCE, line_width(err=err)),
        initial_indent=indent,
        subsequent_indent=f"{indent}{' ' * hanging}",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(wrapped).replace(_UNBROKEN_SPACE, " ") or indent


def unbroken(text: str) -> str:
    """Text, such as a path, at whose spaces ``say`` begins no line."""
    return text.replace(" ", _UNBROKEN_SPACE)


def shown(value: object) -> str:
    """A value for a person: ``-`` for not known; control characters made harmless."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, (list, tuple)):
        return folded([str(item) for item in value]) or "-"
    return printable(str(value), "·")


def folded(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """Names as Slurm folds them; a list longer than ``most`` characters is cut, and says how many names it has."""
    text = shown(fold(names)) if names else ""
    if len(text) <= most:
        return text
    return f"{text[:most].rpartition(',')[0] or text[:most]},... ({len(names)} in all)"


def counted(number: float, what: str) -> str:
    """``1 node``, ``2,048 nodes``, ``3 histories``."""
    many = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{f'{number:,}' if isinstance(number, int) else f'{number:g}'} {what if number == 1 else many}"


def causes_words(causes: Mapping[str, int]) -> str:
    """How often each of the first causes, and how many others there are."""
    first = [f"{count} {shown(cause)}" for cause, count in list(causes.items())[:CAUSES]]
    return ", ".join([*first, *([f"+{len(causes) - CAUSES} more"] if len(causes) > CAUSES else [])])


def ago(value: object, now: datetime | None = None) -> str:
    """Time since an ISO time, or until it, in words short enough for a table."""
    if not isinstance(value, str):
        return "-"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(value)).total_seconds()
    return f"in {span(-seconds)}" if seconds < -_CLOCKS_S else f"{span(max(0.0, seconds))} ago"


def span(seconds: object) -> str:
    """A length of time in one unit; ``-`` for not known."""
    return duration_words(seconds) if isinstance(seconds, (int, float)) else "-"


def clock(value: object, now: datetime | None = None, *, dated: bool = False) -> str:
    """An ISO time as the clock on the wall shows it, with its zone; with the date unless it is within a day.

    ``dated``: always with the date, as in what is kept.
    """
    if not isinstance(value, str):
        return "-"
    at = datetime.fromisoformat(value).astimezone()
    old = dated or abs(((now or datetime.now(UTC)) - at).total_seconds()) >= DAY_S
    return f"{at:%Y-%m-%d %H:%M %Z}" if old else f"{at:%H:%M:%S %Z}"


def day(value: object) -> str:
    """The date of an ISO time in the zone of the terminal."""
    return f"{datetime.fromisoformat(value).astimezone():%Y-%m-%d}" if isinstance(value, str) else "-"


def when(value: object, now: datetime | None = None) -> str:
    """The clock's time and, beside it, how long ago that was."""
    return f"{clock(value, now)} ({ago(value, now)})" if isinstance(value, str) else "-"


def drawable(character: str, plain: str) -> str:
    """``character`` where the output's encoding has it, else ``plain``."""
    try:
        character.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return plain
    return character


# --- pager -----------------------------------------------------------------------------------------------------------------

_PAGED: list[bool] = []  # whether the output that is being collected is for a terminal


@contextlib.contextmanager
def collected(*, terminal: bool) -> Iterator[io.StringIO]:
    """Collect the output of the block, formatted for a terminal or not."""
    _PAGED.append(terminal)
    buffer = _Buffer()
    buffer.encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        with contextlib.redirect_stdout(buffer):
            yield buffer
    finally:
        _PAGED.pop()


class _Buffer(io.StringIO):
    encoding = "utf-8"


def paged(command: F) -> F:
    """Show a command's output with ``$PAGER`` where it is longer than the terminal (``PAGER=cat`` shows it at once)."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        if options.get("as_json") or not sys.stdout.isatty():
            return command(*arguments, **options)
        with collected(terminal=True) as buffer:
            result = command(*arguments, **options)
        text = buffer.getvalue()
        if text.count("\n") < shutil.get_terminal_size().lines:
            sys.stdout.write(text)
            return result
        os.environ.setdefault("LESS", "-FRX")
        click.echo_via_pager(text, color=not _no_colour())
        return result

    return run  # type: ignore[return-value]
