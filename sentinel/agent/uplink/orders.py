"""Fetches the daemon's orders by long poll, carries them out in children, and keeps results until acknowledged.

An order received again (same id) is not carried out again; its result is sent again. Results are on disk, so that a
restarted agent still delivers them. The daemon is not trusted with root's rights: ``sentinel.model.orders`` validates
orders, and root's own record decides as which user files are accessed (``sentinel.agent.process.job_owners``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sentinel.adapters.client import DaemonClient
from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.job_owners import Owner, Owners
from sentinel.agent.process.probe_programs import INVENTORY
from sentinel.agent.process.retries import Retries
from sentinel.agent.process.state_files import restore, save
from sentinel.agent.settings import Slurm
from sentinel.agent.uplink.slurm_first import Then, slurm_first
from sentinel.errors import SentinelError, Unavailable
from sentinel.log import Log
from sentinel.model.orders import (
    AS_USER,
    AskJob,
    Diagnose,
    MoveAside,
    Order,
    OrderRefused,
    Request,
    TaskStates,
    WriteToLog,
    read_order,
)
from sentinel.protocol import LONG_POLL_S, ORDER_RESULT, ORDERS, OrderKind

log = Log()

MOST_ID = 200  # characters of an order's id
RESULT_BYTES = 3 << 20  # largest result; the daemon accepts 4 MiB
OUTPUT_BYTES = 16 << 20  # most output of a child: one that runs as a user may be made to print anything
MOST_ANSWERS = 1024  # most messages of such a child; there is one per checkpoint folder
MOST_WAITING = 128  # most orders under way and results not acknowledged; a daemon has few per node
STOPPING = "the agent is stopping"
REMEMBERED = 200  # acknowledged results kept, in case an order comes again
PROGRAMS = {
    OrderKind.INVENTORY: INVENTORY,
    OrderKind.QUARANTINE: INVENTORY,  # by the process that listed
    OrderKind.TASK_STATES: "sentinel.agent.probes.tasks",
    OrderKind.COLLECTED: "sentinel.agent.probes.collected",
    OrderKind.JOB_LOG: "sentinel.agent.user_files.write_log",
    OrderKind.MESSAGES_FILE: "sentinel.agent.user_files.messages_file",
    OrderKind.ASK_JOB: "sentinel.agent.probes.ask_job",
    OrderKind.DIAGNOSE: "sentinel.agent.probes.diagnose",
}


class Orders:
    """Fetches orders, has them carried out, delivers their results.

    Args:
        folder: where results are stored.
        program: makes the child program of a module (command and environment).
        client: makes a client for the daemon; every thread has its own.
        own: probe arguments from this node's settings, by kind of order; an order cannot change them.
        owners: the owners of jobs that ran here.
        slurm: how slurmctld is asked for the owner of any other job, and for the folders that a job names.
        done: called with every result, e.g. a diagnostic that passed.
    """

    def __init__(
        self,
        node: str,
        folder: Path,
        children: Children,
        program: Callable[..., Program],
        client: Callable[[], DaemonClient],
        own: Callable[[OrderKind], Mapping[str, object]],
        owners: Owners,
        slurm: Slurm,
        done: Callable[[Request, Any], None] = lambda *_: None,
        *,
        backoff_s: float = 10.0,
    ) -> None:
        self.node = node
        self.carried_out = 0
        self.refused = 0
        self.given_up = 0  # results that were too long or that the daemon refused
        self.busy: Callable[[], bool] = lambda: False  # whether a job runs here, for which some orders are ended
        self._folder = folder
        self._children = children
        self._program = program
        self._client = client
        self._own = own
        self._owners = owners
        self._slurm = slurm
        self._done = done
        self._backoff_s = backoff_s
        self._lock = threading.Condition()
        self._results: dict[str, dict[str, Any]] = {}
        self._unsent: list[str] = []
        self._running: set[str] = set()
        self._yielding: dict[str, Diagnose] = {}  # orders that are ended when a job starts
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
        """The loop of the thread that fetches orders."""
        client = self._polling = self._client()
        retries = Retries(self._backoff_s)
        while not self._stopped.is_set():
            try:
                answer = client.post(ORDERS, {"node": self.node}, deadline_s=LONG_POLL_S + 10)
                retries.succeeded()
                orders = answer.get("orders", [])
                for order in orders if isinstance(orders, list) else []:
                    self.take(order)
                if orders:
                    self._stopped.wait(0.2)  # the daemon repeats an order until it has the result
            except SentinelError as error:  # logged by the sender, whose daemon is the same
                retries.failed(error)
                self._stopped.wait(retries.pause_s())
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                log.bug("orders")
                self._stopped.wait(1.0)
        client.close()

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            self._lock.notify_all()
        if self._polling is not None:
            self._polling.interrupt()

    def take(self, order: Any) -> None:
        """Start a new order; send the result of a known one again; refuse a malformed one."""
        identity = order.get("id") if isinstance(order, dict) else None
        if not isinstance(identity, str) or not 0 < len(identity) <= MOST_ID:
            self.refused += 1
            log.warning("order-unreadable", id=ascii(identity)[:MOST_ID])
            return
        with self._lock:
            if identity in self._running:
                return
            if identity in self._results:
                if identity not in self._unsent:
                    self._unsent.append(identity)
                    self._lock.notify_all()
                return
            if len(self._running) + len(self._unsent) >= MOST_WAITING:
                self.refused += 1
                return  # the daemon will send it again
            self._running.add(identity)
        try:
            found = read_order(order, identity)
        except OrderRefused as error:
            self._refuse(identity, None, error.message)
            return
        request = found.request
        if isinstance(request, Diagnose) and request.yields and self.busy():
            self._finish(identity, request.kind, True, _yielded(request), "", request)
            return
        log.info("order-begun", id=identity, kind=request.kind)
        if not isinstance(request, AS_USER):
            self._begin(found, self._owners.of(request.job) if isinstance(request, TaskStates) else None)
        elif (owner := self._owners.of(request.job)) is not None:
            self._begin_as(found, owner)
        elif isinstance(request, (AskJob, WriteToLog)) or not self._slurm.squeue:
            self._refuse(identity, request.kind, not_here(request.job))
        else:
            self._ask_owner(found, request.job)

    def _refuse(self, identity: str, kind: OrderKind | None, reason: str) -> None:
        self.refused += 1
        log.warning("order-refused", id=identity[:MOST_ID], kind=kind, reason=reason)
        self._finish(identity, kind, False, None, reason)

    def _begin_as(self, order: Order, owner: Owner) -> None:
        def begin(order: Order, told: Mapping[str, Any], _reason: str) -> None:
            self._begin(order, owner, told.get("named"))

        if owner.uid == 0:
            reason = f"job {_job_of(order)} is root's: nothing of a job is read or moved as root"
            self._refuse(order.id, order.request.kind, reason)
        elif isinstance(order.request, MoveAside) and self._slurm.squeue:
            self._ask_slurm(order, order.request.job, {"named_on": self.node}, begin)
        else:
            self._begin(order, owner)

    def _ask_owner(self, order: Order, job: int) -> None:
        """Start an order about a job that did not run here lately, after asking slurmctld for its owner."""

        def begin(order: Order, told: Mapping[str, Any], reason: str) -> None:
            if isinstance(found := told.get("owner"), dict):
                self._begin_as(order, Owner(found["uid"], found["gid"]))
                return
            words = f"{not_here(job)}, and whose it is Slurm does not tell: {reason.strip()[:300]}"
            self._refuse(order.id, order.request.kind, words)

        self._ask_slurm(order, job, {}, begin)

    def _ask_slurm(self, order: Order, job: int, asked: Mapping[str, object], then: Then) -> None:
        if not self._children.start(slurm_first(order, job, asked, then, self._slurm, self._program)):
            self._finish(order.id, order.request.kind, False, None, STOPPING)

    def _begin(self, order: Order, owner: Owner | None, named: list[str] | None = None) -> None:
        identity, request, deadline_s = order.id, order.request, order.deadline_s
        kind, answers = request.kind, list[dict[str, Any]]()
        if isinstance(request, Diagnose) and request.yields:
            with self._lock:
                self._yielding[identity] = request

        def heard(message: dict[str, Any]) -> None:
            del answers[MOST_ANSWERS - 1 :]  # the last one is kept in any case
            answers.append(message)

        def ended(ending: Ending) -> None:
            answer = answers[-1] if answers else {}
            if (listings := _listings(answers)) is not None:
                self._finish(identity, kind, True, {"listings": listings}, "", request)
            elif ending.silent and "result" not in answer:
                where = f" while it was in state {ending.where}" if ending.where else ""
                self._finish(identity, kind, False, None, f"no answer within {deadline_s:g} s{where}: killed", request)
            elif "error" in answer:
                self._finish(identity, kind, False, None, str(answer["error"])[:2000], request)
            elif "result" in answer:
                self._finish(identity, kind, True, answer["result"], "", request)
            else:
                reason = ending.stderr.strip()[-500:]
                self._finish(identity, kind, False, None, f"ended with status {ending.status}: {reason}", request)

        own: dict[str, object] = {"node": self.node, **self._own(kind), "deadline_s": deadline_s, "order": identity}
        if owner is not None:
            own |= {"uid": owner.uid, "gid": owner.gid}
        if isinstance(request, WriteToLog):
            own["log"] = self._owners.log_of(request.job, request.attempt)
        if isinstance(request, MoveAside):
            own["named"] = named
        program = self._program(
            f"order:{identity}",
            PROGRAMS[kind],
            {**request.arguments(), **own},  # the node's own arguments come last: no order can override them
            silent_s=deadline_s,
            total_s=deadline_s,
            most_bytes=OUTPUT_BYTES,
            on_message=heard,
            on_end=ended,
        )
        if not self._children.start(program):
            self._finish(identity, kind, False, None, STOPPING, request)

    def give_way(self) -> bool:
        """End orders that yield to a job. True if there was one: DCGM's host engine may still be working on it."""
        with self._lock:
            ended = dict(self._yielding)
            self._yielding.clear()
        for identity, request in ended.items():
            self._children.stop(f"order:{identity}")
            self._finish(identity, request.kind, True, _yielded(request), "", request)
        return bool(ended)

    def _finish(
        self,
        identity: str,
        kind: OrderKind | None,
        ok: bool,
        result: Any,
        error: str,
        request: Request | None = None,
    ) -> None:
        kept: dict[str, Any] = {"id": identity, "kind": kind, "ok": ok, "result": result, "error": error}
        kept["acknowledged"] = False
        if (size := len(json.dumps(kept))) > RESULT_BYTES:
            kept |= self._without_result(identity, f"the answer has {size} bytes, more than {RESULT_BYTES}")
            ok, error = False, kept["error"]
        log.info("order-ended", id=identity, kind=kind, ok=ok, error=error)
        save(self._path(identity), kept)
        with self._lock:
            self._running.discard(identity)
            self._yielding.pop(identity, None)
            self._results[identity] = kept
            self._unsent.append(identity)
            self.carried_out += 1
            self._lock.notify_all()
        if ok and request is not None:
            self._done(request, result)

    # ------------------------------------------------------------------------------------------------ delivering

    def deliver(self) -> None:
        """The loop of the thread that sends results until each is acknowledged."""
        client, retries = self._client(), Retries(self._backoff_s)
        while not self._stopped.is_set():
            with self._lock:
                while not self._unsent and not self._stopped.is_set():
                    self._lock.wait()
                identity = self._unsent[0] if self._unsent else None
            if identity is None:
                continue
            try:
                self.send(client, identity)
                retries.succeeded()
            except SentinelError as error:  # the daemon is unreachable: the sender logs that already
                retries.failed(error)
                self._stopped.wait(retries.pause_s())
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                log.bug("results")
                self._stopped.wait(1.0)
        client.close()

    def send(self, client: DaemonClient, identity: str) -> None:
        kept = self._results[identity]
        try:
            client.post(ORDER_RESULT, self._body(kept))
        except SentinelError as error:
            if not error.signed or isinstance(error, Unavailable):
                raise
            kept |= self._without_result(identity, f"the daemon does not take the answer: {error.message}")
            try:
                client.post(ORDER_RESULT, self._body(kept))
            except SentinelError as again:
                if not again.signed or isinstance(again, Unavailable):
                    raise  # otherwise only this result was refused: go on with the next
        kept["acknowledged"] = True
        save(self._path(identity), kept)
        with self._lock:
            if identity in self._unsent:
                self._unsent.remove(identity)
            old = [name for name, result in self._results.items() if result.get("acknowledged")]
            for name in old[: max(0, len(old) - REMEMBERED)]:
                del self._results[name]
                self._path(name).unlink(missing_ok=True)

    def _body(self, kept: dict[str, Any]) -> dict[str, Any]:
        return {"node": self.node, "id": kept["id"], **{key: kept[key] for key in ("ok", "result", "error")}}

    def _without_result(self, identity: str, reason: str) -> dict[str, Any]:
        """What replaces a result that cannot be sent."""
        self.given_up += 1
        log.warning("result-given-up", id=identity, reason=reason)
        return {"ok": False, "result": None, "error": reason[:2000]}

    def _path(self, identity: str) -> Path:
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in identity)[:120]
        return self._folder / f"{safe}.json"


def not_here(job: int) -> str:
    return f"job {job} does not run and did not lately run on this node"


def _job_of(order: Order) -> object:
    return getattr(order.request, "job", None)


def _yielded(request: Diagnose) -> dict[str, Any]:
    reason = "a job goes before it"
    gpus = list(request.gpus) if request.gpus is not None else None
    return {"result": "inconclusive", "reason": reason, "level": request.level, "gpus": gpus}


def _listings(answers: list[dict[str, Any]]) -> list[Any] | None:
    """The listing of each root, or that it did not answer. None: the order is not a listing."""
    first = answers[0].get("listings") if answers else None
    if not isinstance(first, list):
        return None
    listings = list(first)
    for answer in answers[1:]:
        if isinstance(answer.get("index"), int) and 0 <= answer["index"] < len(listings):
            listings[answer["index"]] = answer.get("listing", [])
    return listings
