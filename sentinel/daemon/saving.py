"""Which checkpoint folders a node is asked to watch, for the jobs it says it runs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sentinel.daemon.live import Live
from sentinel.intent import Intent, intent_of


@lru_cache(maxsize=4096)
def _intent(comment: str) -> Intent:
    return intent_of(comment)  # asked at each heartbeat of each node


def watch_list(live: Live, node: str, jobs: object) -> list[dict[str, Any]]:
    """For the answer to a heartbeat: a job's own folders on each of its nodes, the shared ones on its batch host."""
    found: list[dict[str, Any]] = []
    for item in jobs if isinstance(jobs, list) and live.fleet is not None else []:
        job = item.get("job") if isinstance(item, dict) else None
        view = live.fleet.jobs.get(job) if live.fleet is not None and isinstance(job, int) else None
        if view is None or view.restarts != item.get("attempt") or view.state != "running" or node not in view.nodes:
            continue
        intent = _intent(view.comment)
        first = node == (view.batch_host or view.nodes[0])
        roots = [{"tier": "local", "path": root.replace("%N", node)} for root in intent.local_roots]
        if first:
            roots += [{"tier": "global", "path": root} for root in intent.global_roots]
        if roots:
            since_s = view.started_at.timestamp() if view.started_at is not None else None
            found.append(
                {
                    "job": view.id,
                    "attempt": view.restarts,
                    "uid": view.uid,
                    "gid": None,  # its user's own, as the node knows it
                    "first": first,
                    "since_s": since_s,
                    "roots": roots,
                }
            )
    return found
