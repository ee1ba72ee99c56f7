"""Writes the node's dated verdict, which the hooks read: ``OK|BAD|UNKNOWN <unix seconds> <code> <sentence>``.

A second line has the host's uptime in seconds, from which a hook computes the verdict's age without starting a process.

BAD requires positive proof that is valid now: a fault that convicts a node on its own by ``rules/convictions.toml`` (an
Xid, a lost GPU, a recovery action requested by the driver, memory that cannot be repaired, a failed diagnostic).
Without readable telemetry the verdict is UNKNOWN, for which no hook refuses a node.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.agent.process.state_files import restore, save, write_atomically
from sentinel.config.convictions import Convictions, Drain
from sentinel.evidence.dcgm import Fact
from sentinel.evidence.dcgm_conditions import HOLDS
from sentinel.model.records import Evidence, Kind, Source, Trust
from sentinel.text import brief, printable

TELEMETRY = (Source.DCGM, Source.NVML, Source.AMD_SMI)  # sources of GPU telemetry
_MOST_SHOWN = 300  # of the sentence
DRAIN_MODES = frozenset({"act", "observe"})  # whether the prolog may refuse this node, and so have Slurm drain it


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    word: str  # OK, BAD, UNKNOWN
    at_s: int
    code: str
    sentence: str

    @property
    def line(self) -> str:
        sentence = printable(self.sentence, "?")[:_MOST_SHOWN]
        return f"{self.word} {self.at_s} {self.code} {sentence}\n"


class VerdictKeeper:
    """Collects evidence that convicts the node and writes the verdict.

    Args:
        boot: id of this boot; a reboot clears the Xids before it.
        facts: hard faults that telemetry shows now.
        convictions: the rules for evidence that convicts a node on its own.
        telemetry: None when GPU telemetry is fresh, else why it is not.
    """

    def __init__(
        self,
        run_dir: Path,
        state: Path,
        boot: str,
        facts: Callable[[], Sequence[Fact]],
        telemetry: Callable[[], str | None],
        convictions: Convictions,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = run_dir / "verdict"
        self._mode_path = run_dir / "drain_mode"
        self._mode = ""
        if not self._mode_path.exists():
            self.set_drain_mode("observe")  # until the daemon says that acting is switched on here
        self._state = state / "convictions.json"
        self._boot = boot
        self._facts = facts
        self._telemetry = telemetry
        self._rules = convictions
        self._clock = clock
        kept = restore(self._state)
        same_boot = isinstance(kept, dict) and kept.get("boot") == boot
        self._convictions: dict[str, str] = dict(kept["convictions"]) if same_boot else {}
        self._said_s: dict[str, float] = dict(kept.get("since_s") or {}) if same_boot else {}  # Unix time, the newest
        self._released_s: float | None = None  # the last return to service, by the daemon's clock

    def set_drain_mode(self, mode: str) -> None:
        """Set the mode for the prolog: "act" refuses jobs on a BAD node; "observe" only reports that it would have."""
        if mode != self._mode and write_atomically(self._mode_path, f"{mode}\n"):
            self._mode = mode

    def consider(self, evidence: Evidence) -> None:
        """Keep convicting evidence until a diagnostic passes or the node reboots.

        Faults that telemetry shows continuously are not kept here: they convict for as long as they last (``facts``).
        """
        if evidence.source not in (Source.KERNEL, Source.DIAGNOSTIC, *TELEMETRY):
            return
        if evidence.trust is not Trust.SYSTEM:
            return
        convicts = self._rules.of(evidence) is Drain.YES
        gpu = "" if evidence.where.gpu is None else f"GPU {evidence.where.gpu}"
        where = evidence.data.get("pci") or gpu or "a GPU"
        if evidence.kind == Kind.XID and isinstance(action := evidence.data.get("action"), str):
            if convicts:
                self._convict(f"recovery_action/{where}", f"the driver asks for {action.replace('_', ' ')} of {where}")
            elif action == "none":
                self._take_back([f"recovery_action/{where}"])  # it was reset
        elif not convicts:
            return
        elif evidence.kind == Kind.XID:
            self._convict(f"xid_{evidence.data['xid']}/{where}", f"Xid {evidence.data['xid']} on {where}")
        elif evidence.kind == Kind.DIAG_FAILED:
            part = str(evidence.data.get("part") or "")
            self._convict(f"diagnostic/{part}", _named(part, evidence.text))
        elif evidence.source in TELEMETRY and evidence.kind not in HOLDS:
            part = gpu or evidence.where.gpu_uuid or ""
            self._convict(f"{evidence.kind}/{part}", _named(part, evidence.text))

    def diagnosed(self, result: Any) -> None:
        """Take the result of an ordered diagnostic. A pass on all GPUs clears earlier convicting evidence."""
        if isinstance(result, dict) and result.get("result") == "pass" and result.get("gpus") is None:
            self._take_back(list(self._convictions))

    def released(self, at_s: float, daemon_ahead_s: float = 0.0) -> None:
        """Clear Xids from before ``at_s``, when an operator returned the node to service.

        Faults that telemetry still shows (a lost GPU) go on convicting. Each heartbeat is answered with the same return: it
        counts once, since how far the clocks are apart is measured by the second.

        Args:
            at_s: Unix time by the daemon's clock.
            daemon_ahead_s: by how much that clock is ahead of this node's.
        """
        if at_s == self._released_s:
            return
        self._released_s = at_s
        before_s = at_s - daemon_ahead_s
        self._take_back([code for code in list(self._convictions) if self._said_s.get(code, 0.0) <= before_s])

    def _take_back(self, codes: Sequence[str]) -> None:
        known = [code for code in codes if code in self._convictions]
        for code in known:
            del self._convictions[code]
            self._said_s.pop(code, None)
        if known:
            self._keep()

    def _keep(self) -> None:
        save(self._state, {"boot": self._boot, "convictions": self._convictions, "since_s": self._said_s})
        self.write()

    def now(self) -> NodeVerdict:
        at_s = int(self._clock())
        convictions = list(self._convictions.items())  # copied: other threads add to them, and scrapes read them
        kept = [Fact(code.partition("/")[0], sentence) for code, sentence in convictions]
        if faults := [*self._facts(), *kept]:  # each names its GPU
            return NodeVerdict("BAD", at_s, faults[0].code, brief((fault.sentence for fault in faults), _MOST_SHOWN))
        reason = self._telemetry()
        if reason is not None:
            return NodeVerdict("UNKNOWN", at_s, "telemetry", reason)
        return NodeVerdict("OK", at_s, "ok", "nothing speaks against this node")

    def write(self) -> None:
        verdict = self.now()
        uptime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        write_atomically(self._path, f"{verdict.line}{uptime_s}\n")

    def _convict(self, code: str, sentence: str) -> None:
        self._convictions.setdefault(code, sentence)
        self._said_s[code] = self._clock()
        self._keep()


def _named(part: str, text: str) -> str:
    """The text with the part that it is about where ``brief`` looks for it: at the start, where it is at neither end."""
    is_there = re.match(rf"{re.escape(part)}(?=[: ])", text) or text.endswith(f" {part}")
    return text if is_there else ": ".join(filter(None, (part, text)))
