"""One event, one line, whatever a user's text holds."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.log import KeyValueFormatter, Log, take_libraries

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


@pytest.fixture
def libraries() -> Iterator[None]:
    root = logging.getLogger()
    before = [*root.handlers], root.level
    take_libraries()
    yield
    root.handlers[:], _ = before
    root.setLevel(before[1])


def test_what_libraries_say_has_the_same_form(libraries: None, capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("apscheduler").warning("late by %s\nINFO forged", "2 s")
    logging.getLogger("apscheduler").info("not said")
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    late, bug = capsys.readouterr().err.splitlines()
    assert late.endswith(' WARNING library where=apscheduler text="late by 2 s INFO forged"')
    assert " ERROR bug where=asyncio " in bug and "KeyError" in bug and "place=test_log.py:" in bug


@pytest.mark.parametrize("text", ["%d steps of %s", "100 % sure", "%(user)s", "%"])
def test_a_librarys_text_that_does_not_fit_its_arguments_is_said(text: str) -> None:
    record = logging.getLogger("some").makeRecord("some", logging.WARNING, "", 0, text, ("one",), None)
    assert LINE.fullmatch(KeyValueFormatter().format(record) + "\n")


def test_a_bug_has_the_place_that_it_came_from() -> None:
    stream = io.StringIO()
    try:
        raise ValueError("x")
    except ValueError:
        Log(stream).bug("sender", node="n1")
    assert re.search(
        r" ERROR bug where=sender node=n1 error=\"ValueError\(.x.\)\" place=test_log.py:\d+\n", stream.getvalue()
    )


def test_a_stderr_that_is_gone_stops_nobody() -> None:
    stream = io.StringIO()
    stream.close()
    Log(stream).info("node-heard")
    assert stream.closed
