"""Moving and copying: what is damaged or not there, what is not mounted, and a rate without a unit."""

from __future__ import annotations

import os
import shutil

import pytest
from saves.commands import rows, run

from sentinel.cli.checkpoints.move import parse_rate
from sentinel.errors import Refused, UserError


@pytest.mark.parametrize("deadline", [(), ("--deadline", "60")])
@pytest.mark.parametrize("command", ["drain", "replicate"])
def test_a_file_system_that_is_not_mounted_is_not_filled_in_its_place(make, command, deadline):
    path = make.dcp("nvme/run/step-10", step=10)
    result = run(command, path, "--to", make.root / "lustre/mnt/run", *deadline)
    assert isinstance(result.exception, UserError) and result.exception.exit_status == 2
    assert str(make.root / "lustre/mnt") in result.exception.message and "mkdir" in result.exception.fix
    assert not (make.root / "lustre").exists()
    (make.root / "lustre/mnt").mkdir(parents=True)
    assert run(command, path, "--to", make.root / "lustre/mnt/run").exception is None
    assert (make.root / "lustre/mnt/run/step-10/.metadata").exists()


def cut_short(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


@pytest.mark.parametrize("command", ["drain", "replicate"])
def test_what_is_damaged_here_waits_for_no_other_node(make, command):
    """And those beside it are copied all the same."""
    (make.root / "shared").mkdir()
    paths = [make.dcp(f"nvme/run/step-{step}", step=step) for step in (10, 20)]
    cut_short(paths[0] / "__0_0.distcp")
    make.age(paths[0] / "__0_0.distcp", 3600)
    result = run(command, *paths, "--to", make.root / "shared/run", "--json")
    torn, whole = rows(result)
    assert "__0_0.distcp" in torn["damaged"] and not torn["complete"] and not torn["waiting_for"]
    assert whole["complete"] and not whole["damaged"]
    assert isinstance(result.exception, Refused) and result.exception.exit_status == 4
    assert not (make.root / "shared/run/step-10").exists()
    (make.root / "shared/run2").mkdir()
    assert "damaged here" in run(command, *paths, "--to", make.root / "shared/run2").stdout


def test_a_wrong_checksum_among_all_files_waits_for_no_other_node(make):
    (make.root / "shared").mkdir()
    path = make.dcp("nvme/run/step-10", step=10)
    shard = path / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[data.index(b"archive/data/0") + 100] ^= 1
    shard.write_bytes(data)
    make.age(shard, 3600)
    result = run("drain", path, "--to", make.root / "shared/run", "--json")
    assert "CRC" in rows(result)[0]["damaged"] and isinstance(result.exception, Refused)
    assert not (make.root / "shared/run/step-10").exists()


def test_the_shards_of_one_node_wait_for_the_others(make):
    (make.root / "shared").mkdir()
    whole = make.dcp("all/step-10", per_rank=True)
    mine = make.root / "nvme/run/step-10"
    mine.mkdir(parents=True)
    for file in whole.glob("__0[._]*"):
        shutil.copy2(file, mine / file.name)
    result = run("drain", mine, "--to", make.root / "shared/run", "--json")
    assert result.exception is None and rows(result)[0]["waiting_for"] and not rows(result)[0]["damaged"]


@pytest.mark.parametrize("text", ["5", "200", "1.5", "500000000", "0MB/s", "-3MB/s", "fast"])
def test_a_rate_says_its_unit(make, text):
    with pytest.raises(UserError) as refused:
        parse_rate(text)
    assert refused.value.fix
    path = make.dcp("nvme/run/step-10", step=10)
    (make.root / "shared").mkdir()
    result = run("drain", path, "--to", make.root / "shared/run", f"--rate={text}")
    assert result.exception.exit_status == 2 and not (make.root / "shared/run").exists()


def test_rates():
    assert parse_rate(None) is None
    assert [parse_rate(text) for text in ("500MB/s", "1.5 GiB/s", "8Gbit/s", "200M", "2GiB")] == [
        500e6,
        1.5 * 2**30,
        1e9,
        200e6,
        2**31,
    ]


@pytest.mark.parametrize("seconds", ["0", "-5"])
def test_no_time_between_checkpoints_is_no_argument(make, seconds):
    path = make.dcp("nvme/run/step-10", step=10)
    (make.root / "shared").mkdir()
    result = run("drain", path, "--to", make.root / "shared/run", "--interval", seconds)
    assert getattr(result.exception, "exit_code", None) == 2


def test_nothing_that_is_set_aside_is_said(make):
    for step in (10, 20):
        make.dcp(f"run/step-{step}", step=step, ranks=1)
    root = make.root / "run"
    run("quarantine", root, root / "step-20", "--yes")
    assert "step-10" in run("quarantine", root, "--undo", root / "step-10").stdout
    assert "<-" in run("quarantine", root, "--undo").stdout
    for words in (("--undo",), ("--list",)):
        again = run("quarantine", root, *words)
        assert again.exception is None and f"Nothing of {root} is set aside" in again.stdout
        assert run("quarantine", root, *words, "--json").stdout == ""


@pytest.mark.parametrize("command", ["drain", "replicate"])
@pytest.mark.parametrize("place", ["run", "peer", "run/../run", "run/step-10"])
def test_the_checkpoint_itself_is_no_second_copy(make, command, place):
    path = make.dcp("run/step-10", step=10)
    (make.root / "peer").symlink_to("run")
    before = sorted(path.rglob("*"))
    result = run(command, path, "--to", make.root / place, "--json")
    assert isinstance(result.exception, UserError) and "no second copy" in result.exception.message, result.output
    assert sorted(path.rglob("*")) == before and not (make.root / ".incoming").exists()


@pytest.mark.parametrize("command", ["drain", "replicate"])
def test_hard_links_are_no_second_copy(make, command):
    path = make.dcp("run/step-10", step=10)
    shutil.copytree(path, make.root / "peer/step-10", copy_function=os.link)
    result = run(command, path, "--to", make.root / "peer")
    assert isinstance(result.exception, UserError) and "no second copy" in result.exception.message
