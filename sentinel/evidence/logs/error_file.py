"""torchelastic's error files: what a worker that failed with an exception wrote about it. Pure.

``{"message": {"message": "RuntimeError: ...", "extraInfo": {"py_callstack": "...", "timestamp": "1795246339"}}}``, by
``@record`` only: no file says nothing. The launcher's copy has ``errorCode`` beside the message.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id, utc
from sentinel.text import json_of, visible, whole_number

MOST = 8  # evidence of one file: a traceback quotes the same failure several times
_TEXT = 64 << 10
_WORKER = re.compile(r"/attempt_(\d{1,6})/(\d{1,6})/[^/]*$")


def read_error_file(data: bytes, where: Where, rules: Signatures, began: datetime, now: datetime) -> list[Evidence]:
    """What rules recognise in it; if nothing, its message as it is. Damaged content is *unreadable*.

    Args:
        began: when the job began here. A file's own time counts if it lies between then and now.
    """
    try:
        found = json_of(data)
        message = found["message"]
        if isinstance(message, str):
            words, stack, at_s = message, "", None
        else:
            extra = message.get("extraInfo") or {}
            words, stack, at_s = message["message"], extra.get("py_callstack") or "", extra.get("timestamp")
        if not isinstance(words, str) or not isinstance(stack, str):
            raise TypeError("message and call stack are not text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"the error file {where.path} cannot be read: {error!r:.200}"
        return [_evidence(Kind.UNREADABLE, text, where, now, now)]
    at = _when(at_s, began, now)
    worker = _WORKER.search(where.path or "")
    reader = LogReader(rules, source=Source.ERROR_FILE, where=where)
    # The message is the call stack's last line: read once.
    text = stack if words.strip() and words.strip() in stack else f"{stack}\n{words}"
    read = [*reader.feed(text[-_TEXT:].encode(), at), *reader.finish(at)][-MOST:]
    items = [item for item in read if item.kind not in (Kind.STEP, "pause", "resumed")]
    items = items or [_evidence("error_file", visible(words[:2000], None), where, at, now)]
    local = {"local_rank": int(worker[2]), "torchelastic_attempt": int(worker[1])} if worker else {}
    return [
        replace(
            item,
            id=stable_id("error-file", where.job, where.attempt, where.node, where.path, item.kind, item.text),
            at=at,
            seen_at=now,
            data={**item.data, **local},
        )
        for item in items
    ]


def _when(at_s: object, began: datetime, now: datetime) -> datetime:
    """The file's own time, whole seconds without a zone, if it can be believed."""
    number = whole_number(at_s, digits=10) if isinstance(at_s, str) else at_s if type(at_s) is int else None
    at = utc(number) if number is not None and 0 <= number < 10**10 else None
    # It is cut to seconds; a job that failed at once would seem to fail before it began.
    return max(at, began) if at is not None and began - timedelta(seconds=2) <= at <= now else now


def _evidence(kind: str, text: str, where: Where, at: datetime, now: datetime) -> Evidence:
    identity = stable_id("error-file", where.job, where.attempt, where.node, where.path, kind)
    return Evidence(id=identity, at=at, seen_at=now, source=Source.ERROR_FILE, kind=kind, where=where, text=text)
