"""Finds the switch of a node by ``scontrol show topology``, if its record does not name it, as in all old releases."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from sentinel.adapters.slurm.parse import Record
from sentinel.adapters.slurm.process import SlurmSaidNo
from sentinel.errors import ProtocolError, Unavailable
from sentinel.model.hostlist import expand
from sentinel.model.records import Unread
from sentinel.text import text_of

_KEPT_S = 600.0  # topology.conf changes when racks do, and slurmctld must be started again for it
_AGAIN_S = (
    10.0  # after no answer: soon, as the limits per switch are off before one; seldom, for a slurmctld in trouble
)
_LEAF = re.compile(r"^SwitchName=(\S+) Level=0 (?:.*\s)?Nodes=(\S+)", re.MULTILINE)


def leaves_of(text: str) -> dict[str, str]:
    """The leaf switch of each node, as ``scontrol show topology`` prints it.

    Raises:
        ProtocolError: a list of nodes cannot be read.
    """
    return {name: switch for switch, nodes in _LEAF.findall(text) for name in expand(nodes)}


class Topology:
    """Adds the switch to node records that name none. Unknown ones stay unknown, and limits per switch ignore them.

    Args:
        ask: the output of ``scontrol show topology``; raises Unavailable, or SlurmSaidNo.
        seconds: a monotonic clock.
    """

    def __init__(self, ask: Callable[[], Awaitable[bytes]], seconds: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._seconds = seconds
        self._leaves: Mapping[str, str] = {}
        self._until_s = float("-inf")
        self.unread: tuple[Unread, ...] = ()  # that the switches could not be read, while they are needed

    async def added(self, nodes: Sequence[Record]) -> Sequence[Record]:
        if all(record.get("topology") for record in nodes):
            self.unread = ()
            return nodes
        if self._seconds() >= self._until_s:
            await self._read()
        if not self._leaves:
            return nodes
        return [
            record if record.get("topology") else {**record, "topology": self._leaves.get(str(record.get("name")), "")}
            for record in nodes
        ]

    async def _read(self) -> None:
        """Ask. What was known before is still true where there is no answer."""
        try:
            self._leaves = leaves_of(text_of(await self._ask()))
        except SlurmSaidNo:
            pass  # it has none to tell of
        except (Unavailable, ProtocolError) as error:
            effect = (
                "what was known before still counts" if self._leaves else "the limits per switch are off until then"
            )
            self.unread = (Unread("switches", "of the nodes", f"{error.message}; {effect}"),)
            self._until_s = self._seconds() + _AGAIN_S
            return
        self.unread, self._until_s = (), self._seconds() + _KEPT_S
