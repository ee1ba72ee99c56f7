"""Has the trackers beside what is moved aside name what stays, and lets them say again what they said before."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from sentinel.checkpoints.own_folders import below, exists, exists_below
from sentinel.checkpoints.setting_aside import trackers
from sentinel.checkpoints.setting_aside.journal import Move, append, free, store_of
from sentinel.errors import Denied
from sentinel.text import visible


def inside(base: Path, chosen: Path | None) -> Path | None:
    return chosen.relative_to(base) if chosen is not None and chosen.is_relative_to(base) else None


def anew(
    base: Path,
    source: int,
    store: int,
    moved: Sequence[Path],
    planned: Mapping[str, Move],
    chosen: Path | None,
    reason: str,
    now: float,
) -> list[Move]:
    """Have the trackers that name what is to be moved name what stays, and keep what they said in the quarantine.

    Raises:
        Denied: without the right to; none of it is changed then, or it is in the journal.
    """
    told = []
    for named in list(trackers.naming(source, moved, inside(base, chosen))):
        if named.after is None:
            continue
        place, link = str(base / named.place), str(base / named.gone[0])
        move = planned.get(place)
        killed = move is not None and (move.link, move.wrote) == (link, named.wrote)
        if move is None or not killed or exists_below(store, Path(move.target).relative_to(store_of(base))):
            target = free(store, named.place, now)
            move = Move(place, str(store_of(base) / target), reason, now, link, named.names, named.wrote)
            append(base, store, "move", move)
        kept = Path(move.target).relative_to(store_of(base))
        try:
            with below(source, named.place.parts[:-1]) as here:
                with below(store, kept.parts[:-1], make=True) as there:
                    like = os.stat(named.place.name, dir_fd=here, follow_symlinks=False)
                    trackers.write(there, kept.name, named.before, Path(move.target), like=like)
                trackers.write(here, named.place.name, named.after, base / named.place)
        except OSError as error:
            raise Denied(f"{visible(place)} cannot be kept in {visible(move.target)}: {error.strerror}") from error
        told.append(move)
    return told


def back(source: int, store: int, at: Path, place: Path, move: Move) -> list[Move]:
    """Let a tracker say what it said before, unless another one has been written since."""
    try:
        with below(source, at.parts[:-1]) as here, below(store, place.parts[:-1]) as there:
            text = trackers.read(here, at.name)
            if text is None or trackers.digest(text) != move.wrote or not exists(there, place.name):
                return []
            os.rename(place.name, at.name, src_dir_fd=there, dst_dir_fd=here)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Denied(f"{visible(move.target)} cannot be moved back: {error.strerror}") from error
    return [move]
