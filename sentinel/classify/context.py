"""What no single line says: how many ranks and nodes said it, when it came, and what happened before.

Each rule of the field is one function that adds readings of its own, so that a verdict lists it among its grounds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from sentinel.classify.exceptions.explained_by_program import backend_failed, came_true, empty, if_both, interpreted
from sentinel.classify.faults.agreement import widely_told
from sentinel.classify.history import History
from sentinel.classify.ranks.op_counts import differing_calls
from sentinel.classify.ranks.watchdogs import differing, uneven, waiting_apart
from sentinel.classify.readings import GPU_CAUSES, NVLINK5_XIDS, WARNED, Reading, lines_below, of_context
from sentinel.classify.recurrence import SHARED, ambiguous, recurring
from sentinel.classify.roles import LEADS, points_to
from sentinel.classify.unanswered import FINISHED
from sentinel.classify.who_ended_it import ended_from_outside, given_up, interrupted_wait, self_ended, torn_down
from sentinel.config.rules import Drain, Form, Role, Rules
from sentinel.model.records import Cause, Incident, Kind, Scope

KEPT_OF_A_RULE = 6  # lines of one rule that are kept of a log that is followed: evidence.logs.limits.LIMIT
C = Cause
QUOTED = 80  # lines below its headline that the traceback of a worker's exception may have
HOT = 3.0  # natural-log odds from which a line says that a GPU was too hot
LOST = 3.4  # the same for a GPU that is gone
MET = 2.0  # the same for ranks that did not find each other


def context(
    incident: Incident, readings: Sequence[Reading], history: History, rules: Rules, now: datetime
) -> list[Reading]:
    added: list[Reading] = []
    for judge in (
        _spread,
        _startup_oom,
        _explained,
        _many_nodes,
        _many_links,
        _many_jobs,
        _stopped_task,
        self_ended,
        interrupted_wait,
        ended_from_outside,
        given_up,
        _overheated,
        torn_down,
        empty,
        _met_before,
        _crashed_library,
        _shared_memory_full,
        _forked,
        _read_by_worker,
        backend_failed,
        interpreted,
        came_true,
        _none_asked_for,
        _hook_on_storage,
        _still_preparing,
        differing,
        differing_calls,
        waiting_apart,
        uneven,
        recurring,
    ):
        added.extend(judge(incident, readings, history, rules, now))
    return added


def _units(readings: Sequence[Reading]) -> tuple[set[str], set[int]]:
    nodes = {r.evidence.where.node for r in readings if r.evidence.where.node}
    ranks = {r.evidence.where.rank for r in readings if r.evidence.where.rank is not None}
    return nodes, ranks


def _spread(
    incident: Incident, readings: Sequence[Reading], _h: History, rules: Rules, _now: datetime
) -> list[Reading]:
    """The same fault on several nodes or many ranks is code; on one of many it leans to the machine."""
    added = []
    world = _world(incident)
    for kind, group in ambiguous(readings, rules).items():
        nodes, ranks = _units(group)
        first = group[0].evidence
        if len(nodes) >= 2 or len(ranks) >= 3:
            weights = {C.USER_CODE: 1.6, **dict.fromkeys(GPU_CAUSES, -1.6)}
            if kind == "nan":
                weights = {C.NUMERICAL_NAN: 0.8, **dict.fromkeys(GPU_CAUSES, -1.2)}
            if kind == "oom-gpu":
                weights = {C.APP_OOM_GPU: 1.2, **dict.fromkeys(GPU_CAUSES, -1.6)}
            note = f"the same on {max(len(nodes), len(ranks))} {'nodes' if len(nodes) >= 2 else 'ranks'}"
            added.append(of_context(first, f"spread-{kind}", weights, note, Scope.APPLICATION))
        elif world >= 4 and len(ranks) == 1 and kind in {"cuda-unknown", "cuda-unspecified"}:
            weights, note = {C.GPU_GSP_OR_DRIVER: 0.8}, f"on one rank of at least {world}"
            added.append(Reading(first, f"single-{kind}", weights, Role.CONTEXT, None, Drain.ADVISE, note=note))
    return added


def _world(incident: Incident) -> int:
    """A lower bound of the job's world size, from the ranks in the evidence."""
    return max((e.where.rank for e in incident.evidence if e.where.rank is not None), default=-1) + 1


def _startup_oom(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """Out of memory before the program had allocated anything: something else holds the memory, or the GPU is faulty."""
    added = []
    steps = [e for e in incident.evidence if e.kind == Kind.STEP]
    for reading in readings:
        if reading.evidence.kind != "oom-gpu" or steps:
            continue
        by_nccl = "cuda failure" in reading.evidence.text.lower()  # also of memory of the host that it cannot map
        if reading.key == "oom-gpu-bare" and not by_nccl and any(r.key == "startup-frame" for r in readings):
            weights = {C.GPU_MEMORY_ECC: 2.4, C.GPU_GSP_OR_DRIVER: 1.4, C.APP_OOM_GPU: -1.2}
            note = "at a start-up barrier, before the program held anything"
            added.append(
                Reading(reading.evidence, "oom-at-start", weights, Role.CONTEXT, Scope.GPU, Drain.ADVISE, note=note)
            )
            break
        used, total = reading.evidence.data.get("gib_used"), reading.evidence.data.get("gib_total")
        tried = reading.evidence.data.get("gib_tried")
        if isinstance(used, (int, float)) and isinstance(total, (int, float)) and total and used < 0.05 * total:
            weights = {C.GPU_GSP_OR_DRIVER: 1.0, C.GPU_MEMORY_ECC: 1.0, C.APP_OOM_GPU: -1.0}
            added.append(of_context(reading.evidence, "oom-nothing-held", weights, "this process held almost nothing"))
        elif isinstance(tried, (int, float)) and tried > 0:
            added.append(
                of_context(reading.evidence, "oom-asked", {C.APP_OOM_GPU: 0.8}, "it says how much it asked for")
            )
        break
    return added


def _explained(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """An unknown CUDA error beside an error that names the program's own fault is explained by it."""
    unknown = [r for r in readings if r.key == "cuda-unknown"]
    rest = [r for r in readings if r.key != "cuda-unknown"]
    own = [r for r in rest if r.weights.get(C.USER_CODE, 0.0) >= 2.0 and r.drain is Drain.NO]
    if not unknown or not own or any(r.drain is not Drain.NO for r in rest):
        return []
    weights = {C.USER_CODE: 1.5, C.GPU_GSP_OR_DRIVER: -1.0, C.GPU_FALLEN_OFF_BUS: -1.0}
    return [of_context(unknown[0].evidence, "explained", weights, f"explained by: {own[0].note}")]


def _many_nodes(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """Many nodes with one shared fault are one cluster incident."""
    added = []
    for cause in sorted(SHARED):
        group = widely_told([r for r in readings if r.weights.get(cause, 0.0) >= 1.5])
        nodes, _ = _units(group)
        if len(nodes) >= 3:
            note = f"on {len(nodes)} nodes at once: one shared fault"
            added.append(of_context(group[0].evidence, f"many-{cause}", {cause: 1.5}, note, Scope.CLUSTER))
    sleeping = [r for r in readings if r.key == "task-D"]
    nodes, _ = _units(sleeping)
    if len(nodes) >= 2:
        note = f"tasks on {len(nodes)} nodes sleep in the kernel: shared storage, not one node"
        weights = {C.FILESYSTEM_STORAGE: 4.0}
        added.append(Reading(sleeping[0].evidence, "many-D", weights, Role.CAUSE, Scope.CLUSTER, note=note))
    return added


def _many_links(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """NVLink5 faults on several GPUs at once are in the switch they share, which serves a rack."""
    links = [r for r in readings if r.evidence.kind == Kind.XID and r.evidence.data.get("xid") in NVLINK5_XIDS]
    first_hand = [r for r in links if r.evidence.data.get("pci") and "previous Xid" not in r.evidence.text]
    if links and not first_hand and len({r.evidence.where.node for r in links}) == 1:
        return [of_context(links[0].evidence, "one-host-links", {C.GPU_NVLINK: 0.6}, "on one host", Scope.NODE)]
    ends = {(r.evidence.where.node, r.evidence.data.get("pci")) for r in links if r.evidence.data.get("pci")}
    if len(ends) < 2:
        return []
    note = f"NVLink faults on {len(ends)} GPUs at once: the switch between them"
    return [of_context(links[0].evidence, "many-links", {C.GPU_NVLINK: 1.2}, note, Scope.CLUSTER)]


def _many_jobs(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """Several jobs ended by the scheduler alike: an administrator or the controller, not a user."""
    ended = [r for r in readings if r.evidence.kind == "job-cancelled"]
    jobs = {r.evidence.data.get("text") for r in ended if r.evidence.data.get("text")}
    if len(jobs) < 3:
        return []
    weights = {C.SCHEDULER_PREEMPT_OR_TIMELIMIT: 1.0}
    return [of_context(ended[0].evidence, "many-jobs", weights, f"{len(jobs)} jobs at once", Scope.CLUSTER)]


def _stopped_task(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """One stopped or stuck task among running ones, and no progress: the others wait for that rank."""
    stall = next((r for r in readings if r.key == "stall"), None)
    stuck = [r for r in readings if r.key in {"task-T", "task-D"}]
    nodes, ranks = _units(stuck)
    if stall is None or not stuck or len(nodes) > 1:
        return []
    who = f"rank {min(ranks)}" if ranks else f"a task on {min(nodes)}" if nodes else "one task"
    return [
        of_context(stuck[0].evidence, "stopped-one", {C.NCCL_HANG_UNKNOWN: 1.5}, f"{who} is stuck, the others wait")
    ]


def _overheated(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """A GPU that overheated and then was lost: the heat is the cause."""
    hot = next((r for r in readings if r.weights.get(C.GPU_THERMAL_POWER, 0.0) >= HOT), None)
    lost = [r for r in readings if r.weights.get(C.GPU_FALLEN_OFF_BUS, 0.0) >= LOST]
    if hot is None or not lost or readings.index(hot) > readings.index(lost[0]):
        return []
    one, other = hot.evidence.where.node, lost[0].evidence.where.node
    if one is not None and other is not None and one != other:
        return []
    weights = {C.GPU_THERMAL_POWER: 2.6}
    note = "it was too hot before it was lost"
    return [Reading(lost[0].evidence, "overheated", weights, Role.CONTEXT, Scope.GPU, lost[0].drain, note=note)]


def _met_before(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """Ranks that waited in a collective call had found each other: a rendezvous that fails behind it is the clean-up."""
    waited = next((i for i, r in enumerate(readings) if r.evidence.kind == "watchdog"), None)
    if waited is None:
        return []
    late = [r for r in readings[waited + 1 :] if r.weights.get(C.NETWORK_BOOTSTRAP, 0.0) >= MET]
    same = [r for r in late if r.evidence.line != readings[waited].evidence.line]
    if not same:
        return []
    weights = {C.NETWORK_BOOTSTRAP: -max(r.weights[C.NETWORK_BOOTSTRAP] for r in same), C.NCCL_HANG_UNKNOWN: 2.4}
    return [of_context(same[0].evidence, "met-before", weights, "behind a collective call that timed out")]


def _crashed_library(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """A communication library that complains and then crashes does not fit what it runs on."""
    crash = next((r for r in readings if r.key in {"segfault", "segfault-library"}), None)
    weights = {C.SOFTWARE_ENV: 2.6, C.NETWORK_BOOTSTRAP: -1.4, C.NETWORK_FABRIC: -1.4}
    libraries = {"ucx", "ofi", "mpi-init", "mpi-tcp"}
    return if_both(crash, libraries, readings, "library-crashed", weights, "the library complained, then crashed")


def _shared_memory_full(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """A bus error in a library that maps a file of /dev/shm: the file has a size, and /dev/shm is full."""
    bus = next((r for r in readings if r.key == "bus-error"), None)
    weights = {C.USER_CONFIG: 3.4, C.DATALOADER: -1.4}
    note = "a bus error while a library used /dev/shm"
    return if_both(bus, {"shared-memory-frame"}, readings, "shared-memory-full", weights, note)


def _forked(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """CUDA that cannot be initialized in a data worker: the worker was forked from a process that had used the GPU."""
    refused = next((r for r in readings if r.key == "cuda-init"), None)
    weights = {C.USER_CODE: 3.2, C.GPU_GSP_OR_DRIVER: -3.0}
    note = "a data worker used the GPU: a forked process cannot"
    return if_both(refused, {"loader-caught"}, readings, "forked-worker", weights, note)


def _read_by_worker(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """A file that a data worker cannot read, or misses after steps, is a sample: ranks read checkpoints themselves."""
    caught = next((r for r in readings if r.key == "loader-caught"), None)
    if caught is None:
        return []
    above = [e for e in incident.evidence if (e.line or 0) < (caught.evidence.line or 0)]
    began = max((e.line or 0 for e in above if e.kind == FINISHED), default=0)  # after the run before it
    stepped = sum(e.kind == Kind.STEP and (e.line or 0) > began for e in above) > 1  # one may be a sanity check
    for found in readings:
        accused = points_to(found)
        is_file = accused is C.CHECKPOINT_CORRUPT or (stepped and found.key == "file-missing")
        if is_file and accused and found.strength >= LEADS and 0 < (lines_below(found, caught) or 0) <= QUOTED:
            weights = {C.DATALOADER: found.strength, accused: -found.strength}
            return [of_context(found.evidence, "read-by-worker", weights, "read by a data worker: a sample")]
    return []


def _none_asked_for(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """No GPU in an allocation in which a person works by hand: mostly none was asked for."""
    absent = next((r for r in readings if r.key == "smi-no-devices"), None)
    weights = {C.USER_CONFIG: 3.4, C.GPU_GSP_OR_DRIVER: -1.0}
    return if_both(absent, {"salloc-granted"}, readings, "none-asked", weights, "in an allocation by hand")


_HOOKS = frozenset({"prolog", "step-container", "step-hooks"})  # rules: what Slurm says of a site's prolog or epilog


def _hook_on_storage(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """A prolog or epilog that fails beside a mount that does not answer: it lies there, or looks at it."""
    hooks = [r for r in readings if r.key in _HOOKS]
    silent = next((r for r in readings if r.form is Form.STORAGE and points_to(r) is C.FILESYSTEM_STORAGE), None)
    if not hooks or silent is None or silent.strength < LEADS:
        return []
    weights = {C.FILESYSTEM_STORAGE: 2.0, C.NODE_OS_OR_HOST: -sum(r.weights.get(C.NODE_OS_OR_HOST, 0.0) for r in hooks)}
    return [of_context(silent.evidence, "hook-on-storage", weights, "a prolog or epilog failed beside it")]


_RAN_OUT = re.compile(r"(?i)\btimed? ?out\b|\bstore->get\('[^'\n]{1,40}'\) got error")


def _ran_out(reading: Reading) -> bool:
    """Whether a rank waited for the others' store, or for them to meet, until its limit."""
    text = reading.evidence.text
    least = MET * WARNED if reading.warned else MET
    waited = reading.weights.get(C.NETWORK_BOOTSTRAP, 0.0) >= least and _RAN_OUT.search(text) is not None
    return waited and "waiting for clients" not in text  # of these nobody knows whether they were started


def _still_preparing(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """Ranks that time out in a barrier while one of them still prepares the data set: the limit is too short for that."""
    waited = next((r for r in readings if r.evidence.kind == "watchdog" or _ran_out(r)), None)
    if waited is None:
        return []
    path, line = waited.evidence.where.path, waited.evidence.line or 0
    before = [e for e in incident.evidence if e.where.path == path and (e.line or 0) <= line]
    preparing = [e for e in before if e.kind == "preparing"]
    trained = [e for e in before if e.kind == Kind.STEP and e.data.get("loss") is not None]
    if not preparing or trained or preparing[-1].data.get("text") == "100":
        return []
    if len(preparing) % KEPT_OF_A_RULE == 0:
        return []  # of a log that is followed more are not kept, and what the last one said is not known
    met = max((r.weights.get(C.NETWORK_BOOTSTRAP, 0.0) for r in readings if _ran_out(r)), default=0.0)
    weights = {C.USER_CONFIG: 3.6, C.NCCL_HANG_UNKNOWN: -1.0, C.NETWORK_BOOTSTRAP: -met}
    return [of_context(preparing[-1], "still-preparing", weights, "one rank still prepares the data, the others wait")]
