"""Which numbers of a checkpoint must be finite: those of the model and of the optimizer.

Whatever else a trainer keeps may be infinite or NaN for good reasons: the best score so far, the limit of a schedule, a
metric that never got a value. Frameworks differ in what they call things, so three hints decide together: the names on
the way to a tensor, the shape, and what stands beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum

from sentinel.checkpoints.parsing.floats import Look, has_floats
from sentinel.checkpoints.parsing.tensors import Pickled, Storage, Tensor, tensor_of
from sentinel.inert_pickle import Opaque

Path = tuple[str, ...]


class Role(Enum):
    """What part of a training state something belongs to."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    OTHER = "other"  # scores, schedules, positions, settings
    UNDECIDED = "undecided"


_OPTIMIZER = re.compile(r"optim|(^|_)opt($|_|\d)|^exp_avg|momentum_buffer|^master_|fp32_from_|^opt_state")
# What only an optimizer's state is called, whether tables or tensors have that name.
OPTIMIZER_KEY = re.compile(r"(?:^|[^a-z])(?:optim(?!al|um)|opt_?state)", re.IGNORECASE)
_MODEL = re.compile(
    r"model|module|(^|_)net(work)?($|_|\d)|weights?($|_)|param|(^|_)ema($|_)|backbone|encoder|decoder|generator"
    r"|discriminator|critic|actor|policy|teacher|student|^_buffers$|layers?$|embed|lora|adapter"
)
_OTHER = re.compile(
    r"callback|sched|^lrs?$|metric|score|loss|sampler|loader|dataset|datamodule|loops?$|logger|history|rng|random|scaler"
    r"|early|stopp|^best|progress|statistics|^stats$|timer|timestamp|hyper|hparam|^args$|config|epoch|meter|monitor|patience"
    r"|trainer_state|train_state|^lr_|learning_rate|_steps?$|^steps?$|tokens|samples|^min_|^max_|perplexity|accuracy"
)
_OPTIMIZER_ITSELF = re.compile(r"(.*_)?optim(izer)?s?(_states?(_dict)?)?")
_SETTINGS_ITSELF = re.compile(r"sched|hyper|hparam|config")
_SETTINGS = re.compile(r"param_groups|scaler|scale$|clip|hyper|overflow|^lr$|group_meta|ds_config|found_inf")
_AVERAGE = re.compile(r"(^|_)(ema|swa)($|_)|averag|shadow")
# Averages of squares, which Adam, Adafactor, RMSprop and their kin divide by the root of.
_SQUARES = frozenset(("exp_avg_sq", "max_exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col", "square_avg"))
_FORBIDDING = re.compile(r"mask|alibi|causal|attn_bias|attention_bias")
_OF_LAYERS = ("weight", "bias")  # as every layer calls what it learns
# What is filled while a model generates, and made as anything.
_CACHE = re.compile(r"kv|(.*_)?(cache|caches|cached|past_key_values?)(_.*)?")
_CONTAINERS = (dict, list, tuple, Opaque)


def role_below(role: Role, name: str) -> Role:
    """The role of what is kept under that name, inside of something of the given role."""
    word = name.lower()
    if role is Role.OTHER:
        return Role.MODEL if _AVERAGE.search(word) else Role.OTHER
    if role is Role.OPTIMIZER:
        return Role.OTHER if _SETTINGS.search(word) else Role.OPTIMIZER
    if _OPTIMIZER_ITSELF.fullmatch(word):
        return Role.OPTIMIZER
    if role is Role.MODEL:
        return Role.MODEL
    if _SETTINGS_ITSELF.search(word):
        return Role.OTHER
    if _OPTIMIZER.search(word):
        return Role.OPTIMIZER
    if _MODEL.search(word):
        return Role.MODEL
    return Role.OTHER if _OTHER.search(word) else Role.UNDECIDED


def role_of(path: Iterable[str], start: Role = Role.UNDECIDED) -> Role:
    """The role of what lies at the end of that path of names."""
    last = ""
    for last in path:
        start = role_below(start, last)
    return Role.MODEL if start is Role.OTHER and last in ("weight", "bias") else start


def is_average(path: Iterable[str]) -> bool:
    """Whether a model is kept under that name beside the one that is trained, as an average of it."""
    return any(_AVERAGE.search(name.lower()) for name in path)


def averages_squares(path: Iterable[str]) -> bool:
    """Whether an optimizer keeps averages of squares under that name, of which none can be negative."""
    return not _SQUARES.isdisjoint(path)


def look_at(path: Path, dtype: str, size: Sequence[int], role: Role, *, in_model: bool) -> Look | None:
    """How a tensor is looked at; None where its numbers may be anything.

    ``in_model``: it is kept as the parameters of a model are, by a name among others of their kind.
    """
    if not has_floats(dtype) or role is Role.OTHER:
        return None
    elements = 1
    for length in size:
        elements *= length
    last = path[-1].lower() if path else ""
    if role is Role.OPTIMIZER:
        return Look(dtype, masks=False, squares=averages_squares(path))
    bookkeeping = bool(_OTHER.search(last.rpartition(".")[2]))
    if elements <= 1 and (bookkeeping or (role is Role.UNDECIDED and not in_model)):
        return None
    if role is Role.UNDECIDED and not in_model and bookkeeping:
        return None
    forbidding = any(_FORBIDDING.search(name.lower()) for name in path)
    buffer = last.rpartition(".")[2] not in _OF_LAYERS
    if buffer and any(_CACHE.fullmatch(name.lower()) for name in (*path[:-1], *last.split("."))):
        return None
    if buffer and len(size) == 1:  # of tokens that are never to be chosen there may be a few
        return Look(dtype, least=0.0, unset=True, infinities=forbidding)
    return Look(dtype, masks=len(size) >= 2 or forbidding, unset=buffer, infinities=forbidding)


def looks_of(pickled: Pickled, start: Role = Role.UNDECIDED) -> dict[str, list[Look]]:
    """Storage -> how it is looked at, of one torch.save file. What is not in it may hold anything."""
    by_call = {id(tensor.made): tensor for tensor in pickled.tensors}
    found: dict[str, dict[Look, list[Tensor]]] = {}
    seen: set[int] = set()
    for tensor, path, role, in_model in _walk(pickled.value, by_call, start):
        seen.add(id(tensor.made))
        _add(found, tensor, look_at(path, tensor.dtype, tensor.size, role, in_model=in_model))
    for tensor in pickled.tensors:  # kept where this does not look: inside of what a call made of it
        if id(tensor.made) not in seen:
            _add(found, tensor, look_at((), tensor.dtype, tensor.size, start, in_model=start is not Role.UNDECIDED))
    return {key: [_seen_through(look, tensors) for look, tensors in looks.items()] for key, looks in found.items()}


def storages_of(value: object) -> Pickled:
    """The same as `read_pickle` gives, of a value that was read otherwise."""
    tensors: list[Tensor] = []
    for item in _every(value):
        if isinstance(item, Opaque) and item.args and isinstance(item.args[0], Storage):
            tensor = tensor_of(item, "")
            tensors += [tensor] if tensor else []
    return Pickled(value, {tensor.storage.key: tensor.storage for tensor in tensors}, tensors)


def _add(found: dict[str, dict[Look, list[Tensor]]], tensor: Tensor, look: Look | None) -> None:
    if look is not None:
        found.setdefault(tensor.storage.key, {}).setdefault(look, []).append(tensor)


def _seen_through(look: Look, tensors: Sequence[Tensor]) -> Look:
    """All of the storage where a tensor shows all of it, as most do; else what the tensors show of it."""
    views = tuple(tensor.view for tensor in tensors if all(tensor.size))
    return replace(look, views=tuple(dict.fromkeys(views)))


Node = tuple[object, Path, Role, bool]


def _walk(root: object, by_call: dict[int, Tensor], start: Role) -> Iterable[tuple[Tensor, Path, Role, bool]]:
    """Every tensor with the names on the way to it, its role, and whether it is kept as a model's parameters are."""
    done: set[int] = set()
    pending: list[Node] = [(root, (), start, True)]
    while pending:
        value, path, role, in_model = pending.pop()
        tensor = by_call.get(id(value))
        if tensor is not None:  # as often as it is kept: it may be a parameter and part of something else
            yield tensor, path, role, in_model
        if tensor is not None or id(value) in done or not isinstance(value, _CONTAINERS):
            continue
        done.add(id(value))
        children = list(_children(value))
        names = {name for name, _ in children if name is not None}
        if names >= {"state", "param_groups"}:
            role = Role.OPTIMIZER
        dictlike = isinstance(value, dict) or (isinstance(value, Opaque) and value.items is not None)
        like = _like_a_model(children, by_call) if dictlike else in_model
        for name, child in reversed(children):
            if name is None:
                pending.append((child, path, role, like))
            else:
                below = role_below(role, name)
                if like and below is Role.OTHER and role is not Role.OTHER and _parameter(name, child, by_call):
                    below = Role.MODEL  # one of the model's layers, whatever its name reminds of
                pending.append((child, (*path[-7:], name), below, like))


def _children(value: object) -> Iterable[tuple[str | None, object]]:
    """(name or None, value) of what a container holds. Calls that rebuild a tensor of another are looked through."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield (key if isinstance(key, str) else None), child
    elif isinstance(value, (list, tuple)):
        for child in value:
            yield None, child
    elif isinstance(value, Opaque):
        for child in value.args if isinstance(value.args, tuple) else ():
            yield None, child
        for item in value.items or ():
            if isinstance(item, tuple) and len(item) == 2:
                yield (item[0] if isinstance(item[0], str) else None), item[1]
            else:
                yield None, item
        state = value.state
        if isinstance(state, dict):
            yield from _children(state)
        elif state is not None:
            yield None, state


def _like_a_model(children: Sequence[tuple[str | None, object]], by_call: dict[int, Tensor]) -> bool:
    """Whether a table is one of named parameters: most entries are tensors, and one of them is no mere row of numbers."""
    tensors = [tensor for _, child in children if (tensor := _tensor_in(child, by_call)) is not None]
    return 2 * len(tensors) >= len(children) and any(
        len(tensor.size) >= 2 or (name is not None and "." in name)
        for (name, child) in children
        if (tensor := _tensor_in(child, by_call)) is not None
    )


def _parameter(name: str, child: object, by_call: dict[int, Tensor]) -> bool:
    tensor = _tensor_in(child, by_call)
    return tensor is not None and (len(tensor.size) >= 2 or "." in name)


def _tensor_in(value: object, by_call: dict[int, Tensor]) -> Tensor | None:
    """The tensor that this is, or that a parameter is made of."""
    for _ in range(2):
        if not isinstance(value, Opaque):
            return None
        tensor = by_call.get(id(value))
        if tensor is not None:
            return tensor
        value = value.args[0] if isinstance(value.args, tuple) and value.args else None
    return None


def _every(root: object) -> Iterable[object]:
    done: set[int] = set()
    pending = [root]
    while pending:
        value = pending.pop()
        if id(value) in done or not isinstance(value, _CONTAINERS):
            continue
        done.add(id(value))
        yield value
        pending.extend(child for _, child in _children(value))
