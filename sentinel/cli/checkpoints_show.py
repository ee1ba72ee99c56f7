"""How ``sentinel checkpoints`` shows what it found: lines for people, and one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable

import click

from sentinel.checkpoints.files import visible
from sentinel.checkpoints.records import Decision, Part, Validity


def mark(valid: bool | None) -> str:
    return {True: "valid", False: "invalid", None: "not known"}[valid]


def echo_decision(decision: Decision) -> None:
    """One line of JSON, a candidate at a time: there may be a hundred thousand."""
    head = json.dumps(decision.head_to_json())
    click.echo(head[:-1] + ', "candidates": [', nl=False)
    for index, entry in enumerate(decision.candidates):
        click.echo((", " if index else "") + json.dumps(entry.to_json()), nl=False)
    click.echo("]}")


def show_decision(decision: Decision) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("step", "tier", "format", "valid", "level", "path", "verdict"):
        table.add_column(heading, overflow="fold")
    for entry in decision.candidates:
        candidate = entry.candidate
        step = "?" if candidate.step is None else str(candidate.step)
        cells = (step, candidate.tier, candidate.format, mark(candidate.valid), candidate.level)
        table.add_row(*cells, escape(visible(candidate.path)), escape(visible(entry.verdict)))
    console = Console()
    console.print(table)
    console.print(escape(visible(decision.explanation)))


def show_validity(answer: Validity, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(answer.to_json()))
        return
    step = "step ?" if answer.step is None else f"step {answer.step}"
    colour = {True: "green", False: "red", None: "yellow"}[answer.valid]
    click.secho(f"{mark(answer.valid):9}", fg=colour, nl=False)
    click.echo(f" {visible(answer.path)}  {answer.format}  {step}  {answer.level}: {visible(answer.reason)}")


def part_line(part: Part) -> str:
    step = "?" if part.step is None else str(part.step)
    ranks = f"ranks {_ranks(part.owners)}" if part.owners else "all ranks" if part.whole else ""
    head = f"{visible(part.host) or '-':12} {part.tier:6} {mark(part.valid):9} {step:>9}"
    return f"{head}  {visible(part.path)}  {part.format}  {ranks}  {visible(part.reason)}"


def _ranks(owners: Iterable[int]) -> str:
    """1,2,3,7 as 1-3,7."""
    texts: list[str] = []
    run: list[int] = []
    for rank in [*sorted(owners), None]:
        if run and (rank is None or rank != run[-1] + 1):
            texts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
            run = []
        if rank is not None:
            run.append(rank)
    return ",".join(texts)
