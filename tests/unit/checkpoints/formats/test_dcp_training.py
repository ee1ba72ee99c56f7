"""Distributed checkpoints of training that is set up unusually: nothing of it looks like two saves that were mixed."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sentinel.checkpoints.validate import validate

SHAPE = (8, 16)
FILE = "__0_0.distcp"


class Run:
    """Saves of one process: of each layer a weight, both of Adam's moments and the count of steps, as packed bytes."""

    def __init__(self, make, layers=("w", "v"), rate=1e-4):
        self.make, self.layers, self.rate = make, layers, rate
        self.numbers: dict[str, bytes] = {}
        self.rates = {"optim.param_groups.0.lr": rate}
        self.files = {0: ""}  # of each rank, and how its names begin
        self.step(*layers)

    def step(self, *layers, count=None):
        """One that moves these layers."""
        for layer in layers:
            state = f"optim.state.{layer}"
            self.numbers[f"model.{layer}"] = self.make.floats(128)
            self.numbers[f"{state}.exp_avg"] = self.make.floats(128)
            self.numbers[f"{state}.exp_avg_sq"] = self.make.floats(128, low=0.5)
            self.numbers[f"{state}.step"] = struct.pack("<f", count or 0)

    def save(self, step, folder="run"):
        """Everything as it is now."""
        path, make = self.make.root / folder / f"step-{step}", self.make
        tensors, stored = {}, []
        for rank, begins in self.files.items():
            data, file = b"", f"__{rank}_0.distcp"
            pieces = {name: make.torch_file(rate) for name, rate in self.rates.items()} if not rank else {}
            sizes = {}
            for name, numbers in self.numbers.items():
                sizes[begins + name] = () if len(numbers) == 4 else SHAPE
                pieces[begins + name] = make.torch_file(make.tensor(sizes[begins + name]), [numbers])
            for name, piece in pieces.items():
                place = (0,) * len(sizes[name]) if name in sizes else None
                stored.append((name, place, file, len(data), len(piece)))
                data += piece
            tensors |= {name: ("float32", size, [((0,) * len(size), size)]) for name, size in sizes.items()}
            make.write(path / file, data, step)
        make.write(path / ".metadata", make.metadata(tensors, list(self.rates), stored), step + 1)
        return path


def answers(make, *saves):
    return [validate(path, "content", now_s=make.now_s) for path in saves]


def all_good(make, *saves):
    assert [answer.reason for answer in answers(make, *saves) if answer.valid is not True] == []


def test_two_matrices_whose_outputs_are_added_have_the_same_gradients(make):
    run = Run(make)

    def saved(step):
        run.step("w", "v", count=step)
        for moment in ("exp_avg", "exp_avg_sq"):
            run.numbers[f"optim.state.v.{moment}"] = run.numbers[f"optim.state.w.{moment}"]
        return run.save(step)

    all_good(make, saved(10))
    all_good(make, saved(20), saved(30))


@pytest.mark.parametrize("moments", [("exp_avg",), ("exp_avg", "exp_avg_sq")])
def test_a_tensor_that_is_there_twice_in_this_save_alone(make, moments):
    run = Run(make)
    before = run.save(10)
    run.step("w", "v", count=20)
    for moment in moments:
        run.numbers[f"optim.state.v.{moment}"] = run.numbers[f"optim.state.w.{moment}"]
    good, bad = answers(make, before, run.save(20))
    assert good.valid is True
    assert bad.valid is None and "there twice" in bad.reason


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_rank_keeps_a_copy_under_a_name_of_its_own(make, ranks):
    run = Run(make)
    run.files = {rank: f"rank_{rank}." for rank in range(ranks)}

    def saved(step):
        run.step("w", "v", count=step)
        if ranks == 1:
            run.numbers |= {f"rank_1.{n}": data for n, data in run.numbers.items() if not n.startswith("rank")}
        return run.save(step)

    all_good(make, *[saved(step) for step in (10, 20)])


def test_an_optimizer_that_is_made_anew_at_every_save(make):
    run = Run(make)

    def saved(step):
        run.step("w", "v", count=10)
        return run.save(step)

    all_good(make, *[saved(step) for step in (10, 20, 30)])


def test_an_optimizer_that_was_made_anew_once(make):
    run = Run(make)

    def saved(step, count):
        run.step("w", "v", count=count)
        return run.save(step)

    first, second, third = saved(10, 10), saved(20, 10), saved(30, 20)
    all_good(make, first, second, third)


def test_counts_of_steps_that_stayed_while_the_saves_around_went_on(make):
    run = Run(make)

    def saved(step, count):
        run.step("w", "v", count=count)
        return run.save(step)

    saved(10, 10)
    wrong = saved(20, 10)
    saved(30, 30)
    (answer,) = answers(make, wrong)
    assert answer.valid is None and "two saves mixed" in answer.reason


class Whole:
    """Saves at some steps, each of an optimizer that has made as many more; of one all shards are put into another."""

    def __init__(self, make, *, ahead=0, inside=""):
        self.make, self.inside, self.ahead = make, inside, ahead
        self.run = Run(make)
        self.paths: dict[int, Path] = {}

    def saved(self, *steps, trained=True):
        for step in steps:
            if trained:
                self.run.step("w", "v", count=step - self.ahead)
            path = self.run.save(step)
            if self.inside:
                (path / self.inside).mkdir()
                for file in (path / FILE, path / ".metadata"):
                    file.rename(path / self.inside / file.name)
            self.paths[step] = path / self.inside

    def put(self, step, into):
        data = (self.paths[step] / FILE).read_bytes()
        self.make.write(self.paths[into] / FILE, data, into)

    def valid(self):
        answers = {step: validate(path, "checksum", now_s=self.make.now_s) for step, path in self.paths.items()}
        return {step: answer.valid for step, answer in answers.items()}


@pytest.mark.parametrize("inside", ["", "model_and_optim"])
@pytest.mark.parametrize(("ahead", "steps"), [(0, (10, 20, 30)), (0, (20, 30)), (7, (10, 20, 30)), (7, (20, 30, 40))])
def test_all_shards_of_the_step_before(make, inside, ahead, steps):
    whole = Whole(make, ahead=ahead, inside=inside)
    whole.saved(*steps)
    assert set(whole.valid().values()) == {True}
    whole.put(20, into=30)
    assert whole.valid() == {step: None if step == 30 else True for step in steps}


def test_all_shards_of_a_step_far_back(make):
    whole = Whole(make)
    whole.saved(*range(10, 110, 10))
    whole.put(20, into=100)
    assert whole.valid() == {step: None if step == 100 else True for step in range(10, 110, 10)}


@pytest.mark.parametrize(("ahead", "steps"), [(7, (20, 30)), (0, (20, 21)), (0, (19, 20))])
def test_two_equal_saves_of_which_nothing_tells_the_other(make, ahead, steps):
    """Counts that are not the names', and a save at the end of a run right after another one."""
    whole = Whole(make, ahead=ahead)
    whole.saved(steps[0])
    whole.saved(steps[1], trained=False)
    assert set(whole.valid().values()) == {True}


def test_a_model_that_is_frozen_from_some_step_on(make):
    whole = Whole(make)
    whole.saved(10, 20)
    whole.saved(30, 40, trained=False)
    assert set(whole.valid().values()) == {True}


def test_one_of_two_models_rests(make):
    whole = Whole(make, inside="actor")
    whole.saved(10, 20)
    whole.saved(30, trained=False)
    assert whole.valid()[30] is None
    for step in (10, 20, 30):
        make.dcp(f"run/step-{step}/critic", step=step)
    assert set(whole.valid().values()) == {True}


def test_layers_that_are_frozen_later_while_an_average_of_the_weights_goes_on(make):
    run = Run(make)

    def saved(step, *layers):
        run.step(*layers, count=step)
        for layer in run.layers:
            run.numbers[f"ema.{layer}"] = make.floats(128)
        return run.save(step)

    all_good(make, saved(10, "w", "v"), saved(20, "v"), saved(30, "v"))


def test_one_of_many_groups_that_does_not_learn(make):
    layers = [f"l{number}" for number in range(20)]
    run = Run(make, layers)
    run.rates = {f"optim.param_groups.{layer}.lr": 0.0 if layer == "l18" else 1e-3 for layer in layers}

    def saved(step):
        kept = run.numbers["model.l18"]
        run.step(*layers, count=step)
        run.numbers["model.l18"] = kept
        return run.save(step)

    all_good(make, saved(10), saved(20))


@pytest.mark.parametrize(("rate", "valid"), [(1e-4, None), (1e-9, True)])
def test_a_rate_so_small_that_rounding_takes_the_step_away(make, rate, valid):
    """At the end of a schedule some of the weights still move, and some are as they were."""
    run = Run(make, rate=rate)
    first = run.save(10)
    kept = run.numbers["model.v"]
    run.step("w", "v", count=20)
    run.numbers["model.v"] = kept
    for answer in answers(make, first, run.save(20)):
        assert answer.valid is valid


def test_a_buffer_that_is_called_like_a_moment(make):
    run = Run(make)
    run.numbers["model.exp_avg_sq"] = make.floats(128)
    all_good(make, run.save(10))


def uneven(make):
    """Each rank has a part of a matrix's moments; beside it one has a vector of weights, the other a vector's moments."""
    path = make.root / "run/step-10"
    moment, vectors = "optim.state.w.exp_avg", ("model.ln.weight", "optim.state.ln.exp_avg")
    tensors = {moment: ("float32", (32, 64), [((16 * rank, 0), (16, 64)) for rank in range(2)])}
    tensors |= {name: ("float32", (64,), [((0,), (64,))]) for name in vectors}
    stored = []
    for rank, vector in enumerate(vectors):
        data = b""
        for name, at, shape in ((moment, (16 * rank, 0), (16, 64)), (vector, (0,), (64,))):
            piece = make.item(shape)
            stored.append((name, at, f"__{rank}_0.distcp", len(data), len(piece)))
            data += piece
        make.write(path / f"__{rank}_0.distcp", data)
    make.write(path / ".metadata", make.metadata(tensors, [], stored), 1)
    return path


@pytest.mark.parametrize("rank", [0, 1])
def test_a_shard_under_the_name_of_another_that_has_other_tensors(make, rank):
    path = uneven(make)
    one, other = path / f"__{rank}_0.distcp", path / f"__{1 - rank}_0.distcp"
    assert validate(path, "checksum", now_s=make.now_s).valid is True
    make.write(one, other.read_bytes())
    answer = validate(path, "checksum", now_s=make.now_s)
    assert answer.valid is None and "there twice" in answer.reason, answer
