"""Parses heartbeats of agents into events. Malformed fields are left out: a heartbeat must not fail for one of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sentinel.correlate.gpu_owners import held_gpus
from sentinel.detect.observed_silence import logs_of, seconds_of
from sentinel.engine.watch.events import HeartbeatReceived
from sentinel.text import plain
from sentinel.wire import moment, time_from


def heartbeat_of(node: str, body: Mapping[str, Any], now: datetime, now_s: float) -> HeartbeatReceived:
    """The event for a heartbeat of ``node``. ``now_s``: monotonic seconds.

    Raises:
        ProtocolError: the heartbeat's time is malformed.
    """
    verdict, spool, jobs = body.get("verdict"), body.get("spool"), body.get("jobs")
    kernel = body.get("kernel_readable")
    return HeartbeatReceived(
        at=now,
        node=node,
        now_s=now_s,
        version=plain(str(body.get("version", "")))[:40],
        verdict=verdict if isinstance(verdict, dict) else {},
        spool=spool if isinstance(spool, dict) else {},
        clock_offset_s=(moment(time_from(body["at"])) - now).total_seconds() if body.get("at") is not None else None,
        gpus=held_gpus(jobs),
        jobs=_attempts(jobs),
        logs=tuple(logs_of(body.get("logs"))),
        boot=str(body.get("boot_id", ""))[:64],
        sent_s=seconds_of(body.get("sent_s")),
        kernel_readable=kernel if isinstance(kernel, bool) else None,
        lost=_lost(spool),
    )


def _lost(spool: object) -> int | None:
    """Evidence for which the spool had no space, or that the daemon refused."""
    if not isinstance(spool, dict):
        return None
    counts = [spool.get(name) for name in ("dropped", "given_up")]
    return sum(count for count in counts if isinstance(count, int) and count > 0)


def reported_by_prolog(jobs: object) -> frozenset[tuple[int, int]] | None:
    """Job and attempt of each entry in a node's list of running jobs that its agent has not from Slurm. None: an agent of an
    older release does not say from whom it has them.
    """
    if not isinstance(jobs, list) or not all(isinstance(item, dict) and "found_by" in item for item in jobs):
        return None
    return frozenset(_attempts([item for item in jobs if not item["found_by"]]))


def _attempts(jobs: object) -> tuple[tuple[int, int], ...]:
    """Job and attempt of each entry in a node's list of running jobs."""
    pairs = (
        (item.get("job"), item.get("attempt"))
        for item in (jobs if isinstance(jobs, list) else ())
        if isinstance(item, dict)
    )
    return tuple((job, attempt) for job, attempt in pairs if isinstance(job, int) and isinstance(attempt, int))
