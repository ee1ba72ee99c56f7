"""The process in which pyslurm lives: one JSON request per line on stdin, one JSON answer per line on stdout.

libslurm may block in the kernel, exit on a bad configuration, or crash with a pyslurm that does not fit; none of that may
happen in the daemon. The parent kills this process at a deadline and starts another one.

Needs the interface of pyslurm 23.2.3 and newer (``Nodes.load``, ``Jobs.load``), which 22.5.3 has too. Records come out in
the shape of Slurm's JSON, so both ways into Slurm share one parser.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from sentinel.text import text_of

NEEDED = ("Nodes", "Jobs", "Node", "Job", "JobSubmitDescription", "RPCError")
UNREAD = "unread"  # key of a record that says why it cannot be read
Record = dict[str, Any]


def hello(pyslurm: Any) -> Record:
    lacks = [name for name in NEEDED if not hasattr(pyslurm, name)]
    return {"pyslurm": str(getattr(pyslurm, "__version__", "")), "lacks": lacks}


class LazyRecord:
    """A node or job of pyslurm's. It decodes each field when that is read, and raises where users wrote bytes that are no
    UTF-8; the error has the bytes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._inner, name)
        except UnicodeDecodeError as error:
            return text_of(bytes(error.object))


def nodes(pyslurm: Any) -> list[Record]:
    return [_record(_node, "name", name, node) for name, node in pyslurm.Nodes.load().items()]


def jobs(pyslurm: Any) -> list[Record]:
    return [_record(_job, "job_id", job_id, job) for job_id, job in pyslurm.Jobs.load().items()]


def _record(made: Callable[[Any], Record], key: str, name: object, told: Any) -> Record:
    """A record, or its name and why it cannot be read: one bad value must not hide other records."""
    try:
        return made(LazyRecord(told))
    except (ValueError, TypeError, KeyError) as error:
        return {key: name, UNREAD: f"pyslurm: {type(error).__name__}: {error!s:.200}"}


def _node(node: Any) -> Record:
    gres = getattr(node, "configured_gres", None)
    return {
        "name": node.name,
        "state": node.state,
        "reason": node.reason or "",
        "partitions": node.partitions if isinstance(node.partitions, str) else list(node.partitions or []),
        "address": node.address,
        "port": getattr(node, "slurmd_port", getattr(node, "port", None)),  # in newer ones, and in older
        "gres": ",".join(f"{kind}:{count}" for kind, count in gres.items()) if isinstance(gres, dict) else None,
    }


def _job(job: Any) -> Record:
    return {
        "job_id": job.id,
        "job_state": job.state,
        "user_name": job.user_name,
        "user_id": job.user_id,
        "name": job.name,
        "partition": job.partition,
        "nodes": job.allocated_nodes or "",
        "batch_host": job.batch_host,
        "batch_flag": job.is_batch_job,
        "restart_cnt": job.requeue_count,
        "state_reason": job.state_reason,
        "state_description": job.state_reason,  # told in the reason's place where Slurm has one
        "priority": job.priority,
        "comment": job.comment,
        "admin_comment": job.admin_comment,
        "excluded_nodes": job.excluded_nodes or "",
        "required_nodes": job.required_nodes or "",
        "node_count": job.num_nodes,
        "tasks_per_node": getattr(job, "ntasks_per_node", None),
        "cpus_per_task": getattr(job, "cpus_per_task", None),
        "exit_code": {"return_code": job.exit_code, "signal": job.exit_code_signal},
        "requeue": job.is_requeueable,
        "dependency": _dependency(getattr(job, "dependencies", None)),
        "submit_time": job.submit_time,
        "start_time": job.start_time,
        "end_time": job.end_time,
        "time_limit": getattr(job, "time_limit", None),
        "time_minimum": getattr(job, "time_limit_min", None),
        "deadline": getattr(job, "deadline", None),
        "submit_line": getattr(job, "submit_line", None),
        "eligible_time": job.eligible_time,
        "suspend_time": getattr(job, "suspend_time", None),
        "preempt_time": getattr(job, "preempt_time", None),
        "array_job_id": job.array_id,
        "array_task_id": job.array_task_id,
        "het_job_id": job.heterogeneous_id,
        "resv_name": job.reservation,
    }


def _dependency(value: Any) -> str:
    """The dependency in squeue's form; pyslurm returns the ids by kind."""
    if not isinstance(value, dict):
        return ""
    found = [f"{kind}:{job}" for kind, jobs in value.items() if isinstance(jobs, (list, tuple)) for job in jobs]
    return ",".join([*found, *(["singleton"] if value.get("singleton") is True else [])])


def set_node(pyslurm: Any, node: str, state: str, reason: str | None) -> None:
    words = {} if reason is None else {"reason": reason}
    pyslurm.Node(node).modify(pyslurm.Node(state=state, **words))


def release(pyslurm: Any, job: int) -> None:
    pyslurm.Job(job).release()


def notify(pyslurm: Any, job: int, text: str) -> None:
    pyslurm.Job(job).notify(text)


VERBS: dict[str, Callable[..., object]] = {
    "hello": hello, "nodes": nodes, "jobs": jobs, "set_node": set_node, "release": release, "notify": notify,
}  # fmt: skip


def answer(pyslurm: Any, line: str) -> Record:
    """``{"ok": result}``, or ``{"no": what Slurm said}``; what is wrong with pyslurm itself is ``{"broken": ...}``."""
    request = json.loads(line)
    try:
        return {"ok": VERBS[request["verb"]](pyslurm, *request["arguments"])}
    except getattr(pyslurm, "RPCError", ()) as error:
        return {"no": f"{error} ({getattr(error, 'errno', None)})"}
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        return {"broken": f"{type(error).__name__}: {error}"}


def main() -> None:
    import pyslurm

    # What libslurm prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(pyslurm, line)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
