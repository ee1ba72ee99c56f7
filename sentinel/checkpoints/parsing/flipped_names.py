"""Finds a tensor's name that a flipped bit made of another one, in a save alone: layers of a model have the same tensors.

Where two kinds of tensors (``layers.#.norm.weight``, ``layers.#.attn.bias``) are there in the same layers, and a third is
in all of these but one, that layer holds another tensor instead, of its type and shape, whose name is one bit away.
A model that differs from layer to layer does so in more than a bit of a name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from sentinel.checkpoints.parsing.json_files import one_bit_apart

_DIGITS = re.compile(r"\d+")
_LEAST_LAYERS = 4
_AGREE = 2  # kinds that are in the same layers
_DIGITS_READ = 18
_MOST_SETS = 8  # sets of layers that are looked at: encoder's, decoder's, experts'
_MOST_LOOKED = 64  # kinds that lack one layer

Tensors = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> type and shape
Layer = tuple[str, ...]


def flipped(tensors: Tensors) -> tuple[str, str] | None:
    """A tensor's name and what it was; None where the layers do not show one."""
    kinds: dict[str, dict[Layer, str]] = {}
    for name in tensors:
        kinds.setdefault(_DIGITS.sub("#", name), {})[tuple(_DIGITS.findall(name))] = name
    sets = Counter((_stack(kind), frozenset(held)) for kind, held in kinds.items() if len(held) >= _LEAST_LAYERS)
    inhabited = Counter((_stack(kind), layer) for kind, held in kinds.items() for layer in held)
    alone: dict[int, list[str]] = {}  # names of kinds that are there once, by their length
    for held in kinds.values():
        if len(held) == 1:
            (name,) = held.values()
            alone.setdefault(_bytes(name), []).append(name)
    looked = 0
    for (stack, layers), agreeing in sets.most_common(_MOST_SETS):
        for kind, held in kinds.items() if agreeing >= _AGREE else ():
            if not len(layers) - 1 <= len(held) <= len(layers) or len(missing := layers - held.keys()) != 1:
                continue
            if _stack(kind) != stack or any(inhabited[stack, layer] > 1 for layer in held.keys() - layers):
                continue  # of another stack of layers, or in a layer that has other tensors, too
            looked += 1
            if looked > _MOST_LOOKED:
                return None
            here = {held[layer] for layer in held.keys() - layers}  # one at most
            (gap,) = missing
            if here and gap in (min(layers, key=_numbers), max(layers, key=_numbers)):
                continue  # this kind is counted from another layer on
            lost, alike = _named(kind, gap), {tensors[held[layer]] for layer in held.keys() & layers}
            for name in (*here, *alone.get(_bytes(lost), ())):
                if alike == {tensors[name]} and one_bit_apart(name, lost):
                    return name, lost
    return None


def _numbers(layer: Layer) -> tuple[int, ...]:
    return tuple(int(text[:_DIGITS_READ]) for text in layer)


def _stack(kind: str) -> str:
    """The name of the stack of layers that a kind of tensors belongs to."""
    return kind.partition("#")[0]


def _named(kind: str, layer: Layer) -> str:
    numbers = iter(layer)
    return re.sub("#", lambda _: next(numbers, "#"), kind)


def _bytes(name: str) -> int:
    return len(name.encode("utf-8", "surrogatepass"))
