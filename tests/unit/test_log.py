"""One event, one line, whatever a user's text holds."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.log import Log

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) [a-z-]+( \w+=(\"[^\"]*\"|[^\s\"=]+))*\n"
)


def said(level: str = "info", event: str = "node-heard", **values: object) -> str:
    stream = io.StringIO()
    getattr(Log(stream), level)(event, **values)
    return stream.getvalue()


@pytest.mark.parametrize("level", ["info", "warning", "error"])
def test_level_event_and_values(level: str) -> None:
    line = said(level, node="n1", count=3, empty="", none=None)
    assert LINE.fullmatch(line)
    assert line.endswith(f' {level.upper()} node-heard node=n1 count=3 empty="" none=None\n')


def test_without_values_there_is_no_trailing_space() -> None:
    assert said().endswith(" INFO node-heard\n")


@pytest.mark.parametrize("text", ["a b", 'say "x"', "k=v", "it's", "a\nINFO bug", "\x1b[2J", "\u2028", "\ud800"])
def test_odd_values_are_quoted_and_stay_one_line(text: str) -> None:
    line = said(text=text)
    assert LINE.fullmatch(line) and line[:-1].isprintable() and ' text="' in line


def test_long_values_are_cut() -> None:
    assert said(text="x" * 501).endswith("=" + "x" * 499 + "…\n")
    assert said(text="x" * 500).endswith("=" + "x" * 500 + "\n")


@given(st.text(max_size=600), st.text(max_size=600))
def test_no_value_forges_a_line_or_a_key(one: str, two: str) -> None:
    line = said(one=one, two=two)
    assert LINE.fullmatch(line) and len(re.findall(r' (?:one|two)="?', line)) >= 2 and line.count("\n") == 1


def test_default_stream_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Log().warning("node-silent")
    assert "WARNING node-silent" in capsys.readouterr().err
