"""The demo's table: a row for each fault, filled while it is dealt with."""

from __future__ import annotations

import io
import re
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


_ROW_S = 1.5  # a row of the picture appears so long after the one before


def moving(svg: str, lines: list[int]) -> str:
    """The picture, whose rows appear one after the other, once. Where nothing moves, or nobody wants it, all are there.

    Args:
        lines: how many lines the table has with its head alone, with its first row, with its first two, ...
    """

    def placed(text: re.Match[str]) -> str:
        row = sum(int(text[1]) >= end for end in lines[:-1])
        return f'<text style="animation:appear .3s {row * _ROW_S:g}s backwards"{text[0][5:]}' if row else text[0]

    style = "@keyframes appear{from{opacity:0}} @media(prefers-reduced-motion:reduce){text{animation:none!important}}"
    moved = re.sub(r'<text [^>]*clip-path="url\(#[\w-]+-line-(\d+)\)"', placed, svg)
    return moved.replace("</style>", f"{style}</style>", 1)


@contextmanager
def table(picture: Path | None = None) -> Iterator[Callable[..., None]]:
    """A live table on a terminal, the final one elsewhere; ``picture`` gets the final one as a moving SVG.

    What is yielded draws rows, and below them a sentence.
    """
    from rich import box
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    console = Console()

    def draw(rows: list[Row], below: str = "") -> Table:
        made = Table(
            title="Sentinel: five faults under a training job",
            title_justify="left",
            caption=below or None,
            caption_justify="left",
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

    shown: tuple[list[Row], str] = [], ""

    def update(rows: list[Row], below: str = "") -> None:
        nonlocal shown
        shown = rows, below
        live.update(draw(*shown))

    with Live(draw([]), console=console, refresh_per_second=4) as live:
        yield update
    print()
    if picture is not None:
        pages = [Console(record=True, width=84, file=io.StringIO()) for _ in range(len(shown[0]) + 1)]
        for count, page in enumerate(pages):
            page.print(draw(shown[0][:count]))
        lines = [len(page.export_text().rstrip().splitlines()) for page in pages]
        whole = Console(record=True, width=84, file=io.StringIO())
        whole.print(draw(*shown))
        picture.write_text(moving(whole.export_svg(title="bash deploy/demo"), lines), encoding="utf-8")
