"""More checkpoints for `judge_real.py`: optimizers, types and layouts that `real_writers.py` has not.

Layouts of trainers that do not install without a GPU (verl, torchtune, Levanter, EasyLM) are laid out as their sources do,
with the libraries that they use to write files.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from real_writers import ALONE, WRITERS, full_state, needs, network, torch_writer, trained, trainer_writer

# --- torch.save --------------------------------------------------------------------------------------------------------


def _optimizers(path, step, seed):
    """The state of every optimizer of torch that makes a step here."""
    made = {}
    for name in ("Adam", "NAdam", "RAdam", "Adamax", "RMSprop", "Adadelta", "ASGD", "Rprop", "Adafactor", "Muon"):
        kind = getattr(torch.optim, name, None)
        if kind is not None:
            model = torch.nn.Linear(12, 9, bias=name != "Muon")
            made[f"{name}_optimizer"] = _stepped(model, kind(model.parameters()), seed + step)
    model = torch.nn.Linear(6, 5, dtype=torch.complex64)
    made["amsgrad_optimizer"] = _stepped(model, torch.optim.Adam(model.parameters(), amsgrad=True), seed + step)
    torch.save(full_state(step, seed) | made, path)


def _stepped(model, opt, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=g, dtype=parameter.dtype)
        opt.step()
    return opt.state_dict()


def _shapes(path, step, seed):
    """Tied and empty tensors, those on the meta device, scalars, views of one buffer, 8-bit floats."""
    state = full_state(step, seed)
    model = state["model"]
    buffer = torch.randn(64, generator=torch.Generator().manual_seed(seed))
    model |= {
        "tied": model["0.weight"], "empty": torch.empty(0, 7), "nowhere": torch.empty(5, 5, device="meta"),
        "first": buffer[:32], "second": buffer[32:], "rows": buffer.view(8, 8)[::2], "one": torch.tensor(2.0),
        "flags": torch.zeros(5, dtype=torch.bool), "u16": torch.arange(9).to(torch.uint16),
        "transposed": buffer.view(8, 8).t(),
    }  # fmt: skip
    for name in ("float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
        model[name] = buffer.abs().to(getattr(torch, name))
    torch.save(state, path)


torch_writer("torch_optimizers", _optimizers)
torch_writer("torch_shapes", _shapes)


def _torchao(path, step, seed):
    os.environ["TORCH_COMPILE_DISABLE"] = "1"
    from torchao.optim import AdamW4bit, AdamW8bit

    made = {}
    for kind in (AdamW8bit, AdamW4bit):
        model = torch.nn.Linear(128, 96)
        made[f"{kind.__name__}_optimizer"] = _stepped(model, kind(model.parameters()), seed + step)
    torch.save(full_state(step, seed) | made, path)


@needs("torchao")
def torch_torchao(folder, step, seed):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step}.pt"
    _torchao(path, step, seed)
    return path


@needs("bitsandbytes")
def torch_bitsandbytes(folder, step, seed):
    """Moments in 8 bits with their scales, as bitsandbytes keeps them: quantised here, since its step needs a GPU."""
    import bitsandbytes.functional as quantised

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step}.pt"
    state = full_state(step, seed)
    for one in state["optim"]["state"].values():
        for number, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
            table = quantised.create_dynamic_map(signed=number == 1)
            one[f"state{number}"], scales = quantised.quantize_blockwise(one.pop(name).view(-1), code=table)
            one[f"qmap{number}"], one[f"absmax{number}"] = table, scales.absmax
    torch.save(state, path)
    return path


# --- DCP -----------------------------------------------------------------------------------------------------------------


@needs("torch")
def dcp_planned_before(folder, step, seed):
    """The planner keeps its plan, as torchtitan has it: the second save is written from it."""
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in (step - 1, step):
            path = folder / f"step-{number}"
            dcp.save(full_state(number, seed), storage_writer=dcp.FileSystemWriter(path), planner=planner, **ALONE)
    shutil.rmtree(folder / f"step-{step - 1}")
    return path


@needs("torch")
def dcp_titan(folder, step, seed):
    """torchtitan's keys: the step as a tensor, the optimizer flattened by parameter, positions of the data as bytes."""
    model, opt = trained(step, seed)
    names = dict(enumerate(name for name, _ in model.named_parameters()))
    state = dict(model.state_dict())
    for number, one in opt.state_dict()["state"].items():
        state |= {f"optimizer.state.{names[number]}.{key}": value for key, value in one.items()}
    state |= {f"optimizer.param_groups.{name}.lr": 1e-3 for name in names.values()}
    state |= {"train_state": {"step": torch.tensor(step, dtype=torch.int32), "ntokens_seen": torch.tensor(step * 99)}}
    state |= {"dataloader": {"dp_rank_0": b"\x80\x04N." * 9, "world_size": 1}, "lr_scheduler": {"last_epoch": step}}
    path = folder / f"step-{step}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=path, **ALONE)
    return path


def on_ranks(count, work):
    """Run ``work(rank)`` in that many forked processes of one gloo group."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(count):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    torch.set_num_threads(1)
                    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=count)
                    work(rank)
                    dist.barrier()
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        failed = [child for child in children if os.waitpid(child, 0)[1]]
    if failed:
        raise RuntimeError(f"{len(failed)} of {count} ranks failed")


def sharded_writer(name, save, ranks=2):
    def write(folder, step, seed):
        path = folder / f"step-{step}"
        path.mkdir(parents=True)
        on_ranks(ranks, lambda rank: save(path, step, seed, rank))
        return path

    write.__name__ = name
    needs("torch")(write)


def _fully_sharded(seed, step):
    from torch.distributed.fsdp import fully_shard

    model = network(seed)
    fully_shard(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(seed + step + dist.get_rank())
    for _ in range(2):
        opt.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        opt.step()
    for one in opt.state.values():
        one["step"].fill_(step)
    return model, opt


def _fsdp2(path, step, seed, rank):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, opt = _fully_sharded(seed, step)
    weights, moments = get_state_dict(model, opt)
    state = {"model": weights, "optim": moments, "train_state": {"step": step}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=path)


def _local_shards(path, step, seed, rank):
    """Each rank's own part of the weights and moments in a file of its own, as verl keeps them."""
    model, opt = _fully_sharded(seed, step)
    mine = {name: value.to_local() for name, value in model.state_dict().items()}
    count = dist.get_world_size()
    torch.save(mine, path / f"model_world_size_{count}_rank_{rank}.pt")
    state = opt.state_dict()
    for one in state["state"].values():
        one |= {key: value.to_local() for key, value in one.items() if hasattr(value, "to_local")}
    torch.save(state, path / f"optim_world_size_{count}_rank_{rank}.pt")
    rng = {"cpu": torch.get_rng_state()}
    torch.save(
        {"lr_scheduler": {"last_epoch": step}, "rng": rng}, path / f"extra_state_world_size_{count}_rank_{rank}.pt"
    )
    if rank == 0:
        (path / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": count}))


def _gathered(path, step, seed, rank):
    """The whole state on one rank, in one file, as FSDP's full state dict."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    model, opt = _fully_sharded(seed, step)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, moments = get_state_dict(model, opt, options=options)
    if rank == 0:
        torch.save({"model": weights, "optimizer": moments, "step": step}, path / "full_state.pt")


sharded_writer("fsdp_sharded", _fsdp2)
sharded_writer("fsdp_local", _local_shards)
sharded_writer("fsdp_full", _gathered)


# --- safetensors, Hugging Face, other trainers -----------------------------------------------------------------------------


@needs("safetensors")
def safetensors_types(folder, step, seed):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    g = torch.Generator().manual_seed(seed + step)
    state = dict(network(seed + step).state_dict())
    state |= {"empty": torch.empty(0, 4), "int": torch.arange(40), "scalar": torch.tensor(1.5)}
    state |= {name: torch.randn(8, 8, generator=g).to(getattr(torch, name)) for name in ("float8_e4m3fn", "bfloat16")}
    path = folder / f"step_{step}.safetensors"
    save_file(state, path, metadata={"format": "pt", "step": str(step)})
    return path


trainer_writer("trainer_plateau", lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="steps", eval_steps=3,
               metric_for_best_model="eval_loss")  # fmt: skip
trainer_writer("trainer_adafactor", optim="adafactor")
trainer_writer("trainer_sgd", optim="sgd")
trainer_writer("trainer_accumulating", gradient_accumulation_steps=3, save_total_limit=4)
trainer_writer("trainer_lora", lora=True)


@needs("safetensors")
def torchtune_full(folder, step, seed):
    """torchtune's full finetune recipe: numbered safetensors, their index, and the recipe's state in a folder."""
    from safetensors.torch import save_file

    path = folder / f"epoch_{step // 10}"
    (path / "recipe_state").mkdir(parents=True)
    model, opt = trained(step, seed)
    state = {name: value + step for name, value in model.state_dict().items()}
    halves = [list(state)[:3], list(state)[3:]]
    table = {}
    for number, names in enumerate(halves, 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: state[name] for name in names}, path / file, metadata={"format": "pt"})
        table |= dict.fromkeys(names, file)
    size = sum(value.numel() * 4 for value in state.values())
    index = {"metadata": {"total_size": size}, "weight_map": table}
    (path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    recipe = {
        "optimizer": opt.state_dict(),
        "epochs_run": step // 10,
        "total_epochs": 9,
        "seed": seed,
        "max_steps_per_epoch": 10,
    }
    torch.save(recipe, path / "recipe_state" / "recipe_state.pt")
    return path


@needs("lightning")
def lightning_averaged(folder, step, seed):
    """The weights' moving average beside them, by Lightning's callback."""
    import lightning
    from lightning.pytorch.callbacks import EMAWeightAveraging
    from real_writers import _lightning

    plain = lightning.Trainer
    lightning.Trainer = lambda *a, **k: plain(*a, **k | {"callbacks": [*k["callbacks"], EMAWeightAveraging()]})
    try:
        return _lightning(folder, step, seed, {})
    finally:
        lightning.Trainer = plain


# --- JAX -------------------------------------------------------------------------------------------------------------------


def _jax_state(step, seed):
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import optax

    keys = jax.random.split(jax.random.PRNGKey(seed + step), 3)
    params = {"dense": {"kernel": jax.random.normal(keys[0], (24, 16)), "bias": jax.random.normal(keys[1], (16,))}}
    adam = optax.adamw(1e-3)
    state = adam.init(params)
    for _ in range(2):
        grads = jax.tree.map(lambda p: p * 0.1, params)
        updates, state = adam.update(grads, state, params)
        params = optax.apply_updates(params, updates)
    return {"params": params, "opt_state": state, "step": step}


@needs("flax", "optax")
def flax_bytes(folder, step, seed):
    from flax import serialization

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint_{step}"
    path.write_bytes(serialization.to_bytes(_jax_state(step, seed)))
    return path


@needs("flax", "msgpack", "optax")
def easylm_stream(folder, step, seed):
    """EasyLM's stream: one pair of name and array after another, each packed by itself."""
    import msgpack
    from flax import serialization, traverse_util

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"streaming_train_state_{step}"
    flat = traverse_util.flatten_dict(serialization.to_state_dict(_jax_state(step, seed)))
    with path.open("wb") as file:
        packer = msgpack.Packer()
        for key, value in flat.items():
            file.write(packer.pack((key, serialization.to_bytes(value))))
    return path


@needs("orbax", "jax", "optax", "zstandard")
def orbax_items(folder, step, seed):
    """Several items in one step, as MaxText keeps state and position of the data."""
    import orbax.checkpoint as ocp

    with ocp.CheckpointManager(folder, item_names=("items", "iter")) as saver:
        saver.save(step, args=ocp.args.Composite(
            items=ocp.args.PyTreeSave(_jax_state(step, seed)), iter=ocp.args.JsonSave({"next": step}),
        ))  # fmt: skip
    return folder / str(step)


@needs("tensorstore", "jax", "optax")
def levanter(folder, step, seed):
    """Levanter's layout: a description and one zarr array of TensorStore per leaf."""
    import jax
    import numpy
    import tensorstore

    path = folder / f"step-{step}"
    state = _jax_state(step, seed)
    flat, _ = jax.tree_util.tree_flatten_with_path({"model": state["params"], "optimizer": state["opt_state"]})
    for keys, value in flat:
        name = "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in keys)
        array = numpy.asarray(value)
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(path / name)}}
        made = tensorstore.open(spec, create=True, dtype=array.dtype, shape=array.shape).result()
        made.write(array).result()
    (path / "metadata.json").write_text(json.dumps({"step": step, "timestamp": "2026-11-25", "is_temporary": False}))
    return path


__all__ = ["WRITERS"]
