"""One evidence -> what it speaks for: by its rule, by the Xid table, or by its kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sentinel.classify.exceptions.frames import by_frame, by_frame_alone
from sentinel.classify.exit_status import EXIT_STATUS, ends_by_a_warning, rule_of_exit
from sentinel.classify.log_levels import only_told
from sentinel.classify.machine_readings import TELEMETRY
from sentinel.classify.slowdown import slowdown
from sentinel.config.convictions import RECOVERY_ACTIONS, Remedy, action_name
from sentinel.config.rules import LEADING, Drain, Form, Role, Rule, Rules, Xid
from sentinel.model.records import Cause, Evidence, Kind, Scope, Source, Trust
from sentinel.model.vocabulary import BROKEN_OFF, CAUGHT, LIMIT_NEAR, PARTITION_GONE, PREEMPTED

C = Cause
WARNED = 0.6  # share of its weight that a line keeps which is told as a warning
# The frame of a module's body: a library that is imported was not at work yet.
_IMPORTS = re.compile(r'-packages/[^"\n]{1,240}", line \d{1,7}, in <module>|/__init__\.py", line \d{1,7}, in <module>')
GPU_CAUSES = (C.GPU_MEMORY_ECC, C.GPU_FALLEN_OFF_BUS, C.GPU_NVLINK, C.GPU_GSP_OR_DRIVER, C.PCIE)


@dataclass(frozen=True, slots=True)
class Reading:
    evidence: Evidence
    key: str  # readings with the same key count once, unless a later one asks for more
    weights: Mapping[Cause, float] = field(default_factory=dict, hash=False)
    role: Role = Role.CAUSE
    scope: Scope | None = None
    drain: Drain = Drain.NO
    form: Form = Form.PROGRAM
    note: str = ""
    advice: str = ""
    late: bool = False
    survived: bool = False  # the job went on after it
    passed: bool = False  # by its own log, what it reports passed, or the machine was starting or stopping
    warned: bool = False  # told as a warning
    generic: bool = False  # it knows the class of the exception only, not the sentence

    @property
    def strength(self) -> float:
        return max(self.weights.values(), default=0.0)


def of_context(
    evidence: Evidence, key: str, weights: Mapping[Cause, float], note: str, scope: Scope | None = None
) -> Reading:
    """What other evidence or the history says about ``evidence``: it speaks for causes, and drains nothing."""
    return Reading(evidence, key, weights, Role.CONTEXT, scope, Drain.NO, Form.PROGRAM, note)


def lines_below(one: Reading, other: Reading) -> int | None:
    """By how many lines ``one`` stands below ``other``, negative above it; None where they are of two logs."""
    a, b = one.evidence, other.evidence
    return (a.line or 0) - (b.line or 0) if a.where.path == b.where.path else None


Maker = Callable[[Evidence], "Reading | None"]  # their ``drain`` comes from the table of what convicts


def read(
    evidence: Evidence, rules: Rules, by_id: Mapping[str, Rule], before: re.Pattern[str] | None = None
) -> Reading | None:
    """None where the evidence says nothing about a cause (steps, good news, unreadable).

    ``before``: what a launcher puts before each line that its program prints.
    """
    if evidence.kind == Kind.XID:
        return _xid(evidence, rules)
    if evidence.kind == Kind.DIAG_FAILED:
        return _diag(evidence, rules)
    rule = by_id.get(evidence.rule or "")
    if rule is not None and rule.kind == EXIT_STATUS:
        rule = rule_of_exit(evidence, by_id)
        if rule is None:
            return None
    if rule is not None:
        if rule.role is Role.PROGRESS or (not rule.weights and rule.role is not Role.CONSEQUENCE):
            return None
        if evidence.data.get("ignored") is True or (rule.role is Role.CONTEXT and _IMPORTS.search(evidence.text)):
            return None
        note = rule.kind.replace("_", " ").replace("-", " ")
        weights, role, warned = by_frame(evidence, rule.weights, content=rule.content), rule.role, False
        # A launcher hands on what Slurm and the kernel said as a record, too: what they say is never lowered.
        told = rule.form is Form.PROGRAM and rule.role in LEADING and only_told(_printed(evidence.text, before))
        if told or (evidence.data.get(CAUGHT) is True and evidence.trust is Trust.USER):
            weights, role = {cause: WARNED * weight for cause, weight in weights.items()}, Role.CONTEXT
            warned = not told or rule.kind != "nan"
            note = f"{note} ({'told as a warning' if told else 'the program went on without it'})"
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
            generic=rule.frame,
            warned=warned,
        )
    maker = _KINDS.get(evidence.kind, _telemetry)
    reading = maker(evidence)
    return None if reading is None else replace(reading, drain=rules.convictions.of(evidence))


def _printed(text: str, before: re.Pattern[str] | None) -> str:
    found = before.match(text) if before is not None else None
    return text[found.end() :] if found is not None else text


def _telemetry(evidence: Evidence) -> Reading | None:
    """A condition that the machine itself reports; a program's claim of the same name counts for nothing here."""
    entry = TELEMETRY.get(evidence.kind)
    if entry is None or evidence.trust is not Trust.SYSTEM:
        return None
    weights, role, note = entry
    return Reading(evidence, evidence.kind, weights, role, form=Form.DCGM, note=note)


def _xid(evidence: Evidence, rules: Rules) -> Reading | None:
    number = evidence.data.get("xid")
    if not isinstance(number, int):
        return None
    action = evidence.data.get("action")
    if isinstance(action, str) or number == 154:
        return replace(_action(evidence, str(action or "unknown")), drain=rules.convictions.of(evidence))
    entry = rules.xids.get(number)
    if entry is None:
        return Reading(
            evidence, f"xid-{number}", {C.GPU_GSP_OR_DRIVER: 1.0}, drain=rules.convictions.of(evidence),
            note=f"Xid {number}, not in the table",
        )  # fmt: skip
    weights = _xid_weights(entry, evidence)
    drain = rules.convictions.of(evidence) if weights else Drain.NO
    note = f"Xid {number}: {entry.name} (NVIDIA: {entry.immediate})"
    data = evidence.data
    decoded = "unit" in data or data.get("fatal") is True or "previous Xid" in evidence.text  # it ended channels
    if number in NVLINK5_XIDS and evidence.rule is not None and not decoded and drain.convicts:
        drain = Drain.SUSPECT  # a monitor told its number: whether it was fatal is not known
    row = rules.nvlink5.get((number, data.get("unit"), data.get("subcode"), data.get("status")))  # type: ignore[arg-type]
    if row is not None and entry.cause is not None:
        weight, drain = _NVLINK5[row.immediate]
        weights = {entry.cause: weight}
        note = f"Xid {number}: {entry.name}, {data['unit']} (NVIDIA: {row.immediate}, {row.investigate})"
    if isinstance(data.get("link"), int):
        note = f"{note}, link {data['link']}"
    return Reading(
        evidence,
        f"xid-{number}-fatal" if evidence.data.get("fatal") is True else f"xid-{number}",
        weights,
        entry.role,
        entry.scope,
        drain,
        Form.KERNEL,
        note=note,
        advice=entry.advice,
    )


# By NVIDIA's bucket: odds that the link is at fault, and what follows for the node.
NVLINK5_XIDS = range(144, 151)
_NVLINK5 = {"reset_gpu": (4.5, Drain.ADVISE), "xid_154_eval": (2.5, Drain.SUSPECT), "ignore": (1.2, Drain.NO)}


def _xid_weights(entry: Xid, evidence: Evidence) -> dict[Cause, float]:
    if entry.cause is None or not entry.weight:
        return {}
    weight = entry.weight
    fatal = evidence.data.get("fatal")
    if fatal is False:
        weight = min(weight, 1.5)
    elif fatal is True:
        weight += 0.5
    weights = {entry.cause: weight}
    if entry.cause is C.USER_CODE:
        weights[C.GPU_GSP_OR_DRIVER] = 0.3
    return weights


def _action(evidence: Evidence, action: str) -> Reading:
    """The driver's own verdict: it says that a GPU needs something, not which fault it had."""
    needs = action in RECOVERY_ACTIONS[1:]
    weights = dict.fromkeys(GPU_CAUSES, 2.0) if needs else {}
    if action == "drain_p2p":
        weights[C.GPU_NVLINK] = 3.0
    return Reading(
        evidence,
        f"recovery-{action}",
        weights,
        Role.CAUSE if needs else Role.CONTEXT,
        Scope.GPU,
        form=Form.KERNEL,
        note=f"the driver asks for: {action.replace('_', ' ')}",
    )


def _recovery(evidence: Evidence) -> Reading | None:
    action = evidence.data.get("action")
    if isinstance(action, bool) or not isinstance(action, (int, str)):
        return None
    return _action(evidence, action_name(action))


def _simple(key: str, weights: Mapping[Cause, float], note: str, *, role: Role = Role.CAUSE) -> Maker:
    def make(evidence: Evidence) -> Reading:
        return Reading(evidence, key, weights, role, note=note)

    return make


def _ended(evidence: Evidence) -> Reading | None:
    state = str(evidence.data.get("state") or "").upper()
    signal = evidence.data.get("signal")
    code = evidence.data.get("exit_code")
    weights: dict[Cause, float] = {}
    role = Role.CONTEXT
    if state.startswith(("TIMEOUT", "PREEMPT", "CANCEL", "DEADLINE")) or evidence.data.get(PREEMPTED) is True:
        weights = {C.SCHEDULER_PREEMPT_OR_TIMELIMIT: 4.0}
        role = (
            Role.SYMPTOM if state.startswith("CANCEL") else Role.CAUSE
        )  # what broke before it is why it was cancelled
    elif evidence.data.get(PARTITION_GONE):  # which Slurm calls the failure of a node
        weights, role = {C.SCHEDULER_PREEMPT_OR_TIMELIMIT: 4.0}, Role.CAUSE
    elif state.startswith(("NODE_FAIL", "BOOT_FAIL")):
        weights, role = {C.NODE_FAILURE: 3.5}, Role.CAUSE
    elif state.startswith("OUT_OF_ME"):
        weights, role = {C.APP_OOM_HOST: 4.0}, Role.CAUSE
    elif ends_by_a_warning(signal, code, near=evidence.data.get(LIMIT_NEAR) is True):
        weights, role = {C.SCHEDULER_PREEMPT_OR_TIMELIMIT: 3.0}, Role.SYMPTOM  # what broke before it is why
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
        (4, 5, 6, 7, 8, 52, 57, 58, 79, 80, 81, 83, 84, 85, 102, 103, 105, 106, 111, 118, 131, 132), C.GPU_MEMORY_ECC
    ),
    **dict.fromkeys(
        (13, 14, 15, 70, 71, 86, 87, 88, 99, 100, 109, 112, 113, 114, 115, 116, 119, 121, 122, 127), C.GPU_NVLINK
    ),
    **dict.fromkeys((3, 30, 31, 45, 46, 98, 104, 107), C.PCIE),
    **dict.fromkeys((120,), C.GPU_FALLEN_OFF_BUS),
    **dict.fromkeys((10, 11, 12, 40, 41, 42), C.GPU_THERMAL_POWER),
    **dict.fromkeys((125, 126, 128, 101, 24, 22), C.GPU_GSP_OR_DRIVER),
}
_DCGM_CATEGORIES = {
    9: C.GPU_THERMAL_POWER,
    10: C.GPU_MEMORY_ECC,
    11: C.GPU_NVLINK,
    12: C.GPU_NVLINK,
    13: C.PCIE,
    14: C.GPU_THERMAL_POWER,
}


def _diag(evidence: Evidence, rules: Rules) -> Reading | None:
    """A diagnostic that found a fault. What its code or severity asks for, and whether it convicts, the table says."""
    code, category = evidence.data.get("code"), evidence.data.get("category")
    cause = _DCGM_CODES.get(code) if isinstance(code, int) else None
    if cause is None and isinstance(category, int):
        cause = _DCGM_CATEGORIES.get(category)
    if str(evidence.data.get("part", "")).startswith("cpu"):
        cause = C.NODE_OS_OR_HOST
    row = rules.convictions.of_diagnostic(evidence)
    if not row.remedy.is_fault:
        if cause is None:
            return None
        # What a failed test was about is known, not that it is broken: heat, or what DCGM leaves to people (triage).
        about = row.remedy is Remedy.UNCLEAR or cause is C.GPU_THERMAL_POWER
        weights, role = ({cause: 3.0}, Role.CAUSE) if about else ({cause: 1.0}, Role.CONTEXT)
        return Reading(evidence, f"diag-{code}", weights, role, note=f"DCGM code {code}, to be watched")
    return Reading(
        evidence,
        f"diag-{code}",
        {cause or C.GPU_GSP_OR_DRIVER: 5.0 if row.drain is Drain.YES else 3.0},
        Role.CAUSE,
        None,
        row.drain,
        Form.DCGM,
        note=f"a diagnostic found a fault (code {code}, asks for: {row.remedy})",
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


def _broken_off(evidence: Evidence) -> Reading | None:
    weights = by_frame_alone(evidence)
    note = "the log breaks off within a traceback, before its exception"
    return Reading(evidence, BROKEN_OFF, weights, note=note) if weights else None


_KINDS: dict[str, Maker] = {
    BROKEN_OFF: _broken_off,
    "signal": _signal,
    "hang": _flight,
    Kind.GPU_LOST: _simple("gpu-lost", {C.GPU_FALLEN_OFF_BUS: 5.5}, "fewer GPUs than promised"),
    Kind.RECOVERY_ACTION: _recovery,
    Kind.NODE_UNREACHABLE: _simple(
        "node-unreachable", {C.NODE_FAILURE: 5.0}, "heartbeat lost and slurmd does not answer"
    ),
    Kind.NODE_DOWN: _simple("node-down", {C.NODE_FAILURE: 4.5}, "Slurm says that the node is down"),
    Kind.STALL: _simple(
        "stall", {C.NCCL_HANG_UNKNOWN: 3.0}, "no step for longer than its rhythm", role=Role.CONSEQUENCE
    ),
    Kind.STARTED_BEFORE: _simple(
        "started-before",
        {C.NODE_OS_OR_HOST: 2.5, C.USER_CONFIG: -5.0, C.SOFTWARE_ENV: -1.0},
        "Slurm did not start what ran before",
        role=Role.CONTEXT,
    ),
    Kind.TASK_STATE: _task,
    Kind.CHECKPOINT_INVALID: _checkpoint,
    "saves_stopped": _simple("saves-stopped", {C.FILESYSTEM_STORAGE: 4.0}, "no checkpoint comes any more"),
    "saves_shrank": _simple("saves-shrank", {C.CHECKPOINT_CORRUPT: 4.0}, "a checkpoint is smaller than is usual"),
    "log_no_space": _simple("log-no-space", {C.DISK_FULL: 4.0}, "nothing more can be written where the log lies"),
    "saves_no_room": _simple("saves-no-room", {C.DISK_FULL: 4.0}, "the checkpoints' storage is full or filling up"),
    Kind.JOB_ENDED: _ended,
    Kind.PROBE_HUNG: _simple(
        "probe-hung", {C.GPU_GSP_OR_DRIVER: 1.5, C.NODE_OS_OR_HOST: 0.8}, "a probe of the node hung"
    ),
    Kind.SLOW: _slow,
    Kind.NUMBERS: _simple("numbers", {C.NUMERICAL_NAN: 4.5}, "losses or gradients stay no numbers"),
    "loss_spike": _simple("loss-spike", {C.NUMERICAL_NAN: 1.5}, "the loss rose far above its habit", role=Role.CONTEXT),
    Kind.SXID: _simple("sxid", {C.GPU_NVLINK: 3.5}, "an NVSwitch error"),
}
