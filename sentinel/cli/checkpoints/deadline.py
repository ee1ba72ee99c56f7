"""Runs work that may hang on a frozen file system in a child; after the deadline the answer is *not known*."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from sentinel.checkpoints import inventory as stock
from sentinel.checkpoints.records import Level, Part, Tier, Validity
from sentinel.checkpoints.validate import Settings
from sentinel.checkpoints.validate import validate as check
from sentinel.cli.operator.arguments import ABOVE_ZERO
from sentinel.errors import Denied, ProtocolError, Refused, SentinelError, Timeout, Unavailable, UserError

GIVE_UP_AFTER = click.option(
    "--deadline",
    "deadline_s",
    type=ABOVE_ZERO,
    metavar="SECONDS",
    help="Give up after so long: a frozen file system must not hold you. Run again, it goes on where it stopped.",
)

_WAIT_S = 3600.0  # at once: select takes no time of any length


def within(deadline_s: float, work: Callable[[], Any]) -> tuple[bool, Any]:
    """(True, what ``work`` gave, as JSON carries it), or (False, None) when it did not end in time.

    The child is killed and not waited for: what stands in the kernel ends when its file system answers again.

    Raises:
        ProtocolError: it ended without an answer. What it said of that went to stderr.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(writing, work)
    os.close(writing)
    try:
        content = _read_all(reading, time.monotonic() + deadline_s)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # ended or not, it is ours until it is waited for
    if content is None:
        os.waitpid(child, os.WNOHANG)
        return False, None
    os.waitpid(child, 0)
    if not content:
        raise ProtocolError("a check ended without an answer", fix="Its own words are above.")
    return True, json.loads(content)


def bounded(deadline_s: float | None, what: str, work: Callable[[], Any]) -> Any:
    """What ``work`` gave, as JSON carries it; its own error, raised here; `Timeout` when it did not end in time.

    For what moves, writes and copies: the child is killed, and each of these goes on where it stopped when it is called
    again (journal before the rename, name after the copy).
    """
    if deadline_s is None:
        return work()
    in_time, answer = within(deadline_s, partial(_outcome, work))
    if not in_time:
        raise Timeout(
            f"{what} did not end within {deadline_s:g} s",
            fix="The file system may hang. Nothing is lost: run it again, it goes on where it stopped.",
        )
    if "error" in answer:
        name, message, fix = answer["error"]
        kinds = {kind.__name__: kind for kind in (UserError, Denied, Refused, Timeout, Unavailable)}
        raise kinds.get(name, SentinelError)(message, fix=fix)
    return answer["value"]


def _outcome(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"value": work()}
    except SentinelError as error:
        kind = "UserError" if isinstance(error, UserError) else type(error).__name__
        return {"error": [kind, error.message, error.fix]}


def listings(
    roots: Sequence[tuple[Tier, str, Path]],
    level: Level,
    settings: Settings,
    limit: int,
    deadline_s: float | None = None,
) -> list[list[Part]]:
    found: list[list[Part]] = []
    for tier, host, root in roots:
        work = partial(stock.listing, root, tier, host, level=level, limit=limit, settings=settings)
        listed = parts_within(deadline_s, work)
        found.append([_unanswered(root, tier, host, level, deadline_s)] if listed is None else listed)
    return found


def parts_within(deadline_s: float | None, work: Callable[[], list[Part]]) -> list[Part] | None:
    """None when the deadline passed."""
    if deadline_s is None:
        return work()
    in_time, answer = within(deadline_s, lambda: [part.to_json() for part in work()])
    return [Part.from_json(part) for part in answer] if in_time else None


def _unanswered(root: Path, tier: Tier, host: str, level: Level, deadline_s: float | None) -> Part:
    reason = f"did not answer within {deadline_s:g} s"
    return Part(host, str(root), str(root), ".", None, tier, "unknown", 0, None, level, reason)


def check_within(path: Path, level: Level, settings: Settings, deadline_s: float | None) -> Validity:
    if deadline_s is None:
        return check(path, level, settings=settings)
    in_time, answer = within(deadline_s, lambda: check(path, level, settings=settings).to_json())
    if not in_time:
        return Validity(str(path), "unknown", None, None, "structural", f"did not answer within {deadline_s:g} s")
    return Validity(**answer)


def _answer(writing: int, work: Callable[[], Any]) -> None:
    """In the child: never returns."""
    status = 1
    try:
        content = json.dumps(work()).encode()
        with os.fdopen(writing, "wb") as stream:
            stream.write(content)
        status = 0
    except SentinelError as error:
        os.write(2, f"sentinel: {error}\n".encode(errors="replace"))
    except BaseException as error:
        os.write(2, f"sentinel: {error!r}\n".encode(errors="replace"))
        raise
    finally:
        os._exit(status)


def _read_all(reading: int, until_s: float) -> bytes | None:
    content = bytearray()
    while True:
        left_s = until_s - time.monotonic()
        ready, _, _ = select.select([reading], [], [], min(max(0.0, left_s), _WAIT_S))
        if not ready:
            if left_s > _WAIT_S:
                continue
            return None
        piece = os.read(reading, 1 << 20)
        if not piece:
            return bytes(content)
        content += piece
