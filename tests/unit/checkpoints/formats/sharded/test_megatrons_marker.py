"""metadata.json of Megatron's, of which every key and value is read when a save is loaded."""

from __future__ import annotations

import json

import pytest

from sentinel.checkpoints.validate import validate

PLAIN = ("torch.distributed.checkpoint.metadata", "Metadata")
MCORE = ("megatron.core.dist_checkpointing.strategies.torch", "MCoreMetadata")
WHOLE = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}


def saves(make, steps=(100, 200, 300)):
    paths = []
    for step in steps:
        path = make.megatron(f"run/iter_{step:07d}", step, integrity=False)
        make.json(path / "metadata.json", WHOLE, 2)
        paths.append(path)
    return paths


def ask(make, path):
    return validate(path, "structural", now_s=make.now_s)


@pytest.mark.parametrize("alone", [True, False])
def test_a_flipped_bit_in_the_marker(make, alone):
    """All of its keys are arguments of one call, which takes no others."""
    paths = saves(make, (100,) if alone else (100, 200, 300))
    path = paths[-1]
    assert [ask(make, one).valid for one in paths] == [True] * len(paths)
    whole = json.dumps(WHOLE).encode()
    accepted = []
    for place in range(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[place] ^= 1 << bit
            try:
                told = json.loads(data.decode())
            except ValueError:
                continue
            if told != WHOLE:
                make.write(path / "metadata.json", bytes(data), 2)
                if ask(make, path).valid is True:
                    accepted.append(told)
    versions = [told for told in accepted if told.keys() == WHOLE.keys()]
    assert accepted == versions, accepted  # a version alone may be a later one's
    assert alone or not accepted, accepted


@pytest.mark.parametrize(
    "more", [{"sharded_backend_version": 2}, {"common_backend_version": 2}, {"new_setting": True}, {}]
)
def test_what_another_version_writes(make, more):
    """A damaged marker beside says nothing of this one either."""
    paths = saves(make)
    make.json(paths[1] / "metadata.json", WHOLE | {"sharded_backend_version": 0}, 2)
    make.json(paths[2] / "metadata.json", WHOLE | more, 2)
    assert ask(make, paths[2]).valid is True, ask(make, paths[2])


def test_what_an_older_version_wrote(make):
    path = saves(make, (100,))[0]
    make.json(path / "metadata.json", {"sharded_backend": "torch_dist"}, 2)
    assert ask(make, path).valid is True


def of_torch_dist(make, path, sign):
    """``.metadata`` as megatron-core writes it: its own class, or an object that is named by its place."""
    piece, data = make.item((8, 4)), make.torch_file(7)
    make.write(path / "__0_0.distcp", piece)
    make.write(path / "__1_0.distcp", data)
    name = "rng_state/shard_0.0_1.2" if sign == "object" else "rng_state"
    stored = [("model.w", (0, 0), "__0_0.distcp", 0, len(piece)), (name, None, "__1_0.distcp", 0, len(data))]
    make.metadata_type = MCORE if sign == "class" else PLAIN
    text = make.metadata({"model.w": ("float32", (8, 4), [((0, 0), (8, 4))])}, [name], stored)
    make.write(path / ".metadata", text, 1)


@pytest.mark.parametrize("sign", ["object", "class", ""])
@pytest.mark.parametrize("below", ["", "/weights"])
def test_a_copy_that_broke_off_before_the_marker(make, sign, below):
    """In the order of the names ``common.pt`` and ``metadata.json`` come after the shards; no other save is beside it."""
    path = make.root / f"run/iter_0000200{below}"
    of_torch_dist(make, path, sign)
    if below:
        make.json(path.parent / "context/model.json", {"layers": 2})
    answer = ask(make, path.parent if below else path)
    assert answer.valid is (not sign), answer  # what Megatron's torch_dcp writes has no marker
    assert ("metadata.json is missing" in answer.reason) is bool(sign)
    make.json(path / "metadata.json", WHOLE, 2)
    make.write(path / "common.pt", make.torch_file({"iteration": 200}, prefix="common"))
    assert ask(make, path.parent if below else path).valid is True
