"""Whether the steps that a schedule and a random state count belong to those that the optimizer beside them has made.

Accelerate's schedule counts one step, or one for each process, with every step of the optimizer, and its random states count
the batches since the epoch began. So saves of one run lie on a line; a file of another of them does not, and counts exactly
what it counts there. A run that does otherwise (a schedule that counts epochs, an epoch that ended) has no such line, or
could have come to the same count: nothing is said of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sentinel.checkpoints.files import Broken, Foreign, NotKnown, Tree
from sentinel.checkpoints.formats import torch_file
from sentinel.checkpoints.formats.base import NEAREST, Ask, neighbours
from sentinel.checkpoints.formats.torch_file import TorchFile, check_file
from sentinel.checkpoints.records import level_at_least
from sentinel.text import visible

_LEAST = 2  # saves beside that show a line
_STRUCTURE = Ask("structural", 0.0)


@dataclass(frozen=True, slots=True)
class _Counts:
    folder: str
    steps: int  # that the optimizer has made
    counted: int
    # Whether the optimizer has the learning rates that the schedule gave last; None: of a random state.
    rates_agree: bool | None


def refuse_others(tree: Tree, ask: Ask, files: dict[str, TorchFile], random_state: str) -> None:
    """`NotKnown` where a schedule or a random state counts the steps of another save, and those beside show that it may not.

    Args:
        files: the optimizers and schedules here, as they were read.
        random_state: the name of a rank's.
    """
    if not level_at_least(ask.level, "checksum"):
        return
    pairs = [(name, name.replace("scheduler", "optimizer")) for name in files if name.startswith("scheduler")]
    beside = neighbours(tree.root, NEAREST)
    for counting, optimizer in [*pairs, (random_state, "optimizer.bin")]:
        mine = _counts(tree, counting, optimizer, files)
        others = [found for at in beside if mine and (found := _counts(Tree(at), counting, optimizer)) is not None]
        if mine is not None and (other := _counts_of(mine, others)) is not None:
            raise NotKnown(
                f"{visible(counting)} has counted {mine.counted} steps, as that of {visible(other.folder)},"
                f" {visible(optimizer)} has made {mine.steps} (there {other.steps}): two saves mixed"
            )


def _counts_of(mine: _Counts, others: list[_Counts]) -> _Counts | None:
    """The save whose count this one has, where it cannot have come to it by itself."""
    steps = {one.steps for one in others}
    if len(steps) < _LEAST or min(steps) < 1:
        return None
    each, rest = divmod(others[0].counted, others[0].steps)
    if rest or each < 1 or any(one.counted != each * one.steps for one in others) or mine.counted == each * mine.steps:
        return None
    same = [one for one in others if one.counted == mine.counted]
    if mine.rates_agree is None:  # an epoch that began anew in between has not come so far again
        return next((one for one in same if abs(one.steps - mine.steps) * each < mine.counted), None)
    # A schedule may have come to rest since: then the optimizer keeps the rates that it gave last.
    rested = mine.steps > max(steps) and (mine.rates_agree or not all(one.rates_agree for one in others))
    return None if rested else next(iter(same), None)


def _counts(tree: Tree, counting: str, optimizer: str, files: dict[str, TorchFile] | None = None) -> _Counts | None:
    """What is counted in a save; None where it does not tell."""
    try:
        trained = (files or {}).get(optimizer) or check_file(tree, optimizer, _STRUCTURE)
        counts = (files or {}).get(counting) or check_file(tree, counting, _STRUCTURE)
        made = torch_file.optimizer_step(tree, trained, "state")
    except (Broken, Foreign, NotKnown, OSError):
        return None
    of_schedule = counting.startswith("scheduler")
    counted = counts.get("last_epoch" if of_schedule else "step")
    if made is None or not made.is_integer() or type(counted) is not int:
        return None
    return _Counts(Path(tree.root).name, int(made), counted, _rates_agree(trained, counts) if of_schedule else None)


def _rates_agree(optimizer: TorchFile, schedule: TorchFile) -> bool:
    groups, last = optimizer.get("param_groups"), schedule.get("_last_lr")
    rates = [group.get("lr") for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    return bool(rates) and rates == last
