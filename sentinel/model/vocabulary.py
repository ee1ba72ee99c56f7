"""The ids: causes, scopes, sources, trust, kinds of evidence and of steps; and what people read for causes and steps.

One word each, the same in rules, JSON, tables and metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Any


class Cause(StrEnum):
    """What broke. One id each; the rules in ``rules/`` give their evidence."""

    USER_CODE = "user_code"
    USER_CONFIG = "user_config"
    SOFTWARE_ENV = "software_env"
    APP_OOM_GPU = "app_oom_gpu"
    APP_OOM_HOST = "app_oom_host"
    DATALOADER = "dataloader"
    NUMERICAL_NAN = "numerical_nan"
    COLLECTIVE_MISMATCH = "collective_mismatch"
    NCCL_HANG_UNKNOWN = "nccl_hang_unknown"
    NETWORK_BOOTSTRAP = "network_bootstrap"
    NETWORK_FABRIC = "network_fabric"
    GPU_MEMORY_ECC = "gpu_memory_ecc"
    GPU_FALLEN_OFF_BUS = "gpu_fallen_off_bus"
    GPU_NVLINK = "gpu_nvlink"
    GPU_GSP_OR_DRIVER = "gpu_gsp_or_driver"
    GPU_THERMAL_POWER = "gpu_thermal_power"
    PCIE = "pcie"
    NODE_OS_OR_HOST = "node_os_or_host"
    NODE_FAILURE = "node_failure"
    FILESYSTEM_STORAGE = "filesystem_storage"
    DISK_FULL = "disk_full"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    SCHEDULER_PREEMPT_OR_TIMELIMIT = "scheduler_preempt_or_timelimit"
    UNKNOWN = "unknown"


class Scope(StrEnum):
    """Where it broke. ``gpu`` and ``link`` are components, ``node`` is node-wide, ``cluster`` is shared."""

    APPLICATION = "application"
    GPU = "gpu"
    LINK = "link"
    NODE = "node"
    CLUSTER = "cluster"
    UNKNOWN = "unknown"


class Recommendation(StrEnum):
    """What a verdict asks for the nodes that its lines come from."""

    DRAIN = "drain"
    SUSPECT = "suspect"  # left out of the retry and tested
    NONE = "none"


class UnknownKind(StrEnum):
    """Why no cause is named."""

    NO_FAILURE = "no_failure"  # steps go on, or a clean end
    NOTHING_RECOGNISED = "nothing_recognised"  # no rule knows what was written
    UNDECIDED = "undecided"  # between the alternatives


class Trust(StrEnum):
    """Provenance (promise 2). Only ``SYSTEM`` evidence can drain a node; ``USER`` is what a user's program may have made."""

    SYSTEM = "system"
    USER = "user"


# Key of ``Evidence.data``, True where a DCGM host engine told it in which every user of the node may write values: it
# convicts with an agreeing word from elsewhere only.
OPEN_ENGINE = "open_engine"
# The same of a kernel's line that any user of the node may have caused, as well as a fault of the host's.
ANY_USER = "any_user"
# Key of ``Evidence.data``, True on a fault that the node's agent shows now, of which the reports are older than the job: it
# convicts as they did, and is disproven as soon as the agent shows it no more.
STILL_THERE = "still_there"


class Source(StrEnum):
    """Who said so."""

    KERNEL = "kernel"
    DCGM = "dcgm"
    NVML = "nvml"
    AMD_SMI = "amd_smi"
    DIAGNOSTIC = "diagnostic"
    HOST = "host"
    FABRIC = "fabric"
    SITE_CHECK = "site_check"
    SLURM = "slurm"
    PROBE = "probe"  # the daemon reached out itself: a port, a heartbeat
    PROMETHEUS = "prometheus"
    AGENT = "agent"
    PROCESS = "process"  # /proc of the job's tasks, read by the agent
    PROGRESS = "progress"  # step lines, judged over time
    CHECKPOINT = "checkpoint"
    JOB_LOG = "job_log"
    ERROR_FILE = "error_file"
    FLIGHT_RECORDER = "flight_recorder"
    OPERATOR = "operator"


# What a user's program writes itself; it may name other nodes than its own, too.
JOB_OUTPUT = frozenset({Source.JOB_LOG, Source.ERROR_FILE, Source.FLIGHT_RECORDER})
# What a user's program can write, print or fake; everything else speaks for the machine.
USER_SOURCES = JOB_OUTPUT | {Source.PROGRESS, Source.CHECKPOINT}


class Kind(StrEnum):
    """Kinds of evidence that code treats specially. Rules may introduce further kinds; they are plain strings."""

    UNREADABLE = "unreadable"  # a source could not be read: missing, late, truncated, unparsable. Never bad, never good
    PROBE_HUNG = "probe_hung"  # a probe passed its deadline and was killed (or could not be)
    XID = "xid"  # data: xid, pci; where.gpu
    SXID = "sxid"
    GPU_LOST = "gpu_lost"  # fewer GPUs than promised, or DCGM status lost
    RECOVERY_ACTION = "recovery_action"  # data: action 0..4 (DCGM field 1523, Xid 154)
    DIAG_FAILED = "diag_failed"  # a diagnostic ran and found a fault; data: code, severity, level
    DIAG_PASSED = "diag_passed"
    NODE_UNREACHABLE = "node_unreachable"  # heartbeat lost and slurmd's port does not answer
    NODE_DOWN = "node_down"  # Slurm's own word
    NODE_BACK = "node_back"
    JOB_ENDED = "job_ended"  # data: exit_code, signal, state
    STEP = "step"  # progress; data: step, loss, step_time_s
    STALL = "stall"  # no progress for longer than the job's rhythm allows; data: step, silent_s
    SLOW = "slow"
    NUMBERS = "numbers_bad"  # losses or gradients that stay no numbers, in a job that goes on; data: onset_step, prints
    STARTED_BEFORE = "started_before"  # Slurm did not start what made steps in an earlier attempt; data: ran (attempt)
    TASK_STATE = "task_state"  # data: state (/proc letter), pid; where.rank
    CHECKPOINT_INVALID = "checkpoint_invalid"  # data: path, step, reason
    NOT_RESUMED = (
        "not_resumed"  # an attempt ended without a step, and nothing says why; data: path, step, times (in a row)
    )
    COUNTERS = "counters"  # counters that age with their part; data: "unit/name" -> value, e.g. "gpu3/pcie_replay"
    CHECKPOINT_SAVED = "checkpoint_saved"
    CHECKPOINT_MANIFEST = "checkpoint_manifest"  # a save was read once; data: read_bytes, read_s, cpu_s, level
    CHECKPOINTS_HELD = "checkpoints_held"  # local checkpoints when the job ended; data: listing (packed)
    BUNDLE = "bundle"  # what explains a job's end is kept in where.path on where.node; data: files, bytes
    LEFT_BEHIND = "left_behind"  # a process of an ended job; data: pid, command, uid, ended


CHECKPOINTS_SEEN = "checkpoints_seen"  # kind of evidence: what a node holds of a running job; data: listing (packed)
# What the daemon alone finds: from Slurm, by its own probes, in the steps and attempts of whole jobs.
OF_DAEMON = frozenset(
    {Kind.JOB_ENDED, Kind.NODE_UNREACHABLE, Kind.NODE_DOWN, Kind.NODE_BACK}
    | {Kind.STALL, Kind.SLOW, Kind.NUMBERS, Kind.STARTED_BEFORE, Kind.NOT_RESUMED}
)
# What no line of a log says, of whichever program: it is found, tested, counted or read from files and processes.
NOT_OF_LINES = OF_DAEMON | {
    Kind.DIAG_PASSED, Kind.DIAG_FAILED, Kind.PROBE_HUNG, Kind.COUNTERS, Kind.TASK_STATE, Kind.CHECKPOINT_INVALID,
    Kind.CHECKPOINT_MANIFEST, Kind.CHECKPOINTS_HELD, CHECKPOINTS_SEEN, Kind.BUNDLE, Kind.LEFT_BEHIND,
}  # fmt: skip


class StepKind(StrEnum):
    """What a plan may contain. One file in ``sentinel/actions/`` each, one switch in the modes setting each."""

    DRAIN = "drain"  # node
    DOWN = "down"  # node: a lost node, so that Slurm gives up waiting for it
    REQUEUE_HOLD = "requeue_hold"  # job
    CHOOSE_CHECKPOINT = "choose_checkpoint"  # job; data of the outcome: path, step, tier
    QUARANTINE = "quarantine"  # job: checkpoints newer than the chosen one, or invalid
    WRITE_RESUME = "write_resume"  # job: what TaskProlog reads
    EXCLUDE = "exclude"  # job: nodes it must not get again
    RELEASE = "release"  # job
    CONFIRM = "confirm"  # job: it runs and gains steps
    HOLD = "hold"  # job: stays held (or failed) with an explanation
    STOP_RUN = "stop_run"  # job: its launcher's step ends, and the job keeps its allocation
    START_RUN = "start_run"  # job: its launcher starts the next step there, on good nodes
    GIVE_BACK = "give_back"  # job: it goes on without spare nodes that are bad


# What people read of causes: in messages, in a job's log, in the terminal.
CAUSE_WORDS: Mapping[str, str] = {
    Cause.USER_CODE: "the program failed by itself",
    Cause.USER_CONFIG: "the job's settings are wrong",
    Cause.SOFTWARE_ENV: "the job's software environment is broken",
    Cause.APP_OOM_GPU: "the program needs more GPU memory than there is",
    Cause.APP_OOM_HOST: "the program needs more memory than the node has",
    Cause.DATALOADER: "loading the data failed",
    Cause.NUMERICAL_NAN: "the numbers went bad (NaN or infinity)",
    Cause.COLLECTIVE_MISMATCH: "the ranks called different collectives",
    Cause.NCCL_HANG_UNKNOWN: "the job hung",
    Cause.NETWORK_BOOTSTRAP: "the ranks could not reach each other at the start",
    Cause.NETWORK_FABRIC: "the network between nodes failed",
    Cause.GPU_MEMORY_ECC: "GPU memory failed (ECC)",
    Cause.GPU_FALLEN_OFF_BUS: "a GPU fell off the bus",
    Cause.GPU_NVLINK: "NVLink failed",
    Cause.GPU_GSP_OR_DRIVER: "the GPU's driver or firmware failed",
    Cause.GPU_THERMAL_POWER: "a GPU is too hot or has too little power",
    Cause.PCIE: "PCIe failed",
    Cause.NODE_OS_OR_HOST: "a node's operating system or host failed",
    Cause.NODE_FAILURE: "a node is gone",
    Cause.FILESYSTEM_STORAGE: "a file system or its storage failed",
    Cause.DISK_FULL: "a disk is full or filling up",
    Cause.CHECKPOINT_CORRUPT: "a checkpoint is damaged",
    Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT: "Slurm ended the job (time limit, preemption or cancellation)",
    Cause.UNKNOWN: "what broke is not known",
}


# How Slurm ended a job on purpose, by the state that it then has: that is no failure, whatever was wrong before.
ENDED_BY_SLURM: Mapping[str, str] = {
    "timeout": "reached its time limit, or the end of its reservation",
    "deadline": "reached its deadline",
    "preempted": "was preempted",
}
ENDED_ON_PURPOSE = frozenset({*ENDED_BY_SLURM, "cancelled"})
# Who is at fault where Slurm ended the job: a limit, a job that goes before it or a person asked for that.
ENDED_AS_ASKED = "nothing: Slurm ended the job as it was asked; neither its program nor a machine"


def cause_words(cause: str) -> str:
    """``a GPU fell off the bus``. A cause that only another release knows is its id."""
    return CAUSE_WORDS.get(cause, cause)


# What people read of steps: on the page, in the terminal, in messages. ``{}``: the node or the job.
STEP_WORDS: Mapping[str, str] = {
    StepKind.DRAIN: "drain {}",
    StepKind.DOWN: "set {} down",
    StepKind.REQUEUE_HOLD: "requeue {} and keep it waiting",
    StepKind.CHOOSE_CHECKPOINT: "choose a checkpoint for {}",
    StepKind.QUARANTINE: "rename unusable checkpoints of {}",
    StepKind.WRITE_RESUME: "write the resume point of {}",
    StepKind.EXCLUDE: "keep {} off the nodes at fault",
    StepKind.RELEASE: "release {}",
    StepKind.CONFIRM: "see that {} makes steps",
    StepKind.HOLD: "hold {}",
    StepKind.STOP_RUN: "end the job step of {}",
    StepKind.START_RUN: "start the next job step of {}",
    StepKind.GIVE_BACK: "give back bad spare nodes of {}",
}


def step_words(kind: str, node: str | None, job: int | None) -> str:
    """``drain n2``, ``release job 8801``. A kind that only another release knows is its id."""
    target = node or (f"job {job}" if job is not None else "")
    return STEP_WORDS.get(kind, f"{kind} {{}}").format(target).strip()


def words_of(step: Mapping[str, Any]) -> str:
    """The same of a step in the daemon's answers, whose kind is in ``step`` or in ``kind``."""
    return step_words(str(step.get("kind") or step.get("step")), step["node"], step["job"])


# The steps with which a restart begins; those that follow for jobs are part of it, also for the components of one.
_RESTARTS = {StepKind.REQUEUE_HOLD: "restart job {}", StepKind.STOP_RUN: "restart job {} in its allocation"}


def planned_words(steps: Sequence[Mapping[str, Any]]) -> str:
    """What a plan comes to, of steps as in the daemon's answers: a restart is one thing."""
    kinds = [str(step.get("kind") or step.get("step")) for step in steps]
    restarts = any(kind in _RESTARTS for kind in kinds)
    said = []
    for kind, step in zip(kinds, steps, strict=True):
        if kind in _RESTARTS:
            said.append(_RESTARTS[StepKind(kind)].format(step["job"]))
        elif not restarts or step["job"] is None or kind == StepKind.GIVE_BACK:
            said.append(words_of(step))
    return ", ".join(dict.fromkeys(said))


def result_words(result: str | None) -> str:
    """A step's ``result``: done, failed, not known; without one, under way."""
    return result.replace("_", " ") if result else "under way"


_LEAST_SAID = 0.005  # less would be said as 0 %
_TOLD_APART = 0.05  # how sure the drain is is said beside the cause's confidence where it is so much higher


def how_sure(confidence: float, drain_confidence: float) -> str:
    """``45% sure``, and where several causes say that the node must go, how sure that is; empty where nothing is likely."""
    apart = drain_confidence >= confidence + _TOLD_APART
    if confidence < _LEAST_SAID:
        return f"{drain_confidence:.0%} sure of the drain" if apart else ""
    return f"{confidence:.0%} sure" + (f" of it, {drain_confidence:.0%} of the drain" if apart else "")


DRAIN_REFUSED = "drain-refused"  # kind of the wait of a drain that Slurm refused
UNREAD_NODE = "unread-node"  # kind of the wait of a drain whose node's record cannot be read
REBOOT_PENDING = "reboot-pending"  # kind of the wait of a drain whose node is out until Slurm has rebooted it
REBOOT_ASKED = (
    "reboot_asked"  # data of a drain: somebody had asked Slurm for a reboot before it, which may end it: true
)
WAS_OUT = "was_out"  # data of a drain that found the node drained for another incident of ours: true
SEEN_DRAINED, LOST_BEFORE = "seen_drained", "lost_before"  # of a drain done again: ``reconcile.restarts``
MISSING_NODE = "missing-node"  # kind of the wait of a drain whose node is not in Slurm's listing
REFUSED_SINCE = "refused_since"  # outcome data: since when Slurm has refused the request, ISO 8601
REFUSED_BY_SLURM = "refused_by_slurm"  # data of the outcome of a drain that Slurm refused for an unknown reason: true
# State of an attempt that was over when it was looked for: when it ended, and how long it worked, is not known.
END_NOT_SEEN = "end not seen"
NEVER_STARTS = "BadConstraints"  # Slurm's reason of a job that no nodes can ever run: its priority is 0
HELD_BY_SLURM = "held_by_slurm"  # outcome data: the job is held with that reason
HELD_BY_OTHERS = "held_by_others"  # outcome data: somebody else than Sentinel held the job in the middle of a restart
ASKED = "asked"  # data of the step that excludes nodes, and of its outcome: the nodes that the job's user requires
NOT_IN_SLURM = "not_in_slurm"  # data of that step: nodes of the job's own lists that are gone from slurm.conf
QUEUED = "queued"  # data of a release: what its job waits for in the queue, in words
BY_SCRIPT = "by_script"  # outcome data: no checkpoint was chosen or moved, the job resumes as its own script does
FOR_ATTEMPT = "for_attempt"  # data of a written resume point: the attempt that may use it
ANYWHERE = "anywhere"  # data of the step that chooses a checkpoint: one that needs no certain nodes
GOES_ON = (
    "goes_on_in_folder"  # of the same step: another job of its user that saves in its folder while it waits, by id
)
PROLOG_ERROR = "Prolog error"  # how Slurm itself explains the drain of a node whose prolog failed
_SWITCHED = frozenset({"powered_down", "powering_up", "reboot_issued"})  # flags of a node in ``NodeView.flags``
_ONCE_IDLE = frozenset({"power_down", "reboot_requested"})  # the same, but only when its jobs are over


def switched_by_slurm(state: str, flags: AbstractSet[str]) -> bool:
    """Whether Slurm switches a node of this state and these flags off or on, has switched it off or reboots it.

    Its silence says nothing then, also where it carries a job: for that it is switched on. Slurm calls it down if it does
    not come back in ``ResumeTimeout``.
    """
    is_idle = state == "idle" and "completing" not in flags
    return not flags.isdisjoint(_SWITCHED) or (is_idle and not flags.isdisjoint(_ONCE_IDLE))


REBOOTS = frozenset({"reboot_requested", "reboot_issued"})  # flags of a node that Slurm is to reboot, or reboots
_FOR_REBOOT = "Reboot ASAP"  # Slurm's own reason of a drain until the reboot that somebody asked for without a reason


def only_for_reboot(reason: str, flags: AbstractSet[str]) -> bool:
    """Whether Slurm itself drained a node of this reason and these flags, and takes that back with its reboot."""
    return reason.startswith(_FOR_REBOOT) and not flags.isdisjoint(REBOOTS)


POWERED_OFF = frozenset({"power_down", "powered_down"})  # flags of a node that is off, or is being switched off
# A flag of ours: Slurm ended our drain as it switched the node off or rebooted it, and nobody returned it.
DRAIN_LOST = "drain_lost"

# What says of a node only that it is gone; it may be there again by now.
ABSENCE = frozenset({Kind.NODE_UNREACHABLE, Kind.NODE_DOWN})
PREEMPTED = "preempted"  # data of a job's end: Slurm had preempted it, whatever state it gave it then: true
LIMIT_NEAR = "limit_near"  # data of a job's end: it was when Slurm tells a job that its time is nearly over: true
PARTITION_GONE = "partition_gone"  # data of a job's end: the partition for want of which Slurm ended it, by name
PREEMPTED_AT = "preempted_at_s"  # beside it: when Slurm preempted the job, in Unix time
LOG_LINE = "log_line"  # data of evidence: the line of its log, where records of several lines moved what is below them
WRITER = (
    "writer"  # data of evidence of a log: the program that wrote the line, where it has the form of a machine's log
)
STEP_LINES = "step_lines"  # data of a step: so many step lines it stands for, of which only the last one was passed on
RUN_START = "run_start"  # kind of the line at which a log begins anew
CAUGHT = "caught"  # data of evidence: the next line says that the program goes on without it
INTERPRETED = "interpreted"  # data of evidence: what handled this exception raised another one
BROKEN_OFF = "traceback-broken-off"  # kind of the innermost frame of a traceback with which a log breaks off
CRASH_STACK = "crash_stack"  # kind of the headline of the stack of a thread in which a process crashed
# What says that the numbers of a training are bad.
BAD_NUMBER_KINDS = frozenset({"nan", Kind.NUMBERS})
