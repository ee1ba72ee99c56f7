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


def _number(texts: set[str]) -> int | None:
    if any(len(text) > _DIGITS for text in texts):
        return None
    numbers = {int(text) for text in texts}
    return numbers.pop() if len(numbers) == 1 else None
