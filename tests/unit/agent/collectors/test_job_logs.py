"""Which file is a job's log: names as Slurm writes them, links, other users' files, tasks of an array."""

from __future__ import annotations

import os
import subprocess
import tracemalloc
from pathlib import Path

import pytest
from nodes.job_site import Site

from sentinel.adapters.host.logfile import LogFile
from sentinel.agent.collectors.log_path import newest, pattern_of
from sentinel.errors import Unavailable
from sentinel.model.records import Evidence, Kind, Source, Where, utc
from sentinel.wire import to_json

UID = os.getuid()  # whose the files of the made-up /proc are


V1, V2 = "/slurm_n1/uid_1000/job_{}/step_0/task_0", "/system.slice/n1_slurmstepd.scope/job_{}/step_0/user/task_0"


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
