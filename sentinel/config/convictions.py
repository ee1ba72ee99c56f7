"""What takes a node out of service, as one table: Xids, DCGM's error codes, the driver's recovery actions, conditions.

The rows come from ``rules/convictions.toml`` and the site's files. The agent's verdict, the hooks, the order in which
evidence is handled and the classifier all read this table, so that a site's change of a row changes all of them. What is not
in it convicts nothing. The hooks' diagnostic reads it with the standard library alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sentinel.model.records import Evidence, Kind
from sentinel.model.vocabulary import OPEN_ENGINE


class Drain(StrEnum):
    """Whether a report, from a source that can be trusted, convicts its node."""

    YES = "yes"  # one such report is enough
    ADVISE = "advise"  # a drain is right once something else on that node agrees; until then the node is a suspect
    SUSPECT = "suspect"  # the node is left out of this job's retry and tested; however many such reports drain nothing
    NO = "no"  # nothing follows from it

    @property
    def convicts(self) -> bool:
        """Whether it speaks for a drain, by itself or with another."""
        return self in (Drain.YES, Drain.ADVISE)


class Remedy(StrEnum):
    """What a failed diagnostic asks for; our reading of DCGM's severity."""

    REPLACE = "replace"  # out of service until a deeper diagnostic or a repair
    REBOOT = "reboot"  # of the node, then again
    RESET = "reset"  # of the GPU, or a reboot, then again
    INVESTIGATE = "investigate"  # the GPU did worse than it should
    CONFIGURE = "configure"  # nothing is broken: correct it and run again
    BUSY = "busy"  # somebody else was on the GPU
    WATCH = "watch"  # counted, no fault
    UNCLEAR = "unclear"

    @property
    def is_fault(self) -> bool:
        """Whether something is wrong with the GPU itself."""
        return self in (Remedy.REPLACE, Remedy.REBOOT, Remedy.RESET, Remedy.INVESTIGATE)


# Names of the driver's recovery actions by number, as DCGM field 1523, NVML and Xid 154 count them.
RECOVERY_ACTIONS = (
    "none", "reset", "reboot", "drain_p2p", "drain_reset", "recover_imex", "bus_reset", "system_reboot",
)  # fmt: skip
# Kinds of evidence that tell a condition of the node itself; a row that names another is a slip of the pen.
CONDITIONS = frozenset(
    [
        "gpu_lost", "row_remap_failure", "row_remap_pending", "row_remap_uncorrectable", "memory_unrepairable",
        "sram_threshold", "ecc_dbe", "fabric_manager", "nvlink_errors", "sxid", "pcie_width", "pcie_replay", "gpu_thermal",
        "clocks_slowdown", "dcgm_all_blank", "gpu_health", "kernel_panic", "link_down", "link_flap", "host_memory_ecc",
        "host_memory_low", "disk_full", "disk_failing", "disk_errors", "driver_mismatch", "mount_error", "mount_missing",
        "stray_gpu_process", "node_unreachable", "node_down", "probe_hung",
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Conviction:
    """One row: what follows from a report, and where that comes from."""

    drain: Drain = Drain.NO
    source: str = ""
    remedy: Remedy = Remedy.UNCLEAR
    near_pct: float = 0.0  # a test that was missed by no more than this makes a suspect
    action: str = ""  # the recovery action that an error tells: its row says what follows, not ``drain``


_NOTHING = Conviction()
Key = tuple[str, int | str]  # what a row is about ("xid", "dcgm", ...) and which; words are in lower case


@dataclass(frozen=True, slots=True)
class Convictions:
    rows: Mapping[Key, Conviction] = field(default_factory=dict, hash=False)

    def xid(self, number: int) -> Drain:
        return self.rows.get(("xid", number), _NOTHING).drain

    def condition(self, kind: str) -> Drain:
        return self.rows.get(("condition", kind), _NOTHING).drain

    def action(self, action: object) -> Drain:
        """The row of a recovery action, by name or number."""
        return self.rows.get(("recovery_action", action_name(action)), _NOTHING).drain

    def diagnostic(
        self, code: int | None, severity: int | None, missed_pct: float | None = None, text: str = ""
    ) -> Conviction:
        """The row of a diagnostic's error: by words of its message, else by its code, else by DCGM's severity.

        Of several words in one message the longest count, as the most specific; a site may so except what is shipped.

        Args:
            missed_pct: how far what was measured is from what the test requires; None where that is not known.
            text: the error's own message, without those of others.
        """
        message = text.lower()
        there = [str(words) for subject, words in self.rows if subject == "dcgm_words" and str(words) in message]
        if there:
            return self.rows["dcgm_words", max(reversed(there), key=len)]  # of two as long, the later one
        if code is not None and (row := self.rows.get(("dcgm", code), _NOTHING)) is not _NOTHING:
            if row.action:
                return replace(row, drain=self.action(row.action))
            near = missed_pct is not None and missed_pct <= row.near_pct > 0
            return replace(row, drain=Drain.SUSPECT) if near else row
        return self.rows.get(("dcgm_severity", severity), _NOTHING) if severity is not None else _NOTHING

    def of_diagnostic(self, evidence: Evidence) -> Conviction:
        """The row of a failed diagnostic, by message, code and severity in its evidence."""
        data = evidence.data
        code, severity = data.get("code"), data.get("dcgm_severity", data.get("severity"))
        missed_pct = data.get("missed_pct")
        return self.diagnostic(
            code if isinstance(code, int) else None,
            severity if isinstance(severity, int) else None,
            float(missed_pct) if isinstance(missed_pct, int | float) else None,
            evidence.text,
        )

    def of(self, evidence: Evidence) -> Drain:
        """Whether this evidence convicts its node; whether its source can be trusted is for the caller to ask.

        What any user of the node may have written into DCGM's host engine is never enough by itself.
        """
        drain = self._row_of(evidence)
        return Drain.ADVISE if drain is Drain.YES and evidence.data.get(OPEN_ENGINE) is True else drain

    def _row_of(self, evidence: Evidence) -> Drain:
        data = evidence.data
        if evidence.kind == Kind.XID:
            number, action = data.get("xid"), data.get("action")
            if isinstance(action, str) or number == 154:
                return self.action(action)
            known = isinstance(number, int) and not isinstance(number, bool) and data.get("fatal") is not False
            return self.xid(number) if known and isinstance(number, int) else Drain.NO
        if evidence.kind == Kind.RECOVERY_ACTION:
            return self.action(data.get("action"))
        if evidence.kind == Kind.DIAG_FAILED:
            return self.of_diagnostic(evidence).drain
        return self.condition(evidence.kind)


def action_name(action: object) -> str:
    """Name of a recovery action given by name or number; "unknown" when it is neither."""
    if isinstance(action, bool) or not isinstance(action, (int, str)):
        return "unknown"
    if isinstance(action, int):
        return RECOVERY_ACTIONS[action] if 0 <= action < len(RECOVERY_ACTIONS) else "unknown"
    return action if action in RECOVERY_ACTIONS else "unknown"
