"""JSON of unknown origin, read in bounded memory and time."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from sentinel.checkpoints.files import Broken, TooLarge, Tree, opened, read_small
from sentinel.text import visible

# A table takes 230 bytes and a list 60 beside what is in them: with these weights the objects stay below 100 MB.
_TABLE_WEIGHT = 3
_MOST_WEIGHT = 1_200_000  # a header of 109,000 tensors
SMALL_BYTES = 4 << 20
_MOST_LINES = 50_000
_NUMBERS = re.compile(r"\d+")
_TOKENS = ("added_tokens.json", "vocab.json")  # whose keys are the words of a language
# Tables whose keys a user chooses: names of callbacks and their arguments, of parameters in a search, labels, words.
_OF_THE_USER = frozenset(("stateful_callbacks", "trial_params", "label2id", "vocab"))

Pairs = list[tuple[str, object]]


def parse(data: bytes, what: str, pairs: Callable[[Pairs], object] | None = None) -> object:
    """The value. ValueError where it is no JSON; `TooLarge` where it holds more than is taken into memory."""
    weight = _TABLE_WEIGHT * data.count(b"{") + data.count(b"[") + data.count(b",")
    if weight > _MOST_WEIGHT:
        raise TooLarge(f"{visible(what)}: JSON of {weight} values and more, more than this reader takes")
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read(tree: Tree, name: str, limit_bytes: int) -> object:
    """The value of a file. ValueError where it is no JSON; `NotKnown` where it is too large or cannot be read."""
    return parse(read_small(tree.path(name), limit_bytes, name), name)


# What transformers, peft, NeMo and verl write beside the weights and read when a model is loaded from the folder again.
_READ_AT_RESUME = re.compile(
    r"((adapter_|generation_|tokenizer_|preprocessor_|processor_|video_preprocessor_|image_processor_)?config"
    r"|tokenizer|special_tokens_map|added_tokens|vocab|chat_template|modules|config_sentence_transformers|fsdp_config)\.json"
    r"|context/(.*/)?[^/]+\.json"
)


def check_read_at_resume(tree: Tree) -> None:
    """`Broken` where a JSON file that a framework reads at resume is empty, cut short or damaged."""
    for name in sorted(tree.files):
        if _READ_AT_RESUME.fullmatch(name) and not looks_whole(tree, name):
            raise Broken(f"{visible(name)} is not JSON (cut short or damaged)")


def speaks_to_a_resume(name: str) -> bool:
    """Whether frameworks read a file of that name at resume, by keys of their own."""
    return name == "trainer_state.json" or (_READ_AT_RESUME.fullmatch(name) is not None and name not in _TOKENS)


def renamed_key(mine: object, theirs: object) -> tuple[str, str] | None:
    """A key here that a file of another save has under another name, as one flipped bit leaves it, and that other name.

    Keys that differ in numbers are steps and places, and a user chooses some. What was added or left out says nothing, nor
    does another name that is no flipped bit away: a library's next version may write it.
    """
    pairs = [(mine, theirs)]
    for one, other in pairs:
        if not isinstance(one, dict) or not isinstance(other, dict):
            continue
        gained, lost = sorted(one.keys() - other.keys()), sorted(other.keys() - one.keys())
        one_each = len(gained) == len(lost) == 1 and _NUMBERS.sub("#", gained[0]) != _NUMBERS.sub("#", lost[0])
        if one_each and one_bit_apart(gained[0], lost[0]):
            return gained[0], lost[0]
        shared = sorted((one.keys() & other.keys()) - _OF_THE_USER)
        pairs += [(one[key], other[key]) for key in shared if isinstance(one[key], dict)]
    return None


def one_bit_apart(one: str, other: str) -> bool:
    """Whether two names differ in one bit of their bytes."""
    mine, theirs = one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass")
    return len(mine) == len(theirs) and (int.from_bytes(mine) ^ int.from_bytes(theirs)).bit_count() == 1


def is_lines(tree: Tree, name: str) -> bool:
    """Whether every line of a file is JSON, as in a log that grows; of many lines the first ones and the last are read.

    A large file is judged by its ends (`looks_whole`), which are those of such a log as well.
    """
    if tree.files[name].size > SMALL_BYTES:
        return False
    lines = read_small(tree.path(name), SMALL_BYTES, name).splitlines()
    try:
        for line in (*lines[: _MOST_LINES - 1], *lines[-1:]):
            parse(line, name)
    except ValueError:
        return False
    return bool(lines)


def looks_whole(tree: Tree, name: str) -> bool:
    """Whether a file that should hold one JSON value does. Of a large one the two ends are looked at."""
    entry = tree.files[name]
    if entry.size <= SMALL_BYTES:
        try:
            read(tree, name, SMALL_BYTES)
        except ValueError:
            return False
        return True
    with opened(tree.path(name), name) as handle:
        first, last = handle.read(0, 64), handle.read(handle.size - 64, 64)
    return first.lstrip()[:1] in (b"{", b"[") and last.rstrip()[-1:] in (b"}", b"]")
