"""What nodes, hooks, the command line and the daemon say to each other over HTTP. Standard library only.

Every request is a POST with a JSON body and the header ``X-Sentinel-Munge``: a MUNGE credential whose payload is
``digest_of(path, body)``. The daemon takes the caller's uid from it: agents and hooks must be root or a uid of
``[daemon] trusted_uids``; others may read and, if they are operators, change state. The answer carries the same header
over ``digest_of(credential of the request, body)``; a caller that will act on it checks that its uid is root or trusted.
A refusal of a request with a good credential is signed like this, too: an agent gives up only what such a refusal names.

An agent asks for a session first (``SESSION``). From then on the header of its requests is ``session_mark`` in place of a
credential, and that of answers ``answer_mark``: MUNGE is asked once in an hour, not four times for each request. A mark is
good once, within a minute, from one address, and only for what nodes send often. A session that the daemon does not know (it
was started again, the hour is over) is answered with ``NO_SESSION``, unsigned: the agent asks for another one. A side that
has no sessions is talked to by credentials.

A daemon that stands by answers ``ELSEWHERE`` to everything but ``/healthz`` and ``/metrics``, unsigned: who asks goes on to
the next of the addresses that it was given, and to no other.

Bodies may be encrypted (``[daemon] wire = "munge"``): then Content-Type is ``ENCRYPTED`` and the body is lines, each a
MUNGE credential over one of ``parts_of(body)`` that only the daemon's uid can decode; the answer's body is the same for the
caller's uid. Digests are over the body as it is sent.

Paths and bodies (times are ISO 8601 in UTC, evidence as in ``sentinel.wire``):

=====================  ====================================================================================================
HEARTBEAT              ``{node, boot_id, at, sent_s, version, spool: {pending, dropped, given_up},
                       jobs: [{job, attempt, gpus, found_by}], logs: [{job, attempt, looked_ago_s}], verdict: {...}}``
                       → ``{at, watch, released_at, beat_s}``. Its absence is never a fault by itself. ``found_by``: who told
                       the agent of a job that no prolog reported.
                       ``sent_s``: the agent's monotonic clock. ``logs``: of each log that it follows, for how long ago it
                       vouches that nothing is in it but what the daemon acknowledged (``sentinel.detect.observed_silence``);
                       without it no silence of that job is judged. ``beat_s``: the next one is wanted so soon.
EVIDENCE               ``{node, epoch, first, items: [evidence, ...]}``: items of one spool (``epoch``) from number
                       ``first`` on, in order → ``{acknowledged}``: the number up to which (inclusive) the daemon has
                       them stored. At least once: the daemon drops what it already has by evidence id.
ORDERS                 ``{node}``: answered when there is an order or after ``LONG_POLL_S``
                       → ``{orders: [{id, kind, arguments, deadline_s}]}``. An order is given again until its result came.
ORDER_RESULT           ``{node, id, ok: true|false, result, error}`` → ``{}``
EVENT                  from hooks on the controller: ``{event: "job_ended"|"node_down"|..., environment: {SLURM_...: ...}}``
SESSION                ``{}`` → ``{session}``, its name. The answer's credential is encrypted for the caller's uid; its
                       payload is the digest, a space, and the session's key as hexadecimal digits.
VIEW                   for the command line: ``{view: "status"|"nodes"|..., arguments}`` → what that view shows
CHANGE                 for operators: ``{change: "drain"|"release"|"pause"|"resume"|..., arguments}``
=====================  ====================================================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum

PORT = 9478  # where the daemon listens, unless the settings say otherwise
HEADER = "X-Sentinel-Munge"
LONG_POLL_S = 25.0
ELSEWHERE = 421  # HTTP status of a daemon that is not the active one: nothing was done, another address may answer
NO_SESSION = 401  # HTTP status: ask for a new session
ACTIVE, STANDBY, BLOCKED = "ok", "standby", "store cannot be written"  # what /healthz says
TELLS = "Sentinel-Tells"  # header of that answer: this daemon tells people that the store cannot be written
ENCRYPTED = "application/x-sentinel-munge"
PART_BYTES = 256 << 10  # munged takes up to 1 MiB with all that is around it
MOST_HEAD = 48  # bytes of what follows
_PART = b"sentinel body %d/%d\n"  # before each part: none can stand for another one, or for a digest

HEARTBEAT = "/v1/heartbeat"
EVIDENCE = "/v1/evidence"
ORDERS = "/v1/orders"
ORDER_RESULT = "/v1/order-result"
EVENT = "/v1/event"
SESSION = "/v1/session"
VIEW = "/v1/view"
CHANGE = "/v1/change"


class OrderKind(StrEnum):
    """What an agent does on the daemon's order, each in a killable child; arguments: ``sentinel.model.orders``."""

    INVENTORY = "inventory"
    QUARANTINE = "quarantine"
    TASK_STATES = "task_states"
    ASK_JOB = "ask_job"
    COLLECTED = "collected"
    JOB_LOG = "job_log"
    MESSAGES_FILE = "messages_file"
    DIAGNOSE = "diagnose"


def digest_of(path_or_credential: str, body: bytes) -> bytes:
    """What a credential signs: BLAKE2b of where it goes (or what it answers) and the body."""
    digest = hashlib.blake2b(digest_size=32)
    digest.update(path_or_credential.encode())
    digest.update(b"\n")
    digest.update(body)
    return digest.hexdigest().encode()


_SESSION_MARK = "session"  # first word of a mark; no credential of MUNGE begins so


def session_mark(key: bytes, session: str, stamp_us: int, digest: str) -> str:
    """What a request of a session carries: ``digest``, signed with the session's key.

    ``stamp_us``: microseconds since the session began, by the sender's monotonic clock; each is larger than the one before.
    """
    signature = _keyed(key, "request", session, str(stamp_us), digest)
    return f"{_SESSION_MARK} {session} {stamp_us} {digest} {signature}"


def is_session_mark(mark: str) -> bool:
    return mark.startswith(f"{_SESSION_MARK} ")


def answer_mark(key: bytes, request_mark: str, status: int, body: bytes) -> str:
    """What the answer to a request of a session carries."""
    return _keyed(key, "answer", str(status), digest_of(request_mark, body).decode())


def with_key(digest: bytes, key: bytes) -> bytes:
    """What the credential holds that answers ``SESSION``."""
    return digest + b" " + key.hex().encode()


def _keyed(key: bytes, *said: str) -> str:
    return hashlib.blake2b("\n".join(said).encode(), key=key, digest_size=32).hexdigest()


def parts_of(body: bytes) -> list[bytes]:
    """What the credentials of an encrypted body hold, in order."""
    parts = [body[start : start + PART_BYTES] for start in range(0, max(1, len(body)), PART_BYTES)]
    return [_PART % (number, len(parts)) + part for number, part in enumerate(parts, 1)]


def joined(parts: Sequence[bytes]) -> bytes:
    """The body of these parts.

    Raises:
        ValueError: not all parts of one body, in order.
    """
    heads = [_PART % (number, len(parts)) for number in range(1, len(parts) + 1)]
    if not parts or not all(part.startswith(head) for part, head in zip(parts, heads, strict=True)):
        raise ValueError("not the parts of one body")
    return b"".join(part[len(head) :] for part, head in zip(parts, heads, strict=True))


def encrypted_bytes(length: int) -> int:
    """The most that a body of so many bytes takes when it is encrypted: 4 for 3, and what is around each part."""
    return length * 4 // 3 + (length // PART_BYTES + 1) * 512
