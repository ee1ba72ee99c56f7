"""``sentinel run`` as a process, with an srun and a scontrol that only note how they are called."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stories.timeline import until

SRUN = """#!/bin/sh
echo "$SLURM_NNODES/${SLURM_NTASKS:-} $*" >> "$NOTES"
case $* in *" fail"*) exit 7 ;; *" wait"*) trap 'exit 143' TERM; while :; do sleep 0.1; done ;; esac
"""


class Script:
    """The batch script of job 8801 on n1 to n4, of which it trains on three."""

    def __init__(self, folder: Path) -> None:
        self.orders, self.notes, self.log = folder / "orders", folder / "notes", folder / "log"
        self.orders.mkdir(mode=0o755)
        self.process: subprocess.Popen[bytes] | None = None
        for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho n1; echo n2; echo n3; echo n4\n")):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "NOTES": str(self.notes),
            "SENTINEL_ORDERS": str(self.orders),
            "SENTINEL_JOB": "8801",
            "SENTINEL_ATTEMPT": "0",
            "SLURM_JOB_ID": "8801",
            "SLURM_JOB_NODELIST": "n[1-4]",
            "SLURM_NTASKS": "8",
        }

    def begin(self, *arguments: str, wait_s: float = 20.0, **more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "sentinel", "run", "--nodes", "3", "--wait", f"{wait_s}", "--", *arguments]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, env={**self.environment, **more}, stdout=log)
        return self.process

    def order(self, run: int, nodes: str, *, job: int = 8801, attempt: int = 0) -> None:
        text = f"SENTINEL_JOB={job}\nSENTINEL_ATTEMPT={attempt}\nSENTINEL_RUN={run}\nSENTINEL_NODES={nodes}\n"
        (self.orders / "new").write_text(text)
        (self.orders / "new").replace(self.orders / "8801.env")

    def called(self) -> list[str]:
        return self.notes.read_text().splitlines() if self.notes.exists() else []


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    made = Script(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait(120)


def test_it_trains_on_the_first_nodes_and_ends_with_srun(script: Script) -> None:
    assert script.begin("srun", "--mpi=none", "train").wait(120) == 0
    assert script.called() == ["3/6 --job-name=sentinel-run-0 --nodes=3 --nodelist=n1,n2,n3 --mpi=none train"]


def test_after_a_failure_it_starts_again_as_it_is_ordered(script: Script) -> None:
    script.begin("srun", "fail")
    until(lambda: len(script.called()) == 1, lambda: f"the first run: {script.called()}")
    script.order(1, "n1,n3,n4")
    until(lambda: len(script.called()) == 2, lambda: f"the second run: {script.called()}")
    assert script.called()[1] == "3/6 --job-name=sentinel-run-1 --nodes=3 --nodelist=n1,n3,n4 --overlap fail"


def test_without_an_order_it_ends_with_the_status_of_srun(script: Script) -> None:
    script.order(1, "n1,n3,n9")  # a node that the job does not have
    assert script.begin("srun", "fail", wait_s=1.0).wait(120) == 7
    script.order(1, "n1,n3,n4", attempt=1)
    assert script.begin("srun", "fail", wait_s=1.0).wait(120) == 7
    script.order(1, "n1,n3,n4", job=8802)
    assert script.begin("srun", "fail", wait_s=1.0).wait(120) == 7
    script.order(1, "n9\nSENTINEL_RESUME_PATH=/ckpt\u2028SENTINEL_NODES=n1")  # a name in a shared folder is no line
    assert script.begin("srun", "fail", wait_s=1.0).wait(120) == 7
    script.order(1, "n1,n3,n4")
    for mode in (0o757, 0o775):  # others may write there
        script.orders.chmod(mode)
        assert script.begin("srun", "fail", wait_s=1.0).wait(120) == 7
    assert len(script.called()) == 6


def test_where_nobody_orders_it_waits_for_nobody(script: Script) -> None:
    process = script.begin("srun", "fail", SENTINEL_ORDERS="")
    assert process.wait(120) == 7
    assert "not restarted in its allocation" in script.log.read_text()


def test_it_takes_the_orders_of_its_own_attempt_whatever_the_job_that_submitted_it_was(script: Script) -> None:
    script.order(1, "n1,n3,n4")
    script.begin("srun", "fail", SLURM_RESTART_COUNT="1")
    until(lambda: len(script.called()) == 2, lambda: f"the second run: {script.called()}")


def test_where_the_attempt_is_not_known_it_takes_no_order(script: Script) -> None:
    script.order(1, "n1,n3,n4")
    for inherited in ({"SENTINEL_JOB": "8800"}, {"SENTINEL_ATTEMPT": ""}):
        assert script.begin("srun", "fail", **inherited).wait(120) == 7
        assert "not restarted in its allocation" in script.log.read_text()


def test_a_signal_ends_it_with_its_step(script: Script) -> None:
    process = script.begin("srun", "wait")
    until(lambda: len(script.called()) == 1, lambda: "the run to begin")
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143


def test_what_cannot_be_said_is_refused(script: Script) -> None:
    for arguments in (("python", "train.py"), ()):
        assert script.begin(*arguments).wait(120) == 2
    del script.environment["SLURM_JOB_ID"]
    assert script.begin("srun", "train").wait(120) == 2
    assert script.called() == []
