"""GPU telemetry: DCGM's bindings, else ``dcgmi``, else NVML, else an honest *not known*. Streams samples for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sentinel.adapters.dcgm import XID_FIELD, Bindings, HostEngine
from sentinel.agent.probes import begin, say
from sentinel.errors import ProtocolError, SentinelError, Unavailable
from sentinel.evidence.gpu_samples import FAST, LOST, MINOR, OK, PCI_BUS_ID, TRAFFIC, WATCHED

STALE_S = 10.0  # a value whose reading is older than this is not known any more


RETRY_S = 300.0  # how long a worse source is used before the better ones are tried again


def main() -> None:
    arguments = begin()
    connecting = threading.Event()
    threading.Thread(target=_say_alive, args=(connecting, arguments["connect_s"] + 5.0), daemon=True).start()
    reasons = []
    for source in (_by_bindings, _by_dcgmi, _by_nvml):
        streamed = Streamed(connecting)
        try:
            source(arguments, streamed)
            return  # the agent starts us again, with growing pauses
        except (Unavailable, ProtocolError) as error:
            reasons.append(str(error))
        if streamed.once:
            break  # it worked and broke: begin again with the best source
        say(
            {"type": "unreadable", "reason": "; ".join(reasons)}
        )  # before a worse source, which will not have everything
    else:
        return
    say({"type": "unreadable", "reason": "; ".join(reasons)})


class Streamed:
    """Says samples, and remembers that there was one."""

    def __init__(self, connecting: threading.Event) -> None:
        self.once = False
        self._connecting = connecting

    def __call__(self, message: dict[str, Any]) -> None:
        self.once = True
        self._connecting.set()
        say(message)


def _say_alive(over: threading.Event, seconds: float) -> None:
    """A connection may take longer than we may be silent; a sample that hangs later may not."""
    end_s = time.monotonic() + seconds
    while not over.wait(1.0) and time.monotonic() < end_s:
        say({"type": "alive"})


def _by_bindings(arguments: dict[str, Any], told: Streamed) -> None:
    engine = HostEngine(
        Bindings(arguments.get("bindings", "")),
        host=arguments["host"],
        socket=arguments.get("socket", ""),
        connect_s=arguments["connect_s"],
        interval_s=arguments["interval_s"],
    )
    try:
        _stream(engine, arguments, told)
    finally:
        engine.close()


def _stream(engine: HostEngine, arguments: dict[str, Any], told: Streamed) -> None:
    """Samples until the connection ends. Twice an interval for Xids and what is as grave, once for everything."""
    version = engine.version()
    gpus = engine.gpus()
    ids = [gpu["id"] for gpu in gpus]
    engine.watch("fields", ids, [*WATCHED, MINOR, PCI_BUS_ID])
    engine.watch("events", ids, [XID_FIELD])
    engine.watch("fast", ids, FAST)
    moved = bool(arguments.get("profiling", True)) and engine.watch_if_possible("traffic", ids, TRAFFIC) is None
    engine.set_health("fields")
    engine.refresh()
    interval_s, health_s = arguments["interval_s"], arguments["health_s"]
    began_s = time.monotonic()
    next_s, next_health_s, turn = began_s, began_s, 0
    while True:
        full = turn % 2 == 0
        if full and turn:
            listed = engine.gpus()
            back = {gpu["id"] for gpu in listed if gpu["status"] == OK} & engine.unwatched
            if [gpu["id"] for gpu in listed] != ids or back:
                return  # another set of GPUs: begin again with new groups
            gpus = listed
        else:
            statuses = engine.statuses(ids)
            gpus = [{**gpu, "status": statuses.get(gpu["id"])} for gpu in gpus]
        latest = engine.latest("fields" if full else "fast")
        if full and moved:
            for gpu, readings in engine.latest("traffic").items():
                latest.setdefault(gpu, {}).update(readings)
        message: dict[str, Any] = {
            "type": "sample",
            "via": "dcgm",
            "version": version,
            "full": full,
            "gpus": [_gpu(gpu, latest.get(gpu["id"], {})) for gpu in gpus],
            "events": engine.events("events"),
        }
        if full and time.monotonic() >= next_health_s:
            next_health_s = time.monotonic() + health_s
            message["health"] = engine.health("fields")
        told(message)
        turn += 1
        next_s += interval_s / 2
        time.sleep(max(0.0, next_s - time.monotonic()))
        next_s = max(next_s, time.monotonic() - interval_s)  # after a stop (SIGSTOP, suspend) do not catch up


def _gpu(gpu: dict[str, Any], readings: dict[int, tuple[Any, int]]) -> dict[str, Any]:
    oldest_us = (time.time() - STALE_S) * 1e6
    fields = {number: (value if at_us >= oldest_us else None) for number, (value, at_us) in readings.items()}
    minor = readings.get(MINOR, (None, 0))[0]
    made = {
        **gpu,
        "fields": {str(number): value for number, value in fields.items() if number not in (MINOR, PCI_BUS_ID)},
    }
    if isinstance(minor, int):
        made["minor"] = minor
    if gpu["status"] == LOST:
        made["fields"] = {}
    return made


def _by_dcgmi(arguments: dict[str, Any], told: Streamed) -> None:
    from sentinel.adapters.dcgmi import Dcgmi

    dcgmi = Dcgmi(arguments["dcgmi"], host=arguments["host"], socket=arguments.get("socket", ""))
    dcgmi.check()
    known: dict[int, int] | None = None

    def sample() -> dict[str, Any]:
        """The last Xid of a GPU is there for ever and without its time: only a change is an event, seen now."""
        nonlocal known
        made = dcgmi.sample(WATCHED)
        last: dict[int, int] = made.pop("last_xids")
        now_us = int(time.time() * 1e6)
        changed = [] if known is None else [(gpu, xid) for gpu, xid in last.items() if known.get(gpu) != xid]
        known = last
        return {**made, "events": [(gpu, xid, now_us) for gpu, xid in changed]}

    _poll(sample, "dcgmi", max(arguments["interval_s"], 1.0), told)


def _by_nvml(arguments: dict[str, Any], told: Streamed) -> None:
    from sentinel.adapters.nvml import Nvml

    with Nvml() as nvml:
        _poll(nvml.sample, "nvml", max(arguments["interval_s"], 1.0), told)


def _poll(sample: Callable[[], dict[str, Any]], via: str, interval_s: float, told: Streamed) -> None:
    end_s = time.monotonic() + RETRY_S
    while time.monotonic() < end_s:
        told({"type": "sample", "via": via, "full": True, **sample()})
        time.sleep(interval_s)


if __name__ == "__main__":
    try:
        main()
    except SentinelError as error:
        say({"type": "unreadable", "reason": str(error)})
