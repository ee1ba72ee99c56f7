"""Models that somebody's hook, or PEFT, saves beside the files of the Trainer and of Accelerate."""

from __future__ import annotations

import pickle

import pytest

from sentinel.checkpoints.validate import validate


def ask(make, path, level="structural"):
    return validate(path, level, now_s=make.now_s)


def without_model(make, save):
    path = make.accelerate("run/checkpoint-6", 6, ranks=1) if save == "accelerate" else make.hf("run/checkpoint-6", 6)
    (path / "model.safetensors").unlink()
    return path


def torch_model(make, name, shape=(16, 8)):
    stem = name.rpartition("/")[2].rpartition(".")[0]
    return make.torch_file({"w": make.tensor(shape)}, [make.floats(shape[0] * shape[1])], stem)


def adapter(make, *names):
    return make.safetensors({f"q.lora_{name}.weight": ("F32", (16, 8), make.floats(128)) for name in names})


def aged(make, path, step=6):
    for file in (file for file in path.rglob("*") if file.is_file()):
        make.age(file, 36_000 - step)
    return path


@pytest.mark.parametrize("save", ["accelerate", "hf"])
@pytest.mark.parametrize("name", ["unet.ckpt", "unet/w.ckpt", "model.pt.tar"])
def test_torchs_file_under_another_ending(make, save, name):
    """It was invalid, "no model in it", and moved aside."""
    path = without_model(make, save)
    data = torch_model(make, name)
    make.write(path / name, data)
    assert ask(make, aged(make, path)).valid is True, ask(make, path)
    make.write(path / name, data[:-9])
    assert ask(make, aged(make, path)).valid is False, ask(make, path)


@pytest.mark.parametrize("save", ["accelerate", "hf"])
@pytest.mark.parametrize("name", ["model.pkl", "model.msgpack", "net.npz", "custom_checkpoint_0.pkl", "unet/w.h5"])
def test_a_model_that_is_not_read(make, save, name):
    """What may be the model is no reason to move the save aside, and shows no model."""
    path = without_model(make, save)
    make.write(path / name, torch_model(make, name) if "custom" in name else pickle.dumps({"w": [1.0] * 300}))
    answer = ask(make, aged(make, path))
    assert answer.valid is None and name in answer.reason, answer


@pytest.mark.parametrize("save", ["accelerate", "hf"])
def test_a_file_without_tensors_is_no_model(make, save):
    path = without_model(make, save)
    make.write(path / "settings.pt", make.torch_file({"lr": 0.1}, prefix="settings"))
    assert ask(make, aged(make, path)).valid is None, ask(make, path)


@pytest.mark.parametrize("save", ["accelerate", "hf"])
@pytest.mark.parametrize("name", ["eval/preds.pt", "export/x.safetensors"])
@pytest.mark.parametrize("model", ["policy/adapter_model.safetensors", "nets/g.pth"])
def test_a_damaged_file_beside_a_models_is_not_moved_aside(make, save, name, model):
    path = without_model(make, save)
    make.write(path / model, adapter(make, "A") if model.endswith("tensors") else torch_model(make, model))
    data = adapter(make, "A") if name.endswith("tensors") else torch_model(make, name)
    make.write(path / name, data)
    assert ask(make, aged(make, path)).valid is True, ask(make, path)
    make.write(path / name, data[:-4])
    assert ask(make, aged(make, path)).valid is None, ask(make, path)


@pytest.mark.parametrize("save", ["accelerate", "hf"])
def test_an_exported_program_is_no_part_of_the_save(make, save):
    path = without_model(make, save)
    make.write(path / "policy/adapter_model.safetensors", adapter(make, "A"))
    records = [("data.pkl", b"\x80\x02}."), ("code/__torch__.py", b"x"), ("code/__torch__.py.debug_pkl", b"x"),
               ("constants.pkl", b"\x80\x02)."), ("version", b"3\n")]  # fmt: skip
    make.write(path / "export/model.pt", make.torch_zip(records, "model"))
    assert ask(make, aged(make, path)).valid is True, ask(make, path)


@pytest.mark.parametrize("trained", [("A",), ("A", "B")])
def test_an_adapter_with_a_name_beside_the_default_one(make, trained):
    """PEFT writes "default" at the top: the others were not looked at, and the optimizer seemed another model's."""
    path = without_model(make, "hf")
    make.write(path / "adapter_model.safetensors", adapter(make, *trained))
    data = adapter(make, "A")
    make.write(path / "policy/adapter_model.safetensors", data)
    answer = ask(make, aged(make, path))
    assert answer.valid is True, answer
    assert "no checksum recorded for" in ask(make, path, "content").reason
    make.write(path / "policy/adapter_model.safetensors", data[:-4])
    assert ask(make, aged(make, path)).valid is None, ask(make, path)
    make.write(path / "policy/adapter_model.safetensors", data)
    make.write(path / "merged/model.safetensors", data[:-4])
    assert ask(make, aged(make, path)).valid is True, "a merged model is no part of the save"


@pytest.mark.parametrize("save", ["accelerate", "hf"])
@pytest.mark.parametrize("name", ["export.safetensors", "eval_preds.pkl", "ggml-model-f16.bin", "merged.bin"])
@pytest.mark.parametrize("odd", [0, 1])
def test_what_one_of_the_libraries_saves_alone_has(make, save, name, odd):
    """An export of one milestone made the saves beside it not known."""
    steps = (10, 20, 30)
    paths = [
        make.accelerate(f"run/step_{n}", n) if save == "accelerate" else make.hf(f"run/checkpoint-{n}", n)
        for n in steps
    ]
    data = b"lmgg" + bytes(range(256)) if name.startswith("ggml") else torch_model(make, name)
    make.write(paths[odd] / name, adapter(make, "A") if name.endswith("tensors") else data)
    for path, step in zip(paths, steps, strict=True):
        aged(make, path, 600 * step)
    assert [ask(make, path).valid for path in paths] == [True] * 3, [ask(make, path) for path in paths]
    for path in paths:
        make.write(path / "value_head.safetensors", adapter(make, "A"))
        aged(make, path, 600 * steps[paths.index(path)])
    (paths[2] / "value_head.safetensors").unlink()
    answer = ask(make, paths[2])
    assert answer.valid is None and "value_head.safetensors is missing" in answer.reason, answer


@pytest.mark.parametrize("save", ["accelerate", "hf"])
def test_another_programs_file_begins_alike_in_the_save_beside(make, save):
    paths = []
    for step in (10, 20):
        path = (
            make.accelerate(f"run/step_{step}", step)
            if save == "accelerate"
            else make.hf(f"run/checkpoint-{step}", step)
        )
        make.write(path / "words.bin", b"\x2f\x4f\x16\xba" + bytes(range(256)))
        paths.append(aged(make, path, 600 * step))
        assert ask(make, path).valid is (None if step == 10 else True), ask(make, path)
    make.write(paths[1] / "words.bin", b"\xde\xad\x16\xba" + bytes(range(256)))
    assert ask(make, aged(make, paths[1], 12_000)).valid is None, ask(make, paths[1])


@pytest.mark.parametrize("save", ["hf", "accelerate"])
@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model_ema.bin",
        "pytorch_model.fp16.bin",
        "adapter_model_old.bin",
        "my_fsdp_export.bin",
        "export.safetensors",
    ],
)
def test_more_weights_that_were_written_after_the_end_of_a_save(make, save, name):
    """The names of the weights were narrowed to those of the libraries: these were valid."""
    path = make.accelerate("run/checkpoint-6", 6, ranks=1) if save == "accelerate" else make.hf("run/checkpoint-6", 6)
    if name.endswith(".bin"):
        make.write(path / name, make.torch_file({"a": make.tensor((4, 4))}, [make.floats(16)], name.rpartition(".")[0]))
    else:
        make.write(path / name, make.safetensors({"a": ("F32", (4, 4), make.floats(16))}))
    for file in path.rglob("*"):
        make.age(file, 3600)
    make.age(path, 3600)
    assert ask(make, path).valid is True, ask(make, path)
    make.age(path / name, 2100)
    answer = ask(make, path)
    assert answer.valid is None and "overwritten in place, or added later?" in answer.reason, answer


@pytest.mark.parametrize("save", ["hf", "accelerate"])
@pytest.mark.parametrize("name", ["pytorch_model.bin/pytorch_model.bin", "pytorch_model_merged/part.bin"])
def test_an_export_in_a_folder_of_a_finished_save_is_no_part_of_it(make, save, name):
    """``zero_to_fp32.py . pytorch_model.bin`` makes such a folder."""
    path = make.accelerate("run/checkpoint-6", 6, ranks=1) if save == "accelerate" else make.hf("run/checkpoint-6", 6)
    for file in path.rglob("*"):
        make.age(file, 33_000)
    (path / name).parent.mkdir()
    make.write(path / name, make.torch_file({"a": make.tensor((4, 4))}, [make.floats(16)], "part"))
    make.age(path / name, 2100)
    assert ask(make, path).valid is not False, ask(make, path)
