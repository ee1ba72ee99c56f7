"""Damages by programs and people that leave whole files: saved anew with right lengths and checksums, and other contents.

Each takes a `judge_real.Case` and returns the first level that can see it, or None where it does not apply. The times of the
files stay as they were.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import warnings

import torch

STRUCTURAL, CHECKSUM, CONTENT = "structural", "checksum", "content"
SQUARES = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")


def loaded(file):
    """What a file of torch.save holds; None where it is none."""
    if file.suffix not in (".pt", ".pth", ".bin", ".ckpt", ".pkl") or file.name == "training_args.bin":
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(file, weights_only=False)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
        return None


def saved(case, file, value):
    """Save it as torch does, under the archive name that it had."""
    zipped = file.read_bytes()[:2] == b"PK"
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=zipped)
    case.put(file, buffer.getvalue())


def optimizers(value, depth=0):
    """The optimizer states inside of it, as tables with ``state`` and ``param_groups``."""
    if isinstance(value, dict):
        if isinstance(value.get("state"), dict) and "param_groups" in value:
            yield value
        elif depth < 4:
            for child in value.values():
                yield from optimizers(child, depth + 1)
    elif isinstance(value, list):
        for child in value:
            yield from optimizers(child, depth + 1)


def with_optimizer(case, wanted=lambda state: True):
    """(file, its value, one optimizer state inside) of a file that holds one."""
    files = case.files()
    case.rng.shuffle(files)
    for file in files:
        value = loaded(file)
        for optimizer in optimizers(value) if value is not None else ():
            if optimizer["state"] and wanted(next(iter(optimizer["state"].values()))):
                return file, value, optimizer
    return None


def moments_exchanged(case):
    """Adam's two moments under each other's names."""
    found = with_optimizer(case, lambda one: torch.is_tensor(one.get("exp_avg_sq")))
    if not found:
        return None
    file, value, optimizer = found
    for one in optimizer["state"].values():
        one["exp_avg"], one["exp_avg_sq"] = one["exp_avg_sq"], one["exp_avg"]
    saved(case, file, value)
    return CONTENT


def negative_square(case):
    found = with_optimizer(case, lambda one: any(torch.is_tensor(one.get(name)) for name in SQUARES))
    if not found:
        return None
    file, value, optimizer = found
    one = case.rng.choice(list(optimizer["state"].values()))
    flat = next(one[name] for name in SQUARES if name in one).view(-1)
    flat[case.rng.randrange(len(flat))] = -1e-8
    saved(case, file, value)
    return CONTENT


def emptied_optimizer(case):
    found = with_optimizer(case)
    if not found or not case.is_set():
        return None
    file, value, optimizer = found
    optimizer["state"].clear()
    saved(case, file, value)
    return STRUCTURAL


def state_of_a_parameter_lost(case):
    found = with_optimizer(case)
    if not found or not case.is_set() or len(found[2]["state"]) < 2:
        return None
    file, value, optimizer = found
    optimizer["state"].pop(case.rng.choice(list(optimizer["state"])))
    saved(case, file, value)
    return STRUCTURAL


def optimizer_of_the_save_before(case):
    """Loaded there and saved here."""
    found = with_optimizer(case)
    if not found or not case.is_set():
        return None
    file = found[0]
    other = case.other / file.relative_to(case.path)
    value = loaded(other) if other.exists() else None
    if value is None:
        return None
    saved(case, file, value)
    return STRUCTURAL


def not_finite(number):
    def damage(case):
        """One weight or moment that is none."""
        files = case.files()
        case.rng.shuffle(files)
        for file in files:
            value = loaded(file)
            tensors = [t for t in weights(value) if t.is_floating_point() and t.numel() > 1 and t.element_size() > 1]
            tensors = [tensor for tensor in tensors if not tensor.is_meta]
            if not tensors:
                continue
            tensor = case.rng.choice(tensors)
            with torch.no_grad():
                tensor.view(-1)[case.rng.randrange(tensor.numel())] = number
            saved(case, file, value)
            return CONTENT
        return None

    damage.__name__ = "nan_saved" if number != number else "infinity_saved"
    return damage


def weights(value):
    """The tensors of a model or of an optimizer inside of it."""
    for optimizer in optimizers(value):
        for one in optimizer["state"].values():
            yield from (t for t in one.values() if torch.is_tensor(t) and t.is_contiguous())
    for name in ("model", "state_dict", "module"):
        held = value.get(name) if isinstance(value, dict) else None
        if isinstance(held, dict):
            yield from (t for t in held.values() if type(t) is torch.Tensor and not t.is_sparse and t.is_contiguous())


# --- metadata and tables -----------------------------------------------------------------------------------------------


def _metadata(case):
    file = case.path / ".metadata" if case.path.is_dir() else None
    return (file, pickle.loads(file.read_bytes())) if file and file.exists() else (None, None)


def _swapped_places(case, wanted, level):
    """The places of two pieces of one shape and type in ``.metadata``."""
    file, metadata = _metadata(case)
    if file is None or case.safetensors_inside:
        return None
    places = metadata.storage_data
    pairs = [
        (one, two)
        for one in places
        for two in places
        if wanted(one.fqn, two.fqn) and one.fqn != two.fqn and _alike(metadata, one, two)
    ]
    if not pairs:
        return None
    one, two = case.rng.choice(pairs)
    if places[one].length != places[two].length:
        return None
    places[one], places[two] = places[two], places[one]
    case.put(file, pickle.dumps(metadata))
    return level


def _alike(metadata, one, two):
    a, b = (metadata.state_dict_metadata[index.fqn] for index in (one, two))
    return hasattr(a, "size") and hasattr(b, "size") and a.size == b.size and one.offset == two.offset


def moments_exchanged_in_metadata(case):
    def wanted(one, two):
        return one.endswith(".exp_avg") and two == one + "_sq"

    return _swapped_places(case, wanted, CHECKSUM)


def weight_for_a_second_moment_in_metadata(case):
    def wanted(one, two):
        # The weight of a norm (1) is positive, as a moment is.
        return one.startswith("model.") and two.endswith("exp_avg_sq") and "weight" in one and "1.weight" not in one

    return _swapped_places(case, wanted, CHECKSUM)


def piece_forgotten(case):
    file, metadata = _metadata(case)
    if file is None:
        return None
    metadata.storage_data.pop(case.rng.choice(list(metadata.storage_data)))
    case.put(file, pickle.dumps(metadata))
    return STRUCTURAL


def another_type_in_metadata(case):
    file, metadata = _metadata(case)
    if file is None:
        return None
    tensors = [t for t in metadata.state_dict_metadata.values() if hasattr(t, "properties") and t.size.numel() > 1]
    tensor = case.rng.choice(tensors)
    if tensor.properties.dtype != torch.float32:
        return None
    tensor.properties.dtype = torch.int32
    case.put(file, pickle.dumps(metadata))
    return STRUCTURAL if case.safetensors_inside else CHECKSUM


def _header(file):
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _with_header(case, file, header, body):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    case.put(file, len(text).to_bytes(8, "little") + text + body)


def _tables(case):
    return case.pick(lambda file: file.suffix == ".safetensors")


def names_exchanged(case):
    """Two tensors of one shape and type under each other's names."""
    file = _tables(case)
    if file is None or case.path.is_file():
        return None
    header, body = _header(file)
    names = [name for name in header if name != "__metadata__"]
    pairs = [
        (a, b)
        for a in names
        for b in names
        if a < b and all(header[a][key] == header[b][key] for key in ("dtype", "shape"))
    ]
    if not pairs:
        return None
    a, b = case.rng.choice(pairs)
    header[a], header[b] = header[b], header[a]
    _with_header(case, file, header, body)
    return STRUCTURAL


def tensor_forgotten(case):
    file = _tables(case)
    if file is None:
        return None
    header, body = _header(file)
    header.pop(case.rng.choice([name for name in header if name != "__metadata__"]))
    _with_header(case, file, header, body)
    return STRUCTURAL


def overlapping_tensors(case):
    file = _tables(case)
    if file is None:
        return None
    header, body = _header(file)
    entry = header[case.rng.choice([name for name in header if name != "__metadata__"])]
    if entry["data_offsets"][0] < 4:
        return None
    entry["data_offsets"] = [place - 4 for place in entry["data_offsets"]]
    _with_header(case, file, header, body)
    return STRUCTURAL


def name_twice_in_a_table(case):
    file = case.pick(lambda file: file.name.endswith(".index.json"))
    if file is None:
        return None
    text = file.read_text()
    names = list(json.loads(text)["weight_map"])
    case.put(file, text.replace(json.dumps(names[0]), json.dumps(names[1]), 1).encode())
    return STRUCTURAL


def wrong_file_in_a_table(case):
    file = case.pick(lambda file: file.name.endswith(".index.json"))
    if file is None:
        return None
    table = json.loads(file.read_text())
    name = case.rng.choice(list(table["weight_map"]))
    others = sorted(set(table["weight_map"].values()) - {table["weight_map"][name]})
    if not others:
        return None
    table["weight_map"][name] = case.rng.choice(others)
    case.put(file, json.dumps(table, indent=2).encode())
    return STRUCTURAL


def state_of_another_step(case):
    file = case.pick(lambda file: file.name == "trainer_state.json")
    if file is None:
        return None
    state = json.loads(file.read_text())
    state["global_step"] += case.rng.choice((-7, 5, 100))
    case.put(file, json.dumps(state, indent=2).encode())
    return STRUCTURAL


# --- bytes ---------------------------------------------------------------------------------------------------------------


def shifted_by_a_byte(case):
    """A byte-order mark, or a line end, that an editor or a transfer put in front."""
    file = case.pick(case.needed)
    first = case.rng.choice((b"\xef\xbb\xbf", b"\n", b"\0"))
    if first == b"\n" and file.read_bytes()[:1] == b"{":
        return None  # JSON may begin with an empty line
    case.put(file, first + file.read_bytes())
    return _level_of(file)


def _level_of(file):
    """Values in files of their own, as Orbax has them, and a few bytes say nothing of themselves."""
    return CHECKSUM if file.parent.name == "d" or (not file.suffix and file.stat().st_size < 64) else STRUCTURAL


def padded_to_a_block(case):
    file = case.pick(lambda file: case.needed(file) and file.suffix != ".json" and file.stat().st_size % 4096)
    if file is None or (not file.suffix and file.stat().st_size < 64):
        return None
    data = file.read_bytes()
    case.put(file, data + bytes(-len(data) % 4096))
    return CHECKSUM


def in_base64(case):
    import base64

    file = case.pick(case.needed)
    case.put(file, base64.encodebytes(file.read_bytes()))
    return _level_of(file)


def bytes_in_pairs_swapped(case):
    file = case.pick(case.needed)
    data = bytearray(file.read_bytes())
    if len(data) < 64:
        return None
    data = data[: len(data) // 2 * 2] + data[len(data) // 2 * 2 :]
    even = len(data) // 2 * 2
    data[0:even:2], data[1:even:2] = data[1:even:2], data[0:even:2]
    case.put(file, bytes(data))
    return _level_of(file)


def blocks_exchanged(case):
    file = case.pick(lambda file: case.needed(file) and file.stat().st_size >= 8192)
    if file is None:
        return None
    data = file.read_bytes()
    one, two = case.rng.sample(range(len(data) // 4096), 2)
    a, b = data[one * 4096 : one * 4096 + 4096], data[two * 4096 : two * 4096 + 4096]
    if a == b:
        return None
    made = bytearray(data)
    made[one * 4096 : one * 4096 + 4096], made[two * 4096 : two * 4096 + 4096] = b, a
    case.put(file, bytes(made))
    return CHECKSUM


def only_the_beginning_arrived(case):
    """The length is right and what comes after the first blocks are zeros."""
    file = case.pick(lambda file: case.needed(file) and file.stat().st_size > 12288)
    if file is None:
        return None
    size = file.stat().st_size
    case.put(file, file.read_bytes()[:4096] + bytes(size - 4096))
    return CHECKSUM


def tail_of_a_longer_file(case):
    """Opened without truncating: the end of what was longer before stays."""
    file = case.pick(lambda file: case.needed(file) and file.suffix != ".json")
    if file is None or (not file.suffix and file.stat().st_size < 64):
        return None
    data = file.read_bytes()
    case.put(file, data + data[-case.rng.randrange(1, len(data)) :])
    return CHECKSUM


def replaced(kind):
    def damage(case):
        file = case.pick(case.needed)
        if case.path.is_file():
            return None
        file.unlink()
        if kind == "folder":
            file.mkdir()
        elif kind == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to(file.name if kind == "loop" else "/dev/zero")
        return STRUCTURAL

    damage.__name__ = f"{kind}_in_its_place"
    return damage


def folder_named_for_another_step(case):
    """A step that the contents do not have: seen where these state one."""
    name = case.path.name
    if str(case.step) not in name or not case.states_its_step:
        return None
    moved = case.path.with_name(name.replace(str(case.step), str(case.step + random.Random(name).randrange(5, 90))))
    case.path.rename(moved)
    case.path = moved
    return STRUCTURAL


DAMAGES = [
    moments_exchanged, negative_square, emptied_optimizer, state_of_a_parameter_lost, optimizer_of_the_save_before,
    not_finite(float("nan")), not_finite(float("inf")), moments_exchanged_in_metadata,
    weight_for_a_second_moment_in_metadata, piece_forgotten, another_type_in_metadata, names_exchanged, tensor_forgotten,
    overlapping_tensors, name_twice_in_a_table, wrong_file_in_a_table, state_of_another_step, shifted_by_a_byte,
    padded_to_a_block, in_base64, bytes_in_pairs_swapped, blocks_exchanged, only_the_beginning_arrived,
    tail_of_a_longer_file, *map(replaced, ("folder", "pipe", "loop", "device")), folder_named_for_another_step,
]  # fmt: skip
