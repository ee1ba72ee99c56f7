"""One file per format. The order matters: the more particular formats are asked first."""

from __future__ import annotations

from sentinel.checkpoints.files import Tree
from sentinel.checkpoints.formats import (
    accelerate,
    dcp,
    deepspeed,
    deepspeed_universal,
    hf_trainer,
    megatron,
    nemo,
    nvrx,
    safetensors_file,
    safetensors_set,
    torch_file,
    tracked,
)
from sentinel.checkpoints.formats.base import Format

FORMATS: tuple[Format, ...] = (
    nvrx,
    hf_trainer,
    accelerate,
    tracked,
    megatron,
    deepspeed_universal,
    deepspeed,
    nemo,
    dcp,
    safetensors_set,
    torch_file,
    safetensors_file,
)


def recognise(tree: Tree) -> Format | None:
    """The format of what is there, or None."""
    return next((known for known in FORMATS if known.recognise(tree)), None)
