"""A folder of checkpoints with a tracker: what the framework itself would load from it.

Megatron-LM's ``latest_checkpointed_iteration.txt`` and DeepSpeed's ``latest`` are written in place, so they may be empty
or cut short; they may name a step that is gone, or was never finished. The answer is about the checkpoint they name.
Here they are also made to name another one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from sentinel.checkpoints.files import Broken, NotKnown, Tree, read_small
from sentinel.checkpoints.formats import deepspeed, megatron
from sentinel.checkpoints.formats.base import Ask, Finding, Format, no_owners
from sentinel.checkpoints.steps import last_number, number_of, step_of
from sentinel.errors import Denied, UserError
from sentinel.text import visible, whole_number

NAME = "tracked"
MEGATRON = "latest_checkpointed_iteration.txt"
DEEPSPEED = "latest"
MMENGINE = "last_checkpoint"  # also detectron2's: the name, or the path, of a file beside it
TRACKERS = {"megatron": MEGATRON, "deepspeed": DEEPSPEED, "mmengine": MMENGINE}

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    return not tree.single and (MEGATRON in tree.files or (DEEPSPEED in tree.files and not deepspeed.recognise(tree)))


def target(tree: Tree) -> str:
    """The folder that the tracker names. `Broken` where it names none."""
    name = MEGATRON if MEGATRON in tree.files else DEEPSPEED
    return _read(tree.path(name), name)


def named_by(tracker: Path) -> str | None:
    """The folder beside it that a tracker names; None where it is no file, or names none."""
    try:
        return _read(tracker, tracker.name)
    except (Broken, NotKnown):
        return None


def named_by_text(tracker: str, text: bytes) -> str | None:
    """What lies beside it that a tracker of this file name names by this text; None where it names none."""
    try:
        return _parse(text, tracker)
    except Broken:
        return None


def text_naming(tracker: str, before: bytes, name: str) -> bytes | None:
    """What a tracker that says this says to name that file or folder beside it; None where it can name none such.

    Megatron-LM reads an iteration, DeepSpeed a folder of the kind that it has (no newline, as it writes it), mmengine the
    path of a file, which stays the path of its folder.
    """
    if tracker == MEGATRON:
        iteration = re.fullmatch(r"iter_(\d{7,12})", name)
        return str(int(iteration[1])).encode() if iteration else None
    if tracker == DEEPSPEED:
        return os.fsencode(name) if _kind(os.fsencode(name)) == _kind(before.strip()) else None
    folder, slash, _ = before.strip().rpartition(b"/")
    return folder + slash + os.fsencode(name)


def _kind(name: bytes) -> bytes:
    return re.sub(rb"\d+", b"#", name)


def _read(tracker: Path, name: str) -> str:
    try:
        return _parse(read_small(tracker, 4096, name), name)
    except NotKnown:
        raise Broken(f"{name} is not a line of text") from None


def _parse(data: bytes, name: str) -> str:
    if name == MMENGINE:
        last = os.fsdecode(data.strip().rpartition(b"/")[2])
        if not last or last in (".", "..") or "\n" in last or "\0" in last:
            raise Broken(f"{name} names no file")
        return last
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise Broken(f"{name} is not a line of text") from None
    word = text.strip()
    if name == DEEPSPEED:
        if not re.fullmatch(r"[\w.+=-]+", word) or word in (".", ".."):
            raise Broken(f"{name} names no folder: {visible(repr(text), 60)}")
        return word
    if word == "release":
        return word
    number = whole_number(word, digits=12)
    if number is None:
        raise Broken(f"{name} holds no iteration: {visible(repr(text), 60)}")
    return f"iter_{number:07d}"


def check(tree: Tree, ask: Ask) -> Finding:
    folder = target(tree)
    if folder not in tree.folders:
        raise Broken(f"the tracker names {visible(folder)}, which is not there")
    inner = tree.below(folder)
    known: Format = megatron if MEGATRON in tree.files else deepspeed
    if not known.recognise(inner):
        raise Broken(f"the tracker names {visible(folder)}, which holds no checkpoint of that kind")
    finding = known.check(inner, ask)
    found = re.search(r"(\d+)$", folder)
    if finding.step is None and found:
        finding.step = int(found.group(1))
    finding.unsummed = [f"{folder}/{name}" for name in finding.unsummed]
    finding.covered = {f"{folder}/{name}" for name in finding.covered}
    return finding


@dataclass(frozen=True, slots=True)
class Pointed:
    """A tracker that was rewritten. ``tracker`` is empty where the framework has none and goes by the folders alone."""

    tracker: str
    before: str
    after: str


def point_to(root: Path, format: str, step: int) -> Pointed:
    """Tell the framework which step to load, in its own way, atomically.

    Megatron-LM: ``latest_checkpointed_iteration.txt``; DeepSpeed: ``latest`` (no newline, as DeepSpeed writes it);
    mmengine: ``last_checkpoint``. The others go by the folders, and are told by what is quarantined. `UserError` where there
    is no such step.
    """
    if format not in TRACKERS:
        return Pointed("", "", "")
    folder = folder_for(root, format, step)
    tracker = root / TRACKERS[format]
    if format == "mmengine":
        try:
            before = read_small(tracker, 4096)
        except NotKnown as error:
            raise Denied(error.reason) from None
        return _rewrite(tracker, os.fsdecode(text_naming(MMENGINE, before, folder) or b""))
    return _rewrite(tracker, str(step) if format == "megatron" else folder)


def folder_for(root: Path, format: str, step: int) -> str:
    """What Megatron-LM, DeepSpeed or mmengine has of that step: a folder, or a file. `UserError` where there is none."""
    if format == "mmengine":
        return _file_for(root, step)
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
    wanted = f"iter_{step:07d}" if format == "megatron" else rf"global_step_?0*{step}"
    found = next((name for name in names if re.fullmatch(wanted, name)), None)
    if found is None:
        shown = wanted if format == "megatron" else f"global_step{step}"
        raise UserError(f"{visible(str(root))} has no {shown}", fix="Choose a step that is there.")
    return found


def _file_for(root: Path, step: int) -> str:
    """The checkpoint of that number among those beside mmengine's tracker, first those that are named as it names one."""
    usual = _kind(os.fsencode(named_by(root / MMENGINE) or ""))
    names = [entry.name for entry in root.iterdir() if _is_of(entry.name, step)]
    if not names:
        raise UserError(f"{visible(str(root))} has no checkpoint of {step}", fix="Choose a step that is there.")
    return min(names, key=lambda name: (_kind(os.fsencode(name)) != usual, name))


def _is_of(name: str, step: int) -> bool:
    return step in (step_of(name), number_of(name)) or last_number(name) == str(step)


def _rewrite(tracker: Path, text: str) -> Pointed:
    try:
        before = tracker.read_text("utf-8", "replace")[:200] if tracker.is_file() else ""
        if before == text:
            return Pointed(str(tracker), before, text)
        temporary = tracker.with_name(f".{tracker.name}.{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)  # of an earlier process of this number
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o644), "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(tracker)
        fd = os.open(tracker.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise Denied(f"{visible(str(tracker))} cannot be written: {error.strerror}") from error
    return Pointed(str(tracker), before, text)
