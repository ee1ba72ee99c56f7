"""Seeds shared out over a job array, a shell here; a real Slurm: ``tests/contract/slurm/test_simulate_slurm.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli.simulate.command import simulate
from sentinel.cli.simulate.job_array import read_part, shares, write_part
from sentinel.errors import ProtocolError, SentinelError, UserError
from sentinel.simulate.long_run.scenario import Scenario
from sentinel.simulate.long_run.seeds import run_one

SMALL = ("--nodes", "16", "--days", "2", "--json")


def test_every_seed_is_in_one_share() -> None:
    assert shares(range(5, 12), 3) == [range(5, 7), range(7, 9), range(9, 12)]
    assert shares(range(5, 7), 9) == [range(5, 6), range(6, 7)]


def test_what_a_task_found_is_read_as_it_was(tmp_path: Path) -> None:
    ran = run_one(Scenario(nodes=16, days=2.0), 3, "sentinel")
    write_part(tmp_path / "0.json", [(4, ran)])
    assert read_part(tmp_path / "0.json") == [(4, ran)] and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("text", ["", "[{", "{}", "[]", "[1]", '[{"scenario": 1}]', '[{"scenario": 0, "no": "field"}]'])
def test_what_is_no_answer_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "0.json").write_text(text)
    with pytest.raises(ProtocolError, match=r"0\.json"):
        read_part(tmp_path / "0.json")


def commands(folder: Path, sbatch: str) -> str:
    """A PATH whose sbatch is this script."""
    for name, script in (("sbatch", sbatch), ("squeue", "exit 0"), ("scancel", f'echo "$1" >{folder}/cancelled')):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_the_figures_are_those_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (alone,) = CliRunner().invoke(simulate, [*SMALL, "--seed", "3", "--seeds", "3"]).stdout.splitlines()
    run_it = 'for last; do :; done; for task in 0 1; do SLURM_ARRAY_TASK_ID=$task sh "$last" || exit; done; echo 17'
    monkeypatch.setenv("PATH", commands(tmp_path, run_it))
    monkeypatch.chdir(tmp_path)
    shared = CliRunner().invoke(simulate, [*SMALL, "--seed", "3", "--seeds", "3", "--slurm", "2"])
    assert shared.exit_code == 0, shared.exception
    assert {**json.loads(shared.stdout), "wall_s": 0} == {**json.loads(alone), "wall_s": 0}
    assert not list(tmp_path.glob("sentinel-simulate-*"))


def test_a_task_without_an_answer_is_told_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = 'for last; do :; done; echo "no such \033[31mfile" >"$(dirname "$last")/0.log"; echo 17'
    monkeypatch.setenv("PATH", commands(tmp_path, says))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sentinel.cli.simulate.job_array._LATE_S", 0.0)
    monkeypatch.setattr("sentinel.cli.simulate.job_array._LOOK_S", 0.0)
    found = CliRunner().invoke(simulate, [*SMALL, "--slurm", "1"])
    assert isinstance(found.exception, SentinelError) and (tmp_path / "cancelled").read_text() == "17\n"
    assert "task 0 of job 17" in str(found.exception) and "\033" not in str(found.exception)


def test_an_option_that_sbatch_refuses_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", commands(tmp_path, "echo 'sbatch: error: invalid partition' >&2; exit 1"))
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(simulate, [*SMALL, "--slurm", "1", "--sbatch", "--partition=none"])
    assert "invalid partition" in str(found.exception) and not list(tmp_path.glob("sentinel-simulate-*"))


@pytest.mark.parametrize("options", [("--slurm", "-1"), ("--slurm", "1001"), ("--sbatch", "-p x")])
def test_absurd_numbers_of_tasks_are_refused(options: tuple[str, ...]) -> None:
    assert isinstance(CliRunner().invoke(simulate, [*SMALL, *options]).exception, SentinelError)


def test_options_that_are_no_words_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", commands(tmp_path, f"touch {tmp_path}/submitted"))
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(simulate, [*SMALL, "--slurm", "1", "--sbatch", "--comment='"])
    assert isinstance(found.exception, UserError) and "--sbatch" in str(found.exception)
    assert not (tmp_path / "submitted").exists() and not list(tmp_path.glob("sentinel-simulate-*"))


def test_what_the_array_is_no_option_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an option that is given twice sbatch takes the last one."""
    monkeypatch.setenv("PATH", commands(tmp_path, f'printf "%s\n" "$@" >{tmp_path}/words; exit 1'))
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(simulate, [*SMALL, "--seeds", "2", "--slurm", "2", "--sbatch", "--array=0-99 --output=x"])
    words = (tmp_path / "words").read_text().splitlines()
    last = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    assert last["--array"] == "0-1" and last["--output"].endswith("%a.log")


def test_a_submission_without_a_number_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with --test-only: there is nothing to wait for, and nothing that could be cancelled."""
    monkeypatch.setenv("PATH", commands(tmp_path, "exit 0"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sentinel.cli.simulate.job_array._LATE_S", 0.0)
    monkeypatch.setattr("sentinel.cli.simulate.job_array._LOOK_S", 0.0)
    found = CliRunner().invoke(simulate, [*SMALL, "--slurm", "1"])
    assert isinstance(found.exception, SentinelError) and "no number" in str(found.exception)
    assert not (tmp_path / "cancelled").exists() and not list(tmp_path.glob("sentinel-simulate-*"))
