"""What frames are for, by file and function, and what an exception that ends there speaks for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sentinel.model.records import Cause

C = Cause
Weights = Mapping[Cause, float]
Places = tuple[tuple[re.Pattern[str], Weights], ...]
# What a library's FILE:FUNCTION is for, and what an exception there speaks for. The first that fits counts.
PLACES: Places = (
    # Packages that unpack samples.
    (
        re.compile(
            r"/webdataset/(?:autodecode|tariterators|gopen|tenbin|cache|compat)\.py:"
            r"|/lhotse/(?:audio|shar)/[\w/]{1,60}\.py:_?(?:read|load|decode|open)"
        ),
        {C.DATALOADER: 3.2, C.USER_CONFIG: 1.0},
    ),
    # Compilers of kernels and graphs: what they cannot build, or read back from their cache.
    (
        re.compile(
            r"/torch/(?:_inductor|_dynamo|_functorch|_higher_order_ops|_subclasses|_export|fx)/"
            r"|/triton/(?:compiler|runtime|backends)/"
        ),
        {C.SOFTWARE_ENV: 4.2},
    ),
    # Optional kernels: what no release of theirs serves on this GPU.
    (re.compile(r"/torch/_ops\.py:|/(?:xformers|flash_attn|apex|transformer_engine)/"), {C.SOFTWARE_ENV: 2.4}),
    # Checkpoints: what a file lacks that its index names.
    (
        re.compile(
            r"(?i)/torch/distributed/checkpoint/|/dist_checkpointing/|/checkpoint/(?:\w{1,24}_)?load\w{0,8}\.py:"
            r"|/torch/(?:serialization|_weights_only_unpickler)\.py:\w{0,8}load|/safetensors/torch\.py:(?:safe_)?load"
        ),
        {C.CHECKPOINT_CORRUPT: 3.6, C.USER_CONFIG: 1.6},
    ),
    (
        re.compile(r"(?i)/torch/serialization\.py:(?:\w{0,8}save|__exit__|__init__)|/safetensors/torch\.py:save"),
        {C.DISK_FULL: 3.4, C.FILESYSTEM_STORAGE: 2.6},
    ),
    (
        re.compile(
            r"/torch/distributed/(?:elastic/)?rendezvous|:(?:_create_c10d_store|_create_tcp_store|init_process_group)$"
        ),
        {C.NETWORK_BOOTSTRAP: 2.6},
    ),
    # Where arguments, settings and names of things are looked up or checked.
    (
        re.compile(
            r"(?i)/(?:arg(?:ument)?s?|training_args|\w{0,32}config\w{0,32}|\w{0,16}cli|\w{0,12}argparser|registry|factory)\.py:"
            r"|/(?:hydra|omegaconf|pydantic\w{0,8}|jsonargparse|click|typer|tyro)/"
            r"|:_{0,2}(?:validate|check|verify|sanity|parse|resolve|ensure)\w{0,60}$|:__post_init__$"
        ),
        {C.USER_CONFIG: 3.0},
    ),
)
# What the program was doing when the standard library raised for it: FILE:FUNCTION.
STANDARD: Places = (
    (re.compile(r"^os\.py:(?:__getitem__|__delitem__)$"), {C.USER_CONFIG: 4.4}),
    (re.compile(r"^argparse\.py:|^configparser\.py:"), {C.USER_CONFIG: 3.4}),
    (re.compile(r"^shared_memory\.py:"), {C.DATALOADER: 4.0}),  # a name that another run, or process, left behind
    (re.compile(r"^importlib|^<frozen importlib|_bootstrap"), {C.SOFTWARE_ENV: 2.6}),
)


def first_of(places: Places, place: str) -> Weights | None:
    return next((weights for pattern, weights in places if pattern.search(place)), None)
