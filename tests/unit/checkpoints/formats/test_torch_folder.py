"""Folders that trainers fill by hand: one torch file per rank or per part, checkpoints inside of folders, other formats."""

from __future__ import annotations

import os

import pytest

from sentinel.checkpoints.validate import validate, validate_part


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def ranks(make, folder, step=10, count=3, name="checkpoint_{}.pt"):
    path = make.root / folder
    for rank in range(count):
        value, payloads = make.state(step)
        state = {"optimizer": {"state": value, "param_groups": []}, "step": step}
        make.write(path / name.format(rank), make.torch_file(state, payloads))
    return path


@pytest.mark.parametrize("name", ["checkpoint_{}.pt", "ep0-ba10-rank{}.pt", "model_world_size_3_rank_{}.pt"])
def test_one_file_per_rank(make, name):
    path = ranks(make, "step-10", name=name)
    answer = ask(make, path, "content")
    assert (answer.valid, answer.step) == (True, 10), answer
    (path / name.format(1)).unlink()
    assert ask(make, path).valid is False


def test_the_last_rank_is_missed_by_the_save_beside(make):
    path = ranks(make, "run/step-10")
    ranks(make, "run/step-20", step=20)
    assert ask(make, path).valid is True
    (path / "checkpoint_2.pt").unlink()
    assert ask(make, path).valid is None


def written_later(path, seconds):
    status = path.stat()
    os.utime(path, (status.st_atime, status.st_mtime + seconds))


@pytest.mark.parametrize(
    ("folder", "file"),
    [
        (lambda make: ranks(make, "step-10"), "checkpoint_1.pt"),
        (lambda make: make.deepspeed("run/global_step10", 10), "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        (lambda make: make.megatron_legacy("run/iter_0000010", 10), "mp_rank_01_000/model_optim_rng.pt"),
    ],
)
@pytest.mark.parametrize("late_s", [600, 1800])
def test_a_rank_that_was_written_over_half_an_hour_later(make, folder, file, late_s):
    """There is no marker that it would be newer than; ranks may wait minutes for one another, not half an hour."""
    path = folder(make)
    written_later(path / file, late_s)
    answer = ask(make, path)
    assert answer.valid is (True if late_s == 600 else None), answer
    assert late_s == 600 or "from an earlier save" in answer.reason


@pytest.mark.parametrize(
    "data",
    [b"version https://git-lfs.github.com/spec/v1\n", b"<?xml version='1.0'?><Error/>", bytes(range(1, 256)) * 40],
)
def test_a_rank_that_is_no_file_of_torch(make, data):
    """A pointer of git-lfs, an object store's error, encrypted bytes: it was left out, and the others were valid."""
    path = ranks(make, "step-10")
    make.write(path / "checkpoint_1.pt", data)
    for level in ("structural", "content"):
        answer = ask(make, path, level)
        assert answer.valid is None and "checkpoint_1.pt" in answer.reason, answer


def test_ranks_of_two_steps(make):
    path = ranks(make, "step-10")
    make.write(path / "checkpoint_1.pt", ranks(make, "other", step=9).joinpath("checkpoint_1.pt").read_bytes())
    answer = ask(make, path)
    assert answer.valid is False and "two saves" in answer.reason


def test_what_has_no_end_marker_may_be_being_written(make):
    path = ranks(make, "step-10")
    make.age(path / "checkpoint_2.pt", 5)
    assert ask(make, path).valid is None


def test_a_run_with_files_of_several_steps_is_no_checkpoint(make):
    make.legacy("run/iter_5.pt")
    make.legacy("run/iter_6.pt", step=6)
    assert ask(make, make.root / "run").format == "unknown"


def test_checkpoints_in_folders_of_a_step(make):
    path = make.root / "step-10"
    make.dcp("step-10/model_and_optim", step=10)
    make.write(path / "train" / "rank0.pt", make.torch_file({"global_step": 10}))
    assert (ask(make, path, "checksum").valid, ask(make, path).format) == (True, "nested")
    (path / "model_and_optim/__1_0.distcp").unlink()
    assert ask(make, path).valid is False


def test_folders_of_two_steps(make):
    make.dcp("step-10/model", step=10)
    make.dcp("step-10/optimizer", step=9)
    answer = ask(make, make.root / "step-10")
    assert answer.valid is False and "two saves" in answer.reason


@pytest.mark.parametrize("folder", [lambda make: make.hf("checkpoint-6"), lambda make: make.accelerate("step_100")])
def test_a_program_that_was_exported_later_condemns_nothing(make, folder):
    path = folder(make)
    records = [("data.pkl", b"x"), ("code/__torch__.py", b"y"), ("constants.pkl", b"z"), ("version", b"3")]
    for name in ("pytorch_model.bin", "exported.pt", "model.ts.pth"):
        make.write(path / name, make.torch_zip(records), 0)
        make.age(path / name, 1000)
    assert ask(make, path).valid is not False
    (path / "pytorch_model.bin").unlink()
    assert ask(make, path).valid is True


def test_programs_beside_a_checkpoint_are_none_of_ours(make):
    records = [("data/0", make.floats(4)), ("data.pkl", b"x"), ("code/__torch__.py", b"y"), ("constants.pkl", b"z")]
    program = make.torch_zip(records, prefix="model")
    path = make.dcp("step-10", step=10)
    make.write(path / "scripted.pt", program)
    assert ask(make, path).valid is True
    make.write(path / "scripted.pt", program[:150])
    assert ask(make, path).valid is True
    alone = make.root / "scripted.pt"
    make.write(alone, program)
    answer = ask(make, alone)
    assert answer.valid is None and "TorchScript" in answer.reason


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (["model.ckpt-10.index", "model.ckpt-10.data-00000-of-00001"], "TensorFlow"),
        (["model_state.pdparams", "optimizer.pdopt"], "Paddle"),
        (["0_0.distcp", "0.metadata"], "Paddle"),
        (["streaming_train_state_10"], "EasyLM"),
    ],
)
def test_other_formats_are_named(make, names, title):
    for name in names:
        make.write(make.root / "step_10" / name, b"something")
    answer = ask(make, make.root / "step_10")
    assert answer.valid is None and title in answer.reason


def test_checksums_that_were_switched_off(make):
    state, payloads = make.state(10)
    make.write(make.root / "iter_10.pt", make.torch_file({"state": state}, payloads, crc=False))
    path = make.accelerate("step_10")
    make.write(path / "optimizer.bin", make.torch_file({"state": state}, payloads, crc=False))
    for one in (make.root / "iter_10.pt", path):
        assert ask(make, one).valid is True
        assert ask(make, one, "checksum").valid is None
        assert ask(make, one, "content").valid is None


def zarr(make, folder, step=200):
    path = make.root / folder
    for name in ("model.weight", "optimizer.exp_avg"):
        make.json(
            path / name / ".zarray",
            {"shape": [4, 6], "chunks": [2, 3], "dtype": "<f4", "fill_value": 0, "compressor": None},
        )
        for chunk in ("0.0", "0.1", "1.0", "1.1"):
            make.write(path / name / chunk, make.floats(6))
    for place in ("0.0", "0.1"):
        file = f"shard_{place}_1.2"
        make.write(path / f"rng_state/{file}.pt", make.torch_file({"seed": step}, prefix=file))
    make.write(path / "common.pt", make.torch_file({"iteration": step}))
    make.json(path / "metadata.json", {"sharded_backend": "zarr", "sharded_backend_version": 1}, 1)
    return path


@pytest.mark.parametrize("name", ["run/iter_0000200", "run/gpt--val_loss=2.10-step=200-consumed_samples=800.0"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_zarr_save_of_megatrons_or_nemos_without_its_marker(make, name, beside):
    path = zarr(make, name)
    answer = ask(make, path)
    assert (answer.valid, answer.format, answer.step) == (True, "megatron", 200), answer
    if beside:
        zarr(make, name.replace("200", "300"), 300)
    (path / "metadata.json").unlink()
    assert ask(make, path).valid is not True


@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "zeros", "flipped", "the other's"])
@pytest.mark.parametrize("place", ["0.0", "0.1"])
def test_what_is_no_array_in_megatrons_zarr(make, damage, place):
    """Random states, and what layers keep beside their weights: one file per shard, and its name says of how many."""
    zarr(make, "run/iter_0000100", 100)
    path = zarr(make, "run/iter_0000200")
    file = path / f"rng_state/shard_{place}_1.2.pt"
    data, other = file.read_bytes(), path / f"rng_state/shard_0.{1 - int(place[-1])}_1.2.pt"
    flipped = data.replace(b"seed", b"seee")
    new = {
        "cut": data[:99],
        "empty": b"",
        "zeros": bytes(len(data)),
        "flipped": flipped,
        "the other's": other.read_bytes(),
    }
    file.unlink()
    if damage != "gone":
        make.write(file, new[damage])
    answer = ask(make, path, "checksum" if damage == "flipped" else "structural")
    assert answer.valid is (None if damage == "the other's" else False), answer


def test_megatrons_zarr(make):
    path = zarr(make, "run/iter_0000200")
    answer = ask(make, path)
    assert (answer.valid, answer.format, answer.step) == (True, "megatron", 200), answer
    assert ask(make, path, "content").valid is None
    zarr(make, "run/iter_0000300", 300)
    for damage in ("0.1", "cut", ".zarray", "common.pt", "all"):
        broken = zarr(make, "run/iter_0000200")
        if damage == "cut":
            (broken / "model.weight/1.1").write_bytes(b"abc")
        elif damage == "common.pt":
            (broken / damage).unlink()
        elif damage == "all":
            for file in (broken / "optimizer.exp_avg").iterdir():
                file.unlink()
        else:
            (broken / "model.weight" / damage).unlink()
        assert ask(make, broken).valid is not True, damage


def test_a_file_that_somebody_hid(make):
    path = ranks(make, "step-10", count=2)
    (path / "checkpoint_1.pt").rename(path / ".checkpoint_1.pt")
    assert ask(make, path).valid is True, "one file is no set of ranks"
    (path / "checkpoint_0.pt").rename(path / ".checkpoint_0.pt")
    answer = ask(make, path)
    assert answer.valid is None and "no known checkpoint format" in answer.reason


def test_blocks_that_changed_places_make_no_program(make):
    """The archive then begins with a record of numbers, as the programs of TorchScript do."""
    path = ranks(make, "step-10", count=2)
    data = (path / "checkpoint_1.pt").read_bytes()
    second = data.index(b"PK\x03\x04", data.index(b"data/0"))
    make.write(path / "checkpoint_1.pt", data[second : 2 * second] + data[:second] + data[2 * second :])
    answer = ask(make, path)
    assert answer.valid is None and "begins as a program, and is none that is whole" in answer.reason


def test_an_optimizer_that_lost_its_state_inside_of_a_file(make):
    """The save before has it: state of a parameter stays."""
    ranks(make, "run/step-10")
    path = ranks(make, "run/step-20", step=20)
    assert ask(make, path).valid is True
    groups = [{"params": [0, 1]}]
    for folder in ("run/step-10", "run/step-20"):
        value, payloads = make.state(20)
        state = {
            "optimizer": {"state": value if folder.endswith("10") else {}, "param_groups": groups},
            "step": int(folder[-2:]),
        }
        make.write(
            make.root / folder / "checkpoint_1.pt", make.torch_file(state, payloads if folder.endswith("10") else ())
        )
    answer = ask(make, path)
    assert answer.valid is None and "the state of 0 of 2 parameters" in answer.reason


def sharded(make, step, frozen=0):
    """Each rank's part of the weights and of their moments in files of their own, as verl keeps them."""
    path = make.root / f"run/step-{step}"
    for rank in range(2):
        weights = {f"{number}.weight": make.tensor((16, 8), key=number) for number in range(2)}
        payloads = [make.floats(128) for _ in weights]
        for number in range(frozen):
            weights[f"frozen.{number}"] = make.tensor((4,), key=len(payloads))
            payloads.append(b"\0" * 16)
        make.write(path / f"model_world_size_2_rank_{rank}.pt", make.torch_file(weights, payloads))
        value, payloads = make.state(step)
        optimizer = make.torch_file({"state": value, "param_groups": []}, payloads)
        make.write(path / f"optim_world_size_2_rank_{rank}.pt", optimizer)
    return path


@pytest.mark.parametrize(("frozen", "seen"), [(0, None), (1, True)])
def test_a_ranks_weights_of_the_save_before(make, frozen, seen):
    """Where the rank's optimizer keeps a moment of each of them; others may be frozen, and the same in every save."""
    before, path = sharded(make, 10, frozen), sharded(make, 20, frozen)
    assert ask(make, path).valid is True, ask(make, path)
    name = "model_world_size_2_rank_0.pt"
    make.write(path / name, (before / name).read_bytes())
    answer = ask(make, path, "checksum")
    assert answer.valid is seen, answer
    assert seen or "rank_0.pt is byte for byte that of step-10" in answer.reason, answer


@pytest.mark.parametrize(
    ("name", "numbers", "missing"),
    [
        ("model_world_size_2_rank_{}.pt", "0 1", ""),
        ("model_world_size_2_rank_{}.pt", "0", "model_world_size_2_rank_1.pt"),
        ("model_world_size_12_rank_{}.pt", "0 1 2 3 4 5 6 7 8 9 10", "model_world_size_12_rank_11.pt"),
        ("actor/optim_world_size_2_rank_{}.pt", "1", "actor/optim_world_size_2_rank_0.pt"),
        ("weights-{}-of-00003.bin", "00001 00002 00003", ""),
        ("weights-{}-of-00003.bin", "00001 00002", "weights-00003-of-00003.bin"),
        ("weights-{}-of-3.bin", "0 1", "weights-2-of-3.bin"),
    ],
)
def test_names_that_state_how_many_there_are(make, name, numbers, missing):
    path = make.root / "step-10"
    for number in numbers.split():
        make.write(path / name.format(number), make.torch_file({"w": make.tensor((4,))}, [make.floats(4)]))
    answer = ask(make, path)
    assert answer.valid is (not missing), answer
    assert not missing or answer.reason == f"{missing} is missing"


def test_an_optimizer_of_the_save_before_beside_folders_of_the_step(make):
    for step in (10, 20):
        path = make.dcp(f"run/step-{step}/model", step=step, names=("model.w",)).parent
        value, payloads = make.state(step)
        make.write(path / "optimizer.pt", make.torch_file({"state": value, "param_groups": []}, payloads))
    assert ask(make, path).valid is True, ask(make, path)
    make.write(path / "optimizer.pt", (path.with_name("step-10") / "optimizer.pt").read_bytes())
    answer = ask(make, path)
    assert answer.valid is None and "optimizer.pt is byte for byte that of step-10" in answer.reason, answer


def listed(make, path):
    """As it is found under a root, where weights alone are no checkpoint."""
    return validate_part(path, "structural", tier="global", host="h", root=path.parent, now_s=make.now_s, loose=True)


MOMENTS = {
    "opt.pt": [("m", "v"), ("exp_avg", "exp_avg_sq"), ("mu", "nu"), ("momentum",), ("momentum_buffer",)],
    "optimstate.pt": [("m", "v"), ("anything",)],
    "optim-states.pt": [("anything",)],
}


@pytest.mark.parametrize(("name", "moments"), [(name, one) for name, all_ in MOMENTS.items() for one in all_])
@pytest.mark.parametrize("deep", [False, True])
def test_an_optimizer_that_is_kept_by_parameter(make, name, moments, deep):
    """``{name: {m, v}}`` is a table of tables of tensors as weights are: it was "weights without an optimizer"."""
    path = make.root / "run/step_6"
    make.write(path / "model.pt", make.torch_file({"a.weight": make.tensor((4, 4))}, [make.floats(16)]))
    held = {moment: make.tensor((4, 4), key=key) for key, moment in enumerate(moments)}
    value = {"a.weight": held} if not deep else {"net": {"a": {"weight": held}}}
    make.write(path / name, make.torch_file(value, [make.floats(16) for _ in moments]))
    assert listed(make, path).valid is True, listed(make, path)


@pytest.mark.parametrize("value", [("weight", "bias"), ("q", "k", "v"), ("m",)])
def test_weights_of_a_model_that_is_called_opt(make, value):
    path = make.root / "run/step_6"
    held = {name: make.tensor((4, 4), key=key) for key, name in enumerate(value)}
    make.write(path / "opt.pt", make.torch_file({"layer": held}, [make.floats(16) for _ in value]))
    assert listed(make, path).valid is None, listed(make, path)


@pytest.mark.parametrize("name", ["opt.pt", "resnet50_sgd-0.1.pt", "adamw-run.pt"])
def test_a_momentum_that_is_a_number_is_a_setting(make, name):
    """Of a model's batch norm, or of the run: weights alone were taken for an optimizer."""
    path = make.root / "run/step_6"
    for value in (
        {"model": {"a.weight": make.tensor((4, 4))}, "momentum": 0.9},
        {"bn": {"weight": make.tensor((4, 4)), "momentum": 0.1}},
    ):
        make.write(path / name, make.torch_file(value, [make.floats(16)]))
        assert listed(make, path).valid is None, listed(make, path)
