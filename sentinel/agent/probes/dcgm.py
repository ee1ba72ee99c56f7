"""GPU telemetry: DCGM's bindings, else ``dcgmi``, else NVML, else *not known*; AMD's library on nodes with AMD's GPUs.

Streams samples until it is killed or the connection ends.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sentinel.adapters.gpu.dcgm import NOT_VALID, TIMEOUT, XID_FIELD, Bindings, DcgmRefusal, HostEngine
from sentinel.adapters.gpu.engine_owner import ACCOUNT, EngineOwner
from sentinel.agent.probes import begin, say
from sentinel.errors import ProtocolError, SentinelError, Unavailable
from sentinel.evidence.gpu_samples import FAST, LOST, MINOR, OK, PCI_BUS_ID, SLOW, TRAFFIC, WATCHED

STALE_S = 10.0  # a value that DCGM has not renewed for longer counts as not known
SLOW_S = 30.0  # how often slowly changing values are read: limits, link widths, lifetime counters
SLOW_STALE_S = 3 * SLOW_S
EVENTS_S = 30.0  # longest delay of an Xid dated before earlier ones, as after a clock was set back

_FAST_FIELDS = frozenset(WATCHED)
# Device names and addresses never become stale.
_STALE_S = {**dict.fromkeys(SLOW, SLOW_STALE_S), MINOR: math.inf, PCI_BUS_ID: math.inf}

RETRY_S = 300.0  # how long a fallback source is used before better ones are tried again


def main() -> None:
    arguments = begin()
    if arguments.get("driver_alone"):
        _ask_driver(arguments["nvml"])
        return
    reasons = []
    for source in _sources():
        connecting = threading.Event()
        threading.Thread(target=_say_alive, args=(connecting, arguments["connect_s"] + 5.0), daemon=True).start()
        streamed = Streamed(connecting)
        try:
            source(arguments, streamed)
            return  # the agent restarts this probe, with growing pauses
        except (Unavailable, ProtocolError) as error:
            reasons.append(str(error))
        finally:
            connecting.set()
        if streamed.once:
            break  # it worked before it failed: try the best source first again
        say({"type": "unreadable", "reason": "; ".join(reasons)})  # log before falling back to a source that gives less
    else:
        return
    say({"type": "unreadable", "reason": "; ".join(reasons)})


def _sources(root: Path = Path("/")) -> tuple[Callable[[dict[str, Any], Streamed], None], ...]:
    """Sources that can measure this node's GPUs, the best first. With both drivers, NVIDIA's GPUs are measured."""
    if (root / "sys/module/amdgpu").exists() and not (root / "proc/driver/nvidia").exists():
        return (_by_amd_smi,)
    return (_by_bindings, _by_dcgmi, _by_nvml)


class Streamed:
    """Sends samples to the agent, and remembers whether there was one."""

    def __init__(self, connecting: threading.Event) -> None:
        self.once = False
        self._connecting = connecting

    def __call__(self, message: dict[str, Any]) -> None:
        self.once = True
        self._connecting.set()
        say(message)


def _say_alive(over: threading.Event, seconds: float) -> None:
    """Send signs of life while connecting, which may take longer than the agent lets a probe be silent."""
    end_s = time.monotonic() + seconds
    while not over.wait(1.0) and time.monotonic() < end_s:
        say({"type": "alive"})


def _by_bindings(arguments: dict[str, Any], told: Streamed) -> None:
    engine = _connected(arguments)
    try:
        _stream(engine, arguments, told)
    finally:
        engine.close()


def _connected(arguments: dict[str, Any]) -> HostEngine:
    """Connect to the host engine within ``connect_s``.

    The bindings' own timeout has no effect if a frozen engine accepts the connection. The attempt is then abandoned in
    its thread, which ends with this process.

    Raises:
        Unavailable: no connection, or none in time.
    """
    bindings = Bindings(arguments.get("bindings", ""))
    made: list[HostEngine] = []
    failed: list[Exception] = []

    def connect() -> None:
        try:
            made.append(
                HostEngine(
                    bindings,
                    host=arguments["host"],
                    socket=arguments.get("socket", ""),
                    account=arguments.get("account", ACCOUNT),
                    connect_s=arguments["connect_s"],
                    interval_s=arguments["interval_s"],
                )
            )
        except (SentinelError, ValueError) as error:
            failed.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(arguments["connect_s"])
    if failed:
        raise failed[0]
    if not made:
        where = arguments.get("socket") or arguments["host"]
        raise Unavailable(f"the DCGM host engine on {where} does not answer within {arguments['connect_s']:g} s")
    return made[0]


class _Parts:
    """Watches groups of fields ("parts") on one host engine, separately: a missing one does not affect the others.

    Attributes:
        missing: part → why the engine does not provide it.
    """

    def __init__(self, engine: HostEngine, ids: list[int], arguments: dict[str, Any]) -> None:
        self.missing: dict[str, str] = {}
        self._engine = engine
        self._health_s = float(arguments["health_s"])
        self._next_health_s = self._next_slow_s = time.monotonic()
        self._next_events_s = time.monotonic() + EVENTS_S
        self._newest: dict[int, tuple[Any, int]] | None = None  # GPU → its last Xid; None: not known
        self._slow: dict[int, dict[int, tuple[Any, int]]] = {}
        wanted: list[tuple[str, Sequence[int], float | None]] = [
            ("fields", [*WATCHED, XID_FIELD], None), ("events", [XID_FIELD], None), ("fast", [*FAST, XID_FIELD], None),
            ("board", [*SLOW, MINOR, PCI_BUS_ID], SLOW_S),
        ]  # fmt: skip
        self._profiling = bool(arguments.get("profiling", True))
        if self._profiling:
            wanted.append(("traffic", TRAFFIC, None))
        for name, fields, every_s in wanted:
            why = engine.watch_if_possible(name, ids, fields, every_s=every_s)
            if why is not None:
                self.missing[name] = why
        if "fields" in self.missing and "events" in self.missing:
            raise Unavailable(f"nothing can be watched: {self.missing['fields']}")
        self._try("health", lambda: engine.set_health("fields"))
        engine.refresh()

    def _try(self, part: str, ask: Callable[[], Any]) -> Any:
        """The part's answer; None if the engine does not provide it. A lost connection is raised instead."""
        if part in self.missing or (part == "health" and "fields" in self.missing):
            return None
        try:
            return ask()
        except DcgmRefusal as error:
            if error.code in (NOT_VALID, TIMEOUT):
                raise
            self.missing[part] = error.message
            return None

    def readings(self, full: bool) -> dict[int, dict[int, tuple[Any, int]]]:
        """GPU → field → (value, time). Slowly changing fields are read again every ``SLOW_S``."""
        if not full:
            found = self._with_newest("fast")
            minors = {gpu: {MINOR: fields[MINOR]} for gpu, fields in self._slow.items() if MINOR in fields}
            return {gpu: {**minors.get(gpu, {}), **fields} for gpu, fields in found.items()}
        if time.monotonic() >= self._next_slow_s:
            self._next_slow_s = time.monotonic() + SLOW_S
            self._slow = self._try("board", lambda: self._engine.latest("board")) or {}
        made: dict[int, dict[int, tuple[Any, int]]] = {gpu: dict(fields) for gpu, fields in self._slow.items()}
        traffic = self._try("traffic", partial(self._engine.latest, "traffic")) if self._profiling else None
        for found in (self._with_newest("fields"), traffic or {}):
            for gpu, fields in found.items():
                made.setdefault(gpu, {}).update(fields)
        return made

    def _with_newest(self, part: str) -> dict[int, dict[int, tuple[Any, int]]]:
        """A part's readings, without the GPUs' last Xids, which are stored for ``events``."""
        found: dict[int, dict[int, tuple[Any, int]]] | None = self._try(part, partial(self._engine.latest, part))
        if found is None:
            self._newest = None
            return {}
        self._newest = {gpu: fields.pop(XID_FIELD) for gpu, fields in found.items() if XID_FIELD in fields}
        return found

    def events(self) -> list[tuple[int, int, int]]:
        """Xids not reported yet: read if a GPU's last Xid changed; every ``EVENTS_S`` all that the engine has."""
        everything = time.monotonic() >= self._next_events_s
        if everything:
            self._next_events_s = time.monotonic() + EVENTS_S
        ask = partial(self._engine.events, "events", self._newest, everything=everything)
        return self._try("events", ask) or []

    def health(self) -> list[dict[str, Any]] | None:
        """DCGM's health results, once every ``health_s``; None when not asked, or not provided."""
        if time.monotonic() < self._next_health_s:
            return None
        self._next_health_s = time.monotonic() + self._health_s
        answer: list[dict[str, Any]] | None = self._try("health", lambda: self._engine.health("fields"))
        return answer


def _stream(engine: HostEngine, arguments: dict[str, Any], told: Streamed) -> None:
    """Send samples until the connection ends or the set of GPUs changes.

    A full sample is sent once per interval. Halfway between, Xids and other grave fields are read, and sent if they
    changed.
    """
    gpus = engine.gpus()
    ids = [gpu["id"] for gpu in gpus]
    parts = _Parts(engine, ids, arguments)
    interval_s = arguments["interval_s"]
    ages = Ages()
    grave: dict[int, list[Any]] = {}  # values in the last sample
    next_s, turn = time.monotonic(), 0
    while True:
        full = turn % 2 == 0
        if full and turn:
            gpus = engine.gpus()
            back = {gpu["id"] for gpu in gpus if gpu["status"] == OK} & engine.unwatched
            if [gpu["id"] for gpu in gpus] != ids or back:
                return  # the set of GPUs changed: connect again, with new groups
        latest = ages.current(parts.readings(full))
        events, before = parts.events(), grave
        grave = {gpu: [fields.get(number) for number in FAST] for gpu, fields in latest.items()}
        message: dict[str, Any] = {
            "type": "sample",
            "via": "dcgm",
            "closed": engine.closed or bool(arguments.get("closed_to_users")),
            "full": full,
            "gpus": [_gpu(gpu, latest.get(gpu["id"], {})) for gpu in gpus],
            "events": events,
        }
        if full and (health := parts.health()) is not None:
            message["health"] = health
        if full:
            message["missing"] = parts.missing | ({"fields": ages.trouble} if ages.trouble else {})
        if full or events or grave != before:
            told(message)
        turn += 1
        next_s += interval_s / 2
        time.sleep(max(0.0, next_s - time.monotonic()))
        next_s = max(next_s, time.monotonic() - interval_s)  # after a stop (SIGSTOP, suspend) do not catch up


class Ages:
    """Drops readings that DCGM does not renew.

    Either host's clock may be set. DCGM's dates are therefore compared only with each other, and the time for which a
    date has not changed is measured by the monotonic clock. After its clock is set back, DCGM 4.6 reads nothing until
    the clock has caught up, and its old values look fresh.

    Attributes:
        trouble: why no reading is current; empty if one is, or if there are no readings.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.trouble = ""
        self._clock = clock
        # GPU → field → (DCGM's date, monotonic seconds when that date was first seen)
        self._seen: dict[int, dict[int, tuple[int, float]]] = {}

    def current(self, readings: dict[int, dict[int, tuple[Any, int]]]) -> dict[int, dict[int, Any]]:
        """GPU → field → value (None: blank in DCGM). Fields that are not current are left out."""
        now_s = self._clock()
        newest_us = max((at_us for fields in readings.values() for _, at_us in fields.values()), default=0)
        made: dict[int, dict[int, Any]] = {}
        dated = renewed = 0
        for gpu, fields in readings.items():
            kept = made[gpu] = {}
            dates = self._seen.setdefault(gpu, {})
            for number, (value, at_us) in fields.items():
                if value is None:
                    kept[number] = None
                    continue
                seen = dates.get(number)
                if seen is None:
                    seen = dates[number] = (at_us, now_s - (newest_us - at_us) / 1e6)
                elif seen[0] != at_us:
                    seen = dates[number] = (at_us, now_s)
                current = now_s - seen[1] <= _STALE_S.get(number, STALE_S)
                if current:
                    kept[number] = value
                if number in _FAST_FIELDS:
                    dated, renewed = dated + 1, renewed + current
        if dated:
            words = f"DCGM has not renewed a value for {STALE_S:g} s, as after its clock was set back: restart nv-hostengine"
            self.trouble = "" if renewed else words
        return made


def _gpu(gpu: dict[str, Any], fields: dict[int, Any]) -> dict[str, Any]:
    named = dict(fields)  # JSON makes text of the numbers
    minor, _ = named.pop(MINOR, None), named.pop(PCI_BUS_ID, None)
    made = {**gpu, "fields": named}
    if isinstance(minor, int):
        made["minor"] = minor
    if gpu["status"] == LOST:
        made["fields"] = {}
    return made


def _by_dcgmi(arguments: dict[str, Any], told: Streamed) -> None:
    from sentinel.adapters.gpu.dcgmi import Dcgmi

    account = arguments.get("account", ACCOUNT)
    dcgmi = Dcgmi(arguments["dcgmi"], host=arguments["host"], socket=arguments.get("socket", ""), account=account)
    dcgmi.check()

    def sample() -> dict[str, Any]:
        """One sample. A GPU's last Xid stays for ever and has no time: the agent, which goes on, knows whether it is new."""
        made = dcgmi.sample([*WATCHED, *SLOW])
        return {**made, "closed": dcgmi.closed or bool(arguments.get("closed_to_users")), "events": []}

    _poll(sample, "dcgmi", max(arguments["interval_s"], 1.0), told)


def _ask_driver(folder: str) -> None:
    """Send one sample of NVML, beside what an engine says in which any user of the node may write."""
    from sentinel.adapters.gpu.nvml import Nvml

    with Nvml(folder) as nvml:
        say({"type": "sample", "via": "nvml", "full": True, **nvml.sample()})


def _by_nvml(arguments: dict[str, Any], told: Streamed) -> None:
    from sentinel.adapters.gpu.nvml import Nvml

    with Nvml(arguments.get("nvml", "")) as nvml:
        # A closed session queues no Xids: it ends only where a better source may be there.
        engine_listens = partial(_engine_listens, arguments)
        _poll(nvml.sample, "nvml", max(arguments["interval_s"], 1.0), told, engine_listens)


def _by_amd_smi(arguments: dict[str, Any], told: Streamed) -> None:
    from sentinel.adapters.gpu.amd_smi import AmdSmi

    with AmdSmi() as amd:
        _poll(amd.sample, "amd_smi", max(arguments["interval_s"], 1.0), told)


def _engine_listens(arguments: dict[str, Any]) -> bool:
    account = arguments.get("account", ACCOUNT)
    try:
        EngineOwner(host=arguments["host"], path=arguments.get("socket", ""), account=account).look()
    except Unavailable:
        return False
    return True


def _poll(
    sample: Callable[[], dict[str, Any]],
    via: str,
    interval_s: float,
    told: Streamed,
    is_over: Callable[[], bool] = lambda: True,
) -> None:
    """Send samples for ``RETRY_S``, and as long again as it is not over then."""
    end_s = time.monotonic() + RETRY_S
    while time.monotonic() < end_s or not is_over():
        end_s = end_s if time.monotonic() < end_s else time.monotonic() + RETRY_S
        told({"type": "sample", "via": via, "full": True, **sample()})
        time.sleep(interval_s)


if __name__ == "__main__":
    try:
        main()
    except SentinelError as error:
        say({"type": "unreadable", "reason": str(error)})
