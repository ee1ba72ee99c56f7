"""Logs of machines in a folder of old logs: whose they are, and when their lines were written."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel import cli as root
from sentinel.cli.recordings.machine_logs import node_of

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."
SACCT = "1|ada|gpu|FAILED|1:0|2026-11-02T03:50:00|2026-11-02T05:00:10|gres/gpu=16,node=2|n[6-7]|1\n"
ISO = "2026-11-02T04:30:00,000000+00:00 "


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("SENTINEL_CONFIG", raising=False)
    with tempfile.TemporaryDirectory() as made:  # that anybody may enter
        Path(made).chmod(0o755)
        (Path(made) / "slurm-1.out").write_text("2026-11-02T05:00:01 Traceback (most recent call last):\n")
        (Path(made) / "sacct.txt").write_text(SACCT)
        yield Path(made)


def replayed(folder: Path) -> tuple[list[dict[str, object]], dict[str, object]]:
    result = CliRunner().invoke(root.cli, ["replay", str(folder), "--json"])
    assert result.exit_code in (0, 1), result.output
    *found, last = map(json.loads, result.output.splitlines())
    return [one["now"] for one in found], last


@pytest.mark.parametrize(
    "name",
    [
        "dmesg-n7.txt",
        "dmesg.n7",
        "n7/dmesg.txt",
        "kern.log-n7",
        "messages-n7-20261102",
        "journal-n7.1",
        "syslog.n7.log",
    ],
)
def test_the_node_in_the_name(folder: Path, name: str) -> None:
    (folder / "n7").mkdir()
    (folder / name).write_text(f"{ISO}{XID}\n")
    found, last = replayed(folder)
    assert found[0]["drain"] == ["n7"] and last["unreadable"] == 0, (found, last)


@pytest.mark.parametrize(
    ("name", "nodes", "node"),
    [
        ("dmesg-n7.txt", (), "n7"), ("dmesg-gpu-n7.txt", (), "gpu-n7"), ("dmesg-gpu-n7.txt", ("n7", "gpu-n7"), "gpu-n7"),
        ("dmesg-gpu-n7.txt", ("n7",), None), ("dmesg-old.txt", (), None), ("dmesg-20261102", (), None),
        ("dmesg.1", (), None), ("dmesg.txt", (), None), ("dmesg-n7", ("n1",), None),
        ("dmesg-n7.cluster.site", ("n7",), "n7"),
        ("dmesg-n7-2026-11-02.txt", ("n7",), "n7"), ("train-n7.out", ("n7",), None),
    ],
)  # fmt: skip
def test_only_the_name_behind_the_logs_own(name: str, nodes: tuple[str, ...], node: str | None) -> None:
    assert node_of(Path("/logs") / name, Path("/logs"), nodes) == node


@pytest.mark.parametrize(
    "head", ["[Mon Nov  2 04:30:00 2026] ", "Nov  2 04:30:00 n7 kernel: ", "<4>Nov  2 04:30:00 n7 kernel: "]
)
def test_dates_as_dmesg_and_syslog_write_them(folder: Path, head: str) -> None:
    (folder / "dmesg-n7.txt").write_text(f"{head}{XID}\n")
    found, last = replayed(folder)
    assert found[0]["drain"] == ["n7"] and last["unreadable"] == 0, (found, last)


def test_a_date_that_may_be_of_several_years_is_not_guessed(folder: Path) -> None:
    later = SACCT.replace("2026", "2027").replace("1|ada", "2|ada", 1)
    (folder / "sacct.txt").write_text(SACCT + later)
    (folder / "dmesg-n7.txt").write_text(f"Nov  2 04:30:00 n7 kernel: {XID}\n")
    found, last = replayed(folder)
    assert all(not one["drain"] for one in found) and last["unreadable"] == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else for a moment")
def test_a_log_that_may_not_be_read_is_counted(folder: Path) -> None:
    for name in ("dmesg-n7.txt", "dmesg-n6.txt"):
        (folder / name).write_text(f"{ISO}{XID}\n")
    (folder / "dmesg-n6.txt").chmod(0)
    os.seteuid(65534)
    try:
        found, last = replayed(folder)
    finally:
        os.seteuid(0)
    assert found[0]["drain"] == ["n7"] and last["unreadable"] == 1
