"""Text from outside: nothing raises, everything can be carried on, and what was text stays as it is."""

from __future__ import annotations

import json
import os
import re
import time
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
            assert len(line) < most or "more" in line or "..." in line or many == 1
    assert brief([], most) == ""


def test_a_brief_line_keeps_the_names_at_the_end() -> None:
    line = brief([f"{'a long reason ' * 10}of GPU-{number}" for number in range(3)], 60)
    assert line.endswith("... GPU-0, GPU-1, GPU-2") and len(line) <= 60
    assert brief(["a broken fan", "a broken GPU", "a broken fan"], 60) == "a broken fan, GPU"
    assert brief([f"memory of GPU {number}" for number in range(3)], 60) == "memory of GPU 0, GPU 1, GPU 2"
    assert brief([f"GPU {number}: memory" for number in range(3)], 60) == "GPU 0, GPU 1, GPU 2: memory"
    assert brief([f"GPU {number} had no memory" for number in range(2)], 60) == "GPU 0, GPU 1 had no memory"
    assert brief(["GPU 3: error 9: in GPU 3.", "GPU 4: error 9: in GPU 4."], 60) == "GPU 3, GPU 4: error 9: in the GPU."
    assert brief(["GPU 3: error 9: in GPU 3."], 60) == "GPU 3: error 9: in GPU 3.", "as it was told, where it is alone"
    assert brief(["nvswitch 0: a", "GPU 1: a", "GPU 1: b"], 60) == "nvswitch 0: a; GPU 1: a, b"


ERROR = "GPU {gpu}: DCGM error {code}: GPU {gpu} reached {value} of what was required in test {code} of the memory"


@pytest.mark.parametrize(("gpus", "errors"), [(1, 1), (8, 1), (8, 2), (16, 1), (16, 2), (16, 4), (2, 40), (16, 40)])
@pytest.mark.parametrize("by_gpu", [True, False])
@pytest.mark.parametrize("values", [1, 7, 1000])
def test_a_brief_line_names_every_gpu_and_cuts_no_number(gpus: int, errors: int, by_gpu: bool, values: int) -> None:
    pairs = [(gpu, 80 + error) for gpu in range(gpus) for error in range(errors)]
    pairs.sort(key=lambda pair: pair if by_gpu else pair[::-1])
    told = [ERROR.format(gpu=gpu, code=code, value=(gpu * 31 + code) % values) for gpu, code in pairs]
    line = brief(told, 300)
    assert len(line) <= 300
    assert {int(number) for number in re.findall(r"\bGPU (\d+)\b", line)} == set(range(gpus)), line
    codes = {int(number) for number in re.findall(r"error (\d+)", line)}
    assert 80 in codes and codes <= set(range(80, 80 + errors)), line
    assert "more" in line or codes == set(range(80, 80 + errors)), line


def test_names_are_left_out_of_a_brief_line_only_where_they_alone_do_not_fit() -> None:
    for many in (16, 30, 37, 38, 400):
        line = brief([f"GPU {gpu}: error {gpu} of its own {'kind ' * 40}" for gpu in range(many)], 300)
        names = ", ".join(f"GPU {gpu}" for gpu in range(many))
        named = len(re.findall(r"\bGPU \d", line))
        assert named == many if len(names) <= 300 else line.endswith(f"; and {many - named} more"), line


@given(st.lists(st.from_regex(r"(GPU [0-9]{1,2}(: | ))?([a-z0-9]{1,30} ?){0,9}", fullmatch=True), max_size=40))
def test_a_brief_line_of_anything_is_within_its_bounds(sentences: list[str]) -> None:
    for most in (40, 300):
        line = brief(sentences, most)
        assert len(line) <= most and "; ;" not in line and bool(line.strip()) is any(map(str.strip, sentences))


def test_a_brief_line_of_many_long_sentences_costs_no_time() -> None:
    sentences = [f"GPU {gpu}: {error} {'words and ' * 100}" for gpu in range(100) for error in range(50)]
    began_s = time.process_time()
    assert len(brief([*sentences, "9" * 1_000_000], 300)) <= 300
    assert time.process_time() - began_s < 3.0
