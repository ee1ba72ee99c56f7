"""Up, down and status of a lab."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab import (
    account,
    gpus,
    hooks,
    layout,
    netns,
    packages,
    processes,
    sentinel_config,
    services,
    slurm,
    storage,
    submit,
)
from lab.layout import Lab, LabError, Spec

UP = "up"  # a file of the lab that is there once `lab up` has finished


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """One `up` or `down` at a time per lab. The lock dies with its holder, so a killed one blocks nobody."""
    lock = directory.with_name(f".{directory.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The holder before us removed the file when it was done; then ours is a lock on nothing.
            current = lock.stat().st_ino == os.fstat(handle.fileno()).st_ino
        except (BlockingIOError, FileNotFoundError):
            current = False
        if not current:
            raise LabError(f"another lab command works on {directory} now; wait for it")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def up(spec: Spec, *, ready_s: float) -> Lab:
    """Bring a lab up; what a killed `lab up` left in the same folder is cleaned away first."""
    directory = Path(spec.dir)
    packages.ensure()
    account.account(spec.python)  # says now what would stop every job
    if spec.isolated:
        netns.check()
    with alone(directory):
        if directory.exists() and directory.lstat().st_uid != os.geteuid():  # who owns it could swap what runs from it
            raise LabError(f"{directory} is another user's; give another --dir")
        if (directory / "lab.json").exists():
            old = layout.load(directory)
            if (directory / UP).exists() and processes.known(old, "slurmctld"):
                raise LabError(f"a lab is up in {directory}; lab down first, or give another --dir")
            remove(old, keep=False)
        elif directory.exists() and not _unborn(directory):
            raise LabError(f"{directory} holds files that are not a lab's; give another --dir")
        lab = Lab(spec)
        directory.mkdir(parents=True, exist_ok=True)
        lab.save()
        try:
            _start(lab, ready_s)
        except BaseException:
            stop(lab)  # the folder stays, for its logs; the next `lab up` removes it
            raise
    return lab


def _start(lab: Lab, ready_s: float) -> None:
    if lab.spec.isolated:
        storage.pass_on(lab)
    slurm.configure(lab)
    account.require_reach(lab.dir)
    storage.create(lab)
    hooks.install(lab)
    submit.install(lab)
    gpus.prepare(lab)
    sentinel_config.write(lab)
    slurm.start_munged(lab)
    if lab.spec.isolated:
        netns.create(lab)
    slurm.start_controller(lab)
    for name in lab.names:
        slurm.start_slurmd(lab, name)
    slurm.wait_ready(lab, ready_s)
    services.start(lab, ready_s)
    (lab.dir / UP).touch()


def stop(lab: Lab) -> None:
    """End every process of the lab, whoever started it, and undo what lies outside its folder.

    Raises:
        LabError: something could not be ended (it names it).
    """
    storage.thaw_all(lab.dir)
    for grace_s in (3.0, 0.0, 0.0, 0.0):
        # MUNGE last: the daemons need it to say good-bye.
        found = processes.belonging(lab)
        if not found:
            break
        others = [p for p in found if processes.exe_of(p.pid) != "munged"]
        processes.end(others or found, grace_s=grace_s)
    left = processes.belonging(lab)
    netns.remove(lab)
    storage.unmount_all(lab.dir)
    if left:
        raise LabError(f"processes that could not be ended: {', '.join(str(p.pid) for p in left)}; see ps")


def remove(lab: Lab, *, keep: bool) -> None:
    stop(lab)
    if keep:
        (lab.dir / UP).unlink(missing_ok=True)
        return
    try:
        shutil.rmtree(lab.dir)
    except OSError as error:
        raise LabError(
            f"{error.filename} could not be removed ({error.strerror}); end what uses it, then lab down"
        ) from error


def _unborn(directory: Path) -> bool:
    """A folder of a `lab up` that was killed before the lab's file was whole."""
    return directory.is_dir() and all(part.match(".lab.json.*.tmp") for part in directory.iterdir())


def down(directory: Path, *, keep: bool) -> None:
    with alone(directory):
        if _unborn(directory):
            shutil.rmtree(directory)
            return
        remove(layout.load(directory), keep=keep)


def status(lab: Lab) -> dict[str, Any]:
    """What runs; ``slurm`` is None when slurmctld does not answer (not known, not "no nodes")."""
    running = {name: processes.known(lab, name) for name in services.expected(lab)}
    answer: dict[str, Any] = {
        "dir": str(lab.dir),
        "cluster": lab.spec.cluster,
        "nodes": lab.spec.nodes,
        "gpus": lab.spec.gpus,
        "isolated": lab.spec.isolated,
        "ports": {
            "slurmctld": lab.spec.controller_port,
            "slurmd": [lab.spec.node_ports[0], lab.spec.node_ports[-1]],
            "daemon": lab.spec.daemon_port,
            "webhook": lab.spec.webhook_port,
        },
        "services": {name: _running(process) for name, process in running.items()},
        "faults": faults_now(lab),
        "slurm": None,
        "jobs": None,
    }
    try:
        nodes = slurm.client(lab, ["sinfo", "-h", "-N", "-o", "%N|%T|%E"], timeout_s=5)
        jobs = slurm.client(lab, ["squeue", "-h", "-a", "-o", "%i|%j|%T|%N|%r"], timeout_s=5)
    except LabError as error:
        answer["error"] = str(error)
        return answer
    answer["slurm"] = [dict(zip(("node", "state", "reason"), line.split("|", 2), strict=True)) for line in lines(nodes)]
    keys = ("job", "name", "state", "nodes", "reason")
    answer["jobs"] = [dict(zip(keys, line.split("|", 4), strict=True)) for line in lines(jobs)]
    return answer


def lines(answer: str) -> list[str]:
    return [line for line in answer.splitlines() if line.strip()]


def _running(process: processes.Process | None) -> str:
    if process is None:
        return "not running"
    return "stopped" if processes.state_of(process.pid) == "T" else f"running ({process.pid})"


def faults_now(lab: Lab) -> list[dict[str, Any]]:
    """Faults that were injected and not undone, oldest first; one of a process ends with that process."""
    path = lab.dir / "faults.jsonl"
    if not path.exists():
        return []
    records = [json.loads(line) for line in lines(path.read_text(encoding="utf-8"))]
    undone = {record["undoes"] for record in records if record.get("undoes")}
    lasting = [r for r in records if r.get("lasting") and not r.get("undoes") and r.get("id") not in undone]
    return [r for r in lasting if "start" not in r or processes.Process(r["pid"], r["start"]).alive]
