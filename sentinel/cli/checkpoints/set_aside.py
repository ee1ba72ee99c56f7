"""``sentinel checkpoints quarantine``. Everything that was asked for is checked before the first thing is moved."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import click

from sentinel.checkpoints import quarantine as aside
from sentinel.checkpoints.fleet_parts import later_than
from sentinel.checkpoints.formats import tracked
from sentinel.checkpoints.inventory import find, listing
from sentinel.checkpoints.setting_aside import pointing
from sentinel.checkpoints.setting_aside.standing_in import BY_ITS_END
from sentinel.checkpoints.steps import number_of, step_of
from sentinel.cli.checkpoints.deadline import GIVE_UP_AFTER, bounded
from sentinel.cli.operator.arguments import ExistingPath, GivenPath
from sentinel.cli.operator.output import say
from sentinel.errors import UserError
from sentinel.text import visible


@click.command()
@click.argument("root", type=ExistingPath())
@click.argument("paths", nargs=-1, type=GivenPath())
@click.option("--undo", is_flag=True, help="Move them (or all) back.")
@click.option("--list", "listed", is_flag=True, help="Show what is set aside.")
@click.option("--newer-than", type=int, metavar="STEP", help="All checkpoints of a later step.")
@click.option(
    "--point-to", type=int, metavar="STEP", help="First make the tracker of Megatron, DeepSpeed or mmengine name it."
)
@click.option("--reason", default="", help="Kept in the journal.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
@GIVE_UP_AFTER
@click.option("--json", "as_json", is_flag=True, help="One JSON object per move.")
def quarantine(
    root: Path,
    paths: tuple[Path, ...],
    undo: bool,
    listed: bool,
    newer_than: int | None,
    point_to: int | None,
    reason: str,
    yes: bool,
    deadline_s: float | None,
    as_json: bool,
) -> None:
    """Move checkpoints of the folder ROOT aside, so that no framework finds them; nothing is deleted.

    They go to ROOT/../.quarantine/, by rename; --undo brings them back. What a tracker names is moved only where
    --point-to makes it name another step.

    \b
    sentinel checkpoints quarantine /lustre/run7 /lustre/run7/step-1300
    sentinel checkpoints quarantine /lustre/run7 --newer-than 1200 --point-to 1200
    sentinel checkpoints quarantine /lustre/run7 --undo
    """
    if listed:
        moves = _moves(deadline_s, f"reading the journal of {root}", lambda: aside.read_journal(root))
    elif undo:
        moves = _moves(deadline_s, f"moving back into {root}", lambda: aside.undo(root, list(paths) or None))
    else:
        newer = bounded(deadline_s, f"listing {root}", lambda: [str(path) for path in _newer(root, newer_than)])
        together = partial(_together, [*paths, *map(Path, newer)])
        chosen = [Path(path) for path in bounded(deadline_s, f"listing {root}", together)]
        if not chosen and point_to is None:
            raise UserError("nothing to move", fix="Name checkpoints, or --newer-than STEP.")
        save = _save_of(root, newer_than)
        bounded(deadline_s, f"looking at {root}", lambda: _check(root, chosen, point_to, save))
        if chosen and not yes and not sys.stdin.isatty():
            raise UserError("there is nobody to ask whether to move these aside", fix="Say so with --yes.")
        for path in chosen:
            click.echo(f"{visible(str(path))} -> {visible(str(aside.store_of(root)))}/", err=True)
        if chosen and not yes:
            click.confirm("Move these aside?", abort=True, err=True)
        if point_to is not None:  # before the moves: ended between the two, the tracker names what is there
            bounded(deadline_s, f"pointing {root} to step {point_to}", lambda: _point(root, point_to))
        work = partial(aside.quarantine, root, chosen, reason=reason, chosen=save)
        moves = _moves(deadline_s, f"moving out of {root}", work) if chosen else []
    for move in moves:
        if as_json:
            click.echo(json.dumps({"source": move.source, "target": move.target, "reason": move.reason}))
        else:
            arrow = "<-" if undo else "->"
            click.echo(f"{visible(move.source)} {arrow} {visible(move.target)}")
        if move.points_to and not undo:
            click.echo(f"{visible(move.source)} now names {visible(move.points_to)}", err=True)
    if not moves and (undo or listed) and not as_json:
        which = (
            f"of {', '.join(visible(str(path)) for path in paths)}" if undo and paths else f"of {visible(str(root))}"
        )
        say(f"Nothing {which} is set aside in {visible(str(aside.store_of(root)))}.")


def _moves(deadline_s: float | None, what: str, work: Callable[[], list[aside.Move]]) -> list[aside.Move]:
    told = bounded(deadline_s, what, lambda: [list(dataclasses.astuple(move)) for move in work()])
    return [aside.Move(*entry) for entry in told]


def _newer(root: Path, step: int | None) -> list[Path]:
    if step is None:
        return []
    found: list[Path] = []
    unnamed: set[str] = set()
    for spot in find(root).spots:
        own = spot.step if spot.step is not None else step_of(spot.path.name)
        if own is None:
            unnamed.add(str(spot.path))
        elif own > step:
            found += aside.paths_of(spot.path, spot.step)
    if unnamed:  # of these the files themselves state their steps, or their numbers tell which are later
        later = later_than(listing(root, "global", None), step, if_alone=step)
        found += [Path(part.path) for part in later if part.path in unnamed]
    return found


def _save_of(root: Path, step: int | None) -> Path | None:
    """The save of that step, or number, which links to what is moved are to name."""
    if step is None:
        return None
    spots = [spot.path for spot in find(root).spots if spot.step is None]
    return next((path.absolute() for path in spots if step in (step_of(path.name), number_of(path.name))), None)


def _plain(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def _together(paths: Iterable[Path]) -> list[str]:
    """With each file of a rank those of the other ranks."""
    return [str(path) for path in _once(aside.all_paths_of(paths))]


def _once(paths: Iterable[Path]) -> list[Path]:
    """Each of them once, without those that lie in another one of them and go with it."""
    by_place = {_plain(path): path for path in paths}
    return [path for place, path in by_place.items() if not any(above in by_place for above in place.parents)]


def _check(root: Path, chosen: Sequence[Path], point_to: int | None, save: Path | None) -> None:
    """
    Raises:
        UserError: something of it cannot be done, or a tracker would name what is gone.
    """
    places = {_plain(path) for path in chosen}
    earlier = {move.source for move in aside.read_journal(root)} if chosen else set()
    for path in chosen:
        aside.inside_of(root.absolute(), path)
        if not os.path.lexists(path) and str(_plain(path)) not in earlier:
            raise UserError(f"{visible(str(path))} is not there", fix="Nothing was moved. Name checkpoints that exist.")
    pointed = (
        [] if point_to is None else [(format, pointing.folder_for(root, format, point_to)) for format in _of(root)]
    )
    if point_to is not None and not pointed:
        raise UserError(
            f"{visible(str(root))} has no tracker", fix="Leave --point-to out: its framework goes by the folders."
        )
    for _, folder in pointed:
        kept = _plain(root / folder)
        if any(place == kept or kept in place.parents or place in kept.parents for place in places):
            raise UserError(
                f"step {point_to} is to be named, and {visible(folder)} is among what is to be moved",
                fix="Nothing was moved. Choose a step that stays.",
            )
    anew = {_plain(root / tracked.TRACKERS[format]) for format, _ in pointed}
    for tracker in {place.parent / name for place in places for name in tracked.TRACKERS.values()} - anew - places:
        named = tracked.named_by(tracker)
        if named is not None and tracker.parent / named in places:
            raise UserError(
                f"{visible(str(tracker))} names {visible(named)}, which is to be moved: its framework would find nothing",
                fix="Nothing was moved. Add --point-to STEP, or name the tracker, too, to begin anew.",
            )
    for path, by in aside.kept_by_trackers(root, [*chosen], chosen=save).items():
        if by == BY_ITS_END:
            raise UserError(
                f"{by} resumes from {visible(path.name)} by the end of its name, and would begin anew without it",
                fix="Nothing was moved. Name what is to be moved by its path, to begin anew or resume by resume_from_path.",
            )
        if Path(by) not in anew:
            raise UserError(
                f"{visible(by)} names {visible(path.name)}, and nothing that stays: its framework would not start",
                fix="Nothing was moved. Name the list, too, to begin anew, or leave one that it names.",
            )


def _of(root: Path) -> list[str]:
    """The frameworks whose trackers lie there; a ``latest.txt`` that names nothing there is none."""
    there = [format for format, name in tracked.TRACKERS.items() if (root / name).is_file()]
    return [format for format in there if format != "loop" or tracked.named_by(root / tracked.LOOPS) is not None]


def _point(root: Path, step: int) -> None:
    for format in _of(root):
        pointed = pointing.point_to(root, format, step)
        click.echo(f"{visible(pointed.tracker)}: {visible(pointed.before)} -> {pointed.after}", err=True)
