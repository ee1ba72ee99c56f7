"""What ``sentinel classify -`` takes, and paths that are empty since a variable was not set."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel import cli as root
from sentinel.cli.offline.log_blocks import blocks
from sentinel.errors import UserError

LOG = b"Traceback (most recent call last):\nValueError: bad shape\n"


def judged(given: bytes) -> tuple[int, str]:
    words = [sys.executable, "-m", "sentinel", "classify", "-"]
    done = subprocess.run(words, input=given, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout.decode()


BINARY = {
    "bytes": bytes(range(256)) * 64,
    "pickle": b"\x80\x04\x95" + bytes(range(255, -1, -1)) * 64,
    "gzip": gzip.compress(LOG * 9),
}


@pytest.mark.parametrize("given", BINARY.values(), ids=list(BINARY))
def test_binary_data_is_refused_as_in_a_file(given: bytes) -> None:
    status, told = judged(given)
    assert status == 2 and "cannot be judged" in told


def test_a_log_is_judged() -> None:
    status, told = judged(LOG)
    assert status == 0 and "user_code" in told


@pytest.fixture
def standard_input() -> Iterator[int]:
    kept = os.dup(0)
    yield 0
    os.dup2(kept, 0)
    os.close(kept)


def test_a_device_has_no_end(standard_input: int) -> None:
    with open("/dev/zero", "rb") as zero:
        os.dup2(zero.fileno(), standard_input)
    with pytest.raises(UserError, match="a device"):
        next(blocks(Path("-")))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), standard_input)
    assert list(blocks(Path("-"))) == []


@pytest.mark.parametrize(
    "words",
    [
        "classify", "hang", "replay", "import --from", "import --logs", "checkpoints validate", "checkpoints find --global",
        "checkpoints find --local", "checkpoints find --global . --rejected", "checkpoints inventory --global",
        "checkpoints quarantine", "checkpoints quarantine .", "checkpoints manifest", "checkpoints drain . --to",
        "checkpoints replicate . --to", "rules list --rules",
    ],
)  # fmt: skip
def test_an_empty_path_is_not_the_current_folder(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.txt").write_bytes(LOG)
    result = CliRunner().invoke(root.cli, [*words.split(), ""])
    assert isinstance(result.exception, UserError) and "a path is empty" in result.exception.message, result.output
