"""Compares each GPU's present activity with its usual activity, and measures for how long it has been idle.

Samples are kept on the node; the daemon gets a few numbers per GPU when it asks.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sentinel.detect.activity import WAITING_WORDS, GpuActivity
from sentinel.evidence.gpu_samples import (
    DRAM_ACTIVE,
    GPU_UTILISATION,
    NVLINK_RX,
    NVLINK_TX,
    PCIE_RX,
    PCIE_TX,
    POWER_W,
    TENSOR_ACTIVE,
    Gpu,
    Sample,
)

_KEPT_SAMPLES = 300  # samples of one GPU, one a second
_NOW_S = 4.0  # "now" is the mean over this long
_GONE_S = 60.0
_LEAST_SAMPLES = 60  # samples needed before a usual power is known
_USUAL_EVERY = 30  # the usual values are computed again after this many samples
_LEAST_BYTES_PER_S = 1e8  # a quiet NVLink proves nothing if it usually carries less
_GAP_S = 5.0  # a longer gap between samples: the activity in it is not known
_MOST_PERIODS = 24
_NEWEST = 6  # this many idle periods are kept whatever their length
_PERIODS_KEPT_FOR = timedelta(days=1)
_LEAST_PERIOD_S = 4.0  # shorter idle periods need not be kept


@dataclass(frozen=True, slots=True)
class _Second:
    at: datetime
    utilisation: float | None
    power_w: float | None
    active: float | None  # of tensor cores and memory, the larger share
    nvlink: float | None  # bytes a second
    pcie: float | None


@dataclass(slots=True)
class _GpuHistory:
    """What is known of one GPU."""

    index: int
    samples: deque[_Second] = field(default_factory=lambda: deque(maxlen=_KEPT_SAMPLES))
    samples_since_usual: int = _USUAL_EVERY
    usual_w: float | None = None
    usual_nvlink: float | None = None
    usual_pcie: float | None = None
    idle_since: datetime | None = None
    known_until: datetime | None = None  # time of the newest sample that shows whether it is busy
    idle_periods: list[tuple[datetime, float]] = field(default_factory=list)

    def add(self, second: _Second) -> None:
        if self.samples and second.at < self.samples[-1].at:  # the clock was set back: durations are not known
            self.samples.clear()
            self.idle_periods.clear()
            self.idle_since = self.known_until = None
        self.samples.append(second)
        self.samples_since_usual += 1
        if self.samples_since_usual >= _USUAL_EVERY:
            self.samples_since_usual = 0
            self.usual_w = _usual(item.power_w for item in self.samples)
            self.usual_nvlink = _usual(item.nvlink for item in self.samples)
            self.usual_pcie = _usual(item.pcie for item in self.samples)
        word = self.activity([second]).word
        if self.known_until is not None and (second.at - self.known_until).total_seconds() > _GAP_S:
            self.idle_since = None
        if word == "unclear":
            self.idle_since = None
            return
        if word in WAITING_WORDS:
            self.idle_since = self.idle_since or second.at
        elif self.idle_since is not None:
            length_s = (second.at - self.idle_since).total_seconds()
            if length_s >= _LEAST_PERIOD_S:
                self._remember(self.idle_since, length_s)
            self.idle_since = None
        self.known_until = second.at

    def _remember(self, since: datetime, length_s: float) -> None:
        """Keep the newest idle periods and the longest of the last day: short ones must not displace long ones."""
        self.idle_periods = [item for item in self.idle_periods if since - item[0] < _PERIODS_KEPT_FOR]
        self.idle_periods.append((since, length_s))
        if len(self.idle_periods) > _MOST_PERIODS:
            self.idle_periods.remove(min(self.idle_periods[:-_NEWEST], key=lambda item: item[1]))

    def activity(self, recent: list[_Second]) -> GpuActivity:
        """The mean activity over these samples, without idle times."""
        active = _mean(item.active for item in recent)
        links = [
            share
            for share in (
                _share(_mean(item.nvlink for item in recent), self.usual_nvlink),
                _share(_mean(item.pcie for item in recent), self.usual_pcie),
            )
            if share is not None
        ]
        # A quiet NVLink alone does not prove that a GPU is idle: a step computes for a while without communication.
        return GpuActivity(
            index=self.index,
            utilisation=_mean(item.utilisation for item in recent),
            power_w=_mean(item.power_w for item in recent),
            usual_w=self.usual_w,
            traffic=max([active, *links]) if active is not None else None,
        )


class GpuActivityLog:
    """Keeps the samples of the last minutes of each GPU. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gpus: dict[str, _GpuHistory] = {}

    def add(self, sample: Sample) -> None:
        if not sample.full:
            return
        with self._lock:
            for gpu in sample.gpus:
                history = self._gpus.setdefault(gpu.key, _GpuHistory(gpu.index))
                history.index = gpu.index
                history.add(_second(sample.at, gpu))

    def report(self, now: datetime) -> list[Mapping[str, object]]:
        """For each GPU: activity over the last seconds, usual activity, and present and earlier idle periods."""
        with self._lock:
            gpus = sorted(self._gpus.values(), key=lambda item: item.index)
            return [report for item in gpus if (report := _report_of(item, now)) is not None]


def _report_of(gpu: _GpuHistory, now: datetime) -> Mapping[str, object] | None:
    recent = [item for item in gpu.samples if now - item.at <= timedelta(seconds=_NOW_S)]
    if not recent and gpu.samples and now - gpu.samples[-1].at > timedelta(seconds=_GONE_S):
        return None  # the GPU is gone
    made = gpu.activity(recent)
    still_s: float | None = None
    if gpu.known_until is not None and (now - gpu.known_until).total_seconds() <= _GAP_S:
        still_s = (now - gpu.idle_since).total_seconds() if gpu.idle_since is not None else 0.0
    return {
        "index": made.index,
        "utilisation": made.utilisation,
        "power_w": made.power_w,
        "usual_w": made.usual_w,
        "traffic": round(made.traffic, 4) if made.traffic is not None else None,
        "still_s": round(still_s, 1) if still_s is not None else None,
        "stood": [
            [round((now - began).total_seconds(), 1), round(length_s, 1)] for began, length_s in gpu.idle_periods
        ],
    }


def _second(at: datetime, gpu: Gpu) -> _Second:
    used = gpu.number(GPU_UTILISATION)
    activities = [value for value in (gpu.number(TENSOR_ACTIVE), gpu.number(DRAM_ACTIVE)) if value is not None]
    return _Second(
        at=at,
        utilisation=used / 100.0 if used is not None else None,
        power_w=gpu.number(POWER_W),
        active=max(activities) if len(activities) == 2 else None,  # one alone may be idle while the other is busy
        nvlink=_sum(gpu.number(NVLINK_TX), gpu.number(NVLINK_RX)),
        pcie=_sum(gpu.number(PCIE_TX), gpu.number(PCIE_RX)),
    )


def _usual(values: Iterable[float | None]) -> float | None:
    """The median of the upper half, since a job is idle at times (saves, evaluation on one rank, a suspected hang)."""
    known = sorted(value for value in values if value is not None)
    return statistics.median(known[len(known) // 2 :]) if len(known) >= _LEAST_SAMPLES else None


def _share(now: float | None, usual: float | None) -> float | None:
    return now / usual if now is not None and usual is not None and usual >= _LEAST_BYTES_PER_S else None


def _sum(sent: float | None, received: float | None) -> float | None:
    return sent + received if sent is not None and received is not None else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None  # a tenth of the time of statistics.fmean
