"""Quantities as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.planning import quantities as q
from sentinel.planning.limits import PlanningError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15min", 900),
        ("15 min", 900),
        ("15m", 900),
        ("3.09h", 11124),
        ("50000h", 1.8e8),
        ("50,000h", 1.8e8),
        ("54d", 4665600),
        ("2 weeks", 1209600),
        ("1y", 31557600),
        ("250ms", 0.25),
        ("5us", 5e-6),
        ("1h30min", 5400),
        ("1d12h", 129600),
        ("02:30:00", 9000),
        ("1-12:00:00", 129600),
        ("1e3s", 1000),
        (".5h", 1800),
        ("+2min", 120),
        ("3Hours", 10800),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    found = q.duration(text)
    assert found.value == pytest.approx(seconds)
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("90", "has no unit"),
        ("", "does not start with a number"),
        ("abc", "does not start with a number"),
        ("nan", "does not start with a number"),
        ("inf", "does not start with a number"),
        ("-inf s", "does not start with a number"),
        ("nan s", "does not start with a number"),
        ("0s", "zero has no answer"),
        ("-5min", "negative"),
        ("15M", "minutes to some, months to others"),
        ("15 parsecs", "unknown unit of time"),
        ("5GB", "unknown unit of time"),
        ("3,09h", "can be read two ways"),
        ("1e999s", "not a finite number"),
        ("1e40s", "beyond anything real"),
        ("30min1h", "unknown unit of time"),
        ("1h1h", "unknown unit of time"),
        ("01:75:00", "more than 59 minutes"),
        ("15:00", "unknown unit of time"),
        ("1__0s", "is not a number"),
        ("9" * 61 + "s", "characters are not a quantity"),
        ("5\x1b[31m", "unknown unit of time '\\x1b[31m'"),
    ],
)
def test_bad_durations_say_why(text: str, why: str) -> None:
    with pytest.raises(PlanningError) as caught:
        q.duration(text, "--save")
    assert why in caught.value.message
    assert caught.value.message.startswith("--save: ")
    assert caught.value.fix
    assert "\x1b" not in caught.value.message + caught.value.fix


def test_zero_is_taken_where_it_has_a_meaning() -> None:
    assert q.duration("0", zero=True).value == 0
    assert q.duration("0s", zero=True).value == 0


def test_days_may_leave_out_their_unit() -> None:
    assert q.days("54").value == 54 * 86400
    assert q.days("48h").value == 2 * 86400
    with pytest.raises(PlanningError):
        q.days("0")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("405B", 405e9),
        ("405b", 405e9),
        ("70 B", 70e9),
        ("1.8T", 1.8e12),
        ("500M", 5e8),
        ("16384", 16384),
        ("16,384", 16384),
        ("405e9", 405e9),
        ("175G", 175e9),
    ],
)
def test_counts(text: str, value: float) -> None:
    assert q.count(text).value == pytest.approx(value)


def test_a_power_of_two_in_thousands_is_warned_about() -> None:
    found = q.whole_count("16k")
    assert found.value == 16000
    assert "write 16384" in found.warnings[0]
    assert q.whole_count("15k").warnings == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("405GB", "not a unit of a count"),
        ("0", "zero"),
        ("-3", "negative"),
        ("1e19", "beyond"),
        ("12 GPUs", "not a unit"),
    ],
)
def test_bad_counts_say_why(text: str, why: str) -> None:
    with pytest.raises(PlanningError, match=why):
        q.count(text)


def test_parameters_without_their_billion_are_refused() -> None:
    with pytest.raises(PlanningError, match="too few") as caught:
        q.count("405", "--parameters", least=1000)
    assert "405B" in caught.value.fix


def test_half_a_gpu_is_refused() -> None:
    with pytest.raises(PlanningError, match="whole number"):
        q.whole_count("2.5")


@pytest.mark.parametrize(
    ("text", "value", "warned"),
    [
        ("5.67TB", 5.67e12, False),
        ("5e12B", 5e12, False),
        ("5e12 bytes", 5e12, False),
        ("80GiB", 80 * 2**30, True),
        ("2TiB", 2 * 2**40, True),
        ("500 kB", 5e5, False),
        ("2tb", 2e12, True),
        ("1PB", 1e15, False),
    ],
)
def test_sizes(text: str, value: float, warned: bool) -> None:
    found = q.size(text)
    assert found.value == pytest.approx(value)
    assert bool(found.warnings) is warned


@pytest.mark.parametrize(
    ("text", "why", "fix"),
    [
        ("5", "has no unit", "5TB"),
        ("5T", "is TB or TiB", "5TB or 5TiB"),
        ("5Tb", "is bits", "0.625TB"),
        ("5Gbit", "is bits", "0.625GB"),
        ("5parsec", "unknown unit of bytes", "TB"),
        ("0GB", "zero", "above zero"),
        ("1e30GB", "beyond", "unit"),
    ],
)
def test_bad_sizes_say_why(text: str, why: str, fix: str) -> None:
    with pytest.raises(PlanningError) as caught:
        q.size(text)
    assert why in caught.value.message
    assert fix in caught.value.fix


def test_memory_in_decimal_units_is_warned_about() -> None:
    assert "GiB was meant it is 7.4 % more" in q.memory("80GB").warnings[0]
    assert "TiB was meant it is 10.0 % more" in q.memory("2TB").warnings[0]
    assert all("if" not in w.split() for w in q.memory("2TiB").warnings)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2TB/s", 2e12),
        ("63GB/s", 63e9),
        ("63 GBps", 63e9),
        ("1.1PB/day", 1.1e15 / 86400),
        ("600GB/min", 1e10),
        ("400Gbit/s", 50e9),
        ("400Gbps", 50e9),
        ("400Gb/s", 50e9),
        ("1GiB/s", 2**30),
    ],
)
def test_rates(text: str, value: float) -> None:
    assert q.rate(text).value == pytest.approx(value)


def test_bits_by_a_small_letter_are_warned_about() -> None:
    assert "bits: 400 Gb/s = 50 GB/s" in q.rate("400Gb/s").warnings[0]
    assert q.rate("400Gbit/s").warnings == ()


@pytest.mark.parametrize(
    ("text", "why"), [("2TB", "per what time"), ("2TB/fortnight", "unknown unit of time"), ("2", "per what")]
)
def test_bad_rates_say_why(text: str, why: str) -> None:
    with pytest.raises(PlanningError, match=why):
        q.rate(text)


def test_shares() -> None:
    assert q.share("0.1").value == q.share("10%").value == q.share("10 %").value == 0.1
    assert q.share("1").value == q.share("100%").value == 1
    assert q.share("0", zero=True).value == 0


@pytest.mark.parametrize("text", ["10", "1.5", "120%", "0", "-0.1", "ten", "10 percent", "nan", "nan%"])
def test_bad_shares_are_refused(text: str) -> None:
    with pytest.raises(PlanningError):
        q.share(text)


def test_a_share_above_one_is_asked_back_as_percent() -> None:
    with pytest.raises(PlanningError) as caught:
        q.share("10")
    assert "10%" in caught.value.fix and "0.1" in caught.value.fix
    with pytest.raises(PlanningError):
        q.share("100%", one=False)


def test_plain_numbers_take_no_unit() -> None:
    assert q.plain("14").value == 14
    with pytest.raises(PlanningError, match="a plain number is meant"):
        q.plain("14B")


@given(st.text(max_size=80))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    for reader in (q.duration, q.days, q.count, q.whole_count, q.size, q.memory, q.rate, q.share, q.plain):
        try:
            found = reader(text)
        except PlanningError as error:
            assert "\n" not in error.message and "\x1b" not in error.message + error.fix
        else:
            assert math.isfinite(found.value) and found.value > 0


@given(st.floats(1e-3, 1e11))
def test_what_is_shown_reads_back_within_a_percent(seconds: float) -> None:
    assert q.duration(q.show_duration(seconds)).value == pytest.approx(seconds, rel=0.01)


@given(st.floats(1, 1e20))
def test_shown_bytes_read_back_within_a_percent(amount: float) -> None:
    assert q.size(q.show_bytes(amount)).value == pytest.approx(amount, rel=0.01)


def test_shown_values() -> None:
    assert q.show_duration(1356) == "22.6 min"
    assert q.show_duration(0) == "0 s"
    assert q.show_duration(0.0692) == "69.2 ms"
    assert q.show_duration(11124) == "3.09 h"
    assert q.show_bytes(5.67e12) == "5.67 TB"
    assert q.show_rate(63e9) == "63 GB/s"
    assert q.show_share(0.09) == "9 %"
    assert q.show_share(0.085) == "8.5 %"
    assert q.show_share(0.00012) == "0.012 %"
