"""Carries out operators' commands (pause, resume, drain, release). Each is checked against its limits and logged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.daemon.api.accounts import name_of
from sentinel.daemon.runner import Runner
from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import Refused, UserError
from sentinel.log import Log
from sentinel.model.records import OURS
from sentinel.ports import Clock, SlurmReader, SlurmWriter
from sentinel.wire import time_from, to_json

RELEASED = "released"  # stored setting: node -> when an operator last returned it to service


class OperatorCommands:
    def __init__(
        self,
        *,
        store: Store,
        live: ClusterView,
        clock: Clock,
        reader: SlurmReader,
        writer: SlurmWriter,
        runner: Runner,
        log: Log,
    ) -> None:
        self._store = store
        self._live = live
        self._clock = clock
        for name, at in store.get(RELEASED, {}).items():
            live.node(name).released_at = time_from(at)
        self._reader = reader
        self._writer = writer
        self._runner = runner
        self._log = log
        self._changes: dict[str, Callable[[dict[str, Any], str], Awaitable[dict[str, Any]]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "drain": self._drain,
            "release": self._release,
        }

    async def make(self, change: str, arguments: dict[str, Any], uid: int) -> dict[str, Any]:
        if change not in self._changes:
            raise UserError(
                f"no change {change!r}", fix="upgrade the daemon or the command line: their releases differ"
            )
        who = name_of(uid)
        self._log.info("change", change=change, by=who, arguments=str(arguments))
        return await self._changes[change](arguments, who)

    async def _pause(self, _arguments: dict[str, Any], who: str) -> dict[str, Any]:
        await self._runner.command("pause", who)
        return {"paused": True, "by": who}

    async def _resume(self, _arguments: dict[str, Any], who: str) -> dict[str, Any]:
        await self._runner.command("resume", who)
        return {"paused": False, "by": who}

    async def _drain(self, arguments: dict[str, Any], who: str) -> dict[str, Any]:
        node = str(arguments.get("node", ""))
        reason = "".join(ch for ch in str(arguments.get("reason") or "by an operator") if ch.isprintable())[:200]
        if await self._reader.node(node) is None:
            raise UserError(f"Slurm knows no node {node!r}", fix="sinfo -N lists them")
        await self._writer.drain(node, f"{OURS}{who}: {reason}")
        return {"node": node, "drained": True}

    async def _release(self, arguments: dict[str, Any], _who: str) -> dict[str, Any]:
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
        self._live.node(name).released_at = now = self._clock.now()
        released = await asyncio.to_thread(self._store.get, RELEASED, {})
        await asyncio.to_thread(self._store.put, RELEASED, {**released, name: to_json(now)})
        await self._writer.undrain(name)
        return {"node": name, "drained": False}
