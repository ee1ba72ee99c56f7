"""Faults of single ranks of a training job."""

from __future__ import annotations

import argparse
import os
import signal

from lab import gpus, processes
from lab.faults.base import Fault, Options, Record, add_victim, ask, newest_job, pick_rank, ranks_of, take_back
from lab.layout import Lab, LabError


def hang(lab: Lab, options: Options) -> list[Record]:
    victim = pick_rank(lab, options)
    if not victim.process.send(signal.SIGSTOP):
        raise LabError(f"rank {victim.rank} of job {victim.job} ended just now")
    facts = {"pid": victim.process.pid, "start": victim.process.start}
    return [HANG.record(node=victim.node, rank=victim.rank, job=victim.job, **facts)]


def go_on(lab: Lab, record: Record) -> str:
    if processes.Process(record["pid"], record["start"]).send(signal.SIGCONT):
        return f"rank {record['rank']} goes on"
    return f"rank {record['rank']} of that attempt is gone"


def asked(fault: Fault, kind: str, lab: Lab, options: Options) -> list[Record]:
    """A fault that the training program has itself, in this attempt only."""
    if getattr(options, "all", False):
        ranks = ranks_of(lab, newest_job(lab, options.job))
        if not ranks:
            raise LabError("no ranks run; see lab status")
        wanted, shown, first = None, "all", ranks[0]
    else:
        first = pick_rank(lab, options)
        wanted, shown = [first.rank], str(first.rank)
    node = None if wanted is None else first.node
    record = fault.record(node=node, rank=shown if wanted is None else first.rank, job=first.job, attempt=first.attempt)
    ask(lab, first.job, {"id": record["id"], "kind": kind, "ranks": wanted, "attempt": first.attempt})
    return [record]


def crash(lab: Lab, options: Options) -> list[Record]:
    return asked(CRASH, "crash", lab, options)


def nan(lab: Lab, options: Options) -> list[Record]:
    return asked(NAN, "nan", lab, options)


def oom(lab: Lab, options: Options) -> list[Record]:
    if options.how == "gpu":
        return asked(OOM, "oom", lab, options)
    victim = pick_rank(lab, options)
    pid, group = victim.process.pid, f"/slurm/uid_{os.geteuid()}/job_{victim.job}"
    said = [
        gpus.kernel_line(
            lab,
            victim.node,
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=step_0,mems_allowed=0,oom_memcg={group},"
            f"task_memcg={group}/step_0/task_0,task=python3,pid={pid},uid={os.geteuid()}",
            level=6,
        ),
        gpus.kernel_line(
            lab,
            victim.node,
            f"Memory cgroup out of memory: Killed process {pid} (python3) total-vm:91226112kB, anon-rss:66871532kB, "
            f"file-rss:70144kB, shmem-rss:0kB, UID:{os.geteuid()} pgtables:133120kB oom_score_adj:0",
            level=3,
        ),
    ]
    if not victim.process.send(signal.SIGKILL):
        raise LabError(f"rank {victim.rank} of job {victim.job} ended just now")
    return [OOM.record(node=victim.node, rank=victim.rank, job=victim.job, pid=pid, kmsg=said)]


def oom_arguments(parser: argparse.ArgumentParser) -> None:
    add_victim(parser)
    parser.add_argument(
        "--how", choices=("gpu", "host"), default="gpu", help="gpu: CUDA's error; host: the kernel kills"
    )


def slow(lab: Lab, options: Options) -> list[Record]:
    """Tied to the node where the rank runs now: a restart elsewhere is quick again, one that stays is not."""
    victim = pick_rank(lab, options)
    record = SLOW.record(node=victim.node, rank=victim.rank, job=victim.job, extra_s=options.extra)
    ask(lab, victim.job, {"id": record["id"], "kind": "slow", "node": victim.node, "extra_s": options.extra})
    return [record]


def slow_arguments(parser: argparse.ArgumentParser) -> None:
    add_victim(parser)
    parser.add_argument("--extra", type=float, default=0.6, help="seconds more per step")


def crash_arguments(parser: argparse.ArgumentParser) -> None:
    add_victim(parser)
    parser.add_argument("--all", action="store_true", help="on every rank")


def withdraw(lab: Lab, record: Record) -> str:
    take_back(lab, record["job"], record["id"])
    return f"{record['fault']} of job {record['job']} withdrawn"


HANG = Fault("hang", "a rank stops (SIGSTOP); the others wait for it", hang, go_on, add_victim)
CRASH = Fault("crash", "a Python exception in the user's program, on one rank or --all", crash, None, crash_arguments)
NAN = Fault("nan", "a rank's loss becomes NaN, and with it the model", nan, None, crash_arguments)
OOM = Fault("oom", "out of memory: CUDA's error, or the kernel kills the rank", oom, None, oom_arguments)
SLOW = Fault("slow", "a rank takes longer for each step, as on a throttled node", slow, withdraw, slow_arguments)
FAULTS = (HANG, CRASH, NAN, OOM, SLOW)
