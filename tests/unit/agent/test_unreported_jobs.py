"""Jobs that no prolog reported: Slurm is asked about one after the other, and the job file is written as a prolog does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.collectors.jobs import read_job
from sentinel.agent.collectors.unreported_jobs import UnreportedJobs
from sentinel.agent.probes.ask_slurm import running_here, write_job_file
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings, Jobs, Slurm

UID = os.getuid() or 1000
ANSWER = {
    "JobID": "7", "UserID": f"{UID}", "GroupID": "100", "RestartCnt": "2", "State": "RUNNING",
    "StartTime": "2026-03-01T12:00:00", "UserName": "ada", "NodeList": "n[1-2]", "StdOut": "/data/%x-%j.out",
    "WorkDir": "/data",
}  # fmt: skip


class Node:
    """The agent's part, without its child."""

    def __init__(self, every_s: float = 60.0, squeue: str = "squeue") -> None:
        self.attempts: dict[int, int] = {}
        self.programs: list[Program] = []
        self.busy, self.now_s = False, 0.0
        settings = AgentSettings(run_dir="/run/s", jobs=Jobs(unreported_s=every_s), slurm=Slurm(squeue=squeue))
        self.unreported = UnreportedJobs(
            "n1", settings, self, self.program, lambda: self.attempts, lambda: self.now_s  # type: ignore[arg-type]
        )  # fmt: skip

    def program(self, name: str, module: str, arguments: Any, **rest: Any) -> Program:
        return Program(name, [module], arguments, **rest)

    def start(self, program: Program) -> bool:
        if not self.busy:
            self.programs.append(program)
        return not self.busy

    def heard(self, unreported: object) -> list[int]:
        """The jobs about which Slurm is asked then."""
        before = len(self.programs)
        self.unreported.heard({"unreported": unreported})
        return [program.arguments["job"] for program in self.programs[before:]]  # type: ignore[misc]


def test_slurm_is_asked_once_a_minute_about_each() -> None:
    node = Node()
    assert node.heard([[7, 0], [8, 1]]) == [7]
    assert node.heard([[7, 0], [8, 1]]) == [8]
    assert node.heard([[7, 0], [8, 1]]) == []
    node.now_s = 60.0
    assert node.heard([[7, 0], [8, 1]]) == [7]


def test_the_childs_answer_or_its_silence_is_taken() -> None:
    node = Node()
    for said in ({"job_file": "written"}, {"error": "Socket timed out"}, {}):
        node.now_s += 60.0
        assert node.heard([[7, 0]]) == [7]
        if said:
            node.programs[-1].on_message(said)
        node.programs[-1].on_end(Ending("unreported-job", 0, not said, "", ""))


def test_while_one_is_asked_about_the_others_wait() -> None:
    node = Node()
    node.busy = True
    assert node.heard([[7, 0]]) == []
    node.busy = False
    assert node.heard([[7, 0]]) == [7]


def test_what_is_known_is_not_asked_about() -> None:
    node = Node()
    node.attempts = {7: 2}
    assert node.heard([[7, 1]]) == node.heard([[7, 2]]) == []
    assert node.heard([[7, 3]]) == [7]


@pytest.mark.parametrize("node", [Node(every_s=0.0), Node(squeue="")], ids=["by setting", "no squeue"])
def test_not_at_all(node: Node) -> None:
    assert node.heard([[7, 0]]) == []


@pytest.mark.parametrize(
    "odd", [None, 5, {"7": 0}, [7], [[7]], [["7", 0]], [[True, 0]], [[-1, 0]], [[2**40, 0]], [[7, 0, 0]], [[7, 0.0]]]
)
def test_a_daemons_nonsense_asks_nothing(odd: object) -> None:
    assert Node().heard(odd) == []


# ------------------------------------------------------------------------------------------------ the child


class Site:
    """A node's folder and a squeue that answers as Slurm 22.05 does."""

    def __init__(self, folder: Path) -> None:
        self.run, self.squeue = folder / "run", folder / "squeue"
        self.path = self.run / "jobs" / "7.json"
        for name in ("jobs", "ended"):
            (self.run / name).mkdir(parents=True)

    def says(self, *rows: dict[str, str], before: str = "") -> None:
        """Answer with these rows; ``before`` runs in the shell first."""
        script = f"""#!{sys.executable}
import subprocess, sys
subprocess.run({before!r}, shell=True)
columns = [argument for argument in sys.argv if argument.startswith("--Format=")][0][9:].split(",")
for row in {list(rows)!r}:
    print("".join(row[name][:int(width)].ljust(int(width)) for name, width in (column.split(":") for column in columns)))
"""
        self.squeue.write_text(script)
        self.squeue.chmod(0o755)

    def write(self, job: int = 7, node: str = "n1") -> str:
        return write_job_file(self.run, job, node, str(self.squeue), "", 30.0)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_file_is_as_a_prologs(site: Site) -> None:
    site.says(ANSWER)
    assert site.write() == "written"
    job = read_job(site.path)
    assert (job.job, job.attempt, job.uid, job.gid, job.user) == (7, 2, UID, 100, "ada")
    assert (job.nodelist, job.stdout, job.work_dir) == ("n[1-2]", "/data/%x-%j.out", "/data")
    began = running_here(7, "n1", str(site.squeue), "", 30.0)
    assert began is not None and site.path.stat().st_mtime == began.began_s
    assert [path.name for path in site.path.parent.iterdir()] == ["7.json"]


def test_bytes_of_a_path_that_are_no_text_stay(site: Site) -> None:
    site.says({**ANSWER, "StdOut": "/data/x.out"})
    script = site.squeue.read_text().replace("import subprocess", "sys = __import__('sys'); sys.stdout.reconfigure("
                                             "errors='surrogateescape', encoding='utf-8'); import subprocess")  # fmt: skip
    site.squeue.write_text(script.replace("/data/x.out", "/data/\\udcff.out"))
    assert site.write() == "written"
    assert os.fsencode(read_job(site.path).stdout) == b"/data/\xff.out"


@pytest.mark.parametrize(
    "changes",
    [{"State": "PENDING", "NodeList": ""}, {"State": "COMPLETING"}, {"State": "COMPLETED"}, {"NodeList": "n[2-3]"},
     {"JobID": "8"}],
    ids=lambda changes: ",".join(changes.values()),
)  # fmt: skip
def test_a_job_that_does_not_run_here(site: Site, changes: dict[str, str]) -> None:
    site.says({**ANSWER, **changes})
    assert site.write() == "not here"
    assert not site.path.exists()


def test_the_right_one_of_several_rows(site: Site) -> None:
    site.says({**ANSWER, "JobID": "6", "UserID": "4242", "StdOut": "/other"}, ANSWER)
    assert site.write() == "written"
    assert (read_job(site.path).uid, read_job(site.path).stdout) == (UID, "/data/%x-%j.out")


def test_a_job_of_roots(site: Site) -> None:
    site.says({**ANSWER, "UserID": "0"})
    assert site.write().startswith("root's")
    assert not site.path.exists()


def test_a_path_cannot_imitate_an_owner(site: Site) -> None:
    forged = "/x\n7".ljust(23) + "0".ljust(20)
    site.says({**ANSWER, "StdOut": forged})
    assert site.write() == "written"
    assert (read_job(site.path).uid, read_job(site.path).stdout) == (UID, "/x")


@pytest.mark.parametrize(("attempt", "stays"), [(1, False), (2, True), (3, True)])
def test_a_file_that_is_there(site: Site, attempt: int, stays: bool) -> None:
    site.says(ANSWER)
    site.path.write_text(json.dumps({"job": "7", "attempt": f"{attempt}", "uid": "5"}))
    assert site.write() == ("reported" if stays else "written")
    assert read_job(site.path).uid == (5 if stays else UID)


def test_an_epilog_that_comes_meanwhile_leaves_no_file_behind(site: Site) -> None:
    site.says(ANSWER, before=f"touch {site.run}/ended/7.2")
    assert site.write() == "ended"
    assert not site.path.exists()


@pytest.mark.parametrize(
    "changes", [{"UserID": "nobody"}, {"RestartCnt": "N/A"}, {"StartTime": "Unknown"}, {"NodeList": "n[1"}],
    ids=lambda changes: ",".join(changes.values()),
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_an_error(site: Site, changes: dict[str, str]) -> None:
    site.says({**ANSWER, **changes})
    with pytest.raises(ValueError, match="cannot be read"):
        site.write()
    assert not site.path.exists()


def test_slurm_that_does_not_have_it_and_slurm_that_does_not_answer(site: Site) -> None:
    site.squeue.write_text("#!/bin/sh\necho slurm_load_jobs error: Invalid job id specified >&2; exit 1\n")
    site.squeue.chmod(0o755)
    assert site.write() == "not here"
    site.squeue.write_text("#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n")
    with pytest.raises(ValueError, match="Unable to contact"):
        site.write()
    site.squeue.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(subprocess.TimeoutExpired):
        write_job_file(site.run, 7, "n1", str(site.squeue), "", 0.05)
