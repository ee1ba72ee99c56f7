"""A node's level 1 check for sites without the agent, as Slurm's HealthCheckProgram. Standard library only.

    python3 -m sentinel.agent.health      run by deploy/slurm/health-check

Runs level 1 of DCGM within a deadline, writes the dated verdict that the prolog reads, and tells the daemon of a fault if
one is configured. Drains nothing: Slurm ignores its exit status, which is always 0. A fresh verdict of an agent is left
alone. What is late, missing or unparsable is UNKNOWN, and no prolog refuses a node for that.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.hook import address_of, post, run, shown, sign
from sentinel.protocol import EVIDENCE, digest_of

AGENT_FRESH_S = 15  # an agent dates its verdict anew every few seconds
PROBE = "sentinel.agent.probes.diagnose"
KEPT_S = 86400.0  # what a prolog and an epilog wrote for an agent that never came


def main(environment: Mapping[str, str]) -> int:
    """Always 0; trouble is one line on stderr."""
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
    answer = diagnosed(environment, node)
    word, code, sentence = verdict_of(answer)
    folder.mkdir(parents=True, exist_ok=True)
    write_verdict(folder / "verdict", word, code, sentence, int(environment.get("SENTINEL_HEALTH_FRESH_S", "600")))
    prune(folder / "jobs")
    if word == "BAD":
        print(f"sentinel: {node}: {code}: {sentence}", file=sys.stderr)
    if environment.get("SENTINEL_URL"):
        tell(environment, node, answer)


def agent_is_there(verdict: Path) -> bool:
    """Whether an agent wrote the verdict a moment ago; ours says on its second line for how long it holds."""
    try:
        _, second, *_ = [*verdict.read_text(encoding="utf-8", errors="replace").splitlines(), "", ""]
    except OSError:
        return False
    words = second.split()
    return len(words) == 1 and words[0].isdigit() and -5 <= uptime_s() - int(words[0]) <= AGENT_FRESH_S


def diagnosed(environment: Mapping[str, str], node: str) -> dict[str, Any]:
    """What the diagnostic found; *inconclusive* when it was late or said nothing that can be read."""
    deadline_s = float(environment.get("SENTINEL_HEALTH_S", "45"))
    arguments = {
        "node": node,
        "level": 1,
        "gpus": None,
        "promised": int(environment.get("SENTINEL_GPUS") or -1),
        "dcgmi": environment.get("SENTINEL_DCGMI", "dcgmi"),
        "host": environment.get("SENTINEL_DCGM_HOST", "127.0.0.1:5555"),
        "deadline_s": deadline_s,
        "stop_s": 5.0,
    }
    package = Path(__file__).resolve().parents[2]  # -S: no site-packages, which may be where we are installed
    command = ["env", f"PYTHONPATH={package}", sys.executable, "-P", "-S", "-m", PROBE]
    output = run(command, deadline_s, json.dumps(arguments).encode() + b"\n")
    if output is None:
        return {"result": "inconclusive", "reason": f"level 1 took longer than {deadline_s:g} s"}
    try:
        said = json.loads(output.splitlines()[-1]) if output.strip() else {}
    except ValueError:
        said = {}
    answer = said.get("result") if isinstance(said, dict) else None
    if not isinstance(answer, dict):
        reason = said.get("error") if isinstance(said, dict) else None
        return {"result": "inconclusive", "reason": str(reason or "level 1 said nothing that can be read")}
    return answer


def verdict_of(answer: Mapping[str, Any]) -> tuple[str, str, str]:
    """Word, code and sentence. BAD only on evidence that convicts; OK only where all GPUs passed."""
    for item in _evidence(answer):
        data = item.get("data")
        if item.get("kind") == "diag_failed" and isinstance(data, dict) and data.get("convicts") is True:
            return "BAD", "diagnostic", str(item.get("text", ""))
    if answer.get("result") == "pass":
        return "OK", "ok", "level 1 passed"
    return "UNKNOWN", "diagnostic", str(answer.get("reason") or answer.get("result") or "nothing is known")


def write_verdict(path: Path, word: str, code: str, sentence: str, valid_s: int) -> None:
    """As the agent writes it, and for how long it holds; a full disk leaves the old one, which grows stale.

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
    """Job files of jobs whose epilog never ran: nobody else removes them where there is no agent."""
    for path in jobs.glob("*.json"):
        if time.time() - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)


def tell(environment: Mapping[str, str], node: str, answer: Mapping[str, Any]) -> None:
    """The evidence, to the daemon. One that does not answer hears it next time, or from the agent that it should have.

    Raises:
        OSError, SubprocessError: munged or the daemon does not answer.
    """
    items = _evidence(answer)
    if not items:
        return
    body = json.dumps({"node": node, "epoch": uuid.uuid4().hex, "first": 1, "items": items}).encode()
    deadline_s = time.monotonic() + float(environment.get("SENTINEL_EVENT_S", "3"))
    host, port = address_of(environment["SENTINEL_URL"])
    credential = sign(digest_of(EVIDENCE, body), environment.get("SENTINEL_MUNGE_SOCKET", ""), deadline_s)
    status = post(host, port, EVIDENCE, body, credential, deadline_s)
    if status != 200:
        print(f"sentinel: the daemon answered {status} to a health check", file=sys.stderr)


def _evidence(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = answer.get("evidence")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def uptime_s() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME))


if __name__ == "__main__":
    sys.exit(main(os.environ))
