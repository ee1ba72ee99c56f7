"""The demo's table: a row for each fault, filled while it is dealt with."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """One fault and what became of it. Times are seconds since the fault was injected; None: it did not happen."""

    fault: str
    detected_s: float | None = None
    cause: str | None = None
    scope: str | None = None
    culprits: dict[str, list[Any]] = field(default_factory=dict)
    drained: list[str] = field(default_factory=list)
    action: str = ""
    restarted_s: float | None = None
    resumed_step: int | None = None
    lost_steps: int | None = None
    tier: str | None = None
    ok: bool = False
    wrong: str = ""  # in words, when not ok


def _culprit(row: Row) -> str:
    gpus, nodes, ranks = (row.culprits.get(name) or [] for name in ("gpus", "nodes", "ranks"))
    words = [f"GPU {gpus[0]}"] if gpus else [str(nodes[0])] if nodes else []
    words += [f"rank {ranks[0]}"] if ranks else []
    return ", ".join(words) or "-"


def _cells(row: Row) -> list[str]:
    def number(value: float | None) -> str:
        return "…" if value is None else f"{value:.1f} s"

    held = row.action.startswith("held")
    action = "; ".join(filter(None, [f"drained {', '.join(row.drained)}" if row.drained else "", row.action]))
    verdict = "\n".join(filter(None, [row.cause, f"{row.scope}: {_culprit(row)}", action])) if row.cause else "…"
    resumed = "…"
    if row.resumed_step is not None:
        resumed = f"{row.resumed_step} {row.tier}\n{'…' if row.lost_steps is None else row.lost_steps} steps lost"
    return [
        row.fault,
        number(row.detected_s),
        verdict,
        "-" if held else number(row.restarted_s),
        "-" if held else resumed,
        "ok" if row.ok else "NO" if row.wrong else "…",  # the words stand below the table, where there is room
    ]


# heading -> (least width, greatest width): 79 columns in all
COLUMNS = {
    "fault": (13, 14),
    "detected\nafter": (8, 8),
    "verdict, culprit, action": (25, None),
    "again\nafter": (7, 7),
    "resumed\nat step": (13, 13),
    "": (2, None),
}


@contextmanager
def table(picture: Path | None = None) -> Iterator[Callable[[list[Row]], None]]:
    """A live table on a terminal, the final one elsewhere; ``picture`` gets the final one as SVG."""
    from rich import box
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = Console()

    def draw(rows: list[Row]) -> Table:
        made = Table(
            title="Sentinel: five faults under a training job",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for column, (least, most) in COLUMNS.items():
            made.add_column(column, overflow="fold", min_width=least, max_width=most)
        for row in rows:
            cells = [Text(cell) for cell in _cells(row)]
            cells[-1].stylize("green" if row.ok else "red" if row.wrong else "")
            made.add_row(*cells)
        return made

    shown = [draw([])]

    def update(rows: list[Row]) -> None:
        shown[0] = draw(rows)
        live.update(shown[0])

    with Live(shown[0], console=console, refresh_per_second=4) as live:
        yield update
    print()
    if picture is not None:
        page = Console(record=True, width=84, file=io.StringIO())
        page.print(shown[0])
        page.save_svg(str(picture), title="bash deploy/demo")
