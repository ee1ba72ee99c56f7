"""What nodes, hooks, the command line and the daemon say to each other over HTTP. Standard library only.

Every request is a POST with a JSON body and the header ``X-Sentinel-Munge``: a MUNGE credential whose payload is
``digest_of(path, body)``. The daemon takes the caller's uid from it: agents and hooks must be root or a uid of
``[daemon] trusted_uids``; others may read and, if they are operators, change state. The answer carries the same header
over ``digest_of(credential of the request, body)``; a caller that will act on it checks that its uid is root or trusted.

Paths and bodies (times are ISO 8601 in UTC, evidence as in ``sentinel.wire``):

=====================  ====================================================================================================
HEARTBEAT              ``{node, boot_id, at, version, spool: {pending, dropped}, jobs: [{job, attempt}], verdict: {...}}``
                       → ``{at, watch, released_at}``. Its absence is never a fault by itself.
EVIDENCE               ``{node, epoch, first, items: [evidence, ...]}``: items of one spool (``epoch``) from number
                       ``first`` on, in order → ``{acknowledged}``: the number up to which (inclusive) the daemon has
                       them stored. At least once: the daemon drops what it already has by evidence id.
ORDERS                 ``{node}``: answered when there is an order or after ``LONG_POLL_S``
                       → ``{orders: [{id, kind, arguments, deadline_s}]}``. An order is given again until its result came.
ORDER_RESULT           ``{node, id, ok: true|false, result, error}`` → ``{}``
EVENT                  from hooks on the controller: ``{event: "job_ended"|"node_down"|..., environment: {SLURM_...: ...}}``
VIEW                   for the command line: ``{view: "status"|"nodes"|..., arguments}`` → what that view shows
CHANGE                 for operators: ``{change: "drain"|"release"|"pause"|"resume"|..., arguments}``
=====================  ====================================================================================================
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

HEADER = "X-Sentinel-Munge"
LONG_POLL_S = 25.0

HEARTBEAT = "/v1/heartbeat"
EVIDENCE = "/v1/evidence"
ORDERS = "/v1/orders"
ORDER_RESULT = "/v1/order-result"
EVENT = "/v1/event"
VIEW = "/v1/view"
CHANGE = "/v1/change"


class OrderKind(StrEnum):
    """What an agent does on the daemon's word, each in a killable child, as the job's user where files of users are read."""

    # {job, uid, gid, roots: [{tier: "local"|"global", path}], level, before_step} → {listings: [listing, ...]}
    # (sentinel.checkpoints.listing as JSON, one per root; validated at `level`)
    INVENTORY = "inventory"
    # {job, uid, gid, root, paths: [...], steps: [...], reason} → {moved: [[from, to], ...]}
    QUARANTINE = "quarantine"
    # {job} → {tasks: [{rank, pid, state, cpu_s, command, read_bytes, written_bytes}], at_s, has_gpus, gpus: [{index,
    # utilisation, power_w, usual_w, traffic, still_s, stood}]|null}: processes of the job on this node, from /proc, and
    # what its GPUs do
    TASK_STATES = "task_states"
    # {job, uid, gid, ras: true|false, gap_s} → {ras: [{after_s, text}], dumps: [summary, ...], stacks: [{rank, form, text}],
    # ranks: [{pid, rank}], host, notes}: what a running job tells of itself, without stopping it
    ASK_JOB = "ask_job"
    # {job, attempt} → {done, dumps: [summary, ...], folder}: what the node kept of an attempt that ended badly
    # (sentinel.evidence.flight_recorder_wire); ``done`` is false while it is not over there
    COLLECTED = "collected"
    # {level, gpus: [uuid...]|null} → {result: "pass"|"fail"|"inconclusive", findings: [...]}
    DIAGNOSE = "diagnose"


def digest_of(path_or_credential: str, body: bytes) -> bytes:
    """What a credential signs: BLAKE2b of where it goes (or what it answers) and the body."""
    digest = hashlib.blake2b(digest_size=32)
    digest.update(path_or_credential.encode())
    digest.update(b"\n")
    digest.update(body)
    return digest.hexdigest().encode()
