"""Orders of the daemon: fetched by a long poll of its own, carried out in children, results kept until acknowledged.

An order is known by its id: given again, it is not done again, its result is sent again. Results lie on disk, so that an
agent that was restarted in between still delivers them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sentinel.adapters.client import DaemonClient
from sentinel.agent.children import Children, Ending, Program
from sentinel.agent.keeping import bug, restore, save
from sentinel.errors import SentinelError
from sentinel.log import Log
from sentinel.protocol import LONG_POLL_S, ORDER_RESULT, ORDERS, OrderKind

log = Log()

REMEMBERED = 200  # acknowledged results kept, in case an order comes again
PROGRAMS = {
    OrderKind.INVENTORY: "sentinel.agent.probes.inventory",
    OrderKind.QUARANTINE: "sentinel.agent.probes.quarantine",
    OrderKind.TASK_STATES: "sentinel.agent.probes.tasks",
    OrderKind.COLLECTED: "sentinel.agent.probes.collected",
    OrderKind.ASK_JOB: "sentinel.agent.probes.ask_job",
    OrderKind.DIAGNOSE: "sentinel.agent.probes.diagnose",
}


class Orders:
    """Fetches orders, has them carried out, delivers their results.

    Args:
        folder: where results lie.
        program: makes the child program of a module (command and environment).
        client: makes a client; every thread has its own.
        extra: what an order of a kind gets besides the daemon's arguments (settings of this node).
        done: told of every result, e.g. a diagnostic that passed.
    """

    def __init__(
        self,
        node: str,
        folder: Path,
        children: Children,
        program: Callable[..., Program],
        client: Callable[[], DaemonClient],
        extra: Callable[[OrderKind], Mapping[str, object]],
        done: Callable[[OrderKind, Mapping[str, Any], Any], None] = lambda *_: None,
        *,
        backoff_s: float = 10.0,
    ) -> None:
        self.node = node
        self.carried_out = 0
        self.busy: Callable[[], bool] = lambda: False  # whether a job is here, before which some orders yield
        self._folder = folder
        self._children = children
        self._program = program
        self._client = client
        self._extra = extra
        self._done = done
        self._backoff_s = backoff_s
        self._lock = threading.Condition()
        self._results: dict[str, dict[str, Any]] = {}
        self._unsent: list[str] = []
        self._running: set[str] = set()
        self._yielding: dict[str, tuple[OrderKind, dict[str, Any]]] = {}  # those that a job ends
        self._stopped = threading.Event()
        self._polling: DaemonClient | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(folder.glob("*.json"), key=lambda entry: entry.stat().st_mtime):
            kept = restore(path)
            if isinstance(kept, dict) and isinstance(kept.get("id"), str):
                self._results[kept["id"]] = kept
                if not kept.get("acknowledged"):
                    self._unsent.append(kept["id"])

    # ------------------------------------------------------------------------------------------------ fetching

    def run(self) -> None:
        """The thread that asks for orders."""
        client = self._polling = self._client()
        failures = 0
        while not self._stopped.is_set():
            try:
                answer = client.post(ORDERS, {"node": self.node}, deadline_s=LONG_POLL_S + 10)
                failures = 0
                orders = answer.get("orders", [])
                for order in orders if isinstance(orders, list) else []:
                    self.take(order)
                if orders:
                    self._stopped.wait(0.2)  # it is given again until its result came
            except SentinelError:  # what it was is said by the sender, whose daemon is the same
                failures += 1
                self._stopped.wait(min(self._backoff_s, 0.2 * 2 ** min(failures, 12)) * (0.5 + random.random()))  # noqa: S311
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                bug(log, "orders")
                self._stopped.wait(1.0)
        client.close()

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            self._lock.notify_all()
        if self._polling is not None:
            self._polling.interrupt()

    def take(self, order: Any) -> None:
        """Begin an order that is not known yet; send the result of one that is."""
        if not isinstance(order, dict) or not isinstance(order.get("id"), str):
            log.warning("order-unreadable", order=order)
            return
        identity, arguments = order["id"], order.get("arguments")
        with self._lock:
            if identity in self._running:
                return
            if identity in self._results:
                if identity not in self._unsent:
                    self._unsent.append(identity)
                    self._lock.notify_all()
                return
            self._running.add(identity)
        try:
            kind = OrderKind(order.get("kind", ""))
            deadline_s = float(order.get("deadline_s") or 60.0)
            if not isinstance(arguments, dict):
                raise ValueError("arguments are not an object")
        except (ValueError, TypeError) as error:
            self._finish(identity, None, False, None, f"this agent does not know that order: {error}")
            return
        if arguments.get("yields") and self.busy():
            self._finish(identity, kind, True, _yielded(arguments), "", arguments)
            return
        log.info("order-begun", id=identity, kind=kind)
        self._begin(identity, kind, arguments, deadline_s)

    def _begin(self, identity: str, kind: OrderKind, arguments: dict[str, Any], deadline_s: float) -> None:
        answers: list[dict[str, Any]] = []
        if arguments.get("yields"):
            with self._lock:
                self._yielding[identity] = (kind, arguments)

        def ended(ending: Ending) -> None:
            answer = answers[-1] if answers else {}
            if "listings" in (answers[0] if answers else {}):
                listings = _listings(answers)
                self._finish(identity, kind, True, {"listings": listings}, "", arguments)
            elif ending.silent:
                where = f" while it was in state {ending.where}" if ending.where else ""
                self._finish(
                    identity, kind, False, None, f"no answer within {deadline_s:g} s{where}: killed", arguments
                )
            elif "error" in answer:
                self._finish(identity, kind, False, None, str(answer["error"])[:2000], arguments)
            elif "result" in answer:
                self._finish(identity, kind, True, answer["result"], "", arguments)
            else:
                reason = ending.stderr.strip()[-500:]
                self._finish(identity, kind, False, None, f"ended with status {ending.status}: {reason}", arguments)

        program = self._program(
            f"order:{identity}",
            PROGRAMS[kind],
            {"node": self.node, **self._extra(kind), **arguments, "deadline_s": deadline_s, "order": identity},
            silent_s=deadline_s,
            total_s=deadline_s,
            on_message=answers.append,
            on_end=ended,
        )
        if not self._children.start(program):
            self._finish(identity, kind, False, None, "the agent is stopping", arguments)

    def give_way(self) -> bool:
        """A job came: end what it goes before. True when there was something, which may go on outside of us."""
        with self._lock:
            ended = dict(self._yielding)
            self._yielding.clear()
        for identity, (kind, arguments) in ended.items():
            self._children.stop(f"order:{identity}")
            self._finish(identity, kind, True, _yielded(arguments), "", arguments)
        return bool(ended)

    def _finish(
        self,
        identity: str,
        kind: OrderKind | None,
        ok: bool,
        result: Any,
        error: str,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        kept = {"id": identity, "kind": kind, "ok": ok, "result": result, "error": error, "acknowledged": False}
        log.info("order-ended", id=identity, kind=kind, ok=ok, error=error)
        save(self._path(identity), kept)
        with self._lock:
            self._running.discard(identity)
            self._yielding.pop(identity, None)
            self._results[identity] = kept
            self._unsent.append(identity)
            self.carried_out += 1
            self._lock.notify_all()
        if ok and kind is not None:
            self._done(kind, arguments or {}, result)

    # ------------------------------------------------------------------------------------------------ delivering

    def deliver(self) -> None:
        """The thread that sends results, until each is acknowledged."""
        client, failures = self._client(), 0
        while not self._stopped.is_set():
            with self._lock:
                while not self._unsent and not self._stopped.is_set():
                    self._lock.wait()
                identity = self._unsent[0] if self._unsent else None
            if identity is None:
                continue
            try:
                self.send(client, identity)
                failures = 0
            except SentinelError:  # what it was is said by the sender, whose daemon is the same
                failures += 1
                self._stopped.wait(min(self._backoff_s, 0.2 * 2 ** min(failures, 12)) * (0.5 + random.random()))  # noqa: S311
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                bug(log, "results")
                self._stopped.wait(1.0)
        client.close()

    def send(self, client: DaemonClient, identity: str) -> None:
        kept = self._results[identity]
        body = {"node": self.node, "id": identity, **{key: kept[key] for key in ("ok", "result", "error")}}
        client.post(ORDER_RESULT, body)
        kept["acknowledged"] = True
        save(self._path(identity), kept)
        with self._lock:
            if identity in self._unsent:
                self._unsent.remove(identity)
            old = [name for name, result in self._results.items() if result.get("acknowledged")]
            for name in old[: max(0, len(old) - REMEMBERED)]:
                del self._results[name]
                self._path(name).unlink(missing_ok=True)

    def _path(self, identity: str) -> Path:
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in identity)[:120]
        return self._folder / f"{safe}.json"


def _yielded(arguments: Mapping[str, Any]) -> dict[str, Any]:
    reason = "a job goes before it"
    return {"result": "inconclusive", "reason": reason, "level": arguments.get("level"), "gpus": arguments.get("gpus")}


def _listings(answers: list[dict[str, Any]]) -> list[Any]:
    """The listing of every root that answered, and of each other root that it did not."""
    listings = list(answers[0]["listings"])
    for answer in answers[1:]:
        if isinstance(answer.get("index"), int) and 0 <= answer["index"] < len(listings):
            listings[answer["index"]] = answer.get("listing", [])
    return listings
