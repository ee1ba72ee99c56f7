"""The agent as a process for tests: one node's folders, a real munged, GPUs from a file, a daemon that only keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodes.fake_daemon import FakeDaemon
from sentinel.adapters.munge import Munge
from sentinel.errors import Unavailable

ROOT = Path(__file__).parents[3]
# Whose jobs are: never root's, whose files no agent touches (nobody, where root runs the tests).
JOB_UID = os.getuid() or 65534
JOB_GID = os.getgid() if os.getuid() else 65534
# Unlike a job of the lab or of tests beside these: processes of a job are found, counted and ended by its number.
JOB = 900_000_000 + os.getpid()
PATIENCE_S = 90.0  # far above what anything takes here: the machine may be busy


@contextmanager
def running_munged(folder: Path) -> Iterator[str]:
    """A munged of its own; its socket."""
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o600)
    process = subprocess.Popen(
        ["munged", "--foreground", "--force", f"--key-file={folder}/key", f"--socket={folder}/socket",
         f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    credentials = Munge(str(folder / "socket"))
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            credentials.encode(b"x")
            break
        except Unavailable:
            assert time.monotonic() < until_s, "munged does not answer"
            time.sleep(0.05)
    try:
        yield str(folder / "socket")
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


class Node:
    """One node's folders and its agent."""

    def __init__(self, folder: Path, munge_socket: str) -> None:
        self.folder, self.munge_socket = folder, munge_socket
        self.daemon = FakeDaemon(Munge(munge_socket)).start()
        self.agent: subprocess.Popen[bytes] | None = None
        self.log = os.open(folder / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.state: dict[str, Any] = {
            "gpus": [{"index": n, "uuid": f"GPU-{n}", "pci": f"0000:{0x1B + n:02x}:00.0", "xids": []} for n in range(2)]
        }
        self.gpus()
        (folder / "kmsg").touch()

    def gpus(self, **changes: Any) -> None:
        self.state.update(changes)
        (self.folder / "gpus.tmp").write_text(json.dumps(self.state))
        (self.folder / "gpus.tmp").replace(self.folder / "gpus.json")

    def kernel(self, text: str) -> None:
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        with (self.folder / "kmsg").open("a") as stream:
            stream.write(f"3,{now_us},{now_us},-;{text}\n")

    def start(self, more: str = "", silent_s: float = PATIENCE_S) -> None:
        """``silent_s``: the GPU probe counts as hung then; a busy machine keeps a sound one silent for seconds."""
        config = self.folder / "agent.toml"
        config.write_text(
            f"""
node = "n1"
url = "{self.daemon.url}"
munge_socket = "{self.munge_socket}"
run_dir = "{self.folder}/run"
state = "{self.folder}/state"
resume = "{self.folder}/resume"
gpus = 2
heartbeat_s = 0.3
verdict_s = 0.3
backoff_s = 0.5
dcgm_bindings = "{ROOT}/deploy/lab/fake_dcgm"
[kernel]
path = "{self.folder}/kmsg"
[dcgm]
nvml = "{ROOT}/deploy/lab/fake_nvml"
interval_s = 0.4
connect_s = 1.0
silent_s = {silent_s}
{more}
"""
        )
        environment = {**os.environ, "SENTINEL_FAKE_GPUS": str(self.folder / "gpus.json"), "PYTHONPATH": str(ROOT)}
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "sentinel", "agent", "--config", str(config)],
            env=environment,
            cwd=self.folder,
            stderr=self.log,
        )

    def kill(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait(PATIENCE_S)

    def verdict(self, word: str) -> bool:
        """Whether it says so, to the daemon and to the prolog."""
        path = self.folder / "run" / "verdict"

        def said() -> bool:
            told = any(beat["verdict"]["word"] == word for beat in self.daemon.heartbeats[-1:])
            return told and path.exists() and path.read_text().startswith(f"{word} ")

        return self.daemon.wait(said, PATIENCE_S)

    def knows(self, *jobs: int) -> None:
        """Wait until these are the jobs that it tells of."""
        wanted = sorted(jobs)

        def told() -> bool:
            return [sorted(job["job"] for job in beat["jobs"]) for beat in self.daemon.heartbeats[-1:]] == [wanted]

        assert self.daemon.wait(told, PATIENCE_S), (wanted, self.daemon.heartbeats[-1:])

    def heard(self, kind: str, seconds: float = PATIENCE_S) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [item for _, item in self.daemon.evidence if item["kind"] == kind]
            return bool(found)

        assert self.daemon.wait(there, seconds), (kind, self.daemon.kinds(), (self.folder / "agent.log").read_text())
        return found[0]

    def job(self, job: int = JOB, attempt: int = 0, **changes: str) -> Path:
        log = self.folder / f"job-{job}.out"
        content = {"job": str(job), "attempt": str(attempt), "uid": str(JOB_UID), "gid": str(JOB_GID),
                   "user": "", "nodelist": "n[1-2]", "stdout": str(log), **changes}  # fmt: skip
        (self.folder / "run" / "jobs" / f"{job}.json").write_text(json.dumps(content))
        return log


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that the jobs' user may look into: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="node-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def running_node(folder: Path, munge_socket: str, more: str = "") -> Iterator[Node]:
    """A node whose agent says that it is well; that no ERROR is in its log is checked at the end."""
    made = Node(folder, munge_socket)
    made.start(more)
    try:
        assert made.verdict("OK"), (folder / "agent.log").read_text()
        yield made
    finally:
        assert made.agent is not None
        made.agent.terminate()
        status = made.agent.wait(PATIENCE_S)
        made.daemon.stop()
        os.close(made.log)
    assert status == 0
    assert [line for line in (folder / "agent.log").read_text().splitlines() if " ERROR " in line] == []
