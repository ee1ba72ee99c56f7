"""Turns readings of host and fabric into evidence when a condition appears or changes. Pure.

What cannot be read is absent from a reading and changes nothing. The first reading of a counter is a base, not a growth.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sentinel.model.records import Evidence, Kind, Scalar, Source, Where, stable_id

ACTIVE = "ACTIVE"
# What a port was in this boot.
_NEVER_UP, _UP, _VIRTUAL, _TOLD = "never up", "up", "virtual", "told"
_GONE_AFTER = 2  # readings in a row


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an InfiniBand or RoCE adapter."""

    name: str  # device:port
    state: str | None = None  # ACTIVE, DOWN, INIT, ...
    counters: Mapping[str, int] = field(default_factory=dict)
    virtual: bool = False  # of a virtual function, which people give to a container or a machine, and take back


@dataclass(frozen=True, slots=True)
class HostReading:
    at: datetime
    ports: tuple[Port, ...] | None = None  # all that there are; None: not known
    uncorrected: Mapping[str, int] = field(default_factory=dict)  # EDAC memory controller → uncorrected errors
    disks: Mapping[str, float] = field(default_factory=dict)  # path → share of it that is used
    memory_available: float | None = None  # share
    driver: str | None = None  # loaded kernel module
    library: str | None = None  # libnvidia-ml on disk
    switches: int = 0  # NVSwitches on this node
    fabric_manager: bool | None = None  # whether it runs
    strays: tuple[tuple[int, str], ...] = ()  # processes that hold a GPU and belong to no job here: pid, name


def reading_from(message: Mapping[str, Any], at: datetime) -> HostReading:
    """A reading from the JSON of the probe."""
    return HostReading(
        at=at,
        ports=None
        if message.get("ports") is None
        else tuple(
            Port(port["name"], port.get("state"), port.get("counters", {}), port.get("virtual") is True)
            for port in message["ports"]
        ),
        uncorrected=message.get("uncorrected", {}),
        disks=message.get("disks", {}),
        memory_available=message.get("memory_available"),
        driver=message.get("driver"),
        library=message.get("library"),
        switches=int(message.get("switches") or 0),
        fabric_manager=message.get("fabric_manager"),
        strays=tuple((int(pid), str(name)) for pid, name in message.get("strays", ())),
    )


class HostReader:
    """Turns readings of one node into evidence.

    Args:
        full_fraction: a disk this full is said.
        flaps: link losses of one port within ``flap_window_s`` that are said.
        kept: what an earlier reader's ``state`` was: a port that was up then is missed, and nothing is said twice.
        boot: of the node. Of another boot nothing is missed: adapters and cables are changed while a node is off.
    """

    def __init__(
        self, node: str, *, full_fraction: float = 0.97, flaps: int = 3, flap_window_s: float = 600.0,
        kept: object = None, boot: str = "",
    ) -> None:  # fmt: skip
        self.node = node
        self._full = full_fraction
        self._flaps = flaps
        self._window_s = flap_window_s
        self._edges: dict[str, Scalar] = {}
        self._counters: dict[tuple[str, str], int] = {}
        self._downs: dict[str, deque[tuple[float, int]]] = {}
        self._boot = boot
        self._was: dict[str, str] = _ports_of(kept, boot)
        self._absent: dict[str, int] = {}  # port that was up → readings in a row that do not list it
        self._edges.update((f"port/{name}", True) for name, was in self._was.items() if was == _TOLD)

    @property
    def state(self) -> dict[str, Any]:
        """What is known of the ports, for ``kept``: a JSON object."""
        return {"boot": self._boot, "ports": dict(self._was)}

    def read(self, reading: HostReading) -> list[Evidence]:
        return [
            *self._ports(reading),
            *self._memory(reading),
            *self._disks(reading),
            *self._driver(reading),
            *self._fabric(reading),
            *self._strays(reading),
        ]

    def _ports(self, reading: HostReading) -> Iterator[Evidence]:
        if reading.ports is None:
            self._absent.clear()
            return
        yield from self._gone(reading, {port.name: port for port in reading.ports})
        for port in reading.ports:
            # A port that was never up is not wired; one that was up and is not any more has lost its link.
            was_up = self._was.get(port.name, _NEVER_UP) != _NEVER_UP
            down = None if port.state is None else port.state != ACTIVE and was_up
            yield from self._edge(
                reading, f"port/{port.name}", down, "link_down", Source.FABRIC, f"port {port.name} is {port.state}",
                {"state": port.state}, nic=port.name,
            )  # fmt: skip
            up = was_up or port.state == ACTIVE
            is_told = f"port/{port.name}" in self._edges
            self._was[port.name] = _TOLD if is_told else _NEVER_UP if not up else _VIRTUAL if port.virtual else _UP
            yield from self._flapping(reading, port)
            for name, kind, sentence in _PORT_COUNTERS:
                grown = self._growth(port.name, name, port.counters.get(name))
                if grown:
                    yield self._evidence(
                        reading, kind, Source.FABRIC, f"{sentence} on port {port.name}: {grown} more",
                        {"counter": name, "grown": grown}, nic=port.name, identity=(name, port.name, reading.at),
                    )  # fmt: skip

    def _gone(self, reading: HostReading, listed: Mapping[str, Port]) -> Iterator[Evidence]:
        """Ports that were up and that two readings in a row do not list: at one alone a driver may reset its adapter."""
        absent = self._was.keys() - listed.keys()
        if absent and listed.keys() - self._was.keys():
            # Adapters were renamed, or bonded into one device: which of the old names still stands for one is not known.
            for name in absent:
                del self._was[name]
                self._edges.pop(f"port/{name}", None)
            absent = set()
        self._absent = {name: self._absent.get(name, 0) + 1 for name in absent if self._was[name] in (_UP, _TOLD)}
        for name in sorted(name for name, readings in self._absent.items() if readings >= _GONE_AFTER):
            yield from self._edge(
                reading, f"port/{name}", True, "link_down", Source.FABRIC,
                f"port {name} is gone: the node no longer has its adapter", {"state": "gone"}, nic=name,
            )  # fmt: skip
            self._was[name] = _TOLD

    def _flapping(self, reading: HostReading, port: Port) -> Iterator[Evidence]:
        now_s = reading.at.timestamp()
        downs = self._downs.setdefault(port.name, deque())
        grown = self._growth(port.name, "link_downed", port.counters.get("link_downed"))
        if grown:
            downs.append((now_s, grown))
        while downs and not 0 <= now_s - downs[0][0] <= self._window_s:  # below 0: the clock was set back since
            downs.popleft()
        count = sum(number for _, number in downs)
        yield from self._edge(
            reading, f"flap/{port.name}", count >= self._flaps, "link_flap", Source.FABRIC,
            f"port {port.name} lost its link {count} times in {self._window_s:g} s",
            {"losses": count, "window_s": self._window_s}, nic=port.name,
        )  # fmt: skip

    def _memory(self, reading: HostReading) -> Iterator[Evidence]:
        for controller, count in reading.uncorrected.items():
            grown = self._growth(controller, "ue", count)
            if grown:
                yield self._evidence(
                    reading, "host_memory_ecc", Source.HOST, f"uncorrected errors of host memory at {controller}: {grown}",
                    {"controller": controller, "grown": grown}, identity=("ue", controller, count),
                )  # fmt: skip
        available = reading.memory_available
        low = None if available is None else available < 0.01
        yield from self._edge(
            reading, "memory", low, "host_memory_low", Source.HOST,
            f"only {(available or 0):.2%} of host memory is available", {"available_fraction": available},
        )  # fmt: skip

    def _disks(self, reading: HostReading) -> Iterator[Evidence]:
        for path, used in reading.disks.items():
            yield from self._edge(
                reading, f"disk/{path}", used >= self._full, "disk_full", Source.HOST, f"{path} is {used:.1%} full",
                {"used_fraction": round(used, 4)}, path=path,
            )  # fmt: skip

    def _driver(self, reading: HostReading) -> Iterator[Evidence]:
        known = reading.driver is not None and reading.library is not None
        yield from self._edge(
            reading, "driver", (reading.driver != reading.library) if known else None, "driver_mismatch", Source.HOST,
            f"the loaded driver is {reading.driver}, its library on disk is {reading.library}",
            {"driver": reading.driver, "library": reading.library},
        )  # fmt: skip

    def _fabric(self, reading: HostReading) -> Iterator[Evidence]:
        """Without its fabric manager no GPU behind NVSwitches can begin a job."""
        down = None if reading.fabric_manager is None else reading.switches > 0 and not reading.fabric_manager
        yield from self._edge(
            reading, "fabric_manager", down, "fabric_manager", Source.HOST,
            f"the fabric manager does not run, and {reading.switches} NVSwitches need it", {"switches": reading.switches},
        )  # fmt: skip

    def _strays(self, reading: HostReading) -> Iterator[Evidence]:
        now = {f"stray/{pid}" for pid, _ in reading.strays}
        for pid, name in reading.strays:
            yield from self._edge(
                reading, f"stray/{pid}", True, "stray_gpu_process", Source.HOST,
                f"process {pid} ({name}) holds a GPU and belongs to no job on this node", {"pid": pid, "command": name[:64]},
            )  # fmt: skip
        for key in [key for key in self._edges if key.startswith("stray/") and key not in now]:
            del self._edges[key]

    def _growth(self, unit: str, name: str, value: int | None) -> int:
        """How much a counter grew since the last reading; 0 at first, after a reset, and when it is not known."""
        if value is None:
            return 0
        before = self._counters.get((unit, name))
        self._counters[(unit, name)] = value
        return value - before if before is not None and value > before else 0

    def _edge(
        self, reading: HostReading, key: str, value: bool | None, kind: str, source: Source, text: str,
        data: Mapping[str, Scalar], *, nic: str | None = None, path: str | None = None,
    ) -> Iterator[Evidence]:  # fmt: skip
        if value is None or value == self._edges.get(key, False):
            return
        if value:
            self._edges[key] = True
            yield self._evidence(
                reading, kind, source, text, data, nic=nic, path=path, identity=(key, reading.at.isoformat())
            )
        else:
            del self._edges[key]

    def _evidence(
        self, reading: HostReading, kind: str, source: Source, text: str, data: Mapping[str, Scalar], *,
        identity: tuple[object, ...], nic: str | None = None, path: str | None = None,
    ) -> Evidence:  # fmt: skip
        return Evidence(
            id=stable_id("host", self.node, *identity),
            at=reading.at,
            seen_at=reading.at,
            source=source,
            kind=kind,
            where=Where(node=self.node, nic=nic, path=path),
            text=text,
            data=dict(data),
        )


def _ports_of(kept: object, boot: str) -> dict[str, str]:
    """The ports of a ``HostReader.state``; none of another boot, of one that is not known, or of what is no such state."""
    state = kept if isinstance(kept, dict) and boot and kept.get("boot") == boot else {}
    ports = state.get("ports")
    known = (_NEVER_UP, _UP, _VIRTUAL, _TOLD)
    return {str(name): was for name, was in ports.items() if was in known} if isinstance(ports, dict) else {}


# Counters whose growth is said: name, kind, sentence. Congestion counters are left to Prometheus.
_PORT_COUNTERS = (
    ("local_link_integrity_errors", "link_errors", "link integrity errors"),
    ("excessive_buffer_overrun_errors", "link_errors", "buffer overruns"),
    ("link_error_recovery", "link_errors", "link error recoveries"),
)


def check_meaning(convention: str, status: int | None) -> str:
    """What a site check's exit status says: ok, warning, critical or unknown.

    ``nagios``: 0, 1, 2, 3. ``nhc``: 0 is ok and anything a shell reserves for itself is unknown. A check that was killed,
    or could not be started, found out nothing.
    """
    if status is None or status < 0 or status in (126, 127) or status > 128:
        return "unknown"
    if convention == "nhc":
        return "ok" if status == 0 else "critical"
    return {0: "ok", 1: "warning", 2: "critical"}.get(status, "unknown")


def check_evidence(node: str, name: str, meaning: str, text: str, at: datetime) -> Evidence:
    """Evidence of a site check that did not say ok; unknown is *unreadable*."""
    kind = Kind.UNREADABLE if meaning == "unknown" else "site_check"
    return Evidence(
        id=stable_id("check", node, name, meaning, at.isoformat()),
        at=at,
        seen_at=at,
        source=Source.SITE_CHECK,
        kind=kind,
        where=Where(node=node),
        text=f"{name}: {text}"[:1000],
        data={"check": name, "meaning": meaning},
    )
