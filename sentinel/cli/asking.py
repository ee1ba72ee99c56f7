"""How commands find the settings and ask the daemon; how they print. Shared by the commands that show its state."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from sentinel.errors import Unavailable
from sentinel.settings import Settings, load

_BETWEEN = 3  # characters between two columns
_LEAST_CUT = 12
WIDE = 110  # terminal columns from which tables show everything
CONFIG = "/etc/sentinel/sentinel.toml"
F = TypeVar("F", bound=Callable[..., Any])


def config_option(command: F) -> F:
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="SENTINEL_CONFIG",
        default=CONFIG,
        show_default=True,
        show_envvar=True,
        help="The settings file.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for machines.")(command)


def settings_of(config: Path) -> Settings:
    """Settings for asking: a login node without the file needs only $SENTINEL_URL."""
    url = os.environ.get("SENTINEL_URL")
    if url and not config.exists():
        from sentinel.settings import Daemon

        return Settings(daemon=Daemon(url=url, munge_socket=os.environ.get("SENTINEL_MUNGE_SOCKET", "")))
    return load(config, Settings)


def ask(config: Path, path: str, body: Mapping[str, object], *, deadline_s: float = 15.0) -> dict[str, Any]:
    """One signed request to the daemon."""
    from sentinel.adapters.client import DaemonClient
    from sentinel.adapters.munge import Munge

    settings = settings_of(config)
    client = DaemonClient(
        settings.daemon.url,
        Munge(settings.daemon.munge_socket),
        trusted_uids=settings.daemon.trusted_uids,
        deadline_s=deadline_s,
    )
    try:
        return client.post(path, body)
    except Unavailable as error:
        if not error.fix:
            error.fix = "is the daemon running? systemctl status sentinel-daemon; sentinel doctor"
        raise
    finally:
        client.close()


def view(config: Path, name: str, **arguments: object) -> dict[str, Any]:
    from sentinel.protocol import VIEW

    return ask(config, VIEW, {"view": name, "arguments": arguments})


def print_json(rows: Iterable[object]) -> None:
    for row in rows:
        click.echo(json.dumps(row, sort_keys=False))


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    wide: Sequence[str] = (),
    whole: Sequence[str] = (),
    cut: Sequence[str] = (),
) -> None:
    """A table that fits the terminal; cell texts are data, never markup.

    Args:
        wide: columns shown only where the terminal has WIDE columns or more.
        whole: columns whose cells are not broken.
        cut: columns, at most one, whose cells are one line, cut where the terminal ends.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    kept = [n for n, column in enumerate(columns) if column not in wide or console.width >= WIDE]
    heading = Text(title, style="bold") if title else None
    made = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for number in kept:
        made.add_column(columns[number], overflow="fold", no_wrap=columns[number] in whole)
    cells: list[list[Text]] = [
        [cell if isinstance(cell := row[n], Text) else Text(shown(cell)) for n in kept] for row in rows
    ]
    for place in (n for n, number in enumerate(kept) if columns[number] in cut):
        others = [
            max([len(columns[number]), *(row[n].cell_len for row in cells)])
            for n, number in enumerate(kept)
            if n != place
        ]
        room = max(_LEAST_CUT, console.width - sum(others) - _BETWEEN * len(others) - 2)
        for row in cells:
            row[place].truncate(room, overflow="ellipsis")
    for row in cells:
        made.add_row(*row)
    console.print(made)


def say(text: str, indent: str = "") -> None:
    """A sentence, broken between words where the terminal ends; what follows is indented."""
    width = max(40, shutil.get_terminal_size().columns)
    wrapped = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    click.echo("\n".join(wrapped) or indent)


def shown(value: object) -> str:
    """A value for a person: ``-`` for not known; control characters made harmless."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        return folded([str(item) for item in value]) or "-"
    return "".join(ch if ch.isprintable() else "·" for ch in str(value))


def folded(names: Sequence[str], most: int = 6) -> str:
    """Names for a table cell: the first few, then how many more."""
    rest = len(names) - most
    return ", ".join(shown(name) for name in names[:most]) + (f" +{rest}" if rest > 0 else "")


def ago(value: object, now: datetime | None = None) -> str:
    """Time since an ISO time, in words short enough for a table."""
    if not isinstance(value, str):
        return "-"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(value)).total_seconds()
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def styled_state(state: str) -> Any:
    """A node's or incident's state in its colour, and always in its word."""
    from rich.text import Text

    colours = {
        "idle": "green", "allocated": "green", "mixed": "green", "heard": "green", "closed": "green",
        "drained": "yellow", "draining": "yellow", "held": "yellow", "watching": "cyan", "open": "red",
        "down": "red", "unreachable": "red", "silent": "yellow", "not responding": "red",
    }  # fmt: skip
    return Text(shown(state), style=colours.get(state, ""))
