"""What the GPUs of this node do now against what they did while the job made steps: utilisation and power."""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Mapping
from datetime import datetime, timedelta

from sentinel.evidence.gpu_samples import GPU_UTILISATION, POWER_W, Gpu, Sample

_KEPT = 300  # samples of one GPU, one a second
_NOW_S = 4.0  # "now" is the mean over this long
_GONE_S = 60.0
_LEAST = 60  # samples from which a usual power is taken


class GpuActivity:
    """Keeps power and utilisation of the last minutes. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, deque[tuple[datetime, float | None, float | None]]] = {}
        self._index: dict[str, int] = {}

    def add(self, sample: Sample) -> None:
        if not sample.full:
            return
        with self._lock:
            for gpu in sample.gpus:
                kept = self._seen.setdefault(gpu.key, deque(maxlen=_KEPT))
                kept.append((sample.at, _number(gpu, GPU_UTILISATION), _number(gpu, POWER_W)))
                self._index[gpu.key] = gpu.index

    def now(self, now: datetime) -> list[Mapping[str, object]]:
        """Each GPU over the last seconds, and its usual power: the median of the upper half of what is remembered.

        The upper half, since a job waits now and then (saves, evaluations on one rank), and is silent when we are asked.
        """
        with self._lock:
            seen = {key: list(kept) for key, kept in self._seen.items()}
        made: list[Mapping[str, object]] = []
        for key, samples in sorted(seen.items(), key=lambda pair: self._index[pair[0]]):
            late = [item for item in samples if now - item[0] <= timedelta(seconds=_NOW_S)]
            if not late and samples and now - samples[-1][0] > timedelta(seconds=_GONE_S):
                continue  # a GPU that is not there any more
            power = sorted(watts for _, _, watts in samples if watts is not None)
            usual = statistics.median(power[len(power) // 2 :]) if len(power) >= _LEAST else None
            made.append(
                {
                    "index": self._index[key],
                    "utilisation": _mean([used / 100.0 for _, used, _ in late if used is not None]),
                    "power_w": _mean([watts for _, _, watts in late if watts is not None]),
                    "usual_w": usual,
                }
            )
        return made


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _number(gpu: Gpu, field: int) -> float | None:
    value = gpu.fields.get(field)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
