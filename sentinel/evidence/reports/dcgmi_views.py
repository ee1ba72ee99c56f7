"""What ``dcgmi health``, ``nvlink``, ``dmon`` and ``policy`` print, as sentences in DCGM's own words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sentinel.evidence.reports.fields import field_of, say_field
from sentinel.evidence.reports.page import MOST_TOLD, RULED, Page, gpu_number, line_of, positive

_CELLS = re.compile(r"^[^|\n]{0,120}\|([^|]{0,200})\|(?:([^|]{0,400})\|)?\s{0,200}$")
_LINKS = re.compile(r"^\s{1,12}(?:[UDX_] ){0,80}[UDX_]\s{0,8}$")
_OWNER = re.compile(r"^\s{0,12}(gpuId|physicalId|switchId) (\d{1,5}):\s{0,8}$")
_COUNT = re.compile(r"^(?:-> )?(CRC FLIT|CRC Data|Replay|Recovery) Error$")
_TELLING = ("Replay", "Recovery")  # single CRC errors are repeated by the link and are part of its life
_DMON = re.compile(r"^\s{0,4}#\s?Entity(?: {1,40}[A-Z][A-Z0-9_]{1,11}){1,64}\s{0,80}$")
_DMON_ROW = re.compile(r"^\s{0,4}(GPU|GPU-I|GPU-CI|Switch|CPU|Link)[ /]\S{1,20}\s{1,40}\S")
_GPU_ROW = re.compile(r"^\s{0,4}GPU (\d{1,5})\s{1,40}(\S[^\n]{0,4000})$")


def read_health_documents(page: Page) -> None:
    """``dcgmi health -j`` and ``dcgmi nvlink -e -j``: a display's tree, long messages in pieces."""
    for first, last, document, whole in page.documents():
        head = document.get("header")
        body = document.get("body")
        if not isinstance(head, list) or not isinstance(body, dict):
            continue
        if "Health Monitor Report" in head:
            page.silence(first, last)
            for gpu, text in islice(_messages(body), MOST_TOLD):
                page.say(line_of(text.split("\n")[0], whole, first), text.replace("\n", " "), gpu)
        elif "NVLINK Error Counts" in head:
            gpu = next((gpu_number(str(word).removeprefix("GPU ")) for word in head[1:]), None)
            page.silence(first, last)
            for link, name, value in _counts(body):
                if name.startswith(_TELLING) and positive(value):
                    page.say(first, f"NVLink {link} of GPU {gpu}: {value} {name.lower()}s", gpu)


def _messages(body: dict[str, Any]) -> Iterator[tuple[int | None, str]]:
    gpus = _children(body.get("GPU"))
    for number, gpu in gpus.items():
        for system in _children(_children(gpu).get("Errors")).values():
            pieces = system.get("overflow") if isinstance(system, dict) else None
            if isinstance(pieces, list) and pieces:
                yield gpu_number(number), "\n".join(str(piece) for piece in pieces[:100])


def _counts(body: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for link, content in body.items():
        for name, count in _children(content).items():
            if isinstance(count, dict):
                yield str(link).removeprefix("Link ")[:8], name[:40], str(count.get("value"))


def _children(value: object) -> dict[str, Any]:
    made = value.get("children") if isinstance(value, dict) else None
    return made if isinstance(made, dict) else {}


def read_boxes(page: Page) -> None:
    """Tables of health, of a policy and of link errors. A message goes on over several rows."""
    number = 0
    while number < len(page.lines):
        match = _CELLS.match(page.lines[number])
        title = match[1].strip() if match and match[2] is None else ""
        if title == "Health Monitor Report":
            number = _health(page, number)
        elif title in ("Policy Information", "Health Watches"):
            number = _end(page, number)
        elif title == "NVLINK Error Counts":
            number = _link_errors(page, number)
        number += 1


def _box(page: Page, first: int) -> Iterator[tuple[int, str, str]]:
    """Line and cells of the rows behind a title, up to the first line that is none."""
    for number in range(first + 1, len(page.lines)):
        line = page.lines[number]
        match = _CELLS.match(line)
        if match is None and not RULED.match(line):
            return
        yield number, match[1].rstrip() if match else "", (match[2] or "").strip() if match else ""


def _end(page: Page, first: int) -> int:
    last = max((number for number, _, _ in _box(page, first)), default=first)
    page.silence(first, last)
    return last


def _health(page: Page, first: int) -> int:
    rows = list(_box(page, first))
    gpu, said = None, ""
    start = first
    messages: list[tuple[int, int | None, str]] = []
    for number, left, right in rows:
        name = left.strip()
        if not name and right:
            start, said = (start, f"{said} {right}") if said else (number, right)
            continue
        if said:
            messages.append((start, gpu, said))
            said = ""
        if name.startswith("-> ") and len(left) - len(left.lstrip()) <= 1:
            gpu = gpu_number(name.removeprefix("-> "))
    if said:
        messages.append((start, gpu, said))
    last = rows[-1][0] if rows else first
    page.silence(first, last)
    for line, about, text in messages:
        page.say(line, text, about)
    return last


def _link_errors(page: Page, first: int) -> int:
    rows = list(_box(page, first))
    gpu, link = None, ""
    found: list[tuple[int, str, int | None]] = []
    for number, left, right in rows:
        name = left.strip()
        if name.startswith("GPU ") and not right:
            gpu = gpu_number(name.removeprefix("GPU "))
        elif name.startswith("Link "):
            link = name.removeprefix("Link ")[:8]
        elif (count := _COUNT.match(name)) and count[1] in _TELLING and positive(right):
            found.append((number, f"NVLink {link} of GPU {gpu}: {right} {count[1].lower()} errors", gpu))
    last = rows[-1][0] if rows else first
    page.silence(first, last)
    for line, sentence, about in found:
        page.say(line, sentence, about)
    return last


def read_links(page: Page) -> None:
    """``dcgmi nvlink -s``: one letter for each link. A disabled one (X) is so by intention."""
    owner: tuple[str, int] | None = None
    for number, line in enumerate(page.lines):
        match = _OWNER.match(line)
        if match:
            owner = match[1], int(match[2])
            page.silence(number)
        elif owner is not None and _LINKS.match(line):
            down = [str(place) for place, letter in enumerate(line.split()) if letter == "D"]
            page.silence(number)
            if down:
                kind = "GPU" if owner[0] == "gpuId" else "NVSwitch"
                links = f"NVLink {', '.join(down[:4])}{' and more' if len(down) > 4 else ''}"
                page.say(number, f"{links} of {kind} {owner[1]}: down", owner[1] if kind == "GPU" else None)
            owner = None
        elif line.strip():
            owner = None


def read_dmon(page: Page) -> None:
    """``dcgmi dmon``: columns by the short names of the fields; units in the second line. Another line ends it."""
    names: list[str] = []
    for number, line in enumerate(page.lines):
        if _DMON.match(line):
            names = line.replace("#", " ").split()[1:]
            page.silence(number)
        elif names and line.strip() and not _values(page, number, names):
            names = []


def _values(page: Page, number: int, names: list[str]) -> bool:
    """Whether the line belongs to the table with these columns; what it says is said."""
    line = page.lines[number]
    match = _GPU_ROW.match(line)
    values = match[2].split() if match else []
    # A value of several words (a GPU's model) moves the columns, and words alone are no values: such a line stays.
    fits = len(values) == len(names) and any(value == "N/A" or value[:1].isdigit() for value in values)
    if match and fits:
        page.silence(number)
        for name, value in zip(names, values, strict=True):
            say_field(page, number, field_of(name), value, gpu_number(match[1]))
    elif not match and (line.split()[0].lower() == "id" or _DMON_ROW.match(line)):
        page.silence(number)
    else:
        return match is not None and not fits
    return True
