"""Asks slurmctld for the uid and gid of one job. Only numbers are requested: a job's name could imitate fields."""

from __future__ import annotations

import os
import re
import subprocess

from sentinel.agent.probes import begin, say

_ROW = re.compile(r"(\d{1,10}) (\d{1,10}) (\d{1,10})")
_SAID = 200  # characters of an error message that are passed on


def owner(job: int, command: str, conf: str, deadline_s: float) -> dict[str, int]:
    """``{uid, gid}`` of the job.

    Raises:
        OSError, SubprocessError: squeue failed or was late. ValueError: Slurm does not know the job, or gave no
        numbers.
    """
    done = subprocess.run(
        [command, "--noheader", f"--jobs={job}", "--states=all", "--format=%A %U %G"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, **({"SLURM_CONF": conf} if conf else {})},
        timeout=deadline_s,
        check=False,
    )
    if done.returncode != 0:
        raise ValueError(done.stderr.decode("utf-8", "replace").strip()[:_SAID] or f"status {done.returncode}")
    rows = [_ROW.fullmatch(line.strip()) for line in done.stdout.decode("ascii", "replace").splitlines()]
    found = {(int(row[2]), int(row[3])) for row in rows if row is not None and int(row[1]) == job}
    if len(found) != 1:
        raise ValueError("Slurm does not know it")
    ((uid, gid),) = found
    return {"uid": uid, "gid": gid}


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
