"""What planning takes from a cluster's own history, and what it makes of it.

A ``FleetHistory`` is a plain record: how long how many GPUs worked, which failures interrupted that, and what saves,
restarts and repairs took. ``history_from`` reads it from a parsed JSON document, strictly:

    {
      "start": "2025-03-01T00:00:00Z", "end": "2025-04-24T00:00:00Z",
      "gpus": 16384,                      # at work on average; or "gpu_s", the exact exposure
      "gpus_per_node": 8,                 # optional, 8
      "failures": [
        {"time": "2025-03-01T05:10:00Z", "cause": "gpu_memory",
         "repaired_by": "local",          # optional: "local" or "global" tier; missing or null is not known
         "node_lost": true,               # optional: did a node leave for repair?
         "detection_s": 12, "restart_s": 310}                          # optional
      ],
      "saves": [{"tier": "global", "duration_s": 90, "bytes": 5.67e12, "blocking": true}],   # optional
      "repairs_s": [86400, 172800]        # optional: how long nodes were away
    }

What is missing is not known: it is never counted as zero, healthy or local.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from sentinel.planning.limits import PlanningError, not_negative, positive, whole
from sentinel.planning.poisson import gamma_below, mean_interval
from sentinel.planning.quantities import MOST_COUNT

TIERS = ("local", "global")


@dataclass(frozen=True)
class Failure:
    """One interruption. ``None`` means not known."""

    time: datetime
    cause: str
    repaired_by: str | None = None
    node_lost: bool | None = None
    detection_s: float | None = None
    restart_s: float | None = None


@dataclass(frozen=True)
class Save:
    """One completed save of one tier."""

    tier: str
    duration_s: float
    size_bytes: float | None = None
    blocking: bool | None = None


@dataclass(frozen=True)
class FleetHistory:
    """Exposure in GPU-seconds between ``start`` and ``end`` (aware), and what happened in it."""

    start: datetime
    end: datetime
    gpu_s: float
    failures: tuple[Failure, ...]
    saves: tuple[Save, ...] = ()
    repairs_s: tuple[float, ...] = ()
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        if self.start.tzinfo is None or self.end.tzinfo is None:
            raise PlanningError("history: start and end need a time zone")
        if self.end <= self.start:
            raise PlanningError("history: end is not after start")
        positive(self.gpu_s, "gpu_s")
        whole(self.gpus_per_node, "gpus_per_node")
        for failure in self.failures:
            if failure.time.tzinfo is None or not self.start <= failure.time <= self.end:
                raise PlanningError(f"history: a failure at {failure.time.isoformat()} lies outside start and end")

    @property
    def wall_s(self) -> float:
        return (self.end - self.start).total_seconds()

    @property
    def mean_gpus(self) -> float:
        return self.gpu_s / self.wall_s


@dataclass(frozen=True)
class MtbfEstimate:
    """MTBF of one job (or GPU) with its exact interval. No failure: ``mtbf_s`` and ``mtbf_high_s`` are not known."""

    failures: int
    confidence: float
    mtbf_s: float | None
    mtbf_low_s: float
    mtbf_high_s: float | None


def estimate_mtbf(failures: int, exposure_s: float, confidence: float = 0.95) -> MtbfEstimate:
    """Exposure over failures, with the interval of Garwood 1936 for the count (see ``poisson``)."""
    exposure = positive(exposure_s, "exposure")
    low, high = mean_interval(failures, confidence)
    return MtbfEstimate(
        failures=failures,
        confidence=confidence,
        mtbf_s=exposure / failures if failures else None,
        mtbf_low_s=exposure / high,
        mtbf_high_s=exposure / low if low > 0 else None,
    )


def job_mtbf(history: FleetHistory, gpus: int, confidence: float = 0.95) -> MtbfEstimate:
    """MTBF of a job on this many GPUs: the fleet's failures per GPU-second, scaled."""
    return estimate_mtbf(len(history.failures), history.gpu_s / whole(gpus, "gpus"), confidence)


def by_cause(history: FleetHistory) -> tuple[tuple[str, int], ...]:
    """Failures by cause, most frequent first."""
    counts: dict[str, int] = {}
    for failure in history.failures:
        counts[failure.cause] = counts.get(failure.cause, 0) + 1
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


@dataclass(frozen=True)
class Share:
    """A share of the failures of which something is known; ``fraction`` is ``None`` where nothing is."""

    fraction: float | None
    known: int
    unknown: int


def local_share(history: FleetHistory) -> Share:
    """Failures that the local tier repaired, among those for which the tier is known."""
    return _share([None if f.repaired_by is None else f.repaired_by == "local" for f in history.failures])


def node_loss_share(history: FleetHistory) -> Share:
    """Failures that took a node away, among those for which that is known."""
    return _share([f.node_lost for f in history.failures])


def _share(answers: Sequence[bool | None]) -> Share:
    known = [answer for answer in answers if answer is not None]
    return Share(sum(known) / len(known) if known else None, len(known), len(answers) - len(known))


def mean(values: Sequence[float | None]) -> float | None:
    """Mean of what is known; ``None`` where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def mean_save_s(history: FleetHistory, tier: str) -> float | None:
    """Mean duration of the saves that stopped the training; drains (``blocking`` false) do not cost that."""
    return mean([s.duration_s for s in history.saves if s.tier == tier and s.blocking is not False])


_SIGNIFICANCE = 0.01  # a constant rate looks clustered so often


def clustered(history: FleetHistory) -> float | None:
    """Dispersion of the failures over twenty equal parts of the time where it is too high for a Poisson process.

    The index of dispersion test (Fisher 1925): sum (x - m)^2 / m follows chi-square with 19 degrees of freedom.
    ``None``: nothing against a constant rate, or too few failures (under 40) to tell.
    """
    parts, total = 20, len(history.failures)
    if total < 2 * parts:
        return None
    counts = [0] * parts
    for failure in history.failures:
        at = (failure.time - history.start).total_seconds() / history.wall_s
        counts[min(parts - 1, int(at * parts))] += 1
    centre = total / parts
    statistic = sum((x - centre) ** 2 for x in counts) / centre
    excess = 1 - gamma_below((parts - 1) / 2, statistic / 2)
    return statistic / (parts - 1) if excess < _SIGNIFICANCE else None


# -- reading a document -------------------------------------------------------------------------------------------


class HistoryError(PlanningError):
    """Bad content of a history document; ``key`` says where."""

    def __init__(self, key: str, message: str, *, fix: str = "") -> None:
        super().__init__(message, fix=fix)
        self.key = key


def history_from(document: object) -> FleetHistory:
    """A ``FleetHistory`` from a parsed JSON document. Unknown keys and wrong types are refused by name."""
    top = _object(document, "", {"start", "end", "gpus", "gpu_s", "gpus_per_node", "failures", "saves", "repairs_s"})
    start, end = _time(top, "start", ""), _time(top, "end", "")
    if end <= start:
        raise HistoryError("end", "is not after start")
    if ("gpus" in top) == ("gpu_s" in top):
        raise HistoryError(
            "gpus", "exactly one of gpus and gpu_s must be given", fix="gpus is the mean number at work."
        )
    key = "gpu_s" if "gpu_s" in top else "gpus"
    exposure = _number(top, key, "", positive)
    assert exposure is not None
    if key == "gpus":
        exposure *= (end - start).total_seconds()
    if "failures" not in top:
        raise HistoryError("failures", "is missing", fix="Write an empty list if nothing failed.")
    failures = tuple(_failure(item, f"failures[{i}]", start, end) for i, item in enumerate(_list(top, "failures")))
    saves = tuple(_save(item, f"saves[{i}]") for i, item in enumerate(_list(top, "saves")))
    repairs = tuple(_checked(item, f"repairs_s[{i}]", not_negative) for i, item in enumerate(_list(top, "repairs_s")))
    per_node = top.get("gpus_per_node", 8)
    if not isinstance(per_node, int) or isinstance(per_node, bool) or not 1 <= per_node <= 1024:
        raise HistoryError("gpus_per_node", f"{per_node!r} is not a whole number from 1 to 1024")
    return FleetHistory(start, end, exposure, failures, saves, repairs, per_node)


def _failure(item: object, where: str, start: datetime, end: datetime) -> Failure:
    row = _object(item, where, {"time", "cause", "repaired_by", "node_lost", "detection_s", "restart_s"})
    time = _time(row, "time", where)
    if not start <= time <= end:
        raise HistoryError(f"{where}.time", "lies outside start and end")
    cause = row.get("cause")
    if not isinstance(cause, str) or not cause.strip() or len(cause) > 200:
        raise HistoryError(f"{where}.cause", "must be a text", fix='Write "unknown" where the cause is not known.')
    tier = row.get("repaired_by")
    if tier is not None and tier not in TIERS:
        raise HistoryError(f"{where}.repaired_by", f"{tier!r} is neither local, global nor null")
    return Failure(
        time,
        cause,
        str(tier) if tier is not None else None,
        _boolean(row, "node_lost", where),
        _number(row, "detection_s", where, not_negative),
        _number(row, "restart_s", where, not_negative),
    )


def _save(item: object, where: str) -> Save:
    row = _object(item, where, {"tier", "duration_s", "bytes", "blocking"})
    if row.get("tier") not in TIERS:
        raise HistoryError(f"{where}.tier", f"{row.get('tier')!r} is neither local nor global")
    took = _number(row, "duration_s", where, positive)
    if took is None:
        raise HistoryError(f"{where}.duration_s", "is missing")
    return Save(str(row["tier"]), took, _number(row, "bytes", where, positive), _boolean(row, "blocking", where))


def _object(value: object, where: str, keys: set[str]) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise HistoryError(where, "is not an object")
    for key in value:
        if key not in keys:
            raise HistoryError(where, f"key {key!r:.60} is not known", fix=f"Known: {', '.join(sorted(keys))}.")
    return value


def _list(row: Mapping[str, object], key: str) -> list[object]:
    value = row.get(key, [])
    if not isinstance(value, list):
        raise HistoryError(key, "is not a list")
    return value


def _time(row: Mapping[str, object], key: str, where: str) -> datetime:
    name = f"{where}.{key}" if where else key
    value = row.get(key)
    if not isinstance(value, str):
        raise HistoryError(name, "is missing" if value is None else "is not a text", fix="2025-03-01T00:00:00Z")
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        raise HistoryError(name, f"{value[:40]!r} is not an ISO 8601 time", fix="2025-03-01T00:00:00Z") from None
    if parsed.tzinfo is None:
        raise HistoryError(name, f"{value[:40]!r} has no time zone", fix="Add Z for UTC.")
    return parsed.astimezone(UTC)


def _number(row: Mapping[str, object], key: str, where: str, check: Callable[[float, str], float]) -> float | None:
    name = f"{where}.{key}" if where else key
    return None if row.get(key) is None else _checked(row[key], name, check)


def _checked(value: object, name: str, check: Callable[[float, str], float]) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise HistoryError(name, f"{value!r:.40} is not a number")
    try:
        number = check(value, name)
    except PlanningError as error:
        raise HistoryError(name, error.message.removeprefix(f"{name} ")) from None
    if number > MOST_COUNT:
        raise HistoryError(name, f"{number:g} is beyond anything real")
    return number


def _boolean(row: Mapping[str, object], key: str, where: str) -> bool | None:
    value = row.get(key)
    if value is not None and not isinstance(value, bool):
        raise HistoryError(f"{where}.{key}", f"{value!r:.40} is neither true, false nor null")
    return value
