"""Slurm's JSON → ``NodeView`` and ``JobView``. Pure; parses by presence, because the shapes differ between releases.

A number is a number, null, or ``{"set", "infinite", "number"}``; a state is "mixed", "MIXED+DRAIN", or a list; an exit
code is a wait status or ``{"return_code", "signal"}``; node flags are a list of their own (22.05) or part of the state.
Text of users (job names, comments, paths) comes out of JSON strings and is never split again, so it cannot forge a key;
bytes in it that are no text are made plain in the views (``sentinel.text``), so it cannot spoil the answer either.

A record that cannot be read is left out with its reason and stays *not known* (``Fleet.unread``): it hides no other one.
The node lists that users write are not worth that: one that cannot be read is itself *not known* (``JobView.unread_lists``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sentinel.adapters.slurm.pyslurm_child import UNREAD
from sentinel.errors import ProtocolError, Unavailable
from sentinel.model.hostlist import expand
from sentinel.model.records import Fleet, JobView, NodeView, Unread, utc
from sentinel.text import plain
from sentinel.wire import large_json

T = TypeVar("T", NodeView, JobView)
Record = Mapping[str, Any]

BASE_NODE_STATES = ("down", "error", "future", "allocated", "mixed", "idle", "unknown")
ENDED = frozenset(
    {
        "completed", "cancelled", "failed", "timeout", "node_fail", "preempted", "boot_fail", "deadline", "out_of_memory",
        "revoked",
    }
)  # fmt: skip
# Flags beside a base state, the one that tells most first: what a job is doing hides what it was.
JOB_FLAGS_FIRST = ("completing", "stage_out", "stopped", "suspended", "special_exit", "configuring")
# "configuring": its nodes are being prepared (Prolog), and it holds them. "stopped": by scancel -s STOP; it holds them, too.
_FLAG_COUNTS_AS = {"configuring": "running", "stopped": "suspended"}
# Flags that squeue of 22.05 and pyslurm tell in the base state's place: what that is.
_FLAG_ALONE = {
    "resizing": "running",
    "signaling": "running",
    "expediting": "completing",  # its epilogs decide whether it is requeued
    "requeue_hold": "pending",
    "requeue_fed": "pending",
    "resv_del_hold": "pending",
}
WAITING = frozenset({"pending", "completing", "special_exit", "requeued"})
REQUEUE_HELD = "job requeued in held state"  # 22.05, 24.11 and 26.05; a release clears it, another hold writes none
_BUSY = frozenset({"allocated", "mixed"})  # states of a node that a job holds
_FIX_HIDDEN = "check PrivateData in slurm.conf and the rights of this account"
MOST_DEPENDENCIES = 100  # of one job; further ones are not looked at
NOT_VALUES = frozenset({0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF, 0xFFFE, 0xFFFF})
LAST_TIME_S = 0xFFFFFFF0  # Slurm marks "no time" with values from here on, and adds to them

_NODE_FLAGS = {
    "drained": "drain",
    "draining": "drain",
    "no_respond": "not_responding",
    "maint": "maintenance",
    "powering_down": "power_down",
    "power_drain": "power_down",  # once its job ends
    "powered_off": "powered_down",
    "res": "reserved",
}
_LEAD_S = 60  # between the signal and the limit, where --signal names no time
_EARLIER_S = 60  # by which Slurm may send the signal earlier, see sbatch(1)
_OF_LIMIT = 0.05  # of a short job's limit, as the most where nothing is known of a --signal: it may just have failed
_LONGEST_LIMIT_MIN = 10 * 366 * 24 * 60  # of Slurm's are at most a year
_SIGNAL = re.compile(r"(?:^|\s)--signal(?:=|\s+)['\"]?(?:[BR]{1,2}:)?[A-Za-z0-9]{0,16}(?:@([0-9]{1,5}))?(?![^\s'\"])")
_PARTITION = re.compile(r"(?:^|\s)(?:-p\s*|--partition(?:=|\s+))['\"]?([^\s'\",]+(?:,[^\s'\",]+)+)(?![^\s'\"])")
_GPU = re.compile(r"gpu(?::[^:(),]+)*?(?::([0-9]{1,12})([KMG]?))?(?:\([^)]*\))?\Z")
_FACTORS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def records(text: bytes | str, key: str) -> list[Record]:
    """The list under ``key`` ("jobs", "nodes") of an answer. What is no record in it is given as one without a name.

    A record of another cluster of a federation is left out, where Slurm says whose it and the answer are (24.11 and newer).

    Raises:
        ProtocolError: not JSON, cut off, or without that list.
    """
    try:
        answer = large_json(text)
    except ValueError as error:
        raise ProtocolError(f"Slurm's answer is not JSON ({error!s:.200})") from error
    found = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise ProtocolError(f"Slurm's answer has no list {key!r}")
    errors = answer.get("errors")
    if errors:  # sinfo of 22.05 ends with status 0 and an empty list when it is refused
        raise ProtocolError(f"Slurm's answer carries errors: {errors!r:.200}")
    own = _cluster_of(answer)
    read = [item if isinstance(item, dict) else {"no record": item} for item in found]
    return [record for record in read if not own or text_of(record.get("cluster")) in ("", own)]


def _cluster_of(answer: Mapping[str, Any]) -> str:
    """The cluster whose commands gave this answer; empty: it does not say."""
    meta = answer.get("meta")
    slurm = meta.get("slurm") if isinstance(meta, dict) else None
    return text_of(slurm.get("cluster")) if isinstance(slurm, dict) else ""


def fleet_of(at: datetime, nodes: Sequence[Record], jobs: Sequence[Record], unread: Sequence[Unread] = ()) -> Fleet:
    """One snapshot out of two answers; records that cannot be read are in its ``unread``, beside those given here.

    Raises:
        Unavailable: no node at all, or none that can be read: a cluster without nodes is one that hides them from us. Or no
            job at all, although nodes have work: then these are hidden.
    """
    seen, strange = _read(nodes, node_view, "node", "name")
    known, odd = _read(jobs, job_view, "job", "job_id")
    if not seen:
        why = f"Slurm's answer cannot be read: {strange[0].reason}" if strange else "Slurm shows no node at all"
        raise Unavailable(why, fix=_FIX_HIDDEN)
    busy = next((node.name for node in seen if node.state in _BUSY), None)
    if busy is not None and not jobs:
        raise Unavailable(f"Slurm shows no job at all, although {busy} has work: jobs are hidden", fix=_FIX_HIDDEN)
    return Fleet(
        at=at,
        nodes={node.name: node for node in seen},
        jobs={job.id: job for job in known},
        unread=(*strange, *odd, *unread),
    )


def _read(found: Sequence[Record], view: Callable[[Record], T], what: str, key: str) -> tuple[list[T], list[Unread]]:
    """What can be read of ``found``, and what cannot."""
    seen, unread = [], []
    for record in found:
        try:
            seen.append(view(record))
        except ProtocolError as error:
            unread.append(Unread(what, _name(record, key), error.message))
    return seen, unread


def _name(record: Record, key: str) -> str:
    """The id of a job or the name of a node; empty when the record has none."""
    value = record.get(key)
    if key == "job_id":
        job = whole(value)
        return "" if job is None else f"{job}"
    return plain(value) if isinstance(value, str) else ""


def node_of(found: Sequence[Record], name: str) -> NodeView | None:
    """The named node among records.

    Raises:
        Unavailable: its record cannot be read, or may be one that has no name.
    """
    record = _named(found, "name", name)
    try:
        return node_view(record) if record is not None else None
    except ProtocolError as error:
        raise Unavailable(f"Slurm's record of node {name} cannot be read: {error.message}") from error


def record_of(found: Sequence[Record], job: int) -> Record | None:
    """The record of a job among records.

    Raises:
        Unavailable: it may be one that has no id.
    """
    return _named(found, "job_id", f"{job}")


def _named(found: Sequence[Record], key: str, name: str) -> Record | None:
    names = [_name(record, key) for record in found]
    if name in names:
        return found[names.index(name)]
    if "" in names:
        raise Unavailable(f"Slurm's answer has a record without {key}: whether {name} is there is not known")
    return None


def job_of(record: Record | None) -> JobView | None:
    """The job of a record; raises Unavailable when it cannot be read."""
    try:
        return job_view(record) if record is not None else None
    except ProtocolError as error:
        raise Unavailable(f"Slurm's answer cannot be read: {error.message}") from error


def node_view(record: Record) -> NodeView:
    """Raises ProtocolError for a record that has no name."""
    _require_read(record)
    name = record.get("name")
    if not isinstance(name, str) or not name:
        raise ProtocolError(f"node without a name: {record!r:.200}")
    words = [*_words(record.get("state")), *_words(record.get("state_flags"))]
    flags = {_NODE_FLAGS.get(word, word) for word in words if word not in BASE_NODE_STATES}
    return NodeView(
        name=plain(name),
        state=next((word for word in words if word in BASE_NODE_STATES), "unknown"),
        flags=frozenset(flags),
        reason=text_of(record.get("reason")),
        partitions=_names(record.get("partitions")),
        address=text_of(record.get("address")),
        port=whole(record.get("port")),
        gpus=gpu_count(record["gres"]) if isinstance(record.get("gres"), str) else None,
        topology=text_of(record.get("topology")),
    )


def job_view(record: Record) -> JobView:
    """Raises ProtocolError for a record that has no id, or says in a form that is none which nodes the job holds."""
    _require_read(record)
    job = whole(record.get("job_id"))
    if job is None:
        raise ProtocolError(f"job without an id: {record!r:.200}")
    state = job_state(record.get("job_state"))
    reason = text_of(record.get("state_reason"))
    exit_held = state == "special_exit" or _held_by_expedited_requeue(record, state, reason)
    state = "pending" if exit_held else state
    ended = state in ENDED
    code, signal = exit_of(record.get("exit_code")) if ended or exit_held else (None, None)
    uid = whole(record.get("user_id"))
    asked, unread = _asked_lists(record)
    never_began = ended and record.get("nodes") in ("", [])
    return JobView(
        id=job,
        state=state,
        user=text_of(record.get("user_name")),
        uid=uid,
        name=text_of(record.get("name")),
        partition=text_of(record.get("partition")),
        nodes=_names(record.get("nodes")),
        batch_host=text_of(record.get("batch_host")),
        restarts=whole(record.get("restart_cnt")) or 0,
        reason="" if reason == "None" else reason,
        configuring=state == "running" and "configuring" in _words(record.get("job_state")),
        held=exit_held or _held(state, reason, record.get("priority")),
        exit_held=exit_held,
        requeue_held=state == "pending" and record.get("state_description") == REQUEUE_HELD,
        hold_kept=(ended or state in {"running", "suspended", "completing"}) and whole(record.get("priority")) == 0,
        comment=text_of(record.get("comment")),
        admin_comment=text_of(record.get("admin_comment")),
        array=_array_task(record),
        het=whole(record.get("het_job_id")) or None,
        excluded=asked["excluded"],
        required=asked["required"],
        unread_lists=unread,
        node_count=whole(record.get("node_count")),
        tasks_per_node=whole(record.get("tasks_per_node")) or None,  # 0: none
        exit_code=code,
        exit_signal=signal,
        requeue=record["requeue"] if isinstance(record.get("requeue"), bool) else None,
        depends=depends_of(text_of(record.get("dependency"))),
        singleton=re.search(r"(?:^|[,?])singleton\b", text_of(record.get("dependency"))) is not None,
        batch=_is_batch(record),
        submitted_at=time_of(record.get("submit_time")),
        # Slurm keeps its forecast in the same fields: a waiting job has not started, a running one has not ended. One that
        # ended while it waited has the time of its end there, and none as its nodes; where none are told it may have run.
        started_at=None if state == "pending" or never_began else time_of(record.get("start_time")),
        ended_at=time_of(record.get("end_time")) if ended else None,
        eligible_at=time_of(record.get("eligible_time")),
        suspended_at=time_of(record.get("suspend_time")),
        preempted_at=time_of(record.get("preempt_time")),
        warned_at=warned_at(record) if state != "pending" else None,
        start_by=start_by(record),
        partitions=_submitted_partitions(record),
        reservation=text_of(record.get("resv_name")),
    )


def _is_batch(record: Record) -> bool | None:
    """Slurm counts failed launches in this flag, and the JSON of 22.05 has true only where there were none. Only batch jobs
    are requeued."""
    flag = record.get("batch_flag")
    if not isinstance(flag, bool):
        return None
    return flag or bool(whole(record.get("restart_cnt")))


def warned_at(record: Record) -> datetime | None:
    """From when on Slurm may tell a job that has begun that its time is nearly over; None: it has no limit, or not known.

    Only newer releases (26.05) give the line with which the job was submitted, and none a ``--signal`` in its script.
    """
    began, limit_min = time_of(record.get("start_time")), whole(record.get("time_limit"))
    if began is None or not limit_min or limit_min > _LONGEST_LIMIT_MIN:
        return None
    limit_s = limit_min * 60
    line = record.get("submit_line")
    given = _SIGNAL.search(line) if isinstance(line, str) else None
    lead_s = int(given[1] or _LEAD_S) + _EARLIER_S if given else min(_LEAD_S + _EARLIER_S, limit_s * _OF_LIMIT)
    return began + timedelta(seconds=limit_s - lead_s)


def _submitted_partitions(record: Record) -> tuple[str, ...]:
    """The partitions of the command with which the job was submitted, where it names several, the one in which it runs among
    them: of a job that has begun Slurm shows that one alone. Only newer releases (26.05) give the command."""
    line, shown = record.get("submit_line"), text_of(record.get("partition"))
    given = _PARTITION.search(line) if isinstance(line, str) else None
    found = tuple(plain(given[1]).split(",")) if given else ()
    return found if shown in found else ()


def start_by(record: Record) -> datetime | None:
    """Until when Slurm may start a job that was submitted with ``--deadline``: for its ``--time-min``, else its time limit.
    None: it has no deadline, or the time that it needs is not known."""
    deadline, limit_min = time_of(record.get("deadline")), whole(record.get("time_minimum")) or 0
    limit_min = limit_min or whole(record.get("time_limit")) or 0
    if deadline is None or not 0 < limit_min <= _LONGEST_LIMIT_MIN:
        return None
    return deadline - timedelta(minutes=limit_min)


def _held_by_expedited_requeue(record: Record, state: str, reason: str) -> bool:
    """A job that asked for one (25.11 and newer), failed, and whose epilogs all passed.

    Of other holds at a requeue this flag stays only on a job whose launches failed too often, which has another reason.
    """
    return (
        state == "pending"
        and reason == "JobHeldUser"
        and "requeue_hold" in _words(record.get("job_state"))
        and exit_of(record.get("exit_code")) not in ((None, None), (0, 0))
    )


def depends_of(text: str) -> tuple[tuple[str, int], ...]:
    """Kind and job id of each part of "afternotok:7(unfulfilled),afterok:8:9"; what names no job is left out."""
    found = []
    for part in re.split("[,?]", text)[:MOST_DEPENDENCIES]:
        kind, _, jobs = part.partition(":")
        found += [(kind.strip(), int(number)) for number in re.findall(r"(?:^|:)(\d{1,10})(?!\d)", jobs)]
    return tuple(found[:MOST_DEPENDENCIES])


def _require_read(record: Record) -> None:
    if isinstance(why := record.get(UNREAD), str):
        raise ProtocolError(why)


def job_state(value: object) -> str:
    """One word out of "RUNNING", "PENDING,COMPLETING" or ["RUNNING", "CONFIGURING"]."""
    words = _words(value)
    for flag in JOB_FLAGS_FIRST:
        if flag in words:
            return _FLAG_COUNTS_AS.get(flag, flag)
    return _FLAG_ALONE.get(words[0], words[0]) if words else "unknown"


def array_spec(record: Record) -> str:
    """See ``JobView.spec``; of a record that may not be readable otherwise."""
    array = _array_task(record)
    return f"{array[0]}_{array[1]}" if array is not None else f"{whole(record.get('job_id'))}"


def _array_task(record: Record) -> tuple[int, int] | None:
    array, task = whole(record.get("array_job_id")), whole(record.get("array_task_id"))
    return (array, task) if array and task is not None else None


def het_leader(record: Record) -> int | None:
    """Id of the leader when the job is a component of a heterogeneous one; requeue acts on the leader only."""
    leader = whole(record.get("het_job_id"))
    return leader if leader and leader != whole(record.get("job_id")) else None


def whole(value: object) -> int | None:
    """An integer in any of Slurm's shapes; None for "not set", infinite, or Slurm's own marks for these."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value in NOT_VALUES:
        return None
    return value


def text_of(value: object) -> str:
    return plain(value) if isinstance(value, str) and value not in {"(null)", "N/A"} else ""


def time_of(value: object) -> datetime | None:
    seconds = whole(value)
    return utc(seconds) if seconds is not None and 0 < seconds < LAST_TIME_S else None


def exit_of(value: object) -> tuple[int | None, int | None]:
    """(exit code, signal); both None when not known. A number is a wait status as waitpid gives it."""
    if isinstance(value, dict) and "return_code" in value:
        signal = value.get("signal")
        number = signal.get("signal_id", signal.get("id")) if isinstance(signal, dict) else signal
        code, by = whole(value.get("return_code")), whole(number)
        return (code or 0, by or 0) if code is not None or by is not None else (None, None)
    status = whole(value)
    if status is None:
        return None, None
    return (status >> 8) & 0xFF, status & 0x7F


def gpu_count(gres: str) -> int:
    """GPUs in ``gpu:8``, ``gpu:h100:8(S:0-1),nvme:1`` or ``gpu:a:4,gpu:b:4``; 0 when there are none."""
    total = 0
    for item in re.split(r",(?![^(]*\))", gres):
        match = _GPU.match(item.strip().removeprefix("gres:").removeprefix("gres/"))
        if match:
            total += int(match[1]) * _FACTORS[match[2]] if match[1] else 1
    return total


def _held(state: str, reason: str, priority: object) -> bool:
    """Slurm holds a job by priority 0; the reason says who did it."""
    return state in WAITING and (whole(priority) == 0 or reason in {"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"})


def _words(value: object) -> list[str]:
    items = value if isinstance(value, list) else re.split(r"[+,]", value) if isinstance(value, str) else []
    return [plain(item).strip().rstrip("*~#!%$@^-").lower() for item in items if isinstance(item, str) and item.strip()]


def _asked_lists(record: Record) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """The nodes that the job excludes and requires, and which of these lists cannot be read."""
    found: dict[str, tuple[str, ...]] = {}
    unread = []
    for name in ("excluded", "required"):
        try:
            found[name] = _names(record.get(f"{name}_nodes"))
        except ProtocolError:
            found[name] = ()
            unread.append(name)
    return found, tuple(unread)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(plain(item) for item in value if isinstance(item, str))
    return expand(plain(value)) if isinstance(value, str) else ()
