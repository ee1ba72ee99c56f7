"""What tests lean on must hold as well: required things are not skipped, and nothing outlives a killed test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy

TESTS = Path(__file__).resolve().parents[1]
SKIPS = """
import pytest

@pytest.mark.slurm
def test_marked():
    pytest.skip("not here")

def test_told():
    pytest.skip("needs postgres: initdb is not installed")

@pytest.mark.slurm
def test_optional():
    pytest.skip("optional: pyslurm is not installed")

def test_other():
    pytest.skip("no samples here")

def test_imported():
    pytest.importorskip("torch.nowhere")
"""


def outcomes(folder: Path, *options: str) -> tuple[int, str]:
    (folder / "test_skips.py").write_text(SKIPS)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "conftest",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(folder),
            "-rA",
            *options,
            "-o",
            "markers=slurm",
            str(folder / "test_skips.py"),
        ],
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS / 'support'}"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_without_requirements_skips_are_skips(tmp_path: Path) -> None:
    status, said = outcomes(tmp_path)
    assert status == 0
    assert "5 skipped" in said


def test_a_required_thing_that_is_missing_fails(tmp_path: Path) -> None:
    status, said = outcomes(tmp_path, "--require=slurm,postgres,torch")
    assert status == 1
    assert "3 failed, 2 skipped" in said
    assert "test_marked: skipped although slurm is required here: Skipped: not here" in said
    assert "test_told: skipped although postgres is required" in said
    assert "test_imported: skipped although torch is required" in said


def test_only_what_is_named_is_required(tmp_path: Path) -> None:
    status, said = outcomes(tmp_path, "--require=postgres")
    assert (status, "1 failed, 4 skipped" in said) == (1, True)


def test_a_misspelt_requirement_is_an_error(tmp_path: Path) -> None:
    status, said = outcomes(tmp_path, "--require=slrum")
    assert status == 4
    assert "no such thing: slrum" in said


def test_a_module_skipped_for_want_of_something_required_fails(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text("import pytest\npytest.importorskip('torch.nowhere')\n")
    status, said = outcomes(tmp_path, "--require=torch", str(tmp_path / "test_module.py"))
    assert status != 0
    assert "test_module.py: skipped although torch is required" in said


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_killed_test(how: signal.Signals) -> None:
    program = (
        "import os, subprocess, sys, time\nfrom servers.keeper import Keeper\nkept = Keeper('kt-')\n"
        "child = subprocess.Popen(['sleep', '600'], env={**os.environ, **kept.environment}, start_new_session=True)\n"
        "print(kept.folder, child.pid, flush=True)\ntime.sleep(600)\n"
    )
    test = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{TESTS / 'support'}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with test:
        assert test.stdout is not None
        folder, child = test.stdout.readline().split()
        assert Path(folder).is_dir()
        assert alive(int(child))
        test.send_signal(how)
    deadline = time.monotonic() + 60
    while (alive(int(child)) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(child))
    assert not Path(folder).exists()


@pytest.mark.postgres
def test_the_postgres_server_takes_tables(postgres_url: str) -> None:
    pytest.importorskip("psycopg")
    engine = sqlalchemy.create_engine(postgres_url)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TEMPORARY TABLE t (x INTEGER)"))
        connection.execute(sqlalchemy.text("INSERT INTO t VALUES (42)"))
        assert connection.execute(sqlalchemy.text("SELECT x FROM t")).scalar_one() == 42
    engine.dispose()
