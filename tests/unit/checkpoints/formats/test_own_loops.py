"""Saves of training loops that somebody wrote, under names and in layouts that a framework uses as well."""

from __future__ import annotations

import json

import pytest

from sentinel.checkpoints.formats.huggingface import hf_inside
from sentinel.checkpoints.validate import validate


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def weights(make, name):
    if name.endswith(".safetensors"):
        return make.safetensors({"w": ("F32", (4, 4), make.floats(16))})
    return make.torch_file({"w": make.tensor((4, 4))}, [make.floats(16)], name.rpartition("/")[2].rpartition(".")[0])


def optimizer(make, step):
    value, payloads = make.state(step)
    return make.torch_file({"state": value, "param_groups": [{"params": [0, 1]}]}, payloads, "optimizer")


def aged(make, path, step):
    for file in (file for file in path.rglob("*") if file.is_file()):
        make.age(file, 36_000 - step)
    return path


# --- under the Trainer's name ----------------------------------------------------------------------------------------


def of_a_loop(make, step, names):
    path = make.root / f"run/checkpoint-{step}"
    for name in names:
        make.write(path / name, optimizer(make, step) if name == "optimizer.pt" else weights(make, name))
    return aged(make, path, step)


@pytest.mark.parametrize(
    "names",
    [
        ("weights.pt", "optimizer.pt"),
        ("unet.pt", "ema.pt", "optimizer.pt", "scheduler.pt"),
        ("policy.safetensors", "optimizer.pt"),
        ("unet/lora.safetensors", "optimizer.pt"),
    ],
)
def test_weights_of_any_name_beside_an_optimizer(make, names):
    """They were invalid, and moved aside before a restart."""
    for step in (10, 20):
        answer = ask(make, of_a_loop(make, step, names))
        assert (answer.valid, answer.step) == (True, step), answer


def test_a_whole_state_in_one_file(make):
    path = make.root / "run/checkpoint-10"
    value, payloads = make.state(10)
    state = {"model": {}, "optimizer": {"state": value, "param_groups": []}, "step": 10}
    make.write(path / "state.pt", make.torch_file(state, payloads, "state"))
    assert ask(make, path).valid is True, ask(make, path)
    make.write(path / "state.pt", weights(make, "state.pt"))
    answer = ask(make, path)
    assert answer.valid is None and "trainer_state.json is missing" in answer.reason, answer


@pytest.mark.parametrize("names", [("optimizer.pt", "scheduler.pt"), ("optimizer.pt", "scheduler.pt", "rng_state.pth")])
def test_a_tokenizer_is_no_model(make, names):
    """SentencePiece's ``tokenizer.model`` counted as weights."""
    path = of_a_loop(make, 10, names)
    make.write(path / "tokenizer.model", b"a table of words")
    answer = ask(make, aged(make, path, 10))
    assert answer.valid is False and "trainer_state.json is missing" in answer.reason, answer


@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize("layout", ["flat", "tracked", "inner", "in_ds", "beside_a_model"])
def test_deepspeeds_ranks_in_a_folder_of_the_trainers_name(make, layout, lost):
    """As a folder of torch files it was valid without a rank's optimizer."""
    path = make.root / "run/checkpoint-100"
    inside = path if layout == "flat" else path / ("ds" if layout == "in_ds" else "global_step100")
    make.deepspeed(str(inside.relative_to(make.root)), step=100, ranks=4)
    if layout == "tracked":
        make.write(path / "latest", b"global_step100")
    if layout == "beside_a_model":
        make.write(path / "model.safetensors", weights(make, "model.safetensors"))
    known = layout in ("flat", "tracked")
    answer = ask(make, aged(make, path, 100))
    assert answer.valid is (True if known else None), answer
    (inside / f"bf16_zero_pp_rank_{lost}_mp_rank_00_optim_states.pt").unlink()
    answer = ask(make, path)
    assert answer.valid is (False if known else None), answer
    (inside / "mp_rank_00_model_states.pt").unlink()
    assert ask(make, path).valid is (False if known else None), ask(make, path)


def test_megatrons_ranks_in_a_folder_of_the_trainers_name(make):
    path = make.megatron_legacy("run/checkpoint-200")
    assert ask(make, aged(make, path, 200)).format == "megatron"
    (path / "mp_rank_01_000/model_optim_rng.pt").unlink()
    (path / "mp_rank_01_000").rmdir()
    assert ask(make, path).valid is not True, ask(make, path)


@pytest.mark.parametrize("at", ["run/checkpoint-100", "run/step_100"])
def test_an_optimizer_of_each_rank(make, at):
    value, payloads = make.state(100)
    for rank in range(4):
        state = make.torch_file({"state": value, "param_groups": []}, payloads, f"optimizer_{rank}")
        make.write(make.root / at / f"optimizer_{rank}.pt", state)
        make.write(make.root / at / f"model_{rank}.pt", weights(make, f"model_{rank}.pt"))
    path = aged(make, make.root / at, 100)
    assert ask(make, path).valid is True, ask(make, path)
    (path / "optimizer_1.pt").unlink()
    answer = ask(make, path)
    assert answer.valid is None and "optimizer_1.pt is missing" in answer.reason, answer


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("opt-125m.safetensors", "w"),
        ("optimized.safetensors", "w"),
        ("model.pt", "opt_proj.weight"),
        ("opt-1.3b.pt", "w"),
        ("opt-1.3b.safetensors", "w"),
        ("opt-125m.bin", "w"),
        ("opt-2.safetensors", "w"),
        ("opt-13.pt", "w"),
        ("opt.safetensors", "w"),
        ("optimus.pt", "w"),
        ("adam-7b.safetensors", "w"),
        ("sgd-net.pt", "w"),
    ],
)
def test_weights_whose_names_begin_as_an_optimizers(make, name, key):
    """They were chosen, and the run would have gone on without its optimizer."""
    path = make.root / "run/checkpoint-10"
    data = make.safetensors({key: ("F32", (4, 4), make.floats(16))})
    if not name.endswith(".safetensors"):
        data = make.torch_file({key: make.tensor((4, 4))}, [make.floats(16)], name.rpartition(".")[0])
    make.write(path / name, data)
    answer = ask(make, aged(make, path, 10))
    assert answer.valid is None and "trainer_state.json is missing" in answer.reason, answer


def test_two_sizes_of_a_model_are_no_ranks_of_an_optimizer(make):
    path = make.root / "run/step_10"
    for name in ("opt-1b.bin", "opt-3b.bin"):
        make.write(path / name, weights(make, name))
    assert ask(make, aged(make, path, 10)).valid is True, ask(make, path)


@pytest.mark.parametrize("key", ["exp_avg", "state.0.exp_avg_sq", "layers.0.weight.m", "optimizer.0"])
def test_an_optimizer_in_safetensors_under_a_short_name(make, key):
    path = make.root / "run/checkpoint-10"
    make.write(path / "model.safetensors", make.safetensors({"w": ("F32", (4, 4), make.floats(16))}))
    make.write(path / "opt.safetensors", make.safetensors({key: ("F32", (4, 4), make.floats(16))}))
    assert ask(make, aged(make, path, 10)).valid is True, ask(make, path)


@pytest.mark.parametrize("keys", [("m", "v"), ("mu", "nu")])
def test_an_optimizer_that_somebody_wrote(make, keys):
    path = make.root / "run/checkpoint-10"
    moments = {key: {"w": make.tensor((4, 4), key=index)} for index, key in enumerate(keys)}
    make.write(path / "opt.pt", make.torch_file(moments, [make.floats(16)] * 2, "opt"))
    make.write(path / "model.pt", weights(make, "model.pt"))
    assert ask(make, aged(make, path, 10)).valid is True, ask(make, path)


@pytest.mark.parametrize("state", ["moments", "whole"])
def test_an_optimizer_under_a_name_of_its_own(make, state):
    """It was an unfinished save of the Trainer, and moved aside."""
    path = make.root / "run/checkpoint-10"
    value, payloads = make.state(10)
    held = {"state": value, "param_groups": []} if state == "whole" else {"exp_avg": make.tensor((4, 4))}
    payloads = payloads if state == "whole" else [make.floats(16)]
    make.write(path / "adam.pt", make.torch_file(held, payloads, "adam"))
    make.write(path / "model.pt", weights(make, "model.pt"))
    make.write(path / "scheduler.pt", make.torch_file({"last_epoch": 10}, prefix="scheduler"))
    assert ask(make, aged(make, path, 10)).valid is True, ask(make, path)
    (path / "adam.pt").unlink()
    assert ask(make, path).valid is None, ask(make, path)


def test_the_trainers_folders_of_fsdp_without_its_state(make):
    """With the Trainer's arguments beside them they are a save of its that did not finish."""
    path = make.root / "run/checkpoint-10"
    make.dcp("run/checkpoint-10/pytorch_model_fsdp_0", step=10)
    make.dcp("run/checkpoint-10/optimizer_0", step=10)
    make.write(path / "training_args.bin", make.torch_file({"lr": 0.1}, prefix="training_args"))
    answer = ask(make, aged(make, path, 10))
    assert answer.valid is False and "trainer_state.json is missing" in answer.reason, answer
    (path / "training_args.bin").rename(path / "rng_state.pth")  # which others write as well
    assert ask(make, path).format == "nested", ask(make, path)


@pytest.mark.parametrize("arguments", ["training_args.json", "training_args.yaml"])
def test_arguments_that_a_loop_writes_as_text_make_no_save_the_trainers(make, arguments):
    path = of_a_loop(make, 10, ("model.pt", "optimizer.pt", "scheduler.pt"))
    make.write(path / arguments, b"{}")
    assert ask(make, aged(make, path, 10)).valid is True, ask(make, path)
    ranks = make.root / "runs/checkpoint-100"
    make.deepspeed("runs/checkpoint-100", step=100, ranks=4)
    make.write(ranks / arguments, b"{}")
    assert ask(make, aged(make, ranks, 100)).valid is True, ask(make, ranks)


@pytest.mark.parametrize("beside", ["training_args.json", "training_args.bin"])
def test_dcp_in_a_folder_of_the_trainers_name(make, beside):
    path = make.dcp("run/checkpoint-100", step=100)
    content = make.torch_file({"lr": 0.1}, prefix="training_args") if beside.endswith(".bin") else b"{}"
    make.write(path / beside, content)
    assert ask(make, aged(make, path, 100)).format == "dcp", ask(make, path)
    assert ask(make, path).valid is True, ask(make, path)


# --- sets of safetensors ---------------------------------------------------------------------------------------------


def in_a_set(make, folder, stem, index):
    path = make.root / folder
    table = {}
    for number in (1, 2):
        file = f"{stem}-{number:05d}-of-00002.safetensors"
        make.write(path / file, make.safetensors({f"w{number}": ("F32", (4, 4), make.floats(16))}))
        table[f"w{number}"] = file
    if index:
        make.write(path / index, json.dumps({"metadata": {}, "weight_map": table}).encode())
    make.write(path / "optimizer.pt", optimizer(make, 10))
    return aged(make, path, 10)


INDEXES = [
    ("model", "model.safetensors.index.json"),
    ("diffusion_pytorch_model", "diffusion_pytorch_model.safetensors.index.json"),
    ("diffusion_pytorch_model.fp16", "diffusion_pytorch_model.safetensors.index.fp16.json"),
    ("ft-model", "model.safetensors.index.json"),
]


@pytest.mark.parametrize(("stem", "index"), INDEXES)
@pytest.mark.parametrize("at", ["run/step_10", "run/epoch_1"])
def test_no_library_reads_a_hidden_index(make, at, stem, index):
    path = in_a_set(make, at, stem, index)
    assert ask(make, path).valid is True, ask(make, path)
    (path / index).rename(path / f".{index}")
    assert ask(make, path).valid is not True, ask(make, path)


@pytest.mark.parametrize(("stem", "index"), INDEXES)
def test_an_index_has_the_name_of_its_set(make, stem, index):
    """Diffusers' was not found, and the save was invalid."""
    path = in_a_set(make, "run/step_10", stem, index)
    assert ask(make, path).valid is True, ask(make, path)
    shard = path / f"{stem}-00002-of-00002.safetensors"
    whole = shard.read_bytes()
    make.write(shard, whole[:-4])
    assert ask(make, aged(make, path, 10)).valid is False
    shard.unlink()
    assert ask(make, path).valid is False
    make.write(shard, make.safetensors({"other": ("F32", (4, 4), make.floats(16))}))
    answer = ask(make, aged(make, path, 10))
    assert answer.valid is False and "disagree" in answer.reason, answer


@pytest.mark.parametrize(("stem", "valid"), [("model", False), ("part", None)])
def test_a_set_without_an_index(make, stem, valid):
    """Hugging Face writes the index last; what a loop of one's own writes is not moved aside for it."""
    answer = ask(make, in_a_set(make, "run/step_10", stem, ""))
    assert answer.valid is valid and f"{stem}.safetensors.index.json is missing" in answer.reason, answer


@pytest.mark.parametrize(
    "text", [b"", b"{}", b'{"weight_map": [1]}', b'{"weight_map": {"a": "consolidated-00001-of-00002.safetensors"}}']
)
@pytest.mark.parametrize("name", ["consolidated", "diffusion_pytorch_model", "model"])
def test_the_index_of_a_base_model(make, name, text):
    """Copied in with the base's settings it names no file of the save, which was invalid and moved aside."""
    path = make.hf("checkpoint-6")
    make.write(path / f"{name}.safetensors.index.json", text)
    assert ask(make, aged(make, path, 6)).valid is (None if name == "model" else True), ask(make, path)


def test_the_index_of_a_base_models_variant_beside_a_set(make):
    path = in_a_set(make, "run/step_10", "model", "model.safetensors.index.json")
    table = {"w1": "model.fp16-00001-of-00002.safetensors"}
    make.json(path / "model.safetensors.index.fp16.json", {"weight_map": table})
    make.write(path / "mo.safetensors.index.json", b"")
    assert ask(make, aged(make, path, 10)).valid is True, ask(make, path)


def test_the_variant_of_a_set_may_follow_its_number(make):
    path = in_a_set(make, "run/step_10", "model", "model.safetensors.index.json")
    (path / "model.safetensors.index.json").unlink()
    table = {}
    for number in (1, 2):
        file = path / f"model-{number:05d}-of-00002.safetensors"
        file.rename(path / f"model-{number:05d}-of-00002.fp16.safetensors")
        table[f"w{number}"] = f"model-{number:05d}-of-00002.fp16.safetensors"
    make.json(path / "model.safetensors.index.fp16.json", {"weight_map": table})
    assert ask(make, aged(make, path, 10)).valid is True, ask(make, path)
    (path / "model.safetensors.index.fp16.json").unlink()
    assert ask(make, path).valid is None, ask(make, path)
    (path / table["w2"]).unlink()
    assert ask(make, path).valid is False, ask(make, path)


# --- beside Accelerate's files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ct2/model.bin", "model.bin", "export/model_words.bin"])
@pytest.mark.parametrize("save", ["accelerate", "hf"])
def test_a_file_of_another_program_is_no_damage(make, save, name):
    """CTranslate2 and llama.cpp give their own files torch's ending."""
    path = make.accelerate("checkpoint-6") if save == "accelerate" else make.hf("checkpoint-6")
    make.write(path / name, b"\x06\x00\x00\x00\x0b\x00Spec" + bytes(range(256)) * 9)
    answer = ask(make, path)
    assert answer.valid is True, answer
    make.write(path / "ggml-model-f16.bin", b"lmgg" + bytes(range(256)) * 9)
    assert ask(make, path).valid is True, ask(make, path)


@pytest.mark.parametrize("name", ["value_head.bin", "pytorch_lora_weights.bin", "ema.bin", "model.bin"])
@pytest.mark.parametrize("save", ["accelerate", "hf"])
def test_a_torch_file_whose_beginning_is_damaged(make, save, name):
    """It counted as another program's, and the save was valid."""
    path = make.accelerate("checkpoint-6") if save == "accelerate" else make.hf("checkpoint-6")
    data = weights(make, name)
    make.write(path / name, data)
    assert ask(make, path).valid is True, ask(make, path)
    make.write(path / name, b"\xde\xad\xbe\xef" + data[4:])
    assert ask(make, path).valid is None, ask(make, path)
    make.write(path / name, data[:-9])
    assert ask(make, path).valid is False, ask(make, path)


def test_a_file_that_lost_its_content_may_be_another_programs(make):
    path = make.accelerate("checkpoint-6")
    make.write(path / "ggml-model-f16.bin", bytes(900))
    assert ask(make, path).valid is None, ask(make, path)


@pytest.mark.parametrize("name", ["ct2/model.bin", "scorer/model.bin", "model_words.bin"])
def test_another_programs_model_is_not_the_model(make, name):
    path = make.accelerate("checkpoint-6", ranks=1)
    (path / "model.safetensors").unlink()
    data = make.torch_file({"w": make.tensor((2, 3))}, [make.floats(6)], "model")
    make.write(path / name, data if name.startswith("scorer") else b"\x06\x00\x00\x00 Spec" * 9)
    answer = ask(make, path)
    assert answer.valid is not True, answer


@pytest.mark.parametrize("name", ["unet.bin", "transformer.pt", "vae/weights.pt", "nets/g.pth", "nets/g.safetensors"])
def test_a_model_that_a_hook_of_ones_own_saves(make, name):
    """Where it had none of the libraries' names the save was invalid, and moved aside before a restart."""
    path = make.accelerate("run/step_100", ranks=1)
    (path / "model.safetensors").unlink()
    data = make.torch_file({"w": make.tensor((16, 8))}, [make.floats(128)], name.rpartition("/")[2].rpartition(".")[0])
    if name.endswith(".safetensors"):
        data = make.safetensors({"w": ("F32", (16, 8), make.floats(128))})
    make.write(path / name, data)
    assert ask(make, path).valid is True, ask(make, path)
    make.write(path / name, data[:-9])
    assert ask(make, path).valid is False, ask(make, path)
    (path / name).unlink()
    answer = ask(make, path)
    assert answer.valid is False and "no model" in answer.reason, answer


def test_what_lies_in_folders_beside_a_model_is_anybodys(make):
    path = make.accelerate("step_100")
    make.write(path / "eval/preds.pt", weights(make, "preds.pt")[:-9])
    assert ask(make, path).valid is True, ask(make, path)


def test_many_files_in_a_folder_are_named_once(make, monkeypatch):
    """For each of them the whole save was gone through: 28 s for 4,000."""
    listings = []
    folders = hf_inside.folders
    monkeypatch.setattr(hf_inside, "folders", lambda tree: listings.append(tree) or folders(tree))
    path = make.accelerate("step_100")
    for number in range(30):
        make.write(path / f"adapters/lora_{number}.safetensors", weights(make, "lora.safetensors"))
    assert ask(make, aged(make, path, 100)).valid is True, ask(make, path)
    assert len(listings) < 5


# --- the Trainer's model in folders ----------------------------------------------------------------------------------


def with_adapters(make, step, shape=(16, 8)):
    path = make.hf(f"run/checkpoint-{step}", step)
    (path / "model.safetensors").unlink()
    for adapter in ("policy", "reference"):
        tensors = {f"q.lora_{kind}.weight": ("F32", shape, make.floats(shape[0] * shape[1])) for kind in "AB"}
        make.write(path / adapter / "adapter_model.safetensors", make.safetensors(tensors))
        make.json(path / adapter / "adapter_config.json", {"r": 16})
    return aged(make, path, step)


def test_adapters_with_names_lie_in_folders(make):
    """PEFT's: each such save was invalid, and moved aside before a restart."""
    paths = [with_adapters(make, step) for step in (10, 20)]
    assert [ask(make, path).valid for path in paths] == [True] * 2, [ask(make, path) for path in paths]
    assert "no checksum recorded for policy" in ask(make, paths[1], "content").reason
    adapter = paths[1] / "policy/adapter_model.safetensors"
    whole = adapter.read_bytes()
    make.write(adapter, whole[:-4])
    assert ask(make, aged(make, paths[1], 20)).valid is False
    adapter.unlink()
    answer = ask(make, paths[1])
    assert answer.valid is None and "policy/adapter_model.safetensors is missing" in answer.reason, answer


@pytest.mark.parametrize(("save", "valid"), [("accelerate", None), ("hf", True)])
def test_an_export_that_is_being_written_into_a_save(make, save, valid):
    """Beside Accelerate's model it may be a part of the pipeline; it is no reason to move the save aside."""
    path = make.accelerate("checkpoint-6") if save == "accelerate" else make.hf("checkpoint-6")
    make.write(path / "merged/model.safetensors", weights(make, "model.safetensors")[:-4])
    assert ask(make, path).valid is valid, ask(make, path)


@pytest.mark.parametrize("name", ["ct2/model.bin", "eval/model.bin", "model_words.bin"])
def test_another_programs_model_is_not_the_trainers(make, name):
    path = make.hf("checkpoint-6")
    (path / "model.safetensors").unlink()
    data = make.torch_file({"w": make.tensor((2, 3))}, [make.floats(6)], "model")
    make.write(path / name, data if name.startswith("eval") else b"\x06\x00\x00\x00 Spec" * 9)
    answer = ask(make, path)
    assert answer.valid is not True, answer


# --- a folder of one's own -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", bytes(900)])
def test_a_model_that_lost_its_content(make, data):
    """Under ``.bin`` it was taken for another program's file, and the save was valid without its model."""
    path = make.root / "run/epoch_3"
    make.write(path / "model.bin", weights(make, "model.bin"))
    make.write(path / "optimizer.pt", optimizer(make, 10))
    assert ask(make, aged(make, path, 10)).valid is True, ask(make, path)
    make.write(path / "model.bin", data)
    answer = ask(make, aged(make, path, 10))
    assert answer.valid is None and "model.bin" in answer.reason, answer
