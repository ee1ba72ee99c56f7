"""Turns samples of DCGM (or NVML) into evidence when a condition appears or changes. Pure.

A condition becomes evidence once, when it appears; that it is known is part of ``DcgmReader.state``, so that a restart
of the agent does not say it again. Blank is *not known* and never an edge by itself; only when everything is blank on
every GPU does that say something: DCGM has stopped asking the driver, as it does after a fatal Xid.

What a host engine says in which every user of the node may write is marked (``OPEN_ENGINE``), and is no fact for a prolog.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sentinel.config.convictions import Convictions, Drain
from sentinel.evidence.dcgm_conditions import CONDITIONS, COUNTERS, FLAGS, KINDS, SENTENCES
from sentinel.evidence.gpu_samples import (
    ACTIONS,
    CLOCK_REASONS,
    DETACHED,
    HARD_SLOWDOWN,
    INACCESSIBLE,
    LOST,
    PCIE_WIDTH,
    PCIE_WIDTH_MAX,
    PERSISTENCE,
    RECOVERY_ACTION,
    TEMPERATURE,
    TEMPERATURE_SLOWDOWN,
    Gpu,
    HealthIncident,
    Sample,
)
from sentinel.evidence.gpu_sight import Sight
from sentinel.evidence.xid_cursor import LastXids, XidCursor
from sentinel.model.records import Evidence, Kind, Scalar, Source, Where, stable_id, utc
from sentinel.model.vocabulary import OPEN_ENGINE

SLOWDOWN_SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Fact:
    """A fault that is present now, for the node's verdict."""

    code: str
    sentence: str
    about: str = ""  # which condition of which GPU: alike whoever shows it


class DcgmReader:
    """Turns samples of one node into evidence.

    Args:
        node: its name in Slurm.
        convictions: which conditions convict a node while they hold.
        promised: GPUs that Slurm's gres promises; None when that is not known.
        state: what an earlier reader's ``state`` was, so that nothing is said twice.
        boot: of the node. What was lost before it was rebooted is lost only if it is seen so again.

    Attributes:
        is_open: the last sample was of a host engine in which any user of the node may write.
        sight: which GPUs can be read.
    """

    def __init__(
        self,
        node: str,
        convictions: Convictions,
        promised: int | None = None,
        state: Mapping[str, Any] | None = None,
        boot: str = "",
    ) -> None:
        self.node = node
        self._convictions = convictions
        self.promised = promised
        self.sight = Sight(promised)
        state = state or {}
        self._cursors = {key: XidCursor(value) for key, value in state.get("xids", {}).items()}
        self._last_xids = LastXids(state.get("last_xids") if state.get("boot", "") == boot else None)
        # condition -> (its value, when it appeared)
        self._edges: dict[str, tuple[Scalar, str]] = {
            key: (value[0], str(value[1])) for key, value in state.get("edges", {}).items()
        }
        self._counters: dict[str, dict[int, tuple[float, float]]] = {}  # GPU → field → value, since when
        self._judged: dict[str, tuple[object, ...]] = {}  # GPU → the readings of the last sample that decide conditions
        # By UUID; DCGM does not always name one that is lost.
        self._known: dict[str, Gpu] = {
            str(uuid): Gpu(int(number), str(uuid), pci, minor)
            for uuid, (number, pci, minor) in state.get("gpus", {}).items()
        }
        self._boot = boot
        if state.get("boot", "") != boot:
            self._known = {}
            self._edges = {key: edge for key, edge in self._edges.items() if not key.startswith("gpu_lost/")}
        self._denied: set[str] = set()  # conditions that the last readings say are not there
        self._slow: dict[str, int] = {}
        self.is_open = state.get("open") is True

    @property
    def state(self) -> dict[str, Any]:
        """JSON to hand to the next reader."""
        return {
            "xids": {key: cursor.state for key, cursor in self._cursors.items()},
            "last_xids": dict(self._last_xids.state),
            "edges": {key: [value, at] for key, (value, at) in self._edges.items()},
            "gpus": {uuid: [gpu.id, gpu.pci, gpu.minor] for uuid, gpu in self._known.items()},
            "boot": self._boot,
            "open": self.is_open,
        }

    @property
    def doubted(self) -> bool:
        """Whether a fault for which a prolog may refuse jobs is shown by an engine in which any user may write."""
        return self.is_open and bool(self.shown())

    def facts(self) -> list[Fact]:
        """Faults present now for which a prolog may refuse jobs."""
        return [] if self.is_open else self.shown()

    def denies(self, fact: Fact) -> bool:
        """Whether the readings say that this fault is not there; False where they do not tell."""
        return fact.about in self._denied

    def _row(self, key: str) -> Drain:
        name = key.partition("/")[0]
        if name == "recovery_action":
            return self._convictions.action(self._edges[key][0])
        return self._convictions.condition(KINDS.get(name, name))

    def shown(self) -> list[Fact]:
        """Faults that would have a prolog refuse jobs, whether the engine that shows them is believed or not."""
        made = []
        for key, (value, _) in self._edges.items():
            name, _, unit = key.partition("/")
            if self._row(key) is Drain.YES:
                shown = f" ({value})" if value not in (True, None) else ""
                made.append(Fact(name, f"{SENTENCES.get(name, name.replace('_', ' '))}{shown}: {unit}", key))
        return made

    def read(self, sample: Sample) -> list[Evidence]:
        sample = replace(sample, gpus=self._identified(sample.gpus))
        if self.is_open and not sample.open_engine:  # what nobody had to believe is said again by who is believed
            self._edges = {key: edge for key, edge in self._edges.items() if not self._row(key).convicts}
            self._judged = {}
        self.is_open = sample.open_engine
        self._forget_replaced(sample.gpus)
        found = list(self._events(sample))
        before, self._judged = self._judged, {}  # one that is not listed is judged anew when it is back
        for gpu in sample.gpus:
            readings = self._judged[gpu.key] = (gpu.status, sample.full, *map(gpu.fields.get, CONDITIONS))
            if readings != before.get(gpu.key) or self._slow.get(gpu.key):  # the same ones say nothing new
                found.extend(self._status(gpu, sample))
                if gpu.status != LOST:
                    found.extend(self._conditions(gpu, sample))
            if gpu.status != LOST:
                found.extend(self._growth(gpu, sample))
        if sample.full:
            found.extend(self._count(sample))
            found.extend(self._blindness(sample))
        if sample.health is not None:
            found.extend(self._health(sample, sample.health))
        return found

    # ------------------------------------------------------------------------------------------------ the parts

    def _identified(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """The GPUs with the identity that they had when they worked, and what was said of a number said of its UUID."""
        listed = {gpu.uuid for gpu in gpus}
        before = {gpu.id: gpu for uuid, gpu in self._known.items() if uuid not in listed}
        made = []
        for seen in gpus:
            gpu = seen
            if gpu.uuid is None and (known := before.get(gpu.id)) is not None:
                minor = known.minor if gpu.minor is None else gpu.minor
                gpu = replace(gpu, uuid=known.uuid, pci=gpu.pci or known.pci, minor=minor)
            if gpu.uuid is not None:
                self._known[gpu.uuid] = Gpu(gpu.id, gpu.uuid, gpu.pci, self._minor(gpu))
                for key in [key for key in self._edges if key.endswith(f"/gpu{gpu.id}")]:
                    self._edges[f"{key.partition('/')[0]}/{gpu.uuid}"] = self._edges.pop(key)
            made.append(gpu)
        return tuple(made)

    def _forget_replaced(self, gpus: tuple[Gpu, ...]) -> None:
        """Drop conditions of GPUs that were not seen since the node was booted; one that was lost since then is kept.

        Where nothing is listed, or a GPU without its name, it is not known who is there.
        """
        if gpus and all(gpu.uuid for gpu in gpus):
            gone = {key for key in self._edges if key.partition("/")[2] not in ("", *self._known)}
            self._edges = {
                key: edge for key, edge in self._edges.items() if key not in gone or key.startswith("gpu_lost/")
            }

    def _by_id(self, sample: Sample) -> dict[int, Gpu]:
        """The GPU with DCGM's number; if it is no longer listed, as it was last known."""
        return {**{gpu.id: gpu for gpu in self._known.values()}, **{gpu.id: gpu for gpu in sample.gpus}}

    def _minor(self, gpu: Gpu) -> int | None:
        known = self._known.get(gpu.uuid or "")
        return gpu.minor if gpu.minor is not None or known is None else known.minor

    def _events(self, sample: Sample) -> Iterator[Evidence]:
        by_id, now_us = self._by_id(sample), int(sample.at.timestamp() * 1e6)
        last = {} if sample.last_xids is None else {gpu.key: sample.last_xids.get(gpu.id, 0) for gpu in sample.gpus}
        changed = self._last_xids.changed(last)
        since = [(gpu.id, changed[gpu.key], now_us) for gpu in sample.gpus if gpu.key in changed]
        for gpu_id, xid, at_us in sorted((*sample.events, *since), key=lambda event: event[2]):
            gpu = by_id.get(gpu_id) or Gpu(gpu_id)
            self._last_xids.told(gpu.key, xid)
            cursor = self._cursors.setdefault(gpu.key, XidCursor())
            if not cursor.is_new(xid, at_us, sample.at.timestamp()):
                continue
            if xid <= 0:
                continue  # an injected 0 is no fault
            teller = "NVML" if sample.via == "nvml" else "DCGM"
            yield self._evidence(
                sample, Kind.XID, gpu, f"{teller}: Xid {xid} on GPU {gpu.index} ({gpu.pci or 'PCI address not known'})",
                {"xid": xid, "pci": gpu.pci}, at=utc(at_us / 1e6), identity=("xid", at_us, xid),
            )  # fmt: skip

    def _status(self, gpu: Gpu, sample: Sample) -> Iterator[Evidence]:
        lost = None if gpu.status is None or gpu.status == 0 else gpu.status == LOST
        yield from self._edge(
            sample, "gpu_lost", lost, gpu, Kind.GPU_LOST, "the driver lost this GPU (status 4)", {"status": gpu.status}
        )
        away = None if gpu.status is None or gpu.status == 0 else gpu.status in (DETACHED, INACCESSIBLE)
        yield from self._edge(
            sample, "gpu_away", away, gpu, Kind.UNREADABLE, f"DCGM cannot use this GPU (status {gpu.status})",
            {"status": gpu.status},
        )  # fmt: skip

    def _conditions(self, gpu: Gpu, sample: Sample) -> Iterator[Evidence]:
        action = gpu.number(RECOVERY_ACTION)
        code = None if action is None else int(action)
        yield from self._edge(
            sample, "recovery_action", None if code is None else (code if code else False), gpu, Kind.RECOVERY_ACTION,
            f"the driver asks for: {ACTIONS.get(code or 0, f'action {code}')}", {"action": code},
        )  # fmt: skip
        for name, number, sentence in FLAGS:
            value = gpu.number(number)
            yield from self._edge(
                sample, name, None if value is None else value > 0, gpu, name, sentence, {"field": number}
            )
        if not sample.full:
            return
        width, widest = gpu.number(PCIE_WIDTH), gpu.number(PCIE_WIDTH_MAX)
        narrow = None if width is None or not widest else width < widest
        yield from self._edge(
            sample, "pcie_width", narrow, gpu, "pcie_width", f"PCIe link width {width:g} of {widest:g}" if narrow else "",
            {"width": width, "maximum": widest},
        )  # fmt: skip
        heat, limit = gpu.number(TEMPERATURE), gpu.number(TEMPERATURE_SLOWDOWN)
        hot = None if heat is None or not limit else heat >= limit
        yield from self._edge(
            sample, "gpu_thermal", hot, gpu, "gpu_thermal", f"{heat:g} °C, slowdown at {limit:g} °C" if hot else "",
            {"temperature": heat, "limit": limit},
        )  # fmt: skip
        persistence = gpu.number(PERSISTENCE)
        yield from self._edge(
            sample, "persistence_off", None if persistence is None else persistence == 0, gpu, "persistence_off",
            "persistence mode is off: the driver is unloaded between jobs, and counters begin again", {},
        )  # fmt: skip
        reasons = gpu.number(CLOCK_REASONS)
        if reasons is not None:
            count = self._slow[gpu.key] = self._slow.get(gpu.key, 0) + 1 if int(reasons) & HARD_SLOWDOWN else 0
            slow = int(reasons) & HARD_SLOWDOWN if count >= SLOWDOWN_SAMPLES else False
            yield from self._edge(
                sample, "clocks_slowdown", bool(slow), gpu, "clocks_slowdown",
                f"hardware slows the clocks, reasons {int(reasons):#x}", {"reasons": int(reasons)},
            )  # fmt: skip

    def _growth(self, gpu: Gpu, sample: Sample) -> Iterator[Evidence]:
        """Counters that grew. The first reading is the baseline; a counter that fell was reset."""
        now_s = sample.at.timestamp()
        counters = self._counters.setdefault(gpu.key, {})
        for number, name, per_s, sentence in COUNTERS:
            value = gpu.number(number)
            if value is None:
                continue
            before, since_s = counters.get(number, (value, now_s))
            grown = value - before
            if now_s < since_s:  # the clock was set back: how fast it grew is not known
                counters[number] = (value, now_s)
                continue
            if grown < 0 or per_s == 0 or now_s - since_s >= 60 or number not in counters:
                counters[number] = (value, now_s)
            if grown <= 0:
                continue
            elapsed_s = max(now_s - since_s, 1.0)
            if per_s == 0 or grown / max(elapsed_s, 60.0 if per_s < 1 else 1.0) > per_s:
                counters[number] = (value, now_s)
                yield self._evidence(
                    sample, name, gpu, f"{sentence}: {before:g} -> {value:g}",
                    {"field": number, "before": before, "now": value, "elapsed_s": round(now_s - since_s, 3)},
                    identity=(name, number, value, now_s),
                )  # fmt: skip

    def _count(self, sample: Sample) -> Iterator[Evidence]:
        if not sample.gpus and sample.via in ("dcgm", "dcgmi"):
            return  # an engine that knew GPUs lists them as lost; one that lists none was started without the driver
        lost = [gpu for gpu in sample.gpus if gpu.status == LOST]
        present = len(sample.gpus) - len(lost)
        here = {gpu.uuid for gpu in sample.gpus if gpu.uuid}
        gone = [gpu for uuid, gpu in self._known.items() if uuid not in here] if here or not sample.gpus else []
        for gpu in gone:  # the same condition as that of one that is listed as lost: said once
            yield from self._edge(
                sample, "gpu_lost", True, gpu, Kind.GPU_LOST, "this GPU was there and is not any more",
                {"promised": self.promised, "found": present},
            )  # fmt: skip
        if self.promised is None:  # any more, perhaps
            self._edges = {key: edge for key, edge in self._edges.items() if key not in ("gpu_count/", "gpu_surplus/")}
            return
        few = present < self.promised
        unnamed = present + len(lost) + len(gone) < self.promised  # not explained by those that were named above
        yield from self._edge(
            sample, "gpu_count", present if few and unnamed else False, None, Kind.GPU_LOST,
            f"{present} GPUs found, {self.promised} promised to Slurm", {"promised": self.promised, "found": present},
        )  # fmt: skip
        yield from self._edge(
            sample, "gpu_surplus", present if present > self.promised else False, None, "gpu_count_mismatch",
            f"{present} GPUs found, only {self.promised} promised to Slurm: correct gres",
            {"promised": self.promised, "found": present},
        )  # fmt: skip

    def _blindness(self, sample: Sample) -> Iterator[Evidence]:
        self.sight.look(sample)
        yield from self._edge(
            sample, "all_blank", self.sight.all_blank, None, "dcgm_all_blank",
            "every field of every GPU is blank: DCGM has stopped asking the driver, as after a fatal Xid", {},
        )  # fmt: skip
        for gpu in sample.gpus:
            yield from self._edge(
                sample, "gpu_unread", self.sight.is_mute(gpu), gpu, Kind.UNREADABLE,
                "nothing can be read of this GPU", {"status": gpu.status},
            )  # fmt: skip
        yield from self._edge(
            sample, "none_read", self.sight.silent, None, Kind.UNREADABLE, self.sight.trouble, {"source": "gpu"}
        )

    def _health(self, sample: Sample, incidents: tuple[HealthIncident, ...]) -> Iterator[Evidence]:
        """Sticky: an incident stays until the host engine restarts, so each is said once."""
        by_id = self._by_id(sample)
        now = set()
        for incident in incidents:
            gpu = by_id.get(incident.entity) if incident.entity_group == 1 else None
            # Two Xids of one GPU may come as one code, told apart by system and health alone.
            name = (
                f"health_{incident.entity_group}_{incident.entity}_{incident.system}_{incident.code}_{incident.health}"
            )
            now.add(name)
            yield from self._edge(
                sample, name, True, gpu, "gpu_health", f"DCGM health {incident.health}: {incident.text}",
                {"code": incident.code, "system": incident.system, "health": incident.health,
                 "entity_group": incident.entity_group, "entity": incident.entity},
            )  # fmt: skip
        for key in [key for key in self._edges if key.startswith("health_") and key.partition("/")[0] not in now]:
            del self._edges[key]

    # ------------------------------------------------------------------------------------------------ one edge

    def _edge(
        self, sample: Sample, name: str, value: Scalar, gpu: Gpu | None, kind: str, text: str, data: Mapping[str, Scalar],
    ) -> Iterator[Evidence]:  # fmt: skip
        """Evidence when a condition appears or changes. ``value`` None: not known, leaves everything as it was."""
        key = f"{name}/{gpu.key if gpu else ''}"
        if value is False:
            self._denied.add(key)
            self._edges.pop(key, None)
            return
        self._denied.discard(key)
        if value is None:
            return
        known = self._edges.get(key)
        if known is not None and known[0] == value:
            return
        since = sample.at.isoformat()
        self._edges[key] = (value, since)
        yield self._evidence(sample, kind, gpu, text, data, identity=(name, value, since))

    def _evidence(
        self, sample: Sample, kind: str, gpu: Gpu | None, text: str, data: Mapping[str, Scalar], *,
        identity: tuple[object, ...], at: datetime | None = None,
    ) -> Evidence:  # fmt: skip
        return Evidence(
            id=stable_id("dcgm", self.node, gpu.key if gpu else "", *identity),
            at=at or sample.at,
            seen_at=sample.at,
            source=_SOURCES.get(sample.via, Source.DCGM),
            kind=str(kind),
            where=Where(node=self.node, gpu=gpu.index if gpu else None, gpu_uuid=gpu.uuid if gpu else None),
            text=text.replace("NVLink", "XGMI") if sample.via == "amd_smi" else text,
            data={**data, OPEN_ENGINE: True} if sample.open_engine else dict(data),
        )


_SOURCES = {"nvml": Source.NVML, "amd_smi": Source.AMD_SMI}
