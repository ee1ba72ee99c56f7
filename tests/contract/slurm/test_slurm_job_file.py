"""The job file that an agent writes where no prolog did, from what a real squeue prints."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.slurm_cluster import SEARCH, Cluster

from sentinel.agent.collectors.jobs import first_node, read_job
from sentinel.agent.probes.ask_slurm import running_here, write_job_file

pytestmark = pytest.mark.slurm
USER = 65534 if os.geteuid() == 0 else os.getuid()  # no file of root's jobs is touched
NAME = "0 0 RUNNING n3"
SQUEUE = shutil.which("squeue", path=SEARCH) or "squeue"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for name in ("jobs", "ended"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def job(real_slurm: Cluster) -> Iterator[int]:
    """A job of two nodes, in its second attempt; its name and its log's path are made to confuse."""
    own = [] if os.geteuid() else [f"--uid={USER}", f"--gid={USER}"]
    number = real_slurm.submit(
        "exec sleep 600\n", *own, "--requeue", "--nodes=2", "--nodelist=n[1-2]", "--chdir=/tmp",
        f"--job-name={NAME}", "--output=/tmp/%x-%j.out",
    )  # fmt: skip

    def state() -> str:
        return real_slurm.command("squeue", "-h", "-j", f"{number}", "-o", "%T").strip()

    real_slurm.wait(lambda: state() == "RUNNING", "the first attempt runs")
    real_slurm.command("scontrol", "requeue", f"{number}")
    real_slurm.start_requeued(number)
    real_slurm.wait(lambda: state() == "RUNNING", "the second attempt runs")
    yield number
    real_slurm.command("scancel", f"{number}")
    Path(f"/tmp/{NAME}-{number}.out").unlink(missing_ok=True)
    real_slurm.wait(lambda: set(real_slurm.node_states().values()) == {"IDLE"}, "all nodes idle")


def test_it_says_what_a_prolog_would(real_slurm: Cluster, run_dir: Path, job: int) -> None:
    assert write_job_file(run_dir, job, "n2", SQUEUE, str(real_slurm.conf), 60.0) == "written"
    path = run_dir / "jobs" / f"{job}.json"
    found = read_job(path)
    assert (found.job, found.attempt, found.uid, found.gid) == (job, 1, USER, USER if USER == 65534 else os.getgid())
    assert (found.stdout, found.work_dir) == ("/tmp/%x-%j.out", "/tmp")
    here = running_here(job, "n2", SQUEUE, str(real_slurm.conf), 60.0)
    assert here is not None and here.has_script
    assert found.nodelist == "n[1-2]" and first_node(found.nodelist) == "n1"
    assert path.stat().st_mtime == _start_s(real_slurm, job)
    assert write_job_file(run_dir, job, "n2", SQUEUE, str(real_slurm.conf), 60.0) == "reported"


def test_not_on_other_nodes_and_not_after_its_end(real_slurm: Cluster, run_dir: Path, job: int) -> None:
    asked = (SQUEUE, str(real_slurm.conf), 60.0)
    assert running_here(job, "n1", *asked) is not None
    assert running_here(job, "n3", *asked) is None
    real_slurm.command("scancel", f"{job}")
    real_slurm.wait(lambda: running_here(job, "n1", *asked) is None, "Slurm says that it does not run")
    assert write_job_file(run_dir, job, "n1", *asked) == "not here"
    assert write_job_file(run_dir, 4_000_000, "n1", *asked) == "not here"
    assert not list((run_dir / "jobs").iterdir())


def test_a_task_of_an_array_and_a_job_without_a_script(real_slurm: Cluster, run_dir: Path) -> None:
    """The id of the array is that of its last task; squeue prints all of them."""
    own = [] if os.geteuid() else [f"--uid={USER}", f"--gid={USER}"]
    asked = (SQUEUE, str(real_slurm.conf), 60.0)
    array = real_slurm.submit(
        "exec sleep 600\n",
        *own,
        "--array=1-2",
        "--chdir=/tmp",
        "--nodelist=n1",
        "--exclusive=user",
        "--output=/tmp/%A_%a.out",
    )

    def running() -> list[int]:
        return [int(job) for job in real_slurm.command("squeue", "-h", "-t", "R", "-o", "%A").split()]

    try:
        real_slurm.wait(lambda: array in running(), "the last task runs")
        for job in running():
            assert write_job_file(run_dir, job, "n1", *asked) == "written"
            assert read_job(run_dir / "jobs" / f"{job}.json").stdout == "/tmp/%A_%a.out"
    finally:
        real_slurm.command("scancel", f"{array}")
    real_slurm.wait(lambda: not running(), "the array is over")
    real_slurm.command(
        "salloc", "--no-shell", "--chdir=/tmp", "--nodelist=n1"
    )  # as who runs the test: munge would refuse
    real_slurm.wait(lambda: bool(running()), "the allocation is ready")
    (job,) = running()
    try:
        here = running_here(job, "n1", *asked)
        assert here is not None and not here.has_script
    finally:
        real_slurm.command("scancel", f"{job}")
        real_slurm.wait(lambda: set(real_slurm.node_states().values()) == {"IDLE"}, "all nodes idle")


def _start_s(cluster: Cluster, job: int) -> float:
    (found,) = [row for row in json.loads(cluster.command("squeue", "--json"))["jobs"] if row["job_id"] == job]
    start = found["start_time"]
    return float(start["number"] if isinstance(start, dict) else start)
