"""Timers that a training framework prints across its ranks: lines of a log → what one report says of each timer.

Forms: Megatron's blocks ("(min, max) time", "max time", "times across ranks (ms):", one timer or rank a line, other ranks'
lines in between), its straggler detector's line ("MnRtt/Rnk: 34.50ms/8 | MxRtt/Rnk: ..."), DeepSpeed's wall clock of one
rank ("time (ms) | fwd: 12.30 | ..."). Pure. What a hostile log can make it keep: ``VALUES`` numbers of one block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import sqrt
from statistics import fmean, median

from sentinel.evidence.logs.prefixes import prefix_of
from sentinel.model.records import Scalar

TIMERS = "timers"  # kind of evidence, and of the rules whose lines begin a report
FORMS = ("ranks", "named", "ends", "single")  # the most telling first
FOREIGN = 200  # lines of others between two lines of a block; more of them end it
VALUES = 65536  # numbers kept of a block: four timers of 16,384 ranks; what follows is not read
MOST = 8  # timers of a report that are passed on, those that tell compute from waiting first
NAMED = 8  # ranks of a timer that are passed on: more are no few slow ranks
# Of the median: a rank that makes steps slower by ``change_point.SLOWER`` is itself slower by at least as much
APART = 1.12
SPREADS = 4.0  # robust standard deviations of the ranks' own spread that a rank stands out by
LEAST_RANKS = 3  # of two ranks nobody can say which is the usual one
SHAPED = 0.9  # share of the ranks' variance that lies between contiguous groups of ranks, for these to be stages
IN_ORDER = 0.95  # correlation of time and rank from which times grow with the rank
MOST_STAGES = 64
_LINE = 4096  # bytes of a line that are looked at

_NUMBER = rb"(\d{1,12}\.\d\d)(?!\d)"
_HEAD = re.compile(rb"(?:(\(min, max\) time)|(max time)|\b(times)) across ranks \(ms\):")
_ENTRY = re.compile(rb"([A-Za-z][\w/-]{0,63}) \.{0,48}: (?:\(" + _NUMBER + rb", " + _NUMBER + rb"\)|" + _NUMBER + rb")")
_NAME = re.compile(rb"(?:^|[:\]] ?) {2}([A-Za-z][\w/-]{0,63}): {0,4}$")
_RANK = re.compile(rb"\brank {1,3}(\d{1,6}): " + _NUMBER)
_LAYOUT = re.compile(rb"\busing world size: (\d{1,7}),")
_SIZE = re.compile(rb"\b(pipeline|expert)-(?:model-)?parallel size: (\d{1,6})\b")
_MAPPED = re.compile(rb"\buse_tp_pp_dp_mapping \.{2,48} True")
_CLOCK = re.compile(rb"time \(ms\) \|")
_SHARE = re.compile(rb"\b([A-Za-z]\w{0,63}): " + _NUMBER)
_BOTH = re.compile(rb"\bM([nx])(Rtt|DRtt|Clk)/Rnk: (\d{1,12}(?:\.\d{1,4})?)(?:ms|us|MHz)/(?:Rank-)?(\d{1,6})\b")

_COMPUTE = re.compile(r"(?:forward|backward)-compute|optimizer-inner-step|Rtt|(?:fwd|forward|(?:bwd|backward)_inner)$")
_LOADING = re.compile(r"batch-generator|DRtt|batch_input|data-?loader")
_TOGETHER = re.compile(r"all-?gather|all-?reduce|reduce-?scatter|grads-sync|comms$")
_PAIRED = re.compile(r"\b(?:forward|backward)(?:-\w{1,16}){0,3}-(?:send|recv)\b")


def part_of(timer: str) -> str:
    """What a timer measures: a rank's own work ("compute", "loading"), waiting for all ("together") or for a neighbour
    ("paired"); "" for timers that hold both (forward-backward) and those that are not known."""
    for part, pattern in (("together", _TOGETHER), ("paired", _PAIRED), ("loading", _LOADING), ("compute", _COMPUTE)):
        if pattern.search(timer) if part != "compute" else pattern.match(timer):
            return part
    return ""


@dataclass(frozen=True, slots=True)
class Timer:
    """One timer of one report. ``mid_ms`` is None where only the ends are printed, a rank is None where none is named."""

    low_ms: float
    high_ms: float
    mid_ms: float | None = None
    low_rank: int | None = None
    high_rank: int | None = None
    slow: Mapping[int, float] = field(default_factory=dict)  # ranks that stand out → multiple of the median
    quick: Mapping[int, float] = field(default_factory=dict)
    stages: int = 0  # contiguous groups of ranks that differ, where they explain the spread
    stage: int = 0  # the slowest of them
    in_order: bool = False  # times grow with the rank


@dataclass(frozen=True, slots=True)
class Report:
    timers: Mapping[str, Timer]
    ranks: int = 0  # so many reported; 0: not known
    single: int | None = None  # all of it is one rank's own clock
    pipeline: int = 0  # stages of the job, as its layout says; 0: which ranks have equal work is not known

    @property
    def form(self) -> str:
        """How much it tells: every rank's times, the ends with their ranks, the ends alone, or one rank's own clock."""
        if self.ranks:
            return FORMS[0]
        if any(timer.high_rank is not None for timer in self.timers.values()):
            return FORMS[1]
        return FORMS[2] if self.single is None else FORMS[3]


Timed = tuple[datetime, Report]  # with the time at which it began


class Blocks:
    """Feed it blocks of whole lines and where known lines end in them; it answers reports as they end: a block ends where
    the next one begins, so that it is known one report late, with the time of its own first line."""

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._pipeline = 0  # as the trainer said when it started
        self._mapped = False  # stages do not lie one behind the other

    @property
    def open(self) -> bool:
        return self._open is not None

    def read(self, block: bytes, heads: list[int], now: datetime) -> list[Timed]:
        """``heads``: offsets behind (a part of) the lines that begin a report, in order."""
        found: list[Timed] = []
        starts = sorted({block.rfind(b"\n", 0, max(end - 1, 0)) + 1 for end in heads})
        at, next_head = 0, 0
        while at < len(block):
            if self._open is None:  # nothing counts before the next head
                if next_head == len(starts):
                    break
                at = max(at, starts[next_head])
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            line = block[at : min(end, at + _LINE)].rstrip()
            if next_head < len(starts) and at >= starts[next_head]:
                next_head += 1
                found.extend(self._begin(line, now))
            elif self._open is not None and not self._open.take(line):
                found.extend(self.finish())
            at = end + 1
        return found

    def finish(self) -> Iterator[Timed]:
        opened, self._open = self._open, None
        if opened is not None and (report := opened.report()) is not None:
            yield opened.at, report

    def _begin(self, line: bytes, now: datetime) -> Iterator[Timed]:
        head = _HEAD.search(line)
        if head is None:
            self._pipeline = self._layout(line)
            report = _of_line(line)
            if report is not None:
                yield now, replace(report, pipeline=self._pipeline)
            return
        yield from self.finish()
        by_rank = head[3] is not None
        self._open = _Open(now, by_rank=by_rank, printed_by=_printed_by(line), pipeline=self._pipeline)
        self._open.take(line[head.end() :], inside=True)

    def _layout(self, line: bytes) -> int:
        """Number of pipeline stages, which lie one behind the other; 0 where ranks that lie apart or hold experts differ in
        their work by themselves."""
        self._mapped = self._mapped or _MAPPED.search(line) is not None
        if self._mapped:
            return 0
        if _LAYOUT.search(line) is None:
            return self._pipeline
        sizes = {hit[1]: int(hit[2]) for hit in _SIZE.finditer(line)}
        return sizes.get(b"pipeline", 0) if sizes.get(b"expert", 1) == 1 else 0


@dataclass(slots=True)
class _Open:
    """A block whose end was not seen yet."""

    at: datetime
    by_rank: bool
    printed_by: int | None
    pipeline: int = 0
    ends: dict[str, Timer] = field(default_factory=dict)
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    name: str = ""
    count: int = 0
    foreign: int = 0

    def take(self, line: bytes, *, inside: bool = False) -> bool:
        """Whether the block goes on behind this line."""
        ours = (inside or _printed_by(line) == self.printed_by) and (
            self._rank(line) if self.by_rank else self._end(line)
        )
        self.foreign = 0 if ours else self.foreign + 1
        return self.foreign < FOREIGN and self.count < VALUES

    def _end(self, line: bytes) -> bool:
        hits = list(_ENTRY.finditer(line))
        for hit in hits:
            low, high = (float(hit[2]), float(hit[3])) if hit[2] is not None else (float(hit[4]), float(hit[4]))
            if 0 < low <= high:
                self.count += 1
                self.ends[hit[1].decode()] = Timer(low, high)
        return bool(hits)

    def _rank(self, line: bytes) -> bool:
        if (named := _NAME.search(line)) is not None:
            self.name = named[1].decode()
            return True
        hit = _RANK.search(line)
        if hit is None or not self.name:
            return False
        self.count += 1
        if (value := float(hit[2])) > 0:
            self.values.setdefault(self.name, {})[int(hit[1])] = value
        return True

    def report(self) -> Report | None:
        timers = self.ends
        if self.by_rank:
            timers = {name: timer_of(values, self.pipeline) for name, values in self.values.items()}
        known = _worth(timers)
        ranks = 1 + max((rank for values in self.values.values() for rank in values), default=-1)
        return Report(known, ranks, pipeline=self.pipeline) if known else None


def _printed_by(line: bytes) -> int | None:
    """The rank in front of a line, which is not the rank that the line is about."""
    return prefix_of(line[:24].decode("utf-8", "replace")).rank


def _of_line(line: bytes) -> Report | None:
    """A report that is one line: DeepSpeed's clock of one rank, or Megatron's slowest and quickest rank."""
    clock = _CLOCK.search(line)
    if clock is not None:
        own = {hit[1].decode(): float(hit[2]) for hit in _SHARE.finditer(line, clock.end()) if float(hit[2]) > 0}
        rank = prefix_of(line[: clock.start()].decode("utf-8", "replace")).rank
        known = _worth({name: Timer(value, value) for name, value in own.items()})
        work = any(part_of(name) == "compute" for name in known)
        return Report(known, single=rank) if work and rank is not None else None
    ends = {(hit[2].decode(), hit[1]): (float(hit[3]), int(hit[4])) for hit in _BOTH.finditer(line)}
    timers = {}
    for name in ("Rtt", "DRtt", "Clk"):
        low, high = ends.get((name, b"n")), ends.get((name, b"x"))
        if low is not None and high is not None and 0 < low[0] <= high[0]:
            timers[name] = Timer(low[0], high[0], low_rank=low[1], high_rank=high[1])
    return Report(timers) if timers else None


def _worth(timers: Mapping[str, Timer]) -> dict[str, Timer]:
    """The timers that tell something about ranks, the most telling ones first; a save or a start-up tells nothing."""
    order = ("compute", "together", "loading", "paired")
    named = sorted((name for name in timers if part_of(name)), key=lambda name: order.index(part_of(name)))
    return {name: timers[name] for name in named[:MOST]}


def timer_of(values: Mapping[int, float], pipeline: int = 0) -> Timer:
    """What the times of all ranks say: who stands out from the ranks' own spread, and whether ranks differ in groups. Where
    the stages of the job are known, a rank is compared with those of its own stage: other stages have other work."""
    ranks = sorted(values)
    times = [values[rank] for rank in ranks]
    low, high = min(ranks, key=values.__getitem__), max(ranks, key=values.__getitem__)
    if len(times) < LEAST_RANKS:
        return Timer(values[low], values[high], low_rank=low, high_rank=high)
    mid = median(times)
    slow: dict[int, float] = {}
    quick: dict[int, float] = {}
    for alike in _alike(ranks, pipeline):
        found = _standing_out({rank: values[rank] for rank in alike})
        slow |= found[0]
        quick |= found[1]
    stages, stage = (0, 0) if slow and len(slow) <= NAMED and len(slow) < len(ranks) / 4 else _stages(ranks, times)
    return Timer(
        values[low], values[high], mid, low, high, _most(slow, reverse=True), _most(quick, reverse=False),
        stages, stage, _in_order(times),
    )  # fmt: skip


def _alike(ranks: list[int], pipeline: int) -> list[list[int]]:
    """Ranks that should take equally long."""
    if pipeline < 2:
        return [ranks]
    size, rest = divmod(len(ranks), pipeline)
    if rest or size < LEAST_RANKS or ranks != list(range(len(ranks))):
        return []  # nobody to compare with
    return [ranks[i : i + size] for i in range(0, len(ranks), size)]


def _standing_out(values: Mapping[int, float]) -> tuple[dict[int, float], dict[int, float]]:
    """Slow and quick ranks of those that are alike → multiple of their median."""
    mid = median(values.values())
    spread = SPREADS * 1.4826 * median(abs(value - mid) for value in values.values())
    slow = {rank: value / mid for rank, value in values.items() if value > max(APART * mid, mid + spread)}
    quick = {rank: value / mid for rank, value in values.items() if value < min(mid / APART, mid - spread)}
    return slow, quick


def _most(ranks: Mapping[int, float], *, reverse: bool) -> dict[int, float]:
    return dict(sorted(ranks.items(), key=lambda item: item[1], reverse=reverse)[:NAMED])


def _stages(ranks: list[int], times: list[float]) -> tuple[int, int]:
    """The least number of equal contiguous groups that explain the ranks' spread, and the slowest; (0, 0) if none does."""
    count = len(times)
    if ranks != list(range(count)):
        return 0, 0
    mean = fmean(times)
    whole = sum((value - mean) ** 2 for value in times)
    for stages in range(2, min(count // 2, MOST_STAGES) + 1):
        if count % stages:
            continue
        size = count // stages
        means = [fmean(times[i * size : (i + 1) * size]) for i in range(stages)]
        between = size * sum((value - mean) ** 2 for value in means)
        if whole > 0 and between >= SHAPED * whole and max(means) > APART * min(means):
            return stages, means.index(max(means))
    return 0, 0


def _in_order(times: list[float]) -> bool:
    if len(times) < 4 or max(times) <= APART * min(times):
        return False
    mean, middle = fmean(times), (len(times) - 1) / 2
    across = sum((i - middle) * (value - mean) for i, value in enumerate(times))
    square = sum((i - middle) ** 2 for i in range(len(times))) * sum((value - mean) ** 2 for value in times)
    return across >= IN_ORDER * sqrt(square)


# --- as evidence ------------------------------------------------------------------------------------------------------


def data_of(report: Report) -> dict[str, Scalar]:
    """Flat, as evidence carries it; ``report_of`` reads it."""
    data: dict[str, Scalar] = {"ranks": report.ranks, "single": report.single, "pipeline": report.pipeline or None}
    for name, timer in report.timers.items():
        values: dict[str, Scalar] = {
            "low": round(timer.low_ms, 3), "high": round(timer.high_ms, 3), "mid": timer.mid_ms,
            "low_rank": timer.low_rank, "high_rank": timer.high_rank, "slow": _packed(timer.slow),
            "quick": _packed(timer.quick), "stages": timer.stages, "stage": timer.stage, "in_order": timer.in_order,
        }  # fmt: skip
        data.update(
            {
                f"{name}:{key}": value
                for key, value in values.items()
                if value is not None and value != "" and value is not False
            }
        )
    return data


def report_of(data: Mapping[str, Scalar]) -> Report:
    """The report that evidence carries; what is not of its form is left out."""
    timers = {}
    for name in [key[: -len(":low")] for key in data if key.endswith(":low")][:MOST]:
        low, high = _float(data.get(f"{name}:low")), _float(data.get(f"{name}:high"))
        if low is None or high is None or not 0 < low <= high:
            continue
        timers[name] = Timer(
            low, high, _float(data.get(f"{name}:mid")), _whole(data.get(f"{name}:low_rank")),
            _whole(data.get(f"{name}:high_rank")), _unpacked(data.get(f"{name}:slow")),
            _unpacked(data.get(f"{name}:quick")), _whole(data.get(f"{name}:stages")) or 0,
            _whole(data.get(f"{name}:stage")) or 0, data.get(f"{name}:in_order") is True,
        )  # fmt: skip
    pipeline = _whole(data.get("pipeline")) or 0
    return Report(timers, _whole(data.get("ranks")) or 0, _whole(data.get("single")), pipeline)


def _packed(ranks: Mapping[int, float]) -> str:
    return " ".join(f"{rank}={times:.3f}" for rank, times in ranks.items())


def _unpacked(value: Scalar) -> dict[int, float]:
    pairs = re.findall(r"\b(\d{1,6})=(\d{1,9}\.\d{3})", value[:256]) if isinstance(value, str) else []
    return {int(rank): float(times) for rank, times in pairs[:NAMED]}


def _float(value: Scalar) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(value: Scalar) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10_000_000 else None
