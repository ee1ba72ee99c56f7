"""What the health check makes of a diagnostic: BAD on proof alone, OK on a pass alone."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.health import level1
from sentinel.hook import sentence_of

PROOF = {"kind": "diag_failed", "text": "GPU 1: row remap failed", "data": {"convicts": True}}


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ({"result": "pass", "evidence": []}, "OK"),
        ({"result": "fail", "evidence": [PROOF]}, "BAD"),
        ({"result": "fail", "evidence": [PROOF | {"data": {"convicts": False}}]}, "UNKNOWN"),
        ({"result": "fail", "evidence": [PROOF | {"data": {"convicts": "yes"}}]}, "UNKNOWN"),
        ({"result": "fail", "evidence": [PROOF | {"kind": "unreadable"}]}, "UNKNOWN"),
        ({"result": "inconclusive", "reason": "late"}, "UNKNOWN"),
        ({"result": "pass", "evidence": [PROOF]}, "BAD"),
        ({}, "UNKNOWN"),
        ({"result": "passed"}, "UNKNOWN"),
        ({"result": "fail", "evidence": "torn"}, "UNKNOWN"),
        ({"result": "fail", "evidence": [7, None]}, "UNKNOWN"),
    ],
)
def test_the_verdict(answer: dict[str, Any], word: str) -> None:
    assert level1.verdict_of(answer)[0] == word


def test_what_a_diagnostic_says_is_one_line(tmp_path: Path) -> None:
    level1.write_verdict(tmp_path / "verdict", "BAD", "diagnostic", "GPU 1\nOK 9 ok \x1b[31mred", 600)
    first, second = (tmp_path / "verdict").read_text().splitlines()
    assert first.split()[0] == "BAD" and "\x1b" not in first
    assert second.split()[1] == "600"
    assert os.listdir(tmp_path) == ["verdict"]


def test_a_disk_that_refuses_leaves_the_old_verdict(tmp_path: Path) -> None:
    (tmp_path / "verdict").mkdir()  # cannot be replaced by a file
    with pytest.raises(OSError, match=r".+"):
        level1.write_verdict(tmp_path / "verdict", "OK", "ok", "fine", 600)
    assert os.listdir(tmp_path) == ["verdict"]


@pytest.mark.parametrize(
    ("second", "there"),
    [("{now}", True), ("{now} 600", False), ("{old}", False), ("{later}", False), ("", False), ("x", False)],
)
def test_whose_verdict_it_is(tmp_path: Path, second: str, there: bool) -> None:
    now = int(time.clock_gettime(time.CLOCK_BOOTTIME))
    line = second.format(now=now, old=now - 60, later=now + 60)
    (tmp_path / "verdict").write_text(f"OK 1 ok fine\n{line}\n")
    assert level1.agent_is_there(tmp_path / "verdict") is there
    assert not level1.agent_is_there(tmp_path / "none")


def test_files_for_an_agent_that_never_came_are_removed(tmp_path: Path) -> None:
    for name, age_s in (("1.json", 2 * level1.KEPT_S), ("2.json", 0.0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    level1.prune(tmp_path)
    assert os.listdir(tmp_path) == ["2.json"]
    level1.prune(tmp_path / "none")


def test_the_sentence_of_many_faults_counts_what_does_not_fit() -> None:
    items = [
        {"kind": "diag_failed", "text": "row remapping failed", "where": {"gpu": gpu}, "data": {"code": 80}}
        for gpu in range(400)
    ]
    sentence = sentence_of(items)
    assert len(sentence) <= 300 and sentence.startswith("GPU 0, GPU 1, GPU 2") and "DCGM error 80" in sentence
    assert sentence.endswith(f"; and {400 - sentence.count('GPU')} more")
    assert sentence_of(items[:2]) == "GPU 0, GPU 1: DCGM error 80: row remapping failed"


@pytest.mark.parametrize(("gpus", "codes"), [(8, (80, 46)), (16, (80,)), (16, (80, 46, 95))])
def test_the_sentence_names_every_gpu_and_each_code(gpus: int, codes: tuple[int, ...]) -> None:
    text = "GPU {} had uncorrectable memory errors and row remapping failed. Run a field diagnostic on GPU {}."
    items = [
        {"kind": "diag_failed", "text": text.format(gpu, gpu), "where": {"gpu": gpu}, "data": {"code": code}}
        for gpu in range(gpus)
        for code in codes
    ]
    sentence = sentence_of(items)
    assert len(sentence) <= 300
    assert {int(gpu) for gpu in re.findall(r"GPU (\d+)", sentence)} == set(range(gpus))
    assert {int(code) for code in re.findall(r"error (\d+)", sentence)} == set(codes)


def test_the_sentence_names_another_part_than_a_gpu() -> None:
    items = [
        {"kind": "diag_failed", "text": "an error", "where": {}, "data": {"code": 81, "part": f"nvswitch {number}"}}
        for number in range(2)
    ]
    assert sentence_of(items) == "nvswitch 0, nvswitch 1: DCGM error 81: an error"
