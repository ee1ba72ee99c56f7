"""``sentinel run``: starts a job's training with srun, and starts it again in the same allocation when the daemon orders it.

Runs in the batch script, as the job's user, with the standard library only. It trains on the first nodes of the allocation;
the others are spares. When its step fails it waits for an order, which is the job's resume point (TaskProlog says where it
lies); without one it ends with srun's status, and Slurm and Sentinel go on as with any other job.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sentinel.errors import UserError
from sentinel.model.launching import NODES, RUN, STEP_NAME, UID

# Set by TaskProlog: the folder of the resume points, and the job and attempt that it was set for.
ORDERS, JOB, ATTEMPT = "SENTINEL_ORDERS", "SENTINEL_JOB", "SENTINEL_ATTEMPT"
LOOK_S = 0.5  # between two looks for an order
WAIT_S = 60.0  # for an order after a failure: a broken node is judged within seconds, one that is gone within 40 s
END_S = 10.0  # for srun to end once the next run is ordered
_MOST_BYTES = 16_384  # bytes of a resume point
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


class Order(NamedTuple):
    run: int
    nodes: tuple[str, ...]


class Allocation(NamedTuple):
    job: str
    attempt: str  # empty: not known
    nodes: tuple[str, ...]
    tasks_per_node: int | None


def order_in(text: str, here: Allocation) -> Order | None:
    """The order in a resume point; None if it is for another job, attempt or user, or names other nodes."""
    values = dict(line.partition("=")[::2] for line in text.split("\n"))  # as TaskProlog reads it
    if values.get(JOB) != here.job or values.get(ATTEMPT) != here.attempt:
        return None
    if values.get(UID, f"{os.getuid()}") != f"{os.getuid()}":
        return None  # of a former job with this id
    number, nodes = values.get(RUN, ""), tuple(values.get(NODES, "").split(","))
    if not (number.isdecimal() and len(number) < 6) or not set(nodes) <= set(here.nodes):
        return None
    return Order(int(number), nodes)


class Orders:
    """The newest order, read by a thread of its own: a shared file system that blocks must not stop the launcher."""

    def __init__(self, folder: Path, here: Allocation) -> None:
        self._folder, self._here = folder, here
        self._newest: Order | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def after(self, run: int) -> Order | None:
        newest = self._newest
        return newest if newest is not None and newest.run > run else None

    def _watch(self) -> None:
        while True:
            try:
                found = order_in(trusted_text(self._folder, f"{self._here.job}.env"), self._here)
            except OSError:
                found = None  # not there, or not readable now
            self._newest = found or self._newest
            time.sleep(LOOK_S)


def trusted_text(folder: Path, name: str) -> str:
    """The file's text; empty where somebody else than the folder's owner could have written it, as TaskProlog judges.

    Raises:
        OSError: it cannot be read.
    """
    above = folder.stat()
    handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        others_write = above.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if others_write or status.st_uid != above.st_uid or not stat.S_ISREG(status.st_mode):
            return ""
        return file.read(_MOST_BYTES).decode("utf-8", "replace")


def command_for(arguments: Sequence[str], run: int, nodes: Sequence[str], *, overlap: bool = False) -> list[str]:
    """srun with the run's nodes; what the user gave comes after it, and so counts more.

    Args:
        overlap: the step before is over, and Slurm may still count its resources as taken: so it is with a step that ended
            while it lost a node (22.05).
    """
    ours = [f"--job-name={STEP_NAME}{run}", f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]
    ours += ["--overlap"] if overlap else []
    return [arguments[0], *ours, *arguments[1:]]


def environment_for(environment: Mapping[str, str], here: Allocation, nodes: Sequence[str]) -> dict[str, str]:
    """The script's variables with the numbers of the run, which srun takes for its defaults."""
    found = {key: value for key, value in environment.items() if key != "SLURM_TASKS_PER_NODE"}
    for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"):
        found[name] = f"{len(nodes)}"
    for name in ("SLURM_NTASKS", "SLURM_NPROCS"):
        if here.tasks_per_node is not None:
            found[name] = f"{here.tasks_per_node * len(nodes)}"
        else:
            found.pop(name, None)
    return found


def allocation(environment: Mapping[str, str]) -> Allocation:
    """
    Raises:
        OSError, subprocess.SubprocessError: scontrol cannot be asked.
        KeyError, ValueError: this is no batch script of a job.
    """
    said = subprocess.run(
        ["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]],
        capture_output=True, text=True, timeout=30.0, check=True,
    ).stdout.split()  # fmt: skip
    nodes = tuple(name for name in said if _NODE.match(name))
    each = environment.get("SLURM_NTASKS_PER_NODE", "")
    tasks = environment.get("SLURM_NTASKS", "")
    if not each and tasks.isdecimal() and nodes and int(tasks) % len(nodes) == 0:
        each = f"{int(tasks) // len(nodes)}"
    job = environment["SLURM_JOB_ID"]
    # SLURM_RESTART_COUNT may be that of the job whose script submitted this one: Slurm sets it in restarted jobs only.
    attempt = environment.get(ATTEMPT, "") if environment.get(JOB) == job else ""
    return Allocation(job, attempt, nodes, int(each) if each.isdecimal() else None)


class Launcher:
    def __init__(self, here: Allocation, orders: Orders | None, arguments: Sequence[str], wait_s: float) -> None:
        self._here, self._orders, self._arguments, self._wait_s = here, orders, arguments, wait_s
        self._srun: subprocess.Popen[bytes] | None = None
        self._killed = False  # the srun before did not end by itself: what it ran may still be there
        self._ended_by: int | None = None  # a signal that asks the script to end

    def launch(self, count: int) -> int:
        """Run until a run succeeds, or fails and no other one is ordered; srun's status."""
        for number in _FORWARDED:
            signal.signal(number, self._forward)
        order = Order(0, self._here.nodes[:count])
        while True:
            status = self._run(order)
            following = None if status == 0 or self._ended_by is not None else self._wait(order.run)
            if following is None:
                return status
            say(f"run {following.run} begins on {','.join(following.nodes)}")
            order = following

    def _run(self, order: Order) -> int:
        command = command_for(self._arguments, order.run, order.nodes, overlap=order.run > 0 and not self._killed)
        self._killed = False
        self._srun = subprocess.Popen(command, env=environment_for(os.environ, self._here, order.nodes))
        ordered_s = None
        while True:
            try:
                status = self._srun.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                if self._next(order.run) is not None and ordered_s is None:
                    ordered_s = time.monotonic()
                if ordered_s is not None and time.monotonic() - ordered_s > END_S:
                    self._killed = True
                    self._srun.kill()  # its step was ended, and it waits for a node that is gone
                continue
            self._srun = None
            return status if status >= 0 else 128 - status

    def _next(self, run: int) -> Order | None:
        return self._orders.after(run) if self._orders is not None else None

    def _wait(self, run: int) -> Order | None:
        until_s = time.monotonic() + self._wait_s
        while self._orders is not None and self._ended_by is None and time.monotonic() < until_s:
            if (found := self._next(run)) is not None:
                return found
            time.sleep(LOOK_S)
        return None

    def _forward(self, number: int, _frame: object) -> None:
        if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._ended_by = number
        if self._srun is not None:
            self._srun.send_signal(number)


def say(words: str) -> None:
    """One line into the job's log. It names no step: its reader takes numbers of steps for progress."""
    print(f"sentinel: {words}", flush=True)


def launch(count: int, command: Sequence[str], wait_s: float = WAIT_S) -> int:
    """Train on ``count`` nodes of this job's allocation; the status of the last srun.

    Raises:
        UserError: not in a batch script, not srun, or too many nodes.
    """
    if not command or Path(command[0]).name != "srun":
        raise UserError("the command must be srun", fix="sentinel run --nodes 4 -- srun python train.py")
    try:
        here = allocation(os.environ)
    except (KeyError, ValueError, OSError, subprocess.SubprocessError) as error:
        raise UserError(
            f"this is no batch script of a Slurm job, or Slurm does not answer: {error}",
            fix="call it in the script that sbatch gets",
        ) from error
    if not 1 <= count <= len(here.nodes):
        raise UserError(
            f"--nodes {count}: the job has {len(here.nodes)}", fix="submit it with more nodes, or name fewer"
        )
    folder = os.environ.get(ORDERS) if here.attempt else None
    if not folder:
        say("no TaskProlog of Sentinel here, or no prolog: this job is not restarted in its allocation")
    return Launcher(here, Orders(Path(folder), here) if folder else None, command, wait_s).launch(count)
