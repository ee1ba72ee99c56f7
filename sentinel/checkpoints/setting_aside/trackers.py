"""What the files say that name a run's checkpoints, when one that they name is moved aside.

Megatron-LM, Megatron-Bridge, DeepSpeed and mmengine (detectron2) resume from what a tracker names, and do not start where
that is gone; verl begins anew. Ray Train does not start where one of the checkpoints in its list is gone. A tracker is made
to name the chosen checkpoint, and the list to hold what stays. Where neither can be, what they name has to stay where it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.checkpoints.files import NotKnown
from sentinel.checkpoints.formats import registered, tracked
from sentinel.checkpoints.listed.models import twin
from sentinel.checkpoints.own_folders import below, exists, keep_owner
from sentinel.checkpoints.parsing import json_files
from sentinel.errors import Denied
from sentinel.text import visible

_LIST_BYTES = 64 << 20  # Ray's holds the metrics of every checkpoint that it keeps


@dataclass(frozen=True, slots=True)
class Named:
    """A file that names checkpoints of which some are to be moved.

    ``place``: of the file, and ``gone``: what it names and is to be moved, below the root. ``after``: what it says then;
    None where it could name nothing. ``names``: what it names then.
    """

    place: Path
    gone: tuple[Path, ...]
    before: bytes
    after: bytes | None
    names: str

    @property
    def wrote(self) -> str:
        return digest(self.after or b"")


def naming(source: int, moved: Collection[Path], chosen: Path | None) -> Iterator[Named]:
    """The trackers and lists beside what is to be moved that name some of it, but for those that are moved themselves.

    Args:
        source: descriptor of the root, below which all the paths lie.
        chosen: the checkpoint that a tracker is to name; one beside another model of the run names that one's of this name.
    """
    for folder in sorted({path.parent for path in moved}):
        gone = {path.name for path in moved if path.parent == folder}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), below(source, folder.parts) as fd:
            save = chosen and twin(chosen, folder)
            beside = save is not None and save.parent == folder and save.name not in gone and exists(fd, save.name)
            name = save.name if save is not None and beside else ""
            for tracker in (*tracked.TRACKERS.values(), registered.LIST):
                if tracker in gone:
                    continue
                text = read(fd, tracker, _LIST_BYTES if tracker == registered.LIST else tracked.LIMIT_BYTES)
                told = None if text is None else _told(fd, tracker, text, gone, name)
                if text is not None and told is not None:
                    named, after, then = told
                    yield Named(folder / tracker, tuple(folder / one for one in named), text, after, then)


def _told(
    folder: int, tracker: str, text: bytes, gone: Collection[str], chosen: str
) -> tuple[list[str], bytes | None, str] | None:
    """What of ``gone`` the file names, what it is to say, and what it names then; None where it names none of it."""
    if tracker == registered.LIST:
        return _without(text, gone, chosen)
    named = tracked.named_by_text(tracker, text, gone)
    if named is None:
        return None
    return [named], text_naming(folder, tracker, text, chosen) if chosen else None, chosen


def text_naming(folder: int, tracker: str, before: bytes, chosen: str) -> bytes | None:
    """What a tracker in an open folder that says this says to name what is beside it; None where it can name none such."""
    state = None
    if tracker == tracked.BRIDGE:
        with contextlib.suppress(OSError), below(folder, (chosen,)) as inside:
            state = read(inside, tracked.BRIDGES_STATE, tracked.LIMIT_BYTES)
    return tracked.text_naming(tracker, before, chosen, state)


def _without(text: bytes, gone: Collection[str], chosen: str) -> tuple[list[str], bytes | None, str] | None:
    """Ray Train's list without these folders. The latest is the chosen one, or else the last that was reported."""
    try:
        listed = json_files.parse(text, registered.LIST)
    except (NotKnown, ValueError):
        return None
    if not isinstance(listed, dict):
        return None
    names = registered.names_of(listed.get("checkpoint_results")) or []
    named = sorted(set(gone).intersection(names))
    if not named:
        return None
    kept = [index for index, name in enumerate(names) if name not in gone]
    if not kept:
        return named, None, ""
    new = dict(listed)
    latest = listed.get("latest_checkpoint_result")
    last = latest.get("checkpoint_dir_name") if isinstance(latest, dict) else None
    if last is None or last in gone:
        reported = _of_each(listed, "checkpoint_report_indices", len(names)) or list(range(len(names)))
        at = max(kept, key=lambda index: number if isinstance(number := reported[index], int) else -1)
        at = names.index(chosen) if chosen in names else at
        new["latest_checkpoint_result"], last = listed["checkpoint_results"][at], names[at]
    pending = registered.names_of(listed.get("pending_training_results")) or []
    stay = [index for index, name in enumerate(pending) if name not in gone]
    for key, count, which in (
        ("checkpoint_results", len(names), kept),
        ("checkpoint_report_indices", len(names), kept),
        ("pending_training_results", len(pending), stay),
        ("pending_validation_specs", len(pending), stay),
    ):
        if (values := _of_each(listed, key, count)) is not None:
            new[key] = [values[index] for index in which]
    try:
        return named, json.dumps(new, separators=(",", ":")).encode(), str(last)
    except RecursionError:
        return None


def _of_each(listed: Mapping[str, object], key: str, count: int) -> list[object] | None:
    values = listed.get(key)
    return values if isinstance(values, list) and len(values) == count else None


def read(folder: int, name: str, limit_bytes: int = _LIST_BYTES) -> bytes | None:
    """The bytes of a file in an open folder; None where there is no regular one, it cannot be read or is larger."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file, contextlib.suppress(OSError):
        text = file.read(limit_bytes + 1)
        return text if len(text) <= limit_bytes else None
    return None


def write(
    folder: int, name: str, text: bytes, shown: Path, *, mode: int = 0o600, like: os.stat_result | None = None
) -> None:
    """Put a file in the place of the one of that name, at once: a tracker that is not there begins a run anew.

    Args:
        mode: of the file where there was none; else it keeps its own, and its owner. ``like``: whose it has where there
            was none.

    Raises:
        Denied: it cannot be written; the one that is there stays.
    """
    temporary = f".{name}.{os.getpid()}.tmp"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)  # of an earlier process of this number
        before = like
        with contextlib.suppress(FileNotFoundError):
            before = os.stat(name, dir_fd=folder, follow_symlinks=False)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
            if before is not None:
                keep_owner(file.fileno(), before)
            os.fchmod(file.fileno(), mode if before is None else before.st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise Denied(f"{visible(str(shown))} cannot be written: {error.strerror}") from error


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
