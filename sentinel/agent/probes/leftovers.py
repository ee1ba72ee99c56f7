"""Finds processes that an ended job left on the node and the GPUs they hold; ends them only if the site enabled that.

A process belongs to the job if SLURM_JOB_ID in its environment says so, and neither its user nor its control group
contradicts. A process without this variable is reported if it holds one of the job's GPUs and its owner has no other
job here. Processes of root and of other running jobs are never reported.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sentinel.adapters.host.environ import environment_of, uid_of
from sentinel.agent.probes.job_processes import Groups

_DEVICE = re.compile(r"^/dev/nvidia(\d+)$")
_LEAST_UID = 1
_NAMES = frozenset({"SLURM_JOB_ID", "SLURMD_NODENAME"})


@dataclass(frozen=True, slots=True)
class Leftover:
    pid: int
    began: str  # start time in kernel ticks, since a pid may be reused
    uid: int
    state: str
    command: str
    gpus: tuple[int, ...]  # minor numbers of the device files that it holds
    uuids: tuple[str, ...]
    why: str
    ended: str = "no"  # "no", "TERM", "KILL", "still there"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def left_behind(
    job: int,
    uid: int | None,
    gpus: Collection[int],
    *,
    node: str = "",
    others: Mapping[int, int | None] | None = None,
    proc: Path = Path("/proc"),
) -> list[Leftover]:
    """Processes that a job left behind.

    Args:
        gpus: minor numbers of its GPUs.
        others: jobs that run here now, with their users; a user that is not known may be anybody.
    """
    others = others or {}
    elsewhere = set(others.values())
    alone = uid is not None and uid not in elsewhere and None not in elsewhere
    uuids = gpu_uuids(proc)
    found, groups = [], Groups(proc)
    for entry in sorted((e for e in proc.iterdir() if e.name.isdigit()), key=lambda e: int(e.name)):
        seen = _process(entry)
        if seen is None or seen.uid < _LEAST_UID:
            continue
        group = groups.job_of(entry)
        if group != job and uid not in (None, seen.uid):
            continue  # of another user, outside the job's control group: what it says of itself counts for nothing
        environment = _environment(entry)
        theirs = environment.get("SLURM_JOB_ID", "")
        if theirs == str(job):
            if group not in (None, job):
                continue  # of another job
            if environment.get("SLURMD_NODENAME", node) not in (node, "") and node:
                continue  # several nodes may share one host
            found.append(replace(seen, uuids=_names(seen.gpus, uuids), why=f"its environment names job {job}"))
        elif alone and seen.uid == uid and set(seen.gpus) & set(gpus) and not theirs.isdigit():
            why = "it holds a GPU of the job, and its owner has no other job here"
            found.append(replace(seen, uuids=_names(seen.gpus, uuids), why=why))
    return found


def gpu_uuids(proc: Path) -> dict[int, str]:
    """UUID of each GPU by the minor number of its device file, from the driver's files in /proc."""
    found = {}
    for path in sorted((proc / "driver" / "nvidia" / "gpus").glob("*/information")):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        parts = (line.partition(":") for line in lines)
        fields = {name.strip(): value.strip() for name, _, value in parts}
        if fields.get("Device Minor", "").isdigit() and fields.get("GPU UUID"):
            found[int(fields["Device Minor"])] = fields["GPU UUID"]
    return found


def _names(minors: Sequence[int], uuids: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(uuids[minor] for minor in minors if minor in uuids)


def _process(entry: Path) -> Leftover | None:
    try:
        uid = uid_of(entry)
        head, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
        fields = rest.split()
        command = head.partition("(")[2]
        state, began = fields[0], fields[19]
    except (OSError, IndexError):
        return None  # gone
    held = set()
    try:
        for descriptor in (entry / "fd").iterdir():
            device = _DEVICE.match(os.readlink(descriptor))  # noqa: PTH115
            if device:
                held.add(int(device[1]))
    except OSError:
        pass  # gone, or not permitted: which GPUs it holds is then not known
    return Leftover(int(entry.name), began, uid, state, command[:64], tuple(sorted(held)), (), "")


def _environment(entry: Path) -> dict[str, str]:
    try:
        return environment_of(entry, _NAMES)
    except OSError:
        return {}


def end(
    found: Sequence[Leftover], term_s: float, again: Path | None = None, proc: Path = Path("/proc")
) -> list[Leftover]:
    """Send TERM, and KILL to processes that still exist after ``term_s``. Zombies are left to their parents.

    ``again``: a file that the prolog writes when the job starts on this node again; nothing is ended if it exists.
    """
    pidfds = {item.pid: descriptor for item in found if (descriptor := _hold(item, proc)) is not None}
    if again is not None and again.exists():
        for descriptor in pidfds.values():
            os.close(descriptor)
        return []
    sent = {item.pid: "TERM" for item in found if item.pid in pidfds and _send(pidfds[item.pid], signal.SIGTERM)}
    _wait(found, sent, term_s, proc)
    for item in found:
        if item.pid in sent and _there(item, proc) and _send(pidfds[item.pid], signal.SIGKILL):
            sent[item.pid] = "KILL"
    _wait(found, sent, 1.0, proc)
    for descriptor in pidfds.values():
        os.close(descriptor)
    return [
        replace(item, ended="still there" if _there(item, proc) and item.pid in sent else sent.get(item.pid, "no"))
        for item in found
    ]


def _hold(item: Leftover, proc: Path) -> int | None:
    """A pidfd of this process, which stays valid if the pid is reused."""
    try:
        descriptor = os.pidfd_open(item.pid)
    except OSError:
        return None
    if _there(item, proc):
        return descriptor
    os.close(descriptor)
    return None


def _send(descriptor: int, number: signal.Signals) -> bool:
    try:
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    return True


def _wait(found: Sequence[Leftover], sent: Mapping[int, str], for_s: float, proc: Path) -> None:
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s and any(item.pid in sent and _there(item, proc) for item in found):
        time.sleep(0.05)


def _there(item: Leftover, proc: Path) -> bool:
    now = _process(proc / str(item.pid))
    return now is not None and now.began == item.began and now.state not in ("Z", "X")
