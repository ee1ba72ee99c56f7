"""Lists the checkpoint folders that a node should watch for the jobs it runs."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Any

from sentinel.detect.cluster_view import ClusterView
from sentinel.model.intent import Intent, intent_of
from sentinel.model.orders import OrderRefused, Root, Watch


@lru_cache(maxsize=4096)
def _intent(comment: str) -> Intent:
    return intent_of(comment)  # asked at each heartbeat of each node


def unread(live: ClusterView, watched: list[dict[str, Any]]) -> list[int]:
    """The watched jobs that asked that their saves be not read while they run."""
    views = [live.fleet.jobs.get(entry["job"]) for entry in watched] if live.fleet is not None else []
    return [view.id for view in views if view is not None and not _intent(view.comment).manifests]


def watch_list(live: ClusterView, node: str, jobs: object) -> list[dict[str, Any]]:
    """Watch orders for the answer to a heartbeat: node-local folders on each node, shared folders on the batch host."""
    found: list[dict[str, Any]] = []
    for item in jobs if isinstance(jobs, list) and live.fleet is not None else []:
        job = item.get("job") if isinstance(item, dict) else None
        view = live.fleet.jobs.get(job) if live.fleet is not None and isinstance(job, int) else None
        if view is None or view.restarts != item.get("attempt") or view.state != "running" or node not in view.nodes:
            continue
        intent = _intent(view.comment)
        first = node == (view.batch_host or view.nodes[0])
        roots = [Root("local", root.replace("%N", node)) for root in intent.local_roots]
        if first:
            roots += [Root("global", root) for root in intent.global_roots]
        if roots:
            since_s = view.started_at.timestamp() if view.started_at is not None else None
            with suppress(OrderRefused):  # a comment beyond the limits is ignored and must not fail the heartbeat
                found.append(Watch(view.id, view.restarts, first, since_s, tuple(roots)).arguments())
    return found
