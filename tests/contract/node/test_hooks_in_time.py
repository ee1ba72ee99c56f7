"""The hooks where the interpreter, the package, the resume folder or the job's PATH lies on a file system that hangs."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHELLS = [["dash"], ["bash", "--posix"]]
DETACH, FORCE = 2, 1  # of umount2
TASK, PROLOG, EVENT = "prolog/task-sentinel", "prolog/10-sentinel", "epilog/slurmctld-sentinel"


class HungMount:
    """A FUSE file system that takes each request and answers none: no signal ends who waits for it, as with a hard mount."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self._device = os.open("/dev/fuse", os.O_RDWR)
        self._libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if self._libc.mount(b"hung", self.path.encode(), b"fuse", 0, options) != 0:
            os.close(self._device)
            pytest.skip("optional: no file system can be mounted here")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        """INIT is answered, without which the kernel keeps all other requests to itself."""
        (number,) = struct.unpack_from("<8xQ", os.read(self._device, 1 << 17))
        flags = struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 12, 10, 1 << 16, 1, 0, 0, 0, *[0] * 7)
        os.write(self._device, struct.pack("<IiQ", 16 + len(flags), 0, number) + flags)
        try:
            while True:
                os.read(self._device, 1 << 17)
        except OSError:
            os.close(self._device)  # it is unmounted

    def release(self) -> None:
        """Let go whoever waits. A process that dies does the same."""
        self._libc.umount2(self.path.encode(), FORCE | DETACH)
        self._thread.join()


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[HungMount]:
    if os.getuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("optional: mounts a file system, which only root can")
    (tmp_path / "hung").mkdir()
    made = HungMount(tmp_path / "hung")
    yield made
    made.release()


Ended = tuple[int, str, str]  # status, stdout, stderr


def run(shell: list[str], file: str, folder: Path, release: Callable[[], None], environment: dict[str, str]) -> Ended:
    """To the end of the hook and of its output, for which Slurm waits, too."""
    (folder / "run").mkdir(exist_ok=True)
    process = subprocess.Popen(
        [*shell, str(ROOT / file)],
        env={
            "PATH": os.environ["PATH"],
            "SENTINEL_HOOK_CONF": "/dev/null",
            "SENTINEL_RUN_DIR": str(folder / "run"),
            "SENTINEL_URL": "http://127.0.0.1:1",
            "SENTINEL_DCGM_HOST": "127.0.0.1:1",
            "SLURM_JOB_ID": "31",
            **dict.fromkeys(("SENTINEL_START_S", "SENTINEL_PROLOG_S", "SENTINEL_EVENT_S", "SENTINEL_RESUME_S"), "0.2"),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        start_new_session=True,
    )
    try:
        said, trouble = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        release()
        process.kill()
        process.communicate()
        pytest.fail(f"{file} waits for a file system that does not answer")
    return process.returncode, said, trouble


def fresh(folder: Path, word: str) -> None:
    (folder / "run").mkdir()
    uptime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
    (folder / "run" / "verdict").write_text(f"{word} {int(time.time())} ok fine\n{uptime_s}\n")


def noted(folder: Path) -> None:
    """The prolog has said which attempt of the job this is."""
    (folder / "run" / "jobs").mkdir(parents=True)
    (folder / "run" / "jobs" / "31.json").write_text('{"job":"31","attempt":"0"}\n')


@pytest.mark.parametrize("shell", SHELLS)
def test_a_task_begins_without_its_resume_folder(hung: HungMount, tmp_path: Path, shell: list[str]) -> None:
    """Every task of every job asks for a resume point, of whom few have one."""
    noted(tmp_path)
    resume = f"{hung.path}/resume"
    status, said, trouble = run(shell, TASK, tmp_path, hung.release, {"SENTINEL_RESUME": resume})
    assert (status, trouble) == (0, "")
    assert said.endswith(f"export SENTINEL_JOB=31\nexport SENTINEL_ATTEMPT=0\nexport SENTINEL_ORDERS={resume}\n")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_task_gets_its_resume_point_whatever_its_path_leads_through(
    hung: HungMount, tmp_path: Path, shell: list[str]
) -> None:
    noted(tmp_path)
    (tmp_path / "31.env").write_text("SENTINEL_JOB=31\nSENTINEL_ATTEMPT=0\nSENTINEL_RESUME_STEP=40")
    where = {
        "SENTINEL_RESUME": str(tmp_path),
        "SENTINEL_RESUME_S": "50",
        "PATH": f"{hung.path}/bin:{os.environ['PATH']}",
        "TMPDIR": f"{hung.path}/tmp",
    }
    status, said, _ = run([f"/bin/{shell[0]}", *shell[1:]], TASK, tmp_path, hung.release, where)
    assert (status, "export SENTINEL_RESUME_STEP=40\n" in said) == (0, True)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["SENTINEL_HOME", "SENTINEL_PYTHON"])
@pytest.mark.parametrize(("file", "word"), [(PROLOG, "OK"), (PROLOG, ""), (EVENT, "")])
def test_a_job_begins_and_ends_without_the_package(
    hung: HungMount, tmp_path: Path, file: str, word: str, name: str, shell: list[str]
) -> None:
    """With a fresh verdict, too: a name that needs escaping is written by the package."""
    if word:
        fresh(tmp_path, word)
    where = {name: f"{hung.path}/opt/python3", "SLURM_JOB_STDOUT": 'a"b.log'}
    status, said, trouble = run(shell, file, tmp_path, hung.release, where)
    assert (status, said) == (0, "")
    assert file == EVENT or "did not answer in time" in trouble


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("file", [PROLOG, EVENT])
def test_a_package_that_is_late_is_ended(tmp_path: Path, file: str, shell: list[str]) -> None:
    """Not later, when the job's program has the GPUs."""
    started, python = tmp_path / "started", tmp_path / "python3"
    os.mkfifo(started)
    python.write_text(f"#!/bin/sh\nexec 5<> '{started}'\nexec sleep 3600\n")
    python.chmod(0o755)
    ends = os.open(started, os.O_RDONLY | os.O_NONBLOCK)
    status, said, _ = run(
        shell, file, tmp_path, lambda: None, {"SENTINEL_PYTHON": str(python), "SENTINEL_START_S": "2"}
    )
    assert (status, said) == (0, "")
    select.select([ends], [], [], 60)
    assert os.read(ends, 1) == b"", "nobody has it open any more"
    os.close(ends)


@pytest.mark.parametrize("file", [PROLOG, EVENT])
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_it_ends_where_its_signals_are_blocked(tmp_path: Path, file: str, shell: list[str]) -> None:
    """As slurmctld starts its scripts: a shell that waits for a child then waits for a signal that never comes."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE})
    try:
        status, _, _ = run(shell, file, tmp_path, lambda: None, {"SENTINEL_HOME": str(ROOT), "SLURM_JOB_ID": "7"})
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert status == 0


def test_their_deadline_is_the_same() -> None:
    texts = [(ROOT / file).read_text() for file in (TASK, PROLOG, EVENT)]
    found = [re.findall(r"^within\(\) \{.*?^}\n", text, re.DOTALL | re.MULTILINE) for text in texts]
    assert found[0] == found[1] == found[2] and len(found[0]) == 1
