from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from lab.training import job
from lab.training.job import Options, Place, Trouble


def options(base: Path, **changes) -> Options:
    values = {
        "run": "r",
        "steps": 10,
        "step_time_s": 0.0,
        "local_every": 2,
        "global_every": 5,
        "global_dir": base / "global",
        "local_dir": base / "local",
        "seed": 1,
        "gpu_faults_kill": False,
    }
    return Options(**{**values, **changes})


def place(**changes) -> Place:
    values = {
        "job": 7,
        "attempt": 0,
        "rank": 1,
        "world": 2,
        "node": "n2",
        "gpus": (0, 1),
        "master": "127.0.0.1",
        "port": 1,
    }
    return Place(**{**values, **changes})


def checkpoint(base: Path, step: int, *, complete: bool = True) -> None:
    folder = job.folder(base, step)
    folder.mkdir(parents=True)
    if complete:
        (folder / ".metadata").touch()


def test_without_a_word_from_sentinel_the_newest_complete_global_one_counts(tmp_path, monkeypatch):
    monkeypatch.delenv("SENTINEL_RESUME_PATH", raising=False)
    opt = options(tmp_path)
    assert job.resume_point(opt) is None
    for step in (9, 10, 100):
        checkpoint(opt.global_dir, step)
    checkpoint(opt.global_dir, 150, complete=False)
    (opt.global_dir / "step-x").mkdir()
    point = job.resume_point(opt)
    assert point is not None
    assert (point.step, point.tier, point.path) == (100, "global", opt.global_dir / "step-100")


def test_sentinels_word_goes_before_and_names_this_nodes_folder(tmp_path, monkeypatch):
    opt = options(tmp_path)
    checkpoint(opt.global_dir, 100)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    monkeypatch.setenv("SENTINEL_RESUME_PATH", "/disks/%N/step-90")
    monkeypatch.setenv("SENTINEL_RESUME_STEP", "90")
    monkeypatch.setenv("SENTINEL_RESUME_TIER", "local")
    point = job.resume_point(opt)
    assert point is not None
    assert (point.step, point.tier, str(point.path)) == (90, "local", "/disks/n2/step-90")


def test_purge_keeps_the_newest_and_leaves_what_is_newer_than_now(tmp_path):
    for step in range(10, 100, 10):
        checkpoint(tmp_path, step)
    job.purge_global(tmp_path, 70, keep=3)
    assert job.steps_in(tmp_path) == [50, 60, 70, 80, 90]


def test_local_purge_takes_only_the_own_parts(tmp_path):
    for step in (1, 2):
        folder = job.folder(tmp_path, step)
        folder.mkdir()
        for rank in (1, 11):
            (folder / f"__{rank}.metadata").touch()
            (folder / f"__{rank}_0.distcp").touch()
    job.purge_local(tmp_path, 1, 2, keep=1)
    assert sorted(p.name for p in job.folder(tmp_path, 1).iterdir()) == ["__11.metadata", "__11_0.distcp"]
    job.purge_local(tmp_path, 11, 2, keep=1)
    assert job.steps_in(tmp_path) == [2]


def test_step_line_has_the_usual_form():
    assert job.step_line(120, 2.31449, 0.4119, 508) == "step 120 | loss 2.3145 | step time 0.412 s | 1233 tokens/s"


def test_a_rank_tells_until_when_its_gpus_compute_and_not_in_every_short_step(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_GPUS", str(tmp_path / "%N.json"))
    given, now = options(tmp_path), 1000.0
    monkeypatch.setattr(job.time, "time", lambda: now)
    this = Trouble(given, place())
    told = given.local_dir.parent / ".gpus" / "0.json"
    this.before_step()
    first = json.loads(told.read_text())
    assert (first["pid"], tuple(first["gpus"])) == (os.getpid(), place().gpus)
    assert 1000.0 + given.step_time_s < first["until"] < 1002.0 + given.step_time_s
    told.unlink()
    now = 1000.1
    this.before_step()
    assert not told.exists(), "they still have work"
    now = first["until"]
    this.before_step()
    assert json.loads(told.read_text())["until"] > now


def test_a_full_disk_does_not_end_the_job_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_GPUS", str(tmp_path / "%N.json"))
    given = options(tmp_path)
    given.local_dir.parent.mkdir(parents=True, exist_ok=True)
    (given.local_dir.parent / ".gpus").write_text("no folder")
    Trouble(given, place()).before_step()
    assert (given.local_dir.parent / ".gpus").read_text() == "no folder"


@pytest.fixture
def trouble(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_CONTROL", str(tmp_path))
    monkeypatch.setenv("LAB_GPUS", str(tmp_path / "%N.json"))
    return lambda **changes: Trouble(options(tmp_path), place(**changes))


def ask(base: Path, **fault) -> None:
    (base / "job-7.json").write_text(json.dumps({"faults": [{"kind": "crash", **fault}]}))


@pytest.mark.parametrize(
    ("fault", "meant"),
    [
        ({"ranks": [1]}, True),
        ({"ranks": [0]}, False),
        ({"ranks": None}, True),
        ({"node": "n2"}, True),
        ({"node": "n1"}, False),
        ({"ranks": [1], "attempt": 0}, True),
        ({"ranks": [1], "attempt": 1}, False),
    ],
)
def test_a_fault_hits_only_whom_it_is_meant_for(tmp_path, trouble, fault, meant):
    ask(tmp_path, **fault)
    assert (trouble().asked("crash") is not None) is meant
    assert trouble().asked("nan") is None


def gpu(index: int, **changes) -> dict:
    return {"index": index, "status": "ok", "xids": [], **changes}


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        ([gpu(0), gpu(1)], ""),
        ([gpu(0), gpu(1, status="lost")], "GPU 1 is lost"),
        ([gpu(0), gpu(5, status="lost")], ""),  # another rank's
        ([gpu(0, xids=[{"xid": 48, "at_us": 2**62}])], "GPU 0 had Xid 48"),
        (
            [gpu(0, xids=[{"xid": 48, "at_us": 5}])],
            "",
        ),  # before this attempt: that GPU was repaired or the event is old
        ([gpu(0, xids=[{"xid": 63, "at_us": 2**62}])], ""),  # a row was remapped: work goes on
    ],
)
def test_which_gpu_states_stop_a_rank(tmp_path, trouble, gpus, why):
    (tmp_path / "n2.json").write_text(json.dumps({"gpus": gpus}))
    assert trouble().broken_gpu() == why


def test_a_process_does_not_start_on_a_lost_gpu(tmp_path, trouble):
    (tmp_path / "n2.json").write_text(json.dumps({"gpus": [gpu(0, status="lost")]}))
    with pytest.raises(RuntimeError, match="no CUDA-capable device"):
        trouble().at_start()
