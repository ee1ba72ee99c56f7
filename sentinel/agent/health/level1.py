"""A node's level 1 check for sites without the agent, as Slurm's HealthCheckProgram. Standard library only.

    python3 -m sentinel.agent.health.level1      run by deploy/slurm/health-check

Runs level 1 of DCGM within a deadline, writes the dated verdict that the prolog reads, and reports a fault to the
daemon if a daemon is configured. It drains nothing: Slurm ignores its exit status, which is always 0. A fresh verdict
of an agent is not overwritten. Late, missing or unparsable output gives UNKNOWN, for which no prolog refuses a node.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.hook import convicts, diagnosed, evidence_of, sentence_of, shown, tell

AGENT_FRESH_S = 15  # an agent's verdict is this fresh: it is rewritten every few seconds
KEPT_S = 86400.0  # age at which files that prolog and epilog wrote for an agent are removed


def main(environment: Mapping[str, str]) -> int:
    """Returns the exit status, always 0; an error is one line on stderr."""
    try:
        check(environment)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"sentinel: health check: {error}", file=sys.stderr)
    return 0


def check(environment: Mapping[str, str]) -> None:
    folder = Path(environment.get("SENTINEL_RUN_DIR", "/run/sentinel"))
    if agent_is_there(folder / "verdict"):
        return
    node = environment.get("SENTINEL_NODE") or environment.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    answer = diagnosed(environment, node, float(environment.get("SENTINEL_HEALTH_S", "45")))
    word, code, sentence = verdict_of(answer)
    folder.mkdir(parents=True, exist_ok=True)
    write_verdict(folder / "verdict", word, code, sentence, int(environment.get("SENTINEL_HEALTH_FRESH_S", "600")))
    prune(folder / "jobs")
    if word == "BAD":
        print(f"sentinel: {node}: {code}: {sentence}", file=sys.stderr)
    if environment.get("SENTINEL_URL") and evidence_of(answer):
        tell(environment, node, evidence_of(answer))  # a daemon that does not answer gets it at the next run


def agent_is_there(verdict: Path) -> bool:
    """Whether an agent wrote the verdict a moment ago. This check's own is told apart by its second line."""
    try:
        _, second, *_ = [*verdict.read_text(encoding="utf-8", errors="replace").splitlines(), "", ""]
    except OSError:
        return False
    words = second.split()
    return len(words) == 1 and words[0].isdigit() and -5 <= uptime_s() - int(words[0]) <= AGENT_FRESH_S


def verdict_of(answer: Mapping[str, Any]) -> tuple[str, str, str]:
    """(word, code, sentence) of the verdict. BAD only on evidence that convicts; OK only if all GPUs passed."""
    proofs = [item for item in evidence_of(answer) if convicts(item)]
    if proofs:
        code = "diagnostic" if proofs[0]["kind"] == "diag_failed" else str(proofs[0]["kind"])
        return "BAD", code, sentence_of(proofs)
    if answer.get("result") == "pass":
        return "OK", "ok", "level 1 passed"
    return "UNKNOWN", "diagnostic", str(answer.get("reason") or answer.get("result") or "nothing is known")


def write_verdict(path: Path, word: str, code: str, sentence: str, valid_s: int) -> None:
    """Write the verdict in the agent's format, valid for ``valid_s``. On a full disk the old one stays and grows stale.

    Raises:
        OSError: it cannot be written.
    """
    content = f"{word} {int(time.time())} {code} {shown(sentence)}\n{uptime_s()} {valid_s}\n"
    temporary = path.with_name(f".verdict.{os.getpid()}")
    try:
        temporary.write_text(content, encoding="utf-8", errors="replace")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def prune(jobs: Path) -> None:
    """Remove old job files of jobs whose epilog never ran; without an agent nothing else removes them."""
    for path in jobs.glob("*.json"):
        if time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)


def uptime_s() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))


if __name__ == "__main__":
    sys.exit(main(os.environ))
