"""Asks the driver itself (NVML) about what DCGM's host engine says where any user of the node may write into that.

What the driver says as well is told as NVML's and convicts; what it does not, or where it cannot be asked, stays DCGM's word
alone. A driver that does not answer takes nothing back: what it said holds while DCGM shows it; what it has not denied is
not known. An Xid of the past it does not tell: that is in the kernel log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.state_files import restore, save
from sentinel.agent.settings import AgentSettings
from sentinel.config.convictions import Convictions
from sentinel.errors import ProtocolError
from sentinel.evidence.dcgm import DcgmReader, Fact
from sentinel.evidence.gpu_samples import sample_from
from sentinel.log import Log
from sentinel.model.records import Evidence

log = Log()

NAME = "gpu-driver"
LEAST_S = 3.0  # between two questions, however often DCGM says something new: anybody may make it do so
AGAIN_S = 15.0  # between them while a fault holds, to see when it ends
FRESH_S = 3 * AGAIN_S  # an older answer does not describe the present state


class DriverCheck:
    """
    Args:
        keep: gets what the driver says that speaks for a drain.
    """

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        keep: Callable[[Evidence], None],
        convictions: Convictions,
        boot: str = "",
    ) -> None:
        self.on_change: Callable[[], None] = lambda: None  # called when what ``judged`` says may have changed
        self._settings = settings
        self._children = children
        self._program = program
        self._keep = keep
        self._convictions = convictions
        self._state = Path(settings.state) / "gpu_driver.json"
        promised = settings.gpus if settings.gpus >= 0 else None
        kept = restore(self._state)
        self._reader = DcgmReader(node, convictions, promised, kept if isinstance(kept, dict) else None, boot)
        self._lock = threading.Lock()
        self._wanted = self._asking = False
        self._asked_s = self._heard_s = float("-inf")
        self._said = ""

    def look(self, found: Sequence[Evidence], doubted: bool) -> None:
        """Ask the driver if there is something to ask.

        Args:
            found: what DCGM said just now.
            doubted: whether it shows a fault for which a prolog would refuse jobs if it were believed.
        """
        now_s = monotonic()
        with self._lock:
            self._wanted = self._wanted or any(self._convictions.of(item).convicts for item in found)
            holds = doubted or bool(self._reader.facts())
            pause_s = LEAST_S if self._wanted else AGAIN_S
            if self._asking or not (self._wanted or holds) or now_s - self._asked_s < pause_s:
                return
            self._asking, self._wanted, self._asked_s = True, False, now_s
        dcgm = self._settings.dcgm
        started = self._children.start(
            self._program(
                NAME,
                "sentinel.agent.probes.dcgm",
                {"driver_alone": True, "nvml": dcgm.nvml},
                silent_s=dcgm.silent_s,
                on_message=self.heard,
                on_end=self.ended,
            )
        )
        if not started:
            self._asking = False

    def heard(self, message: dict[str, Any]) -> None:
        if message.get("type") != "sample":
            self._not_known(str(message.get("reason") or message))
            return
        try:
            sample = sample_from(message, datetime.now(UTC))
        except ProtocolError as error:
            self._not_known(str(error))
            return
        with self._lock:
            found = [item for item in self._reader.read(sample) if self._convictions.of(item).convicts]
            self._heard_s, self._said = monotonic(), ""
        for evidence in found:
            self._keep(evidence)
        save(self._state, self._reader.state)  # after the evidence: a crash in between only repeats it
        self.on_change()

    def ended(self, ending: Ending) -> None:
        self._asking = False
        if ending.silent:
            self._not_known(f"it was silent and was killed ({ending.where or 'state not known'})")
        elif ending.status not in (0, None):
            self._not_known((ending.stderr.strip().splitlines() or [f"status {ending.status}"])[-1])

    def judged(self, shown: Sequence[Fact]) -> tuple[list[Fact], list[Fact]]:
        """What holds, and what is not known.

        Args:
            shown: faults that DCGM shows now.

        Returns: the faults that the driver shows; of an answer that is too old those that DCGM shows as well, as nothing has
        disproved them. And the faults that one of them shows or showed, and no answer of the present confirms or denies.
        """
        with self._lock:
            said = self._reader.facts()
            if monotonic() - self._heard_s <= FRESH_S:
                known = {fact.about for fact in said}
                return said, [fact for fact in shown if fact.about not in known and not self._reader.denies(fact)]
            still = {fact.about for fact in shown}
            return [fact for fact in said if fact.about in still], [*shown, *said]

    def _not_known(self, reason: str) -> None:
        if reason != self._said:  # each problem is logged once
            self._said = reason
            log.warning("gpu-driver-not-known", reason=reason)
