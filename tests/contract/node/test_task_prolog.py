"""TaskProlog as slurmstepd runs it: which attempt of which job a task is, and from where it resumes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from nodes.hook_files import ROOT, Hooks

INHERITED = {  # what a script of job 30, in its attempt 2, hands on to the job that it submits
    "SLURM_RESTART_COUNT": "2", "SENTINEL_JOB": "30", "SENTINEL_ATTEMPT": "2", "SENTINEL_INCIDENT": "i0",
    "SENTINEL_RESUME_PATH": "/old/step_40", "SENTINEL_RESUME_STEP": "40", "SENTINEL_RESUME_TIER": "local",
    "SENTINEL_ORDERS": "/old/resume",
}  # fmt: skip


def noted(hooks: Hooks, attempt: int) -> None:
    """The prolog has told the agent of the job, and of which attempt."""
    hooks.verdict("OK")
    assert hooks("prolog/10-sentinel", SLURM_JOB_RESTART_COUNT=f"{attempt}").returncode == 0


def task(hooks: Hooks, **environment: str) -> tuple[dict[str, str], list[str]]:
    """The variables of a task as TaskProlog leaves them, of those named for Sentinel, and the lines that it prints."""
    done = hooks("prolog/task-sentinel", **environment)
    assert done.returncode == 0, done.stderr
    left, said = {name: value for name, value in environment.items() if name.startswith("SENTINEL_")}, []
    for line in done.stdout.splitlines():  # as slurmstepd reads them, one after the other
        word, _, rest = line.partition(" ")
        name, _, value = rest.partition("=")
        if word == "export":
            left[name] = value
        elif word == "unset":
            left.pop(rest, None)
        else:
            assert word == "print", line
            said.append(rest)
    return left, said


@pytest.mark.parametrize("step", [None, "4294967291", "-5", "0"], ids=["22.05", "24.11", "26.05", "salloc"])
def test_a_job_that_another_one_submits_inherits_nothing_of_it(hooks: Hooks, tmp_path: Path, step: str | None) -> None:
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", "SENTINEL_RESUME_PATH=/foreseen/step_80")
    noted(hooks, 0)
    of_step = {} if step is None else {"SLURM_STEP_ID": step}
    left, said = task(hooks, **INHERITED, **of_step)
    own = {"SENTINEL_JOB": "31", "SENTINEL_ATTEMPT": "0", "SENTINEL_ORDERS": f"{tmp_path}/resume"}
    assert (left, said) == (own, []), "nor does its log say that attempt 2 begins"


def test_where_the_prolog_did_not_say_which_attempt_it_is_nothing_is_taken_for_it(hooks: Hooks, tmp_path: Path) -> None:
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=1", "SENTINEL_RESUME_PATH=/c/step_80")
    for file in (None, "", "{", '{"job":"31","attempt":"x"}'):
        if file is not None:
            (hooks.run / "jobs" / "31.json").write_text(file)
        assert task(hooks, **INHERITED) == ({}, [])


def test_without_a_prolog_a_restarted_job_has_the_resume_point_that_is_for_its_attempt(
    hooks: Hooks, tmp_path: Path
) -> None:
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", "SENTINEL_RESUME_STEP=80")
    left, said = task(hooks, SLURM_RESTART_COUNT="2")
    assert left == {"SENTINEL_JOB": "31", "SENTINEL_ATTEMPT": "2", "SENTINEL_RESUME_STEP": "80",
                    "SENTINEL_ORDERS": f"{tmp_path}/resume"}  # fmt: skip
    assert said == ["sentinel: job 31 attempt 2 begins"]


def test_a_step_on_a_node_that_has_the_job_under_another_id_has_what_the_batch_step_was_told(
    hooks: Hooks, tmp_path: Path
) -> None:
    """The later components of a heterogeneous job: their prologs have ids of their own, their tasks the first one's."""
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", "SENTINEL_RESUME_PATH=/nvme/%N/step_80")
    of_batch = {"SENTINEL_JOB": "31", "SENTINEL_ATTEMPT": "2", "SENTINEL_RESUME_PATH": "/nvme/n1/step_80"}
    left, _ = task(hooks, **of_batch, SLURM_STEP_ID="0", SLURMD_NODENAME="n2")
    assert left == {**of_batch, "SENTINEL_RESUME_PATH": "/nvme/n2/step_80", "SENTINEL_ORDERS": f"{tmp_path}/resume"}


def test_a_run_in_the_allocation_without_a_checkpoint_does_not_keep_the_one_before(
    hooks: Hooks, tmp_path: Path
) -> None:
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", "SENTINEL_INCIDENT=i2", "SENTINEL_RUN=1")
    noted(hooks, 2)
    before = INHERITED | {"SENTINEL_JOB": "31", "SENTINEL_ATTEMPT": "2"}
    left, _ = task(hooks, **before, SLURM_STEP_ID="1")
    assert left == {"SENTINEL_JOB": "31", "SENTINEL_ATTEMPT": "2", "SENTINEL_INCIDENT": "i2",
                    "SENTINEL_ORDERS": f"{tmp_path}/resume"}  # fmt: skip


def resume(hooks: Hooks, tmp_path: Path, *lines: str) -> None:
    (tmp_path / "resume").mkdir(exist_ok=True)
    (hooks.run / "resume_dir").write_text(f"{tmp_path}/resume\n")
    (tmp_path / "resume" / "31.env").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("mine", [True, False])
def test_the_resume_point_of_another_users_job_of_this_number_is_not_taken(
    hooks: Hooks, tmp_path: Path, mine: bool
) -> None:
    uid = os.getuid() + (0 if mine else 1)
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", "SENTINEL_RESUME_STEP=80", f"SENTINEL_UID={uid}",
           "SENTINEL_MESSAGE=attempt 1 was ended")  # fmt: skip
    noted(hooks, 2)
    left, said = task(hooks)
    assert ("SENTINEL_RESUME_STEP" in left) is mine and ("attempt 1 was ended" in said) is mine
    assert left["SENTINEL_ATTEMPT"] == "2"


def test_the_resume_point_reaches_the_job(hooks: Hooks, tmp_path: Path) -> None:
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", "SENTINEL_RESUME_PATH=/c k/step_40",
           "SENTINEL_RESUME_STEP=40", "SENTINEL_RESUME_TIER=local", "SENTINEL_INCIDENT=i1", "PATH=/evil", "LD_PRELOAD=x",
           "SENTINEL_MESSAGE=restarted from step 40 `id` $(id)")  # fmt: skip
    noted(hooks, 2)
    left, said = task(hooks)
    assert left == {
        "SENTINEL_JOB": "31",
        "SENTINEL_ATTEMPT": "2",
        "SENTINEL_ORDERS": f"{tmp_path}/resume",
        "SENTINEL_RESUME_PATH": "/c k/step_40",
        "SENTINEL_RESUME_STEP": "40",
        "SENTINEL_RESUME_TIER": "local",
        "SENTINEL_INCIDENT": "i1",
    }
    assert said == ["sentinel: job 31 attempt 2 begins", "restarted from step 40 `id` $(id)"]


FOLDERS = {"everybody's folder": 0o1777, "its group's folder": 0o2775}


@pytest.mark.parametrize("attack", [*FOLDERS, "link"])
def test_a_resume_point_that_others_can_have_written_is_not_used(hooks: Hooks, tmp_path: Path, attack: str) -> None:
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", "SENTINEL_RESUME_PATH=/theirs/step_40")
    folder = tmp_path / "resume"
    if attack in FOLDERS:
        folder.chmod(FOLDERS[attack])
    else:
        (folder / "31.env").rename(tmp_path / "theirs.env")
        (folder / "31.env").symlink_to(tmp_path / "theirs.env")
    noted(hooks, 2)
    assert not any(name.startswith("SENTINEL_RESUME") for name in task(hooks)[0])


@pytest.mark.parametrize(
    "place", ["own", "to come", "link", "stranger's", "to come in a stranger's", "to come in a shared folder"]
)
def test_what_a_job_loads_is_its_users_own(hooks: Hooks, tmp_path: Path, place: str) -> None:
    """Found as an attack: the daemon's account named a pickle of its own, which ran as the user of any job."""
    folder = tmp_path / "run 1"
    step = folder / "step_40"
    folder.mkdir()
    if place in ("own", "link", "stranger's"):
        step.mkdir()
    if "stranger's" in place:
        if os.geteuid() != 0:
            pytest.skip("only root makes files of others")
        os.chown(step if step.exists() else folder, 64001, -1)
    if "shared" in place:
        folder.chmod(0o1777)
    if place == "link":
        (tmp_path / "latest").symlink_to(step)
        step = tmp_path / "latest"
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", f"SENTINEL_RESUME_PATH={step}",
           "SENTINEL_RESUME_STEP=40", "SENTINEL_RESUME_TIER=global", "SENTINEL_MESSAGE=resumed")  # fmt: skip
    noted(hooks, 2)
    left, said = task(hooks)
    if place in ("own", "to come", "link"):
        assert (left["SENTINEL_RESUME_PATH"], left["SENTINEL_RESUME_STEP"], said[-1]) == (str(step), "40", "resumed")
        return
    assert not any(name.startswith("SENTINEL_RESUME") for name in left)
    why = "everybody may write into" if "shared" in place else "belongs to uid 64001"
    assert said[-1].startswith(f"sentinel: the resume point {step} is not used: ") and why in said[-1]


def test_on_a_new_node_a_place_on_its_shared_disk_is_made_the_users(hooks: Hooks, tmp_path: Path) -> None:
    """A rank on it resumed from nowhere while the others did: their disks have the folder, and may be written by all."""
    disk = tmp_path / "nvme"
    disk.mkdir()
    disk.chmod(0o1777)
    step = disk / "run 1" / "steps" / "step_40"
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", f"SENTINEL_RESUME_PATH={step}")
    noted(hooks, 2)
    for _ in "twice":
        left, _said = task(hooks)
        assert left["SENTINEL_RESUME_PATH"] == str(step)
    made = (disk / "run 1").stat()
    assert made.st_uid == os.geteuid() and not made.st_mode & 0o022 and not list((disk / "run 1").iterdir())


@pytest.mark.parametrize(("trusted", "taken"), [("64000 64001", True), ("any", True), ("640", False), ("", False)])
def test_a_site_names_whose_resume_points_are_loaded_besides(
    hooks: Hooks, tmp_path: Path, trusted: str, taken: bool
) -> None:
    """Files of a project's account, or of a mount that shows one owner for all."""
    if os.geteuid() != 0:
        pytest.skip("only root makes files of others")
    step = tmp_path / "step_40"
    step.mkdir()
    os.chown(step, 64001, -1)
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", f"SENTINEL_RESUME_PATH={step}")
    noted(hooks, 2)
    left, _ = task(hooks, SENTINEL_RESUME_OWNERS=trusted)
    assert left.get("SENTINEL_RESUME_PATH") == (str(step) if taken else None)


@pytest.mark.parametrize("path", ["step_40", "..", "-c"])
def test_what_a_job_loads_does_not_depend_on_where_it_is(hooks: Hooks, tmp_path: Path, path: str) -> None:
    resume(hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", f"SENTINEL_RESUME_PATH={path}")
    noted(hooks, 2)
    left, said = task(hooks)
    assert "SENTINEL_RESUME_PATH" not in left and "no absolute path" in said[-1]


@pytest.mark.parametrize(
    "lines",
    [
        ("SENTINEL_JOB=32", "SENTINEL_ATTEMPT=2", "SENTINEL_RESUME_STEP=1"),
        ("SENTINEL_JOB=31", "SENTINEL_ATTEMPT=1", "SENTINEL_RESUME_STEP=1"),
        ("SENTINEL_ATTEMPT=2", "SENTINEL_RESUME_STEP=1"),
        ("SENTINEL_JOB=31", "SENTINEL_RESUME_STEP=1"),
        (),
    ],
)
def test_a_resume_point_for_another_attempt_says_nothing(hooks: Hooks, tmp_path: Path, lines: tuple[str, ...]) -> None:
    resume(hooks, tmp_path, *lines)
    noted(hooks, 2)
    assert not any(name.startswith("SENTINEL_RESUME") for name in task(hooks)[0])


@pytest.mark.parametrize("batch", [None, "4294967291", "-5"], ids=["22.05", "24.11", "26.05"])
def test_the_log_says_where_a_later_attempt_begins_and_an_arrays_task_any_attempt(
    hooks: Hooks, batch: str | None
) -> None:
    def said(attempt: int, **environment: str) -> list[str]:
        noted(hooks, attempt)
        return task(hooks, **({} if batch is None else {"SLURM_STEP_ID": batch}) | environment)[1]

    assert said(0) == said(0, SLURM_ARRAY_TASK_ID="3", SLURM_STEP_ID="0") == said(2, SLURM_STEP_ID="0") == []
    assert said(2) == ["sentinel: job 31 attempt 2 begins"]
    assert said(0, SLURM_ARRAY_TASK_ID="3") == ["sentinel: job 31 attempt 0 begins"]
    assert said(1, SLURM_ARRAY_TASK_ID="3") == ["sentinel: job 31 attempt 1 begins"]


@pytest.mark.parametrize(("name", "begins"), [("[31.batch]", True), ("[31.0]", False)])
def test_a_job_that_a_step_submitted_is_told_by_the_process_above_whether_it_is_the_batch_step(
    hooks: Hooks, name: str, begins: bool
) -> None:
    """With Slurm 22.05 the number of the step that submitted it is still set in its batch step."""
    noted(hooks, 1)
    stepd = ["bash", "-c", f"exec -a 'slurmstepd: {name}' sh -c '\"{ROOT}/prolog/task-sentinel\"; exit $?'"]
    done = subprocess.run(
        stepd, env=hooks.environment | {"SLURM_STEP_ID": "0"}, capture_output=True, text=True, timeout=60, check=True
    )
    assert ("print sentinel: job 31 attempt 1 begins" in done.stdout.splitlines()) is begins


@pytest.mark.parametrize(
    ("step", "of_job", "of_run"),
    [(None, True, True), ("4294967291", True, True), ("-5", True, True), ("0", False, True), ("2", False, True)],
)
def test_the_message_is_said_by_the_batch_step_and_by_a_run_in_the_allocation(
    hooks: Hooks, tmp_path: Path, step: str | None, of_job: bool, of_run: bool
) -> None:
    noted(hooks, 2)
    environment = {} if step is None else {"SLURM_STEP_ID": step}
    said = ("SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", "SENTINEL_MESSAGE=restarted")
    resume(hooks, tmp_path, *said)
    assert ("restarted" in task(hooks, **environment)[1]) is of_job
    resume(hooks, tmp_path, *said, "SENTINEL_RUN=1")
    assert ("restarted" in task(hooks, **environment)[1]) is of_run
    if step in ("0", "2"):
        assert task(hooks, **environment, SLURM_PROCID="1")[1] == []


def test_control_characters_are_not_passed_on(hooks: Hooks, tmp_path: Path) -> None:
    resume(
        hooks, tmp_path, "SENTINEL_JOB=31", "SENTINEL_ATTEMPT=2", "SENTINEL_RESUME_PATH=/a\rb", "SENTINEL_RESUME_STEP=3"
    )
    noted(hooks, 2)
    left, _ = task(hooks)
    assert "SENTINEL_RESUME_PATH" not in left
    assert left["SENTINEL_RESUME_STEP"] == "3"
