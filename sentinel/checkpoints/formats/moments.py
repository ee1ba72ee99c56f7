"""Whether the tables of a torch file hold an optimizer's moments, or weights: where its name may be either's.

``exp_avg`` and ``momentum_buffer`` are torch's own names. The others (``m`` and ``v``, ``mu`` and ``nu``, ``momentum``) are
given to parameters, modules and settings as well: they are moments where they are kept of parameters, of which the files
beside tell the names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from sentinel.checkpoints.formats import torch_file
from sentinel.inert_pickle import Opaque

_DEPTH = 3  # of tables in a table of weights
_TORCHS = frozenset(("exp_avg", "momentum_buffer"))
_PERHAPS = (frozenset("mv"), frozenset(("mu", "nu")), frozenset(("momentum",)))
_OF_A_PARAMETER = ("weight", "bias")  # no module of torch's has another inside of that name
# Tables in which trainers put the state of a model or an optimizer: no part of a parameter's name.
_AROUND = frozenset(
    ("model", "module", "net", "network", "params", "state", "state_dict", "model_state", "model_state_dict", "weights")
)
_Place = tuple[object, ...]


class Parameters:
    """The names of the tensors in all files of a save, and in how many of them each is."""

    def __init__(self, values: Iterable[object], others: Iterable[Iterable[str]] = ()) -> None:
        """``values``: of torch files; ``others``: the names in safetensors."""
        self._files: Counter[str] = Counter()
        for value in values:
            self._files.update({name for place in _tensors(value) for name in _names_of(place)})
        for names in others:
            self._files.update(set(names))

    def has(self, place: _Place) -> bool:
        """Whether a parameter of another file has the name of this place, at which there is a table."""
        if isinstance(place[-1], int):
            return True  # parameters by their numbers; torch's modules keep theirs under text
        last = str(place[-1]).rpartition(".")[2]
        return last in _OF_A_PARAMETER or any(name in self._files for name in _names_of(place))

    def has_in_others(self, name: object, within: object) -> bool:
        """Whether a file beside the one of this value has a tensor of that name."""
        own = {mine for place in _tensors(within) for mine in _names_of(place)}
        return isinstance(name, str) and self._files[name] > (name in own)


def is_optimizer(value: object, parameters: Parameters) -> bool:
    """Whether the tables at the top are moments of all parameters."""
    table = _table(value)
    return table is not None and _keeps_moments((), table, parameters)


def is_weights(value: object, parameters: Parameters, place: _Place = ()) -> bool:
    """Whether a table holds tensors by their names, or tables of such, and moments of none. Settings may be beside."""
    table = _table(value)
    if not table or len(place) > _DEPTH or _keeps_moments(place, table, parameters):
        return False
    tables = [(key, held) for key, held in table.items() if (isinstance(held, list) and held) or _table(held)]
    return bool(tables or any(map(_is_tensor, table.values()))) and all(
        is_weights(held, parameters, (*place, key)) for key, held in tables
    )


def _keeps_moments(place: _Place, table: Mapping[object, object], parameters: Parameters) -> bool:
    """Whether this table is one of moments: of the parameter at this place, or each of all parameters.

    At any depth a moment is a tensor or a table of them; a number or a text under its name is a setting.
    """
    if any(_is_tensor(table[key]) or _table(table[key]) for key in _TORCHS & table.keys()):
        return True
    for names in _PERHAPS:
        held = [table[key] for key in names if key in table]
        if len(held) < len(names):
            continue
        if place and all(map(_is_tensor, held)) and parameters.has(place):
            return True
        of_all = [inner for one in held if (inner := _table(one))]
        if len(of_all) == len(held) and all(parameters.has_in_others(key, table) for inner in of_all for key in inner):
            return True
    return False


def _table(value: object) -> dict[object, object] | None:
    """A dict, also torch's ``OrderedDict`` of a model; None for anything else."""
    value = torch_file.dict_of(value)
    return value if isinstance(value, dict) else None


def _is_tensor(value: object) -> bool:
    return isinstance(value, Opaque) and value.name.startswith("_rebuild")


def _tensors(value: object) -> Iterator[_Place]:
    """The places of the tensors in these tables; each table once."""
    seen: set[int] = set()
    pending: list[tuple[_Place, object]] = [((), value)]
    for place, held in pending:
        if _is_tensor(held) and place:
            yield place
        elif len(place) <= _DEPTH and id(held) not in seen and (table := _table(held)):
            seen.add(id(held))
            pending += [((*place, key), child) for key, child in table.items()]


def _names_of(place: _Place) -> set[str]:
    """A parameter's name at this place of tables, with what may be around the model's and without."""
    inner = place[1:] if len(place) > 1 and place[0] in _AROUND else place
    return {".".join(map(str, place)), ".".join(map(str, inner))}
