"""How values become words, how tables fit the line, and what a pipe gets."""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime, timedelta

import pytest
from in_memory.cli_asked import HOSTILE, harmless

from sentinel.cli.operator import output
from sentinel.cli.operator.output import (
    ago,
    clock,
    drawable,
    folded,
    print_json,
    say,
    shown,
    span,
    styled_state,
    table,
    when,
)
from sentinel.daemon.web.templates import span as page_span

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LONG = "words of a cell " * 8


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"), ("", "-"), ([], "-"), (0, "0"), (0.0, "0"), (1234.5678, "1235"), (0.12345, "0.123"),
        ("n1", "n1"), (["n1", "n2"], "n[1-2]"), (("a\nb",), "a·b"), (False, "False"),
        ([f"n{i}" for i in range(8)], "n[0-7]"),
        (HOSTILE, "[red]x[/red]·[2J·]0;title···root·evil {0} %s"),
    ],
)  # fmt: skip
def test_shown(value: object, words: str) -> None:
    assert shown(value) == words


def test_long_list_is_cut_and_counted() -> None:
    names = [f"n{number}" for number in range(1, 400, 2)]
    assert folded(names, most=20) == "n[1,3,5,7,9,11,13,... (200 in all)" and folded(["n1"] * 9, most=20) == "n1"
    assert folded([]) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (3599, "1 h ago"), (3600, "1 h ago"), (86400, "1 d ago"),
     (200000, "2.3 d ago"), (-3, "0 s ago"), (-30, "in 30 s"), (-7200, "in 2 h")],
)  # fmt: skip
def test_ago(seconds: float, words: str) -> None:
    then = (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    assert ago(then, NOW) == words


@pytest.mark.parametrize("value", [None, 7, ""])
def test_time_that_is_not_known(value: object) -> None:
    assert ago(value or None, NOW) == "-"


def test_state_keeps_its_word_without_colour() -> None:
    assert styled_state("down").plain == "down" and styled_state("down").style == "red"
    assert styled_state("odd\x1b").plain == "odd·" and styled_state("odd").style == ""


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([{"b": 1, "a": HOSTILE}, [1]])
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 2 and out.startswith('{"b": 1, "a": ') and harmless(out)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0.4 s"),
        (12.3, "12 s"),
        (59.6, "1 min"),
        (90, "1.5 min"),
        (150, "2.5 min"),
        (3599, "1 h"),
        (5390, "1.5 h"),
        (7200, "2 h"),
        (36000, "10 h"),
        (85000, "1 d"),
        (None, "-"),
    ],
)
def test_span(seconds: float | None, words: str) -> None:
    assert span(seconds) == words
    assert seconds is None or page_span(seconds) == words, "the HTML of a report stands beside its text"


@pytest.mark.parametrize(
    ("zone", "at", "words"),
    [
        ("UTC", "2026-03-01T11:58:00Z", "11:58:00 UTC (2 min ago)"),
        ("Europe/Zurich", "2026-03-01T11:58:00Z", "12:58:00 CET (2 min ago)"),
        ("UTC", "2026-02-27T03:10:00Z", "2026-02-27 03:10 UTC (2.4 d ago)"),
    ],
)
def test_clock_with_its_zone_beside_how_long_ago(
    monkeypatch: pytest.MonkeyPatch, zone: str, at: str, words: str
) -> None:
    import time

    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert when(at, NOW) == words and words.startswith(clock(at, NOW))
    finally:
        monkeypatch.undo()
        time.tzset()


# --- tables --------------------------------------------------------------------------------------------------------------


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int | None) -> list[str]:
    """A table with a name, a text that may be broken, and two columns that may be left out."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
    rows = [("n1", LONG, "first", "second"), ("a-name-of-a-node", "[b]x[/b]", None, "")]
    table("Title of [i]n1[/i]", ("name", "text", "one", "two"), rows, wide=("one", "two"), whole=("name", "one", "two"))
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [36, 40, 44, 60, 80, 120])
def test_no_line_of_a_table_is_longer_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    lines = printed(monkeypatch, capsys, columns)
    assert max(map(len, lines)) <= columns and all(line == line.rstrip() for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "[b]x[/b]" in text and "[i]n1[/i]" in text and text.count("cell") == 8


def test_columns_that_have_no_room_are_left_out_the_last_one_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = {columns: printed(monkeypatch, capsys, columns)[2].split() for columns in (120, 42, 34)}
    assert seen == {120: ["name", "text", "one", "two"], 42: ["name", "text", "one"], 34: ["name", "text"]}


def test_a_column_for_which_there_is_room_is_not_left_out_with_a_wide_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    row = ("n" * 20, "w" * 30, "698", "95%")
    table(
        "", ("name", "wide", "job", "sure"), [row], wide=("wide", "job", "sure"), whole=("name", "wide", "job", "sure")
    )
    assert capsys.readouterr().out.splitlines()[0].split() == ["name", "job", "sure"]


def test_what_is_cut_fits_also_without_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="backslashreplace"))
    table("", ("node", "why", ""), [("n1", "w" * 60, "x" * 20)], wide=("",), whole=("node", ""), cut=("why",))
    sys.stdout.flush()
    lines = sys.stdout.buffer.getvalue().decode("ascii").splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= 40 and any(line.rstrip(" x").endswith("ww...") for line in lines), lines


def test_what_was_left_out_is_said_below_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also in a pager, in front of which stderr is lost; what a program reads has no such line."""
    for terminal in (True, False):
        monkeypatch.setattr("sentinel.cli.operator.output._PAGED", [terminal])
        monkeypatch.setenv("COLUMNS", "34")
        table("", ("name", "one"), [("n" * 30, "first")], wide=("one",), whole=("name", "one"))
        out, err = capsys.readouterr()
        said = "too narrow for: one"
        assert (out.splitlines()[-1] == said, err.strip() == said) == (terminal, not terminal)


def test_where_not_even_the_narrow_table_fits_each_row_is_a_block(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(monkeypatch, capsys, 30)
    assert lines[2] == "name n1" and lines[3].startswith("  text  words of a")
    assert "  one   first" in lines and "  two   second" in lines  # nothing is left out where there is a line for it
    assert lines[-2:] == ["name a-name-of-a-node", "  text  [b]x[/b]"]  # and what is not known has none


def test_a_pipe_gets_every_column_and_no_broken_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(monkeypatch, capsys, None)
    assert len(lines) == 5 and LONG.strip() in lines[3] and lines[3].endswith("first  second")
    say("a sentence " * 40)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_characters_that_the_encoding_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawable("█", "#") == "█"
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert drawable("█", "#") == "#"


# --- pager -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "terminal", "as_json", "pages"),
    [(500, True, False, True), (5, True, False, False), (500, False, False, False), (500, True, True, False)],
)
def test_only_what_is_longer_than_a_terminal_goes_through_the_pager(
    monkeypatch: pytest.MonkeyPatch, lines: int, terminal: bool, as_json: bool, pages: bool
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return terminal

    shown_by_pager: list[str] = []
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(output.click, "echo_via_pager", lambda text, color: shown_by_pager.append(text))

    @output.paged
    def listing(as_json: bool) -> None:
        for number in range(lines):
            output.echo(f"row {number}")

    listing(as_json=as_json)
    assert bool(shown_by_pager) is pages and (out.getvalue() or shown_by_pager[0]).count("row") == lines
