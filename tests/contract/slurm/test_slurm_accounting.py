"""``sentinel import`` asks a real slurmdbd over MariaDB: what a site lost last month, from jobs that a real Slurm ran.

Accounting dates what it keeps by the clock; the jobs are put into last month, and made longer, in the database itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from servers import slurm_accounting
from servers.slurm_cluster import SEARCH, Cluster

from sentinel.adapters.slurm.accounting import read

pytestmark = pytest.mark.slurm
DAY_S = 86400
ECC = "[rank3]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
BUG = 'Traceback (most recent call last):\\n  File \\"train.py\\", line 8\\nIndexError: list index out of range'


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster before Sentinel: its jobs by what became of them."""

    cluster: Cluster
    jobs: dict[str, int]
    settings: Path

    @property
    def logs(self) -> Path:
        return self.cluster.folder / "jobs" / "logs"

    def imported(self, *options: str) -> subprocess.CompletedProcess[str]:
        here = str(Path(__file__).resolve().parents[3])
        return subprocess.run(
            [sys.executable, "-m", "sentinel", "import", "--slurm-accounting", *options], cwd=self.logs.parent,
            env={
                **self.cluster.environment, "PYTHONPATH": here, "SENTINEL_CONFIG": str(self.settings), "TZ": "Asia/Kolkata",
            },
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def answer(self, *options: str) -> dict[str, Any]:
        done = self.imported("--json", *options)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    why = slurm_accounting.missing(SEARCH)
    if why:
        pytest.skip(f"needs slurm: {why}")
    settings = tmp_path_factory.mktemp("settings") / "sentinel.toml"
    with Cluster(3, accounting=True) as cluster:
        settings.write_text(f'[slurm]\nconf = "{cluster.conf}"\n')
        site = Site(cluster, _jobs(cluster), settings)
        _into_last_month(cluster, site.jobs)
        yield site


def _jobs(cluster: Cluster) -> dict[str, int]:
    gpus, log = "--gres=gpu:8", "--output=logs/slurm-%j.out"
    elsewhere = "--exclude=n3"  # it is to go down under one job
    (cluster.folder / "jobs" / "logs").mkdir()
    jobs = {
        "ecc": cluster.submit(f"echo '{ECC}'\nexit 1\n", gpus, elsewhere, "--no-requeue", "--output=logs/train-%j.out"),
        "memory": cluster.submit("exit 0\n", log, elsewhere, "--no-requeue"),  # holds no GPU
        "array": cluster.submit(
            f'if [ "$SLURM_ARRAY_TASK_ID" = 1 ]; then echo "{BUG}"; else echo "{ECC}"; fi\nexit 1\n',
            gpus, elsewhere, "--array=1-2", "--no-requeue", "--output=logs/sweep-%A_%a.out",
        ),
        "by_script": cluster.submit(
            '[ -n "$SLURM_RESTART_COUNT" ] && exit 0\nscontrol requeue "$SLURM_JOB_ID"\nsleep 60\n', gpus, log, elsewhere,
            "--requeue",
        ),
        "node": cluster.submit(
            '[ -n "$SLURM_RESTART_COUNT" ] && exit 0\nsleep 600\n', gpus, log, "--requeue", "--nodelist=n3"
        ),
        "cancelled": cluster.submit("sleep 600\n", gpus, log, "--nodelist=n2"),
    }  # fmt: skip

    def running(name: str) -> bool:
        return cluster.command("squeue", "-h", "-j", str(jobs[name]), "-o", "%t", check=False).strip() == "R"

    cluster.wait(lambda: running("node"), "the job on n3 runs")
    cluster.command("scontrol", "update", "nodename=n3", "state=down", "reason=test")
    cluster.wait(lambda: running("cancelled"), "the job to cancel runs")
    cluster.command("scancel", str(jobs["cancelled"]))
    cluster.command("scontrol", "update", "nodename=n3", "state=resume")
    # Elsewhere: the end of the first attempt's script may reach slurmctld late, and counts for whatever attempt runs there.
    cluster.command("scontrol", "update", f"jobid={jobs['node']}", "reqnodelist=n1")
    for name in ("node", "by_script"):
        cluster.start_requeued(jobs[name])
    cluster.wait(lambda: not cluster.command("squeue", "-h").strip(), "all jobs over")
    jobs["running"] = cluster.submit("sleep 600\n", gpus, log, "--nodelist=n2")
    cluster.wait(lambda: running("running"), "the last job runs")
    assert cluster.accounting is not None
    kept = "SELECT SUM(time_end > 0), SUM(state = 1 AND tres_alloc != '') FROM contract_job_table"
    # ecc, memory, two tasks, two attempts of by_script and of node, cancelled; and the one that runs
    accounting = cluster.accounting
    cluster.wait(lambda: accounting.sql(kept).split() == ["9", "1"], "all attempts in the database")
    return jobs


def _into_last_month(cluster: Cluster, jobs: dict[str, int]) -> None:
    """What is over was ten days ago, and took ten hours; the job that runs began 40 days ago."""
    assert cluster.accounting is not None
    times = ("time_submit", "time_start", "time_end")

    def sooner(days: int) -> str:
        return ", ".join(f"{name} = IF({name} = 0, 0, {name} - {days * DAY_S})" for name in times)

    cluster.stop("slurmctld")  # it sends what it knows of running jobs again
    cluster.accounting.sql(
        f"UPDATE contract_job_table SET {sooner(10)} WHERE time_end > 0;"
        "UPDATE contract_job_table SET time_end = time_end + 36000 WHERE time_end > 0;"
        f"UPDATE contract_job_table SET {sooner(40)} WHERE id_job = {jobs['running']};"
        "UPDATE contract_job_table SET time_eligible = time_submit"  # 0 for a moment after a start: sacct leaves those out
    )


def test_a_new_site_sees_what_it_lost_last_month_and_what_sentinel_would_have_done(site: Site) -> None:
    answer = site.answer("--since", "30d", "--logs", str(site.logs))
    causes = answer["by_cause"]
    assert {cause: lost["failures"] for cause, lost in causes.items()} == {
        "gpu_memory_ecc": 2, "user_code": 1, "node_failure": 1,
    }, site.cluster.command("sacct", "--allusers", "--duplicates", "--starttime=now-30days")  # fmt: skip
    assert answer["failures"] == 4 and answer["logs"] == 3  # of one nothing is written
    assert causes["gpu_memory_ecc"]["sentinel_would"] == {"resume_excluding": 2}
    assert causes["gpu_memory_ecc"]["lost_gpu_hours_at_most"] == pytest.approx(160, rel=0.02)
    # Its log is there and empty: Slurm's word counts.
    assert causes["node_failure"]["sentinel_would"] == {"resume_excluding": 1}
    # Somebody's script put it back into the queue: whether after a failure, nobody has written down.
    assert answer["requeued"] == {"attempts": 1, "lost_gpu_hours_at_most": pytest.approx(80, rel=0.02)}


def test_gpu_hours_count_within_the_time_that_was_asked_for(site: Site) -> None:
    """A job that has run for 40 days holds its 8 GPUs for 30 of the last 30 days, and the history says so."""
    out = site.logs.parent / "history.json"
    answer = site.answer("--since", "30d", "--out", str(out))
    ended = 8 * 8 * 10  # eight attempts with GPUs, of ten hours
    assert answer["gpu_hours"] == pytest.approx(ended + 30 * 24 * 8, rel=0.01)
    document = json.loads(out.read_text())
    assert document["gpu_s"] == pytest.approx(3600 * answer["gpu_hours"], rel=1e-6)
    assert site.answer("--since", "5d")["failures"] == 0  # those were ten days ago


def test_what_sacct_prints_into_a_file_says_the_same(site: Site, tmp_path: Path) -> None:
    from sentinel.adapters.slurm import accounting

    file = tmp_path / "sacct.txt"
    words = [
        "--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2", "--starttime=now-30days",
        f"--format={','.join(accounting.FIELDS)}",
    ]  # fmt: skip
    file.write_text(site.cluster.command("sacct", *words))
    assert not read(file.read_text(), datetime.now(UTC))[1]
    done = subprocess.run(
        [sys.executable, "-m", "sentinel", "import", "--from", str(file), "--logs", str(site.logs), "--json"],
        env={**site.cluster.environment, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["by_cause"] == site.answer("--since", "30d", "--logs", str(site.logs))["by_cause"]


def test_an_accounting_that_is_away_is_not_an_empty_one(site: Site, real_slurm: Cluster, tmp_path: Path) -> None:
    without = tmp_path / "sentinel.toml"
    without.write_text(f'[slurm]\nconf = "{real_slurm.conf}"\n')
    done = Site(real_slurm, {}, without).imported("--json")
    assert done.returncode != 0 and "accounting" in done.stderr and "--from" in done.stderr, done.stderr
    site.cluster.stop("slurmdbd")
    done = site.imported("--json")
    assert done.returncode != 0 and "slurmdbd" in done.stderr and not done.stdout, (done.stdout, done.stderr)
