"""Logs whose newest line is the first (``journalctl -r``, Loki, Kibana): judged as if they were written the usual way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.cli.offline import log_blocks
from sentinel.cli.offline.classify import classify
from sentinel.cli.offline.log_blocks import oldest_first

LINES = [
    "step 1 loss 2.0",
    "step 2 loss 1.9",
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    main()",
    "ValueError: bad shape",
    "srun: error: n7: task 3: Exited with exit code 1",
]


def stamped(lines: list[str]) -> list[str]:
    return [f"2026-03-01T10:00:{number // 2:02d}.000Z {line}" for number, line in enumerate(lines)]  # two a second


def judged(path: Path, lines: list[str]) -> dict[str, Any]:
    path.write_text("\n".join(lines) + "\n")
    result = CliRunner().invoke(classify, ["--json", str(path)])
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.output)
    return answer


def test_the_verdict_is_that_of_the_log_the_other_way_round(tmp_path: Path) -> None:
    usual = judged(tmp_path / "log", stamped(LINES))
    turned = judged(tmp_path / "log", stamped(LINES)[::-1])
    for key in ("cause", "confidence", "culprits", "restart"):
        assert turned[key] == usual[key], (usual, turned)
    assert usual["cause"] == "user_code"
    places = [(len(LINES) + 1 - ground["line"], ground["text"]) for ground in usual["evidence"]]
    assert [(ground["line"], ground["text"]) for ground in turned["evidence"]] == places, "lines are those of the file"


def turned(text: str) -> tuple[str, int]:
    blocks, count = oldest_first(
        iter([text.encode()[:100], text.encode()[100:]] if len(text) > 100 else [text.encode()])
    )
    return b"".join(blocks).decode(), count


def test_what_journalctl_puts_between() -> None:
    lines = [*stamped(LINES)[::-1][:3], "-- Boot 5f2e --", "", *stamped(LINES)[::-1][3:]]
    assert turned("\n".join(lines)) == ("\n".join(reversed(lines)) + "\n", len(lines))


@pytest.mark.parametrize(
    "lines",
    [
        stamped(LINES),
        ["no time", *stamped(LINES)[::-1]],
        [*stamped(LINES)[::-1], "no time"],
        [*stamped(LINES)[::-1], stamped(LINES)[-1]],
        stamped(LINES)[:4][::-1],  # two times: two writers may have written them
        ["step 3"] * 4,
        [],
    ],
)
def test_any_other_log_stays_as_it_is(lines: list[str]) -> None:
    text = "\n".join(lines)
    assert turned(text) == (text, 0)


def test_a_log_without_end_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_blocks, "_TURNED_BYTES", 300)
    text = "\n".join(stamped(LINES)[::-1])
    assert len(text) > 300 and turned(text) == (text, 0)
