"""What may be carried out where: ``[modes]``, by partition, by cause and by kind of step (promise 7)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from sentinel.config.settings_toml import InvalidSetting, section, setting
from sentinel.model.vocabulary import Cause

OBSERVE, SUGGEST, ACT = "observe", "suggest", "act"
MODES = (OBSERVE, SUGGEST, ACT)  # the most cautious first


@dataclass(frozen=True, slots=True)
class CauseMode:
    """What is different for one cause; what is not named is as for the others."""

    drain: str = setting("", "drain and down; empty: as for other causes", words=MODES)
    restart: str = setting("", "requeue, hold, resume point, release; empty: as for other causes", words=MODES)


@dataclass(frozen=True, slots=True)
class Mode:
    """What may be carried out: "observe" judges and plans only, "suggest" asks a person, "act" does it."""

    drain: str = setting(OBSERVE, "drain and down: observe, suggest (a person is asked) or act", words=MODES)
    restart: str = setting(
        OBSERVE, "requeue, hold, resume point, release: observe, suggest (a person is asked) or act", words=MODES
    )
    causes: dict[str, CauseMode] = setting(
        {}, "by cause, e.g. [modes.default.causes.network_fabric]: some are surer than others; both ways"
    )

    def __post_init__(self) -> None:
        for name in self.causes:
            if name not in list(Cause):
                near = difflib.get_close_matches(name, list(Cause), 1)
                fix = f"did you mean '{near[0]}'?" if near else f"causes are: {', '.join(Cause)}"
                raise InvalidSetting(f"causes.{name}", "is no cause", fix)

    def for_cause(self, cause: Cause | None) -> Mode:
        """What holds for this cause."""
        other = self.causes.get(str(cause)) if cause is not None else None
        return self if other is None else Mode(other.drain or self.drain, other.restart or self.restart)


@dataclass(frozen=True, slots=True)
class Modes:
    default: Mode = section(Mode)
    partitions: dict[str, Mode] = setting(
        {}, "by partition, each whole by itself; a partition that is not named follows the default"
    )
    approval_s: float = setting(
        7200.0,
        "in mode suggest an unanswered request lapses after this, and so does an approval that could not be carried out "
        "(budget, breaker, pause): whoever approved it saw another cluster. Two hours: a person on call and one more",
        unit="s",
        least=60.0,
    )
    respect_maintenance: bool = setting(
        True,
        "nodes in a maintenance reservation (flag MAINT) are not judged by their silence, and neither drained nor tested, "
        "reset or returned before it ends: people work on them",
    )

    def of(self, partitions: Iterable[str], cause: Cause | None = None) -> Mode:
        """The mode for a node or job of these partitions: of several that are named, the most cautious."""
        named = [self.partitions[name] for name in partitions if name in self.partitions]
        return cautious([mode.for_cause(cause) for mode in named or [self.default]])


def cautious(modes: Iterable[Mode]) -> Mode:
    """The most cautious mode for each kind of step."""
    known = list(modes)
    if len(known) == 1 and not known[0].causes:
        return known[0]
    return Mode(*(min((getattr(mode, kind) for mode in known), key=MODES.index) for kind in ("drain", "restart")))
