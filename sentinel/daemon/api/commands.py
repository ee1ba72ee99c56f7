"""Carries out operators' commands (pause, drain, approve, ...). Each is checked against its limits and logged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.daemon.api.accounts import account_of
from sentinel.daemon.api.explanation import by_id, drained_for, kept_reason
from sentinel.daemon.api.histories import named
from sentinel.daemon.api.status import responds_to_slurm, shown_state
from sentinel.daemon.effects.messages import send_trials
from sentinel.daemon.incident_search import IncidentSearch
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.daemon.runner import Runner
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.events import ApprovalGiven
from sentinel.engine.reconcile import approvals
from sentinel.errors import Denied, Refused, SentinelError, Unavailable, UserError
from sentinel.log import Log
from sentinel.model.audit import AuditEntry, Stage
from sentinel.model.changes import Audited, SettingChanged
from sentinel.model.corrections import MOST_NOTE, Correction
from sentinel.model.records import OURS, Cause, NodeView, Scope
from sentinel.ports import Clock, SlurmReader, SlurmWriter
from sentinel.wire import time_from, to_json

_MOST_PARTS = 1000  # most parts of one plan that one answer may cover
RELEASED = "released"  # stored setting: node -> when an operator last returned it to service
RELEASED_BY = "released_by"  # stored setting: node -> who that was


@dataclass(frozen=True, slots=True)
class Person:
    """Who asked for a change. ``origin``: the address of the request."""

    name: str
    origin: str


class OperatorCommands:
    def __init__(
        self,
        *,
        store: Store,
        live: ClusterView,
        fleets: FleetSnapshots,
        clock: Clock,
        reader: SlurmReader,
        writer: SlurmWriter,
        runner: Runner,
        log: Log,
    ) -> None:
        self._store = store
        self._live = live
        self._fleets = fleets
        self._clock = clock
        for name, at in store.get(RELEASED, {}).items():
            live.node(name).released_at = time_from(at)
        self._reader = reader
        self._writer = writer
        self._runner = runner
        self._log = log
        self._releasing = asyncio.Lock()  # each adds to what is stored of those before it, or takes back its own alone
        self._changes: dict[str, Callable[[dict[str, Any], Person], Awaitable[dict[str, Any]]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "drain": self._drain,
            "release": self._release,
            "approve": self._approve,
            "refuse": self._refuse,
            "test_alert": self._test_alert,
            "correct": self._correct,
        }

    async def make(self, change: str, arguments: dict[str, Any], uid: int, origin: str = "") -> dict[str, Any]:
        """Make a change for the operator ``uid``. ``origin``: the address of the request."""
        if change not in self._changes:
            raise UserError(
                f"no change {change!r}", fix="upgrade the daemon or the command line: their releases differ"
            )
        who = await account_of(uid)
        self._log.info("change", change=change, by=who, arguments=str(arguments))
        return await self._changes[change](arguments, Person(who, origin))

    async def _pause(self, _arguments: dict[str, Any], by: Person) -> dict[str, Any]:
        await self._runner.command("pause", by.name, by.origin)
        return {"paused": True, "by": by.name}

    async def _resume(self, _arguments: dict[str, Any], by: Person) -> dict[str, Any]:
        await self._runner.command("resume", by.name, by.origin)
        return {"paused": False, "by": by.name}

    async def _approve(self, arguments: dict[str, Any], by: Person) -> dict[str, Any]:
        return await self._answer(arguments, by, approved=True)

    async def _refuse(self, arguments: dict[str, Any], by: Person) -> dict[str, Any]:
        return await self._answer(arguments, by, approved=False)

    async def _answer(self, arguments: dict[str, Any], by: Person, *, approved: bool) -> dict[str, Any]:
        """Apply an operator's answer to a plan of mode suggest. Nothing is awaited between its check and its effect."""
        incident, request, what = (arguments.get(name) for name in ("incident", "request", "what"))
        if not isinstance(what, list) or not what or len(what) > _MOST_PARTS:
            raise UserError("what is answered is not said", fix="sentinel approve INCIDENT shows what is asked")
        parts = tuple(_printable(part) for part in what)
        note = _printable(arguments.get("note") or "")
        event = ApprovalGiven(
            self._clock.now(),
            _printable(incident, 80),
            _printable(request, 80),
            parts,
            approved,
            by.name,
            by.origin,
            note,
        )
        problem = approvals.problem(self._runner.state, event.incident, event.request, parts)
        await self._runner.decide(event)
        if problem:
            raise Refused(problem, fix=f"sentinel why {event.incident} shows what is asked now")
        return {"incident": event.incident, "approved" if approved else "refused": list(parts), "by": by.name}

    async def _test_alert(self, arguments: dict[str, Any], by: Person) -> dict[str, Any]:
        return await send_trials(self._runner, self._clock, str(arguments.get("to") or ""), by.name)

    async def _correct(self, arguments: dict[str, Any], by: Person) -> dict[str, Any]:
        name = str(arguments.get("incident", ""))
        row = by_id(name, await asyncio.to_thread(IncidentSearch(self._store).beginning, name, None))
        cause, scope = Cause(named("cause", arguments, Cause)), arguments.get("scope")
        where = Scope(named("scope", arguments, Scope)) if scope is not None else self._usual_scope(cause)
        note = _printable(arguments.get("note") or "", MOST_NOTE)
        made = Correction(self._clock.now(), by.name, cause, where, row["cause"], row["scope"], note)
        await self._runner.correct(row, made, by.origin)
        return {"incident": row["id"], **to_json(made)}

    def _usual_scope(self, cause: Cause) -> Scope:
        """The usual scope of a cause, for a correction that names none."""
        entry = self._runner.state.rules.causes.get(cause)
        return entry.scope if entry is not None else Scope.UNKNOWN

    async def _audited(self, entry: AuditEntry, change: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Make a change between two audit entries (begun, ended), and return how it is after that, as ``change`` says.

        Without the first entry nothing is changed.
        """
        await asyncio.to_thread(self._store.commit, [Audited(entry)])
        stage, why = Stage.DONE, ""
        try:
            after = await change()
        except SentinelError as error:
            stage, why, after = _stage_of(error), error.message, {}
            raise
        finally:
            self._fleets.changed_by_us()  # who looks next sees it; so does who gave the command twice
            ended = replace(entry, at=self._clock.now(), stage=stage, why=why, before={}, after=after)
            try:
                await asyncio.to_thread(self._store.commit, [Audited(ended)])
            except Unavailable as error:  # the first entry records that it was begun
                self._log.warning("audit-not-written", action=entry.action, target=entry.target, reason=error.message)
        return after

    async def _drain(self, arguments: dict[str, Any], by: Person) -> dict[str, Any]:
        node = str(arguments.get("node", ""))
        reason = _printable(arguments.get("reason") or "by an operator")
        if (seen := await self._reader.node(node)) is None:
            raise UserError(f"Slurm knows no node {node!r}", fix="sinfo -N lists them")
        words = f"{OURS}{by.name}: {reason}"
        if seen.drained and (incident := drained_for(seen.reason)):
            known = await asyncio.to_thread(self._store.incident_rows, ids=[incident])
            words = kept_reason(words, incident) if known else words
        wanted = {"drained": True, "reason": words}

        async def drain() -> dict[str, Any]:
            # A drain of ours gets the new reason: one that a person has named is theirs, and no test returns the node.
            await self._writer.drain(node, words, replace=True)
            now = await self._now(node)
            return {"drained": now.drained, "reason": now.reason} if now is not None else wanted

        entry = self._entry(by, "drain", node, reason, before=_before(seen), after={"wanted": wanted})
        after = await self._audited(entry, drain)
        return {"node": node, **after, "before": seen.reason if seen.drained else None}

    async def _now(self, node: str) -> NodeView | None:
        """The node after a change; None: not known, which makes no failure of the change."""
        try:
            return await self._reader.node(node)
        except Unavailable:
            return None

    def _entry(
        self, by: Person, action: str, node: str, why: str, *, before: dict[str, Any], after: dict[str, Any]
    ) -> AuditEntry:
        now, target = self._clock.now(), f"node {node}"
        return AuditEntry(now, by.name, by.origin, action, Stage.BEGUN, target, why=why, before=before, after=after)

    async def _release(self, arguments: dict[str, Any], by: Person) -> dict[str, Any]:
        name = str(arguments.get("node", ""))
        node = await self._reader.node(name)
        if node is None:
            raise UserError(f"Slurm knows no node {name!r}", fix="sinfo -N lists them")
        if not node.drained and node.state != "down":
            raise Refused(f"{name} is not drained")
        if not node.reason.startswith(OURS):
            raise Refused(
                f"{name} was drained by somebody else: {node.reason!r:.120}",
                fix=f"what is not ours is not returned by us; use scontrol update NodeName={name} State=RESUME",
            )

        async def undrain() -> dict[str, Any]:
            await self._undrain(name, by.name)
            if (now := await self._now(name)) is None:
                return {"drained": False, "responds": responds_to_slurm(node)}
            # Slurm shows each node that it resumes so until its next answer, less than a second later.
            anew = "not_responding" in now.flags - node.flags
            now = replace(now, flags=now.flags - {"not_responding"}) if anew else now
            responds = responds_to_slurm(node if anew else now)
            return {"drained": now.drained, "state": shown_state(now), "responds": responds}

        entry = self._entry(by, "release", name, "", before=_before(node), after={"wanted": {"drained": False}})
        return {"node": name, **await self._audited(entry, undrain), "agent": self._live.node(name).state}

    async def _undrain(self, node: str, by: str) -> None:
        """Give the node back to Slurm, and keep when that was, and who did it."""
        async with self._releasing:
            earlier = {key: await asyncio.to_thread(self._store.get, key, {}) for key in (RELEASED, RELEASED_BY)}
            before, now = self._live.node(node).released_at, self._clock.now()
            told = {RELEASED: to_json(now), RELEASED_BY: by}
            await self._keep({key: {**known, node: told[key]} for key, known in earlier.items()})
            # Before the request: a snapshot that shows the node in service must find that a person returned it.
            self._live.node(node).released_at = now
            try:
                await self._writer.undrain(node)
            except (Refused, Denied):  # after any other error it may be in service
                self._live.node(node).released_at = before
                try:
                    await self._keep(earlier)
                except Unavailable as error:  # Slurm's refusal is what the operator must hear
                    words = "the next daemon takes the node for released"
                    self._log.warning("release-not-taken-back", node=node, reason=error.message, effect=words)
                raise

    async def _keep(self, settings: Mapping[str, Any]) -> None:
        changes = [SettingChanged(name, value) for name, value in settings.items()]
        await asyncio.to_thread(self._store.commit, changes)


def _printable(text: object, most: int = 200) -> str:
    return "".join(ch for ch in str(text) if ch.isprintable())[:most]


def _before(node: NodeView) -> dict[str, Any]:
    return {"state": shown_state(node), "drained": node.drained, "reason": node.reason}


def _stage_of(error: SentinelError) -> Stage:
    """The audit stage of a change that ended in ``error``; without an answer of Slurm it may have happened."""
    if isinstance(error, Refused | Denied):
        return Stage.REFUSED
    return Stage.NOT_KNOWN if isinstance(error, Unavailable) else Stage.FAILED
