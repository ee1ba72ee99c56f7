"""Checkpoints written by the libraries themselves: each writer leaves one save of a small model at one step.

    WRITERS[name](folder, step, seed) -> the path of the checkpoint

A writer whose library is not installed is left out; `python real_writers.py` names those that are there. None of the
libraries is needed by the usual tests.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import logging
import os
import random
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

WRITERS = {}
# Torch before 2.9 finds out by itself that there is one process.
ALONE = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}
logging.getLogger().setLevel(logging.ERROR)


def needs(*libraries):
    """Register the writer where all these libraries are installed."""

    def register(write):
        if all(importlib.util.find_spec(library) for library in libraries):
            WRITERS[write.__name__] = write
        return write

    return register


def network(seed, width=24):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.LayerNorm(width), torch.nn.Linear(width, 8))


def trained(step, seed, optimizer="adamw"):
    """A network and its optimizer after some real steps, whose count is then set to ``step``."""
    model = network(seed)
    made = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[optimizer]
    opt = made(model.parameters(), lr=1e-3, **({"momentum": 0.9} if optimizer == "sgd" else {}))
    torch.manual_seed(seed + step)
    for _ in range(2):
        opt.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        opt.step()
    for state in opt.state.values():
        if torch.is_tensor(state.get("step")):
            state["step"].fill_(step)
    return model, opt


def full_state(step, seed, optimizer="adamw"):
    model, opt = trained(step, seed, optimizer)
    return {"model": model.state_dict(), "optim": opt.state_dict(), "train_state": {"step": step}}


# --- torch.save ------------------------------------------------------------------------------------------------------


def torch_writer(name, save):
    def write(folder, step, seed):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step_{step}.pt"
        save(path, step, seed)
        return path

    write.__name__ = name
    needs("torch")(write)


def _best_so_far(path, step, seed):
    """Infinities and NaN where trainers keep scores, limits and schedules."""
    state = full_state(step, seed) | {
        "scheduler": {"best": float("inf"), "last_epoch": step, "mode_worse": -float("inf"), "T_max": float("inf")},
        "callbacks": {"EarlyStopping": {"best_score": torch.tensor(float("inf")), "wait_count": 0}},
        "metrics": {"loss": torch.tensor(float("nan")), "history": [float("nan"), 1.0]},
        "scaler": {"scale": 65536.0, "growth_factor": 2.0},
    }
    torch.save(state, path)


def _outside_of_views(path, step, seed):
    """A view of a larger buffer, of which the rest was never written to."""
    buffer = torch.full((400,), float("nan"))
    buffer[100:228] = torch.randn(128, generator=torch.Generator().manual_seed(seed))
    state = full_state(step, seed)
    state["model"]["view"] = buffer[100:228].view(16, 8)
    state["model"]["every_other"] = torch.stack([torch.randn(64), torch.full((64,), float("inf"))], 1)[:, 0]
    torch.save(state, path)


def _without_checksums(path, step, seed):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(full_state(step, seed), path)
    finally:
        torch.serialization.set_crc32_options(True)


def _mask(path, step, seed):
    state = full_state(step, seed)
    state["model"]["causal_mask"] = torch.full((9, 9), float("-inf")).triu(1)
    torch.save(state, path)


def _odd_types(path, step, seed):
    state = full_state(step, seed)
    g = torch.Generator().manual_seed(seed)
    state["model"] |= {
        "complex": torch.randn(4, 4, dtype=torch.complex64, generator=g),
        "bf16": torch.randn(8, 8, generator=g).bfloat16(),
        "fp8": torch.randn(8, 8, generator=g).to(torch.float8_e4m3fn),
        "half": torch.randn(8, generator=g).half(),
        "sparse": torch.randn(4, 4, generator=g).to_sparse(),
        "empty": torch.empty(0),
        "scalar": torch.tensor(3.5),
        "int8": torch.randint(-9, 9, (7,), generator=g, dtype=torch.int8),
        "param": torch.nn.Parameter(torch.randn(3, generator=g)),
        "quantized": torch.quantize_per_tensor(torch.randn(4, 4, generator=g), 0.1, 0, torch.qint8),
    }
    torch.save(state, path)


torch_writer("torch_plain", lambda path, step, seed: torch.save(full_state(step, seed) | {"step": step}, path))
torch_writer("torch_sgd", lambda path, step, seed: torch.save(full_state(step, seed, "sgd"), path))
torch_writer("torch_adagrad", lambda path, step, seed: torch.save(full_state(step, seed, "adagrad"), path))
torch_writer("torch_scores", _best_so_far)
torch_writer("torch_views", _outside_of_views)
torch_writer("torch_no_crc", _without_checksums)
torch_writer("torch_mask", _mask)
torch_writer("torch_types", _odd_types)
torch_writer(
    "torch_legacy",
    lambda path, step, seed: torch.save(full_state(step, seed), path, _use_new_zipfile_serialization=False),
)


@needs("torch")
def torch_numpy_rng(folder, step, seed):
    """What torch.load(weights_only=True) reads with numpy's names allowed: most people's random states."""
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step}.pt"
    rng = {"python": random.Random(seed).getstate(), "numpy": numpy.random.RandomState(seed).get_state()}
    torch.save(full_state(step, seed) | {"rng": rng, "best_metric": numpy.float64("nan")}, path)
    return path


# --- DCP -------------------------------------------------------------------------------------------------------------


def dcp_writer(name, libraries=(), **writing):
    def write(folder, step, seed):
        path = folder / f"step-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {key: make() if callable(make) else make for key, make in writing.items()}
            dcp.save(full_state(step, seed), storage_writer=dcp.FileSystemWriter(path, **options), **ALONE)
        return path

    write.__name__ = name
    needs("torch", *libraries)(write)


def _zstd():
    from torch.distributed.checkpoint._extension import ZStandard

    return [ZStandard()]


def _as_safetensors():
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    return SerializationFormat.SAFETENSORS


dcp_writer("dcp_plain")
dcp_writer("dcp_threads", thread_count=3)
dcp_writer("dcp_file_per_item", single_file_per_rank=False)
dcp_writer("dcp_zstd", ("zstandard",), _extensions=_zstd)
dcp_writer("dcp_safetensors", ("safetensors",), serialization_format=_as_safetensors)
dcp_writer("dcp_safetensors_threads", ("safetensors",), serialization_format=_as_safetensors, thread_count=2)


@needs("torch")
def dcp_async(folder, step, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = folder / f"step-{step}"
        dcp.async_save(full_state(step, seed), checkpoint_id=path, **ALONE).result()
    return path


@needs("torch")
def dcp_no_crc(folder, step, seed):
    torch.serialization.set_crc32_options(False)
    try:
        return WRITERS["dcp_plain"](folder, step, seed)
    finally:
        torch.serialization.set_crc32_options(True)


@needs("torch")
def dcp_experimental(folder, step, seed):
    """The writer of torch.distributed.checkpoint._experimental: one torch file per rank."""
    from torch.distributed.checkpoint._experimental.checkpoint_writer import CheckpointWriter, CheckpointWriterConfig
    from torch.distributed.checkpoint._experimental.types import RankInfo

    path = folder / f"step-{step}"
    for rank in range(3):
        writer = CheckpointWriter(CheckpointWriterConfig(), RankInfo(global_rank=rank, global_world_size=3))
        writer.write(str(path), full_state(step, seed + rank))
    return path


@needs("torch", "safetensors")
def dcp_hugging_face(folder, step, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = folder / f"step-{step}"
        state = network(seed + step).state_dict()
        where = {name: 1 + index % 2 for index, name in enumerate(state)}
        writer = dcp.HuggingFaceStorageWriter(path=str(path), fqn_to_index_mapping=where)
        dcp.save(state, storage_writer=writer, **ALONE)
    return path


@needs("torch", "safetensors")
def dcp_consolidated(folder, step, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = folder / f"step-{step}"
        state = network(seed + step).state_dict()
        where = {name: 1 + index % 2 for index, name in enumerate(state)}
        writer = dcp.HuggingFaceStorageWriter(
            path=str(path), fqn_to_index_mapping=where, save_distributed=True, enable_consolidation=True
        )
        dcp.save(state, storage_writer=writer, **ALONE)
    return path


# --- safetensors -----------------------------------------------------------------------------------------------------


@needs("safetensors")
def safetensors_plain(folder, step, seed):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step}.safetensors"
    save_file(network(seed + step).state_dict(), path)
    return path


# --- Hugging Face ----------------------------------------------------------------------------------------------------


def trainer_writer(name, *, shards="5GB", pickled=False, lora=False, **settings):
    def write(folder, step, seed):
        return _trainer(folder, step, seed, shards, pickled, lora, settings)

    write.__name__ = name
    needs("transformers", "accelerate", *(("peft",) if lora else ()))(write)


def _trainer(folder, step, seed, shards, pickled, lora, settings):
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if shards != "5GB" or pickled:
        plain = model.save_pretrained
        model.save_pretrained = lambda *a, **k: plain(*a, **(k | {"max_shard_size": shards}))
    data = [{"input_ids": torch.randint(0, 64, (8,)), "labels": torch.randint(0, 64, (8,))} for _ in range(64)]
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=step, save_steps=step, per_device_train_batch_size=1, report_to=[],
        disable_tqdm=True, use_cpu=True, logging_steps=1, seed=seed, **settings,
    )  # fmt: skip
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:4]).train()
    return folder / f"checkpoint-{step}"


trainer_writer("trainer")
trainer_writer("trainer_sharded", shards="30KB")
trainer_writer("trainer_only_model", save_only_model=True)


def accelerate_writer(name, *, safe=True, automatic=False, ranks=1):
    def write(folder, step, seed):
        return _accelerate(folder, step, seed, safe, automatic)

    write.__name__ = name
    needs("accelerate")(write)


def _accelerate(folder, step, seed, safe, automatic):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState
    from accelerate.utils import ProjectConfiguration

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    folder.mkdir(parents=True, exist_ok=True)
    project = ProjectConfiguration(
        project_dir=str(folder), automatic_checkpoint_naming=automatic, iteration=step // 10 - 1 if automatic else 0
    )
    accelerator = Accelerator(cpu=True, project_config=project)
    model, opt = trained(step, seed)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)
    model, opt, schedule = accelerator.prepare(model, opt, schedule)
    if automatic:
        return Path(accelerator.save_state(safe_serialization=safe))
    return Path(accelerator.save_state(str(folder / f"step_{step}"), safe_serialization=safe))


accelerate_writer("accelerate_safe")
accelerate_writer("accelerate_bin", safe=False)
accelerate_writer("accelerate_automatic", automatic=True)


# --- Lightning -------------------------------------------------------------------------------------------------------


def lightning_writer(name, *, sharded=False, **settings):
    def write(folder, step, seed):
        return _lightning(folder, step, seed, settings)

    write.__name__ = name
    needs("lightning")(write)


def _lightning(folder, step, seed, settings):
    import lightning
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network(seed)

        def training_step(self, batch, _):
            loss = self.net(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
            if settings.get("plateau"):
                schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
                return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "loss"}}
            return optimizer

    callbacks = [
        ModelCheckpoint(dirpath=folder, every_n_train_steps=step, save_last=settings.get("last"), save_top_k=-1)
    ]
    if settings.get("stopping"):
        callbacks += [EarlyStopping("loss", patience=99), EarlyStopping("loss", mode="max", patience=99)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_steps=step, logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=callbacks,
        )  # fmt: skip
        data = torch.utils.data.DataLoader([torch.randn(16) for _ in range(400)], batch_size=4)
        trainer.fit(Module(), data)
    return next(path for path in sorted(folder.glob("*.ckpt")) if f"step={step}" in path.name)


lightning_writer("lightning_plain")
lightning_writer("lightning_stopping", stopping=True)
lightning_writer("lightning_plateau", plateau=True, stopping=True)


# --- JAX -------------------------------------------------------------------------------------------------------------


def orbax_writer(name, *, manager=False, **settings):
    def write(folder, step, seed):
        return _orbax(folder, step, seed, manager, settings)

    write.__name__ = name
    needs("orbax", "jax", "zstandard")(write)


def _orbax(folder, step, seed, manager, settings):
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import orbax.checkpoint as ocp

    key = jax.random.PRNGKey(seed + step)
    state = {"params": {"w": jax.random.normal(key, (40, 40))}, "mu": jax.random.normal(key, (8,)), "step": step}
    if manager:
        with ocp.CheckpointManager(folder) as saver:
            saver.save(step, args=ocp.args.StandardSave(state))
        return folder / str(step)
    path = folder / f"checkpoint_{step}"
    ocp.PyTreeCheckpointer(**settings).save(path, state)
    return path


orbax_writer("orbax_manager", manager=True)
orbax_writer("orbax_zarr", use_ocdbt=False)
orbax_writer("orbax_zarr3", use_ocdbt=False, use_zarr3=True)


if __name__ == "__main__":
    print(json.dumps(sorted(WRITERS)))
