"""Asks slurmctld about one job: whose it is, and which checkpoint folders its comment names.

For uid and gid only numbers are requested: a job's name or comment could imitate fields.
"""

from __future__ import annotations

import os
import re
import subprocess

from sentinel.agent.probes import begin, say
from sentinel.model.intent import intent_of

_ROW = re.compile(r"(\d{1,10}) (\d{1,10}) (\d{1,10})")
_SAID = 200  # characters of an error message that are passed on


def owner(job: int, command: str, conf: str, deadline_s: float) -> dict[str, int]:
    """``{uid, gid}`` of the job.

    Raises:
        OSError, SubprocessError: squeue failed or was late. ValueError: Slurm does not know the job, or gave no
        numbers.
    """
    done = _squeue(job, "%A %U %G", command, conf, deadline_s)
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
        done = _squeue(job, "%k", command, conf, deadline_s)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0:
        return frozenset() if b"Invalid job id" in done.stderr else None
    said = done.stdout.decode("utf-8", "surrogateescape")
    # JSON may have line ends; the tasks of an array have a line each.
    intents = [intent_of(text.strip()) for text in (said, *said.splitlines())]
    local = [root.replace("%N", node) for intent in intents for root in intent.local_roots]
    return frozenset(root.rstrip("/") for root in (*local, *(r for intent in intents for r in intent.global_roots)))


def _squeue(job: int, columns: str, command: str, conf: str, deadline_s: float) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [command, "--noheader", f"--jobs={job}", "--states=all", f"--format={columns}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, **({"SLURM_CONF": conf} if conf else {})},
        timeout=deadline_s,
        check=False,
    )


def main() -> None:
    arguments = begin()
    try:
        say(
            {
                "owner": owner(
                    int(arguments["job"]), arguments["squeue"], arguments["conf"], float(arguments["deadline_s"])
                )
            }
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        say({"error": str(error)[:500]})


if __name__ == "__main__":
    main()
