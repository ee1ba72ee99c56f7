"""Steps of Slurm: ``validate --slurm N`` shares the reading out over N nodes, ``replicate --slurm`` copies to a peer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sentinel.checkpoints.copying import Copied, Pace
from sentinel.checkpoints.records import Level, Validity
from sentinel.checkpoints.shared_check import join_answers
from sentinel.checkpoints.transfer import send
from sentinel.errors import ProtocolError, Timeout, Unavailable
from sentinel.text import json_with_bytes, visible

# A task that a signal ended has this much added to the signal's number, by srun as by a shell: 143 is 15, SIGTERM.
_SIGNALLED = 128
# A share of 5.67 TB over 64 nodes at 2 GB/s is 44 s; the rest is waiting for nodes. Beyond this the answer is not known.
DEADLINE_S = 3600.0
_ENDING_S = 10.0


def command(paths: Sequence[Path], level: Level, nodes: int, extra: Sequence[str]) -> list[str]:
    """One task per node; each takes the share of its own task number."""
    inner = [sys.executable, "-m", "sentinel", "checkpoints", "validate", "--json", "--level", level]
    inner += ["--share", f"SLURM/{nodes}", "--", *(str(path.absolute()) for path in paths)]
    # A share that is invalid ends with a status; a share that is small ends early. Neither may end the others.
    whole = ["--kill-on-bad-exit=0", "--wait=0", "--input=none"]
    return ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", *whole, *extra, *inner]


def parse_answers(text: str) -> dict[str, list[Validity]]:
    """The answers of all tasks, by path. `ProtocolError` for a line that is none."""
    found: dict[str, list[Validity]] = {}
    for line in text.splitlines():
        try:
            data = json_with_bytes(line)
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
    """Run it and join the answers, in the order of the paths. Paths and shares without an answer are not known."""
    if shutil.which("srun") is None:
        raise Unavailable("there is no srun here", fix="Leave --slurm out, or run it on a node of the cluster.")
    output, complaint, status = _run(command(paths, level, nodes, extra), deadline_s)
    answers = parse_answers(output)
    missing = "no task answered about it"
    if not answers:
        last = visible((complaint.strip().splitlines() or ["no output"])[-1], 200)
        if status is None:
            raise Timeout(
                f"srun did not answer within {deadline_s:g} s: {last}", fix="Use more nodes, or look at squeue."
            )
        if status <= _SIGNALLED:
            raise Unavailable(f"srun answered nothing (status {status}): {last}")
        # The tasks had begun: Slurm ends the whole step with one of its nodes.
        missing = f"only 0 of {nodes} shares were answered: {last}"
    return [
        join_answers(answers[str(path.absolute())], nodes)
        if str(path.absolute()) in answers
        else Validity(str(path), "unknown", None, None, "structural", missing)
        for path in paths
    ]


def _run(words: Sequence[str], deadline_s: float) -> tuple[str, str, int | None]:
    """What srun wrote, what it complained of, and its status; None when it had to be stopped.

    Slurm kills the job when srun is told to end. Killed at once, it would leave the tasks running.
    """
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        errors="backslashreplace",
    ) as child:  # fmt: skip
        try:
            output, complaint = child.communicate(timeout=deadline_s)
            return output, complaint, child.returncode
        except subprocess.TimeoutExpired:
            child.terminate()
        try:
            output, complaint = child.communicate(timeout=_ENDING_S)
        except subprocess.TimeoutExpired:
            child.kill()
            output, complaint = child.communicate()
        return output[: output.rfind("\n") + 1], complaint, None


def send_command(peer: str, target: str, extra: Sequence[str]) -> list[str]:
    """One task on the peer, beside what the job runs there, which receives on its standard input."""
    inner = [sys.executable, "-m", "sentinel", "checkpoints", "receive", target]
    return ["srun", "--overlap", "--unbuffered", "--nodes=1", "--ntasks=1", f"--nodelist={peer}", *extra, *inner]


def send_to(
    path: Path,
    peer: str,
    target: str,
    *,
    extra: Sequence[str] = (),
    pace: Pace | None = None,
    progress: Callable[[int], None] | None = None,
) -> Copied:
    """Copy the checkpoint to the peer's own disk through a step of Slurm, with the user's rights there."""
    if shutil.which("srun") is None:
        raise Unavailable("there is no srun here", fix="Run it on a node of the job, or name a mounted folder.")
    words = send_command(peer, target, extra)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            return send(path, child.stdin, child.stdout, pace=pace, progress=progress)
        except BaseException:
            child.terminate()  # srun ends its task when it is told to end
            raise
