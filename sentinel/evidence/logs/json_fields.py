"""What a JSON record holds beside its message: level, rank, numbers of steps, and texts, mostly of errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

TIMES = frozenset({"time", "timestamp", "ts", "@timestamp", "asctime", "date", "datetime"})
_PLAIN = TIMES | {"stream", "log"}  # what Docker's records have: nothing beside the text
LEVELS = (
    *("level", "levelname", "lvl", "log.level", "loglevel", "severity", "severity_text", "severityText"),
    *("level_name", "levelno", "Level", "LEVEL", "@l"),
)
_LEVELS = frozenset(LEVELS)
MOST = 128  # fields of a record that are looked at
DEEPEST = 3  # mappings within mappings
_BELOW = {  # levels below an error, as a program prints them
    **dict.fromkeys(("trace", "debug", "verbose", "d", "10"), "DEBUG"),
    **dict.fromkeys(("info", "information", "notice", "success", "i", "20"), "INFO"),
    **dict.fromkeys(("warn", "warning", "w", "30"), "WARNING"),  # 30 is pino's and bunyan's information
}
_ERRORS = frozenset({"error", "err", "e", "critical", "crit", "fatal", "f", "panic", "alert", "emergency", "50", "60"})
_LOOKS_LIKE_ERROR = re.compile(r"(?i)err|fail|exception|traceback|\bFile \"|^\s|fatal|killed|abort")
_OF_A_CLOUD = frozenset({"textPayload", "jsonPayload", "logName", "insertId"})
_RANKS = ("rank", "global_rank", "process_index")
_OF_RANKS = frozenset(_RANKS)
_RANK_LIMIT = 1_000_000
# Keys of numbers that tell of steps.
_PROGRESS = re.compile(r"(?:\w{1,40}_)?(?:step|iter|iteration|epoch|loss|grad_norm)")
_NO_NUMBER = re.compile(r"(?i)-?(?:nan|inf(?:inity)?)")
_RAISED = frozenset(
    [
        "error",
        "err",
        "errors",
        "exception",
        "exc",
        "exc_info",
        "exc_text",
        "stack",
        "stacktrace",
        "stack_trace",
        "traceback",
    ]
)
# What is no word of an error's: the settings and the surroundings of what runs, and what was said before.
_AROUND = frozenset(
    [
        *(
            "locals",
            "vars",
            "argv",
            "args",
            "env",
            "environ",
            "environment",
            "config",
            "settings",
            "headers",
            "request",
        ),
        *("tags", "labels", "annotations", "breadcrumbs", "commit_message", "notes", "description"),
    ]
)
_NOTHING = re.compile(r"(?i)\W*(?:none|null|nil|no errors?|ok|false|0|n/a)?\W*")
_STACKS = ("stack_trace", "stacktrace", "stack", "traceback", "backtrace", "trace")
_CLASSES = ("type", "name", "class", "exc_type", "kind")
_SAID = ("message", "msg", "value", "exc_value", "reason")
_OF_AN_ERROR = frozenset({*_STACKS, *_CLASSES, *_SAID})
_FRAMES = 1024  # of an exception that is written in parts, and exceptions of one chain: the rest is left out
_CHAIN = 32


def lines_of(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def level_of(record: Mapping[str, Any], name: str, text: str) -> tuple[str, bool]:
    """The level as a program prints it before its message, none of an error; whether only the level says that it is one.

    ``name``: its level's. A cloud's export calls what came from a program's output information, or an error by the stream
    that it came from.
    """
    if not name or not (known := _BELOW.get(name)):
        by_level = name in _ERRORS and _OF_A_CLOUD.isdisjoint(record)
        return "", by_level and not _LOOKS_LIKE_ERROR.search(text)
    return "" if known == "INFO" and not _OF_A_CLOUD.isdisjoint(record) else f"{known}: ", False


def level_name(record: Mapping[str, Any]) -> str:
    """In small letters, or as a number; empty where the record has none."""
    if _LEVELS.isdisjoint(record):
        nested = record.get("log")  # of ECS
        return level_name(nested) if isinstance(nested, dict) and not _LEVELS.isdisjoint(nested) else ""
    value = next((record[key] for key in LEVELS if key in record), None)
    if isinstance(value, dict):
        value = value.get("name")
    name = str(value).lower() if isinstance(value, str) or type(value) is int else ""
    if name == "40":  # an error of Python's, a warning of pino's and bunyan's, which name the host
        name = "warn" if "hostname" in record else "error"
    return name


def rank_of(record: Mapping[str, Any]) -> str:
    for key in _RANKS if not _OF_RANKS.isdisjoint(record) else ():
        if type(rank := record.get(key)) is int and 0 <= rank < _RANK_LIMIT:
            return f"[rank{rank}]: "
    return ""


def beside(record: Mapping[str, Any], level: str, text: str) -> tuple[list[str], list[str]]:
    """What the record says beside its message: what fits into the message's line, and the lines below it.

    Of an error's record each text counts; of others only what is called an error, and numbers of steps.
    """
    same: list[str] = []
    below: list[str] = []
    if record.keys() <= _PLAIN:
        return same, below
    error = level in _ERRORS
    for key, value in islice(_fields(_grouped(record), DEEPEST), MOST):
        if not isinstance(value, str):
            if type(value) in {int, float} and _PROGRESS.fullmatch(key):
                same.append(f"{key}={value}")
        elif _PROGRESS.fullmatch(key) and _NO_NUMBER.fullmatch(value):
            same.append(f"{key}={value}")
        elif error or key in _RAISED:
            said = lines_of(value).strip("\n")
            if said in text or _NOTHING.fullmatch(said):
                continue
            if "\n" in said:
                below.extend(said.split("\n"))
            elif " " in said.strip() or key in _RAISED:
                same.append(f"{key}: {said}")
    return same, below


def _fields(record: Mapping[str, Any], deepest: int) -> Iterator[tuple[str, Any]]:
    """Texts and numbers of the record and of what is nested in it."""
    for key, value in record.items():
        if key in TIMES or key in _LEVELS or key in _AROUND:
            continue
        if isinstance(value, dict) and deepest:
            error = not value.keys().isdisjoint(_STACKS) or key in _RAISED
            if error:
                yield from _error(key, value)
            rest = {name: more for name, more in value.items() if not error or name not in _OF_AN_ERROR}
            yield from _fields(rest, deepest - 1)
        elif isinstance(value, list):
            yield from _listed(key, value, deepest)
        else:
            yield key, value


def _listed(key: str, values: list[Any], deepest: int) -> Iterator[tuple[str, Any]]:
    texts = [value.removesuffix("\n") for value in values if isinstance(value, str)]
    if texts:
        yield key, "\n".join(texts) if key in _RAISED else " ".join(texts)
    records = [value for value in values[:MOST] if isinstance(value, dict)]
    if any("frames" in record or "exc_type" in record for record in records):
        yield key, "\n".join(_traceback(records))
    elif records and deepest:
        for record in records:
            yield from _fields({key: record}, deepest - 1)


def _error(key: str, error: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """An error in parts: its stack and, where that does not end in it, its class and message."""
    kind, said = (next((error[k] for k in keys if isinstance(error.get(k), str)), "") for keys in (_CLASSES, _SAID))
    summary = f"{kind}: {said}" if kind and said else said or kind
    stack = next((error[name] for name in _STACKS if isinstance(error.get(name), (str, list))), "")
    if isinstance(stack, list):
        stack = "\n".join(line.removesuffix("\n") for line in stack if isinstance(line, str))
    lines = stack.removesuffix("\n").split("\n") if stack else []
    if lines and lines[-1][:1].isspace() and summary:
        lines.append(summary)
    elif summary and (not lines or (said and said not in stack)):
        yield key, summary
    if lines:
        yield key, "\n".join(lines)


def _traceback(raised: list[dict[str, Any]]) -> Iterator[str]:
    """structlog's ``dict_tracebacks``: exceptions of one chain, the last one first, each with its frames."""
    for one in reversed(raised[:_CHAIN]):
        yield "Traceback (most recent call last):"
        frames = one.get("frames")
        for frame in frames[:_FRAMES] if isinstance(frames, list) else ():
            if isinstance(frame, dict):
                yield f'  File "{frame.get("filename")}", line {frame.get("lineno")}, in {frame.get("name")}'
                yield f"    {frame.get('line') or ''}".rstrip()
        yield f"{one.get('exc_type')}: {one.get('exc_value')}"


def _grouped(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the parts of an error that are written with dots (``error.stack``) as one field."""
    if not any("." in key for key in record):
        return record
    whole: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for key, value in record.items():
        head, _, part = key.partition(".")
        if part and head in _RAISED:
            parts.setdefault(head, {})[part] = value
        else:
            whole[key] = value
    return whole | {head: part for head, part in parts.items() if head not in whole}
