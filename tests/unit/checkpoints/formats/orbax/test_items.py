"""The items of a step: ``_CHECKPOINT_METADATA``, which a copy in the order of the names brings first, names them."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from sentinel.checkpoints.files import Broken, Entry, NotKnown, scan
from sentinel.checkpoints.formats.base import Ask
from sentinel.checkpoints.formats.jax import orbax
from sentinel.checkpoints.validate import validate

NOW_S = 2_000_000_000.0
RECORDED = Path(__file__).parents[1] / "recorded"


def step_of(version, tmp_path):
    """The only step of a run that Orbax itself wrote: items ``extra`` (JSON) and ``state``."""
    with tarfile.open(RECORDED / f"orbax-{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.rmtree(tmp_path / "manager/10")
    return tmp_path / "manager/20"


def ask(path):
    return validate(path, "structural", now_s=NOW_S)


@pytest.mark.parametrize("item", ["extra", "state"])
@pytest.mark.parametrize("left", ["nothing", "its folder", "its first file"])
def test_an_item_that_did_not_come(tmp_path, item, left):
    step = step_of("0.12.8", tmp_path)
    assert ask(step).valid is True
    shutil.rmtree(step / item)
    if left != "nothing":
        (step / item).mkdir()
    if left == "its first file":
        (step / item / "commit_success.txt").write_text("x")
        os.utime(step / item / "commit_success.txt", (1e9, 1e9))
    answer = ask(step)
    assert answer.valid is False, answer
    if item == "extra":  # of the other one nothing is left that any item is known by
        assert "extra is missing, which _CHECKPOINT_METADATA names" in answer.reason


def test_the_state_of_which_only_the_sharding_came(tmp_path):
    step = step_of("0.12.8", tmp_path)
    shutil.copytree(step / "state", step / "more")
    described = json.loads((step / "_CHECKPOINT_METADATA").read_text())
    described["item_handlers"]["more"] = described["item_handlers"]["state"]
    rewrite(step / "_CHECKPOINT_METADATA", described)
    assert ask(step).valid is True
    for file in [file for file in (step / "more").rglob("*") if file.is_file() and file.name != "_sharding"]:
        file.unlink()
    answer = ask(step)
    assert answer.valid is False and "more/_METADATA is missing" in answer.reason, answer


@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_an_item_without_arrays_has_no_store(tmp_path, use_ocdbt):
    """As Keras's callback saves the model's settings: a tree of one string (recorded from Orbax 0.12.8)."""
    step = step_of("0.12.8", tmp_path)
    settings = step / "model_config"
    settings.mkdir()
    value = {"value_type": "string", "skip_deserialize": False}
    leaf = {"key_metadata": [{"key": "config", "key_type": 2}], "value_metadata": value}
    empty = {"key_metadata": [{"key": "more", "key_type": 2}], "value_metadata": {"value_type": "Dict"}}
    table = {"('config',)": leaf, "('more',)": empty}
    described = {"tree_metadata": table, "use_ocdbt": use_ocdbt, "use_zarr3": use_ocdbt}
    (settings / "_METADATA").write_text(json.dumps(described))
    (settings / "_strings.json").write_text(json.dumps({"config": "a"}))
    for file in settings.iterdir():
        os.utime(file, (1e9, 1e9))
    assert ask(step).valid is True, ask(step)
    value["value_type"] = "jax.Array"
    rewrite(settings / "_METADATA", described)
    assert ask(step).valid is False, ask(step)


def test_the_handler_of_a_program_may_write_no_file(tmp_path):
    step = step_of("0.12.8", tmp_path)
    described = json.loads((step / "_CHECKPOINT_METADATA").read_text())
    described["item_handlers"] |= {"mine": "train.handlers.MyHandler", "theirs": None}
    rewrite(step / "_CHECKPOINT_METADATA", described)
    for item in ("mine", "theirs"):
        assert f"the item {item} is missing" in ask(step).reason
        (step / item).mkdir()
    assert ask(step).valid is True


def test_what_names_no_items(tmp_path):
    """Before, Orbax described no items; which a step has is the program's to say."""
    step = step_of("0.6.4", tmp_path)
    shutil.rmtree(step / "extra")
    assert ask(step).valid is True


def rewrite(file, told):
    then = file.stat().st_mtime
    file.write_text(json.dumps(told))
    os.utime(file, (then, then))


class Counted(dict[str, Entry]):
    """Files of a save that count how often all of them are gone through."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def test_files_are_gone_through_once_however_many_items_are_named(tmp_path):
    """Any folder may be named as an item of somebody's own kind."""

    def times(count):
        save = tmp_path / f"{count}/10"
        for item in range(count):
            (save / f"i{item}").mkdir(parents=True)
            (save / f"i{item}/data").write_bytes(b"1")
        told = {"item_handlers": {f"i{item}": "own.Handler" for item in range(count)}, "commit_timestamp_nsecs": 1}
        (save / "_CHECKPOINT_METADATA").write_text(json.dumps(told))
        tree = scan(save)
        tree.files = files = Counted(tree.files)
        with pytest.raises((Broken, NotKnown), match="no item in it"):
            orbax.check(tree, Ask("structural", NOW_S))
        return files.times

    assert times(30) == times(3)


@pytest.mark.parametrize("name", ["loader/rank_0.pt", "torch.pt"])
def test_a_torch_file_in_a_step(make, tmp_path, name):
    """PyTorch's part of a program, cut in half: it may be anybody's, but the step beside has it whole."""
    step = step_of("0.12.8", tmp_path)

    def write(folder, data):
        make.write(folder / name, data)
        os.utime(folder / name, (1e9, 1e9))

    data = make.torch_file({"cursor": 7})
    write(step, data)
    assert ask(step).valid is True, ask(step)
    write(step, data[:-40])
    assert ask(step).valid is True, ask(step)
    shutil.copytree(step, step.with_name("10"))
    write(step.with_name("10"), data)
    assert ask(step).valid is None, ask(step)
