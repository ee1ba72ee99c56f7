"""How ``sentinel checkpoints`` shows what it found: lines for people, and one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterable

import click

from sentinel.checkpoints.records import Candidate, Decision, Level, Part, Validity
from sentinel.cli.operator.output import broken, say, unbroken
from sentinel.text import visible


def mark(valid: bool | None) -> str:
    return {True: "valid", False: "invalid", None: "not known"}[valid]


def echo_decision(decision: Decision, level: Level, lower: Decision | None = None) -> None:
    """One line of JSON, a candidate at a time: there may be a hundred thousand.

    ``level``: that was asked for. ``lower``: what would be chosen by structure alone, where nothing is proven at it.
    """
    would = {} if lower is None else {"by_structure": lower.head_to_json()["chosen"]}
    head = json.dumps(decision.head_to_json() | {"level": level} | would)
    click.echo(head[:-1] + ', "candidates": [', nl=False)
    for index, entry in enumerate(decision.candidates):
        click.echo((", " if index else "") + json.dumps(entry.to_json()), nl=False)
    click.echo("]}")


def show_decision(decision: Decision) -> None:
    """A line of columns that ends with the path, whole at any width, and below it the verdict."""
    rows = [_columns(entry.candidate) for entry in decision.candidates]
    widths = [max(len(row[column]) for row in [_HEADINGS, *rows]) for column in range(len(_HEADINGS))]
    if rows:
        say("  ".join(text.ljust(width) for text, width in zip(_HEADINGS, widths, strict=True)) + "  path")
    for entry, row in zip(decision.candidates, rows, strict=True):
        head = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        say(f"{head}  {_path(entry.candidate.path)}")
        say(visible(entry.verdict), "    ", hanging=0)
    say(visible(decision.explanation))


_HEADINGS = ("step", "tier", "format", "valid", "level")
_PATH_CHARACTERS = 4096  # as long as Linux lets a path be


def _path(path: str) -> str:
    """Whole on one line, spaces in it or not."""
    return unbroken(visible(path, _PATH_CHARACTERS))


def _columns(candidate: Candidate) -> tuple[str, ...]:
    step = "?" if candidate.step is None else str(candidate.step)
    if candidate.step is None and candidate.number is not None:
        step = f"#{candidate.number}"
    return (step, candidate.tier, candidate.format, mark(candidate.valid), candidate.level)


def show_validity(answer: Validity, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(answer.to_json()))
        return
    step = "step ?" if answer.step is None else f"step {answer.step}"
    colour = {True: "green", False: "red", None: "yellow"}[answer.valid]
    path = _path(answer.path)
    head = f"{mark(answer.valid):9}"
    lines = broken(f"{head} {path}  {answer.format}  {step}  {answer.level}: {visible(answer.reason)}")
    click.secho(lines[: len(head)], fg=colour, nl=False)
    click.echo(lines[len(head) :])


def part_line(part: Part) -> str:
    step = "?" if part.step is None else str(part.step)
    ranks = f"ranks {_ranks(part.owners)}" if part.owners else "all ranks" if part.whole else ""
    head = f"{visible(part.host) or '-':12} {part.tier:6} {mark(part.valid):9} {step:>9}"
    return f"{head}  {_path(part.path)}  {part.format}  {ranks}  {part.level}: {visible(part.reason)}"


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
