"""Moves checkpoints aside, so that a framework that takes the highest number takes the right one.

Never inside the checkpoint root: torchtitan's and Megatron's patterns find ``step-100.bad`` and ``iter_0000100.bad``, the
latter crashes on it. What is moved goes to a sibling of the root, ``<root>/../.quarantine/<run>/``, by rename on the same
file system, and nothing is ever deleted. Every move is written to a journal before it is made: killed at any moment and
called again it ends in the same state, and `undo` takes it all back. A symbolic link to what is moved (``latest.pt``)
names the chosen checkpoint then, or is moved, too: by one to nothing scripts begin anew, over saves that are whole. In the
place of a file that programs resume from by its name is a copy of the chosen one then. A tracker names it, and Ray Train's
list holds what stays (``sentinel.checkpoints.setting_aside.trackers``). The journal is obeyed only where nobody else can
have written it (``sentinel.checkpoints.own_folders``), and only for moves between the root and its quarantine.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from sentinel.checkpoints.formats.beside import rank_files
from sentinel.checkpoints.own_folders import (
    below,
    exists,
    exists_below,
    opened_folder,
    own_store,
    refuse_root_beside_users,
)
from sentinel.checkpoints.setting_aside import journal, links, standing_in, telling, trackers
from sentinel.checkpoints.setting_aside.belonging import all_of, all_paths_of, paths_of, together
from sentinel.checkpoints.setting_aside.journal import FOLDER, JOURNAL, Move, NoSpace, store_of
from sentinel.errors import Denied, Refused, SentinelError, UserError
from sentinel.text import visible

__all__ = (
    "JOURNAL",
    "Move",
    "all_paths_of",
    "inside_of",
    "kept_by_trackers",
    "paths_of",
    "quarantine",
    "read_journal",
    "store_of",
    "undo",
)


def quarantine(
    root: Path,
    paths: Sequence[Path],
    *,
    reason: str = "",
    now_s: float | None = None,
    opened: int | None = None,
    chosen: Path | None = None,
    left: dict[Path, str] | None = None,
    copy_until_s: float = math.inf,
) -> list[Move]:
    """Move these paths, which lie below ``root``, into its quarantine. Returns what was moved, also by an earlier call.

    ``opened``: a descriptor of the root, where what lies in it was looked at by one. ``chosen``: the checkpoint that links
    and trackers beside what is moved are to name. ``left``: is filled with what stays in its place, since a program resumes
    from it by its name and no copy of the chosen one can be made, and what names it. ``copy_until_s``: of the monotonic
    clock; a copy that takes longer is none.

    Raises `UserError` for a path that is not below the root, `Denied` without the right to rename, `Refused` where the
    quarantine is not ours alone or on another file system. Whatever was moved before the error stays moved and is in the
    journal.
    """
    now = time.time() if now_s is None else now_s
    base = root.absolute()
    for path in paths:
        inside_of(base, path)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(opened_folder(base)) if opened is None else opened
        if opened is None:  # no agent does this as root
            refuse_root_beside_users(base, source)
        store = stack.enter_context(_store(base, make=True))
        if base.is_symlink() and not os.path.samestat(os.fstat(source), base.stat()):
            raise Refused(f"{visible(str(base))} is another folder than was looked at: somebody changes it")
        _require_beside(base, source, store)
        if os.fstat(source).st_dev != os.fstat(store).st_dev:
            raise Refused(
                f"{visible(str(store_of(base)))} is on another file system: a rename would become a copy",
                fix="Let the checkpoints lie in a folder of their own below the mount point.",
            )
        planned = {move.source: move for move in journal.read(base, store)}
        relative = [inside_of(base, path) for path in all_paths_of(paths, planned.values())]
        # Before the moves: ended between the two, a tracker names what is there.
        told = telling.anew(base, source, store, relative, planned, chosen, reason, now)
        named = telling.inside(base, chosen)
        resumed = [inside for inside in relative if standing_in.is_wanted(inside, named) and named not in relative]
        moved = []
        for save in together(inside for inside in relative if inside not in resumed):
            moved += _aside_together(base, source, store, save, planned, reason, now)
        for inside in resumed:  # last: copying takes its time, and may not end
            assert named is not None
            earlier_move = planned.get(str(base / inside))
            move = _exchange(base, source, store, inside, named, earlier_move, reason, now, left, copy_until_s)
            moved += [move] if move is not None else []
        gone = {move.source for move in moved}
        earlier = [move for move in planned.values() if move.wrote and move.link in gone]
        told += [move for move in earlier if move.source not in {anew.source for anew in told}]
        return moved + told + _links_aside(base, source, store, moved, planned, chosen, now)


def _aside_together(
    base: Path, source: int, store: int, save: Sequence[Path], planned: Mapping[str, Move], reason: str, now: float
) -> list[Move]:
    """Move the files of one save aside, or none of them; those that an earlier call moved stay there."""
    moved: list[Move] = []
    made: list[Move] = []
    try:
        for inside in save:
            here = exists_below(source, inside)
            moved.append(_move_aside(base, source, store, inside, planned.get(str(base / inside)), reason, now))
            made += [moved[-1]] if here else []
    except SentinelError:
        for move in reversed(made):
            with contextlib.suppress(SentinelError):
                _move_back(base, source, store, move)
        raise
    return moved


def _exchange(
    base: Path,
    source: int,
    store: int,
    inside: Path,
    chosen: Path,
    known: Move | None,
    reason: str,
    now: float,
    left: dict[Path, str] | None,
    until_s: float,
) -> Move | None:
    """Move a file aside and put a copy of the chosen one in its place; None where it is left, since none can be made.

    Raises:
        Denied: without the right to; or none can be made, and nobody is to be told what is left.
    """
    if known is not None and known.points_to and not known.link and standing_in.is_there(source, inside, chosen):
        standing_in.discard(source, inside)  # an earlier call put it there, and may have been killed right then
        return known
    try:
        standing_in.prepare(source, inside, chosen, until_s)
    except OSError as error:
        if left is None:
            shown = f"{visible(str(base / chosen))} cannot be copied to {visible(str(base / inside))}"
            raise Denied(f"{shown}: {error.strerror or error}", fix="Free some space there.") from error
        left[base / inside] = standing_in.BY_ITS_NAME
        return None
    try:
        move = _move_aside(base, source, store, inside, known, reason, now, ("", chosen.name))
    except SentinelError:
        standing_in.discard(source, inside)
        raise
    try:
        standing_in.put(source, inside)
    except OSError as error:
        raise Denied(f"{visible(move.source)} cannot be made: {error.strerror}") from error
    return move


def kept_by_trackers(
    root: Path, paths: Sequence[Path], *, chosen: Path | None = None, opened: int | None = None
) -> dict[Path, str]:
    """Which of these paths, were they moved, leave a tracker or a list that lets no run start, and which one; or a program
    to begin anew that goes by the end of their names (``standing_in.BY_ITS_END``).

    Arguments and errors: see ``quarantine``.
    """
    base = root.absolute()
    inside = {inside_of(base, path): path for path in paths}
    with opened_folder(base) if opened is None else nullcontext(opened) as source:
        save = telling.inside(base, chosen)
        found = trackers.naming(source, inside, save)
        kept = {gone: str(base / named.place) for named in found if named.after is None for gone in named.gone}
        kept |= dict.fromkeys(standing_in.not_without(source, inside, save), standing_in.BY_ITS_END)
    return {inside[path]: kept[named] for path, named in all_of(kept, inside).items()}


def _links_aside(
    base: Path,
    source: int,
    store: int,
    moved: Sequence[Move],
    planned: Mapping[str, Move],
    chosen: Path | None,
    now: float,
) -> list[Move]:
    """Take links beside the moved checkpoints, and in the root, that name one of them away, and let new ones name the chosen
    one where it lies beside what they named. A link that another process makes meanwhile stays: nothing is written over.

    Raises:
        Denied: without the right to.
    """
    saves = {move.source for move in moved}
    gone = set(saves)
    # By an earlier call, which may have been killed; what is found now counts before it. A link to what was chosen then and
    # is not now stays away: nobody may have it any more.
    known = [move for move in planned.values() if move.link in gone and not move.wrote]
    found = {move.source: move for move in known if not move.points_to or links.names(move, chosen, base, source)}
    folders = sorted({Path(), *(Path(move.source).relative_to(base).parent for move in moved)})
    while True:
        news = {}
        for inside, text, named, leads_to in links.links_to(gone, base, source, folders):
            beside = chosen if named in saves else None  # a link to a link that is gone has nothing to name
            link = (named, links.instead(Path(text), Path(named), leads_to, beside, base, source))
            earlier, reason = planned.get(str(base / inside)), moved[0].reason
            move = _move_aside(base, source, store, inside, earlier, reason, now, link)
            news[move.source] = move
        if not news:
            break
        found |= news
        gone |= {move.source for move in news.values() if not move.points_to}  # of links that name links
    for move in found.values():
        inside = Path(move.source).relative_to(base)
        try:
            with below(source, inside.parts[:-1]) as fd:
                if move.points_to and not exists(fd, inside.name):
                    os.symlink(move.points_to, inside.name, dir_fd=fd)
        except FileExistsError:
            continue
        except OSError as error:
            raise Denied(f"the link {visible(move.source)} cannot be made: {error.strerror}") from error
    return list(found.values())


def _move_aside(
    base: Path,
    source: int,
    store: int,
    inside: Path,
    known: Move | None,
    reason: str,
    now: float,
    link: tuple[str, str] = ("", ""),
) -> Move:
    target = None if known is None else Path(known.target).relative_to(store_of(base))
    if not exists_below(source, inside):
        if known is not None and target is not None and exists_below(store, target):
            return known  # moved by an earlier call
        raise UserError(f"{visible(str(base / inside))} is not there", fix="Name a checkpoint that exists.")
    if known and target and (known.link, known.points_to) == link and not exists_below(store, target):
        move = known  # planned, and killed before the rename
    else:
        target = journal.free(store, inside, now)
        move = Move(str(base / inside), str(store_of(base) / target), reason, now, *link)
        try:
            journal.append(base, store, "move", move)
        except NoSpace:
            named = link[0] and str(Path(link[0]).relative_to(base))
            target = journal.place_that_tells(inside, now, named, link[1])
            move = replace(move, target=str(store_of(base) / target))
    try:
        _rename(source, inside, store, target)
    except OSError as error:
        raise Denied(
            f"{visible(move.source)} cannot be moved to {visible(move.target)}: {error.strerror}",
            fix="Rename it as the owner of the folder.",
        ) from error
    return move


def _rename(source: int, inside: Path, target: int, place: Path) -> None:
    """Rename between two open folders, through no link; folders on the way to the target are made."""
    with below(source, inside.parts[:-1]) as here, below(target, place.parts[:-1], make=True) as there:
        if exists(there, place.name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(inside.name, place.name, src_dir_fd=here, dst_dir_fd=there)


def undo(root: Path, paths: Sequence[Path] | None = None) -> list[Move]:
    """Move everything back (or only what came from these paths), latest first. Returns what is back.

    `Refused` where something new lies at the old place: nothing is overwritten; and where the quarantine or its journal is
    not ours alone.
    """
    base = root.absolute()
    named = [base / inside_of(base, path) for path in paths or ()]
    back: list[Move] = []
    try:
        with opened_folder(base) as source, _store(base, make=False) as store:
            _require_beside(base, source, store)
            moves = journal.read(base, store)
            wanted = None if paths is None else set(map(str, all_paths_of(named, moves)))
            _refuse_beside_others(base, source, store, [m for m in moves if wanted is None or m.source in wanted])
            for move in moves if wanted is not None else ():
                if wanted is not None and move.link in wanted:  # and links to that link, which follow it
                    wanted.add(move.source)
            for move in reversed(moves):
                if wanted is None or move.source in wanted:
                    back += _move_back(base, source, store, move)
    except FileNotFoundError:
        return []  # no quarantine
    return back


def _refuse_beside_others(base: Path, source: int, store: int, moves: Sequence[Move]) -> None:
    """`Refused` where a rank has saved that step anew: the files of the others would be of another save than its own."""
    for move in moves:
        if rank_files.save_of(move.source) is None or move.link or move.wrote:
            continue
        inside, place = Path(move.source).relative_to(base), Path(move.target).relative_to(store_of(base))
        if exists_below(store, place) and exists_below(source, inside):
            raise _exists_again(move)


def _exists_again(move: Move) -> Refused:
    return Refused(
        f"{visible(move.source)} exists again: not overwritten",
        fix=f"Move it away first; the older one is at {visible(move.target)}.",
    )


def _move_back(base: Path, source: int, store: int, move: Move) -> list[Move]:
    inside, place = Path(move.source).relative_to(base), Path(move.target).relative_to(store_of(base))
    back: list[Move] = []
    if move.wrote:
        back = telling.back(source, store, inside, place, move)
    elif exists_below(store, place):
        if move.points_to and not move.link:
            standing_in.take_away(source, inside, inside.with_name(move.points_to))
        elif move.points_to:
            _remove_link(source, inside, move.points_to)
        if exists_below(source, inside):
            raise _exists_again(move)
        try:
            _rename(store, place, source, inside)
        except OSError as error:
            raise Denied(f"{visible(move.target)} cannot be moved back: {error.strerror}") from error
        back = [move]
    elif not exists_below(source, inside):
        return []  # planned and never made, or moved on by a person
    if not journal.tells_itself(move):
        journal.append(base, store, "undo", move)
    return back


def _remove_link(source: int, inside: Path, text: str) -> None:
    """Remove a link that says this, as ours does; whatever else is there stays."""
    with contextlib.suppress(OSError), below(source, inside.parts[:-1]) as fd:
        if os.readlink(inside.name, dir_fd=fd) == text:
            os.unlink(inside.name, dir_fd=fd)


def read_journal(root: Path) -> list[Move]:
    """The moves that stand: planned or made, and not undone.

    A line that was cut short is left out: the crash that cut it came before its rename.
    """
    base = root.absolute()
    try:
        with _store(base, make=False) as store:
            return journal.read(base, store)
    except FileNotFoundError:
        return []


def _require_beside(base: Path, source: int, store: int) -> None:
    """The quarantine was opened by a path, in which somebody may have put a link since the root was opened, or before."""
    if not os.path.samestat(os.stat("..", dir_fd=source), os.stat("../..", dir_fd=store)):
        raise Refused(f"{visible(str(base))} is another folder than was looked at: somebody changes it")


def _store(base: Path, *, make: bool) -> AbstractContextManager[int]:
    store = store_of(base)
    return own_store(store.parent.parent, (FOLDER, store.name), make=make)


def inside_of(base: Path, path: Path) -> Path:
    """The path relative to the root; it must really be below it, through no link."""
    absolute = Path(os.path.normpath(path.absolute()))
    try:
        inside = absolute.relative_to(os.path.normpath(base))
    except ValueError:
        inside = Path()
    if not inside.parts:
        raise UserError(
            f"{visible(str(path))} is not below {visible(str(base))}", fix="Name the folder that holds the checkpoints."
        )
    for count in range(1, len(inside.parts)):
        if (base / Path(*inside.parts[:count])).is_symlink():
            raise UserError(f"{visible(str(path))} lies behind a symbolic link", fix="Name the real folder.")
    return inside
