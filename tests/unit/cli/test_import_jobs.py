"""``sentinel import``: what Slurm's accounting and old logs say about the time before Sentinel."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.adapters.slurm.accounting import FIELDS, arguments, read
from sentinel.cli.offline.classify_input import _files
from sentinel.cli.recordings.import_jobs import import_jobs
from sentinel.cli.recordings.job_logs import logs_by_job, old_logs
from sentinel.cli.simulate.command import simulate
from sentinel.errors import SentinelError

NOW = datetime(2026, 3, 31, tzinfo=UTC)
# As sacct of Slurm 22.05 prints it with the arguments of ``accounting.arguments``; made up, in its form.
SACCT = """\
4711|ada|train|NODE_FAIL|0:0|2026-03-01T00:00:00|2026-03-01T10:00:00|billing=64,cpu=64,gres/gpu=16,mem=1T,node=2|n[1-2]
4711|ada|train|FAILED|1:0|2026-03-01T10:03:00|2026-03-01T12:03:00|billing=64,cpu=64,gres/gpu:h100=16,mem=1T,node=2|n[2-3]
4712|bob|train|COMPLETED|0:0|2026-03-02T00:00:00|2026-03-03T00:00:00|cpu=64,gres/gpu=8,node=1|n4
4713|bob|train|CANCELLED by 1000|0:15|2026-03-02T00:00:00|2026-03-02T01:00:00|cpu=64,gres/gpu=8,node=1|n5
4714|bob|train|TIMEOUT|0:0|2026-03-02T00:00:00|2026-03-02T01:00:00|cpu=64,gres/gpu=8,node=1|n5
4715|eve|cpu|FAILED|1:0|2026-03-02T00:00:00|2026-03-02T01:00:00|cpu=64,mem=1T,node=1|n6
4716|eve|train|OUT_OF_MEMORY|0:125|2026-03-04T00:00:00|2026-03-04T00:30:00|cpu=64,gres/gpu=8,node=1|n6
4717|eve|train|PENDING|0:0|Unknown|Unknown||None assigned
4718|eve|train|RUNNING|0:0|2026-03-30T00:00:00|Unknown|cpu=64,gres/gpu=8,node=1|n7
4719|eve|train|FAILED|2:0|2026-03-05T00:00:00|2026-03-05T01:00:00||n8
torn lin
"""


def called(*arguments: str) -> Any:
    return CliRunner().invoke(import_jobs, list(arguments))


@pytest.fixture
def accounted(tmp_path: Path) -> Path:
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT)
    return path


def test_attempts_of_a_requeued_job_are_told_apart_and_what_is_unknown_stays_so() -> None:
    attempts, unread = read(SACCT, NOW)
    assert unread == [11]
    told = {(one.job, one.attempt): one for one in attempts}
    assert (4717, 0) not in told  # it never began
    first, second = told[4711, 0], told[4711, 1]
    assert (first.state, first.gpus, first.nodes) == ("node_fail", 16, ("n1", "n2")) and second.gpus == 16
    assert first.held_s(first.started_at, NOW) == 36000.0 and second.exit_code == 1
    assert told[4713, 0].state == "cancelled" and told[4713, 0].exit_signal == 15
    assert told[4715, 0].gpus == 0 and told[4719, 0].gpus is None
    assert told[4718, 0].ended_at == NOW  # it runs still
    asked = arguments(NOW, NOW)
    assert "--starttime=2026-03-31T00:00:00" in asked and f"--format={','.join(FIELDS)}" in asked


def test_an_attempt_that_stands_there_twice_counts_once() -> None:
    """Outputs of two months that overlap, put together: of the first, one job was still running."""
    running = "4712|bob|train|RUNNING|0:0|2026-03-02T00:00:00|Unknown|cpu=64,gres/gpu=8,node=1|n4\n"
    once, unread = read(SACCT, NOW)
    assert read(SACCT + SACCT, NOW) == (once, [*unread, *(number + len(SACCT.splitlines()) for number in unread)])
    for text in (running + SACCT, SACCT + running):
        again = [one for one in read(text, NOW)[0] if one.job == 4712]
        assert again == [one for one in once if one.job == 4712], text


def test_failures_are_counted_by_cause_with_what_would_have_been_done(accounted: Path, tmp_path: Path) -> None:
    logs, out = tmp_path / "logs", tmp_path / "history.json"
    (logs / "ada").mkdir(parents=True)
    (logs / "ada" / "train-4711.out").write_text(
        "step 7\n[rank3]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
    )
    (logs / "14711.out").write_text("IndexError: of another job\n")
    found = called("--from", str(accounted), "--logs", str(logs), "--out", str(out), "--json")
    assert found.exit_code == 0, found.exception
    answer = json.loads(found.output)
    assert (answer["attempts"], answer["failures"], answer["logs"]) == (8, 4, 1)
    assert answer["unreadable_lines"] == 1 and answer["gpus_not_known"] == 1
    causes = answer["by_cause"]
    assert causes["node_failure"] == {
        "failures": 1, "lost_gpu_hours_at_most": 160.0, "sentinel_would": {"resume_excluding": 1}
    }  # fmt: skip
    assert causes["gpu_memory_ecc"]["lost_gpu_hours_at_most"] == 32.0
    assert causes["gpu_memory_ecc"]["sentinel_would"] == {"resume_excluding": 1}
    assert causes["app_oom_host"]["sentinel_would"] == {"not known": 1} and causes["unknown"]["failures"] == 1
    assert answer["lost_gpu_hours_at_most"] == pytest.approx(160 + 32 + 4)
    document = json.loads(out.read_text())
    assert len(document["failures"]) == 4 and document["gpu_s"] > 0
    # ... and it is what simulate takes.
    ran = CliRunner().invoke(simulate, ["--nodes", "8", "--days", "2", "--failures", str(out), "--json"])
    assert ran.exit_code == 0, ran.exception
    assert "4 failures" in next(r for r in json.loads(ran.output)["assumptions"] if "1000" in r["name"])["source"]


@pytest.mark.parametrize(
    "row",
    [
        "-5|a|t|FAILED|1:0|2026-01-01T00:00:00|2026-01-02T00:00:00|gres/gpu=8|n1",
        "5|a|t|FAILED|1:0|2026-01-02T00:00:00|2026-01-01T00:00:00|gres/gpu=8|n1",
        "5|a|t|FAILED|1:0|0001-01-01T00:00:00|2026-01-01T00:00:00|gres/gpu=8|n1",
        "5|a|t|FAILED|1:0|2026-01-01T00:00:00|9999-12-31T23:59:59|gres/gpu=8|n1",
    ],
)
def test_a_row_that_cannot_be_is_not_read(row: str) -> None:
    """It counted as seven hundred thousand million GPU-hours."""
    assert read(f"{row}\n", NOW) == ([], [1])


def test_the_log_of_a_task_of_an_array_is_not_that_of_the_job_with_the_arrays_number(tmp_path: Path) -> None:
    """Job 5 is the last task of array 5 (``5_2``); task ``5_1`` has the number 6."""
    row = "train|FAILED|1:0|2026-03-01T00:00:00|2026-03-01T10:00:00|gres/gpu=8|n1"
    attempts, _ = read(f"6|ada|{row}|5_1\n5|ada|{row}|5_2\n7|ada|{row}|7\n1|ada|{row}|1\n", NOW)
    assert [one.task for one in attempts] == [(5, 1), (5, 2), None, None]
    for name in (
        "a-5_1.out",
        "b-5_2.err",
        "c-5_2.out",
        "d-5_9.out",
        "e-6.out",
        "f_7_2026-03-01.out",
        "2026_7.log",
        "7ab1.sh",
        "beef7.sh",
    ):
        (tmp_path / name).write_text("")
    found = {job: [path.name for path in paths] for job, paths in logs_by_job(tmp_path, attempts).items()}
    assert found == {
        6: ["a-5_1.out", "e-6.out"],
        5: ["b-5_2.err", "c-5_2.out"],
        7: ["2026_7.log", "beef7.sh", "f_7_2026-03-01.out"],
    }


def test_sacct_is_asked_once_with_times_in_utc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for sacct that keeps what it was asked."""
    program = tmp_path / "sacct"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$TZ" "$@" > {tmp_path}/asked\ncat {tmp_path}/answer\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "answer").write_text(SACCT)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SENTINEL_CONFIG", str(tmp_path / "none.toml"))
    found = called("--slurm-accounting", "--since", "2026-02-01")
    assert found.exit_code == 0, found.exception
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == "UTC" and "--duplicates" in asked and "--allusers" in asked
    assert "4 failures" in found.output and "node_failure" in found.output and "restart it elsewhere" in found.output


def test_an_accounting_that_does_not_answer_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sacct"
    program.write_text("#!/bin/sh\necho 'sacct: error: slurmdbd: Connection refused' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = called("--slurm-accounting")
    assert found.exit_code != 0 and isinstance(found.exception, SentinelError)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "where from"),
        (("--slurm-accounting", "--from", "x"), "two sources"),
        (("--from", "/no/such/file"), "cannot be read"),
        (("--from", "{empty}"), "no attempt of a job"),
        (("--from", "{file}", "--since", "30"), "is no time"),
        (("--from", "{file}", "--gpus-per-node", "4"), "--gpus-per-node would change nothing without --out"),
        (("--from", "{file}", "--logs", "{file}"), "is no folder"),
        (("--from", "{file}", "--out", "{file}"), "is there already"),
        (("--from", "{file}", "--out", "/no/such/folder/x"), "cannot be written"),
    ],
)
def test_bad_input_is_refused_with_the_sentence_that_helps(
    arguments: tuple[str, ...], words: str, accounted: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("no rows\n\x00\xff\n")
    given = [word.format(file=accounted, empty=tmp_path / "empty") for word in arguments]
    found = called(*given)
    assert found.exit_code != 0 and isinstance(found.exception, SentinelError), found.output
    assert words in str(found.exception) and found.exception.fix


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else for a moment")
def test_a_folder_that_others_may_only_list_ends_nothing() -> None:
    """Anybody could leave one among the logs of a site."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for path in (folder / "slurm-4711.out", folder / "closed" / "slurm-4712.out"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("step 1\n")
        folder.chmod(0o755)
        (folder / "closed").chmod(0o744)
        problems: list[str] = []
        os.seteuid(65534)
        try:
            assert old_logs(folder) == [folder / "slurm-4711.out"]
            assert list(_files(folder, problems)) == [folder / "slurm-4711.out"]
        finally:
            os.seteuid(0)
        assert len(problems) == 1 and "slurm-4712.out" in problems[0] and "ermission denied" in problems[0]


@pytest.mark.parametrize(
    ("job", "code", "read_as"), [("7", "9" * 5000, (7, None)), ("7", "\u00b2", (7, None)), ("9" * 40, "1", None)]
)
def test_a_number_that_slurm_does_not_print_ends_no_import(
    job: str, code: str, read_as: tuple[int, None] | None
) -> None:
    row = f"{job}|ada|p|FAILED|{code}:0|2026-01-01T00:00:00|2026-01-01T01:00:00|gres/gpu=8|n1|7"
    attempts, unread = read(row, None)
    assert [(one.job, one.exit_code) for one in attempts] == ([read_as] if read_as else []) and len(unread) == (
        not read_as
    )
