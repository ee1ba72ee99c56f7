"""The part of the hooks that is too long for shell. Standard library only; started for a job, so it starts fast.

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
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel.protocol import ELSEWHERE, ENCRYPTED, EVENT, EVIDENCE, HEADER, digest_of, parts_of

PROOF = 9
DIAGNOSTIC = "sentinel.agent.probes.diagnose"  # runs level 1 and reads it, for agent, prolog and health check
STOP_S = 5.0  # for stopping a diagnostic that is late; more than DCGM's 4 s for one that ends when it is told to
EVENT_S = 3.0
ANSWER_BYTES = 65_536  # of the daemon to an event: some hundred, half of them its signature
MOST_SHOWN = 300  # characters of another program's text
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
    while True:
        try:
            status = post_to_active(environment, EVENT, body, deadline_s)
        except OSError as error:
            # Refused at once while the daemon restarts, or while another takes over: try again until the deadline.
            if time.monotonic() + 0.3 >= deadline_s:
                print(f"sentinel: {name} not told: {error}", file=sys.stderr)
                return 0
            time.sleep(0.25)
            continue
        if status != 200:
            print(f"sentinel: the daemon answered {status} to {name}", file=sys.stderr)
        return 0


def post_to_active(environment: Mapping[str, str], path: str, body: bytes, deadline_s: float) -> int:
    """200 when a daemon of SENTINEL_URL (one, or several separated by commas) took it, else what an active one answered.

    Goes on to the next after any other answer: where a daemon is away, anybody may listen at its port. With
    SENTINEL_DAEMON_USER an answer counts only when MUNGE says that it is that account's, root's or our own. Raises OSError
    where munged or the daemons do not answer, or none is active.
    """
    urls = [url.strip() for url in environment.get("SENTINEL_URL", "http://127.0.0.1:9478").split(",")]
    problem, refused = OSError("no daemon is active"), 0
    for at, url in enumerate(urls):
        now_s = time.monotonic()
        until_s = now_s + (deadline_s - now_s) / (len(urls) - at)  # one that does not answer leaves time for the others
        host, port = address_of(url)
        try:
            message = signed(environment, path, body, until_s)
            answer = post(url, environment.get("SENTINEL_CA_FILE", ""), path, message, until_s)
            status = answer[0]
            if status == 200 and (daemon := environment.get("SENTINEL_DAEMON_USER")):
                require_signed(answer, message[0][HEADER], daemon, environment, until_s)
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # whatever a stranger there may cause
            problem = OSError(f"{host}:{port}: {error}")
            continue
        if status == 200:
            return status
        refused = refused or (status if status != ELSEWHERE else 0)
    if refused:
        return refused
    raise problem


def signed(environment: Mapping[str, str], path: str, body: bytes, deadline_s: float) -> tuple[dict[str, str], bytes]:
    """Headers and body of one request; encrypted for SENTINEL_DAEMON_USER where SENTINEL_WIRE is "munge".

    Raises:
        OSError, SubprocessError: munged does not answer, or the command is missing.
    """
    munge_socket, kind = environment.get("SENTINEL_MUNGE_SOCKET", ""), "application/json"
    if environment.get("SENTINEL_WIRE") == "munge":
        only = [f"--restrict-uid={environment.get('SENTINEL_DAEMON_USER') or 0}", "--cipher=aes256"]
        parts = [munge(only, munge_socket, deadline_s, part) for part in parts_of(body)]
        body, kind = "\n".join(parts).encode(), ENCRYPTED
    credential = munge(["--string", digest_of(path, body).decode()], munge_socket, deadline_s)
    return {HEADER: credential, "Content-Type": kind}, body


Answer = tuple[int, str, bytes]  # status, credential, body


def require_signed(
    answer: Answer, asked_with: str, daemon: str, environment: Mapping[str, str], deadline_s: float
) -> None:
    """
    Raises:
        OSError, SubprocessError: it is not the daemon's answer to what we asked.
    """
    trusted = {0, os.getuid(), int(daemon) if daemon.isdecimal() else uid_of(daemon)}
    munge_socket = environment.get("SENTINEL_MUNGE_SOCKET", "")
    credential = answer[1].encode()
    said, _, payload = munge(["--keys=UID"], munge_socket, deadline_s, credential, program="unmunge").partition("\n\n")
    uid = said.rpartition("(")[2].rstrip(") ")  # "UID:     ada (1000)"
    if not uid.isdecimal() or payload != digest_of(asked_with, answer[2]).decode():
        raise OSError("its answer is not signed")
    if int(uid) not in trusted:
        raise OSError(f"its answer comes from uid {uid}")


def uid_of(account: str) -> int:
    import pwd

    try:
        return pwd.getpwnam(account).pw_uid
    except KeyError:
        raise OSError(f"SENTINEL_DAEMON_USER: no account {account!r:.40} here") from None


def address_of(url: str) -> tuple[str, int]:
    rest = url.partition("://")[2] or url
    host, _, port = rest.partition("/")[0].rpartition(":")
    if not host:
        host, port = port, "9478"
    return host.strip("[]"), int(port)


def munge(
    options: list[str], munge_socket: str, deadline_s: float, payload: bytes = b"", *, program: str = "munge"
) -> str:
    """A credential from the ``munge`` command, or what ``unmunge`` says of one; see ``signed``."""
    place = ["--socket", munge_socket] if munge_socket else []
    left_s = max(0.05, deadline_s - time.monotonic())
    done = subprocess.run([program, *place, *options], input=payload, capture_output=True, timeout=left_s, check=False)
    if done.returncode != 0:
        raise OSError(f"{program}: {done.stderr.decode('utf-8', 'replace').strip()[:300]}")
    return done.stdout.decode().strip()


def connected(url: str, ca_file: str, deadline_s: float) -> socket.socket:
    """A connection to the daemon; by TLS, with its certificate and name checked, where the URL begins with https."""
    host, port = address_of(url)
    made = socket.create_connection((host, port), timeout=max(0.05, deadline_s - time.monotonic()))
    if not url.startswith("https://"):
        return made
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file or None).wrap_socket(made, server_hostname=host)
    except BaseException:
        made.close()
        raise


def post(url: str, ca_file: str, path: str, message: tuple[dict[str, str], bytes], deadline_s: float) -> Answer:
    """One POST. Raises OSError if its answer is not whole by the deadline, however steadily it trickles."""
    (headers, body), (host, port) = message, address_of(url)
    with connected(url, ca_file, deadline_s) as connection:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{lines}"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        answer = b""
        while len(answer) < ANSWER_BYTES:  # the daemon closes behind it
            if time.monotonic() >= deadline_s:
                raise TimeoutError("the answer was not whole in time")
            connection.settimeout(max(0.05, deadline_s - time.monotonic()))
            more = connection.recv(4096)
            if not more:
                break
            answer += more
    head_lines, _, content = answer.partition(b"\r\n\r\n")
    first, *others = head_lines.decode("latin-1").split("\r\n")
    words = first.split(None, 2)
    if len(words) < 2 or not words[1].isdecimal():
        raise OSError(f"not an HTTP answer: {answer[:60]!r}")
    given = (line.partition(":") for line in others)
    credential = next((value.strip() for name, _, value in given if name.strip().lower() == HEADER.lower()), "")
    return int(words[1]), credential, content


# --------------------------------------------------------------------------------------------------------- prolog


def prolog(environment: Mapping[str, str]) -> int:
    """Level 1 of DCGM within a deadline. 9 only on proof against the node, by rules/convictions.toml."""
    node = environment.get("SENTINEL_NODE") or environment.get("SLURMD_NODENAME", "")
    answer = diagnosed(environment, node, float(environment.get("SENTINEL_PROLOG_S", "20")))
    proofs = [item for item in evidence_of(answer) if convicts(item)]
    if not proofs:
        if answer.get("result") != "pass":
            print(f"sentinel: nothing is known about the GPUs: {shown(str(answer.get('reason', '')))}", file=sys.stderr)
        return 0
    print(f"sentinel: node refused: {sentence_of(proofs)}", file=sys.stderr)
    try:
        if environment.get("SENTINEL_URL") and node:
            tell(environment, node, proofs)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"sentinel: the daemon was not told: {error}", file=sys.stderr)
    return PROOF


def diagnosed(environment: Mapping[str, str], node: str, deadline_s: float) -> dict[str, Any]:
    """What level 1 found; *inconclusive* when it was late or said nothing that can be read.

    It runs in a process of its own: what stands in the driver is killed and left behind.
    """
    arguments = {
        "node": node,
        "level": 1,
        "gpus": None,
        "promised": int(environment.get("SENTINEL_GPUS") or -1),
        "tells_missing": True,  # no agent does
        "dcgmi": environment.get("SENTINEL_DCGMI", "dcgmi"),
        **dict(zip(("host", "socket"), engine_of(environment), strict=True)),
        "closed_to_users": environment.get("SENTINEL_DCGM_CLOSED") in ("1", "yes", "true"),
        "account": environment.get("SENTINEL_DCGM_ACCOUNT", "nvidia-dcgm"),
        "rules": rules_of(environment),
        "deadline_s": deadline_s,
        "stop_s": STOP_S,
    }
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib is slow
    # -S: no site-packages, which may be where we are installed.
    command = ["env", f"PYTHONPATH={package}", sys.executable, "-P", "-S", "-m", DIAGNOSTIC]
    output = run(command, deadline_s, json.dumps(arguments).encode() + b"\n")
    if output is None:
        return {"result": "inconclusive", "reason": f"level 1 took longer than {deadline_s:g} s"}
    try:
        said = json.loads(output.splitlines()[-1]) if output.strip() else {}
    except (ValueError, RecursionError):  # not JSON, or nested without end
        said = {}
    answer = said.get("result") if isinstance(said, dict) else None
    if not isinstance(answer, dict):
        reason = said.get("error") if isinstance(said, dict) else None
        return {"result": "inconclusive", "reason": str(reason or "level 1 said nothing that can be read")}
    return answer


def engine_of(environment: Mapping[str, str]) -> tuple[str, str]:
    """Host and unix socket of DCGM's host engine, one of them empty: ``host:port``, ``unix:///path`` or ``/path``."""
    given = environment.get("SENTINEL_DCGM_HOST") or "127.0.0.1:5555"
    path = given.removeprefix("unix://")
    return ("", path) if path.startswith("/") else (given, "")


def rules_of(environment: Mapping[str, str]) -> str:
    """The site's rules: SENTINEL_RULES, else those of the agent of this node; empty for the default."""
    if environment.get("SENTINEL_RULES"):
        return environment["SENTINEL_RULES"]
    folder = environment.get("SENTINEL_RUN_DIR", "/run/sentinel")
    try:
        with open(os.path.join(folder, "rules_dir"), encoding="utf-8") as stream:  # noqa: PTH118, PTH123
            return stream.readline().rstrip("\n")
    except OSError:
        return ""


def evidence_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    items = answer.get("evidence")
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def convicts(item: Mapping[str, Any]) -> bool:
    """Whether this evidence is proof against the node: a fault that a diagnostic found, or a GPU that is not there."""
    data = item.get("data")
    known = item.get("kind") in ("diag_failed", "gpu_lost")
    return known and isinstance(data, dict) and data.get("convicts") is True


def sentence_of(items: Sequence[Mapping[str, Any]]) -> str:
    """What the evidence says, on one line, with each GPU as DCGM counts it and the error's code."""
    from sentinel.text import brief  # only here: without proof nobody waits for it

    return brief((shown(_said(item)) for item in items), MOST_SHOWN)


def _said(item: Mapping[str, Any]) -> str:
    where, data = (item[key] if isinstance(item.get(key), dict) else {} for key in ("where", "data"))
    part = data.get("part") if where.get("gpu") is None else f"GPU {where['gpu']}"
    code = None if data.get("code") is None else f"DCGM error {data['code']}"
    return ": ".join(str(said) for said in (part, code, item.get("text")) if said)


def tell(environment: Mapping[str, str], node: str, items: list[dict[str, Any]]) -> None:
    """Evidence, to the daemon, as an agent tells it; it says in Slurm why the node was refused.

    Raises:
        OSError, SubprocessError: munged or the daemon does not answer.
    """
    job, attempt = (environment.get(name) or "0" for name in ("SLURM_JOB_ID", "SLURM_JOB_RESTART_COUNT"))
    told = {"node": node, "epoch": str(items[0]["id"]), "first": 1, "items": items}  # a spool that never goes on
    if f"{job}{attempt}".isdecimal() and not environment.get("REFUSALS_OBSERVED"):
        told["refused"] = [{"job": int(job), "attempt": int(attempt), "reason": sentence_of(items)}]
    deadline_s = time.monotonic() + float(environment.get("SENTINEL_EVENT_S", EVENT_S))
    if (status := post_to_active(environment, EVIDENCE, json.dumps(told).encode(), deadline_s)) != 200:
        raise OSError(f"it answered {status}")


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
    return "".join(letter if letter.isprintable() else " " for letter in text)[:MOST_SHOWN]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
