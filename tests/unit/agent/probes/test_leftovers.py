"""Processes that an ended job left: whose they are, what they hold, and who is never touched. /proc is made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.probes import leftovers, places
from sentinel.agent.probes.collect import Bundle
from sentinel.agent.probes.finding import file_system
from sentinel.agent.probes.job_processes import Groups
from sentinel.agent.probes.leftovers import end, gpu_uuids, left_behind

ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="optional: gives files to another user, which only root can")


class Proc:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int, uid: int = 1000, *, command: str = "python", state: str = "S", holds: tuple[str, ...] = (),
            **environment: str) -> None:  # fmt: skip
        place = self.folder / str(pid)
        (place / "fd").mkdir(parents=True)
        numbers = " ".join(["0"] * 17 + [str(pid * 10)])
        (place / "stat").write_text(f"{pid} ({command}) {state} 1 {numbers}\n")
        (place / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in environment.items()))
        for number, device in enumerate(holds):
            (place / "fd" / str(number)).symlink_to(device)
        if uid != os.getuid():
            os.chown(place, uid, uid)

    def gpu(self, minor: int, uuid: str) -> None:
        place = self.folder / "driver" / "nvidia" / "gpus" / f"0000:{minor:02x}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t A GPU\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    (tmp_path / "self").mkdir()
    return Proc(tmp_path)


def found(proc: Proc, **changes: Any) -> dict[int, Any]:
    arguments = {"job": 7, "uid": 1000, "gpus": [0, 1], "node": "n1", **changes}
    made = left_behind(arguments.pop("job"), arguments.pop("uid"), arguments.pop("gpus"), proc=proc.folder, **arguments)
    return {item.pid: item for item in made}


@ROOT_ONLY
def test_by_the_job_in_its_environment_with_the_gpus_it_holds(proc: Proc) -> None:
    proc.gpu(1, "GPU-one")
    proc.add(10, command="a (b) c", state="D", holds=("/dev/nvidia1", "/dev/nvidiactl", "/dev/null"), SLURM_JOB_ID="7")
    proc.add(11, SLURM_JOB_ID="77")
    proc.add(12, SLURM_JOB_ID="7", SLURMD_NODENAME="n2")
    proc.add(13, uid=0, SLURM_JOB_ID="7")
    proc.add(14, uid=1001, SLURM_JOB_ID="7")  # su within the job: still the job's
    (proc.folder / "14/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n")
    (item, other) = found(proc).values()
    assert (item.pid, item.command, item.state, item.gpus, item.uuids) == (10, "a (b) c", "D", (1,), ("GPU-one",))
    assert (other.pid, other.uid) == (14, 1001)


@pytest.mark.parametrize(
    ("groups", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", 7),
        ("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/user.slice/slurm/job_8", 7),
        ("9:pids:/\n8:memory:/slurm/uid_1000/job_7/step_0/task_0\n1:name=systemd:/slurm/job_8", 7),
        ("0::/kubepods/pod1/slurm_n1/uid_1000/job_7", 7),
        ("0::/user.slice/user-5.slice/user@5.service/slurm/job_7/x", None),
        ("1:name=systemd:/user.slice/user-5.slice/user@5.service/a/slurmstepd.scope/job_7\n0::/", None),
        ("0::/user.slice/a\n1:pids:/slurm/uid_1000/job_7", 7),
    ],
)
def test_a_control_group_that_a_user_made_is_no_jobs(tmp_path: Path, groups: str, job: int | None) -> None:
    """Below user.slice users name theirs as they like: a process stood in for one of another user's job."""
    (tmp_path / "cgroup").write_text(f"{groups}\n")
    assert Groups(tmp_path).job_of(tmp_path) == job


@ROOT_ONLY
def test_a_process_that_wiped_its_environment_is_known_by_the_gpu(proc: Proc) -> None:
    proc.add(10, holds=("/dev/nvidia0",))
    proc.add(11, holds=("/dev/nvidia5",))  # not the job's GPU
    proc.add(12, uid=1001, holds=("/dev/nvidia0",))  # not the job's user
    proc.add(13)
    proc.add(14, holds=("/dev/nvidia0",), SLURM_JOB_ID="8")  # of another job
    assert list(found(proc)) == [10]


@ROOT_ONLY
@pytest.mark.parametrize("others", [{8: 1000}, {8: None}])
def test_not_where_its_owner_has_another_job_here(proc: Proc, others: dict[int, int | None]) -> None:
    proc.add(10, holds=("/dev/nvidia0",))
    assert found(proc, others=others) == {}
    assert list(found(proc, others={8: 1001})) == [10]
    assert found(proc, uid=None) == {}, "whose job it was is not known"


def test_what_is_torn_or_gone_is_passed_over(proc: Proc) -> None:
    (proc.folder / "20").mkdir()
    (proc.folder / "21").mkdir()
    (proc.folder / "21" / "stat").write_text("21 (x")
    (proc.folder / "driver" / "nvidia" / "gpus" / "x").mkdir(parents=True)
    (proc.folder / "driver" / "nvidia" / "gpus" / "x" / "information").write_text("Device Minor: N/A\n\nGPU UUID\n")
    assert found(proc) == {}
    assert gpu_uuids(proc.folder) == {}


def child(code: str) -> subprocess.Popen[bytes]:
    made = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert made.stdout is not None
    made.stdout.readline()
    return made


def seen(process: subprocess.Popen[bytes]) -> Any:
    item = leftovers._process(Path("/proc") / str(process.pid))
    assert item is not None
    return item


def test_term_is_enough_for_most_and_kill_for_the_rest() -> None:
    kind = child("import time; print(1, flush=True); time.sleep(60)")
    hard = child("import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)")
    try:
        (one,), (other,) = end([seen(kind)], 60.0), end([seen(hard)], 0.1)
        assert (one.ended, other.ended) == ("TERM", "KILL")
        assert (kind.wait(60), hard.wait(60)) == (-15, -9)
    finally:
        for process in (kind, hard):
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def test_a_pid_that_is_another_process_by_now_is_left_alone() -> None:
    process = child("import time; print(1, flush=True); time.sleep(60)")
    try:
        import dataclasses

        (done,) = end([dataclasses.replace(seen(process), began="1")], 0.1)
        assert done.ended == "no"
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@ROOT_ONLY
def test_where_dumps_will_lie(proc: Proc) -> None:
    mine = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    proc.add(10, HOME="/home/ada", TMPDIR="relative", **mine)
    proc.add(11, HOME="/home/ada", TORCH_FR_DUMP_TEMP_FILE="/d/a b_", TORCHELASTIC_ERROR_FILE="/e/error.json", **mine)
    proc.add(12, TORCH_NCCL_DEBUG_INFO_TEMP_FILE="/old_", XDG_CACHE_HOME="/c", **mine)
    proc.add(13, uid=1001, TORCH_FR_DUMP_TEMP_FILE="/not/his", **mine)
    proc.add(14, TORCH_FR_DUMP_TEMP_FILE="/other/node", SLURM_JOB_ID="7", SLURMD_NODENAME="n2")
    proc.add(15, TORCH_FR_DUMP_TEMP_FILE="/other/job", SLURM_JOB_ID="8", SLURMD_NODENAME="n1")
    proc.add(16, TORCH_FR_DUMP_TEMP_FILE="/" + "x" * 5000, **mine)
    assert places.places_of(7, 1000, "n1", proc.folder) == {
        "dumps": ["/d/a b_", "/old_"], "errors": ["/e/error.json"], "homes": ["/home/ada"], "caches": ["/c"],
        "temporary": [],
    }  # fmt: skip


def test_the_file_system_of_a_folder(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    table = tmp_path / "mountinfo"
    table.write_text(
        "torn\n22 1 0:1 / /x rw - tmpfs tmpfs rw\n"
        f"30 1 {os.major(device)}:{os.minor(device)} / /data rw,relatime shared:1 - nfs4 server:/data rw\n"
    )
    assert file_system(str(tmp_path), table) == "nfs4"
    assert file_system("/nowhere", table) == ""
    assert file_system(str(tmp_path), tmp_path / "none") == ""


@ROOT_ONLY
def test_what_names_an_ended_job_and_is_not_its_users_is_not_left_of_it(proc: Proc) -> None:
    proc.add(10, SLURM_JOB_ID="7")
    proc.add(11, uid=1001, holds=("/dev/nvidia0",), SLURM_JOB_ID="7")
    proc.add(12, SLURM_JOB_ID="7")
    (proc.folder / "12/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_8/step_0/user/task_0\n")
    assert list(found(proc)) == [10]


_OF_JOB = {"node": "n1", "job": 7, "attempt": 0, "began_s": 0.0, "ended_s": 1.0, "others": {}}


def test_a_job_that_is_here_again_loses_no_process(tmp_path: Path) -> None:
    """A requeued job's new processes have the same id in their environment and control group."""
    again = tmp_path / "7.json"
    again.write_text("{}")
    process = child("import time; print(1, flush=True); time.sleep(60)")
    try:
        assert end([seen(process)], 60.0, again) == []
        bundle = Bundle(tmp_path / "bundle", {**_OF_JOB, "here_again": str(again)})
        bundle._leftovers()
        assert bundle._left == [] and process.poll() is None
    finally:
        process.kill()
        process.communicate()


@ROOT_ONLY
def test_a_program_that_acts_as_root_is_of_who_began_it(proc: Proc) -> None:
    """Found as an attack: su, waiting for a password with a GPU's file that it had inherited, was nobody's."""
    for pid, uid in ((10, 1000), (11, 0)):
        proc.add(pid, uid=0, holds=("/dev/nvidia1",), SLURM_JOB_ID="7")
        (proc.folder / str(pid) / "status").write_text(f"Name:\tsu\nUid:\t{uid}\t0\t0\t0\n")
    assert [(pid, item.uid) for pid, item in found(proc).items()] == [(10, 1000)]
