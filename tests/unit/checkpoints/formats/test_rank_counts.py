"""The last rank's file of a set is missing: other sets tell how many ranks there are."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.files import Entry, Tree
from sentinel.checkpoints.formats import rank_counts
from sentinel.checkpoints.formats.base import Ask
from sentinel.checkpoints.validate import validate


def file(make, name, step=10):
    stem = name.rpartition("/")[2].rpartition(".")[0]
    if name.endswith(".safetensors"):
        return make.safetensors({key: ("F32", (16, 8), make.floats(128)) for key in "ab"})
    if "opt" in stem:
        value, payloads = make.state(step)
        return make.torch_file({"state": value, "param_groups": [{"params": [0, 1]}]}, payloads, stem)
    return make.torch_file({"w": make.tensor((4, 4))}, [make.floats(16)], stem)


def save(make, at, *names, step=10):
    for name in names:
        make.write(make.root / at / name, file(make, name, step))
    return make.root / at


def ask(make, path, age_s=3600):
    for entry in path.rglob("*"):
        if entry.is_file():
            make.age(entry, age_s)
    return validate(path, "structural", now_s=make.now_s)


def of_ranks(*names, ranks=4):
    return [name.format(rank) for name in names for rank in range(ranks)]


SIBLINGS = {
    "models": ["model_{}.pt"],
    "models in safetensors": ["model_{}.safetensors"],
    "the Trainer's random states": ["model.safetensors", "rng_state_{}.pth"],
    "another loop's names": ["net-rank{}.pth"],
    "a folder above": ["../rng_state_{}.pth", "model.safetensors"],
}


@pytest.mark.parametrize("at", ["run/checkpoint-10", "run/step_10"])
@pytest.mark.parametrize("siblings", SIBLINGS)
@pytest.mark.parametrize("optimizer", ["optimizer_{}.pt", "optim-{}.bin", "opt_state{}.pt"])
@pytest.mark.parametrize("ranks", [2, 4, 11])
def test_the_last_optimizer_is_missing(make, at, siblings, optimizer, ranks):
    """It was valid: without the last one the set has no hole."""
    deep = "/state" if siblings == "a folder above" else ""
    names = dict.fromkeys(of_ranks(optimizer, *SIBLINGS[siblings], ranks=ranks))
    inner = save(make, at + deep, *names)
    if siblings.startswith("models"):  # which need not be as many: a save beside tells
        save(make, at.replace("10", "20"), *names, step=20)
    path = make.root / at
    if "checkpoint" in at and any("rng_state" in name for name in names):
        make.json(path / "trainer_state.json", {"global_step": 10})  # else it is one that the Trainer did not finish
        make.write(path / "model.safetensors", file(make, "model.safetensors"))
    answer = ask(make, path)
    assert answer.valid is True, answer
    (inner / optimizer.format(ranks - 1)).unlink()
    answer = ask(make, path)
    assert answer.valid is None and f"{optimizer.format(ranks - 1)} is missing" in answer.reason, answer


@pytest.mark.parametrize("lost", ["model_3.pt", "optimizer_3.pt", "rng_state_3.pth"])
def test_any_of_the_sets_may_be_the_one_that_lacks(make, lost):
    names = of_ranks("model_{}.pt", "optimizer_{}.pt", "rng_state_{}.pth")
    save(make, "run/step_20", *names, step=20)
    path = save(make, "run/step_10", *names)
    assert ask(make, path).valid is True, ask(make, path)
    (path / lost).unlink()
    answer = ask(make, path)
    assert answer.valid is None and f"{lost} is missing" in answer.reason, answer


def test_shards_of_dcp_give_the_least_number(make):
    make.dcp("run/step-10/model", step=10, ranks=4)
    path = save(make, "run/step-10", *of_ranks("optimizer_{}.pt", ranks=6))
    assert ask(make, path).valid is True, ask(make, path)
    for rank in (3, 4, 5):
        (path / f"optimizer_{rank}.pt").unlink()
    answer = ask(make, path)
    assert answer.valid is None and "optimizer_3.pt is missing" in answer.reason, answer


@pytest.mark.parametrize("lost", ["pytorch_model_fsdp_0_rank3.bin", "optimizer_0_rank3.bin", "random_states_3.pkl"])
def test_fsdp_of_accelerate_without_collectives(make, lost):
    names = of_ranks("pytorch_model_fsdp_0_rank{}.bin", "optimizer_0_rank{}.bin")
    path = save(make, "run/step_10", *names)
    for rank in range(4):
        make.write(path / f"random_states_{rank}.pkl", make.torch_file({"step": 7}, prefix=f"random_states_{rank}"))
    assert ask(make, path).valid is True, ask(make, path)
    (path / lost).unlink()
    answer = ask(make, path)
    assert answer.valid is not True and lost in answer.reason, answer


@pytest.mark.parametrize(
    "names",
    [
        [*of_ranks("model_{}.pt", ranks=3), *of_ranks("optimizer_{}.pt", ranks=2)],  # one network is not trained
        [*of_ranks("model_{}.pt", ranks=4), *of_ranks("optim_{}.pt", ranks=8)],  # tensor parallel, a sharded optimizer
    ],
)
def test_models_and_optimizers_need_not_be_as_many(make, names):
    answer = ask(make, save(make, "run/step_10", *names))
    assert answer.valid is True, answer


def test_a_torn_save_beside_says_nothing(make):
    names = [*of_ranks("model_{}.pt", "optimizer_{}.pt", ranks=2), *of_ranks("rng_state_{}.pth", ranks=4)]
    paths = [save(make, f"run/step_{step}", *names, step=step) for step in (10, 20, 30)]
    (paths[2] / "rng_state_3.pth").unlink()
    assert [ask(make, path, 36_000 - int(path.name[5:])).valid for path in paths[:2]] == [True, True]


def test_two_models_of_eight_ranks(make):
    """As in the saves beside; of one alone it cannot be told."""
    names = [*of_ranks("model_{}.pt", "optimizer_{}.pt", ranks=2), *of_ranks("rng_state_{}.pth", ranks=8)]
    paths = [save(make, f"run/step_{step}", *names, step=step) for step in (10, 20)]
    assert [ask(make, path, 36_000 - int(path.name[5:])).valid for path in paths] == [True, True]
    for name in names:
        (paths[1] / name).unlink()
    assert ask(make, paths[0]).valid is None


@pytest.mark.parametrize(
    "names",
    [
        ["model.safetensors", "model_1.safetensors", "optimizer.bin", "optimizer_1.bin", "optimizer_2.bin"],
        ["model_5.pt", "model_6.pt", "optimizer_0.pt"],
        ["actor/model_0.pt", "actor/model_1.pt", "critic/optimizer_0.pt", "critic/model_0.pt"],
        ["layer_00.pt", "layer_01.pt", "layer_02.pt", "optimizer_0.pt"],
        ["dataloader_0.pt", "dataloader_1.pt", "model_0.pt", "optimizer_0.pt"],
    ],
)
def test_numbers_that_count_something_else(make, names):
    answer = ask(make, save(make, "run/step_10", *names))
    assert answer.valid is True, answer


def test_sets_in_very_many_folders_are_not_each_held_against_all(make, monkeypatch):
    """The time grew with the square of their number: 22 s for 6,000."""
    tree = Tree(make.root)
    for index in range(500):
        tree.files |= dict.fromkeys([f"f{index}/model_0.pt", f"f{index}/opt_0.pt"], Entry(1, 0.0, 1, 0))
    looks = []
    last = rank_counts._Set.last
    monkeypatch.setattr(rank_counts._Set, "last", property(lambda one: looks.append(one) or last.fget(one)))
    rank_counts.refuse_fewer(tree, Ask("structural", 0.0))
    assert len(looks) < 20 * 1000


@pytest.mark.parametrize("names", ["rank{}.pt", "loader_rank_{}.pt", "state-rank-{}.pkl"])
@pytest.mark.parametrize("at", ["step-10", "step-10/model"])
def test_files_of_each_rank_beside_shards(make, names, at):
    make.dcp(f"run/{at}", step=10, ranks=4)
    path = save(make, "run/step-10", *of_ranks(names))
    assert ask(make, path).valid is True, ask(make, path)
    (path / names.format(3)).unlink()
    answer = ask(make, path)
    assert answer.valid is None and f"{names.format(3)} is missing" in answer.reason, answer


def test_the_only_other_rank_of_two(make):
    for step in (10, 20):
        make.dcp(f"run/step-{step}", step=step, ranks=2)
        save(make, f"run/step-{step}", *of_ranks("rank{}.pt", ranks=2), step=step)
    path = make.root / "run/step-20"
    assert ask(make, path).valid is True, ask(make, path)
    (path / "rank1.pt").unlink()
    answer = ask(make, path)
    assert answer.valid is None and "rank1.pt is missing" in answer.reason, answer


@pytest.mark.parametrize(
    "names",
    [
        ["rank0.pt"],
        of_ranks("tp_rank_{}.pt", ranks=2),
        of_ranks("local_rank{}.pt", ranks=2),
        of_ranks("tensor_parallel_rank_{}.pt", ranks=2),
        of_ranks("loader-data-parallel-rank{}.pt", ranks=2),
    ],
)
def test_files_of_some_ranks_beside_shards(make, names):
    """Of the first only, or of those that differ in a part of the model: with no save beside nothing tells."""
    make.dcp("run/step-10", step=10, ranks=4)
    path = save(make, "run/step-10", *names)
    assert ask(make, path).valid is True, ask(make, path)
