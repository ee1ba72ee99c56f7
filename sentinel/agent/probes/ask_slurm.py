"""Asks slurmctld about one job: whose it is, which checkpoint folders its comment names, whether it runs on this node.

Whose it is and where it runs is asked for apart from what its user wrote, which could imitate fields.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sentinel.agent.probes import begin, say
from sentinel.errors import ProtocolError
from sentinel.model.hostlist import names_in
from sentinel.model.intent import intent_of
from sentinel.text import json_with_bytes

_ROW = re.compile(r"(\d{1,10}) (\d{1,10}) (\d{1,10})")
_PATH = 4097  # width of a column with a path: a file system takes up to 4,096 bytes
# Columns with their widths in bytes. None is wide: squeue fills each up, and each task of an array has a row.
_ALLOCATION = (
    ("JobID", 20), ("UserID", 20), ("GroupID", 20), ("RestartCnt", 20), ("State", 30), ("StartTime", 40),
    ("BatchFlag", 20), ("UserName", 260),
)  # fmt: skip
_SAID = 200  # characters of an error message that are passed on


def owner(job: int, command: str, conf: str, deadline_s: float) -> dict[str, int]:
    """``{uid, gid}`` of the job.

    Raises:
        OSError, SubprocessError: squeue failed or was late. ValueError: Slurm does not know the job, or gave no
        numbers.
    """
    done = _squeue(job, ["--format=%A %U %G"], command, conf, deadline_s)
    if done.returncode != 0:
        raise ValueError(done.stderr.decode("utf-8", "replace").strip()[:_SAID] or f"status {done.returncode}")
    rows = [_ROW.fullmatch(line.strip()) for line in done.stdout.decode("ascii", "replace").splitlines()]
    found = {(int(row[2]), int(row[3])) for row in rows if row is not None and int(row[1]) == job}
    if len(found) != 1:
        raise ValueError("Slurm does not know it")
    ((uid, gid),) = found
    return {"uid": uid, "gid": gid}


def named_roots(job: int, node: str, command: str, conf: str, deadline_s: float) -> frozenset[str] | None:
    """The checkpoint folders that the job's comment names for this node now; None: that is not known.

    A job that Slurm does not have names none.
    """
    try:
        done = _squeue(job, ["--format=%k"], command, conf, deadline_s)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0:
        return frozenset() if b"Invalid job id" in done.stderr else None
    said = done.stdout.decode("utf-8", "surrogateescape")
    # JSON may have line ends; the tasks of an array have a line each.
    intents = [intent_of(text.strip(), job) for text in (said, *said.splitlines())]
    local = [root.replace("%N", node) for intent in intents for root in intent.local_roots]
    return frozenset(root.rstrip("/") for root in (*local, *(r for intent in intents for r in intent.global_roots)))


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt of a job that runs on this node now. ``began_s``: Unix time."""

    attempt: int
    uid: int
    gid: int
    began_s: float
    has_script: bool
    user: str
    nodelist: str


def running_here(job: int, node: str, command: str, conf: str, deadline_s: float) -> Running | None:
    """The job's attempt that runs on this node; None: Slurm says that the job does not run here.

    Raises:
        OSError, SubprocessError: squeue failed or was late. ValueError: an answer that cannot be read.
    """
    wanted = ",".join(f"{name}:{width}" for name, width in _ALLOCATION)
    for line in _rows(job, [f"--Format={wanted}"], command, conf, deadline_s):
        fields, rest = [], line
        for _, width in _ALLOCATION:
            fields.append(rest[:width].decode("utf-8", "surrogateescape").strip())
            rest = rest[width:]
        number, uid, gid, attempt, state, began, batch, user = fields
        if number != f"{job}" or state != "RUNNING":
            continue
        nodelist = _nodelist(job, command, conf, deadline_s)
        try:
            if not nodelist or node not in names_in(nodelist):
                return None
            began_s = datetime.fromisoformat(began).replace(tzinfo=UTC).timestamp()  # squeue is run with TZ=UTC
            return Running(int(attempt), int(uid), int(gid), began_s, batch != "0", user, nodelist)
        except (ValueError, ProtocolError) as error:
            raise ValueError(f"Slurm's answer about job {job} cannot be read: {error!s:.200}") from error
    return None


def write_job_file(run_dir: Path, job: int, node: str, command: str, conf: str, deadline_s: float) -> str:
    """Write what the job's prolog should have written, if Slurm says that the job runs here; returns what was found.

    slurmd runs no prolog for a job that it remembers from before its node crashed. A prolog may write its file while
    Slurm is asked, which then stays; a file of an earlier attempt was left by the crash.

    Raises:
        OSError, SubprocessError: squeue failed or was late, or the file cannot be written. ValueError: an answer that
        cannot be read.
    """
    here = running_here(job, node, command, conf, deadline_s)
    if here is None:
        return "not here"
    if here.uid == 0:
        return "root's: none of its files are touched"
    path, ended = run_dir / "jobs" / f"{job}.json", run_dir / "ended" / f"{job}.{here.attempt}"
    if _attempt_in(path) >= here.attempt:
        return "reported"
    stdout, work_dir = (_path(job, column, node, command, conf, deadline_s) for column in ("StdOut", "WorkDir"))
    stdout = stdout if here.has_script else ""  # Slurm names a log nevertheless, which it does not write
    said = {"job": job, "attempt": here.attempt, "uid": here.uid, "gid": here.gid, "user": here.user,
            "nodelist": here.nodelist, "stdout": stdout, "work_dir": work_dir, "gpus": "", "partition": "",
            "node": node, "found_by": "squeue"}  # fmt: skip
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps({name: str(value) for name, value in said.items()}) + "\n", encoding="ascii")
        partial.chmod(0o644)  # whatever the umask is: what others than root could write the agent does not believe
        os.utime(partial, (here.began_s, here.began_s))  # a job file is as old as its attempt
        # What prolog and epilog did while Slurm was asked: an epilog leaves this mark, then takes the job file away.
        if ended.exists():
            return "ended"
        if _attempt_in(path) >= here.attempt:
            return "reported"
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    if ended.exists():
        path.unlink(missing_ok=True)
        return "ended"
    return "written"


def _attempt_in(path: Path) -> int:
    """The attempt in a job file; -1: there is none, or it cannot be read."""
    try:
        return int(json_with_bytes(path.read_bytes())["attempt"] or 0)
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _nodelist(job: int, command: str, conf: str, deadline_s: float) -> str:
    """The nodes of the job, which may be thousands: a column as wide as they need."""
    rows = (row.partition(b" ") for row in _rows(job, ["--format=%A %N"], command, conf, deadline_s))
    return next((os.fsdecode(nodes).strip() for number, _, nodes in rows if number == b"%d" % job), "")


def _path(job: int, column: str, node: str, command: str, conf: str, deadline_s: float) -> str:
    """One path of the job, as its user wrote it. The column is wide: only an array's tasks on this node are asked for."""
    options = [f"--Format=JobID:20,{column}:{_PATH}", f"--nodelist={node}"]
    rows = _rows(job, options, command, conf, deadline_s, "RUNNING")
    return next((os.fsdecode(row[20:].rstrip()) for row in rows if row[:20].strip() == b"%d" % job), "")


def _rows(job: int, options: list[str], command: str, conf: str, deadline_s: float, states: str = "all") -> list[bytes]:
    """The lines that squeue prints of the job, and of the other tasks of its array; none if Slurm does not have it."""
    done = _squeue(job, options, command, conf, deadline_s, states)
    if done.returncode != 0 and b"Invalid job id" not in done.stderr:
        raise ValueError(done.stderr.decode("utf-8", "replace").strip()[:_SAID] or f"status {done.returncode}")
    return done.stdout.split(b"\n") if done.returncode == 0 else []


def _squeue(
    job: int, options: list[str], command: str, conf: str, deadline_s: float, states: str = "all"
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [command, "--local", "--noheader", f"--jobs={job}", f"--states={states}", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        # UTC: an hour of summer time comes twice.
        env={**os.environ, "TZ": "UTC", **({"SLURM_CONF": conf} if conf else {})},
        timeout=deadline_s,
        check=False,
    )


def main() -> None:
    arguments = begin()
    job, how = int(arguments["job"]), (arguments["squeue"], arguments["conf"], float(arguments["deadline_s"]))
    try:
        if "run_dir" in arguments:
            say({"job_file": write_job_file(Path(arguments["run_dir"]), job, arguments["node"], *how)})
        elif "named_on" in arguments:
            named = named_roots(job, arguments["named_on"], *how)
            say({"named": None if named is None else sorted(named)})
        else:
            say({"owner": owner(job, *how)})
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        say({"error": str(error)[:500]})


if __name__ == "__main__":
    main()
