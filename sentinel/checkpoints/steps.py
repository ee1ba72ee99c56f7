"""The step in a name, and the steps and epochs that a file states in it.

A step is read, never guessed: a name that says nothing, or two different numbers, gives None.
"""

from __future__ import annotations

import re

_WHOLE = (
    re.compile(r"checkpoint-(\d+)"),  # Hugging Face Trainer
    re.compile(r"iter_(\d+)(?:_\d+_local\.pt)?"),  # Megatron-LM; NVRx local
    re.compile(r"global_step_?(\d+)"),  # DeepSpeed
    re.compile(r"(?:ep\d+-)?ba(\d+)(?:-rank\d+)?(?:\.pt)?"),  # Composer
)
# torchtitan step-N, Lightning epoch=1-step=N.ckpt, NeMo name--val_loss=2.1-step=N-last, step_N, global_step=N ...
_STEP = re.compile(r"(?:^|[^A-Za-z])(?:global[-_]?)?step[-_=]?(\d+)(?=$|[^0-9])", re.IGNORECASE)
_ITERATION = re.compile(r"(?:^|[-_.])iter(?:ation)?[-_=]?(\d+)(?=$|[^0-9])", re.IGNORECASE)
# Frameworks that number their saves themselves: Accelerate's checkpoint_0, Ray Train's checkpoint_000003, epoch_2.pt,
# checkpoint-3.pth.tar, 0050000.pt.
_NUMBER = re.compile(
    r"(?:(?:checkpoint|ckpt|model)[-_.])?(?:checkpoint|ckpt|save|epoch|ep)[-_=]?(\d+)(?:\.\w+){0,2}"
    r"|(\d+)(?:\.(?:pt|pth|ckpt)(?:\.tar)?)?",
    re.IGNORECASE,
)
# Ray Train names its folders by the time: checkpoint_2026-11-23_04-48-15.123456, SpeechBrain CKPT+2026-11-23+04-48-15+00.
# Without the century they fit 18 digits.
_TIME = re.compile(r"(?:checkpoint_|CKPT\+)\d\d(\d\d)-(\d\d)-(\d\d)[_+](\d\d)-(\d\d)-(\d\d)(?:\.(\d{6})|\+(\d{2}))")
_DIGITS = 18
_NUMBERS = re.compile(r"\d+")
STEP_KEYS = ("global_step", "iteration", "step", "global_steps")
# What trainers call it besides, where the file's name states no step, and the tables in which it is then.
_OTHER_STEP_KEYS = ("iter_num", "iter", "num_updates", "step_count", "current_step", "train_step", "global_iteration")
_MAYBE_OF_AN_EPOCH = "iter"  # beside an epoch some count it from the epoch's start: the name's number orders such files
_EPOCH_KEYS = ("epoch", "current_epoch")
_TABLES_OF_EPOCHS = ("meta", "reporter", "trainer", "train_state", "progress")  # mmcv, ESPnet, people's own
_TABLES_OF_STEPS = ("meta", "extra_state", "trainer", "train_state", "progress", "optimizer_history")


def step_of(name: str) -> int | None:
    """The step that a folder or file name states, or None."""
    for pattern in _WHOLE:
        match = pattern.fullmatch(name)
        if match:
            return _number({match.group(1)})
    for pattern in (_STEP, _ITERATION):
        found = set(pattern.findall(name))
        if found:
            return _number(found)
    return None


def step_in(path: str) -> int | None:
    """The step in the name of a folder, or in that of the folder above it (``checkpoint-20/optimizer_0``)."""
    above, _, name = path.rstrip("/").rpartition("/")
    step = step_of(name)
    return step_of(above.rpartition("/")[2]) if step is None else step


def without_numbers(name: str) -> str:
    """By this the names of a kind are known that differ in numbers alone, as those of ranks and of steps do."""
    return _NUMBERS.sub("#", name)


def number_of(name: str) -> int | None:
    """The number of the save that a name states where it states no step. It orders the saves of one folder, no more."""
    if step_of(name) is not None:
        return None
    if time := _TIME.fullmatch(name):
        return int("".join(time.groups("")))
    match = _NUMBER.fullmatch(name)
    return _number({match.group(1) or match.group(2)}) if match else None


def last_number(name: str) -> str:
    """The last number in a name, without zeros before it; empty where there is none."""
    found = re.findall(r"\d+", name)
    return (found[-1].lstrip("0") or "0") if found else ""


def _number(texts: set[str]) -> int | None:
    if any(len(text) > _DIGITS for text in texts):
        return None
    numbers = {int(text) for text in texts}
    return numbers.pop() if len(numbers) == 1 else None


def steps_by_other_names(value: object) -> list[int]:
    """Steps that a user's own training script states, in the file or in a table that speaks of the run."""
    if not isinstance(value, dict):
        return []
    tables: list[object] = [value]
    for name in _TABLES_OF_STEPS:
        table = value.get(name)
        tables.append(table[-1] if isinstance(table, list) and table else table)
    keys = (*STEP_KEYS, *_OTHER_STEP_KEYS)
    found = [(t, key) for t in tables if isinstance(t, dict) for key in keys if type(t.get(key)) is int and t[key] >= 0]
    return [t[key] for t, key in found if not (key == _MAYBE_OF_AN_EPOCH and "epoch" in t)]


def epoch_in(value: object) -> int | None:
    """The epoch that the file states, or a table in it that speaks of the run; None where there is none, or several.

    One below 0 is none: so a save is marked that was made ready for use, without its optimizer.
    """
    if not isinstance(value, dict):
        return None
    tables = [value, *(value.get(name) for name in _TABLES_OF_EPOCHS)]
    found = {t[key] for t in tables if isinstance(t, dict) for key in _EPOCH_KEYS if type(t.get(key)) is int}
    return found.pop() if len(found) == 1 and min(found) >= 0 else None
