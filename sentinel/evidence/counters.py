"""Counters that age with their part → evidence of kind ``counters``, often enough for a trend over weeks. Pure.

One evidence for the whole node: ``data`` maps "unit/name" to a value, e.g. ``{"gpu3/row_remap_correctable": 2}``. Units are
"gpuN" (N as Slurm counts), a port ("mlx5_0:1") or a disk ("nvme0"). A reading that is not known is absent. Nothing is judged
here, and the kind opens no incident: one value says little, its growth over days does.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sentinel.evidence.gpu_samples import (
    DBE_AGGREGATE,
    NVLINK_CRC_DATA,
    NVLINK_CRC_FLIT,
    NVLINK_RECOVERY,
    NVLINK_REPLAY,
    PCIE_AER_CORRECTABLE,
    PCIE_REPLAY,
    REMAP_CORRECTABLE,
    REMAP_UNCORRECTABLE,
    SBE_AGGREGATE,
    Sample,
)
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id

# Field → name. ECC counts are those over the board's life; the others begin again when the driver is loaded.
NAMES = {
    SBE_AGGREGATE: "ecc_corrected",
    DBE_AGGREGATE: "ecc_uncorrected",
    REMAP_CORRECTABLE: "row_remap_correctable",
    REMAP_UNCORRECTABLE: "row_remap_uncorrectable",
    PCIE_REPLAY: "pcie_replay",
    PCIE_AER_CORRECTABLE: "pcie_correctable",
    NVLINK_CRC_FLIT: "nvlink_crc_flit",
    NVLINK_CRC_DATA: "nvlink_crc_data",
    NVLINK_REPLAY: "nvlink_replay",
    NVLINK_RECOVERY: "nvlink_recovery",
}


class Ageing:
    """Reports the counters of one source every ``period_s``, and sooner after a change.

    Args:
        source: who reads them; several of one node may each have their own.
        period_s: also said unchanged after this long, so that a trend knows that nothing grew.
        change_s: a change is said this long after the last word at the earliest.
    """

    def __init__(
        self, node: str, source: Source, *, period_s: float = 6 * 3600.0, change_s: float = 900.0, of: str = ""
    ) -> None:
        self.node = node
        self._source = source
        self._of = of
        self._period_s = period_s
        self._change_s = change_s
        self._said: dict[str, float] = {}
        self._said_at: datetime | None = None

    def gpus(self, sample: Sample) -> list[Evidence]:
        """Of a full sample of the GPUs. One comes every second: the values are looked at when a change may be said."""
        if not sample.full or not self._due(sample.at, self._change_s):
            return []
        values = {
            f"gpu{gpu.index}/{name}": float(value)
            for gpu in sample.gpus
            for number, name in NAMES.items()
            if isinstance(value := gpu.fields.get(number), (int, float)) and not isinstance(value, bool)
        }
        return self.read(values, sample.at)

    def _due(self, at: datetime, after_s: float) -> bool:
        """Whether a report is due, or the clock was set back."""
        return self._said_at is None or not 0 <= (at - self._said_at).total_seconds() < after_s

    def read(self, values: Mapping[str, float], at: datetime) -> list[Evidence]:
        """Evidence when it is time; ``values`` by "unit/name"."""
        if not values:
            return []
        changed = any(self._said.get(key) != value for key, value in values.items())
        if not self._due(at, self._change_s if changed else self._period_s):
            return []
        self._said, self._said_at = dict(values), at
        grown = ", ".join(f"{key} {value:g}" for key, value in sorted(values.items()) if value)
        return [
            Evidence(
                id=stable_id("counters", self.node, self._source, self._of, at.isoformat()),
                at=at,
                seen_at=at,
                source=self._source,
                kind=Kind.COUNTERS,
                where=Where(node=self.node),
                text=f"counters: {grown or 'all zero'}"[:1000],
                data=dict(values),
            )
        ]
