"""A number in a save that is no count, no length and no size: that save is not known, and the others are listed."""

from __future__ import annotations

import json
import re
import struct

import pytest

from sentinel.checkpoints import validate as validating
from sentinel.checkpoints.files import Broken, scan
from sentinel.checkpoints.formats.jax import zarr
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.validate import validate

UNFORESEEN = "did not foresee"
ODD = ("NaN", "Infinity", "-1e999", "1e999", "9" * 400, "-1", "1.5", "true", "null", '"x"', "[]")
COUNTS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"), "huge": 1 << 2000}


def listed(run):
    """Step -> whether the save is valid, and the reasons."""
    found = join([listing(run, "global", None, level="structural")])
    return {entry.step: (entry.valid, entry.reason) for entry in found}


@pytest.mark.parametrize("odd", COUNTS)
@pytest.mark.parametrize("place", ["tensor of the optimizer", "number of the optimizer", "schedule"])
def test_a_count_of_steps_that_is_none_hides_no_other_save(make, place, odd):
    value = COUNTS[odd]
    for step in (6, 12):
        make.hf(f"run/checkpoint-{step}", step=step)
    path = make.root / "run" / "checkpoint-12"
    state, payloads = make.state(12)
    if place == "schedule":
        make.write(path / "scheduler.pt", make.torch_file({"last_epoch": value}, prefix="scheduler"))
    else:
        if place.startswith("number"):
            state[0]["step"] = value
        else:
            payloads[0] = struct.pack("<f", value if isinstance(value, float) else 3e38)
        make.write(path / "optimizer.pt", make.torch_file({"state": state, "param_groups": []}, payloads, "optimizer"))
    answers = listed(make.root / "run")
    assert answers[6][0] is True
    assert answers[12][0] is None and "no training reaches" in answers[12][1]


def test_a_neighbours_odd_count_says_nothing_of_a_save_beside(make):
    for step in (10, 20):
        for rank in range(2):
            state, payloads = make.state(step)
            odd = step == 10 and rank == 1
            state[0]["step"] = float("inf") if odd else float(step + rank)
            value = {"optimizer": {"state": state, "param_groups": []}, "step": step}
            make.write(make.root / f"run/step_{step}/rank_{rank}.pt", make.torch_file(value, payloads, f"rank_{rank}"))
    answer = validate(make.root / "run" / "step_20", "structural")
    assert "rank_1.pt counts steps" not in answer.reason


def test_a_step_that_no_training_reaches(make):
    make.lightning("run/step=100.ckpt", step=100)
    make.lightning("run/last.ckpt", step=1 << 70)
    found = join([listing(make.root / "run", "global", None, level="structural")])
    assert {entry.step for entry in found if entry.valid} == {100}
    assert all(entry.step is None or entry.step < 1 << 63 for entry in found)


@pytest.mark.parametrize("odd", ODD)
def test_any_number_in_a_saves_json(make, odd):
    make.hf("run/step-6", step=6, sharded=True)
    make.megatron("run/step-200", step=200)
    make.consolidated("run/step-70")
    make.hf("run/step-8", step=8)
    validate(make.root / "run" / "step-8", "checksum")
    changed = 0
    for file in sorted((make.root / "run").rglob("*.json")):
        text = file.read_text()
        for match in list(re.finditer(r"(?<=[:\[ ])\d+\b", text))[:4]:
            file.write_text(text[: match.start()] + odd + text[match.end() :])
            answers = listed(make.root / "run")
            assert len(answers) >= 3 and not [reason for _, reason in answers.values() if UNFORESEEN in reason], odd
            changed += 1
        file.write_text(text)
    assert changed > 6


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd != "null"])
@pytest.mark.parametrize("key", ["shape", "chunks"])
def test_a_length_of_an_array_that_is_none(tmp_path, key, odd):
    folder = tmp_path / "w"
    folder.mkdir()
    told = {"shape": [64], "chunks": [64], "dtype": "<f4", "compressor": None, "fill_value": None}
    text = json.dumps(told).replace(f'"{key}": [64]', f'"{key}": [{odd}]')
    (folder / ".zarray").write_text(text)
    with pytest.raises(Broken):
        zarr.check(scan(tmp_path), "w", all_stored=True)


@pytest.mark.parametrize(
    "error", [ValueError("x"), OverflowError("x"), struct.error("x"), RecursionError("x")], ids=repr
)
def test_what_a_reader_did_not_foresee_is_of_one_save(make, monkeypatch, error):
    for step in (6, 12):
        make.hf(f"run/checkpoint-{step}", step=step)
    recognise = validating.formats.recognise

    def fails(tree):
        if tree.root.name == "checkpoint-12":
            raise error
        return recognise(tree)

    monkeypatch.setattr(validating.formats, "recognise", fails)
    answers = listed(make.root / "run")
    assert answers[6][0] is True and answers[12][0] is None and UNFORESEEN in answers[12][1]
