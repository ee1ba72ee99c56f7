"""Writes the node's dated verdict, which the hooks read: ``OK|BAD|UNKNOWN <unix seconds> <code> <sentence>``.

A second line has the host's uptime in seconds, from which a hook computes the verdict's age without starting a process.

BAD requires positive proof that is valid now: a fault that convicts a node on its own by ``rules/convictions.toml`` (an
Xid, a lost GPU, a recovery action requested by the driver, memory that cannot be repaired, a failed diagnostic).
It ends with a reboot, a return to service by a person, or a diagnostic on all GPUs that is deep enough to disprove it.
Without readable telemetry, or while a fault is doubted that nothing has disproved, the verdict is UNKNOWN, for which no hook
refuses a node, and which is no proof that it is well.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.agent.process.state_files import restore, save, write_atomically
from sentinel.config.convictions import Drain
from sentinel.config.returns import DEEPEST, level_told
from sentinel.config.rules import Rules
from sentinel.evidence.dcgm import Fact
from sentinel.evidence.dcgm_conditions import HOLDS
from sentinel.model.records import Evidence, Kind, Source, Trust
from sentinel.text import brief, printable
from sentinel.wire import time_from, to_json

TELEMETRY = (Source.DCGM, Source.NVML, Source.AMD_SMI)  # sources of GPU telemetry
_MOST_SHOWN = 300  # of the sentence
DRAIN_MODES = frozenset({"act", "observe"})  # whether the prolog may refuse this node, and so have Slurm drain it


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    word: str  # OK, BAD, UNKNOWN
    at_s: int
    code: str
    sentence: str
    level: int = 0  # of the diagnostic whose pass on all GPUs takes back all that is kept; 0: nothing is
    evidence: tuple[str, ...] = ()  # ids of what is kept: a store may have lost them

    @property
    def told(self) -> dict[str, object]:
        """What a heartbeat tells of it."""
        return {
            "word": self.word, "at_s": self.at_s, "code": self.code, "sentence": self.sentence, "level": self.level,
            "evidence": list(self.evidence),
        }  # fmt: skip

    @property
    def line(self) -> str:
        sentence = printable(self.sentence, "?")[:_MOST_SHOWN]
        return f"{self.word} {self.at_s} {self.code} {sentence}\n"


def uptime_s() -> float:
    """Seconds since the host booted: also what it was suspended for, and no step of its clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class VerdictKeeper:
    """Collects evidence that convicts the node and writes the verdict.

    Args:
        boot: id of this boot; a reboot clears the Xids before it.
        facts: hard faults that telemetry shows now.
        telemetry: None when telemetry tells that the GPUs are well, else why that is not known.
        rules: what convicts a node on its own, and which test proves it good again.
    """

    def __init__(
        self,
        run_dir: Path,
        state: Path,
        boot: str,
        facts: Callable[[], Sequence[Fact]],
        telemetry: Callable[[], str | None],
        rules: Rules,
        clock: Callable[[], float] = time.time,
        uptime: Callable[[], float] = uptime_s,
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
        self._rules = rules
        self._clock = clock
        self._uptime = uptime
        kept = restore(self._state)
        same_boot = isinstance(kept, dict) and kept.get("boot") == boot
        self._convictions: dict[str, str] = dict(kept["convictions"]) if same_boot else {}
        said, now_s = dict(kept.get("said_up_s") or {}) if same_boot else {}, uptime()
        # Uptime when the newest was heard; of what an agent before this kept it is not known, and counts from here.
        self._said_s: dict[str, float] = {code: min(said.get(code, now_s), now_s) for code in self._convictions}
        levels, unknown = dict(kept.get("levels") or {}) if same_boot else {}, rules.returns.proving_level(None)
        self._levels = {
            code: level_told(levels.get(code)) or unknown for code in self._convictions
        }  # that disprove them
        kept_evidence = dict(kept.get("evidence") or {}) if same_boot else {}
        self._evidence: dict[str, dict[str, Any]] = {
            code: item for code, item in kept_evidence.items() if isinstance(item, dict) and code in self._convictions
        }  # the newest that convicts, as it was spooled
        self._released: object = kept.get("released") if same_boot else None  # the last return to service

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
        convicts = self._rules.convictions.of(evidence) is Drain.YES
        gpu = "" if evidence.where.gpu is None else f"GPU {evidence.where.gpu}"
        where = evidence.data.get("pci") or gpu or "a GPU"
        if evidence.kind == Kind.XID and isinstance(action := evidence.data.get("action"), str):
            if convicts:
                words = f"the driver asks for {action.replace('_', ' ')} of {where}"
                self._convict(f"recovery_action/{where}", words, evidence)
            elif action == "none":
                self._take_back([f"recovery_action/{where}"])  # it was reset
        elif not convicts:
            return
        elif evidence.kind == Kind.XID:
            self._convict(f"xid_{evidence.data['xid']}/{where}", f"Xid {evidence.data['xid']} on {where}", evidence)
        elif evidence.kind == Kind.DIAG_FAILED:
            part = str(evidence.data.get("part") or "")
            self._convict(f"diagnostic/{part}", _named(part, evidence.text), evidence)
        elif evidence.source in TELEMETRY and evidence.kind not in HOLDS:
            part = gpu or evidence.where.gpu_uuid or ""
            self._convict(f"{evidence.kind}/{part}", _named(part, evidence.text), evidence)

    def diagnosed(self, result: Any) -> None:
        """Take the result of an ordered diagnostic. A pass on all GPUs clears what a test of its level can disprove."""
        if isinstance(result, dict) and result.get("result") == "pass" and result.get("gpus") is None:
            level = level_told(result.get("level"))
            self._take_back([code for code in list(self._convictions) if self._levels.get(code, DEEPEST + 1) <= level])

    def heard(self, answer: Mapping[str, Any], took_s: float) -> None:
        """Take the daemon's answer to a heartbeat, which names the last return to service.

        Args:
            took_s: the heartbeat, to its answer. What was said of the node meanwhile may be newer than the return.
        """
        at, released = answer.get("at"), answer.get("released_at")
        if isinstance(at, str) and isinstance(released, str):
            self.released(released, (time_from(at) - time_from(released)).total_seconds() + took_s)

    def released(self, name: str, ago_s: float) -> None:
        """Clear what was said of the node up to ``ago_s`` seconds ago, when an operator returned it to service.

        Faults that telemetry still shows (a lost GPU) go on convicting. Each heartbeat is answered with the same return: it
        counts once. The node's clock says nothing here: it may have been an hour ahead when the node came up.

        Args:
            name: of this return: what tells it from another one.
            ago_s: by the clock of the daemon alone; at least 0.
        """
        if name == self._released:
            return
        self._released = name
        before_s = self._uptime() - max(0.0, ago_s)
        self._take_back([code for code in list(self._convictions) if self._said_s.get(code, 0.0) <= before_s])
        self._keep()  # so that the next agent does not count it again

    def send_again(self, ids: object, send: Callable[[dict[str, Any]], object]) -> None:
        """Hand on the kept evidence with these ids, which the daemon's store does not have."""
        wanted = ids if isinstance(ids, list) else ()
        for item in list(self._evidence.values()):
            if item.get("id") in wanted:
                send(item)

    def _take_back(self, codes: Sequence[str]) -> None:
        known = [code for code in codes if code in self._convictions]
        for code in known:
            del self._convictions[code]
            self._levels.pop(code, None)
            self._said_s.pop(code, None)
            self._evidence.pop(code, None)
        if known:
            self._keep()

    def _keep(self) -> None:
        kept = {"convictions": self._convictions, "said_up_s": self._said_s, "levels": self._levels}
        kept["evidence"] = self._evidence
        save(self._state, {"boot": self._boot, "released": self._released, **kept})
        self.write()

    def _proving_level(self, evidence: Evidence) -> int:
        """The level of the diagnostic that disproves this: the one that failed, else the last that the Xid's cause asks for.
        A recovery action, and telemetry, name no cause: what those ask for of which none is known."""
        failed = level_told(evidence.data.get("level")) if evidence.kind == Kind.DIAG_FAILED else 0
        xid = self._rules.xid_of(evidence)
        return self._rules.returns.proving_level(xid.cause if xid is not None else None, failed)

    def now(self) -> NodeVerdict:
        at_s = int(self._clock())
        convictions = list(self._convictions.items())  # copied: other threads add to them, and scrapes read them
        kept = [Fact(code.partition("/")[0], sentence) for code, sentence in convictions]
        if faults := [*self._facts(), *kept]:  # each names its GPU
            sentence = brief((fault.sentence for fault in faults), _MOST_SHOWN)
            level = max(list(self._levels.values()), default=0)
            named = tuple(str(item["id"]) for item in list(self._evidence.values()))
            return NodeVerdict("BAD", at_s, faults[0].code, sentence, level, named)
        reason = self._telemetry()
        if reason is not None:
            return NodeVerdict("UNKNOWN", at_s, "telemetry", reason)
        return NodeVerdict("OK", at_s, "ok", "nothing speaks against this node")

    def write(self) -> None:
        verdict = self.now()
        write_atomically(self._path, f"{verdict.line}{int(self._uptime())}\n")

    def _convict(self, code: str, sentence: str, evidence: Evidence) -> None:
        self._levels[code] = max(self._proving_level(evidence), self._levels.get(code, 0))
        self._convictions.setdefault(code, sentence)
        self._said_s[code] = self._uptime()
        self._evidence[code] = to_json(evidence)
        self._keep()


def _named(part: str, text: str) -> str:
    """The text with the part that it is about where ``brief`` looks for it: at the start, where it is at neither end."""
    is_there = re.match(rf"{re.escape(part)}(?=[: ])", text) or text.endswith(f" {part}")
    return text if is_there else ": ".join(filter(None, (part, text)))
