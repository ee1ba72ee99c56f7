"""The processes of a job: which are its tasks, whose they are, and what may not be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.agent.probes.tasks import answer_of, answers, tasks_of

UID = os.getuid()  # whose the files of the made-up /proc are


class Proc:
    """A made-up /proc."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self,
        pid: int,
        parent: int,
        command: str,
        state: str = "R",
        *,
        uid: int = UID,
        group: str = "",
        **environment: str,
    ) -> None:
        place = self.folder / str(pid)
        place.mkdir()
        (place / "status").write_text(f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        (place / "cgroup").write_text(f"0::{group}\n")
        (place / "stat").write_text(f"{pid} ({command}) {state} {parent} 1 1 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0 99\n")
        items = {"SLURM_JOB_ID": "5", **environment}
        (place / "environ").write_bytes(b"".join(f"{name}={value}\0".encode() for name, value in items.items()))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    (tmp_path / "self").mkdir()
    return Proc(tmp_path)


def test_a_task_is_named_by_its_rank(proc: Proc) -> None:
    proc.add(10, 1, "slurmstepd")
    proc.add(11, 10, "bash", SLURM_PROCID="3")
    proc.add(12, 11, "python3 (x)", "D", SLURM_PROCID="3")
    proc.add(13, 12, "pt_data_worker", SLURM_PROCID="3")
    proc.add(20, 1, "python", SLURM_JOB_ID="55", SLURM_PROCID="3")
    found = tasks_of(5, proc.folder, ticks=100, uid=UID)
    assert [(task.pid, task.leaf) for task in found] == [(10, False), (11, False), (12, True), (13, False)]
    main = found[2]
    assert (main.rank, main.state, main.cpu_s, main.command, main.parent) == (3, "D", 2.0, "python3 (x)", 11)


def test_with_a_launcher_the_workers_count(proc: Proc) -> None:
    proc.add(11, 1, "python", SLURM_PROCID="1")
    for number in range(2):
        proc.add(20 + number, 11, "python", SLURM_PROCID="1", LOCAL_RANK=str(number), RANK=str(8 + number))
    found = tasks_of(5, proc.folder, ticks=100, uid=UID)
    assert [(task.pid, task.rank, task.leaf) for task in found] == [(11, 1, False), (20, 8, True), (21, 9, True)]


@pytest.mark.parametrize("rank", ["\u00b2", "9" * 5000, "-1", "+1", "1_0"])
def test_a_rank_that_is_no_number_hides_no_task(proc: Proc, rank: str) -> None:
    proc.add(11, 1, "python", LOCAL_RANK="0", RANK=rank)
    assert [(task.pid, task.rank) for task in tasks_of(5, proc.folder, ticks=100, uid=UID)] == [(11, None)]


V1, V2 = "/slurm_n1/uid_1000/job_{}/step_0/task_0", "/system.slice/n1_slurmstepd.scope/job_{}/step_0/user/task_0"


# Slurm 26.05: the run's SLUID stands for the job.
SLUID = "/system.slice/slurmstepd.scope/s0QE9CV4YR{:04}/step_0/user/task_0"


GROUPS = pytest.mark.parametrize("group", [V1, V2, SLUID])


def step_daemon(proc: Proc, pid: int, job: int) -> None:
    group = SLUID.format(job).replace("/user/task_0", "/slurm")
    proc.add(pid, 1, "slurmstepd", "S", uid=0, group=group, SLURM_JOB_ID="")
    (proc.folder / str(pid) / "cmdline").write_bytes(b"slurmstepd: [%d.0]\0" % job)


@GROUPS
def test_a_process_of_another_jobs_control_group_is_not_of_this_one(proc: Proc, group: str) -> None:
    step_daemon(proc, 3, 5)
    step_daemon(proc, 4, 55)
    proc.add(11, 1, "python", SLURM_PROCID="0", group=group.format(5))
    proc.add(12, 1, "stopped", "T", SLURM_PROCID="0", group=group.format(55))
    proc.add(13, 1, "python", SLURM_PROCID="1", group="/user.slice/job_55")  # no group of Slurm's
    assert [task.pid for task in tasks_of(5, proc.folder, ticks=100, uid=UID)] == [11, 13]


def test_a_process_of_another_user_is_not_of_the_job_and_without_a_user_none_is(proc: Proc) -> None:
    proc.add(11, 1, "python", SLURM_PROCID="0")
    assert [task.pid for task in tasks_of(5, proc.folder, ticks=100, uid=UID)] == [11]
    assert tasks_of(5, proc.folder, ticks=100, uid=UID + 1) == []
    assert tasks_of(5, proc.folder, ticks=100, uid=None) == []


def test_a_process_that_calls_itself_a_step_daemon_stands_for_no_job(proc: Proc) -> None:
    """No user gets into a step daemon's group, and whose SLUID it is is not known without one."""
    proc.add(11, 1, "python", SLURM_PROCID="0", group=SLUID.format(5))
    (proc.folder / "11" / "cmdline").write_bytes(b"slurmstepd: [55.0]\0")
    assert [task.pid for task in tasks_of(5, proc.folder, ticks=100, uid=UID)] == [11]


@GROUPS
def test_processes_that_may_not_be_read_are_not_none(proc: Proc, group: str) -> None:
    """No list of processes may be told empty while one is in the job's control group: the job would count as ended."""
    asked = {"job": 5, "uid": UID}
    step_daemon(proc, 4, 55)
    proc.add(20, 1, "python", SLURM_JOB_ID="55", group=group.format(55))
    assert answer_of(asked, proc.folder)["result"]["tasks"] == []  # type: ignore[index]
    proc.add(11, 1, "python", group=group.format(5))
    step_daemon(proc, 3, 5)
    (proc.folder / "11" / "environ").unlink()
    assert "control group of job 5" in str(answer_of(asked, proc.folder).get("error"))


def test_what_the_nodes_network_moved_comes_with_the_processes(proc: Proc, tmp_path: Path) -> None:
    proc.add(11, 1, "python", SLURM_PROCID="0")
    statistics = tmp_path / "sys/class/net/eth0/statistics"
    statistics.mkdir(parents=True)
    (statistics.parent / "device").mkdir()
    for name in ("rx_bytes", "tx_bytes"):
        (statistics / name).write_text("21\n")
    for sysfs, moved in ((tmp_path / "sys", 42), (tmp_path / "nothing", None)):
        first, last = answers({"job": 5, "uid": UID}, proc.folder, sysfs)
        assert last["result"] == {**first["result"], "network_bytes": moved}  # type: ignore[dict-item]


def test_an_adapter_that_does_not_answer_costs_only_what_it_moved(proc: Proc, tmp_path: Path) -> None:
    statistics = tmp_path / "sys/class/net/ib0/statistics"
    statistics.mkdir(parents=True)
    (statistics.parent / "device").mkdir()
    os.mkfifo(statistics / "rx_bytes")  # a read of it never ends
    proc.add(11, 1, "python", SLURM_PROCID="0")
    first = next(answers({"job": 5, "uid": UID}, proc.folder, tmp_path / "sys"))
    assert [task["pid"] for task in first["result"]["tasks"]] == [11]  # type: ignore[index]
