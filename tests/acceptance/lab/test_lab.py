"""The lab itself, without Sentinel: cluster, training job, faults, and that nothing stays behind."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slurm

needs_torch = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch"),
]
JOBS = [pytest.param((), id="torch", marks=needs_torch), pytest.param(("--standin",), id="standin")]
STEP = re.compile(r"^step (\d+) \| loss (\S+) \| step time \d+\.\d{3} s \| \d+ tokens/s$", re.MULTILINE)


def curve(log: str) -> dict[int, set[str]]:
    """step -> the losses that were ever printed for it."""
    losses: dict[int, set[str]] = {}
    for step, loss in STEP.findall(log):
        losses.setdefault(int(step), set()).add(loss)
    return losses


def processes_naming(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                name = (entry / "comm").read_text().strip()
            except OSError:
                continue
            if str(folder).encode() in line:
                found.append(name)
    return found


def nothing_runs_in(folder: Path) -> None:
    """A hook that Slurm started a moment before may still be at its end."""
    deadline = time.monotonic() + 60
    while left := processes_naming(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def requeue(lab, job: int) -> None:
    """As an operator does it by hand, without the two minutes that Slurm waits."""
    lab.slurm("scontrol", "requeue", str(job))
    deadline = time.monotonic() + 240
    while "PENDING" not in lab.slurm("squeue", "-h", "-j", str(job), "-o", "%T"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    time.sleep(2)  # within the same second slurmd takes the new start for the one that was just revoked
    lab.slurm("scontrol", "update", f"JobId={job}", "StartTime=now")


def test_the_cluster_is_a_real_slurm(lab):
    status = lab.status()
    assert [node["node"] for node in status["slurm"]] == ["n1", "n2", "n3"]
    assert all(state.startswith("running") for state in status["services"].values())
    said = lab.slurm("srun", "-N3", "--gres=gpu:8", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES")
    assert sorted(said.split("\n")) == ["", *(f"{name} 0,1,2,3,4,5,6,7" for name in ("n1", "n2", "n3"))]


@pytest.mark.parametrize("kind", JOBS)
def test_a_requeued_job_continues_its_curve_and_its_log(lab, kind):
    run = f"curve{len(kind)}"
    pace = ("--nodes", "3", "--run", run, "--step-time", "0.1", "--local-every", "5", "--global-every", "20")
    job = lab.submit(*pace, *kind)
    try:
        lab.wait_log(job, "step 23 |")
        requeue(lab, job)
        log = lab.wait_log(job, "resumed from step")
        resumed = int(re.search(r"resumed from step (\d+) \(global\)", log)[1])
        assert resumed >= 20 and resumed % 20 == 0
        log = lab.wait_log(job, f"step {resumed + 15} |")
    finally:
        lab.cancel(job)
    assert "starting from scratch" in log  # the first attempt's lines are still there
    assert "attempt 0" in log and "attempt 1" in log
    first, second = (set(curve(part)) for part in log.split("attempt 1"))
    assert resumed + 1 in second
    assert first & second or max(first) == resumed, "the attempts have no step in common to compare"
    losses = curve(log)
    assert all(len(losses[step]) == 1 for step in losses), "a repeated step had another loss"
    assert float(min(losses[resumed + 10])) < float(min(losses[1]))
    assert f"saved step {resumed} (global)" in log


@pytest.mark.parametrize("kind", JOBS)
def test_a_job_resumes_from_the_nodes_own_disks_where_taskprolog_says(lab, kind, monkeypatch):
    run = f"local{len(kind)}"
    pace = ("--nodes", "3", "--run", run, "--step-time", "0.1", "--local-every", "5", "--global-every", "1000")
    job = lab.submit(*pace, "--steps", "12", *kind)
    try:
        first = curve(lab.wait_log(job, "done: 12 steps"))
    finally:
        lab.cancel(job)
    for node in ("n1", "n2", "n3"):
        assert (lab.dir / "nodes" / node / "nvme" / run / "step-10").is_dir()
    # Given in the environment of sbatch: with --export=ALL,... Slurm 26.05 looks up the environment of nobody, who has none.
    path = f"{lab.dir}/nodes/%N/nvme/{run}/step-10"
    for name, value in {"STEP": "10", "TIER": "local", "PATH": path}.items():
        monkeypatch.setenv(f"SENTINEL_RESUME_{name}", value)
    again = lab.submit(*pace, "--steps", "14", *kind)
    try:
        log = lab.wait_log(again, "done: 14 steps")
    finally:
        lab.cancel(again)
    assert "resumed from step 10 (local)" in log
    assert "Traceback" not in log
    second = curve(log)
    assert min(second) == 11
    assert second[11] == first[11] and second[12] == first[12]


def test_a_stopped_rank_stalls_all_and_goes_on(lab):
    job = lab.submit("--nodes", "2", "--run", "hang", "--standin", "--step-time", "0.05")
    try:
        lab.wait_log(job, "step 5 |")
        (fault,) = lab.inject("hang", "--rank", "1")
        assert (fault["job"], fault["rank"], fault["node"]) == (job, 1, "n2")
        stalled = lab.standstill(job)
        assert [active["fault"] for active in lab.status()["faults"]] == ["hang"]
        lab.run("inject", "hang", "--undo")
        last = max(curve(stalled))
        lab.wait_log(job, f"step {last + 5} |")
        assert lab.status()["faults"] == []
    finally:
        lab.cancel(job)


def test_a_crash_is_a_traceback_of_that_rank_and_ends_the_job(lab):
    job = lab.submit("--nodes", "2", "--run", "crash", "--standin", "--step-time", "0.05")
    lab.wait_log(job, "step 5 |")
    (fault,) = lab.inject("crash", "--rank", "1")
    assert (fault["rank"], fault["attempt"]) == (1, 0)
    log = lab.wait_log(job, "KeyError: 'labels'")
    assert "Traceback (most recent call last)" in log
    # The traceback is in the log a moment before Slurm ends the job: who cancels now would see CANCELLED.
    lab.wait_job(job, "JobState=FAILED")
    lab.cancel(job)


@pytest.mark.deep
def test_a_lost_gpu_stalls_its_rank(lab):
    job = lab.submit("--nodes", "2", "--run", "lost", "--standin", "--step-time", "0.05")
    try:
        lab.wait_log(job, "step 5 |")
        lab.inject("xid", "--node", "n1", "--gpu", "4", "--xid", "79")
        assert "79, pid='<unknown>'" in (lab.dir / "nodes" / "n1" / "kmsg").read_text()
        lab.standstill(job)
        lab.run("inject", "xid", "--undo")
    finally:
        lab.cancel(job)


@pytest.mark.deep
def test_a_frozen_controller_answers_nobody_until_it_goes_on(lab):
    lab.inject("controller-frozen")
    try:
        assert lab.status()["slurm"] is None
        assert lab.status()["services"]["slurmctld"] == "stopped"
    finally:
        lab.run("inject", "controller-frozen", "--undo")
    assert len(lab.status()["slurm"]) == 3


def test_a_crashed_node_takes_its_disk_along_and_comes_back_empty(new_lab):
    lab = new_lab("--nodes", "2", "--gpus", "1", "--no-sentinel")
    job = lab.submit("--nodes", "2", "--standin", "--step-time", "0.05", "--local-every", "5")
    lab.wait_log(job, "saved step 5 (local)")
    disk = lab.dir / "nodes" / "n2" / "nvme"
    assert list(disk.iterdir())
    (fault,) = lab.inject("node-crash", "--node", "n2")
    assert fault["killed"] >= 3  # slurmd, slurmstepd, the rank
    assert list(disk.iterdir()) == []
    assert list(Path(fault["nvme_moved_to"]).iterdir())
    assert lab.status()["services"]["slurmd-n2"] == "not running"
    lab.slurm("scancel", "--signal=KILL", "--full", str(job))
    lab.run("inject", "node-crash", "--undo")
    lab.cancel(job)
    assert lab.slurm("srun", "-w", "n2", "echo", "back", timeout_s=300).strip() == "back"


@pytest.mark.deep
def test_a_full_disk_is_the_jobs_own_error_and_room_comes_back(lab):
    job = lab.submit("--nodes", "2", "--run", "full", "--standin", "--step-time", "0.05", "--local-every", "5")
    lab.wait_log(job, "saved step 5 (local)")
    (fault,) = lab.inject("disk-full", "--rank", "1")
    assert fault["node"] == "n2"
    log = lab.wait_log(job, "[Errno 28] No space left on device")
    assert "Traceback" in log
    lab.cancel(job)
    lab.run("inject", "disk-full", "--undo")
    assert lab.status()["faults"] == []
    if os.geteuid() != 0:
        return  # the disk was not really full
    disk = lab.dir / "nodes" / "n2" / "nvme"
    for _ in range(2):
        room = os.statvfs(disk)
        assert room.f_bavail * room.f_frsize > 1 << 28, "later jobs have a disk, too"
        lab.inject("disk-full", "--node", "n2")
        assert os.statvfs(disk).f_bavail == 0
        lab.run("inject", "disk-full", "--undo")


@pytest.mark.deep
@pytest.mark.skipif(os.geteuid() != 0, reason="freezing a file system needs root")
def test_storage_that_blocks_stalls_the_job_without_an_error(lab):
    if lab.dir.stat().st_dev == (lab.dir / "shared").stat().st_dev:
        pytest.skip("optional: no loop device here, so the shared folder is no file system of its own")
    job = lab.submit("--nodes", "2", "--run", "blocked", "--standin", "--step-time", "0.05", "--global-every", "5")
    try:
        lab.wait_log(job, "saved step 5 (global)")
        lab.inject("storage")
        try:
            stalled = lab.standstill(job)
        finally:
            lab.run("inject", "storage", "--undo")
        lab.wait_log(job, f"step {max(curve(stalled)) + 10} |")
        assert "Error" not in lab.log(job)
    finally:
        lab.cancel(job)


def test_two_labs_at_once_and_down_leaves_nothing(lab, new_lab):
    other = new_lab("--nodes", "2", "--gpus", "1", "--no-sentinel")
    assert len(lab.status()["slurm"]) == 3
    assert len(other.status()["slurm"]) == 2
    job = other.submit("--nodes", "2", "--standin")
    other.wait_log(job, "step 3 |")
    other.inject("hang")
    other.run("down")
    assert not other.dir.exists()
    nothing_runs_in(other.dir)
    assert str(other.dir) not in Path("/proc/self/mountinfo").read_text()
    assert len(lab.status()["slurm"]) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_a_cut_off_node_of_an_isolated_lab_is_out_of_reach(new_lab):
    lab = new_lab("--nodes", "2", "--gpus", "2", "--no-sentinel", "--isolated")
    names = lab.slurm("srun", "-N2", "hostname").split()
    assert sorted(names) == ["n1", "n2"]
    bridge = f"br-{lab.status()['cluster']}"
    assert Path("/sys/class/net", bridge).exists()
    lab.inject("node-cut", "--node", "n2")
    job = lab.submit("--nodes", "1", "--standin", "--steps", "3", "--", "--nodelist=n1")
    lab.wait_log(job, "done: 3 steps")
    (fault,) = lab.status()["faults"]
    assert (fault["fault"], fault["node"]) == ("node-cut", "n2")
    lab.run("inject", "node-cut", "--undo")
    # Should Slurm have asked for it just then, it asks again after 100 s.
    assert lab.slurm("srun", "-w", "n2", "hostname", timeout_s=300).strip() == "n2"
    lab.run("down")
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    assert bridge not in links


def kill_up(lab, there: str) -> None:
    """`lab up`, killed as soon as a file is there; once more where it had come up before the signal came."""
    entry = Path(__file__).resolve().parents[3] / "deploy" / "lab" / "lab"
    for _ in range(50):
        up = subprocess.Popen(
            ["bash", str(entry), "up", "--nodes", "2", "--no-sentinel", "--dir", str(lab.dir)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "SENTINEL_LAB_PYTHON": sys.executable},
        )
        deadline = time.monotonic() + 120
        while not (lab.dir / there).exists():
            assert up.poll() is None and time.monotonic() < deadline, there
            time.sleep(0.002)
        up.send_signal(signal.SIGKILL)
        up.wait()
        if not (lab.dir / "up").exists():
            return
        lab.run("down")
    pytest.fail(f"`lab up` was always faster than the signal after {there}")


def test_what_a_killed_up_leaves_is_cleaned_by_down_or_the_next_up(new_lab):
    lab = new_lab("--nodes", "2", "--no-sentinel")
    lab.run("down")
    for there, then in (("lab.json", "down"), ("etc/slurm.conf", "up"), ("pids/slurmctld", "down")):
        kill_up(lab, there)
        if then == "up":
            lab.run("up", "--nodes", "2", "--no-sentinel")
            assert len(lab.status()["slurm"]) == 2
        if lab.dir.exists():
            lab.run("down")
        nothing_runs_in(lab.dir)
