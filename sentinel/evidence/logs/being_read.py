"""What a program was reading when an exception came: told by the names of the functions and files of its frames.

The same words (``EOFError``, ``JSONDecodeError``) come of a checkpoint, of a sample and of a file of settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

What = Literal["checkpoint", "data", "settings", ""]
NEAREST = 6  # frames from the innermost one on: who called those reads other things, too

_READ = rb"(?:re)?(?:load|read|open|pars|decod|fetch|deserializ|unpack|import)(?:e|ed|s|ing)?"
_STATE = (
    rb"(?:checkpoint|ckpt|snapshot|optim\w{0,8}|pretrained"
    rb"|(?:state(?:_?dict)?|weight|model|param|scheduler)s?(?![a-z]))"
)
_SAMPLE = (
    rb"(?:(?:data(?:set|frame|module)?(?!_parallel)|sample|batch|shard|record|example|image|audio|video|clip|item|chunk"
    rb"|feature|document)(?:e?s)?(?![a-z])|corpus)"
)
_SETTING = rb"(?:config(?:uration)?|conf|cfg|setting|option|arg(?:ument)?|hparam|yaml|toml|recipe)s?(?![a-z])"
_SAMPLES_OF = rb"(?:datasets|webdataset|streaming|torchvision/datasets|torchaudio|litdata|torchdata|lhotse|tfds)"
# A frame as FILE:FUNCTION: and the line that it shows, in small letters. The first that fits counts.
_KINDS: tuple[tuple[What, re.Pattern[bytes]], ...] = (
    (
        "settings",
        re.compile(
            rb":_{0,2}(?:%s|get|from)_?(?:\w{1,20}_)?%s\w{0,16}:"
            rb"|:[^\n]{0,40}\b\w{0,16}(?:config|cfg|settings|hparams) ?= ?[\w.]{1,24}\(" % (_READ, _SETTING)
        ),
    ),
    (
        "checkpoint",
        re.compile(
            rb":_{0,2}(?:maybe_|try_|auto_)?(?:(?:%s)_?(?:\w{1,20}_)?%s|restore|resume)\w{0,32}:"
            rb"|/(?:\w{0,16}(?:checkpoint|ckpt|snapshot)\w{0,16}|resume)\.py:\w{0,16}(?:%s|restore|resume)\w{0,24}:"
            rb"|:[^\n]{0,80}(?:load|open|read|restore|unpack|from_bytes|decode|parse)\w{0,12}\("
            rb"[^\n]{0,60}(?:checkpoint|ckpt|snapshot|resume|trainer_state)" % (_READ, _STATE, _READ)
        ),
    ),
    (
        "data",
        re.compile(
            rb":(?:__getitem__|__next__|_worker_loop|fetch|_?collate\w{0,16}):"
            rb"|:_{0,2}(?:%s|get|next)_(?:\w{1,20}_)?%s\w{0,24}:"
            rb"|:_{0,2}(?:\w{1,20}_)?%s_?(?:stream|iter|reader|loader|source)\w{0,12}:"
            rb"|/(?:\w{0,16}data(?:set|_?loader|module)s?\w{0,12}|data|data_?(?:utils|io|pipeline)|loaders?)\.py:"
            rb"|/(?:site|dist)-packages/%s/" % (_READ, _SAMPLE, _SAMPLE, _SAMPLES_OF)
        ),
    ),
)


# Where no data are read, whatever its functions are called.
_ELSEWHERE = re.compile(rb"/torch/(?:_dynamo|_inductor|_functorch|fx|_export|nn)/|/megatron/core/parallel_state\.py")


def being_read(frames: Iterable[tuple[bytes, bytes, bytes]]) -> What:
    """``frames``: file, function and the line that each shows, the innermost one first; empty where no name tells."""
    for number, frame in enumerate(frames):
        if number == NEAREST:
            break
        place = b":".join(frame).lower()
        if _ELSEWHERE.search(place):
            continue
        for what, pattern in _KINDS:
            if pattern.search(place):
                return what
    return ""
