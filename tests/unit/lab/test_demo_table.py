"""The demo's table and its picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lab.demo.table import Row, table


def test_rows_of_the_picture_appear_in_turn_and_none_is_hidden_for_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [Row(fault="Xid 79 on one GPU", cause="gpu_fallen_off_bus", scope="gpu", ok=True), Row(fault="hung rank")]
    with table(tmp_path / "demo.svg") as draw:
        draw(rows, "1 of 2 recoveries right, 60 s in all")
    assert "1 of 2 recoveries right" in capsys.readouterr().out
    svg = (tmp_path / "demo.svg").read_text()
    begins = [float(at) for at in re.findall(r"animation:appear \.3s ([\d.]+)s backwards", svg)]
    assert begins == sorted(begins) and set(begins) == {1.5, 3.0}
    assert "from{opacity:0}" in svg and "prefers-reduced-motion" in svg and 'opacity:0"' not in svg
    at = {word: re.search(rf"<text([^>]*)>[^<]*{word}", svg) for word in ("detected", "Xid", "hung", "recoveries")}
    found = {word: re.findall(r" ([\d.]+)s backwards", match[1]) for word, match in at.items() if match}
    assert found == {"detected": [], "Xid": ["1.5"], "hung": ["3"], "recoveries": ["3"]}
