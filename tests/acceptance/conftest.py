"""Labs for acceptance tests: a real Slurm each, brought up by the command that people use."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import slurm_cluster
from stories import watched_logs
from stories.timeline import Story

ROOT = Path(__file__).resolve().parents[2]
ENTRY = ROOT / "deploy" / "lab" / "lab"


class LabUnderTest:
    """The lab's command line, and what a person sees of the cluster."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        self._environment: dict[str, str] | None = None
        self.broken = False  # a story in it ended badly: nothing can be counted there any more
        self.spoilt = False  # a test with it failed, whatever the end of its story found

    def run(self, *arguments: str, check: bool = True, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """``lab COMMAND ... --dir DIR``."""
        # What comes after -- is for sbatch: our own option goes before it.
        cut = arguments.index("--") if "--" in arguments else len(arguments)
        words = [*arguments[:cut], "--dir", str(self.dir), *arguments[cut:]]
        done = subprocess.run(
            ["bash", str(ENTRY), *words],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**os.environ, "SENTINEL_LAB_PYTHON": sys.executable},
        )
        assert not check or done.returncode == 0, f"lab {' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    def inject(self, *arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run("inject", *arguments, "--json").stdout.splitlines()]

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.run("status", "--json").stdout))

    def environment(self) -> dict[str, str]:
        """What ``lab env`` exports; asked once, since it stays the same while the lab is up."""
        if self._environment is None:
            exports = self.run("env").stdout.splitlines()
            pairs = (line.removeprefix("export ").partition("=") for line in exports)
            self._environment = {**os.environ, **{name: shlex.split(value)[0] for name, _, value in pairs}}
        return self._environment

    def slurm(self, *command: str, timeout_s: float = 120) -> str:
        """One of Slurm's own commands against this lab; jobs are submitted as those of ``lab submit``."""
        if command[0] == "sbatch":
            from lab.account import account

            command = ("sbatch", *account(sys.executable).sbatch, *command[1:])
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=self.environment()
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def submit(self, *arguments: str) -> int:
        return int(self.run("submit", *arguments).stdout)

    def wait_job(self, job: int, words: str, timeout_s: float = 240) -> None:
        """Wait until `scontrol show job` says `words` of a job."""
        show = ("scontrol", "show", "job", str(job))
        until(lambda: words in self.slurm(*show), timeout_s, lambda: f"{words!r} in:\n{self.slurm(*show)}")

    def log(self, job: int) -> str:
        found = list((self.dir / "shared").glob(f"*-{job}.out"))
        return found[0].read_text(encoding="utf-8") if found else ""

    def wait_log(self, job: int, text: str, timeout_s: float = 240) -> str:
        until(lambda: text in self.log(job), timeout_s, lambda: f"{text!r} in the job's log:\n{self.log(job)[-3000:]}")
        return self.log(job)

    def standstill(self, job: int) -> str:
        """The job's log once nothing is added to it any more: what was printed before a fault may still be on its way."""
        seen = [self.log(job)]

        def still() -> bool:
            time.sleep(2)
            seen.append(self.log(job))
            return seen[-1] == seen[-2]

        until(still, 120, lambda: f"the job to stand still:\n{seen[-1][-1000:]}")
        return seen[-1]

    def cancel(self, job: int) -> None:
        """Cancel and wait until the nodes are free, so that tests do not wait for each other."""
        self.slurm("scancel", str(job))
        until(lambda: not self.slurm("squeue", "-h", "-o", "%i").strip(), 240, lambda: self.slurm("squeue"))


def until(check: Callable[[], bool], timeout_s: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:.0f} s: {what()}")
        time.sleep(0.2)


def need_slurm() -> None:
    absent = slurm_cluster.missing()
    if absent:
        pytest.skip(f"needs a real Slurm; {absent}")


@pytest.fixture(scope="session")
def made() -> list[LabUnderTest]:
    """Every lab that was brought up."""
    return []


@pytest.fixture(scope="session")
def new_lab(made: list[LabUnderTest]) -> Iterator[Callable[..., LabUnderTest]]:
    """Bring up a further lab: ``new_lab("--nodes", "2", ...)``; all are taken down at the end."""
    need_slurm()

    def bring_up(*arguments: str) -> LabUnderTest:
        base = Path(tempfile.mkdtemp(prefix="lab-"))  # short, for the socket path; pytest's own folders are too deep
        base.chmod(0o755)  # jobs are not root's
        lab = LabUnderTest(base / "l")
        made.append(lab)
        lab.run("up", *arguments)
        return lab

    yield bring_up
    for lab in made:
        take_down(lab)


def take_down(lab: LabUnderTest) -> None:
    if lab.dir.exists():
        lab.run("down")
    if lab.dir.parent.exists():
        shutil.rmtree(lab.dir.parent)  # perhaps the lock of a killed `lab up`


@pytest.fixture(scope="session")
def lab(new_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    """Slurm alone, three nodes of eight GPUs; tests leave no job behind."""
    return new_lab("--nodes", "3", "--gpus", "8", "--no-sentinel")


class Stages:
    """Labs with Sentinel that stories share: one for each way of bringing it up, and a new one after a story went wrong."""

    def __init__(self, new_lab: Callable[..., LabUnderTest]) -> None:
        self._new_lab = new_lab
        self._labs: dict[tuple[str, ...], LabUnderTest] = {}

    def lab(self, *arguments: str) -> LabUnderTest:
        found = self._labs.get(arguments)
        if found is not None and (found.broken or found.spoilt):
            take_down(found)
            found = None
        if found is None:
            found = self._labs[arguments] = self._new_lab(*arguments)
            # Stories follow one another faster than failures on a real cluster do: only those about the breaker have it.
            # And eight agents on two busy cores tell the last lines of a log later than those of nodes of their own.
            changes = {"drain_count = 100": "drain_count = 100\nbreaker_nodes = 1000"}
            Story(found).restart_daemon(changes | {"[judgement]\n": "[judgement]\nlog_settle_s = 4.0\n"})
            found.broken = False
        return found

    def drop(self, *arguments: str) -> None:
        """No story needs it any more."""
        found = self._labs.pop(arguments, None)
        if found is not None:
            take_down(found)


@pytest.fixture(scope="session")
def stages(new_lab: Callable[..., LabUnderTest]) -> Stages:
    return Stages(new_lab)


@pytest.fixture
def story(stages: Stages) -> Iterator[Story]:
    """A story in the lab that most share: eight nodes of four GPUs, Sentinel acting."""
    with Story(stages.lab("--nodes", "8", "--gpus", "4")) as story:
        yield story


@pytest.fixture
def fresh(stages: Stages) -> Iterator[Story]:
    """A story in a lab without a past: nodes and jobs that failed before count for judgements."""
    small = ("--nodes", "4", "--gpus", "2")
    stages.drop(*small)
    with Story(stages.lab(*small)) as story:
        yield story
    stages.drop(*small)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and "made" in getattr(item, "funcargs", {}):
        for lab in item.funcargs["made"]:
            lab.spoilt = True
        kept = watched_logs.keep(item.nodeid, [lab.dir for lab in item.funcargs["made"]])
        report.sections.append(("logs", f"kept in {kept}"))
    return report


@pytest.fixture(autouse=True)
def nothing_wrong_in_the_logs(made: list[LabUnderTest]) -> Iterator[None]:
    """After every test: no ERROR line and no traceback in what daemons and agents wrote during it."""
    before = watched_logs.lengths([lab.dir for lab in made])
    yield
    found = watched_logs.wrong_lines([lab.dir for lab in made], before)
    if found:
        for lab in made:
            lab.broken = True
        pytest.fail("in the logs of Sentinel:\n" + "\n".join(found[:60]))
