"""Quantities as people write them: ``405B``, ``15min``, ``2TB/s``, ``50000h``, ``0.1``, ``10%``, ``80GiB``.

Each reader takes text and gives a ``Quantity`` in SI units, with a warning where the text can be read two ways. What
has no unit, a unit of another kind or no finite value is refused with the spelling that would have been understood.
Decimal units are decimal (1 TB = 1e12 bytes, SI) and binary units binary (1 TiB = 2**40 bytes, IEC 80000-13).
"""

from __future__ import annotations

import codecs
import math
import re
from dataclasses import dataclass

from sentinel.planning.limits import PlanningError

MINUTE_S = 60.0
HOUR_S = 3600.0
DAY_S = 86400.0

_DURATIONS_S: dict[str, float] = {
    **dict.fromkeys(("us", "µs", "μs"), 1e-6),
    **dict.fromkeys(("ms", "msec"), 1e-3),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), MINUTE_S),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), HOUR_S),
    **dict.fromkeys(("d", "day", "days"), DAY_S),
    **dict.fromkeys(("w", "week", "weeks"), 7 * DAY_S),
    **dict.fromkeys(("y", "yr", "year", "years"), 365.25 * DAY_S),
}
_COUNTS: dict[str, float] = {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "bn": 1e9, "t": 1e12}
_PREFIX: dict[str, int] = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}

_NUMBER = re.compile(r"([-+]?(?:\d[\d_,]*)?\.?\d*(?:[eE][-+]?\d+)?)\s*(.*)", re.DOTALL)
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d{1,3}):(\d{2}):(\d{2})")
_COMPOUND = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zµμ]+)\s*")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
# Longer than any run and longer than any machine lasts: a slip of a unit, not a plan.
LONGEST_S = 1e12
MOST_BYTES = 1e24
MOST_COUNT = 1e18


@dataclass(frozen=True)
class Quantity:
    """A value in SI units, the text it was read from, and what a reader should know about the reading."""

    value: float
    text: str
    warnings: tuple[str, ...] = ()


def _shown(text: str) -> str:
    """Text of a stranger for an error line: short, and control characters visible."""
    return codecs.unicode_escape_encode(text.strip()[:60])[0].decode("ascii")


def _split(text: str, what: str, example: str) -> tuple[float, str]:
    """Number and unit of a text. Refuses no number, two decimal marks, NaN, infinity and overflow."""
    stripped = text.strip()
    if len(stripped) > 60:
        raise PlanningError(f"{what}: {len(stripped)} characters are not a quantity", fix=f"Write it like {example}.")
    match = _NUMBER.fullmatch(stripped)
    number_text = match.group(1) if match else ""
    if match is None or not any(c.isdigit() for c in number_text):
        raise PlanningError(f"{what}: '{_shown(text)}' does not start with a number", fix=f"Write it like {example}.")
    if "," in number_text and not _GROUPED.fullmatch(number_text):
        raise PlanningError(
            f"{what}: the comma in '{number_text}' can be read two ways",
            fix="Write 3.09 for a decimal, 16,384 or 16384 for a whole number.",
        )
    try:
        number = float(number_text.replace(",", ""))
    except ValueError:
        raise PlanningError(f"{what}: '{number_text}' is not a number", fix=f"Write it like {example}.") from None
    if not math.isfinite(number):
        raise PlanningError(f"{what}: '{_shown(text)}' is not a finite number", fix=f"Write it like {example}.")
    return number, match.group(2).strip()


def _bounded(value: float, text: str, what: str, most: float, *, zero: bool) -> float:
    if value < 0:
        raise PlanningError(f"{what}: '{_shown(text)}' is negative", fix="Give a value above zero.")
    if value == 0 and not zero:
        raise PlanningError(f"{what}: zero has no answer", fix="Give a value above zero.")
    if value > most:
        raise PlanningError(f"{what}: '{_shown(text)}' is beyond anything real", fix="Check the number and its unit.")
    return value


def duration(text: str, what: str = "duration", *, zero: bool = False) -> Quantity:
    """Seconds from ``90s``, ``15min``, ``3.09h``, ``54d``, ``1h30min`` or Slurm's ``[D-]HH:MM:SS``."""
    example = "90s, 15min, 3.09h or 54d"
    clock = _SLURM_TIME.fullmatch(text.strip())
    if clock is not None:
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        if minutes > 59 or seconds > 59:
            raise PlanningError(f"{what}: '{_shown(text)}' has more than 59 minutes or seconds", fix="[D-]HH:MM:SS")
        total = days * DAY_S + hours * HOUR_S + minutes * MINUTE_S + seconds
        return Quantity(_bounded(total, text, what, LONGEST_S, zero=zero), text)
    number, unit = _split(text, what, example)
    if unit == "":
        if number == 0 and zero:
            return Quantity(0.0, text)
        raise PlanningError(
            f"{what}: '{_shown(text)}' has no unit",
            fix=f"Seconds, minutes or hours? Write {number:g}s, {number:g}min or {number:g}h.",
        )
    if unit == "M":
        raise PlanningError(f"{what}: 'M' is minutes to some, months to others", fix=f"Write {number:g}min.")
    factor = _DURATIONS_S.get(unit) or _DURATIONS_S.get(unit.lower())
    total = _compound(text, what, unit, example) if factor is None else number * factor
    return Quantity(_bounded(total, text, what, LONGEST_S, zero=zero), text)


def duration_or_zero(text: str, what: str = "duration") -> Quantity:
    return duration(text, what, zero=True)


def _compound(text: str, what: str, unit: str, example: str) -> float:
    """``1h30min``: parts in falling order, each unit once."""
    stripped, at, total, last = text.strip().lower(), 0, 0.0, math.inf
    while at < len(stripped):
        part = _COMPOUND.match(stripped, at)
        factor = _DURATIONS_S.get(part.group(2)) if part else None
        if part is None or factor is None or factor >= last:
            shown = _shown(unit)
            raise PlanningError(f"{what}: unknown unit of time '{shown}'", fix=f"Write it like {example}.")
        total += float(part.group(1)) * factor
        at, last = part.end(), factor
    return total


def days(text: str, what: str = "days") -> Quantity:
    """Seconds from ``54`` (days, as the option's name says) or any duration."""
    _, unit = _split(text, what, "54 or 54d")
    return duration(f"{text.strip()}d" if unit == "" and ":" not in text else text, what)


def count(text: str, what: str = "count", *, least: float = 1, most: float = MOST_COUNT) -> Quantity:
    """A number of things: ``405B``, ``70b``, ``1.8T``, ``16384``, ``16,384``, ``16k``. A byte unit is refused."""
    number, unit = _split(text, what, "405B, 16384 or 16k")
    factor = _COUNTS.get(unit.lower())
    if factor is None:
        shown = _shown(unit)
        hint = "Write 405B for 405 billion, 70B, 1.8T or 500M."
        if unit.lower().endswith(("b", "ib")):
            hint += " Bytes belong to --checkpoint."
        raise PlanningError(f"{what}: '{shown}' is not a unit of a count", fix=hint)
    warnings: tuple[str, ...] = ()
    if unit.lower() == "k" and math.log2(max(number, 1)).is_integer() and number >= 8:
        warnings = (f"{what}: {text.strip()} is read as {number * 1000:,.0f}; write {number * 1024:.0f} for 2^10",)
    value = _bounded(number * factor, text, what, most, zero=False)
    if value < least:
        raise PlanningError(
            f"{what}: {value:g} is too few to be meant",
            fix=f"Write {number:g}B for {number:g} billion." if least >= 1000 else f"Give at least {least:g}.",
        )
    return Quantity(value, text, warnings)


def whole_count(text: str, what: str = "count") -> Quantity:
    """A count that must be a whole number: GPUs, nodes, copies."""
    result = count(text, what, most=1e8)
    if not result.value.is_integer():
        raise PlanningError(f"{what}: {text.strip()} is not a whole number", fix="Give a whole number.")
    return result


def size(text: str, what: str = "size") -> Quantity:
    """Bytes from ``5.67TB``, ``80GiB``, ``5e12B``. Bits, and prefixes that do not say decimal or binary, are refused."""
    number, unit = _split(text, what, "5.67TB, 80GiB or 5e12B")
    factor, warnings = _byte_unit(unit, number, what)
    return Quantity(_bounded(number * factor, text, what, MOST_BYTES, zero=False), text, warnings)


def _byte_unit(unit: str, number: float, what: str) -> tuple[float, tuple[str, ...]]:
    shown = _shown(unit)
    if unit == "":
        raise PlanningError(
            f"{what}: {number:g} has no unit", fix=f"Write {number:g}GB, {number:g}TB or, for bytes, {number:g}B."
        )
    match = re.fullmatch(r"([kKmMgGtTpPeE]?)(i?)([bB]|bytes?|bit|bits)", unit)
    if match is None:
        if unit.lower() in _PREFIX:
            up = unit.upper()
            raise PlanningError(
                f"{what}: '{unit}' is {up}B or {up}iB", fix=f"Write {number:g}{up}B or {number:g}{up}iB."
            )
        raise PlanningError(f"{what}: unknown unit of bytes '{shown}'", fix="Write GB, TB, PB or GiB, TiB, PiB.")
    prefix, binary, base = match.groups()
    power = _PREFIX[prefix.lower()]
    factor = 1024.0**power if binary else 1000.0**power
    if base in ("bit", "bits") or (base == "b" and prefix.isupper()):
        raise PlanningError(
            f"{what}: '{shown}' is bits",
            fix=f"Write bytes: {number / 8:g}{prefix.upper()}{binary}B if bits were meant.",
        )
    if binary:
        decimal = 1000.0**power
        return factor, (
            f"{what}: {number:g} {unit} is {number * factor / decimal:.4g} {prefix.upper()}B; "
            "drives and networks are sold in decimal units",
        )
    if base == "b" and prefix:
        return factor, (f"{what}: '{unit}' is read as {prefix.upper()}B (bytes, decimal)",)
    return factor, ()


def memory(text: str, what: str = "memory") -> Quantity:
    """Bytes of memory. Memory is built in binary sizes, so a decimal unit gets the warning GB for GiB."""
    result = size(text, what)
    number, unit = _split(text, what, "2TiB")
    power = _PREFIX.get(unit[:1].lower(), 0) if "i" not in unit and len(unit) > 1 else 0
    if power >= 3:
        gap = 100 * (1.024**power - 1)
        warning = (
            f"{what}: {number:g} {unit} is read as decimal; if {unit[0].upper()}iB was meant it is {gap:.1f} % more, "
            f"write {number:g}{unit[0].upper()}iB"
        )
        return Quantity(result.value, text, (*result.warnings, warning))
    return result


def rate(text: str, what: str = "bandwidth") -> Quantity:
    """Bytes per second from ``2TB/s``, ``63GB/s``, ``1.1PB/day``, ``400Gbit/s`` or ``400Gbps`` (bits)."""
    number, unit = _split(text, what, "2TB/s")
    warnings: tuple[str, ...] = ()
    bits = re.fullmatch(r"([kKMGTP])(?:bit/s|bps|b/s)", unit)
    if bits is not None:
        value = number * 1000.0 ** _PREFIX[bits.group(1).lower()] / 8
        if unit.endswith("b/s"):
            warnings = (f"{what}: '{unit}' is bits: {number:g} {unit} = {value / 1e9:g} GB/s",)
        return Quantity(_bounded(value, text, what, MOST_BYTES, zero=False), text, warnings)
    amount, slash, per = unit.partition("/")
    if not slash and unit.endswith("Bps"):
        amount, slash, per = unit[:-2], "/", "s"
    if not slash:
        raise PlanningError(
            f"{what}: '{_shown(text)}' does not say per what time", fix=f"Write {number:g}{_shown(unit) or 'GB'}/s."
        )
    seconds = _DURATIONS_S.get(per.strip())
    if seconds is None:
        shown = _shown(per)
        raise PlanningError(f"{what}: unknown unit of time '{shown}'", fix=f"Write {number:g}{_shown(amount)}/s.")
    factor, warnings = _byte_unit(amount.strip(), number, what)
    return Quantity(_bounded(number * factor / seconds, text, what, MOST_BYTES, zero=False), text, warnings)


def share(text: str, what: str = "share", *, zero: bool = False, one: bool = True) -> Quantity:
    """A fraction from ``0.1`` or ``10%``."""
    number, unit = _split(text, what, "0.1 or 10%")
    if unit not in ("", "%"):
        shown = _shown(unit)
        raise PlanningError(f"{what}: '{shown}' is not a fraction", fix="Write 0.1 or 10%.")
    value = number / 100 if unit == "%" else number
    if value > 1 or (value == 1 and not one):
        if unit == "":
            raise PlanningError(f"{what}: {number:g} is not below 1", fix=f"Write {number:g}% or {number / 100:g}.")
        raise PlanningError(f"{what}: {number:g} % is {'100 % or ' if not one else ''}more than all of it")
    return Quantity(_bounded(value, text, what, 1.0, zero=zero), text)


def plain(text: str, what: str = "number") -> Quantity:
    """A number without a unit, above zero."""
    number, unit = _split(text, what, "14")
    if unit:
        raise PlanningError(
            f"{what}: '{_shown(unit)}' is one too many, a plain number is meant", fix=f"Write {number:g}."
        )
    return Quantity(_bounded(number, text, what, MOST_COUNT, zero=False), text)


# -- and back: values as people read them ------------------------------------------------------------------------


def show_duration(seconds: float) -> str:
    """``22.6 min``: three figures and the largest unit that fits."""
    for unit, length, least in (("d", DAY_S, 4), ("h", HOUR_S, 2), ("min", MINUTE_S, 2)):
        if abs(seconds) >= least * length:
            return f"{figures(seconds / length)} {unit}"
    if seconds == 0 or abs(seconds) >= 1:
        return f"{figures(seconds)} s"
    return f"{figures(seconds * 1e3)} ms"


def show_bytes(amount: float) -> str:
    """``5.67 TB``: decimal units, three figures."""
    for unit, scale in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(amount) >= scale:
            return f"{figures(amount / scale)} {unit}"
    return f"{figures(amount)} B"


def show_rate(bytes_per_s: float) -> str:
    return f"{show_bytes(bytes_per_s)}/s"


def show_share(value: float) -> str:
    """``9 %``, ``8.5 %``; small shares keep two figures."""
    percent = 100 * value
    if percent and abs(percent) < 0.1:
        return f"{percent:.2g} %"
    return f"{percent:.1f}".removesuffix(".0") + " %"


def figures(value: float) -> str:
    """Three figures (four where the first is 1 would lose too much); thousands are grouped."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
