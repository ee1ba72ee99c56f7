"""Processes of a lab: started apart from the terminal, found again, ended without ever hitting a stranger.

A process belongs to a lab when it was started with ``SENTINEL_LAB_MARK=<dir>`` in its environment, when it is a Slurm
daemon with a file of the lab open, or when it is a process of one of the lab's jobs. What is on disk (``pids/``) only
names what each one is; whether it still runs is decided by pid *and* start time, so a reused pid is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.layout import Lab, write_atomic

MARK = "SENTINEL_LAB_MARK"
DAEMONS = frozenset({"slurmctld", "slurmd", "slurmstepd", "munged", "slurmctld-wlm", "slurmd-wlm", "slurmstepd-wlm"})


@dataclass(frozen=True)
class Process:
    pid: int
    start: int  # clock ticks since boot: with the pid, the identity of a process

    @property
    def alive(self) -> bool:
        return start_of(self.pid) == self.start

    def send(self, number: int) -> bool:
        """Signal this very process; False when it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except (ProcessLookupError, OSError):
            return False
        try:
            # With the handle open the pid cannot be reused; only now is the check worth something.
            if start_of(self.pid) != self.start:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


def start_of(pid: int) -> int | None:
    """Start time in ticks; None when the process is gone (a zombie counts as gone)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def state_of(pid: int) -> str:
    """One letter as in ps (``T`` is stopped); "" when gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def parent_of(pid: int) -> int:
    """Pid of the parent; 0 when the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])


def start(
    lab: Lab,
    name: str,
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Process:
    """Start a service of the lab in its own session, with its output appended to ``log``, and remember it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **lab.environment(), **(env or {}), MARK: str(lab.dir)}
    # Inside another cluster's job (a lab on a compute node) its variables must not leak into ours.
    environment = {k: v for k, v in environment.items() if not k.startswith("SLURM") or k == "SLURM_CONF"}
    with log.open("ab") as output:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd or lab.dir,
            env=environment,
            start_new_session=True,
        )
    process = Process(child.pid, start_of(child.pid) or 0)
    remember(lab, name, process)
    return process


def remember(lab: Lab, name: str, process: Process) -> None:
    write_atomic(lab.dir / "pids" / name, f"{process.pid} {process.start}\n")


def known(lab: Lab, name: str) -> Process | None:
    """The service of that name if it runs now."""
    try:
        pid, began = (lab.dir / "pids" / name).read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    process = Process(int(pid), int(began))
    return process if process.alive else None


def environ_of(pid: int) -> dict[str, str]:
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0") if b"=" in entry)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def everything() -> Iterator[int]:
    own = os.getpid()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != own:
            yield int(entry.name)


def exe_of(pid: int) -> str:
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name.removesuffix(" (deleted)")
    except OSError:
        return ""


def has_open(pid: int, folder: Path) -> bool:
    """True when the process has a file below ``folder`` open (what identifies a slurmstepd, which hides its environment)."""
    prefix = f"{folder}/"
    try:
        handles = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for handle in handles:
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{handle}").startswith(prefix):
                return True
    return False


def is_daemon_of(pid: int, folder: Path) -> bool:
    """A Slurm or MUNGE daemon that works in ``folder``; other programs with files there (an editor) are not."""
    return exe_of(pid) in DAEMONS and has_open(pid, folder)


def is_task_of(lab: Lab, environ: Mapping[str, str], node: str = "") -> bool:
    """A process of one of the lab's jobs (on ``node``, when given)."""
    if environ.get("SLURM_CLUSTER_NAME") != lab.spec.cluster or "SLURM_JOB_ID" not in environ:
        return False
    return not node or environ.get("SLURMD_NODENAME") == node


def belonging(lab: Lab) -> list[Process]:
    """Every process of the lab that runs now, however it was started."""

    def mine(pid: int) -> bool:
        environ = environ_of(pid)
        return environ.get(MARK) == str(lab.dir) or is_task_of(lab, environ) or is_daemon_of(pid, lab.dir)

    return find(mine)


def find(wanted: Callable[[int], bool]) -> list[Process]:
    found = []
    for pid in everything():
        began = start_of(pid)
        if began is not None and wanted(pid):
            found.append(Process(pid, began))
    return found


def tasks(lab: Lab, *, job: int | None = None, rank: int | None = None, node: str = "") -> list[Process]:
    """Processes of job tasks; with ``rank`` only the rank's own process, not its children."""

    def wanted(pid: int) -> bool:
        environ = environ_of(pid)
        if not is_task_of(lab, environ, node):
            return False
        if job is not None and environ.get("SLURM_JOB_ID") != str(job):
            return False
        return rank is None or (environ.get("SLURM_PROCID") == str(rank) and "SLURM_STEP_ID" in environ)

    return find(wanted)


def end(processes: Sequence[Process], *, grace_s: float) -> list[Process]:
    """Ask, wait, then kill. Gives what is still there (a process stuck in the kernel)."""
    for process in processes:
        process.send(signal.SIGCONT)
        process.send(signal.SIGTERM)
    left = wait_gone(processes, grace_s)
    for process in left:
        process.send(signal.SIGKILL)
    return wait_gone(left, 5.0)


def wait_gone(processes: Sequence[Process], timeout_s: float) -> list[Process]:
    deadline = time.monotonic() + timeout_s
    while True:
        reap()
        left = [process for process in processes if process.alive]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.05)


def reap() -> None:
    """Collect ended children of this very process, so that they do not stay as zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def wait_until(check: Callable[[], bool], timeout_s: float, *, step_s: float = 0.1) -> bool:
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() >= deadline:
            return False
        time.sleep(step_s)
    return True
