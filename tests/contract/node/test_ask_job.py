"""Asking a running job: stand-ins for NCCL's port, the recorder's pipe and a worker's socket; py-spy as it is."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.probes import ask_job
from sentinel.agent.probes.ask_job import (
    Answers,
    Rank,
    ask_py_spy,
    ask_recorder,
    ask_worker,
    dump_places,
    parts,
    poll_ras,
    poll_twice,
    private_copy,
)
from sentinel.evidence.nccl.debug_endpoints import read_py_spy, read_stack
from sentinel.evidence.nccl.ras import read_ras
from sentinel.model.live_collectives import RasPoll

TEXT = b"""NCCL version 2.27.3 compiled with CUDA 12.9
Job summary
Communicators...
#0-0 (7f3a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 41
  Rank 2 has launched up to operation 40 -- GPU 2 managed by process 502 on node 10.0.0.1
"""


def report(count: int) -> bytes:
    ranks = [
        {"rank": r, "host": "n1", "pid": 500 + r, "status": {}, "collective_counts": {"AllReduce": count - (r == 2)}}
        for r in range(4)
    ]
    return json.dumps({"communicators": [{"hash": "7f3a", "size": 4, "ranks": ranks, "missing_ranks": []}]}).encode()


class Ras:
    """NCCL's side of the protocol: by lines, a report to STATUS, then the end."""

    def __init__(self, reports: list[bytes], *, knows_json: bool) -> None:
        self._reports, self._json = list(reports), knows_json
        self.heard: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while self._reports:
            stream, _ = self._server.accept()
            with stream, stream.makefile("rwb") as lines:
                for line in lines:
                    self.heard.append(line.strip())
                    if line.startswith(b"CLIENT"):
                        lines.write(b"SERVER PROTOCOL 2\n")
                    elif line.startswith(b"SET"):
                        lines.write(b"OK\n" if self._json else b"ERROR: Unknown command\n")
                    elif b"STATUS" in line:
                        lines.write(self._reports.pop(0))
                        lines.flush()
                        break
                    else:
                        lines.write(b"OK\n")
                    lines.flush()
        self._server.close()


def soon() -> float:
    return time.monotonic() + 60.0


def test_two_reports_of_ras_as_json() -> None:
    ras, answers = Ras([report(41), report(41)], knows_json=True), Answers()
    poll_twice(ras.address, answers, soon(), 0.01)
    polls = [read_ras(item["text"].encode(), "ras") for item in answers.ras]
    assert isinstance(polls[0], RasPoll) and isinstance(polls[1], RasPoll)
    assert [member.counts["AllReduce"] for member in polls[1].communicators[0].members] == [41, 41, 40, 41]
    assert polls[1].communicators[0].size is not None
    assert answers.ras[1]["after_s"] >= 0.01 and b"VERBOSE STATUS" in ras.heard


def test_older_ras_answers_in_text() -> None:
    poll = read_ras(poll_ras(Ras([TEXT], knows_json=False).address, soon()), "ras")
    assert isinstance(poll, RasPoll) and poll.communicators[0].size is None  # the text does not say it
    (member,) = poll.communicators[0].members
    assert (member.local_rank, member.pid, member.counts) == (2, 502, {"AllReduce": 40})


@pytest.mark.parametrize("address", ["localhost", "a b:1", "x;rm:80", ""])
def test_address_of_the_environment_is_data(address: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        poll_ras(address, soon())


def test_silent_port_costs_its_deadline_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError):
        poll_ras(f"127.0.0.1:{server.getsockname()[1]}", time.monotonic() + 0.2)


# --- the flight recorder ----------------------------------------------------------------------------------------------

DUMP = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 7, "last_started_collective": 6, "last_completed_collective": 6}},
    "entries": [],
}


def recorder(folder: Path, rank: int, content: bytes) -> dict[str, str]:
    """A process with a recorder's pipe: it dumps when a byte comes, and goes on."""
    pipe = folder / f"pipe{rank}.pipe"
    os.mkfifo(pipe)

    def serve() -> None:
        with pipe.open("rb", buffering=0) as stream:
            opened.set()
            while not stream.read(1):
                time.sleep(0.01)
            (folder / f"trace_{rank}").write_bytes(content)

    opened = threading.Event()
    threading.Thread(target=serve, daemon=True).start()
    with pipe.open("wb", buffering=0):
        assert opened.wait(60)
        keep = os.open(pipe, os.O_WRONLY)  # so that the reader does not see an end before we write
    closing = threading.Timer(90.0, os.close, [keep])
    closing.daemon = True
    closing.start()
    return {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / "pipe"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / "trace_"),
    }


def test_recorder_dumps_when_its_pipe_is_written(tmp_path: Path) -> None:
    rank = Rank(os.getpid(), 1, recorder(tmp_path, 1, json.dumps(DUMP).encode()))
    answers = Answers()
    ask_recorder(rank, answers, soon())
    (dump,) = answers.dumps
    assert dump["rank"] == 1 and dump["trace"]["groups"][0]["enqueued"] == 7


def test_recorder_that_was_told_no_place_writes_to_its_default() -> None:
    assert [str(place) for place in dump_places(Rank(1, 1, {"HOME": "/h"}))] == [
        "/h/.cache/torch/comm_lib_trace_rank_1",
        "/tmp/nccl_trace_rank_1",
    ]
    assert dump_places(Rank(1, 1, {"HOME": "/h", "TORCH_FR_DUMP_TEMP_FILE": "/d/trace_"})) == [Path("/d/trace_1")]


def test_job_without_a_pipe_is_not_asked(tmp_path: Path) -> None:
    answers = Answers()
    ask_recorder(Rank(os.getpid(), 1, {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "t")}), answers, soon())
    assert answers.result([])["dumps"] == [] and not list(tmp_path.iterdir())


def test_file_in_place_of_the_pipe_is_left_alone(tmp_path: Path) -> None:
    victim = tmp_path / "pipe1.pipe"
    victim.write_text("precious")
    environment = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "trace_"),
    }
    with pytest.raises(ValueError, match="is no pipe"):
        ask_recorder(Rank(os.getpid(), 1, environment), Answers(), soon())
    assert victim.read_text() == "precious"


# --- stacks -----------------------------------------------------------------------------------------------------------


def test_worker_that_listens_is_asked_for_its_stack_and_its_recorder(tmp_path: Path) -> None:
    path = str(tmp_path / "worker")
    trace = (
        b'Thread 0x01 (most recent call first):\n  File "t.py", line 9 in load\n  File "t.py", line 11 in <module>\n'
    )
    bodies = {"dump_traceback": trace, "fr_trace_json": json.dumps(DUMP).encode()}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def serve() -> None:
            for _ in bodies:
                stream, _ = server.accept()
                with stream:
                    handler = stream.recv(4096).split()[1].decode().rpartition("/")[2]
                    stream.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + bodies[handler])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        answers = Answers()
        ask_worker(Rank(1, 3, {}), path, answers, soon())
        thread.join(60)
    stack = read_stack(answers.stacks[0]["text"].encode())
    assert stack is not None and stack.frames == ("load (t.py:9)", "<module> (t.py:11)")
    assert answers.dumps[0]["rank"] == 3


def test_only_one_node_asks_ras() -> None:
    rank = Rank(os.getpid(), 0, {})
    with_ras, without = (len(parts([rank], Answers(), soon(), 1.0, ras=ras)) for ras in (True, False))
    assert with_ras == without + 1


STARTS = """
import sys, time
from sentinel.agent.probes import become
from sentinel.agent.probes.ask_job import private_copy, run_private
uid = int(sys.argv[1])
copy = private_copy(sys.argv[2])
become(uid, uid)
run_private(copy, [sys.argv[2], "600"], time.monotonic() + 600)
"""


def test_what_it_runs_as_the_jobs_user_that_user_can_neither_trace_nor_look_into() -> None:
    """Such a program is in the agent's control group, with every device of the node: it must stay the agent's."""
    sleep = str(Path(shutil.which("sleep") or "/bin/sleep").resolve())
    uid = os.geteuid() or 64777
    with subprocess.Popen([sys.executable, "-c", STARTS, str(uid), sleep]) as asks:
        try:
            until_s = time.monotonic() + 60
            while not (started := [pid for pid in children(asks.pid) if argument(pid) == sleep]):
                assert asks.poll() is None and time.monotonic() < until_s
                time.sleep(0.05)
            status = Path(f"/proc/{started[0]}/status")
            assert f"Uid:\t{uid}\t" in status.read_text()
            assert status.stat().st_uid == 0  # what is not its own user's to trace is root's there
            os.kill(started[0], signal.SIGKILL)
        finally:
            asks.kill()


def children(parent: int) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(place.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(place.parent.name))
    return found


def argument(pid: int) -> str:
    """The first word of the command line; it is a copy of the parent's until the program is executed."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    return ""


def test_of_a_script_no_private_copy_is_made(tmp_path: Path) -> None:
    script = tmp_path / "py-spy"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(ValueError, match="no program of machine code"):
        private_copy(str(script))


@pytest.mark.parametrize("missing", [["memfd_create"], ["MFD_CLOEXEC"]])
def test_a_python_that_makes_no_files_in_memory_asks_everything_else(
    missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was built with glibc before 2.27 has none of these names, whatever the kernel can."""
    for name in missing:
        monkeypatch.delattr(os, name)
    with pytest.raises(OSError, match="in memory"):
        private_copy(str(Path(shutil.which("sleep") or "/bin/sleep").resolve()))


def test_the_copy_is_made_in_the_time_of_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A py-spy on a slow share must not make the answer late: a late one is no answer."""
    said: list[dict[str, Any]] = []
    ends: list[float] = []
    copied = threading.Event()

    def asked(*args: Any, **_: Any) -> list[Any]:
        ends.append(args[2])
        return []

    def end(_: int) -> None:
        raise SystemExit

    monkeypatch.setattr(ask_job, "begin", lambda: {"uid": 1000, "gid": 1000, "job": 5, "deadline_s": 20.0})
    monkeypatch.setattr(ask_job, "environments", lambda *_, **__: [])
    monkeypatch.setattr(ask_job, "_copy_of_py_spy", lambda *_: copied.set())
    monkeypatch.setattr(ask_job, "become", lambda *_: None)
    monkeypatch.setattr(ask_job, "parts", asked)
    monkeypatch.setattr(ask_job, "say", said.append)
    monkeypatch.setattr(time, "monotonic", lambda: 107.0 if copied.is_set() else 100.0)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(SystemExit):
        ask_job.main()
    assert len(said) == 1 and ends == [100.0 + 20.0 - ask_job.SPARE_S]


PROGRAM = "import time\ndef stuck_in_loader():\n    time.sleep(600)\nstuck_in_loader()\n"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[Any]]:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    process = subprocess.Popen([sys.executable, str(script)])
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("stopped", [False, True])
def test_py_spy_reads_a_process_that_goes_on(sleeper: subprocess.Popen[Any], stopped: bool) -> None:
    command = shutil.which("py-spy") or str(Path(sys.executable).with_name("py-spy"))
    if not Path(command).exists():
        pytest.skip("optional: py-spy is not installed")
    state = Path(f"/proc/{sleeper.pid}/wchan")
    until_s = time.monotonic() + 60
    while "nanosleep" not in state.read_text():
        assert time.monotonic() < until_s, state.read_text()
        time.sleep(0.05)
    if stopped:
        sleeper.send_signal(signal.SIGSTOP)
    answers = Answers()
    copy = private_copy(command)
    ask_py_spy(Rank(sleeper.pid, 5, {}), copy, answers, soon())
    os.close(copy)
    if any("ermission" in note for note in answers.notes):
        pytest.skip("optional: ptrace is not allowed here")
    stack = read_py_spy(answers.stacks[0]["text"].encode())
    assert stack is not None and stack.frames[0].startswith("stuck_in_loader (") and answers.stacks[0]["rank"] == 5
    assert sleeper.poll() is None
