"""Jobs that come and go, and the states of their processes."""

from __future__ import annotations

import json
import os
import subprocess
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.host.logfile import LogFile
from sentinel.agent.collectors.gpus import plain_pci
from sentinel.agent.collectors.jobs import Jobs, first_node, job_from
from sentinel.agent.collectors.log_path import newest, pattern_of
from sentinel.agent.probes.tasks import answer_of, answers, tasks_of
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings
from sentinel.errors import ProtocolError, Unavailable
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, utc
from sentinel.wire import to_json


@pytest.mark.parametrize(
    ("text", "first"),
    [("n1", "n1"), ("n[1-4]", "n1"), ("gpu[007-010,22]", "gpu007"), ("n[3,1]-ib", "n3-ib"), ("a,b[1-2]", "a"), ("", ""),
     ("rack[1-2]n[3-4]", "rack1n3")],
)  # fmt: skip
def test_the_first_node_is_the_batch_host(text: str, first: str) -> None:
    assert first_node(text) == first


@pytest.mark.parametrize("value", [None, [], {}, {"job": "x"}, {"job": ""}, 7])
def test_what_is_no_job_file(value: Any) -> None:
    with pytest.raises(ProtocolError):
        job_from(value)


class Bench:
    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.stopped: list[str] = []

    def start(self, program: Program) -> bool:
        self.programs.append(program)
        return True

    def stop(self, name: str) -> None:
        self.stopped.append(name)


class Site:
    """A node's folders, and the jobs on it."""

    def __init__(self, folder: Path) -> None:
        self.run, self.state = folder / "run", folder / "state"
        self.kept: list[Evidence] = []
        self.bench = Bench()
        self.jobs = self.restart()

    def restart(self) -> Jobs:
        settings = AgentSettings(node="n1", run_dir=str(self.run), state=str(self.state))

        def program(name: str, _module: str, arguments: Any, **rest: Any) -> Program:
            return Program(name, ["x"], arguments, **rest)

        self.jobs = Jobs("n1", settings, self.bench, program, self.keep)  # type: ignore[arg-type]
        return self.jobs

    def keep(self, item: Evidence) -> int:
        self.kept.append(item)
        return len(self.kept)

    def came(self, job: int = 5, attempt: int = 0, **changes: str) -> None:
        content = {"job": str(job), "attempt": str(attempt), "uid": str(os.getuid()), "nodelist": "n[1-2]",
                   "stdout": "/data/j.out", **changes}  # fmt: skip
        (self.run / "jobs" / f"{job}.json").write_text(json.dumps(content))
        os.utime(self.run / "jobs" / f"{job}.json", ns=(attempt, attempt + 1))
        self.jobs.scan()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_batch_host_follows_the_log(site: Site) -> None:
    site.came(5)
    (started,) = site.bench.programs
    assert started.name == "log:5.0"
    assert started.arguments["path"] == "/data/j.out"
    assert started.restart
    assert site.jobs.running() == [{"job": 5, "attempt": 0, "gpus": "", "found_by": ""}]


def left(site: Site, job: int, code: str) -> None:
    """As the epilog leaves it."""
    (site.run / "ended" / f"{job}.0").write_text(f"{code}\n")
    (site.run / "jobs" / f"{job}.json").unlink()
    site.jobs.scan()


def young(site: Site, job: int = 5) -> None:
    """A job file that is written now."""
    content = {"job": str(job), "attempt": "0", "uid": str(os.getuid()), "nodelist": "n1", "stdout": "/data/j.out"}
    (site.run / "jobs" / f"{job}.json").write_text(json.dumps(content))
    site.jobs.scan()


def test_a_job_that_ends_well_at_once_gets_no_follower(site: Site) -> None:
    young(site)
    assert site.bench.programs == [] and 5 in site.jobs.jobs
    left(site, 5, "0")
    assert site.bench.programs == [] and list((site.run / "ended").iterdir()) == []


@pytest.mark.parametrize("code", ["1", "unknown", ""])
def test_a_job_that_fails_at_once_is_read_to_its_end(site: Site, code: str) -> None:
    young(site)
    left(site, 5, code)
    assert [started.name for started in site.bench.programs] == ["log:5.0"]
    assert (site.run / "ended" / "5.0").exists()


def unseen(site: Site, code: str, **changes: str) -> None:
    """A job that began and ended between two scans: what the epilog left of it, and what the agent makes of that."""
    content = {
        "job": "5",
        "attempt": "0",
        "uid": str(os.getuid()),
        "nodelist": "n1",
        "stdout": "/data/j.out",
        **changes,
    }
    (site.run / "ended" / "5.0").write_text(f"{code}\n")
    site.jobs.ended(job_from(content), time.time())
    site.jobs.scan()


def test_a_job_that_failed_between_two_scans_is_read_to_its_end(site: Site) -> None:
    unseen(site, "1")
    unseen(site, "1")
    assert [started.name for started in site.bench.programs] == ["log:5.0"]
    assert (site.run / "ended" / "5.0").exists()


@pytest.mark.parametrize(
    ("code", "changes"), [("0", {}), ("1", {"nodelist": "n[2-3]"}), ("1", {"stdout": "/dev/null"})]
)
def test_what_need_not_be_read_between_two_scans_is_not(site: Site, code: str, changes: dict[str, str]) -> None:
    unseen(site, code, **changes)
    assert site.bench.programs == [] and list((site.run / "ended").iterdir()) == []


def test_a_job_that_was_read_to_its_end_is_not_read_again(site: Site) -> None:
    young(site)
    left(site, 5, "1")
    site.jobs._heard(site.jobs._following["log:5.0"], {"type": "done"})
    site.jobs.ended(job_from({"job": "5", "attempt": "0", "nodelist": "n1", "stdout": "/data/j.out"}), time.time())
    assert len(site.bench.programs) == 1


@pytest.mark.parametrize("ahead_s", [-3.0, 3600.0])  # the latter: the node's clock was set back since
def test_a_job_that_lives_gets_its_follower(site: Site, ahead_s: float) -> None:
    young(site)
    site.jobs._young["log:5.0"] = (site.jobs.jobs[5], time.time() + ahead_s)
    site.jobs.scan()
    site.jobs.scan()
    assert [started.name for started in site.bench.programs] == ["log:5.0"]


def test_a_job_without_a_log_gets_none(site: Site) -> None:
    site.came(5, stdout="/dev/null")
    site.jobs.scan()
    assert site.bench.programs == [] and site.kept == []


def test_other_nodes_do_not(site: Site) -> None:
    site.came(5, nodelist="n[0-2]")
    assert site.bench.programs == []
    assert list(site.jobs.jobs) == [5]


def test_a_log_whose_place_is_not_known_is_unreadable(site: Site) -> None:
    site.came(5, stdout="")
    assert site.bench.programs == []
    assert [item.kind for item in site.kept] == [Kind.UNREADABLE]


def test_a_name_with_placeholders_becomes_a_pattern(site: Site) -> None:
    site.came(6, stdout="%x-%j.out", work_dir="/data/[run]")
    assert site.bench.programs[0].arguments["path"] == "/data/[[]run]/*-6.out"


def test_a_log_whose_name_is_no_text_is_followed_under_its_bytes(site: Site) -> None:
    """The prolog's shell writes into the job file what the user wrote."""
    raw = (
        f'{{"job":"5","attempt":"0","uid":"{os.getuid()}","nodelist":"n1","stdout":"/data/\x00-%j.out","user":"ada"}}\n'
    )
    (site.run / "jobs" / "5.json").write_bytes(raw.encode().replace(b"\x00", b"\xff\xed\xa0\x80"))
    os.utime(site.run / "jobs" / "5.json", ns=(0, 0))
    site.jobs.scan()
    assert list(site.jobs.jobs) == [5]
    path = site.bench.programs[0].arguments["path"]
    assert os.fsencode(str(path)) == b"/data/\xff\xed\xa0\x80-5.out"
    assert json.loads(json.dumps(path)) == path, "as the follower gets it"


def test_no_width_in_a_users_file_name_costs_more_than_its_digits(site: Site) -> None:
    site.came(6, stdout="/data/%999999999999j-%" + "9" * 5000 + "j-%03j.out")
    assert site.bench.programs[0].arguments["path"] == "/data/0000000006-0000000006-006.out"


@pytest.mark.parametrize("job", ["9" * 5000, "²", "٣" * 20])
def test_a_number_that_is_none_breaks_no_other_job(site: Site, job: str) -> None:
    (site.run / "jobs" / "9.json").write_text(json.dumps({"job": job, "uid": job}))
    site.came(5, uid=job)
    assert list(site.jobs.jobs) == [5] and site.jobs.jobs[5].uid is None


def test_the_end_is_told_to_the_follower(site: Site) -> None:
    site.came(5)
    (site.run / "jobs" / "5.json").unlink()
    site.jobs.scan()
    assert site.jobs.jobs == {}
    assert Path(str(site.bench.programs[0].arguments["ended"])).exists()


def test_the_mark_of_a_job_that_nobody_follows_goes(site: Site) -> None:
    site.came(5, nodelist="n[0-2]")
    (site.run / "ended" / "5.0").write_text("256\n")
    (site.run / "jobs" / "5.json").unlink()
    site.jobs.scan()
    assert list((site.run / "ended").iterdir()) == []
    old, long = site.run / "ended" / "4.0", site.run / "ended" / "6.0.unknown.json"
    for path in (old, long):
        path.touch()
        os.utime(path, (1, 1))
    site.restart().resume()
    assert not old.exists()
    assert long.exists(), "of a job that ran for days; the collector has not read it yet"


def test_a_second_attempt_ends_the_first(site: Site) -> None:
    site.came(5, 0)
    site.came(5, 1)
    assert [program.name for program in site.bench.programs] == ["log:5.0", "log:5.1"]
    assert (site.run / "ended" / "5.0").exists()
    assert not (site.run / "ended" / "5.1").exists()


def test_a_restarted_agent_goes_on_behind_the_last_evidence(site: Site) -> None:
    site.came(5)
    cursor = {"inode": 9, "offset": 120, "line": 7}
    site.bench.programs[0].on_message({"type": "alive", "cursor": cursor})
    site.restart().resume()
    assert site.bench.programs[-1].arguments["cursor"] == cursor


def test_a_job_that_ended_while_the_agent_was_away_is_read_to_its_end(site: Site) -> None:
    site.came(5)
    site.bench.programs[0].on_message({"type": "alive", "cursor": {"inode": 9, "offset": 120, "line": 7}})
    (site.run / "jobs" / "5.json").unlink()
    site.restart().resume()
    last = site.bench.programs[-1]
    assert (last.name, last.arguments["cursor"]["offset"]) == ("log:5.0", 120)  # type: ignore[index]
    assert Path(str(last.arguments["ended"])).exists()
    last.on_message({"type": "done", "cursor": {}})
    assert list((site.state / "jobs").iterdir()) == []
    assert site.bench.stopped == ["log:5.0"]


def test_a_heartbeat_says_how_long_ago_the_end_of_each_log_was_seen(site: Site) -> None:
    assert site.jobs.logs(0) == []
    site.came(5)
    tell = site.bench.programs[0].on_message
    assert site.jobs.logs(0) == [], "not looked at yet: not known"
    tell({"type": "looked", "at_s": time.monotonic() - 3.0})
    (log,) = site.jobs.logs(0)
    assert (log["job"], log["attempt"]) == (5, 0) and 3.0 <= log["looked_ago_s"] < 4.0
    item = Evidence("i", utc(1), utc(1), Source.JOB_LOG, Kind.STEP, Where(job=5, attempt=0), data={"step": 9})
    tell({"type": "evidence", "items": [to_json(item)], "cursor": {}})
    tell({"type": "looked", "at_s": time.monotonic()})
    assert site.jobs.logs(0)[0]["looked_ago_s"] >= 3.0, "the step is not with the daemon: what came before it is"
    assert site.jobs.logs(1)[0]["looked_ago_s"] < 3.0
    tell({"type": "done", "cursor": {}})
    assert site.jobs.logs(1) == []


def test_a_follower_that_hangs_is_evidence(site: Site) -> None:
    site.came(5)
    site.bench.programs[0].on_end(Ending("log:5.0", None, True, "", "D in nfs_wait"))
    assert site.kept[0].kind == Kind.PROBE_HUNG
    assert site.kept[0].trust is Trust.USER, "the job's user may stop it, and chose the file system of the log"
    assert "nfs_wait" in site.kept[0].text


def test_a_broken_job_file_is_passed_over(site: Site) -> None:
    (site.run / "jobs" / "9.json").write_text("{")
    site.jobs.scan()
    site.came(5)
    assert list(site.jobs.jobs) == [5]
    (site.run / "jobs" / "9.json").write_text('{"job": "9", "nodelist": "n7"}')
    site.jobs.scan()
    assert list(site.jobs.jobs) == [5, 9], "it was only half written"


def test_a_job_file_that_goes_between_two_looks_at_it_is_a_job_that_left(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.came(5)
    (file,) = (site.run / "jobs").glob("*.json")
    listed = [file]
    file.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "glob", lambda *_: iter(listed))
        site.jobs.scan()
    site.jobs.scan()
    assert not site.jobs.jobs


def test_pci_addresses_are_one() -> None:
    assert len({plain_pci(text) for text in ("0000:3b:00", "00000000:3B:00.0", "0000:3b:00.0")}) == 1
    assert plain_pci("0001:3b:00") != plain_pci("0000:3b:00")


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


# --- the log -----------------------------------------------------------------------------------------------------------


def test_a_name_with_many_wildcards_is_not_searched_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found as an attack: ``-o /proc/%x/root/proc/%x/root/...`` kept the agent busy until its memory was gone."""
    pattern = pattern_of("/proc/%x/root/proc/%x/root/proc/%x/root/proc/%x/stat", job=1, user="u", node="n1")
    tracemalloc.start()
    try:
        with pytest.raises(OSError, match=r"to be looked at|was looked for"):
            for number in range(60):  # as many processes as a node has at the least
                (tmp_path / f"{number}").mkdir()
                (tmp_path / f"{number}" / "root").symlink_to(tmp_path)
            newest(pattern.replace("/proc", str(tmp_path), 1).replace("/root/proc", "/root"), UID)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_names_are_matched_as_slurm_writes_them(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]*"
    folder.mkdir()
    for name in ("x-5.out", ".hidden-5.out", "x-6.out"):
        (folder / name).write_text("step 1\n")
    pattern = pattern_of(f"{folder}/%x-%j.out", job=5, user="u", node="n1")
    assert newest(pattern, UID) == str(folder / "x-5.out")
    assert newest(pattern_of(f"{folder}/x-%j.out", job=6, user="u", node="n1"), UID) == str(folder / "x-6.out")
    assert newest(pattern_of(f"{tmp_path}/none/%x/x-%j.out", job=6, user="u", node="n1"), UID) is None


def test_a_file_of_another_user_that_matches_is_not_the_log(tmp_path: Path) -> None:
    own = tmp_path / "train-5.out"
    own.write_text("step 1\n")
    os.utime(own, (1.0, 1.0))
    pattern = str(tmp_path / "*-5.out")
    assert newest(pattern, UID) == str(own)
    (tmp_path / "evil-5.out").mkdir()
    assert newest(pattern, UID) == str(own)
    assert newest(pattern, UID + 1) is None, "it is another user's"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_newer_file_of_another_user_does_not_take_the_logs_place(tmp_path: Path) -> None:
    own, evil = tmp_path / "train-5.out", tmp_path / "evil-5.out"
    for path, uid in ((own, 1000), (evil, 1001)):
        path.write_text("step 1\n")
        os.chown(path, uid, uid)
    os.utime(own, (1.0, 1.0))
    assert newest(str(tmp_path / "*-5.out"), 1000) == str(own)


def test_a_link_that_leads_nowhere_hides_no_log(tmp_path: Path) -> None:
    own = tmp_path / "train-5.out"
    own.write_text("step 1\n")
    (tmp_path / "evil-5.out").symlink_to(tmp_path / "nowhere")
    assert newest(str(tmp_path / "*-5.out"), UID) == str(own)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_another_users_link_to_a_file_of_the_users_is_not_the_log(tmp_path: Path) -> None:
    """In a folder that both may write: the other file would be judged, and appended to, as the job's."""
    own, theirs, evil = tmp_path / "train-5.out", tmp_path / "notes.txt", tmp_path / "evil-5.out"
    for path in (own, theirs):
        path.write_text("step 1\n")
        os.chown(path, 1000, 1000)
    os.utime(own, (1.0, 1.0))
    evil.symlink_to(theirs)
    os.chown(evil, 1001, 1001, follow_symlinks=False)
    assert newest(str(tmp_path / "*-5.out"), 1000) == str(own)
    os.chown(evil, 1000, 1000, follow_symlinks=False)
    assert newest(str(tmp_path / "*-5.out"), 1000) == str(evil), "the user's own link is the user's matter"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("link", [True, False])
def test_a_folder_of_another_user_that_matches_leads_to_no_log(tmp_path: Path, link: bool) -> None:
    """``/shared/%x/out``: through such a folder the user's other files would be judged, and appended to, as the job's."""
    own, theirs, evil = tmp_path / "train" / "out", tmp_path / "home" / "old" / "out", tmp_path / "evil"
    for path in (own, theirs):
        path.parent.mkdir(parents=True)
        path.write_text("step 1\n")
        os.chown(path.parent, 1000, 1000)
        os.chown(path, 1000, 1000)
    os.utime(own, (1.0, 1.0))
    if link:
        evil.symlink_to(theirs.parent)
    else:
        evil.mkdir()
        (evil / "out").hardlink_to(theirs)
    os.chown(evil, 1001, 1001, follow_symlinks=False)
    assert newest(str(tmp_path / "*" / "out"), 1000) == str(own)
    assert newest(str(evil / "out"), 1000) == str(evil / "out"), "the user's own words"
    os.chown(evil, 1000, 1000, follow_symlinks=False)
    assert newest(str(tmp_path / "*" / "out"), 1000) == str(evil / "out")


def test_a_log_that_another_user_put_in_its_place_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "5.out").write_text("step 1\n")
    file = LogFile(str(tmp_path / "5.out"), owner=UID + 1)
    with pytest.raises(Unavailable, match="belongs to uid"):
        list(file.read())
    own = LogFile(str(tmp_path / "5.out"), owner=UID)
    assert [block.content for block in own.read()] == [b"step 1\n"]
    own.close()


def test_a_follower_that_its_user_took_over_says_nothing_as_the_kernel(site: Site) -> None:
    """It runs as the job's user."""
    site.came(5)
    job, kept = site.jobs.jobs[5], list[Evidence]()
    site.jobs._keep = lambda item: kept.append(item) or len(kept)  # type: ignore[func-returns-value]
    forged = Evidence(
        id="x", at=utc(1.0), seen_at=utc(1.0), source=Source.KERNEL, kind=Kind.XID,
        where=Where(node="n1", job=99), data={"xid": 79},
    )  # fmt: skip
    site.jobs._last[job.name] = {}
    site.jobs._heard(job, {"type": "evidence", "items": [to_json(forged)]})
    assert [(item.source, item.where.job) for item in kept] == [(Source.JOB_LOG, 5)]


def test_the_log_of_an_arrays_task_is_the_one_that_its_processes_write(tmp_path: Path) -> None:
    """Slurm's default name of it holds the array's job id, which the prolog does not know; other tasks write beside it."""
    pattern = pattern_of(f"{tmp_path}/%x-%A_%a.out", job=5602, user="ada", node="n1")
    own, other = tmp_path / "train-5601_0.out", tmp_path / "train-5601_1.out"
    other.write_text("step 1\n")
    assert newest(pattern, UID, 5602) is None, "its own is not there yet"
    environment = {**os.environ, "SLURM_JOB_ID": "5602"}
    with (
        own.open("w") as output,
        subprocess.Popen(["/bin/sh", "-c", "read line"], stdin=subprocess.PIPE, stdout=output, env=environment) as task,
    ):
        os.utime(own, (1.0, 1.0))
        assert newest(pattern, UID, 5602) == str(own)
        assert newest(pattern, UID, 5603) is None and newest(pattern, UID) is None
        task.kill()
    assert pattern_of("/l/slurm-%A_%4a.out", job=7, user="ada", node="n1") == "/l/slurm-[0-9]*_[0-9]*.out"
    assert pattern_of("/l/slurm-%A.out", job=7, user="ada", node="n1") == "/l/slurm-7.out"


def test_the_log_of_an_arrays_task_that_has_ended_is_the_one_that_names_it(tmp_path: Path) -> None:
    """A task that fails within a second has no process left that writes its log, and others wrote theirs at that moment."""
    pattern = pattern_of(f"{tmp_path}/%x-%A_%a.out", job=5602, user="ada", node="n1")
    logs = [tmp_path / f"train-5601_{task}.out" for task in range(100)]
    for task, log in enumerate(logs):
        log.write_text(f"sentinel: job {5602 + task} attempt 0 begins\nstep 1\n")
    assert newest(pattern, UID, 5602) is None and newest(pattern, UID, 5602, 1) is None
    assert newest(pattern, UID, 5602, 0) == str(logs[0]) and newest(pattern, UID, 5701, 0) == str(logs[99])
    with logs[7].open("a") as log:
        log.write("x" * 1_000_000 + "\nprint 'sentinel: job 5602 attempt 1 begins'\n")
    assert newest(pattern, UID, 5602, 1) is None, "a line of its own"
    with logs[0].open("a") as log:
        log.write("x" * 1_000_000 + "\nsentinel: job 5602 attempt 1 begins\nTraceback\n")
    assert newest(pattern, UID, 5602, 1) == newest(pattern, UID, 5602, 0) == str(logs[0])
    assert newest(pattern, UID, 560, 0) is None
