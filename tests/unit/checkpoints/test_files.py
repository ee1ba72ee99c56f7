"""The tree of a checkpoint's files, seen from the folders inside."""

from __future__ import annotations

import random

import pytest

from sentinel.checkpoints.files import Entry, Tree, scan
from sentinel.checkpoints.formats import safetensors_file
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.validate import validate


class Counted(dict):
    """A table that counts how often somebody goes through all of it."""

    passes = 0

    def __iter__(self):
        Counted.passes += 1
        return super().__iter__()

    def items(self):
        Counted.passes += 1
        return super().items()


def entry():
    return Entry(1, 0.0, 1, 0)


def slowly(tree, folder):
    prefix = folder + "/"
    return {name[len(prefix) :]: held for name, held in tree.files.items() if name.startswith(prefix)}


def test_a_folder_holds_what_its_name_and_a_slash_begin(tmp_path):
    names = ["a", "b", "a.b", "a-b", "a/b", "a0", "a\udcff", "\U0010ffff", "a b"]
    chosen = random.Random(3)
    tree = Tree(tmp_path)
    for _ in range(600):
        tree.files["/".join(chosen.choices(names, k=chosen.randint(1, 4)))] = entry()
    for folder in {name.rpartition("/")[0] for name in tree.files} - {""}:
        assert tree.below(folder).files == slowly(tree, folder), folder
        assert tree.below(folder + "/").files == slowly(tree, folder), folder


def test_what_is_added_after_a_look_is_seen(tmp_path):
    tree = Tree(tmp_path, {"a/x": entry()})
    assert list(tree.below("a").files) == ["x"]
    tree.files["a/y"] = entry()
    assert list(tree.below("a").files) == ["x", "y"]


def test_links_folders_and_their_times(tmp_path):
    (tmp_path / "a/in/deep").mkdir(parents=True)
    (tmp_path / "ab").mkdir()
    (tmp_path / "a/in/link").symlink_to("/")
    whole, inner = scan(tmp_path), scan(tmp_path).below("a")
    assert inner.links == ["in/link"] and inner.folders == {"in", "in/deep"}
    assert inner.folder_times == {"": whole.folder_times["a"]} | {
        f: whole.folder_times[f"a/{f}"] for f in inner.folders
    }


def test_a_tree_of_many_folders_is_not_gone_through_for_each(tmp_path):
    Counted.passes = 0
    tree = Tree(tmp_path, Counted({f"adapter_{n}/adapter_model.safetensors": entry() for n in range(2000)}))
    for n in range(2000):
        assert len(tree.below(f"adapter_{n}").files) == 1
    assert Counted.passes <= 2, "the time grows with the square of the number of folders"


@pytest.mark.parametrize("save", ["hf", "accelerate"])
def test_adapters_in_many_folders_of_one_save(make, save, monkeypatch):
    """6,000 took 18 s of computing."""
    path = make.hf("run/checkpoint-6", 6) if save == "hf" else make.accelerate("run/checkpoint-6", 6, ranks=1)
    (path / "model.safetensors").unlink()
    adapter = make.safetensors({f"q.lora_{name}.weight": ("F32", (16, 8), make.floats(128)) for name in "AB"})
    for n in range(40):
        make.write(path / f"adapter_{n}/adapter_model.safetensors", adapter)
    looks = []
    below = Tree.below
    monkeypatch.setattr(Tree, "below", lambda tree, folder: looks.append(folder) or below(tree, folder))
    assert validate(path, "structural", now_s=make.now_s).valid is True
    assert len(looks) < 100, "each folder is looked at once"


def test_headers_of_adapters_that_are_alike_are_read_once(make, monkeypatch):
    """6,000 folders of adapters in one root: each header was taken apart three times."""
    for step in range(1, 41):
        adapter = make.safetensors({f"q.lora_{name}.weight": ("F32", (16, 8), make.floats(128)) for name in "AB"})
        make.write(make.root / f"run/step_{step}/adapter_model.safetensors", adapter)
        make.json(make.root / f"run/step_{step}/adapter_config.json", {"r": 8})
    headers = []
    header = safetensors_file._header
    monkeypatch.setattr(safetensors_file, "_header", lambda data, shown: headers.append(shown) or header(data, shown))
    safetensors_file._read_small_table.cache_clear()
    parts = listing(make.root / "run", "global", "host", now_s=make.now_s)
    assert [part.valid for part in parts] == [True] * 40, parts
    assert len(headers) == 1


def test_a_header_that_was_read_proves_nothing_of_another_length(make):
    whole = make.safetensors({"w": ("F32", (16, 8), make.floats(128))})
    for name, data in (("a", whole), ("b", whole[:-4]), ("c", whole + b"\0")):
        make.write(make.root / f"{name}/step_1/model.safetensors", data)
    answers = [validate(make.root / f"{name}/step_1", "structural", now_s=make.now_s).valid for name in "abc"]
    assert answers == [True, False, False]
