"""A folder of checkpoints with a tracker: what the framework itself would load from it.

Megatron-LM's ``latest_checkpointed_iteration.txt`` and DeepSpeed's ``latest`` are written in place, so they may be empty
or cut short; they may name a step that is gone, or was never finished. The answer is about the checkpoint they name.
What they are to say to name another one is known here, too.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from pathlib import Path

from sentinel.checkpoints.files import Broken, NotKnown, Tree, read_small
from sentinel.checkpoints.formats import deepspeed, megatron
from sentinel.checkpoints.formats.base import Ask, Finding, Format, no_owners
from sentinel.checkpoints.parsing import scalars
from sentinel.checkpoints.reading import open_archive
from sentinel.checkpoints.steps import number_of, step_of, without_numbers
from sentinel.inert_pickle import Opaque
from sentinel.text import visible, whole_number

NAME = "tracked"
MEGATRON = "latest_checkpointed_iteration.txt"  # also verl's, of whose folders it gives the number alike
BRIDGE = "latest_train_state.pt"  # Megatron-Bridge's, which reads Megatron-LM's beside it only where this one is not
DEEPSPEED = "latest"
MMENGINE = "last_checkpoint"  # also detectron2's: the name, or the path, of a file beside it
LOOPS = "latest.txt"  # people's own, and nanotron's: the name, the path or the number of what lies beside it
TRACKERS = {
    "megatron": MEGATRON, "megatron-bridge": BRIDGE, "deepspeed": DEEPSPEED, "mmengine": MMENGINE, "loop": LOOPS,
}  # fmt: skip
BRIDGES_STATE = "train_state.pt"  # in each of its steps: the tracker is a copy of that of the last one
LIMIT_BYTES = 1 << 20  # a line of text, or some numbers of torch.save
_NUMBERED = re.compile(r"iter_(\d{7,12})|global_step_([1-9]\d{0,11}|0)")  # Megatron-LM's, and verl's

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    return not tree.single and (MEGATRON in tree.files or (DEEPSPEED in tree.files and not deepspeed.recognise(tree)))


def target(tree: Tree) -> str:
    """The folder that the tracker names. `Broken` where it names none."""
    name = MEGATRON if MEGATRON in tree.files else DEEPSPEED
    return _one_of(_read(tree.path(name), name), tree.folders)


def named_by(tracker: Path) -> str | None:
    """The folder beside it that a tracker names; None where it is no file, or names none.

    Any program may have a ``latest.txt``: that is a tracker where it names something beside it.
    """
    try:
        if tracker.name == LOOPS:
            return named_by_text(
                LOOPS, read_small(tracker, LIMIT_BYTES, LOOPS), [one.name for one in tracker.parent.iterdir()]
            )
        names = _read(tracker, tracker.name)
    except (Broken, NotKnown, OSError):
        return None
    return _one_of(names, [name for name in names if os.path.lexists(tracker.with_name(name))])


def named_by_text(tracker: str, text: bytes, among: Collection[str]) -> str | None:
    """What of these, which lie beside it, a tracker of this file name names by this text; None where it names none."""
    try:
        names = _parse(text, tracker)
    except (Broken, NotKnown):
        return None
    number = whole_number(names[0], digits=12) if tracker == LOOPS else None
    by_number = [name for name in sorted(among) if number is not None and number == _number_of(name)]
    return next((name for name in (*names, *by_number) if name in among), None)


def _number_of(name: str) -> int | None:
    step = step_of(name)
    return number_of(name) if step is None else step


def text_naming(tracker: str, before: bytes, name: str, state: bytes | None) -> bytes | None:
    """What a tracker that says this says to name that file or folder beside it; None where it can name none such.

    Megatron-LM and verl read a number, DeepSpeed a folder of the kind that it has (no newline, as it writes it), mmengine
    the path of a file, which stays the path of its folder, people's loops any of these. ``state``: the file of
    Megatron-Bridge's that lies in the folder.
    """
    if tracker == BRIDGE:
        return state if state is not None and named_by_text(BRIDGE, state, [name]) else None
    if tracker == MEGATRON:
        number = _NUMBERED.fullmatch(name)
        return str(int(number[1] or number[2])).encode() if number else None
    if tracker == DEEPSPEED:
        return os.fsencode(name) if without_numbers(name) == without_numbers(os.fsdecode(before.strip())) else None
    said = before.strip().rstrip(b"/")
    folder, slash, last = said.rpartition(b"/")
    if tracker == LOOPS:
        end = before.lstrip()[len(said) :]
        if without_numbers(name) == without_numbers(os.fsdecode(last)):
            return folder + slash + os.fsencode(name) + end
        counted = _number_of(name) if last.isdigit() and not slash else None
        width = len(last) if last.startswith(b"0") else 1  # it is as wide in the names
        return None if counted is None else b"%0*d" % (width, counted) + end
    return folder + slash + os.fsencode(name)


def in_words(tracker: str, text: bytes) -> str:
    """What a tracker says, for a person."""
    if tracker == BRIDGE:
        with contextlib.suppress(Broken, NotKnown):
            return _parse(text, tracker)[0]
        return ""
    return text.decode("utf-8", "replace")[:200]


def _one_of(names: tuple[str, ...], there: Collection[str]) -> str:
    return next((name for name in names if name in there), names[0])


def _read(tracker: Path, name: str) -> tuple[str, ...]:
    try:
        return _parse(read_small(tracker, LIMIT_BYTES, name), name)
    except NotKnown:
        raise Broken(f"{name} is not a line of text") from None


def _parse(data: bytes, name: str) -> tuple[str, ...]:
    """The names that it may mean: by a number Megatron-LM means another folder than verl.

    Raises:
        Broken: it names nothing. NotKnown: it is none that is read.
    """
    if name == BRIDGE:
        return (f"iter_{_step_of_state(data):07d}",)
    if name in (MMENGINE, LOOPS):
        line = data.strip().rstrip(b"/")
        last = os.fsdecode(line.rpartition(b"/")[2])
        if not last or last in (".", "..") or b"\n" in line or b"\0" in line:
            raise Broken(f"{name} names no file")
        return (last,)
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise Broken(f"{name} is not a line of text") from None
    word = text.strip()
    if name == DEEPSPEED:
        if not re.fullmatch(r"[\w.+=-]+", word) or word in (".", ".."):
            raise Broken(f"{name} names no folder: {visible(repr(text), 60)}")
        return (word,)
    if word == "release":
        return (word,)
    number = whole_number(word, digits=12)
    if number is None:
        raise Broken(f"{name} holds no iteration: {visible(repr(text), 60)}")
    return f"iter_{number:07d}", f"global_step_{number}"


def _step_of_state(data: bytes) -> int:
    """The step in Megatron-Bridge's state of a run: a number, or a tensor of one."""

    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    found = open_archive(read, len(data), BRIDGE)
    step = found.pickled.value.get("step") if isinstance(found.pickled.value, dict) else None
    place = scalars.place_of(found, step) if isinstance(step, Opaque) else None
    if place is not None:
        layout, at = place
        (step,) = layout.unpack(read(at, layout.size))
    if type(step) is not int or not 0 <= step < 10**12:
        raise Broken(f"{BRIDGE} holds no step")
    return step


def check(tree: Tree, ask: Ask) -> Finding:
    folder = target(tree)
    if folder not in tree.folders:
        raise Broken(f"the tracker names {visible(folder)}, which is not there")
    inner = tree.below(folder)
    if folder.startswith("global_step_") and MEGATRON in tree.files:
        raise NotKnown(f"the tracker names {visible(folder)}, a save of verl's: name that folder")
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
