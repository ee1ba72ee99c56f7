"""What DCGM writes for a value that it has not is not known, whichever way it comes. Values as in dcgm_structs.h."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.adapters.gpu.engine_owner import EngineOwner
from sentinel.config.rules_files import load_convictions
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import DBE_MEMORY, RECOVERY_ACTION, REMAP_FAILURE, sample_from
from sentinel.gpu_values import known_value
from sentinel.model.records import utc

AT = utc(2_000_000_000)
# blank, not found, not supported, not permitted
INTEGERS = [base + number for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0) for number in range(4)]
FLOATS = [140737488355328.0 + number for number in range(4)]
TEXTS = ["<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>"]
OTHERS = [2**64 - 1, -(2**63), -(10**400), float("nan"), float("inf"), -float("inf"), float(0x7FFFFFFFFFFFFFF0)]
BLANK = [*INTEGERS, *FLOATS, *TEXTS, *OTHERS]
KNOWN = [0, 0.0, -5, 95.5, 2_147_483_631, 2_147_483_648, 0x7FFFFFFFFFFFFFEF, 1.2e12, "00000000:1B:00.0", "", True, None]


def sampled(value: Any) -> Any:
    fields = {str(number): value for number in (RECOVERY_ACTION, REMAP_FAILURE, DBE_MEMORY)}
    gpu = {"id": 0, "uuid": "GPU-0", "status": 1, "fields": fields}
    return sample_from(json.loads(json.dumps({"via": "dcgm", "gpus": [gpu]})), AT)


@pytest.mark.parametrize("value", BLANK, ids=lambda value: str(value)[:24])
def test_a_blank_is_not_known_and_no_condition_of_a_gpu(value: Any) -> None:
    assert known_value(value) is None
    sample = sampled(value)
    assert set(sample.gpus[0].fields.values()) == {None}
    assert sample_from({"via": "dcgm", "gpus": [], "events": [[0, value, 7]]}, AT).events == ()
    reader = DcgmReader("n1", load_convictions())
    assert reader.read(sampled(0)) == [] and reader.read(sample) == []
    assert reader.facts() == []


@pytest.mark.parametrize("value", KNOWN, ids=str)
def test_what_is_no_blank_stays_as_it_is(value: Any) -> None:
    assert known_value(value) is value
    assert sampled(value).gpus[0].fields[RECOVERY_ACTION] == value


@pytest.mark.parametrize("text", TEXTS)
def test_a_gpu_without_a_name_has_none_whoever_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(EngineOwner, "look", lambda _: ())
    gpu = {"id": 0, "uuid": text, "pci": text, "minor": INTEGERS[0], "status": 4, "fields": {}}
    (made,) = sample_from({"via": "dcgm", "gpus": [gpu]}, AT).gpus
    assert (made.uuid, made.pci, made.minor, made.index) == (None, None, None, 0)
    command = tmp_path / "dcgmi"
    command.write_text(f"#!/bin/sh\necho '1 GPU found.'\necho '| 0      | Device UUID: {text}      |'\n")
    command.chmod(0o755)
    assert Dcgmi(str(command), host="127.0.0.1:1").gpus() == [{"id": 0, "status": 1}]
