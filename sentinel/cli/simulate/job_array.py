"""Shares the seeds of a simulation out over the tasks of a Slurm job array, and gathers what they found.

Tasks and whoever waits for them meet in a folder of a file system that all nodes have: the current one.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sentinel.errors import ProtocolError, Timeout, Unavailable, UserError
from sentinel.simulate.long_run.seeds import Ran
from sentinel.text import json_with_bytes, visible

MOST_TASKS = 1000  # Slurm's default MaxArraySize is 1001
_DEADLINE_S = 60.0  # of one of Slurm's commands
_LOOK_S = 2.0
_LATE_S = 60.0  # a shared file system may show a file so late

Found = tuple[int, Ran]


def shares(seeds: Sequence[int], tasks: int) -> list[Sequence[int]]:
    """The seeds in order, over so many tasks as evenly as can be; no task goes without one."""
    tasks = min(tasks, len(seeds))
    edges = [len(seeds) * task // tasks for task in range(tasks + 1)]
    return [seeds[low:high] for low, high in itertools.pairwise(edges)]


def write_part(path: Path, found: Iterable[Found]) -> None:
    """What one task found, all at once."""
    rows = [{"scenario": number, **dataclasses.asdict(ran)} for number, ran in found]
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(rows, allow_nan=False))
    partial.replace(path)


def read_part(path: Path) -> list[Found]:
    """
    Raises:
        ProtocolError: that is not what a task writes.
    """
    try:
        rows: list[dict[str, Any]] = json_with_bytes(path.read_bytes())
        if not (isinstance(rows, list) and rows):
            raise ValueError("no list of runs")
        return [(row.pop("scenario"), _ran(row)) for row in rows]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError(f"{path}: not what a task of this simulation writes: {error!r:.200}") from error


def _ran(row: dict[str, Any]) -> Ran:
    return Ran(**{key: _with_tuples(value) for key, value in row.items()})


def _with_tuples(value: Any) -> Any:
    """JSON knows lists only."""
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def run_in_slurm(
    arguments: Sequence[str], seeds: Sequence[int], tasks: int, options: str, progress: Callable[[int], None]
) -> Iterator[Found]:
    """Submit, wait, gather.

    Args:
        arguments: of ``sentinel simulate``, without seeds.
        options: of sbatch, as one would write them.
        progress: told of the seeds that are done.

    Raises:
        UserError: ``options`` cannot be read, or Slurm does not take the job.
        Unavailable: a task ended without an answer.
    """
    if shutil.which("sbatch") is None:
        raise Unavailable("there is no sbatch here", fix="leave --slurm out, or run it on a node of the cluster")
    try:
        given = shlex.split(options)
    except ValueError as error:
        raise UserError(f"--sbatch {visible(options, 100)}: {error}", fix='--sbatch "--partition=cpu"') from error
    folder = Path(tempfile.mkdtemp(prefix="sentinel-simulate-", dir=Path.cwd()))
    parts = shares(seeds, tasks)
    for number, share in enumerate(parts):
        words = [sys.executable, "-m", "sentinel", "simulate", *arguments]
        words += ["--seed", f"{share[0]}", "--seeds", f"{len(share)}", "--part", f"{folder / f'{number}.json'}"]
        (folder / f"{number}.sh").write_text(f"exec {shlex.join(words)}\n")
    script = folder / "job.sh"
    script.write_text(f'#!/bin/sh\nexec sh {shlex.quote(str(folder))}/"$SLURM_ARRAY_TASK_ID".sh\n')
    job = _submit(folder, script, len(parts), given)
    try:
        yield from _gather(folder, job, parts, progress)
    except BaseException:
        _slurm(["scancel", job])
        raise
    shutil.rmtree(folder)


def _submit(folder: Path, script: Path, tasks: int, options: Sequence[str]) -> str:
    words = ["sbatch", "--job-name=sentinel-simulate", *options, "--parsable", f"--array=0-{tasks - 1}"]
    done = _slurm([*words, f"--output={folder}/%a.log", str(script)])
    job = done.stdout.strip().partition(";")[0]
    if done.returncode or not job.isdecimal():
        shutil.rmtree(folder)
        said = visible(done.stderr.strip(), 300) or "it told no number of a job"
        raise UserError(f"sbatch: {said}", fix='see sbatch(1); --sbatch "OPTIONS"')
    return job


def _gather(folder: Path, job: str, parts: Sequence[Sequence[int]], progress: Callable[[int], None]) -> Iterator[Found]:
    missing, over_since_s = set(range(len(parts))), None
    while missing:
        for number in sorted(missing):
            if (folder / f"{number}.json").exists():
                yield from read_part(folder / f"{number}.json")
                missing.discard(number)
                progress(len(parts[number]))
        if not missing:
            return
        listed = _slurm(["squeue", "--noheader", "--jobs", job])
        over = not listed.stdout.strip() and (listed.returncode == 0 or "Invalid job id" in listed.stderr)
        over_since_s = (over_since_s or time.monotonic()) if over else None
        if over_since_s is not None and time.monotonic() - over_since_s > _LATE_S:
            raise Unavailable(_words_about(folder, job, sorted(missing)[0]), fix=f"their output is in {folder}")
        time.sleep(_LOOK_S)


def _words_about(folder: Path, job: str, number: int) -> str:
    try:
        lines = (folder / f"{number}.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    last = visible(lines[-1], 200) if lines else "it printed nothing"
    return f"task {number} of job {job} ended without an answer: {last}"


def _slurm(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_DEADLINE_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Timeout(f"{words[0]} did not answer within {_DEADLINE_S:g} s") from error
