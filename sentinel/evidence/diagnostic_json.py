"""The JSON that ``dcgmi diag -j`` writes: where it is in the output, and its values as 2.x to 4.x write them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.text import whole_number, whole_numbers

_MOST = 10**18  # a number beyond is damage
_MOST_STARTS = 200  # braces at which the answer is looked for
_MOST_READ = 3  # times that the output is read for it: of damage each brace may be read to the end
_MOST_TEXT = 4096  # of a message with a code, which tells of one error; DCGM's own have at most 1024


def root_of(output: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any], bool] | None:
    """The answer in the output, with other text before and behind it perhaps: document, its body, whether of 2.x or 3.x."""
    text = output.decode("utf-8", "replace")
    decoder = json.JSONDecoder(object_pairs_hook=_each_key_once)
    start, tried, read = text.find("{"), 0, 0
    while start >= 0 and tried < _MOST_STARTS and read <= _MOST_READ * len(text):
        tried += 1
        try:
            document, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            document, end = None, error.pos
        except (ValueError, RecursionError):
            document, end = None, len(text)
        read += end - start
        if isinstance(document, dict) and "\ufffd" not in text[start:end]:  # damaged bytes: not what DCGM wrote
            for key, body in document.items():
                root = str(key).strip().lower()
                if root in ("dcgm diagnostic", "dcgm gpu diagnostic") and isinstance(body, dict):
                    return document, body, root == "dcgm gpu diagnostic"
        start = text.find("{", start + 1)
    return None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """
    Raises:
        ValueError: a key has two values. DCGM writes none so, and which of them counts is not known.
    """
    if len({key.strip().lower() for key, _ in pairs}) < len(pairs):
        raise ValueError("a key is given twice")
    return dict(pairs)


def gpus_of(result: Mapping[str, Any]) -> tuple[int | None, list[int]]:
    """The entity that a result is about, and all of them where it is about several: "gpu_ids" of 2.x to 3.2."""
    number = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids")))
    if (entity := whole(number)) is not None:
        return entity, [entity]
    return None, whole_numbers(number) if isinstance(number, str) else []


def warnings_in(value: object) -> int:
    """How many non-empty lists of warnings there are, wherever they are."""
    if isinstance(value, dict):
        own = sum(1 for key, item in value.items() if str(key).strip().lower() == "warnings" and item)
        # In level-one tests of 3.x a warning's own text is under that name too.
        own = own if "error_id" not in value else 0
        return own + sum(map(warnings_in, value.values()))
    return sum(map(warnings_in, value)) if isinstance(value, list) else 0


def warning_of(warning: object) -> tuple[int | None, int | None, str]:
    """Code, severity and text. In level-one tests of 3.x the text is under ``warnings``.

    A text without a code is whole: the messages of many errors may be joined in it, and the worst may be the last.
    """
    if isinstance(warning, str):
        return None, None, warning
    if not isinstance(warning, dict):
        return None, None, repr(warning)[:200]
    low = lower(warning)
    code, text = whole(low.get("error_id")), str(low.get("warning", low.get("warnings", "")))
    return code, whole(low.get("error_severity")), text if code is None else start_of(text, _MOST_TEXT)


def start_of(text: str, most: int) -> str:
    """At most so many characters, up to the end of a word: "GPU 13" that is cut would be another GPU."""
    if len(text) <= most:
        return text
    while most > 0 and (text[most - 1].isalnum() or text[most - 1] == "."):
        most -= 1
    return text[:most]


def mark_of(value: object) -> str:
    text = str(value).strip().lower()
    names = {"pass": "pass", "skip": "skip", "fail": "fail", "warn": "fail", "not run": "skip", "not_run": "skip"}
    return names.get(text, "unknown")


def version_of(document: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    for place in (document.get("metadata"), body, document):
        if isinstance(place, dict) and isinstance(place.get("version"), str):
            return str(place["version"])[:40]
    return ""


def lower(value: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).strip().lower(): item for key, item in value.items()}


def plain(name: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def items_of(value: object) -> Iterator[Any]:
    if isinstance(value, list):
        yield from value
    elif value:
        yield value


def whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < _MOST else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    number = whole_number(text.removeprefix("-"))
    return -number if number is not None and text.startswith("-") else number
