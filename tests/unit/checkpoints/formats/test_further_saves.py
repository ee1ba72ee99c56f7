"""A part of a save further back than those nearest, in a folder whose files all have one time, as ``cp -r`` leaves them."""

from __future__ import annotations

import os
import shutil
import struct

import pytest

from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.validate import Settings, validate

STEPS = range(10, 90, 10)


def ask(make, path):
    return validate(path, "checksum", now_s=make.now_s, settings=Settings(unsummed=True))


def put(make, source, path, name):
    shutil.copyfile(source / name, path / name)
    for file in path.rglob("*"):
        make.age(file, 1800)
    make.age(path, 1800)


def sharded(make, step, counts, ranks=2, own_layers=False):
    """Layers that are cut over the ranks; of each one rank keeps the count of steps. ``counts``: rank -> layer -> count."""
    path = make.root / f"run/step-{step}"
    tensors, stored = {}, []
    for rank in range(ranks):
        data, file = b"", f"__{rank}_0.distcp"
        pieces = []
        for layer in (layer for one in counts.values() for layer in one):
            if own_layers and layer not in counts[rank]:
                continue
            cut = ((0, 0), (4, 4)) if own_layers else ((4 * rank, 0), (4, 4))
            for name, low in (
                (f"model.{layer}", -1),
                (f"optim.{layer}.exp_avg", -1),
                (f"optim.{layer}.exp_avg_sq", 0.5),
            ):
                size = (4, 4) if own_layers else (4 * ranks, 4)
                tensors.setdefault(name, ("float32", size, []))[2].append(cut)
                pieces.append((name, cut[0], make.item((4, 4), low=low)))
        for layer, count in counts[rank].items():
            name = f"optim.{layer}.step"
            tensors[name] = ("float32", (), [((), ())])
            pieces.append((name, (), make.torch_file(make.tensor(()), [struct.pack("<f", count)])))
        for name, place, piece in pieces:
            stored.append((name, place, file, len(data), len(piece)))
            data += piece
        make.write(path / file, data)
    make.write(path / ".metadata", make.metadata(tensors, [], stored), 1)
    return path


def alike(count, other=None):
    return {0: {"a": count, "b": count}, 1: {"c": other or count, "d": other or count}}


def test_a_shard_of_a_save_far_back(make):
    saves = {step: make.dcp(f"run/step-{step}", step=step) for step in STEPS}
    assert ask(make, saves[80]).valid is True
    put(make, saves[10], saves[80], "__3_0.distcp")
    answer = ask(make, saves[80])
    assert answer.valid is None and "bit for bit that of step-10" in answer.reason


@pytest.mark.parametrize("beside", [True, False])
def test_shards_whose_counts_of_steps_contradict_each_other(make, beside):
    """Whatever save one of them is from: it may be deleted since."""
    if beside:
        sharded(make, 60, alike(60))
    path = sharded(make, 80, alike(80, 10))
    answer = ask(make, path)
    assert answer.valid is None and "count different steps (10 and 80)" in answer.reason


def test_layers_that_began_to_learn_later_count_less_in_every_save(make):
    paths = [sharded(make, step, alike(step, step - 5)) for step in (10, 20)]
    assert [ask(make, path).valid for path in paths] == [True, True]


def test_ranks_that_have_layers_of_their_own_may_count_otherwise(make):
    assert ask(make, sharded(make, 80, alike(80, 10), own_layers=True)).valid is True


def folder(make, step, counts, ranks=2, schedule=True):
    """As a loop writes it: a file of each rank with model, optimizer and schedule."""
    path = make.root / f"run/global_step_{step}"
    for rank in range(ranks):
        value, payloads = make.state(counts[rank])
        payloads.append(make.floats(128))
        model = {"w": make.tensor((16, 8), key=len(payloads) - 1)}
        state = {"model": model, "optimizer": {"state": value, "param_groups": []}}
        state |= {"scheduler": {"last_epoch": counts[rank]}} if schedule else {}
        make.write(path / f"rank_{rank}.pt", make.torch_file(state, payloads))
    return path


@pytest.mark.parametrize("schedule", [True, False])
@pytest.mark.parametrize("beside", [True, False])
def test_ranks_of_a_folder_that_count_different_steps(make, beside, schedule):
    if beside:
        folder(make, 60, (60, 60))
    assert ask(make, folder(make, 70, (70, 70))).valid is True
    answer = ask(make, folder(make, 80, (80, 10), schedule=schedule))
    assert answer.valid is None and "counts 10 steps" in answer.reason


def test_a_stage_that_was_frozen_for_a_while(make):
    paths = [folder(make, step, (step, step - 30)) for step in (70, 80)]
    assert [ask(make, path).valid for path in paths] == [True, True]


def test_a_file_of_a_folder_of_a_save_far_back(make):
    def saved(step):
        path = make.root / f"run/global_step_{step}"
        value, payloads = make.state(step)
        make.write(path / "optim.pt", make.torch_file({"state": value, "param_groups": []}, payloads))
        make.write(
            path / "model.pt",
            make.torch_file({"w": make.tensor((16, 8)), "v": make.tensor((16, 8))}, [make.floats(128)]),
        )
        make.write(path / "train.pt", make.torch_file({"global_step": step}))
        return path

    saves = {step: saved(step) for step in STEPS}
    assert ask(make, saves[80]).valid is True
    put(make, saves[10], saves[80], "optim.pt")
    answer = ask(make, saves[80])
    assert answer.valid is None and "byte for byte that of global_step_10" in answer.reason


@pytest.fixture
def opens(monkeypatch):
    """The files that are opened, in their order."""
    paths = []
    first = os.open

    def counted(path, *arguments, **more):
        paths.append(str(path))
        return first(path, *arguments, **more)

    monkeypatch.setattr(os, "open", counted)
    return paths


def looked_at(opens, ask):
    opens.clear()
    ask()
    return len(opens)


@pytest.mark.parametrize(("kind", "most"), [("hf", 19), ("dcp", 23), ("torch", 22)])
def test_saves_further_back_cost_nothing_where_only_the_structure_is_asked_for(make, opens, kind, most):
    """Thousands of saves are listed so: each opens its own files and those of the saves nearest, however many there are."""
    made = {"hf": make.hf, "dcp": make.dcp, "torch": lambda _, step: folder(make, step, (step, step))}[kind]
    name = {"hf": "run/checkpoint-{}", "dcp": "run/step-{}", "torch": ""}[kind]
    saves = [made(name.format(step), step=step) for step in range(10, 310, 10)]
    counts = [
        looked_at(opens, lambda path=path: validate(path, "structural", now_s=make.now_s)) for path in saves[14:16]
    ]
    assert max(counts) <= most, counts


@pytest.mark.parametrize("kind", ["hf", "dcp"])
def test_a_listing_opens_each_file_further_back_once(make, opens, kind):
    def list_all(count, root):
        for step in range(10, 10 * count + 10, 10):
            made = make.hf if kind == "hf" else make.dcp
            made(f"{root}/{'checkpoint' if kind == 'hf' else 'step'}-{step}", step=step)
        settings = Settings(unsummed=True)
        return looked_at(
            opens,
            lambda: listing(make.root / root, "global", None, level="checksum", now_s=make.now_s, settings=settings),
        )

    few, many = list_all(10, "few"), list_all(40, "many")
    assert many / 40 < 1.2 * few / 10, (few, many)


def test_a_file_of_another_save_that_is_written_anew_is_read_again(make):
    """What is kept of it tells by its times that it changed."""
    saves = {step: make.hf(f"run/checkpoint-{step}", step=step) for step in STEPS}
    assert ask(make, saves[80]).valid is True
    put(make, saves[80], saves[10], "optimizer.pt")
    answer = ask(make, saves[80])
    assert answer.valid is None and "byte for byte that of checkpoint-10" in answer.reason
