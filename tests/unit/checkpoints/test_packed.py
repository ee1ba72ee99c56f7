"""Listings packed into one evidence, and what of it can be unpacked."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.checkpoints.packed import MOST_PLAIN_BYTES, pack, unpack
from sentinel.checkpoints.records import Part


def part(step: int | None, files: int = 2) -> Part:
    return Part(
        host="n1", root="/nvme", path=f"/nvme/step-{step}", key=f"step-{step}", step=step, tier="local", format="dcp",
        bytes=1000, valid=True, level="structural", reason="", whole=False, owners=frozenset({0, 1}),
        has={f"__{number}_{step}.distcp": number * 7919 for number in range(files)},
    )  # fmt: skip


def test_what_is_packed_comes_out_highest_step_first() -> None:
    parts = [part(10), part(None), part(30), part(20)]
    assert unpack(pack(parts)) == [part(30), part(20), part(10), part(None)]
    assert unpack(pack([])) == []


def test_what_does_not_fit_goes_without_its_files_and_is_then_not_known() -> None:
    parts = [part(step, 20_000 if step == 40 else 3) for step in (10, 20, 30, 40)]
    text = pack(parts, 8000)
    assert len(text) <= 8000
    found = unpack(text)
    assert [item.step for item in found] == [40, 30, 20, 10]
    assert (found[0].valid, found[0].has) == (None, {})
    assert found[1:] == [part(30, 3), part(20, 3), part(10, 3)]


def test_each_part_is_written_out_at_most_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    written: Counter[int | None] = Counter()
    to_json = Part.to_json

    def counted(item: Part) -> dict[str, object]:
        written[item.step] += 1
        return to_json(item)

    monkeypatch.setattr(Part, "to_json", counted)
    found = unpack(pack([part(step, 300) for step in range(60)], 8000))
    assert {bool(item.has) for item in found} == {True, False}
    assert max(written.values()) <= 2


def test_what_is_packed_can_be_unpacked_however_well_it_is_compressed() -> None:
    folder = "/shared" + "/a-folder-of-somebody" * 100
    parts = [replace(part(step, 0), root=folder, path=f"{folder}/step-{step}") for step in range(1500)]
    found = unpack(pack(parts))
    assert found == parts[: -len(found) - 1 : -1]
    assert len(found) > 500


def test_many_steps_of_many_tensors_are_packed_as_far_as_they_are_read() -> None:
    coverage = {f"model.layers.{number}.mlp.weight": (524_288, 16_777_216) for number in range(512)}
    found = unpack(pack([replace(part(step), coverage=coverage) for step in range(300)]))
    assert len(found) > 100 and [item.step for item in found[:2]] == [299, 298]


def test_the_newest_are_kept_when_there_are_too_many() -> None:
    parts = [part(step, 40) for step in range(400)]
    found = unpack(pack(parts, 4000))
    steps = [item.step for item in found]
    assert steps == list(range(399, 399 - len(steps), -1))
    assert 4 < len(steps) < 400


@pytest.mark.parametrize(
    "raw",
    [b"{", b"7", b"[7]", b'[{"host": 1}]', b"[" * 100_000, json.dumps([part(1).to_json() | {"tier": "moon"}]).encode()],
)
def test_what_is_no_listing_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpack(base64.b85encode(zlib.compress(raw)).decode())


@pytest.mark.parametrize(
    ("steps", "files", "deep"), [(300, 0, 1), (200, 1, 1), (40, 40, 1), (5, 1000, 1), (100, 2, 60)]
)
def test_honest_listings_are_within_the_bounds(steps: int, files: int, deep: int) -> None:
    folder = "/shared" + "/a-folder-of-somebody" * deep
    parts = [replace(part(step, files), root=folder, path=f"{folder}/step-{step}") for step in range(steps)]
    assert len(unpack(pack(parts[-1:] * 2 + parts, 1 << 20))) == steps + 2


@pytest.mark.parametrize("value", [b"1", b'""', b"1e9", b"null"])
def test_many_values_for_few_bytes_are_not_read(value: bytes) -> None:
    raw = b"[" + b",".join([value] * 100_000) + b"]"
    with pytest.raises(ValueError, match=r"too (long|many)"):
        unpack(base64.b85encode(zlib.compress(raw, 9)).decode())


def test_a_bomb_is_not_unpacked() -> None:
    bomb = base64.b85encode(zlib.compress(b" " * (MOST_PLAIN_BYTES + 1), 9)).decode()
    assert len(bomb) < 64 << 10
    with pytest.raises(ValueError, match="too long"):
        unpack(bomb)


@given(st.text(max_size=40) | st.binary(max_size=40).map(lambda raw: base64.b85encode(raw).decode()))
def test_rubbish_is_refused(text: str) -> None:
    try:
        assert unpack(text) == []
    except ValueError:
        return


@pytest.mark.parametrize("one", [b"{}", b"[]"])
def test_what_takes_far_more_memory_than_bytes_is_refused(one: bytes) -> None:
    many = b"[" + b",".join([one] * 1_000_000) + b"]"
    packed = base64.b85encode(zlib.compress(many)).decode()
    with pytest.raises(ValueError, match=r"too (long|many)"):
        unpack(packed)
