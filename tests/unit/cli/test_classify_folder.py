"""What ``sentinel classify`` says of a folder's files that it does not read."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli.offline.classify import classify

XID = "Mar  1 10:00:05 n17 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"


def ask(*arguments: object, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(classify, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:  # that anybody may enter
        Path(made).chmod(0o755)
        (Path(made) / "n17").mkdir()
        (Path(made) / "out.log").write_text("step 1 loss 2.0\n")
        (Path(made) / "n17/kern.log").write_text(XID)
        yield Path(made)


def test_all_that_is_there(folder: Path) -> None:
    assert "gpu_fallen_off_bus" in ask(folder) and "not read" not in ask(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else for a moment")
@pytest.mark.parametrize("closed", ["n17", "n17/kern.log"])
def test_what_may_not_be_read(folder: Path, closed: str) -> None:
    (folder / closed).chmod(0)
    os.seteuid(65534)
    try:
        told, answer = ask(folder, code=2), json.loads(ask(folder, "--json", code=2))
    finally:
        os.seteuid(0)
    assert f"not read: {folder / closed}: Permission denied" in told, told
    assert str(folder / closed) in answer["unreadable"] and "error" not in answer


def test_a_compressed_one(folder: Path) -> None:
    (folder / "n17/kern.log").unlink()
    (folder / "n17/kern.log.gz").write_bytes(gzip.compress(XID.encode()))
    told = ask(folder, code=2)
    assert "kern.log.gz: compressed (zcat unpacks it)" in told, told


def test_a_link_to_a_log_elsewhere(folder: Path, tmp_path: Path) -> None:
    os.rename(folder / "n17/kern.log", folder.parent / f"{folder.name}.kept")
    try:
        (folder / "n17/kern.log").symlink_to(folder.parent / f"{folder.name}.kept")
        (folder / "n18").symlink_to(tmp_path)
        (folder / "latest.log").symlink_to("out.log")
        told, answer = ask(folder), json.loads(ask(folder, "--json"))
    finally:
        (folder.parent / f"{folder.name}.kept").unlink()
    for name in ("n17/kern.log", "n18"):
        assert f"{folder / name}: a symbolic link, not followed" in answer["left_out"]
    assert "not read: " in told and "latest.log" not in told, "that one is read under its own name"


def test_a_core_file_beside_a_log_is_said_and_no_failure(folder: Path) -> None:
    (folder / "core.123").write_bytes(b"\x7fELF" + bytes(range(256)) * 64)
    assert "gpu_fallen_off_bus" in ask(folder) and "core.123: binary, not a log" in ask(folder)


def test_dumps_that_cannot_be_read(folder: Path) -> None:
    (folder / "nccl_trace_rank_0").write_bytes(b"")
    (folder / "nccl_trace_rank_1").write_bytes(b"\x80\x04\x95")
    assert "nccl_trace_rank_1: " in json.loads(ask(folder, "--json", code=2))["unreadable"]


def test_many_are_counted(folder: Path) -> None:
    for number in range(12):
        (folder / f"core.{number}").write_bytes(bytes(range(256)) * 64)
    assert "; and 4 more" in ask(folder)
