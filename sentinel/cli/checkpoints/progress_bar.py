"""A progress bar for reading and copying checkpoints, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sentinel.checkpoints.files import NotKnown
from sentinel.checkpoints.formats.beside.rank_files import scan_save


@contextmanager
def bar(what: str, size: Callable[[], int], wanted: bool) -> Iterator[Callable[[int], None]]:
    """Yields what is told the bytes that were done. Nothing is drawn where ``wanted`` is false or nobody watches.

    ``size``: bytes in all, asked for only where it is drawn, since finding out may take a listing of every file.
    """
    if not wanted or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=size())
        yield lambda count: progress.advance(task, count)


def bytes_of(paths: Sequence[Path]) -> int:
    """What lies there; nothing for what cannot be listed."""
    return sum(_size(path) for path in paths)


def _size(path: Path) -> int:
    try:
        return scan_save(path).bytes
    except NotKnown:
        return 0
