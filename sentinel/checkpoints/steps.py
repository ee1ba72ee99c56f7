"""The step in a name. A step is read, never guessed: a name that says nothing, or two different numbers, gives None."""

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
# Ray Train names its folders by the time: checkpoint_2026-11-23_04-48-15.123456. Without the century it fits 18 digits.
_TIME = re.compile(r"checkpoint_\d\d(\d\d)-(\d\d)-(\d\d)_(\d\d)-(\d\d)-(\d\d)\.(\d{6})")
_DIGITS = 18


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


def number_of(name: str) -> int | None:
    """The number of the save that a name states where it states no step. It orders the saves of one folder, no more."""
    if step_of(name) is not None:
        return None
    if time := _TIME.fullmatch(name):
        return int("".join(time.groups()))
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
