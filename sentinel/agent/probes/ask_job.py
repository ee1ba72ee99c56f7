"""Asks a running job, as its user, which rank blocks it: by NCCL's RAS port, the flight recorder's pipes, torch's debug
endpoints and py-spy. Nothing here stops or ends a process.

Each query runs in a thread with its own deadlines; the answer is what has arrived when the time is over.
"""

from __future__ import annotations

import encodings.idna  # noqa: F401 - create_connection loads it, and the user may be unable to read it
import errno
import os
import re
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.adapters.host import local_peer
from sentinel.agent.probes import become, begin, say
from sentinel.agent.probes.tasks import environments
from sentinel.evidence.nccl.flight_recorder import MAX_BYTES, read_dump
from sentinel.evidence.nccl.flight_recorder_wire import to_wire
from sentinel.evidence.nccl.ras import slim

RAS = "localhost:28028"
WORKER = "TORCH_WORKER_SERVER_SOCKET"  # variable of a rank: where its debug endpoints listen
_MFD_EXEC = 0x10  # linux/memfd.h, since 6.3
RAS_BYTES = 24 << 20  # largest RAS report (2,048 GPUs, indented JSON); a quarter of it is sent on
ANSWER_BYTES = 8 << 20
STACK_BYTES = 16_000
DUMP_S = 3.0  # wait for a dump; the recorder polls its pipe once a second
SPARE_S = 1.0  # part of the deadline kept for sending the answer
MOST_RANKS = 16  # most ranks that are asked on one node
_ADDRESS = re.compile(r"^\[?([\w.:%-]{1,253}?)\]?:(\d{1,5})$")


@dataclass(frozen=True)
class Rank:
    pid: int
    rank: int | None
    environment: Mapping[str, str]


@dataclass
class Answers:
    """Collects answers; the threads add to it as they arrive."""

    ras: list[dict[str, Any]] = field(default_factory=list)
    dumps: list[dict[str, Any]] = field(default_factory=list)
    stacks: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, text: str) -> None:
        with self.lock:
            self.notes.append(text[:300])

    def result(self, ranks: Sequence[Rank]) -> dict[str, Any]:
        with self.lock:
            return {
                "ras": list(self.ras),
                "dumps": list(self.dumps),
                "stacks": list(self.stacks),
                "notes": self.notes[:20],
                "ranks": [{"pid": rank.pid, "rank": rank.rank} for rank in ranks],
                "host": socket.gethostname(),
            }


def main() -> None:
    arguments = begin()
    until_s = time.monotonic() + float(arguments["deadline_s"]) - SPARE_S
    uid, node = arguments["uid"], str(arguments.get("node", ""))
    ranks = [Rank(*item) for item in environments(int(arguments["job"]), node=node, uid=uid)]
    answers = Answers()
    py_spy = _copy_of_py_spy(ranks, answers)
    become(uid, arguments.get("gid"))
    gap_s = float(arguments.get("gap_s", 3.0))
    threads = [threading.Thread(target=_part, args=(part, answers), daemon=True) for part in parts(
        ranks[:MOST_RANKS], answers, until_s, gap_s, ras=bool(arguments.get("ras")), py_spy=py_spy
    )]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    say({"result": answers.result(ranks)})
    os._exit(0)  # do not wait for threads that have no answer yet


def _part(part: Callable[[], None], answers: Answers) -> None:
    try:
        part()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        answers.note(f"{type(error).__name__}: {error}")


def parts(
    ranks: Sequence[Rank], answers: Answers, until_s: float, gap_s: float, *, ras: bool, py_spy: int | None = None
) -> list[Callable[[], None]]:
    """The queries that these ranks support, each as a function without arguments. ``py_spy``: see ``private_copy``."""
    made: list[Callable[[], None]] = []
    if ras:  # RAS answers for all nodes of a job; two jobs on a node share its port unless configured
        address = next(
            (rank.environment["NCCL_RAS_ADDR"] for rank in ranks if "NCCL_RAS_ADDR" in rank.environment), RAS
        )
        made.append(lambda: poll_twice(address, answers, until_s, gap_s))
    for rank in ranks:
        made.append(lambda rank=rank: ask_recorder(rank, answers, until_s))  # type: ignore[misc]
        worker = rank.environment.get(WORKER, "")
        if worker:
            made.append(lambda rank=rank, worker=worker: ask_worker(rank, worker, answers, until_s))  # type: ignore[misc]
        elif py_spy is not None:
            made.append(lambda rank=rank: ask_py_spy(rank, py_spy, answers, until_s))  # type: ignore[misc]
    return made


# --- NCCL's RAS port --------------------------------------------------------------------------------------------------


def poll_twice(address: str, answers: Answers, until_s: float, gap_s: float) -> None:
    """Get two reports ``gap_s`` apart: only operation counts that do not change between them show a hang."""
    first_s = time.monotonic()
    first = poll_ras(address, until_s)
    time.sleep(max(0.0, min(gap_s - (time.monotonic() - first_s), until_s - time.monotonic() - 1.0)))
    second_s = time.monotonic()
    second = poll_ras(address, until_s)
    with answers.lock:
        answers.ras += [
            {"after_s": 0.0, "text": slim(first).decode("utf-8", "replace")},
            {"after_s": round(second_s - first_s, 3), "text": slim(second).decode("utf-8", "replace")},
        ]


def poll_ras(address: str, until_s: float) -> bytes:
    """One RAS report, as JSON if this version of NCCL supports it, else as text.

    Raises:
        OSError: no answer. ValueError: ``address`` is malformed.
    """
    match = _ADDRESS.match(address)
    if match is None:
        raise ValueError(f"not an address: {address!r:.80}")
    with socket.create_connection((match[1], int(match[2])), _left(until_s)) as stream:
        for line in (b"CLIENT PROTOCOL 2\n", b"TIMEOUT 2\n", b"SET FORMAT json\n"):
            stream.sendall(line)
            _line(stream, until_s)  # an older NCCL answers ERROR to the last command, and reports in text
        # The first to bind a port gets what comes there. Asked once the other end has answered, and so has accepted.
        if local_peer.is_here(stream) and local_peer.accepted_by(stream) != os.geteuid():
            raise PermissionError(f"another user listens at {address}")
        stream.sendall(b"VERBOSE STATUS\n")
        return _all(stream, RAS_BYTES, until_s)


def _left(until_s: float) -> float:
    return max(0.05, until_s - time.monotonic())


def _line(stream: socket.socket, until_s: float) -> bytes:
    found = b""
    while not found.endswith(b"\n") and len(found) < 4096:
        stream.settimeout(_left(until_s))
        more = stream.recv(1)
        if not more:
            raise ConnectionError("closed before it answered")
        found += more
    return found


def _all(stream: socket.socket, most: int, until_s: float) -> bytes:
    found = bytearray()
    while len(found) < most:
        stream.settimeout(_left(until_s))
        more = stream.recv(65536)
        if not more:
            break
        found += more
    return bytes(found[:most])


# --- the flight recorder ----------------------------------------------------------------------------------------------


def ask_recorder(rank: Rank, answers: Answers, until_s: float) -> None:
    """Trigger a flight-recorder dump through the rank's named pipe, if there is one, and read the complete dump."""
    stem = rank.environment.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
    if not stem or rank.rank is None:
        return
    before = {place: _written(place) for place in dump_places(rank)}
    pipe = os.open(f"{stem}{rank.rank}.pipe", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):  # the recorder's is a named pipe: write into nothing else
            raise ValueError(f"{stem}{rank.rank}.pipe is no pipe")
        os.write(pipe, b"1")
    finally:
        os.close(pipe)
    end_s = min(until_s, time.monotonic() + DUMP_S)
    seen = dict(before)
    while time.monotonic() < end_s:
        time.sleep(0.1)
        for place, then in before.items():
            now = _written(place)
            if now is not None and now != then and now == seen[place] and now[1] > 0:  # complete: it no longer grows
                _add_dump(rank, _own_content(place), str(place), answers)
                return
            seen[place] = now
    answers.note(f"rank {rank.rank} wrote no dump within {DUMP_S:g} s")


def dump_places(rank: Rank) -> list[Path]:
    """Paths to which this rank's recorder may write: as configured, or the defaults of newer and older PyTorch."""
    told = rank.environment.get("TORCH_FR_DUMP_TEMP_FILE") or rank.environment.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    if told:
        return [Path(f"{told}{rank.rank}")]
    home = rank.environment.get("HOME", "")
    cache = rank.environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home else "/tmp")  # noqa: S108 - torch's own default
    return [Path(f"{cache}/torch/comm_lib_trace_rank_{rank.rank}"), Path(f"/tmp/nccl_trace_rank_{rank.rank}")]  # noqa: S108


def _written(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size) if _is_own(status) else None


def _is_own(status: os.stat_result) -> bool:
    """Whether a file belongs to the job's user: in /tmp anybody may have written one of that name."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _own_content(path: Path) -> bytes:
    """The file's content; empty if it is larger than a dump can be.

    Raises:
        OSError: it cannot be read, or belongs to another user by now.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not _is_own(os.fstat(stream.fileno())):
            raise PermissionError(f"{path} is not of the job's user")
        content = stream.read(MAX_BYTES + 1)
    return content if len(content) <= MAX_BYTES else b""


def _add_dump(rank: Rank, content: bytes, name: str, answers: Answers) -> None:
    found = read_dump(content, name)
    if found is None:
        answers.note(f"rank {rank.rank}: {name} is no dump")
        return
    with answers.lock:
        answers.dumps.append({**to_wire(found), "rank": rank.rank})


# --- torch's debug endpoints and py-spy -------------------------------------------------------------------------------


def ask_worker(rank: Rank, path: str, answers: Answers, until_s: float) -> None:
    """Get stacks and flight-recorder content from a worker's debug endpoint (a local socket)."""
    stack = post(path, "dump_traceback", until_s)
    with answers.lock:
        answers.stacks.append({"rank": rank.rank, "form": "traceback", "text": _text(stack)})
    _add_dump(rank, post(path, "fr_trace_json", until_s), f"rank {rank.rank}", answers)


def post(path: str, handler: str, until_s: float) -> bytes:
    """The body of a debug handler's answer.

    Raises:
        OSError: no answer, or a status other than 200.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(_left(until_s))
        stream.connect(path)
        if local_peer.owner_of_unix(stream)[1] != os.geteuid():
            raise PermissionError(f"another user listens at {path}")
        stream.sendall(
            f"POST /handler/{handler} HTTP/1.0\r\nHost: worker\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = _all(stream, ANSWER_BYTES, until_s).partition(b"\r\n\r\n")
    if b" 200" not in head.split(b"\r\n", 1)[0]:
        raise ConnectionError(f"{handler}: {head[:80]!r}")
    return body


def _copy_of_py_spy(ranks: Sequence[Rank], answers: Answers) -> int | None:
    """Made while this process is root; None: it is not installed, not needed or cannot be had."""
    command = shutil.which("py-spy")
    if command is None or all(rank.environment.get(WORKER) for rank in ranks):
        return None
    try:
        return private_copy(command)
    except (OSError, ValueError) as error:
        answers.note(f"py-spy is not asked: {error}")
        return None


def private_copy(command: str) -> int:
    """Descriptor of a copy of a program, in memory, that may be executed and not read.

    A program that is executed runs in the agent's control group. One that its user can read that user can also trace, and
    so make it do anything outside of the job; one that cannot be read the kernel lets root alone trace.

    Raises:
        OSError: it cannot be copied, or this Python makes no files in memory. ValueError: it is a script, which the kernel
        lets its interpreter read.
    """
    if not (hasattr(os, "memfd_create") and hasattr(os, "MFD_CLOEXEC")):  # built with glibc before 2.27
        raise OSError(errno.ENOSYS, "this Python makes no files in memory")
    with open(command, "rb") as program:  # noqa: PTH123
        if program.read(4) != b"\x7fELF":
            raise ValueError(f"{command} is no program of machine code")
        program.seek(0)
        try:
            copy = os.memfd_create("program", os.MFD_CLOEXEC | _MFD_EXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:  # Linux before 6.3 knows no such flag, and needs none
                raise
            copy = os.memfd_create("program", os.MFD_CLOEXEC)
        with os.fdopen(copy, "wb", closefd=False) as stream:
            shutil.copyfileobj(program, stream)
        os.fchmod(copy, 0o111)
    return copy


def run_private(copy: int, arguments: Sequence[str], until_s: float) -> subprocess.CompletedProcess[bytes]:
    """Run the program of ``private_copy``.

    Raises:
        OSError, SubprocessError: it cannot be started, or was late and is ended.
    """
    return subprocess.run(
        arguments,
        executable=f"/proc/self/fd/{copy}",
        pass_fds=[copy],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_left(until_s),
        check=False,
    )


def ask_py_spy(rank: Rank, copy: int, answers: Answers, until_s: float) -> None:
    """Read the stack of the rank's main thread with py-spy, without stopping the process (``--nonblocking``).

    ``copy``: of py-spy, see ``private_copy``.
    """
    done = run_private(copy, ["py-spy", "dump", "--nonblocking", "--pid", str(rank.pid)], until_s)
    if done.returncode:
        answers.note(f"py-spy, rank {rank.rank}: {done.stderr.decode('utf-8', 'replace').strip()[-200:]}")
        return
    with answers.lock:
        answers.stacks.append({"rank": rank.rank, "form": "py-spy", "text": _text(done.stdout)})


def _text(content: bytes) -> str:
    return content[:STACK_BYTES].decode("utf-8", "replace")


if __name__ == "__main__":
    main()
