"""One evidence -> what it speaks for: by its rule, by the Xid table, or by its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sentinel.classify.slowdown import slowdown
from sentinel.classify.telemetry import TELEMETRY
from sentinel.model import Cause, Evidence, Kind, Scope, Source, Trust
from sentinel.rules import Drain, Form, Role, Rule, Rules, Xid

C = Cause
# What a program tells as a warning it mostly survives: glog's W, logging's WARNING, Python's warnings.
_WARNING = re.compile(r"(?:^|[\s\]>)])\[?W\d{0,4} (?:\w+\.(?:cpp|cc|py)|\d\d:\d\d:)|\[?\bWARNING\b|\b\w*Warning: ")
WARNED = 0.6
GPU_CAUSES = (C.GPU_MEMORY_ECC, C.GPU_FALLEN_OFF_BUS, C.GPU_NVLINK, C.GPU_GSP_OR_DRIVER, C.PCIE)


@dataclass(frozen=True, slots=True)
class Reading:
    evidence: Evidence
    key: str  # readings with the same key count once
    weights: Mapping[Cause, float] = field(default_factory=dict, hash=False)
    role: Role = Role.CAUSE
    scope: Scope | None = None
    drain: Drain = Drain.NO
    form: Form = Form.PROGRAM
    note: str = ""
    advice: str = ""
    late: bool = False

    @property
    def strength(self) -> float:
        return max(self.weights.values(), default=0.0)


Maker = Callable[[Evidence], "Reading | None"]


def read(evidence: Evidence, rules: Rules, by_id: Mapping[str, Rule]) -> Reading | None:
    """None where the evidence says nothing about a cause (steps, good news, unreadable)."""
    if evidence.kind == Kind.XID:
        return _xid(evidence, rules)
    rule = by_id.get(evidence.rule or "")
    if rule is not None:
        if rule.role is Role.PROGRESS or (not rule.weights and rule.role is not Role.CONSEQUENCE):
            return None
        note = rule.kind.replace("_", " ").replace("-", " ")
        weights, role = rule.weights, rule.role
        if rule.form is Form.PROGRAM and rule.role is Role.CAUSE and _WARNING.search(evidence.text[:200]):
            weights, role = {cause: WARNED * weight for cause, weight in weights.items()}, Role.CONTEXT
            note = f"{note} (told as a warning)"
        return Reading(
            evidence,
            rule.id,
            weights,
            role,
            rule.scope,
            rule.drain,
            rule.form,
            note=note,
            advice=rule.advice,
            late=rule.late,
        )
    if maker := _KINDS.get(evidence.kind):
        return maker(evidence)
    return _telemetry(evidence)


def _telemetry(evidence: Evidence) -> Reading | None:
    """A condition that the machine itself reports; a program's claim of the same name counts for nothing here."""
    entry = TELEMETRY.get(evidence.kind)
    if entry is None or evidence.trust is not Trust.SYSTEM:
        return None
    weights, drain, role, note = entry
    return Reading(evidence, evidence.kind, weights, role, None, drain, Form.DCGM, note)


def _xid(evidence: Evidence, rules: Rules) -> Reading | None:
    number = evidence.data.get("xid")
    if not isinstance(number, int):
        return None
    action = evidence.data.get("action")
    if isinstance(action, str) or number == 154:
        return _action(evidence, str(action or "unknown"))
    entry = rules.xids.get(number)
    if entry is None:
        return Reading(evidence, f"xid-{number}", {C.GPU_GSP_OR_DRIVER: 1.0}, note=f"Xid {number}, not in the table")
    weights, drain = _xid_weights(entry, evidence)
    return Reading(
        evidence,
        f"xid-{number}-fatal" if evidence.data.get("fatal") is True else f"xid-{number}",
        weights,
        entry.role,
        entry.scope,
        drain,
        Form.KERNEL,
        note=f"Xid {number}: {entry.name} (NVIDIA: {entry.immediate})",
        advice=entry.advice,
    )


def _xid_weights(entry: Xid, evidence: Evidence) -> tuple[dict[Cause, float], Drain]:
    if entry.cause is None or not entry.weight:
        return {}, Drain.NO
    weight, drain = entry.weight, entry.drain
    fatal = evidence.data.get("fatal")
    if fatal is False:
        weight, drain = min(weight, 1.5), Drain.NO
    elif fatal is True:
        weight += 0.5
    weights = {entry.cause: weight}
    if entry.cause is C.USER_CODE:
        weights[C.GPU_GSP_OR_DRIVER] = 0.3
    return weights, drain


def _action(evidence: Evidence, action: str) -> Reading:
    """The driver's own verdict: it says that a GPU needs something, not which fault it had."""
    needs = action in {"reset", "reboot", "drain_reset", "drain_p2p"}
    weights = dict.fromkeys(GPU_CAUSES, 2.0) if needs else {}
    if action == "drain_p2p":
        weights[C.GPU_NVLINK] = 3.0
    drain = {"reboot": Drain.YES, "drain_reset": Drain.YES, "reset": Drain.YES, "drain_p2p": Drain.ADVISE}
    return Reading(
        evidence,
        f"recovery-{action}",
        weights,
        Role.CAUSE if needs else Role.CONTEXT,
        Scope.GPU,
        drain.get(action, Drain.NO),
        Form.KERNEL,
        note=f"the driver asks for: {action.replace('_', ' ')}",
    )


def _recovery(evidence: Evidence) -> Reading | None:
    action = evidence.data.get("action")
    if isinstance(action, bool) or not isinstance(action, (int, str)):
        return None
    names = ("none", "reset", "reboot", "drain_p2p", "drain_reset")
    if isinstance(action, int):
        action = names[action] if 0 <= action < len(names) else "unknown"
    return _action(evidence, action)


def _simple(
    key: str, weights: Mapping[Cause, float], note: str, *, drain: Drain = Drain.NO, role: Role = Role.CAUSE
) -> Maker:
    def make(evidence: Evidence) -> Reading:
        return Reading(evidence, key, weights, role, None, drain, Form.PROGRAM, note)

    return make


def _ended(evidence: Evidence) -> Reading | None:
    state = str(evidence.data.get("state") or "").upper()
    signal = evidence.data.get("signal")
    code = evidence.data.get("exit_code")
    weights: dict[Cause, float] = {}
    role = Role.CONTEXT
    if state.startswith(("TIMEOUT", "PREEMPT", "CANCEL", "DEADLINE")):
        weights = {C.SCHEDULER_PREEMPT_OR_TIMELIMIT: 4.0}
        role = (
            Role.SYMPTOM if state.startswith("CANCEL") else Role.CAUSE
        )  # what broke before it is why it was cancelled
    elif state.startswith(("NODE_FAIL", "BOOT_FAIL")):
        weights, role = {C.NODE_FAILURE: 3.5}, Role.CAUSE
    elif state.startswith("OUT_OF_ME"):
        weights, role = {C.APP_OOM_HOST: 4.0}, Role.CAUSE
    elif signal == 9:
        weights = {C.APP_OOM_HOST: 0.8}
    elif signal == 7:
        weights = {C.DATALOADER: 0.8, C.FILESYSTEM_STORAGE: 0.3}
    elif signal in {4, 6, 8, 11}:
        weights = {C.USER_CODE: 0.6, C.SOFTWARE_ENV: 0.6}
    elif isinstance(code, int) and code:
        weights = {C.USER_CODE: 0.4}
    if not weights:
        return None
    return Reading(evidence, "job-ended", weights, role, note=f"Slurm: {state or 'ended'} code {code} signal {signal}")


# DCGM error codes by what they convict; categories catch codes of newer releases.
_DCGM_CODES: dict[int, Cause] = {
    **dict.fromkeys(
        (4, 5, 6, 7, 8, 52, 57, 58, 80, 81, 83, 84, 85, 102, 103, 105, 106, 118, 131, 132), C.GPU_MEMORY_ECC
    ),
    **dict.fromkeys(
        (13, 14, 15, 70, 71, 86, 87, 88, 99, 100, 109, 112, 113, 114, 115, 116, 119, 121, 122), C.GPU_NVLINK
    ),
    **dict.fromkeys((3, 45, 46, 98, 104, 107), C.PCIE),
    **dict.fromkeys((120,), C.GPU_FALLEN_OFF_BUS),
    **dict.fromkeys((10, 11, 12), C.GPU_THERMAL_POWER),
    **dict.fromkeys((125, 126, 127, 128, 101, 24, 22), C.GPU_GSP_OR_DRIVER),
}
_DCGM_CATEGORIES = {
    9: C.GPU_THERMAL_POWER,
    10: C.GPU_MEMORY_ECC,
    11: C.GPU_NVLINK,
    12: C.GPU_NVLINK,
    13: C.PCIE,
    14: C.GPU_THERMAL_POWER,
}


def _diag(evidence: Evidence) -> Reading | None:
    """A diagnostic that found a fault. Severity: 2 isolate and 6 reset convict; 1 monitor and 5 config do not."""
    severity = evidence.data.get("severity")
    code, category = evidence.data.get("code"), evidence.data.get("category")
    convicts = severity in {2, 6, "isolate", "reset", "ISOLATE", "RESET"} and code not in {25, 20}
    benign = severity in {0, 1, 5, "monitor", "config", "none", "MONITOR", "CONFIG", "NONE"}
    cause = _DCGM_CODES.get(code) if isinstance(code, int) else None
    if cause is None and isinstance(category, int):
        cause = _DCGM_CATEGORIES.get(category)
    if benign:
        if cause is None:
            return None
        return Reading(evidence, f"diag-{code}", {cause: 1.0}, Role.CONTEXT, note=f"DCGM code {code}, to be watched")
    return Reading(
        evidence,
        f"diag-{code}",
        {cause or C.GPU_GSP_OR_DRIVER: 5.0 if convicts else 3.0},
        Role.CAUSE,
        None,
        Drain.YES if convicts or severity is None else Drain.ADVISE,
        Form.DCGM,
        note=f"a diagnostic found a fault (code {code}, severity {severity})",
    )


def _task(evidence: Evidence) -> Reading | None:
    state = str(evidence.data.get("state") or "")[:1]
    if state == "D":
        weights = {C.NCCL_HANG_UNKNOWN: 0.6, C.FILESYSTEM_STORAGE: 0.6, C.NODE_OS_OR_HOST: 0.3}
        return Reading(evidence, "task-D", weights, Role.CONTEXT, note="a task sleeps uninterruptibly in the kernel")
    if state in {"T", "t"}:
        weights = {C.NCCL_HANG_UNKNOWN: 1.0}
        return Reading(evidence, "task-T", weights, Role.CONTEXT, note="a task is stopped while the others wait")
    return None


def _checkpoint(evidence: Evidence) -> Reading:
    reason = str(evidence.data.get("reason") or "")[:80]
    # Of a running job its files were looked at, twice; else a job did not resume, which has other causes too.
    weight = 4.0 if evidence.data.get("watched") is True else 2.5
    return Reading(
        evidence, "checkpoint-invalid", {C.CHECKPOINT_CORRUPT: weight}, note=f"a checkpoint is invalid: {reason}"
    )


def _flight(evidence: Evidence) -> Reading | None:
    """Dumps of all ranks: who never arrived, or whose call differs."""
    kind = evidence.data.get("kind")
    if kind == "mismatch":
        return Reading(evidence, "flight", {C.COLLECTIVE_MISMATCH: 4.5}, note="ranks call different collectives")
    if kind in {"missing", "stuck"}:
        note = "a rank never arrived" if kind == "missing" else "all ranks called, none completes"
        return Reading(evidence, "flight", {C.NCCL_HANG_UNKNOWN: 4.0}, Role.CONSEQUENCE, note=note)
    return None


def _slow(evidence: Evidence) -> Reading:
    """Slower steps, by whom they point at: a part of a node, the job's own work, or what jobs share."""
    weights, role, scope, note = slowdown(evidence.data.get("pattern"), evidence.data.get("fact"))
    return Reading(evidence, "slow", weights, role, scope, note=note)


def _signal(evidence: Evidence) -> Reading | None:
    """What Prometheus knows of storage, switches and power, with the weight of its rule. It never convicts a node."""
    cause, weight, scope = (evidence.data.get(name) for name in ("cause", "weight", "scope"))
    known = evidence.source is Source.PROMETHEUS and cause in list(Cause) and scope in list(Scope)
    if not known or isinstance(weight, bool) or not isinstance(weight, (int, float)):
        return None
    alone = evidence.data.get("alone") is True  # under no job: nothing but it speaks
    strength = min(max(float(weight), 0.0), _MOST_SIGNAL) + (_ALONE if alone else 0.0)
    return Reading(
        evidence,
        f"signal-{evidence.data.get('signal')}",
        {Cause(str(cause)): strength},
        Role.CAUSE if alone else Role.CONTEXT,
        Scope(str(scope)),
        note=str(evidence.data.get("words") or "Prometheus")[:120],
    )


_MOST_SIGNAL = 4.0
_ALONE = 2.5
_KINDS: dict[str, Maker] = {
    "signal": _signal,
    "hang": _flight,
    Kind.GPU_LOST: _simple("gpu-lost", {C.GPU_FALLEN_OFF_BUS: 5.5}, "fewer GPUs than promised", drain=Drain.YES),
    Kind.RECOVERY_ACTION: _recovery,
    Kind.DIAG_FAILED: _diag,
    Kind.NODE_UNREACHABLE: _simple(
        "node-unreachable", {C.NODE_FAILURE: 5.0}, "heartbeat lost and slurmd does not answer", drain=Drain.YES
    ),
    Kind.NODE_DOWN: _simple("node-down", {C.NODE_FAILURE: 4.5}, "Slurm says that the node is down", drain=Drain.YES),
    Kind.STALL: _simple(
        "stall", {C.NCCL_HANG_UNKNOWN: 3.0}, "no step for longer than its rhythm", role=Role.CONSEQUENCE
    ),
    Kind.TASK_STATE: _task,
    Kind.CHECKPOINT_INVALID: _checkpoint,
    "saves_stopped": _simple("saves-stopped", {C.FILESYSTEM_STORAGE: 4.0}, "no checkpoint comes any more"),
    "saves_shrank": _simple("saves-shrank", {C.CHECKPOINT_CORRUPT: 4.0}, "a checkpoint is smaller than is usual"),
    "saves_no_room": _simple("saves-no-room", {C.DISK_FULL: 4.0}, "the storage of the checkpoints has no room"),
    Kind.JOB_ENDED: _ended,
    Kind.PROBE_HUNG: _simple(
        "probe-hung", {C.GPU_GSP_OR_DRIVER: 1.5, C.NODE_OS_OR_HOST: 0.8}, "a probe of the node hung", drain=Drain.NO
    ),
    Kind.SLOW: _slow,
    Kind.NUMBERS: _simple("numbers", {C.NUMERICAL_NAN: 4.5}, "losses or gradients stay no numbers", drain=Drain.NO),
    "loss_spike": _simple("loss-spike", {C.NUMERICAL_NAN: 1.5}, "the loss rose far above its habit", role=Role.CONTEXT),
    Kind.SXID: _simple("sxid", {C.GPU_NVLINK: 3.5}, "an NVSwitch error", drain=Drain.ADVISE),
}
