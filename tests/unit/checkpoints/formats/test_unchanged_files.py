"""Folders of torch files in which one stays the same: it must not, where the optimizer beside it trains what is in it."""

from __future__ import annotations

import os

import pytest
from saves.unreadable import lock

from sentinel.checkpoints.validate import validate

SHAPES = [(16, 8), (64,), (64,)]


def ask(make, path, level="checksum"):
    return validate(path, level, now_s=make.now_s)


def numbers(make, shapes):
    values = []
    for shape in shapes:
        count = 1
        for length in shape:
            count *= length
        values.append(make.floats(count))
    return values


def weights(make, name, shapes=SHAPES, payloads=None):
    value = {f"{number}.weight": make.tensor(shape, key=number) for number, shape in enumerate(shapes)}
    return make.torch_file(value, payloads or numbers(make, shapes), name.rpartition(".")[0])


def optimizer(make, name, step, shapes=SHAPES, rate=0.1, kind="adam"):
    value, payloads = {}, []
    for number, shape in enumerate(shapes):
        held = shape if kind == "adam" else (shape[0],)  # Adafactor keeps rows and columns
        key = "exp_avg" if kind == "adam" else "exp_avg_sq_row"
        value[number] = {"step": float(step), key: make.tensor(held, key=number)}
        payloads += numbers(make, [held])
    groups = [{"params": list(range(len(shapes))), "lr": rate}]
    return make.torch_file({"state": value, "param_groups": groups}, payloads, name.rpartition(".")[0])


def run(make, files, steps=(10, 20, 30, 40)):
    """``files``: name -> bytes of a step. Saves an hour apart, each with the times of one stretch."""
    paths = []
    for index, step in enumerate(steps):
        path = make.root / f"run/step_{step}"
        for name, data in files.items():
            make.write(path / name, data(step))
            make.age(path / name, 36_000 - 3600 * index)
        paths.append(path)
    return paths


def trained(make, kind="adam", rate=0.1):
    return {
        "model.pt": lambda _: weights(make, "model.pt"),
        "optimizer.pt": lambda step: optimizer(make, "optimizer.pt", step, kind=kind, rate=rate),
        "state.pt": lambda step: make.torch_file({"step": step}, prefix="state"),
    }


def put_back(path, name, before):
    """The file of another save, with the times of this one."""
    at = (path / name).stat().st_mtime
    (path / name).write_bytes((before / name).read_bytes())
    os.utime(path / name, (at, at))


def extra(make, name, kind):
    """A file that stays the same, always or since the best step."""
    if kind == "statistics":
        data = weights(make, name, [(64,), (64,)])
        return lambda _: data
    first, best = weights(make, name), weights(make, name)
    return lambda step: best if kind == "reference" or step >= 20 else first


@pytest.mark.parametrize("moments", ["adam", "adafactor"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("norm_stats.pt", "statistics"), ("ref.pt", "reference"), ("init.pt", "reference"), ("best_model.pt", "best")],
)
def test_a_file_that_stays_the_same_beside_the_model(make, name, kind, moments):
    paths = run(make, trained(make, moments) | {name: extra(make, name, kind)})
    assert [ask(make, path).valid for path in paths] == [True] * 4, [ask(make, path).reason for path in paths]
    put_back(paths[2], "optimizer.pt", paths[1])
    assert ask(make, paths[2]).valid is None


@pytest.mark.parametrize("name", ["norm_stats.pt", "ref.pt", "best_model.pt", ""])
def test_the_model_of_the_save_before_beside_such_a_file(make, name):
    more = {name: extra(make, name, "statistics" if "norm" in name else "reference")} if name else {}
    paths = run(make, trained(make) | more)
    put_back(paths[2], "model.pt", paths[1])
    answer = ask(make, paths[2])
    assert answer.valid is None and "byte for byte" in answer.reason, answer


def test_the_model_of_the_save_before_beside_its_average(make):
    """An average changes with every step, and shows nothing of the model."""
    paths = run(make, trained(make) | {"ema.pt": lambda _: weights(make, "ema.pt")})
    assert ask(make, paths[2]).valid is True, ask(make, paths[2])
    put_back(paths[2], "model.pt", paths[1])
    assert ask(make, paths[2]).valid is None, ask(make, paths[2])


def test_statistics_beside_a_model_that_holds_more_than_is_trained(make):
    """Running means are no parameters."""
    files = trained(make) | {"model.pt": lambda _: weights(make, "model.pt", [*SHAPES, (16,), (7,)])}
    paths = run(make, files | {"norm_stats.pt": extra(make, "norm_stats.pt", "statistics")})
    assert [ask(make, path).valid for path in paths] == [True] * 4, [ask(make, path).reason for path in paths]


def test_statistics_where_the_model_is_in_another_kind_of_file(make):
    files = trained(make) | {"norm_stats.pt": extra(make, "norm_stats.pt", "statistics")}
    table = {f"{number}": ("F32", shape) for number, shape in enumerate(SHAPES)}
    del files["model.pt"]
    files["net.safetensors"] = lambda _: make.safetensors(
        {key: (*kind, values) for (key, kind), values in zip(table.items(), numbers(make, SHAPES), strict=True)}
    )
    paths = run(make, files)
    assert [ask(make, path, "structural").valid for path in paths] == [True] * 4, [ask(make, p).reason for p in paths]
    for path in paths:  # of a kind that is not read
        (path / "net.safetensors").rename(path / "net.weights")
    assert [ask(make, path).valid for path in paths] == [True] * 4, [ask(make, path).reason for path in paths]


def test_two_parts_of_a_model_that_one_optimizer_trains(make):
    """Both change in every step."""
    shapes = [(8, 8), (32,)]
    files = {name: (lambda _, name=name: weights(make, name, shapes)) for name in ("actor.pt", "critic.pt")}
    paths = run(make, files | {"optimizer.pt": lambda step: optimizer(make, "optimizer.pt", step, shapes * 2)})
    assert ask(make, paths[2]).valid is True, ask(make, paths[2])
    put_back(paths[2], "critic.pt", paths[1])
    assert ask(make, paths[2]).valid is None


def test_a_learning_rate_of_nothing_changes_no_weight(make):
    same = weights(make, "model.pt")
    files = trained(make, rate=0.0) | {"model.pt": lambda _: same}
    assert [ask(make, path).valid for path in run(make, files)] == [True] * 4
    files = trained(make, rate=0.1) | {"model.pt": lambda _: same}
    assert [ask(make, path).valid for path in run(make, files)] == [None] * 4


def phases(make, *, at=25, joined=False):
    """One part is trained up to a step, then another, each by an optimizer of its own."""
    shapes = [(8, 8), (32,)]
    kept = {name: weights(make, name, shapes) for name in ("g.pt", "d.pt")}
    kept |= {name: optimizer(make, name, at, shapes) for name in ("opt_g.pt", "opt_d.pt")}
    payloads = {name: numbers(make, shapes) for name in "gd"}

    def write(name, step):
        trains = (step < at) == (name in ("g.pt", "opt_g.pt"))
        if not trains:
            return kept[name]
        return optimizer(make, name, step, shapes) if name.startswith("opt") else weights(make, name, shapes)

    def write_joined(step):
        values = [payloads[part] if (step < at) == (part == "d") else numbers(make, shapes) for part in "gd"]
        return weights(make, "net.pt", shapes * 2, values[0] + values[1])

    names = ["opt_g.pt", "opt_d.pt", *([] if joined else ["g.pt", "d.pt"])]
    files = {name: (lambda step, name=name: write(name, step)) for name in names}
    return run(make, files | ({"net.pt": write_joined} if joined else {}), (10, 20, 30, 40, 50))


@pytest.mark.parametrize("joined", [False, True], ids=["a file each", "one file"])
def test_two_optimizers_that_are_used_one_after_the_other(make, joined):
    paths = phases(make, joined=joined)
    assert [ask(make, path).valid for path in paths] == [True] * 5, [ask(make, path).reason for path in paths]


@pytest.mark.parametrize("name", ["opt_d.pt", "d.pt"])
def test_a_part_of_what_goes_on_is_that_of_the_save_before(make, name):
    paths = phases(make)
    put_back(paths[4], name, paths[3])
    answer = ask(make, paths[4])
    assert answer.valid is None and "byte for byte" in answer.reason, answer


def test_a_rank_of_a_set_is_that_of_the_save_before(make):
    """Each holds weights and their optimizer; all ranks are of one state."""

    def whole(rank):
        shapes = [(8, 8)]
        value = {"w": make.tensor(shapes[0])}
        state = {"state": {0: {"exp_avg": make.tensor(shapes[0], key=1)}}, "param_groups": [{"params": [0], "lr": 0.1}]}
        payloads = numbers(make, shapes * 2)
        return make.torch_file({"model": value, "optimizer": state}, payloads, f"state_rank_{rank}")

    paths = run(make, {f"state_rank_{rank}.pt": (lambda _, rank=rank: whole(rank)) for rank in range(2)})
    assert ask(make, paths[2]).valid is True, ask(make, paths[2])
    put_back(paths[2], "state_rank_0.pt", paths[1])
    assert ask(make, paths[2]).valid is None, ask(make, paths[2])


@pytest.mark.parametrize("lost", ["optimizer.pt", "model.pt", "head.pt", "head_optimizer.pt"])
def test_a_part_that_rests_beside_a_file_that_cannot_be_read(make, monkeypatch, lost):
    """It may be the one that explains why the part stays the same."""
    still = (weights(make, "head.pt", [(16, 4)]), optimizer(make, "head_optimizer.pt", 5, [(16, 4)]))
    files = trained(make) | {"head.pt": lambda _: still[0], "head_optimizer.pt": lambda _: still[1]}
    paths = run(make, files)
    assert [ask(make, path).valid for path in paths] == [True] * 4, [ask(make, path).reason for path in paths]
    lock(monkeypatch, paths[2] / lost)
    assert ask(make, paths[3]).valid is True, ask(make, paths[3]).reason
    assert ask(make, paths[1]).valid is True, ask(make, paths[1]).reason


def test_an_optimizer_of_another_save_is_seen_beside_one_that_can_be_read(make, monkeypatch):
    paths = run(make, trained(make))
    times = (paths[3] / "optimizer.pt").stat()
    make.write(paths[3] / "optimizer.pt", (paths[1] / "optimizer.pt").read_bytes())
    os.utime(paths[3] / "optimizer.pt", ns=(times.st_atime_ns, times.st_mtime_ns))
    lock(monkeypatch, paths[2] / "model.pt")
    answer = ask(make, paths[3])
    assert answer.valid is None and "byte for byte that of step_20" in answer.reason, answer
