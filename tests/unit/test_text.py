"""Text from outside: nothing raises, everything can be carried on, and what was text stays as it is."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.text import (
    MOST_LEVELS,
    brief,
    clean,
    is_deep,
    json_of,
    json_with_bytes,
    plain,
    printable,
    text_of,
    visible,
    whole_number,
)

ANY_TEXT = st.text(st.characters(codec=None), max_size=30) | st.text(max_size=30)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"caf\xc3\xa9 \xe2\x98\x83", "café ☃"),
        (b"\xff\x80", "\\xff\\x80"),
        (b"a\0b", "a\\x00b"),
        (b"\xed\xa0\x80", "\\xed\\xa0\\x80"),
        (b"\x1b\n", "\x1b\n"),
    ],
)
def test_bytes(raw: bytes, text: str) -> None:
    assert text_of(raw) == text


def test_half_a_pair_of_json_is_shown_and_a_whole_one_is_its_character() -> None:
    assert json_of(rb'{"\ud800": ["\ud83d\ude00 \udcff \u0000", 1]}') == {"\\ud800": ["😀 \\xff \\x00", 1]}


@given(st.binary(max_size=40))
def test_any_bytes_can_be_carried(raw: bytes) -> None:
    text_of(raw).encode()
    assert "\0" not in text_of(raw)


@given(ANY_TEXT)
def test_what_is_plain_stays_as_it_is(text: str) -> None:
    made = plain(text)
    made.encode()
    assert "\0" not in made and plain(made) == made
    fit = "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
    assert (made == text) is fit


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | ANY_TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
        max_leaves=8,
    )
)
def test_json_comes_out_as_its_strings_made_plain(value: Any) -> None:
    told = json.dumps(value)
    assert json_of(told.encode()) == clean(json.loads(told))


@given(st.text())
def test_text_of_others_is_shown_without_what_drives_a_terminal(text: str) -> None:
    assert printable(text).isprintable() and len(printable(text)) == len(text)
    assert visible(text, None).isprintable()
    assert len(visible(text)) <= 300
    if text.isprintable():
        assert printable(text) == visible(text, None) == text


def test_how_a_character_without_a_glyph_is_shown() -> None:
    assert visible("a\x08b\x1b\u202ec\udc80") == "a\\x08b\\x1b\\u202ec\\udc80"
    assert printable("a\x08b\nc", "\u00b7", keep="\n") == "a\u00b7b\nc"
    assert visible("a" * 301) == "a" * 299 + "\u2026"


def test_bytes_of_a_file_name_are_kept_where_they_are_needed() -> None:
    assert os.fsencode(json_with_bytes(b'{"stdout": "/logs/\xff"}')["stdout"]) == b"/logs/\xff"
    assert json_of(b'{"stdout": "/logs/\xff"}') == {"stdout": "/logs/\\xff"}


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b'{"a": \xff}', b"[" * 100_000, b"1" * 5000])
def test_what_is_no_json_is_a_value_error(raw: bytes) -> None:
    for read in (json_of, json_with_bytes):
        with pytest.raises(ValueError):
            read(raw)


def test_how_deep_json_may_be_nested() -> None:
    def nested(levels: int, inside: str = "1") -> bytes:
        return b"[" * levels + inside.encode() + b"]" * levels

    wide = b"[" + b",".join([b'{"a": ["[[[["]}'] * 5000) + b"]"
    for raw in (b"{}", nested(MOST_LEVELS), wide):
        assert not is_deep(raw, json_with_bytes(raw))
    for raw in (nested(MOST_LEVELS + 1), nested(MOST_LEVELS, '{"a": {}}')):
        assert is_deep(raw, json_with_bytes(raw))


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1_0", "\u00b2", "\u0661", "1.0", "9" * 19, "9" * 5000])
def test_what_is_no_number_of_few_digits_is_none(text: str) -> None:
    assert whole_number(text) is None
    assert (whole_number("007"), whole_number("12", digits=1), whole_number("9" * 18)) == (7, None, 10**18 - 1)


@pytest.mark.parametrize("most", [60, 100, 300])
def test_a_brief_line_is_within_its_bounds_and_counts_the_rest(most: int) -> None:
    for many in (1, 2, 7, 30, 500):
        for sentence in (
            "Xid 79 on 0000:{0:02x}:00",
            "fault {0} that is told at some length here",
            "{0}",
            "x" * 200 + " {0}",
        ):
            line = brief([sentence.format(number) for number in range(many)], most)
            assert line and len(line) <= most
            assert len(line) < most or "more" in line or many == 1
    assert brief([], most) == ""


def test_a_brief_line_keeps_the_names_at_the_end() -> None:
    line = brief([f"{'a long reason ' * 10}of GPU-{number}" for number in range(3)], 60)
    assert line.endswith("... GPU-0, GPU-1, GPU-2") and len(line) <= 60
    assert brief(["a broken fan", "a broken GPU", "a broken fan"], 60) == "a broken fan, GPU"
    assert brief([f"memory of GPU {number}" for number in range(3)], 60) == "memory of GPU 0, GPU 1, GPU 2"
