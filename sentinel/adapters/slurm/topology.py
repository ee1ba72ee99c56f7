"""Finds the switch of each node by ``scontrol show topology``, if node records do not name it (old releases)."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sentinel.adapters.slurm.parse import Record
from sentinel.errors import ProtocolError, Unavailable
from sentinel.model.hostlist import expand
from sentinel.text import text_of

_KEPT_S = 600.0  # topology.conf changes when racks do, and slurmctld must be started again for it
_LEAF = re.compile(r"^SwitchName=(\S+) Level=0 (?:.*\s)?Nodes=(\S+)", re.MULTILINE)


def leaves_of(text: str) -> dict[str, str]:
    """The leaf switch of each node, as ``scontrol show topology`` prints it.

    Raises:
        ProtocolError: a list of nodes cannot be read.
    """
    return {name: switch for switch, nodes in _LEAF.findall(text) for name in expand(nodes)}


class Topology:
    """Adds the switch to node records. Unknown switches stay unknown, and limits per switch ignore them.

    Args:
        ask: the output of ``scontrol show topology``; raises Unavailable.
        seconds: a monotonic clock.
    """

    def __init__(self, ask: Callable[[], Awaitable[bytes]], seconds: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._seconds = seconds
        self._leaves: Mapping[str, str] = {}
        self._until_s = float("-inf")

    async def added(self, nodes: Sequence[Record]) -> Sequence[Record]:
        if any(record.get("topology") for record in nodes):
            return nodes
        if self._seconds() >= self._until_s:
            self._until_s = self._seconds() + _KEPT_S
            with contextlib.suppress(Unavailable, ProtocolError):  # what was known before is still true
                self._leaves = leaves_of(text_of(await self._ask()))
        if not self._leaves:
            return nodes
        return [{**record, "topology": self._leaves.get(str(record.get("name")), "")} for record in nodes]
