"""What `find` says where nothing is proven, where saves are numbered, and where the format is not known."""

from __future__ import annotations

import json
import os
import shlex
import shutil

import pytest
from click.testing import CliRunner

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.records import Costs
from sentinel.checkpoints.steps import number_of
from sentinel.cli import _say_error as say_error
from sentinel.cli.checkpoints.commands import checkpoints
from sentinel.errors import Refused


def run(*words):
    return CliRunner().invoke(checkpoints, [str(word) for word in words])


def hf_run(make):
    for step in (10, 20, 30):
        make.hf(f"run/checkpoint-{step}", step)
    return make.root / "run"


@pytest.mark.parametrize("asked", [("--onset-step", 25), ("--level", "checksum"), ("--level", "content")])
def test_says_what_it_would_take(make, asked):
    result = run("find", "--global", hf_run(make), *asked)
    assert isinstance(result.exception, Refused)
    step = 20 if "--onset-step" in asked else 30
    assert f"step {step}" in result.exception.fix and "manifest" in result.exception.fix
    assert f"checkpoint-{step}" in result.exception.fix


@pytest.mark.parametrize("columns", [80, None])
def test_a_path_with_spaces_stays_whole_and_can_be_pasted(make, monkeypatch, capsys, columns):
    """On a terminal, where lines are broken, and in a pipe."""
    at = "a folder with a rather long name for a run of pretraining/it's"
    make.hf(f"{at}/checkpoint-30", 30)
    path = make.root / at / "checkpoint-30"
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", str(columns))
    say_error(run("find", "--global", path.parent, "--level", "content").exception)
    lines = capsys.readouterr().err.splitlines()
    whole = [line for line in lines if shlex.quote(str(path)) in line]
    assert whole, lines
    assert (max(len(line) for line in lines if line not in whole) <= 80) is (columns == 80), lines
    say_error(run("find", "--global", f"{path} that is not there").exception)
    assert f"{path} that is not there" in capsys.readouterr().err


def test_in_json_too(make):
    result = run("find", "--global", hf_run(make), "--onset-step", 25, "--json")
    answer = json.loads(result.output)
    assert answer["chosen"] is None and answer["by_structure"]["step"] == 20


def test_what_was_read_and_is_invalid_is_not_advised(make):
    root = hf_run(make)
    file = root / "checkpoint-30/optimizer.pt"
    data = bytearray(file.read_bytes())
    at = data.index(b"PK\x07\x08", data.index(b"data/1")) - 3
    data[at] ^= 8
    status = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    result = run("find", "--global", root, "--level", "checksum")
    assert "step 20" in result.exception.fix


def test_a_manifest_answers_it(make):
    root = hf_run(make)
    for step in (10, 20, 30):
        assert run("manifest", root / f"checkpoint-{step}").exit_code == 0
    result = run("find", "--global", root, "--onset-step", 25, "--json")
    assert json.loads(result.output)["chosen"]["step"] == 20


def test_unchecked_formats_are_counted(make):
    for step in (1, 2):
        make.write(make.root / f"run/step_{step}/model_state.pdparams", b"x")
    result = run("find", "--global", make.root / "run")
    assert "2 that look like Paddle" in result.exception.fix
    shutil.rmtree(make.root / "run")
    (make.root / "run").mkdir()
    result = run("find", "--global", make.root / "run")
    assert "looks like a checkpoint" in result.exception.fix


@pytest.mark.parametrize(
    ("name", "number"),
    [("checkpoint_0", 0), ("checkpoint_000003", 3), ("epoch_2.pt", 2), ("17", 17), ("checkpoint-4", None), ("step_3", None),
     ("model", None), ("0050000.pt", 50000), ("checkpoint-12.pth.tar", 12), ("model_epoch_3.pth", 3), ("00001.tar", None)],
)  # fmt: skip
def test_numbers_of_saves(name, number):
    assert number_of(name) == number


def numbered(make, *numbers):
    for number in numbers:
        make.accelerate(f"run/checkpoints/checkpoint_{number}")
    return join([listing(make.root / "run", "global", None, now_s=make.now_s)])


def decide(candidates, **more):
    where = {"next_nodes": None, "lost_nodes": frozenset(), "world_size": None, "costs": Costs()}
    return choose(candidates, step_last=None, step_time_s=1, **where, **more)


def test_numbered_saves_are_in_order(make):
    decision = decide(numbered(make, 0, 2, 11))
    assert decision.chosen is not None and decision.chosen.path.endswith("checkpoint_11")
    assert "number 11" in decision.explanation
    shutil.rmtree(make.root / "run/checkpoints/checkpoint_11")
    (make.root / "run/checkpoints/checkpoint_2/model.safetensors").write_bytes(b"")
    decision = decide(join([listing(make.root / "run", "global", None, now_s=make.now_s)]))
    assert decision.chosen is not None and decision.chosen.path.endswith("checkpoint_0")


def test_with_bad_numbers_a_step_must_be_known(make):
    assert decide(numbered(make, 0, 1), onset_step=5, level="structural").chosen is None


def test_ray_trains_folders_are_found(make):
    value, payloads = make.state(10)
    for number in (0, 1):
        make.write(
            make.root / f"run/TorchTrainer_1/checkpoint_{number:06d}/state.pt",
            make.torch_file({"optimizer": value}, payloads),
        )
    parts = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert [(part.number, part.valid) for part in parts] == [(1, True), (0, True)]


@pytest.mark.parametrize("name", ["ft-replicat-0", "ft-replica-12"])
def test_a_replica_of_torchft_holds_no_model(make, name):
    """Its data loaders are saved at every step: a restart that chose the newest of these would have no weights."""
    make.dcp("run/step-10", step=10)
    make.dcp(f"run/{name}/step-20", step=20)
    parts = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert [part.step for part in parts] == [10]


@pytest.mark.parametrize("name", ["a_folder_with_a_rather_long_name", "a folder with a rather long name"])
def test_a_path_stays_on_one_line(make, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    deep = "/".join([name] * 3)
    path = make.dcp(f"{deep}/step-10", step=10)
    for command in (("find", "--global", path.parent), ("validate", path), ("inventory", "--global", path.parent)):
        lines = run(*command).output.splitlines()
        assert any(f"{deep}/step-10" in line for line in lines), lines


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_weights_that_were_exported_beside_whole_saves(make, kind):
    """Of a higher step, and without an optimizer to go on with."""
    make.dcp("run/step-10", step=10)
    model = {"layer.weight": make.tensor((16, 8))}
    if kind == "pt":
        data = make.torch_file(model, [make.floats(128)])
    else:
        data = make.safetensors({"layer.weight": ("F32", (16, 8), make.floats(128))}, {"format": "pt"})
    make.write(make.root / f"run/model_step_30.{kind}", data)
    parts = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert [(part.step, part.valid) for part in parts] == [(30, None), (10, True)], parts
    assert "without an optimizer" in parts[0].reason
    shutil.rmtree(make.root / "run/step-10")
    (make.root / "run/logs-step-10").mkdir()
    (part,) = [part for part in listing(make.root / "run", "global", None, now_s=make.now_s) if part.step == 30]
    assert part.valid is True, "no whole save lies beside it"


@pytest.mark.parametrize("state", [{"optimizer": {"state": {}}}, {"step": 30}, {"state": {"optimizers": {}}}])
def test_a_file_that_is_more_than_weights_counts_beside_whole_saves(make, state):
    """A run that went from a folder for each save to one file."""
    make.dcp("run/step-10", step=10)
    data = make.torch_file({"model": {"layer.weight": make.tensor((16, 8))}, **state}, [make.floats(128)])
    make.write(make.root / "run/model_step_30.pt", data)
    parts = listing(make.root / "run", "global", None, now_s=make.now_s)
    assert [(part.step, part.valid) for part in parts] == [(30, True), (10, True)], parts
