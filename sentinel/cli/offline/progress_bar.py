"""Progress bars of the offline commands, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def byte_bar(what: str, total_bytes: int, *, drawn: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields what is told the bytes that were read. Drawn when told, without a thread: readers fork."""
    if not drawn or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as progress:
        task = progress.add_task(what, total=total_bytes)
        progress.refresh()

        def advance(count: int) -> None:
            progress.advance(task, count)
            progress.refresh()

        yield advance


@contextmanager
def count_bar(what: str, total: int, *, least: int = 0) -> Iterator[Callable[[int], None]]:
    """Yields what is told how many more of ``total`` are done. Less than ``least`` is done too soon for a bar."""
    if total < least or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
