"""Performs effects on drained nodes: the site's reset and reboot commands, return to service, repair tickets."""

from __future__ import annotations

import json

from sentinel.adapters import site_command
from sentinel.adapters.notify.http_post import name_of, post
from sentinel.config.return_settings import ReturnSettings
from sentinel.engine.events import NodeReturnAnswered
from sentinel.engine.node_return.state import HAS_WORK, is_out, plain_reason
from sentinel.engine.transition import OpenTicket, ReturnNode, RunSiteCommand
from sentinel.errors import Refused, SentinelError, Timeout, Unavailable
from sentinel.model.records import NodeView
from sentinel.ports import Clock, Fence, SlurmReader, SlurmWriter

_HEADERS = {"Content-Type": "application/json"}


class NodeReturnEffects:
    def __init__(
        self,
        *,
        settings: ReturnSettings,
        reader: SlurmReader,
        writer: SlurmWriter,
        clock: Clock,
        fence: Fence | None = None,
    ) -> None:
        """``fence``: confirms the lease before a site command is run; the Slurm writer does so itself."""
        self._settings = settings
        self._fence = fence
        self._reader = reader
        self._writer = writer
        self._clock = clock

    async def command(self, effect: RunSiteCommand) -> NodeReturnAnswered:
        """Run a site command, after reading the node again: it may have been returned since, and a job may run there.

        Only a command that was run can fail; one that was not run proves nothing about the node.
        """
        try:
            node = await self._reader.node(effect.node)
            if (refusal := _no_longer(node, effect)) or node is None:
                return self._answer(effect, "refused", refusal)
            if node.state in HAS_WORK:
                return self._answer(effect, "unavailable", f"a job holds {effect.node}")
            if self._fence is not None:
                await self._fence.confirm()
        except SentinelError as error:
            return self._answer(effect, "unavailable", error.message)
        result, reason = "done", ""
        try:
            await site_command.run(effect.arguments, deadline_s=effect.deadline_s)
        except SentinelError as error:
            not_begun = isinstance(error, Unavailable) and not isinstance(error, Timeout)
            result, reason = "unavailable" if not_begun else "failed", error.message
        return self._answer(effect, result, reason)

    async def put_back(self, effect: ReturnNode) -> NodeReturnAnswered:
        """Return a node to service, after reading it again: only the drain that the engine has seen is undone."""
        try:
            node = await self._reader.node(effect.node)
            if node is not None and not is_out(node):
                return self._answer(effect, "done")
            if refusal := _no_longer(node, effect):
                return self._answer(effect, "refused", refusal)
            await self._writer.undrain(effect.node)
        except Refused as error:  # Slurm refuses to end our drain, or somebody changed the node just now
            return self._answer(effect, "failed", error.message)
        except SentinelError as error:  # no answer, or missing permissions, which a person can correct
            return self._answer(effect, "unavailable", error.message)
        return self._answer(effect, "done")

    async def ticket(self, effect: OpenTicket) -> NodeReturnAnswered:
        """Open a repair ticket by each configured way. If one fails, both are tried again later with the same id."""
        body, settings, result, reason = json.dumps(dict(effect.data)).encode(), self._settings, "done", ""
        try:
            if self._fence is not None:
                await self._fence.confirm()
        except SentinelError as error:
            return self._answer(effect, "unavailable", error.message)
        try:
            if settings.ticket_command:
                await site_command.run(settings.ticket_command, deadline_s=settings.command_s, data=body)
            if settings.ticket_url:
                await post(
                    settings.ticket_url, body, _HEADERS, deadline_s=settings.command_s, name=name_of(settings.ticket_url),
                    fix="check returns.ticket_url", what="ticket system",
                )  # fmt: skip
        except SentinelError as error:
            result, reason = "failed", error.message
        return self._answer(effect, result, reason)

    def _answer(
        self, effect: RunSiteCommand | ReturnNode | OpenTicket, result: str, reason: str = ""
    ) -> NodeReturnAnswered:
        return NodeReturnAnswered(self._clock.now(), effect.id, effect.node, result, reason)


def _no_longer(node: NodeView | None, effect: RunSiteCommand | ReturnNode) -> str:
    """Why the node must not be changed, as it differs from what the engine saw; empty if it does not."""
    if node is None:
        return f"Slurm knows no node {effect.node}"
    if not is_out(node):
        return f"{effect.node} is in service again"
    if plain_reason(node.reason) != effect.reason:
        return f"its drain has another reason now: {node.reason[:120]}"
    return ""
