"""Reads the GPU probe's samples, turns changes into evidence, and keeps the faults that are present now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.agent.collectors.driver_check import DriverCheck
from sentinel.agent.collectors.gpu_activity import GpuActivityLog
from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.state_files import restore, save
from sentinel.agent.settings import AgentSettings
from sentinel.config.convictions import Convictions
from sentinel.errors import ProtocolError
from sentinel.evidence.counters import Ageing
from sentinel.evidence.dcgm import DcgmReader, Fact
from sentinel.evidence.gpu_samples import Sample, sample_from
from sentinel.log import Log
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id

log = Log()

FRESH_S = 15.0  # older telemetry does not describe the present state
NAME = "dcgm"
OPTIONAL = "traffic"  # the fields of DCGM's profiling module, which many nodes do not have


class GpuWatch:
    """Keeps the GPU probe running and reads its messages."""

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        keep: Callable[[Evidence], None],
        convictions: Convictions,
        boot: str = "",
    ) -> None:
        self.node = node
        self.last: Sample | None = None
        self.samples = 0
        self.activity = GpuActivityLog()
        self.on_change: Callable[[], None] = lambda: None  # called when the node's verdict may have changed
        self._settings = settings
        self._children = children
        self._program = program
        self._keep = keep
        self._state = Path(settings.state) / "dcgm.json"
        promised = settings.gpus if settings.gpus >= 0 else None
        kept = restore(self._state)
        self._reader = DcgmReader(node, convictions, promised, kept if isinstance(kept, dict) else None, boot)
        self._saved = self._reader.state
        self._driver = DriverCheck(node, settings, children, program, keep, convictions, boot)
        self._driver.on_change = self._driver_said
        self._ageing = Ageing(node, Source.DCGM, period_s=settings.dcgm.counters_s)
        self._lock = threading.Lock()
        self._heard_s: float | None = None
        self._reason = "no telemetry yet"
        self._said = ""
        self._missing: dict[str, str] = {}  # part → why

    def start(self) -> None:
        dcgm = self._settings.dcgm
        if dcgm.off:
            self._reason = "GPU telemetry is switched off"
            return
        arguments = {
            "bindings": dcgm.bindings or self._settings.dcgm_bindings,
            "host": dcgm.host,
            "socket": dcgm.socket,
            "account": dcgm.account,
            "closed_to_users": dcgm.closed_to_users,
            "dcgmi": dcgm.dcgmi,
            "nvml": dcgm.nvml,
            "connect_s": dcgm.connect_s,
            "interval_s": dcgm.interval_s,
            "health_s": dcgm.health_s,
            "profiling": dcgm.profiling,
        }
        self._children.start(
            self._program(
                NAME,
                "sentinel.agent.probes.dcgm",
                arguments,
                silent_s=dcgm.silent_s,
                restart=True,
                on_message=self.heard,
                on_end=self.ended,
            )
        )

    def heard(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "sample":
            try:
                sample = sample_from(message, datetime.now(UTC))
            except ProtocolError as error:
                self._unreadable(str(error))
                return
            with self._lock:
                news = not self._fresh()
                if news:
                    self._reader.sight.forget()
                blind = self._reader.sight.unread, self._reader.sight.trouble
                found = [*self._reader.read(sample), *self._ageing.gpus(sample)]
                doubted = self._reader.doubted
                self._heard_s = time.monotonic()
                news = news or blind != (self._reader.sight.unread, self._reader.sight.trouble)
                if sample.via == "dcgm":
                    self._said = ""  # the best source works again: its next failure is logged
                self.samples += 1
                if sample.full:
                    self._name_missing(message.get("missing"))
                    self.last = sample
                    self.activity.add(sample)
            for evidence in found:
                self._keep(evidence)
            if found or self._reader.state != self._saved:
                self._saved = self._reader.state
                save(self._state, self._saved)  # after the evidence: a crash in between only repeats it
                news = True
            if news:
                self.on_change()
            if sample.open_engine:
                self._driver.look(found, doubted)
        elif kind == "alive":
            return  # it is connecting, which may take a while
        else:
            self._unreadable(str(message.get("reason") or message.get("text") or message))

    def ended(self, ending: Ending) -> None:
        if ending.silent:
            self._say(
                Kind.PROBE_HUNG,
                f"GPU telemetry was silent for {self._settings.dcgm.silent_s:g} s and was killed"
                f" ({ending.where or 'state not known'})",
                {"probe": NAME},
            )
            self._reason = "GPU telemetry hangs"
        elif ending.status not in (0, None):
            self._unreadable((ending.stderr.strip().splitlines() or [f"status {ending.status}"])[-1])

    def _driver_said(self) -> None:
        self.on_change()

    def facts(self) -> list[Fact]:
        """Faults present now; empty when telemetry is too old to tell."""
        with self._lock:
            return self._judged()[0] if self._fresh() else []

    def placed(self, evidence: Evidence) -> Evidence:
        """Add the GPU's index and UUID, where they are known, to evidence that names a GPU by PCI address."""
        pci, sample = evidence.data.get("pci"), self.last
        if not isinstance(pci, str) or sample is None or evidence.where.gpu is not None:
            return evidence
        for gpu in sample.gpus:
            if gpu.pci and plain_pci(gpu.pci) == plain_pci(pci):
                return replace(evidence, where=replace(evidence.where, gpu=gpu.index, gpu_uuid=gpu.uuid))
        return evidence

    def activity_report(self) -> dict[str, object]:
        """For the probe of a job's processes: whether the node has GPUs, and their activity (None: not known)."""
        promised = self._settings.gpus
        there = promised > 0 or self.last is not None or (promised < 0 and Path("/dev/nvidiactl").exists())
        fresh = self.trouble() is None
        return {
            "has_gpus": there,
            "gpus": (self.activity.report(datetime.now(UTC)) or None) if there and fresh else None,
        }

    def trouble(self) -> str | None:
        """Why telemetry is not known; None when it is fresh, and tells something of a GPU."""
        with self._lock:
            if not self._fresh():
                return self._reason
            return (self._reader.sight.trouble and self._missing.get("fields")) or self._reader.sight.trouble or None

    def unproven(self) -> str | None:
        """Why the GPUs are not known to be well; None where nothing speaks against them, and they can be read."""
        if (trouble := self.trouble()) is not None:
            return trouble
        with self._lock:
            held, doubted = self._judged()
            unread = self._reader.sight.unread
        if held:  # it came after ``facts`` was asked
            return held[0].sentence
        if doubted:
            return f"not confirmed and not denied by the driver: {doubted[0].sentence}"
        return f"nothing can be read of {', '.join(unread)}" if unread else None

    def _judged(self) -> tuple[list[Fact], list[Fact]]:
        """Faults that hold, and those of which it is not known."""
        shown = self._reader.shown()
        return self._driver.judged(shown) if self._reader.is_open else (shown, [])

    def _name_missing(self, missing: object) -> None:
        """Report parts of telemetry that the source does not provide, each once until it is available again."""
        parts = {str(part): str(why) for part, why in missing.items()} if isinstance(missing, dict) else {}
        for part in sorted(parts.keys() - self._missing.keys()):
            if part == OPTIONAL:
                log.info("gpu-telemetry-part-missing", part=part, reason=parts[part])
            else:
                self._say(
                    Kind.UNREADABLE, f"GPU telemetry without {part}: {parts[part]}", {"source": "gpu", "part": part}
                )
        self._missing = parts

    def _fresh(self) -> bool:
        return self._heard_s is not None and time.monotonic() - self._heard_s <= FRESH_S

    def _unreadable(self, reason: str) -> None:
        self._reason = reason
        if reason != self._said:  # each problem is logged once
            self._said = reason
            self._say(Kind.UNREADABLE, f"GPU telemetry: {reason}", {"source": "gpu"})

    def _say(self, kind: Kind, text: str, data: dict[str, str]) -> None:
        now = datetime.now(UTC)
        log.warning("gpu-telemetry", kind=kind, text=text)
        self._keep(
            Evidence(
                id=stable_id("gpu-watch", self.node, kind, text, now.isoformat()),
                at=now,
                seen_at=now,
                source=Source.AGENT,
                kind=kind,
                where=Where(node=self.node),
                text=text,
                data=dict(data),
            )
        )


def plain_pci(address: str) -> str:
    """A PCI address in one form: the kernel writes 0000:3b:00, NVML 00000000:3B:00.0."""
    parts = address.lower().split(":")
    domain = parts[-3].lstrip("0") if len(parts) > 2 else ""
    return f"{domain or '0'}:{parts[-2] if len(parts) > 1 else ''}:{parts[-1].partition('.')[0]}"
