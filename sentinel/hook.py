"""What the hooks run when a few lines of shell are not enough. Standard library only; started for a job, so it starts fast.

    python3 -m sentinel.hook prolog            level 1 check within a deadline: exit 9 on proof of a fault, else 0
    python3 -m sentinel.hook job_file          writes the job file that the shell could not write
    python3 -m sentinel.hook event job_ended   tells the daemon; always exits 0

Nothing in here may raise, hang or drain a node by accident: trouble is one line on stderr and exit status 0.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.protocol import EVENT, EVIDENCE, HEADER, digest_of

PROOF = 9
ISOLATE = 2  # DCGM's severity of an error that takes a GPU out of service
# ISOLATE in DCGM's table, yet no proof against hardware: NVML_LIB_BAD is an installation, not a GPU.
NO_PROOF = frozenset({24})
EVENT_S = 3.0
OUTPUT_BYTES = 16 << 20  # of a diagnostic; one that says more is out of its mind


def main(arguments: list[str], environment: Mapping[str, str]) -> int:
    try:
        if arguments[:1] == ["prolog"]:
            return prolog(environment)
        if arguments[:1] == ["job_file"]:
            return job_file(environment)
        if arguments[:1] == ["event"] and len(arguments) == 2:
            return event(arguments[1], environment)
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        print(f"sentinel: {arguments[0]}: {error}", file=sys.stderr)
        return 0
    print("usage: sentinel.hook prolog | job_file | event NAME", file=sys.stderr)
    return 0


# ---------------------------------------------------------------------------------------------------------- event


def event(name: str, environment: Mapping[str, str]) -> int:
    """Post the job's environment to the daemon, signed with MUNGE."""
    slurm = {key: value[:8192] for key, value in environment.items() if key.startswith("SLURM")}
    body = json.dumps({"event": name, "environment": slurm}).encode()
    deadline_s = time.monotonic() + float(environment.get("SENTINEL_EVENT_S", EVENT_S))
    host, port = address_of(environment.get("SENTINEL_URL", "http://127.0.0.1:9478"))
    while True:
        credential = sign(digest_of(EVENT, body), environment.get("SENTINEL_MUNGE_SOCKET", ""), deadline_s)
        try:
            status = post(host, port, EVENT, body, credential, deadline_s)
        except OSError as error:
            # Refused at once while the daemon restarts: try again until the deadline.
            if time.monotonic() + 0.3 >= deadline_s:
                print(f"sentinel: {name} not told to {host}:{port}: {error}", file=sys.stderr)
                return 0
            time.sleep(0.25)
            continue
        if status != 200:
            print(f"sentinel: the daemon answered {status} to {name}", file=sys.stderr)
        return 0


def address_of(url: str) -> tuple[str, int]:
    rest = url.partition("://")[2] or url
    host, _, port = rest.partition("/")[0].rpartition(":")
    if not host:
        host, port = port, "9478"
    return host.strip("[]"), int(port)


def sign(payload: bytes, munge_socket: str, deadline_s: float) -> str:
    """A credential from the ``munge`` command.

    Raises:
        OSError, SubprocessError: munged does not answer, or the command is missing.
    """
    option = ["--socket", munge_socket] if munge_socket else []
    done = subprocess.run(
        ["munge", *option, "--string", payload.decode()],
        capture_output=True,
        timeout=max(0.05, deadline_s - time.monotonic()),
        check=False,
    )
    if done.returncode != 0:
        raise OSError(f"munge: {done.stderr.decode('utf-8', 'replace').strip()[:300]}")
    return done.stdout.decode().strip()


def post(host: str, port: int, path: str, body: bytes, credential: str, deadline_s: float) -> int:
    """Status of one POST, within the deadline."""
    with socket.create_connection((host, port), timeout=max(0.05, deadline_s - time.monotonic())) as connection:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{HEADER}: {credential}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        answer = b""
        while b"\r\n" not in answer and len(answer) < 4096:
            connection.settimeout(max(0.05, deadline_s - time.monotonic()))
            more = connection.recv(4096)
            if not more:
                break
            answer += more
    words = answer.split(None, 2)
    if len(words) < 2 or not words[1].isdigit():
        raise OSError(f"not an HTTP answer: {answer[:60]!r}")
    return int(words[1])


# --------------------------------------------------------------------------------------------------------- prolog


def prolog(environment: Mapping[str, str]) -> int:
    """Level 1 of DCGM within a deadline. 9 only when DCGM says that a GPU has to be taken out of service."""
    deadline_s = float(environment.get("SENTINEL_PROLOG_S", "20"))
    host = environment.get("SENTINEL_DCGM_HOST", "127.0.0.1:5555")
    dcgmi = environment.get("SENTINEL_DCGMI", "dcgmi")
    if not listening(host):
        # Without an engine dcgmi would start one of its own inside itself and answer for that.
        print(f"sentinel: no DCGM host engine on {host}: nothing is known about the GPUs", file=sys.stderr)
        return 0
    output = run([dcgmi, "diag", "-r", "1", "-j", "--host", host], deadline_s)
    if output is None:
        print(f"sentinel: level 1 took longer than {deadline_s:g} s: inconclusive", file=sys.stderr)
        return 0
    for gpu, code, text in proofs(output):
        print(f"sentinel: node refused: GPU {gpu}: DCGM error {code}: {shown(text)}", file=sys.stderr)
        try:
            tell_refused(environment, gpu, code, shown(text))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            print(f"sentinel: the daemon was not told: {error}", file=sys.stderr)
        return PROOF
    return 0


def tell_refused(environment: Mapping[str, str], gpu: int, code: int, text: str) -> None:
    """The proof, to the daemon, if one is configured: it says in Slurm why the node was refused.

    Raises:
        OSError, SubprocessError: munged or the daemon does not answer.
    """
    node = environment.get("SENTINEL_NODE") or environment.get("SLURMD_NODENAME", "")
    if not environment.get("SENTINEL_URL") or not node:
        return
    now_s = time.time()
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(now_s))
    item = {
        "id": digest_of(f"prolog/{node}/{gpu}/{code}/{int(now_s)}", b"")[:20].decode(),
        "at": now,
        "seen_at": now,
        "source": "diagnostic",
        "kind": "diag_failed",
        "trust": "system",
        "where": {"node": node},  # the number is DCGM's, not Slurm's: it stays in the text
        "text": f"level 1 in the prolog: DCGM's GPU {gpu}: error {code}: {text}",
        "data": {"code": code, "severity": ISOLATE, "level": 1, "convicts": True},
    }
    # One item of a spool that never goes on; the daemon knows what it has by the item's id.
    body = json.dumps({"node": node, "epoch": item["id"], "first": 1, "items": [item]}).encode()
    deadline_s = time.monotonic() + float(environment.get("SENTINEL_EVENT_S", EVENT_S))
    host, port = address_of(environment["SENTINEL_URL"])
    credential = sign(digest_of(EVIDENCE, body), environment.get("SENTINEL_MUNGE_SOCKET", ""), deadline_s)
    status = post(host, port, EVIDENCE, body, credential, deadline_s)
    if status != 200:
        raise OSError(f"it answered {status}")


def listening(host: str) -> bool:
    name, _, port = host.rpartition(":")
    try:
        socket.create_connection((name or "127.0.0.1", int(port)), timeout=1.0).close()
    except (OSError, ValueError):
        return False
    return True


def run(command: list[str], deadline_s: float, given: bytes = b"") -> bytes | None:
    """Output of a command; None when it was late. It is killed then and not waited for: it may stand in the driver.

    Args:
        given: its standard input; at most what a pipe takes at once (64 KiB).
    """
    stdin = os.pipe() if given else None
    try:
        process = subprocess.Popen(
            command,
            stdin=stdin[0] if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if stdin:
            os.write(stdin[1], given)
    finally:
        for descriptor in stdin or ():
            os.close(descriptor)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    end_s, output = time.monotonic() + deadline_s, b""
    import select

    while (left_s := end_s - time.monotonic()) > 0 and len(output) <= OUTPUT_BYTES:
        if not select.select([process.stdout], [], [], left_s)[0]:
            break
        more = os.read(process.stdout.fileno(), 1 << 16)
        if not more:
            return output
        output += more
    os.killpg(process.pid, signal.SIGKILL)
    return None


def proofs(output: bytes) -> Iterator[tuple[int, int, str]]:
    """(GPU, code, text) of every warning on a GPU whose severity is ISOLATE, in either form of DCGM's JSON."""
    start = output.find(b"{")
    if start < 0:
        return
    try:
        root = json.loads(output[start:])
    except ValueError:
        return  # truncated or mixed with text: inconclusive
    yield from _walk(root, None)


def _walk(node: Any, gpu: int | None) -> Iterator[tuple[int, int, str]]:
    if isinstance(node, list):
        for item in node:
            yield from _walk(item, gpu)
    elif isinstance(node, dict):
        if node.get("entity_group") == "GPU" and isinstance(node.get("entity_id"), int):
            gpu = node["entity_id"]
        elif "entity_group" in node:
            gpu = None
        elif str(node.get("gpu_id", "")).isdigit():
            gpu = int(node["gpu_id"])
        code = node.get("error_id")
        if gpu is not None and node.get("error_severity") == ISOLATE and isinstance(code, int) and code not in NO_PROOF:
            yield gpu, code, str(node.get("warning") or node.get("warnings") or "")
        for key, value in node.items():
            if key != "test_summary":  # repeats the warnings without their GPU
                yield from _walk(value, gpu)


# ------------------------------------------------------------------------------------------------------- job file


def job_file(environment: Mapping[str, str]) -> int:
    """``<run dir>/jobs/<job>.json``, for values that need escaping."""
    job = environment.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        return 0
    folder = os.path.join(environment.get("SENTINEL_RUN_DIR", "/run/sentinel"), "jobs")  # noqa: PTH118 - pathlib is slow
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    content = {
        "job": job,
        "attempt": environment.get("SLURM_JOB_RESTART_COUNT", "0"),
        "uid": environment.get("SLURM_JOB_UID", ""),
        "gid": environment.get("SLURM_JOB_GID", ""),
        "user": environment.get("SLURM_JOB_USER", ""),
        "nodelist": environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST", ""),
        "stdout": environment.get("SLURM_JOB_STDOUT", ""),
        "work_dir": environment.get("SLURM_JOB_WORK_DIR", ""),
        "gpus": environment.get("SLURM_JOB_GPUS", ""),
        "partition": environment.get("SLURM_JOB_PARTITION", ""),
        "node": environment.get("SLURMD_NODENAME", ""),
    }
    temporary = f"{folder}/.{job}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as stream:  # noqa: PTH123
        json.dump(content, stream)
    os.replace(temporary, f"{folder}/{job}.json")  # noqa: PTH105
    return 0


def shown(text: str) -> str:
    """Text of another program on one line, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:300]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
