"""Jobs that no prolog reported: Slurm is asked about one after the other, and the job file is written as a prolog does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.collectors.jobs import Jobs, read_job
from sentinel.agent.collectors.unreported_jobs import MOST_PAUSE_S, UnreportedJobs
from sentinel.agent.probes.ask_slurm import running_here, write_job_file
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings, Slurm
from sentinel.agent.settings import Jobs as JobSettings

UID = os.getuid() or 1000
ANSWER = {
    "JobID": "7", "UserID": f"{UID}", "GroupID": "100", "RestartCnt": "2", "State": "RUNNING",
    "StartTime": "2026-03-01T12:00:00", "BatchFlag": "1", "UserName": "ada", "NodeList": "n[1-2]",
    "StdOut": "/data/%x-%j.out", "WorkDir": "/data",
}  # fmt: skip


class Node:
    """The agent's part, without its child."""

    def __init__(self, every_s: float = 60.0, squeue: str = "squeue") -> None:
        self.attempts: dict[int, int] = {}
        self.programs: list[Program] = []
        self.busy, self.now_s = False, 0.0
        settings = AgentSettings(run_dir="/run/s", jobs=JobSettings(unreported_s=every_s), slurm=Slurm(squeue=squeue))
        self.unreported = UnreportedJobs(
            "n1", settings, self, self.program, lambda: self.attempts, lambda: self.now_s  # type: ignore[arg-type]
        )  # fmt: skip

    def program(self, name: str, module: str, arguments: Any, **rest: Any) -> Program:
        return Program(name, [module], arguments, **rest)

    def start(self, program: Program) -> bool:
        if not self.busy:
            self.programs.append(program)
        return not self.busy

    def ends(self, job_file: str | None) -> None:
        """The last child says this, and ends."""
        program = self.programs[-1]
        program.on_message({"job_file": job_file} if job_file else {"error": "Socket timed out"})
        program.on_end(Ending(program.name, 0, False, "", ""))

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


@pytest.mark.parametrize("answer", ["root's: none of its files are touched", "not here", "written"])
def test_a_job_that_cannot_be_followed_is_asked_about_less_and_less_often(answer: str) -> None:
    """The daemon goes on to miss it for as long as it runs."""
    node, asked_s = Node(), []
    for at_s in range(0, 4 * 3600, 30):
        node.now_s = float(at_s)
        if node.heard([[7, 0]]):
            asked_s.append(at_s)
            node.ends(answer)
    pauses = [after - before for before, after in pairwise(asked_s)]
    assert pauses == [60, 120, 240, 480, 960, 1920, MOST_PAUSE_S, MOST_PAUSE_S]
    assert node.heard([[7, 1]]) == [7], "the next attempt may be somebody else's case"
    node.attempts = {7: 1}
    node.now_s += MOST_PAUSE_S
    assert node.heard([[7, 1]]) == []


def test_an_answer_that_did_not_come_is_asked_for_as_often_as_before() -> None:
    node = Node()
    for _ in range(5):
        assert node.heard([[7, 0]]) == [7]
        node.ends(None)
        node.now_s += 60.0


def test_jobs_that_are_missed_no_longer_take_no_memory() -> None:
    node = Node()
    for number in range(200):
        node.heard([[number, 0]])
        node.ends("not here")
        node.now_s += 60.0
    assert len(node.unreported._asked) <= 2


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


def test_the_others_follow_at_once() -> None:
    """A node's jobs are told once in half a minute, and a node of many cores has dozens."""
    node = Node()
    assert node.heard([[7, 0], [8, 1], [9, 0]]) == [7]
    for job in (8, 9):
        node.ends("written")
        assert node.programs[-1].arguments["job"] == job  # type: ignore[index]
    node.ends("written")
    assert len(node.programs) == 3


def test_where_slurm_does_not_answer_the_others_wait_for_the_next_answer() -> None:
    node = Node()
    assert node.heard([[7, 0], [8, 1]]) == [7]
    node.ends(None)
    assert len(node.programs) == 1
    assert node.heard([[7, 0], [8, 1]]) == [8]


@pytest.fixture
def followed(site: Site) -> Jobs:
    """The agent's jobs on a node without hooks: one that Slurm told of, and that is followed."""
    site.says({**ANSWER, "NodeList": "n1", "RestartCnt": "0"})
    assert site.write() == "written"
    bench = Node()
    settings = AgentSettings(node="n1", run_dir=str(site.run), state=str(site.run.parent / "state"))
    jobs = Jobs("n1", settings, bench, bench.program, lambda _: 1)  # type: ignore[arg-type]
    jobs.scan()
    assert jobs.running() == [{"job": 7, "attempt": 0, "gpus": "", "found_by": "squeue"}]
    assert list(jobs.jobs) == [7] and [program.name for program in bench.programs] == ["log:7.0"]
    return jobs


def test_a_job_that_no_epilog_ends(site: Site, followed: Jobs) -> None:
    """Else where no hooks are installed each job would leave a follower, and the node would be busy for ever."""
    followed.unreported.heard({"over": [[7, 0]]})
    followed.scan()
    assert not followed.jobs
    assert (site.run / "ended" / "7.0").exists(), "its follower is not told that the log ends"


@pytest.mark.parametrize("over", [[[7, 1]], [[8, 0]], [[7]], "7", None, [["7", 0]]], ids=str)
def test_another_job_that_is_over(followed: Jobs, over: object) -> None:
    followed.unreported.heard({"over": over})
    followed.scan()
    assert list(followed.jobs) == [7]


def test_a_prologs_file_is_left_to_its_epilog(site: Site, followed: Jobs) -> None:
    told = json.loads(site.path.read_text())
    del told["found_by"]
    site.path.write_text(json.dumps(told))
    followed.unreported.heard({"over": [[7, 0]]})
    followed.scan()
    assert list(followed.jobs) == [7]


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
        script = f"""#!{sys.executable} -SE
import os, sys
os.system({before!r})
how = dict(argument[2:].split("=", 1) for argument in sys.argv[1:] if "=" in argument)
for row in {list(rows)!r}:
    row = {{name: os.fsencode(value) for name, value in row.items()}}
    if "format" in how:
        line = how["format"].encode().replace(b"%A", row["JobID"]).replace(b"%N", row["NodeList"])
    else:
        columns = (column.split(":") for column in how["Format"].split(","))
        line = b"".join(row[name][:int(width)].ljust(int(width)) for name, width in columns)
    sys.stdout.buffer.write(line + b"\\n")
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


@pytest.mark.parametrize("name", ["x.out", "\udcff.out", "größe.out", "a\u2028b\x0c\x1c.out"], ids=ascii)
def test_a_path_is_as_its_user_wrote_it(site: Site, name: str) -> None:
    site.says({**ANSWER, "StdOut": f"/data/{name}"})
    assert site.write() == "written"
    assert read_job(site.path).stdout == f"/data/{name}"


def test_a_job_without_a_script_has_no_log(site: Site) -> None:
    site.says({**ANSWER, "BatchFlag": "0", "StdOut": "/data/slurm-7.out"})
    assert site.write() == "written"
    assert read_job(site.path).stdout == ""


def test_columns_are_counted_in_bytes(site: Site) -> None:
    site.says({**ANSWER, "UserName": "zoë"})
    assert site.write() == "written"
    assert (read_job(site.path).user, read_job(site.path).nodelist) == ("zoë", "n[1-2]")


def test_an_hour_that_comes_twice(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """squeue prints the time of its own zone; at the end of summer time 02:30 does not say which one it is."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    site.says({**ANSWER, "StartTime": "NOW"})
    text = site.squeue.read_text().replace('b"NOW"', "b'NOW'").replace(
        "os.fsencode(value)", 'os.fsencode(value.replace("NOW", __import__("time").strftime("%Y-%m-%dT%H:%M:%S", '
        '__import__("time").localtime(1_792_891_800))))')  # fmt: skip
    site.squeue.write_text(text)
    try:
        assert site.write() == "written"
        assert site.path.stat().st_mtime == 1_792_891_800  # 25 October 2026, 01:30 UTC: the second 02:30
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_large_array_takes_little_memory(site: Site) -> None:
    """The id of an array is that of its last task, too: squeue prints a line for each of its tasks."""
    site.says(ANSWER)
    script = site.squeue.read_text()
    others = "+ [{**row, 'JobID': str(100 + number), 'NodeList': 'n9'} for row in %r for number in range(4000)]" % [
        ANSWER
    ]
    keep = "for row in rows if 'nodelist' not in how or row['NodeList'] != 'n9'"
    script = script.replace(f"for row in {[ANSWER]!r}:", f"rows = {[ANSWER]!r} {others}\nfor row in (row {keep}):")
    site.squeue.write_text(script)
    tracemalloc.start()
    try:
        assert site.write() == "written"
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert read_job(site.path).stdout == "/data/%x-%j.out"


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


def test_a_prolog_that_comes_meanwhile_keeps_its_file(site: Site) -> None:
    site.says(ANSWER, before=f"echo '{json.dumps({'job': '7', 'attempt': '2', 'gpus': '0,1'})}' > {site.path}")
    site.path.parent.mkdir(exist_ok=True)
    late = site.squeue.read_text().replace("os.system(", '"StdOut" in sys.argv[-2] and os.system(')
    site.squeue.write_text(late)
    assert site.write() == "reported"
    assert read_job(site.path).gpus == "0,1"
    assert [path.name for path in site.path.parent.iterdir()] == ["7.json"]


def test_others_cannot_write_it_whatever_the_umask_is(site: Site) -> None:
    site.says(ANSWER)
    before = os.umask(0)
    try:
        assert site.write() == "written"
    finally:
        os.umask(before)
    assert site.path.stat().st_mode & 0o777 == 0o644


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
