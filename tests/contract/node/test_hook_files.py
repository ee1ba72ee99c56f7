"""The hook files as Slurm would run them: by dash and sh, with Slurm's environment and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from nodes.hook_files import Hooks

from sentinel.agent.collectors.jobs import read_job

ROOT = Path(__file__).parents[3]


def test_a_fresh_ok_lets_the_job_in_and_tells_the_agent(hooks: Hooks) -> None:
    hooks.verdict("OK")
    done = hooks("prolog/10-sentinel")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert hooks.job() == {
        "job": "31", "attempt": "2", "uid": "1001", "gid": "", "user": "someone", "nodelist": "n[1-4]",
        "stdout": "/data/out put.log", "work_dir": "", "gpus": "0,1", "partition": "", "node": "",
    }  # fmt: skip


def test_a_fresh_unknown_lets_the_job_in(hooks: Hooks) -> None:
    hooks.verdict("UNKNOWN", rest="telemetry DCGM is away")
    assert hooks("prolog/10-sentinel").returncode == 0


def test_a_fresh_bad_refuses_the_node_and_says_why(hooks: Hooks) -> None:
    hooks.verdict("BAD", rest="gpu_lost a GPU is lost")
    done = hooks("prolog/10-sentinel")
    assert done.returncode == 1
    assert "gpu_lost: a GPU is lost" in done.stderr
    assert not (hooks.run / "jobs" / "31.json").exists()


def test_where_draining_is_only_observed_no_node_is_refused_and_it_is_said(hooks: Hooks) -> None:
    """Slurm would drain the node: observe mode changes nothing anywhere."""
    hooks.verdict("BAD", rest="gpu_lost a GPU is lost")
    (hooks.run / "drain_mode").write_text("observe\n")
    done = hooks("prolog/10-sentinel")
    assert done.returncode == 0 and "would be refused: gpu_lost" in done.stderr
    assert hooks.job()["job"] == "31"
    (hooks.run / "drain_mode").write_text("act\n")
    assert hooks("prolog/10-sentinel").returncode == 1


def test_the_age_goes_by_the_uptime_not_by_a_clock_that_jumped(hooks: Hooks) -> None:
    uptime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
    (hooks.run / "verdict").write_text(f"BAD {int(time.time()) - 86400} gpu_lost lost\n{uptime_s - 2}\n")
    assert hooks("prolog/10-sentinel").returncode == 1
    (hooks.run / "verdict").write_text(f"BAD {int(time.time())} gpu_lost lost\n{max(0, uptime_s - 900)}\n")
    assert hooks("prolog/10-sentinel").returncode == 0


def test_a_verdict_of_one_line_goes_by_the_time_of_day(hooks: Hooks) -> None:
    (hooks.run / "verdict").write_text(f"BAD {int(time.time()) - 2} gpu_lost lost\n")
    assert hooks("prolog/10-sentinel").returncode == 1


class Agent(threading.Thread):
    """Answers what an epilog asks: each entry of a folder that appears, once."""

    def __init__(self, folder: Path, answer: Callable[[Path], None]) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.over = False
        self._folder, self._answer = folder, answer
        folder.mkdir(exist_ok=True)

    def run(self) -> None:
        for _ in range(2400):
            if self.over:
                return
            for path in self._folder.glob("31*"):
                self.asked.append(path.read_text())
                self._answer(path)
                return
            time.sleep(0.05)


FAILED = {"SENTINEL_EPILOG_LEVEL": "2", "SENTINEL_EPILOG_S": "90", "SENTINEL_EPILOG_SETTLE_S": "1"}


@pytest.fixture
def checked(hooks: Hooks) -> Agent:
    (hooks.run / "ended").mkdir()
    (hooks.run / "against").mkdir()
    return Agent(hooks.run / "checks", lambda path: path.with_suffix(".done").write_text("pass\n") and None)


@pytest.mark.parametrize(
    ("code", "against"), [("256", ""), ("256", "log"), ("", "log"), ("", "node"), ("0", "node"), ("x", "node")]
)
def test_an_epilog_of_a_failed_job_waits_for_its_test(hooks: Hooks, checked: Agent, code: str, against: str) -> None:
    """Failed is what Slurm says, or, where it does not say, what the agent has seen."""
    if against:
        (hooks.run / "against" / "31.2").write_text(f"{against}\n")
    checked.start()
    done = hooks("epilog/10-sentinel", SLURM_JOB_EXIT_CODE=code, **FAILED)
    checked.join()
    assert (done.returncode, done.stderr, checked.asked) == (0, "", ["2 0,1\n"])
    assert list((hooks.run / "checks").iterdir()) == []


@pytest.mark.parametrize(("code", "against"), [("0", ""), ("0", "log"), ("", ""), ("x", "")])
def test_an_epilog_of_a_good_job_waits_for_nothing(hooks: Hooks, checked: Agent, code: str, against: str) -> None:
    if against:
        (hooks.run / "against" / "31.2").write_text(f"{against}\n")
    (hooks.run / "against" / "31.1").write_text("node\n")  # of the attempt before
    checked.start()
    hooks("epilog/10-sentinel", SLURM_JOB_EXIT_CODE=code, **FAILED)
    checked.over = True
    checked.join()
    assert (checked.asked, list((hooks.run / "checks").iterdir())) == ([], [])


def test_without_the_setting_a_failed_job_is_not_tested(hooks: Hooks, checked: Agent) -> None:
    hooks("epilog/10-sentinel", SLURM_JOB_EXIT_CODE="256")
    assert list((hooks.run / "checks").iterdir()) == []


def test_an_epilog_waits_until_the_local_checkpoints_are_listed(hooks: Hooks, checked: Agent) -> None:
    lister = Agent(hooks.run / "local", lambda path: path.unlink())
    (hooks.run / "local" / "31.2").touch()
    lister.start()
    assert hooks("epilog/10-sentinel", SENTINEL_LISTING_S="90").returncode == 0
    lister.join()
    assert not (hooks.run / "local" / "31.2").exists()


def test_an_agent_that_lists_nothing_is_not_waited_for_for_long(hooks: Hooks, checked: Agent) -> None:
    (hooks.run / "local").mkdir()
    (hooks.run / "local" / "31.2").touch()
    assert hooks("epilog/10-sentinel", SENTINEL_LISTING_S="0").returncode == 0
    assert list((hooks.run / "local").iterdir()) == []


@pytest.mark.parametrize("seconds", ["08", "009"])
def test_a_number_with_a_zero_before_it_ends_no_epilog(hooks: Hooks, checked: Agent, seconds: str) -> None:
    """To a shell it is octal, and 08 is none: the script ended there, and Slurm drains the node of an epilog that fails."""
    (hooks.run / "against" / "31.2").write_text("node\n")
    done = hooks("epilog/10-sentinel", **FAILED | {"SENTINEL_EPILOG_S": "0", "SENTINEL_EPILOG_SETTLE_S": seconds})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verdict", ["stale OK", "stale BAD", "future", "none", "torn", "empty", "rubbish", "words"])
def test_without_a_fresh_verdict_and_without_dcgm_nothing_is_known_and_nobody_refused(
    hooks: Hooks, verdict: str
) -> None:
    now = int(time.time())
    contents = {
        "stale OK": f"OK {now - 600} ok fine\n",
        "stale BAD": f"BAD {now - 600} gpu_lost lost\n",
        "future": f"BAD {now + 600} gpu_lost lost\n",
        "torn": "BA",
        "empty": "",
        "rubbish": "\x00\x01 $(touch /tmp/x) `id`\n",
        "words": "BAD soon gpu_lost lost\n",
    }
    if verdict in contents:
        (hooks.run / "verdict").write_text(contents[verdict])
    done = hooks("prolog/10-sentinel")
    assert done.returncode == 0, done.stderr
    assert hooks.job()["job"] == "31"


def test_a_broken_python_refuses_nobody(hooks: Hooks) -> None:
    assert hooks("prolog/10-sentinel", SENTINEL_PYTHON="/nowhere/python").returncode == 0
    assert hooks("prolog/10-sentinel", SENTINEL_HOME="/nowhere").returncode == 0


def test_names_that_need_escaping(hooks: Hooks) -> None:
    hooks.verdict("OK")
    name = '/data/"a\\b\n$(id)`.out'
    assert hooks("prolog/10-sentinel", SLURM_JOB_STDOUT=name).returncode == 0
    assert hooks.job()["stdout"] == name


@pytest.mark.parametrize("name", [b"/data/\xff\xfe-%j.out", b"/data/\xed\xa0\x80.out", b'/data/\xc3".out'])
def test_a_name_that_is_no_text_reaches_the_agent_with_its_bytes(hooks: Hooks, name: bytes) -> None:
    hooks.verdict("OK")
    found = hooks("prolog/10-sentinel", SLURM_JOB_STDOUT=os.fsdecode(name), SLURM_JOB_WORK_DIR=os.fsdecode(name))
    assert found.returncode == 0
    job = read_job(hooks.run / "jobs" / "31.json")
    assert (job.job, job.attempt, os.fsencode(job.stdout), os.fsencode(job.work_dir)) == (31, 2, name, name)


def test_a_run_folder_that_cannot_be_written_refuses_nobody(hooks: Hooks, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert hooks("prolog/10-sentinel", SENTINEL_RUN_DIR=str(tmp_path / "file")).returncode == 0


def fake_dcgmi(folder: Path, script: dict[str, object]) -> dict[str, str]:
    gpus = [{"index": n, "uuid": f"GPU-{n}", "pci": "0000:1b:00.0"} for n in range(2)]
    (folder / "gpus.json").write_text(json.dumps({"gpus": gpus, "diag": script}))
    return {"SENTINEL_FAKE_GPUS": str(folder / "gpus.json"), "SENTINEL_DCGMI": str(ROOT / "deploy/lab/fake_dcgm/dcgmi")}


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ({}, 0),
        ({"errors": [{"test": "software", "gpu": 1, "code": 118, "severity": 2}]}, 1),
        ({"errors": [{"test": "software", "gpu": 1, "code": 85, "severity": 6}]}, 1),
        ({"errors": [{"test": "software", "gpu": 1, "code": 29, "severity": 5}]}, 0),
        ({"busy": True}, 0),
        ({"truncate": 400, "errors": [{"test": "software", "gpu": 1, "code": 118, "severity": 2}]}, 0),
        ({"sleep_s": 30}, 0),
    ],
)
def test_level_1_refuses_only_on_proof(hooks: Hooks, tmp_path: Path, script: dict[str, object], status: int) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        host = f"127.0.0.1:{server.getsockname()[1]}"
        environment = fake_dcgmi(tmp_path, script)
        seconds = "3" if "sleep_s" in script else "60"
        done = hooks("prolog/10-sentinel", SENTINEL_DCGM_HOST=host, SENTINEL_PROLOG_S=seconds, **environment)
    assert done.returncode == status, done.stderr
    if status:
        assert "GPU 1" in done.stderr


@pytest.mark.parametrize(("code", "told"), [("256", "256"), ("", "unknown"), ("-1", "unknown")])
def test_the_epilog_marks_the_end_and_says_whose_it_was(hooks: Hooks, code: str, told: str) -> None:
    (hooks.run / "ended").mkdir()
    hooks.verdict("OK")
    hooks("prolog/10-sentinel")
    before = (hooks.run / "jobs" / "31.json").stat().st_mtime_ns
    assert hooks("epilog/10-sentinel", SLURM_JOB_EXIT_CODE=code).returncode == 0
    assert not (hooks.run / "jobs" / "31.json").exists()
    assert (hooks.run / "ended" / "31.2").read_text() == f"{told}\n"
    kept = hooks.run / "ended" / f"31.2.{told}.json"
    assert json.loads(kept.read_text())["uid"] == "1001"
    assert kept.stat().st_mtime_ns == before, "it tells when the job began"


def test_without_an_agent_nothing_piles_up(hooks: Hooks) -> None:
    hooks("prolog/10-sentinel")
    assert hooks("epilog/10-sentinel", SLURM_JOB_EXIT_CODE="256").returncode == 0
    assert [path.name for path in hooks.run.rglob("*") if path.is_file()] == []


def test_the_epilog_never_fails(hooks: Hooks) -> None:
    for run in ("/nowhere", "/proc"):
        assert hooks("epilog/10-sentinel", SENTINEL_RUN_DIR=run).returncode == 0
    (hooks.run / "ended").touch()
    (hooks.run / "jobs" / "31.json").mkdir()
    assert hooks("epilog/10-sentinel").returncode == 0
    assert hooks("epilog/10-sentinel", SLURM_JOB_ID="").returncode == 0


def test_the_end_of_a_job_is_a_file_in_the_daemons_folder(hooks: Hooks, tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    for _ in range(2):
        done = hooks("epilog/slurmctld-sentinel", SENTINEL_EVENTS=str(events), SENTINEL_PYTHON="/nonexistent")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path.name.rpartition(".")[0] for path in events.iterdir()} == {"job_ended.31"}


@pytest.mark.parametrize(
    ("restarts", "code", "end"), [("1", "3:0", ".r1e3s0"), ("0", "0:15", ".r0e0s15"), ("", "3:0", ""), ("1", "x:0", "")]
)
def test_its_name_says_how_the_job_ended_where_slurm_does(
    hooks: Hooks, tmp_path: Path, restarts: str, code: str, end: str
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    how = {"SLURM_JOB_RESTART_COUNT": restarts, "SLURM_JOB_EXIT_CODE2": code}
    hooks("epilog/slurmctld-sentinel", SENTINEL_EVENTS=str(events), SENTINEL_PYTHON="/nonexistent", **how)
    assert [path.name.rpartition(".")[0] for path in events.iterdir()] == [f"job_ended.31{end}"]


@pytest.mark.parametrize("plant", ["ln -s {owned}", "ln -s {missing}", "mkfifo"])
def test_what_waits_in_the_daemons_folder_stops_no_news(hooks: Hooks, tmp_path: Path, plant: str) -> None:
    """Its account may write there, too: what SlurmUser owns must not be emptied through a link, nor a hook of slurmctld wait
    for a pipe's reader, under a name with the number that its process has."""
    events, owned, missing = tmp_path / "events", tmp_path / "job_state", tmp_path / "made"
    events.mkdir()
    owned.write_text("Slurm's own")
    command = plant.format(owned=owned, missing=missing)
    hook = ROOT / "epilog" / "slurmctld-sentinel"
    done = subprocess.run(
        ["sh", "-c", f"{command} {events}/job_ended.31.$$; exec sh {hook}"], timeout=60, check=True,
        env={**hooks.environment, "SENTINEL_EVENTS": str(events), "SENTINEL_PYTHON": "/nonexistent"}, capture_output=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"", b"")
    assert owned.read_text() == "Slurm's own" and not missing.exists()
    assert len([path for path in events.iterdir() if path.is_file() and not path.is_symlink()]) == 1


@pytest.mark.parametrize("slow", ["", 'quote"d'])
def test_others_can_write_nothing_of_what_the_agent_believes(hooks: Hooks, slow: str) -> None:
    """Also under a slurmd that masks nothing: the agent takes whose a job's files are from here."""
    (hooks.run / "ended").mkdir()
    hooks.verdict("OK")
    for hook in ("prolog/10-sentinel", "epilog/10-sentinel"):
        subprocess.run(
            ["sh", "-c", f"umask 0; exec {ROOT / hook}"], timeout=60, check=True,
            env={**hooks.environment, "SLURM_JOB_WORK_DIR": slow},
        )  # fmt: skip
        made = [path for name in ("jobs", "ended") for path in (hooks.run / name).iterdir()]
        assert made and all(path.stat().st_mode & 0o022 == 0 for path in made)


@pytest.mark.parametrize("job", ["31", "../31", "3 1", "$(touch x)", ""])
def test_where_no_file_can_be_left_the_daemon_is_asked(hooks: Hooks, tmp_path: Path, job: str) -> None:
    (tmp_path / "here").mkdir()
    events = str(tmp_path / ("nowhere" if job == "31" else "here"))
    done = hooks(
        "epilog/slurmctld-sentinel", SENTINEL_EVENTS=events, SLURM_JOB_ID=job, SENTINEL_URL="http://127.0.0.1:1",
        SENTINEL_EVENT_S="0.3",
    )  # fmt: skip
    assert done.returncode == 0 and "sentinel:" in done.stderr
    assert list((tmp_path / "here").iterdir()) == []


def test_an_event_that_cannot_be_told_fails_nothing(hooks: Hooks) -> None:
    done = hooks("epilog/slurmctld-sentinel", SENTINEL_URL="http://127.0.0.1:1", SENTINEL_EVENT_S="0.5")
    assert done.returncode == 0
    assert "sentinel:" in done.stderr


def filled(folder: Path) -> bool:
    """A file system of its own without a free byte; False where it cannot be made."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)], capture_output=True, check=False
    )
    return done.returncode == 0


HOOKS = ["prolog/10-sentinel", "epilog/10-sentinel", "deploy/slurm/health-check"]


@pytest.mark.skipif(os.getuid() != 0, reason="optional: mounts a small file system, which only root can")
@pytest.mark.parametrize("file", HOOKS)
def test_a_full_disk_drains_nobody(hooks: Hooks, file: str) -> None:
    if not filled(hooks.run):
        pytest.skip("optional: no file system can be mounted here")
    try:
        for name in ("jobs", "ended", "checks", "against"):
            (hooks.run / name).mkdir()
        (hooks.run / "jobs" / "31.json").write_text("{}")
        hooks.verdict("OK")
        (hooks.run / "against" / "31.2").write_text("node\n")
        with pytest.raises(OSError, match="No space"):
            (hooks.run / "filler").write_bytes(bytes(1 << 20))
        done = hooks(file, SLURM_JOB_EXIT_CODE="256", SENTINEL_EPILOG_LEVEL="2", SENTINEL_EPILOG_S="0",
                     SENTINEL_FRESH_S="-100")  # fmt: skip
        assert done.returncode == 0, done.stderr
    finally:
        subprocess.run(["umount", "-l", str(hooks.run)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="optional: becomes another user, which only root can")
@pytest.mark.parametrize("file", [*HOOKS, "prolog/task-sentinel"])
def test_a_folder_that_cannot_be_read_drains_nobody(hooks: Hooks, tmp_path: Path, file: str) -> None:
    """As when somebody hardened /run/sentinel, or the hooks run confined."""
    hooks.verdict("BAD", rest="gpu_lost lost")
    hooks.run.chmod(0o700)
    # Through a pipe: that account need not be able to enter this checkout.
    done = subprocess.run(
        ["sh"], input=(ROOT / file).read_text(), env={**hooks.environment, "SENTINEL_HOME": "/"},
        user=65534, group=65534, extra_groups=[], capture_output=True, text=True, timeout=60, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


SLIPS = ["exit 1", "return 1", "kill $$", "set -e; false", "X=$(exit 1", 'NAME="no end', "readonly run", "IFS=/", "=x",
         "1=2", "A-B=c", "\x00\x01", "\udcff\udcfe=1", "PATH", "}", "case in", "UID=0", "EUID=1", "PPID=1",
         "SHELLOPTS=x", "BASHOPTS=x"]  # fmt: skip


@pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"], []])
@pytest.mark.parametrize("file", [*HOOKS, "prolog/task-sentinel", "epilog/slurmctld-sentinel"])
def test_slips_in_the_settings_drain_nobody(hooks: Hooks, tmp_path: Path, file: str, shell: list[str]) -> None:
    """Whichever shell /bin/sh is."""
    right = [f"SENTINEL_RUN_DIR='{hooks.run}'", "SENTINEL_EVENT_S=0.1", "SENTINEL_URL=http://x:1"]
    text = "\n".join(["# settings", *SLIPS, *right])
    (tmp_path / "hook.conf").write_bytes(text.encode("utf-8", "surrogateescape"))
    hooks.verdict("OK")
    (hooks.run / "ended").mkdir()
    done = subprocess.run(
        [*shell, str(ROOT / file)], env={**hooks.environment, "SENTINEL_RUN_DIR": "/nowhere"}, capture_output=True,
        timeout=60, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if file == "prolog/10-sentinel":
        assert hooks.job()["job"] == "31", "the lines that are settings hold"


def test_settings_may_differ_by_node(hooks: Hooks, tmp_path: Path) -> None:
    (tmp_path / "hook.conf").write_text(f'SENTINEL_RUN_DIR="{tmp_path}/of %n/run"')  # no newline at its end
    (tmp_path / "of n 7" / "run" / "jobs").mkdir(parents=True)
    hooks("prolog/10-sentinel", SLURMD_NODENAME="n 7", SENTINEL_RUN_DIR="/nowhere")
    assert (tmp_path / "of n 7" / "run" / "jobs" / "31.json").exists()


@pytest.mark.parametrize(
    "file",
    ["prolog/10-sentinel", "prolog/task-sentinel", "epilog/10-sentinel", "epilog/slurmctld-sentinel",
     "deploy/slurm/health-check"],
)  # fmt: skip
def test_they_are_executable_posix_sh(file: str) -> None:
    path = ROOT / file
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/bin/sh\n")
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0
