"""One file per format. The order matters: the more particular formats are asked first."""

from __future__ import annotations

from sentinel.checkpoints.files import Tree
from sentinel.checkpoints.formats import (
    by_name,
    dcp,
    deepspeed,
    deepspeed_universal,
    megatron,
    nemo,
    nested,
    nvrx,
    rank_set,
    safetensors_file,
    safetensors_set,
    torch_file,
    torch_folder,
    tracked,
)
from sentinel.checkpoints.formats.base import Format
from sentinel.checkpoints.formats.huggingface import accelerate, hf_trainer
from sentinel.checkpoints.formats.jax import msgpack, orbax

FORMATS: tuple[Format, ...] = (
    nvrx,
    orbax,
    hf_trainer,
    accelerate,
    tracked,
    megatron,
    deepspeed_universal,
    deepspeed,
    nemo,
    dcp,
    safetensors_set,
    rank_set,
    torch_file,
    safetensors_file,
    msgpack,
    *by_name.UNCHECKED,
    nested,
    torch_folder,
)


def recognise(tree: Tree) -> Format | None:
    """The format of what is there, or None."""
    return next((known for known in FORMATS if known.recognise(tree)), None)
