"""A folder of checkpoints with a tracker: what the framework itself would load from it.

Megatron-LM's ``latest_checkpointed_iteration.txt`` and DeepSpeed's ``latest`` are written in place, so they may be empty
or cut short; they may name a step that is gone, or was never finished. The answer is about the checkpoint they name.
"""

from __future__ import annotations

import re

from sentinel.checkpoints.files import Broken, NotKnown, Tree, read_small
from sentinel.checkpoints.formats import deepspeed, megatron
from sentinel.checkpoints.formats.base import Ask, Finding, Format, no_owners
from sentinel.text import visible, whole_number

NAME = "tracked"
MEGATRON = "latest_checkpointed_iteration.txt"
DEEPSPEED = "latest"

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    return not tree.single and (MEGATRON in tree.files or (DEEPSPEED in tree.files and not deepspeed.recognise(tree)))


def target(tree: Tree) -> str:
    """The folder that the tracker names. `Broken` where it names none."""
    name = MEGATRON if MEGATRON in tree.files else DEEPSPEED
    try:
        text = read_small(tree.path(name), 4096, name).decode("ascii")
    except (UnicodeDecodeError, NotKnown):
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
