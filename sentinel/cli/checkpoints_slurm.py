"""``sentinel checkpoints validate --slurm N``: the reading is shared out over N nodes by one srun."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sentinel.checkpoints.files import visible
from sentinel.checkpoints.records import Level, Validity
from sentinel.checkpoints.share import join_answers
from sentinel.errors import ProtocolError, Timeout, Unavailable

# A share of 5.67 TB over 64 nodes at 2 GB/s is 44 s; the rest is waiting for nodes. Beyond this the answer is not known.
DEADLINE_S = 3600.0


def command(paths: Sequence[Path], level: Level, nodes: int, extra: Sequence[str]) -> list[str]:
    """One task per node; each takes the share of its own task number."""
    inner = [sys.executable, "-m", "sentinel", "checkpoints", "validate", "--json", "--level", level]
    inner += ["--share", f"SLURM/{nodes}", "--", *(str(path.absolute()) for path in paths)]
    return ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", *extra, *inner]


def parse_answers(text: str) -> dict[str, list[Validity]]:
    """The answers of all tasks, by path. `ProtocolError` for a line that is none."""
    found: dict[str, list[Validity]] = {}
    for line in text.splitlines():
        try:
            data = json.loads(line)
            valid = data["valid"]
            if valid not in (True, False, None) or not isinstance(data["path"], str):
                raise ValueError("no answer")
            answer = Validity(
                data["path"], data["format"], data["step"], valid, data["level"], data["reason"], data["bytes"]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"a task answered {visible(line, 120)!r}") from error
        found.setdefault(answer.path, []).append(answer)
    return found


def validate_shared(
    paths: Sequence[Path], level: Level, nodes: int, *, extra: Sequence[str] = (), deadline_s: float = DEADLINE_S
) -> list[Validity]:
    """Run it and join the answers, in the order of the paths. Unanswered paths are not known."""
    if shutil.which("srun") is None:
        raise Unavailable("there is no srun here", fix="Leave --slurm out, or run it on a node of the cluster.")
    try:
        done = subprocess.run(
            command(paths, level, nodes, extra), capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Timeout(
            f"srun did not answer within {deadline_s:g} s", fix="Use more nodes, or look at squeue."
        ) from error
    answers = parse_answers(done.stdout)
    if not answers:
        last = visible((done.stderr.strip().splitlines() or ["no output"])[-1], 200)
        raise Unavailable(f"srun answered nothing (status {done.returncode}): {last}")
    missing = "no task answered about it"
    return [
        join_answers(answers[str(path.absolute())], nodes)
        if str(path.absolute()) in answers
        else Validity(str(path), "unknown", None, None, "structural", missing)
        for path in paths
    ]
