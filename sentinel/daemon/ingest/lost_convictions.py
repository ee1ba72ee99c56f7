"""Finds convicting evidence that agents stand by and the store does not have, so that nothing was judged from it.

A store can lose what was acknowledged: a damaged file is moved aside, a database fails over to a replica that lacks the last
seconds. The agent goes on to call its node BAD, and names the evidence; what is not in the store is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sentinel.adapters.threads import Threads
from sentinel.errors import Unavailable
from sentinel.log import Log

_SETTLE_S = 10.0  # evidence is on its way, or waits in the agent's spool: it is looked for after so long
_AGAIN_S = 60.0  # after it was asked for
_TRIES = 5  # so often it is asked for
_MOST = 32  # ids of a node: two for each of sixteen GPUs


@dataclass(slots=True)
class _Node:
    ids: tuple[str, ...]
    look_s: float  # when the store is asked next
    missing: tuple[str, ...] = ()  # not asked for yet
    tries: int = 0
    looking: bool = False


class LostConvictions:
    def __init__(self, known: Callable[[Sequence[str]], Collection[str]], log: Log) -> None:
        """``known``: which of these ids of evidence the store has; blocking, raises ``Unavailable``."""
        self._known = known
        self._log = log
        self._threads = Threads("lost-convictions", 1)
        self._nodes: dict[str, _Node] = {}
        self._looks: set[asyncio.Task[None]] = set()

    def heard(self, node: str, verdict: Mapping[str, Any], now_s: float) -> tuple[str, ...]:
        """Take in the verdict of a heartbeat; returns the ids to ask the agent for, each time once.

        Args:
            now_s: monotonic seconds.
        """
        named = verdict.get("evidence") if verdict.get("word") == "BAD" else None
        ids = tuple(one[:40] for one in named if isinstance(one, str))[:_MOST] if isinstance(named, list) else ()
        if not ids:
            self._nodes.pop(node, None)
            return ()
        seen = self._nodes.get(node)
        if seen is None or seen.ids != ids:
            seen = self._nodes[node] = _Node(ids, now_s + _SETTLE_S)
        if now_s >= seen.look_s and not seen.looking and seen.tries < _TRIES:
            seen.looking, seen.look_s = True, now_s + _AGAIN_S
            task = asyncio.create_task(self._look(node, seen))
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)
        missing, seen.missing = seen.missing, ()
        return missing

    async def _look(self, node: str, seen: _Node) -> None:
        try:
            known = await self._threads.call(self._known, seen.ids)
        except Unavailable:
            return  # looked for again
        finally:
            seen.looking = False
        seen.missing = tuple(one for one in seen.ids if one not in known)
        seen.tries = seen.tries + 1 if seen.missing else _TRIES
        if seen.missing:
            self._log.warning("conviction-not-in-store", node=node, evidence=",".join(seen.missing), tries=seen.tries)
