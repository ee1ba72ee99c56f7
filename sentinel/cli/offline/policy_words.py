"""Says in sentences what the modes and limits of a settings file come to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sentinel.cli.operator.output import counted

if TYPE_CHECKING:
    from sentinel.config.modes import Mode
    from sentinel.config.settings import Settings


def sentences(settings: Settings) -> Iterator[str]:
    """The policy's effect, one sentence for each partition that is named and for the others, then the limits."""
    modes, limits = settings.modes, settings.limits
    asked = f"and asks for at most {_span(modes.approval_s)}"
    for name, mode in sorted(modes.partitions.items()):
        yield from _of(f"Partition {name}", mode, asked)
    yield from _of("Other partitions" if modes.partitions else "Every partition", modes.default, asked)
    every = [modes.default, *modes.partitions.values()]
    if all(word == "observe" for mode in every for word in _words(mode)):
        yield "So nothing is changed anywhere: plans are made and shown."
        return
    stay = f"it always leaves {counted(limits.keep_healthy, 'usable node')} of each partition"
    if limits.keep_healthy == 0:
        stay = "a partition of one node may be drained whole (keep_healthy = 0)"
    elif limits.keep_healthy == 1:
        stay = "it always leaves the last usable node of a partition"
    yield (
        f"At most {counted(limits.drain_count, 'node')} and {_percent(limits.drain_fraction)} of a partition (but one) are "
        f"drained by Sentinel at once, {limits.drain_per_hour} in an hour; {stay}. "
        "What a person drains is not limited."
    )
    yield (
        f"Under one switch at most {limits.drain_per_switch}; {limits.breaker_switch_nodes} of its nodes failing within "
        f"{_span(limits.breaker_window_s)} wait until fewer are bad or a person has looked."
    )
    yield (
        f"{limits.breaker_nodes} nodes failing within {_span(limits.breaker_window_s)} stop all drains and restarts until "
        "fewer are bad or a person has looked."
    )
    if modes.respect_maintenance:
        yield "Nodes in a maintenance reservation are not drained before it ends."
    if settings.recovery.opt_in:
        yield "Only jobs whose comment asks for it are restarted."
    else:
        yield "Every batch job is restarted, whether its comment asks for it or not."


def _percent(fraction: float) -> str:
    """Exact, as a limit is: 0.999 is not 100 %."""
    return f"{100 * fraction:.12g}%"  # twelve digits: 100 * 0.07 is 7.000000000000001


def _span(seconds: float) -> str:
    """In the largest unit in which it is a whole number: what is promised is not rounded."""
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


def _words(mode: Mode) -> Iterator[str]:
    yield from (mode.drain, mode.restart)
    for one in mode.causes.values():
        yield from (word for word in (one.drain, one.restart) if word)


def _of(where: str, mode: Mode, asked: str) -> Iterator[str]:
    yield f"{where}: {_drains(mode.drain, asked)}; {_restarts(mode.restart, asked)}."
    for cause, one in sorted(mode.causes.items()):
        words = [_drains(one.drain, asked)] if one.drain else []
        words += [_restarts(one.restart, asked)] if one.restart else []
        if words:
            yield f"{where}, cause {cause}: {'; '.join(words)}."


def _drains(mode: str, asked: str) -> str:
    suggest = f"suggests to drain nodes {asked}"
    return {"act": "drains bad nodes at once", "suggest": suggest, "observe": "drains nothing"}[mode]


def _restarts(mode: str, asked: str) -> str:
    suggest = f"suggests to restart or hold jobs {asked}"
    return {"act": "restarts or holds failed jobs at once", "suggest": suggest, "observe": "restarts nothing"}[mode]
