"""What trainers of one's own keep beside the weights and read at resume: the saves beside tell what it should be."""

from __future__ import annotations

import json

import pytest

from sentinel.checkpoints.validate import validate

STEPS = (10, 20, 30)


def in_folders(make, path, step):
    """A folder for the model, a folder for what each rank reads, and the state of the loop."""
    make.dcp(path / "model", step=step)
    for rank in (0, 1):
        make.write(path / f"train/rank{rank}.pt", make.torch_file({"cursor": rank}, prefix=f"rank{rank}"))
    make.write(path / "loop.pt", make.torch_file({"best": 1}, prefix="loop"))


def by_hand(make, path, step):
    value, payloads = make.state(step)
    make.write(path / "model.pt", make.torch_file(value, payloads, prefix="model"))
    make.write(path / "train/rank0.pt", make.torch_file({"cursor": 0}, prefix="rank0"))
    make.write(path / "train/rank1.pt", make.torch_file({"cursor": 1}, prefix="rank1"))
    make.write(path / "loop.pt", make.torch_file({"best": 1}, prefix="loop"))


def sharded(make, path, step):
    make.dcp(path, step=step)
    for rank in (0, 1):
        make.write(path / f"train/rank{rank}.pt", make.torch_file({"cursor": rank}, prefix=f"rank{rank}"))
    make.write(path / "loop.pt", make.torch_file({"best": 1}, prefix="loop"))


LAYOUTS = [in_folders, by_hand, sharded]


def run(make, write):
    paths = []
    for index, step in enumerate(STEPS):
        path = make.root / f"run/step_{step}"
        write(make, path, step)
        make.json(path / "loader_00000.json", {"offset": step})
        make.json(path / "loader_00001.json", {"offset": step})
        make.write(path / "settings.yaml", b"lr: 1\n")
        make.write(path / "with_comments.json", b"// by hand\n{}\n")
        for file in (file for file in path.rglob("*") if file.is_file()):
            make.age(file, 36_000 - 3600 * index)
        paths.append(path)
    return paths


def ask(make, path):
    return validate(path, "structural", now_s=make.now_s)


@pytest.mark.parametrize("write", LAYOUTS)
@pytest.mark.parametrize("lost", ["loop.pt", "train/rank0.pt"])
def test_a_file_that_both_saves_beside_have(make, write, lost):
    paths = run(make, write)
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]
    (paths[2] / lost).unlink()
    answer = ask(make, paths[2])
    assert answer.valid is None and f"{lost} is missing" in answer.reason, answer
    assert all(ask(make, path).valid for path in paths[:2])


@pytest.mark.parametrize("write", LAYOUTS)
def test_fewer_ranks_and_results_that_come_later_are_no_damage(make, write):
    paths = run(make, write)
    for index, path in enumerate(paths[:2]):
        make.json(path / "eval_results.json", {"loss": 1})
        make.age(path / "eval_results.json", 36_000 - 3600 * index - 60)
    (paths[2] / "train/rank1.pt").unlink()
    (paths[2] / "loader_00001.json").unlink()
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]


@pytest.mark.parametrize("write", LAYOUTS)
@pytest.mark.parametrize("name", ["eval_preds.npy", "eval_preds.npz", "eval_results.json", "table.pkl", "notes.yaml"])
@pytest.mark.parametrize("after_s", [0, 3, 300])
def test_data_that_the_newest_has_not_yet(make, write, name, after_s):
    """An evaluation runs when the save is over: the newest save has no results yet."""
    paths = run(make, write)
    for index, path in enumerate(paths[:2]):
        make.write(path / name, b"{}")
        make.age(path / name, 36_000 - 3600 * index - after_s)
    assert ask(make, paths[2]).valid is True, ask(make, paths[2])


@pytest.mark.parametrize("write", LAYOUTS)
def test_json_lines_are_whole(make, write):
    paths = run(make, write)
    for index, path in enumerate(paths):
        make.write(path / "metrics.json", b'{"loss": 1}\n' * (index + 1))
        make.age(path / "metrics.json", 36_000 - 3600 * index)
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]
    make.write(paths[2] / "metrics.json", b'{"loss": 1}\n{"loss"')
    make.age(paths[2] / "metrics.json", 36_000 - 3600 * 2)
    answer = ask(make, paths[2])
    assert answer.valid is None and "metrics.json" in answer.reason, answer


def test_a_log_of_json_lines_that_grows_long(make):
    """Of more lines than are read nothing was shown, and the newest save was not known."""
    paths = run(make, by_hand)
    for index, path in enumerate(paths):
        make.write(path / "metrics.json", b'{"loss": 1}\n' * (20_000 + 20_000 * index))
        make.age(path / "metrics.json", 36_000 - 3600 * index)
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]
    make.write(paths[2] / "metrics.json", b'{"loss": 1}\n' * 60_000 + b'{"loss"')
    make.age(paths[2] / "metrics.json", 36_000 - 3600 * 2)
    answer = ask(make, paths[2])
    assert answer.valid is None and "metrics.json" in answer.reason, answer


@pytest.mark.parametrize("write", LAYOUTS)
def test_no_link_in_a_save_beside_is_followed(make, write):
    paths = run(make, write)
    outside = make.root / "outside"
    make.json(outside / "a.json", {"lr": 1})
    make.write(outside / "weights.pt", make.torch_file({"w": 1}, prefix="weights"))
    for file in outside.iterdir():
        make.age(file, 36_000)
    for path in paths[:2]:
        (path / "data").symlink_to(outside)
        (path / "b.json").symlink_to(outside / "a.json")
    for name in ("data/a.json", "b.json"):
        make.write(paths[2] / name, b"// by hand")
        make.age(paths[2] / name, 36_000 - 3600 * 2)
    assert ask(make, paths[2]).valid is True, ask(make, paths[2])


def test_numbers_that_are_no_ranks_may_begin_anywhere(make):
    """Buffers of which the newest few are kept."""
    paths = run(make, by_hand)
    for index, path in enumerate(paths):
        for number in range(index, index + 3):
            make.json(path / f"buffer_{number}.json", {})
            make.age(path / f"buffer_{number}.json", 36_000 - 3600 * index)
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]


@pytest.mark.parametrize("write", LAYOUTS)
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("loader_00000.json", lambda data: data[:-1]),
        ("loader_00001.json", lambda data: b""),
        ("loader_00001.json", lambda data: bytes(len(data))),
        ("settings.yaml", lambda data: b""),
        ("settings.yaml", lambda data: bytes(len(data))),
    ],
)
def test_a_text_that_is_whole_in_the_save_beside(make, write, name, damage):
    paths = run(make, write)
    file = paths[2] / name
    make.write(file, damage(file.read_bytes()))
    make.age(file, 36_000 - 3600 * 2)
    answer = ask(make, paths[2])
    assert answer.valid is None and name in answer.reason, answer
    assert all(ask(make, path).valid for path in paths[:2])


def test_zeros_are_no_text_with_nothing_beside(make):
    path = run(make, by_hand)[0]
    other = make.root / "other/step_10"
    other.parent.mkdir()
    path.rename(other)
    assert ask(make, other).valid is True, ask(make, other)
    make.write(other / "with_comments.json", bytes(len(json.dumps({"lr": 1}))))
    make.age(other / "with_comments.json", 36_000)
    answer = ask(make, other)
    assert answer.valid is None and "zeros" in answer.reason, answer


@pytest.mark.parametrize("write", LAYOUTS)
@pytest.mark.parametrize("name", ["best_preds.pt", "merged.safetensors", "preds/part_0.pt"])
@pytest.mark.parametrize("odd", [0, 1])
def test_what_one_save_alone_has(make, write, name, odd):
    """An export of a milestone: the saves beside it lack nothing."""
    paths = run(make, write)
    tensors = {"w": ("F32", (4,), make.floats(4))}
    data = (
        make.safetensors(tensors)
        if name.endswith("tensors")
        else make.torch_file({"w": 1}, prefix=name[:-3].rpartition("/")[2])
    )
    make.write(paths[odd] / name, data)
    make.age(paths[odd] / name, 36_000 - 3600 * odd)
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]


@pytest.mark.parametrize("write", LAYOUTS)
@pytest.mark.parametrize("file", ["samples/0.png", "eval/results.json", "logs/events.out.tfevents.1"])
def test_a_folder_of_results_that_the_newest_has_not_yet(make, write, file):
    paths = run(make, write)
    for index, path in enumerate(paths[:2]):
        make.write(path / file, b"{}")
        make.age(path / file, 36_000 - 3600 * index - 1200)
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]
