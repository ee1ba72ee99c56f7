"""Turns SMART values of local disks into evidence when a value gets worse. Pure.

A disk that says nothing is not known. Its own judgement counts (SMART status, NVMe's critical warnings), and sectors or
media errors that grow; wear is left to the trend (``sentinel.evidence.counters``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from sentinel.model.records import Evidence, Scalar, Source, Where, stable_id

# Bits of NVMe's critical warning. Temperature (2) is the cooling's fault rather than the disk's.
WARNINGS = {
    1: "its spare blocks are used up",
    4: "it is no longer reliable",
    8: "it is read-only",
    16: "its power backup failed",
}
GROWING = {
    "media_errors": "media errors",
    "uncorrectable": "uncorrectable sectors",
    "pending": "sectors that cannot be read",
    "reallocated": "reallocated sectors",
}
AGEING = ("media_errors", "percent_used", "reallocated", "pending", "uncorrectable")


class DiskReader:
    """Turns answers of one node's disks into evidence. The first value of a counter is a base, not a growth."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._said: dict[str, str] = {}  # what is said of each disk now
        self._counts: dict[tuple[str, str], int] = {}
        self._counters: dict[str, float] = {}

    @property
    def counters(self) -> dict[str, float]:
        """Counters of wear, for ``sentinel.evidence.counters``."""
        return dict(self._counters)

    def read(self, answer: Mapping[str, Any], at: datetime) -> list[Evidence]:
        disk = answer.get("disk")
        if not isinstance(disk, str) or "error" in answer:
            return []
        for name in AGEING:
            if isinstance(answer.get(name), int):
                self._counters[f"{disk}/{name}"] = float(answer[name])
        return [*self._failing(disk, answer, at), *self._grown(disk, answer, at)]

    def _failing(self, disk: str, answer: Mapping[str, Any], at: datetime) -> Iterator[Evidence]:
        words = []
        if answer.get("passed") is False:
            words.append("its own check failed")
        bits = answer.get("critical_warning")
        if isinstance(bits, int):
            words += [sentence for bit, sentence in WARNINGS.items() if bits & bit]
        if not words and answer.get("passed") is None and bits is None:
            return  # not known: what was said stays said
        text = "; ".join(words)
        if text == self._said.get(disk, ""):
            return
        self._said[disk] = text
        if text:
            data: dict[str, Scalar] = {"disk": disk, "critical_warning": bits, "passed": answer.get("passed")}
            yield self._evidence("disk_failing", disk, f"disk {disk}: {text}", data, at, text)

    def _grown(self, disk: str, answer: Mapping[str, Any], at: datetime) -> Iterator[Evidence]:
        for name, words in GROWING.items():
            value = answer.get(name)
            if not isinstance(value, int):
                continue
            before = self._counts.get((disk, name))
            self._counts[disk, name] = value
            if before is not None and value > before:
                data: dict[str, Scalar] = {"disk": disk, "counter": name, "before": before, "now": value}
                yield self._evidence(
                    "disk_errors", disk, f"disk {disk}: {words} {before} -> {value}", data, at, name, value
                )

    def _evidence(
        self, kind: str, disk: str, text: str, data: Mapping[str, Scalar], at: datetime, *identity: object
    ) -> Evidence:
        return Evidence(
            id=stable_id("disk", self.node, disk, kind, at.isoformat(), *identity),
            at=at,
            seen_at=at,
            source=Source.HOST,
            kind=kind,
            where=Where(node=self.node, path=f"/dev/{disk}"),
            text=text,
            data=dict(data),
        )
