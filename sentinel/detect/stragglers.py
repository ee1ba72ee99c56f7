"""Locates a slowdown by comparing timer reports since its onset with those before: a rank, a pipeline stage, all or none.

The others wait for a rank that is slow in computation; a rank that is slow in communication is itself waiting. A different
slow rank each time means unevenly shared work (sequence lengths), and so does an imbalance that existed before the slowdown.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from sentinel.detect.change_point import SLOWER
from sentinel.evidence.logs.timers import APART, FORMS, Report, Timer, part_of

LAST = 8  # newest reports used: older ones do not describe the present
LEAST = 3  # reports needed: two may agree by chance, since some rank is always the slowest
STEADY = 0.7  # share of the reports that must agree
FEW = 8  # most slow ranks that can be one component: the ranks of a node
GREW = 2.0  # least growth of a rank's excess time: an imbalance that existed before does not explain a slowdown
FROM_START = 8  # reports needed to call a rank slow from its start
START_APART = 1.2  # least ratio to the other ranks for that; less is ordinary unevenness of work
BRAKED = 0.9  # share of the highest clock: GPUs of one model under the same load run within a few percent of each other


@dataclass(frozen=True, slots=True)
class Lag:
    """Where a slowdown comes from, with an explanation in ``words``.

    ``pattern``: see ``classify.slowdown``; "component" does not guarantee yet that ``ranks`` are on one node.
    """

    pattern: str
    words: str
    ranks: tuple[int, ...] = ()


def lag(since: Sequence[Report], before: Sequence[Report]) -> Lag | None:
    """Compare the reports since the onset with those before; None if they show no origin."""
    for form in FORMS:
        late = [report for report in since if report.form == form][-LAST:]
        early = [report for report in before if report.form == form][-LAST:]
        if len(late) < LEAST:
            continue
        for judge in (_laggards, _staged, _turns, _awaited, _alike, _somebody):
            if (found := judge(late, early)) is not None:
                return found
    return None


def from_start(reports: Sequence[Report]) -> Lag | None:
    """Ranks that are slow in computation in nearly all reports, for jobs without a change point.

    The pattern is empty if it is not known that all ranks have equal work: a pipeline stage with more work is slow from the
    start too.
    """
    for form in FORMS[:2]:
        known = [report for report in reports if report.form == form]
        steady = _steady(known, _slow) if len(known) >= FROM_START else []
        named = [rank for rank in steady if _excess(rank, known) >= START_APART - 1]
        if not 0 < len(named) <= FEW:
            continue
        worst = max(named, key=lambda rank: _excess(rank, known))
        count = sum(worst in _slow(report) for report in known)
        words = f"{_those(named)} slow in {_timer_of(worst, known[-1])} in {count} of {len(known)} timer reports"
        words += f" ({_excess(worst, known) + 1:.2f} times the others), never quicker{_clock(worst, known)}"
        stages = {report.pipeline for report in known}
        if stages == {1} or (form == FORMS[0] and 0 not in stages):
            return Lag("component", words, tuple(named))
        return Lag("", f"{words}; whether its stage has more work is not known", tuple(named))
    return None


def _laggards(since: Sequence[Report], before: Sequence[Report]) -> Lag | None:
    """The same few ranks are slow in computation, and were not as slow before."""
    steady = _steady(since, _slow)
    named = [rank for rank in steady if _grew(rank, since, before)]
    if not 0 < len(named) <= FEW:
        return None
    worst = max(named, key=lambda rank: _excess(rank, since))
    count = sum(worst in _slow(report) for report in since)
    words = f"{_those(named)} slow in {_timer_of(worst, since[-1])} in {count} of {len(since)} timer reports"
    words = f"{words} ({_excess(worst, since) + 1:.2f} times the others){_clock(worst, since)}"
    words += "" if len(before) >= LEAST else "; whether it was before is not known"
    return Lag("component", words, tuple(named))


def _staged(since: Sequence[Report], before: Sequence[Report]) -> Lag | None:
    """Contiguous groups of ranks differ, or times grow with the rank: pipeline stages with unequal work.

    A difference that began with the slowdown may also be one node: its ranks are then named as a component, and the caller
    checks whether they are on one node.
    """
    counts = Counter(stage for report in since for stage in _stages(report))
    if not counts or (top := counts.most_common(1)[0])[1] < _enough(since):
        return None
    (stages, stage), count = top
    if not stages:
        return Lag("application", f"compute times grow with the rank in {count} of {len(since)} timer reports")
    size = since[-1].ranks // stages
    first, last = stage * size, (stage + 1) * size - 1
    words = f"ranks {first}-{last}, one of {stages} equal groups, slow in {count} of {len(since)} timer reports"
    known = len(before) >= LEAST
    if known and size <= FEW and not any(_stages(report) for report in before):
        return Lag("component", f"{words}, and in none before", tuple(range(first, last + 1)))
    return Lag("application", f"{words}: the stages' work is unequal")


def _turns(since: Sequence[Report], before: Sequence[Report]) -> Lag | None:
    """Some rank is slow in nearly every report, but none steadily: the work is unevenly shared."""
    slow = [_slow(report) for report in since]
    ranks = {rank for each in slow for rank in each}
    if sum(bool(each) for each in slow) < _enough(since) or len(ranks) < LEAST or _steady(since, _slow):
        return None
    return Lag("application", f"{len(ranks)} ranks took turns as the slowest in {len(since)} timer reports")


def _awaited(since: Sequence[Report], before: Sequence[Report]) -> Lag | None:
    """No rank's own work shows it, but one rank never waits in collectives: it comes last, and the others wait for it."""
    steady = _steady(since, _quick)
    early = set(_steady(before, _quick)) if len(before) >= LEAST else set()
    named = [rank for rank in steady if rank not in early]
    if len(named) != 1:
        return None
    words = f"all others wait in collectives for rank {named[0]} in {sum(named[0] in _quick(r) for r in since)}"
    return Lag("component", f"{words} of {len(since)} timer reports", tuple(named))


def _alike(since: Sequence[Report], before: Sequence[Report]) -> Lag | None:
    """Every rank slower alike: in its own work as well, or only where all meet."""
    if len(before) < LEAST or any(report.single is not None for report in since):
        return None
    low, high = _ratios(since, before, lambda t: t.low_ms), _ratios(since, before, lambda t: t.high_ms)
    up = {name for name in low if min(low[name], high[name]) >= SLOWER}
    compute = [name for name in low if part_of(name) == "compute"]
    if compute and up.issuperset(compute):
        return Lag("everyone", f"all ranks slower alike in {', '.join(compute)} ({low[compute[0]]:.2f} times)")
    shared = [name for name in up if part_of(name) in ("together", "loading")]
    if compute and shared and all(high[name] < SLOWER for name in compute):
        name = max(shared, key=low.__getitem__)
        return Lag("cluster", f"all ranks slower alike in {name} ({low[name]:.2f} times), not in their own work")
    return None


def _somebody(since: Sequence[Report], before: Sequence[Report]) -> Lag | None:
    """A wide gap between the slowest and the quickest rank which the framework does not name; or one rank's own clock."""
    own = [report for report in since if report.single is not None]
    if own and len(before) >= LEAST:
        up = _ratios(since, before, lambda timer: timer.high_ms)
        work = [up[name] for name in up if part_of(name) == "compute"]
        waits = [name for name in up if part_of(name) == "together" and up[name] >= SLOWER]
        if work and waits and max(work) < SLOWER:
            words = f"rank {own[-1].single} waits longer in {waits[0]} ({up[waits[0]]:.2f} times), its own work is as before"
            return Lag("", words)
        return None
    for name, timer in since[-1].timers.items():
        if part_of(name) != "compute" or timer.mid_ms is not None or timer.high_rank is not None:
            continue
        gaps = [_gap(report.timers[name]) for report in since if name in report.timers]
        early = [_gap(report.timers[name]) for report in before if name in report.timers]
        wide = sum(gap >= APART for gap in gaps) >= _enough(since)
        if wide and (len(early) < LEAST or median(gaps) - 1 >= GREW * (median(early) - 1)):
            words = f"some rank is slow in {name} ({timer.high_ms:.0f} ms, the quickest {timer.low_ms:.0f} ms)"
            return Lag("", f"{words}; the log does not say which: --timing-log-option all names it")
    return None


# --- what a report says -----------------------------------------------------------------------------------------------


def _enough(reports: Sequence[Report]) -> float:
    return max(LEAST, STEADY * len(reports))


def _compute(report: Report) -> Iterable[Timer]:
    return (timer for name, timer in report.timers.items() if part_of(name) == "compute")


def _slow(report: Report) -> dict[int, float]:
    """Ranks slow in computation, with the ratio of their time to the usual; only the slowest if just extremes are named."""
    found: dict[int, float] = {}
    for timer in _compute(report):
        named = dict(timer.slow)
        if timer.mid_ms is None and timer.high_rank is not None and _gap(timer) >= APART:
            named = {timer.high_rank: _gap(timer)}
        for rank, times in named.items():
            found[rank] = max(found.get(rank, 0.0), times)
    return found


def _quick(report: Report) -> dict[int, float]:
    found: dict[int, float] = {}
    for name, timer in report.timers.items():
        if part_of(name) == "together":
            found.update(timer.quick)
    return found


def _stages(report: Report) -> set[tuple[int, int]]:
    """(number of groups, index of the slowest) of the compute timers; (0, 0) if times grow with the rank."""
    if any(timer.in_order for timer in _compute(report)):
        return {(0, 0)}
    return {(timer.stages, timer.stage) for timer in _compute(report) if timer.stages}


def _steady(reports: Sequence[Report], ranks_of: Callable[[Report], dict[int, float]]) -> list[int]:
    counts = Counter(rank for report in reports for rank in ranks_of(report))
    return sorted(rank for rank, count in counts.items() if count >= _enough(reports))


def _excess(rank: int, reports: Sequence[Report]) -> float:
    """Median excess of the rank's time over the usual, as a share; 0 in reports that do not name it."""
    return median(max(_slow(report).get(rank, 1.0) - 1.0, 0.0) for report in reports) if reports else 0.0


def _grew(rank: int, since: Sequence[Report], before: Sequence[Report]) -> bool:
    return len(before) < LEAST or _excess(rank, since) >= GREW * _excess(rank, before)


def _gap(timer: Timer) -> float:
    return timer.high_ms / timer.low_ms


def _ratios(since: Sequence[Report], before: Sequence[Report], value: Callable[[Timer], float]) -> dict[str, float]:
    """Ratio of the median since the onset to the median before, for timers present in both."""
    found = {}
    for name in since[-1].timers:
        late = [value(report.timers[name]) for report in since if name in report.timers]
        early = [value(report.timers[name]) for report in before if name in report.timers]
        if len(late) >= LEAST and len(early) >= LEAST:
            found[name] = median(late) / median(early)
    return found


def _timer_of(rank: int, report: Report) -> str:
    """The compute timer in which the rank is slowest."""
    times = {
        name: timer.slow.get(rank, _gap(timer) if timer.high_rank == rank else 0.0)
        for name, timer in report.timers.items()
        if part_of(name) == "compute"
    }
    return max(times, key=times.__getitem__) if times else "its own work"


def _clock(rank: int, reports: Sequence[Report]) -> str:
    """A clause saying that the rank's GPU runs at a much lower clock, if the framework prints clocks; else empty."""
    clocks = [report.timers["Clk"] for report in reports if "Clk" in report.timers]
    braked = [timer for timer in clocks if timer.low_rank == rank and timer.low_ms <= BRAKED * timer.high_ms]
    if not braked or len(braked) < STEADY * len(reports):
        return ""
    return f", its GPU at {braked[-1].low_ms:.0f} MHz while another runs at {braked[-1].high_ms:.0f}"


def _those(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} {'are' if len(ranks) > 1 else 'is'}"
