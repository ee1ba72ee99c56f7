"""Lists the checkpoint folders that a node should watch for the jobs it runs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sentinel.detect.cluster_view import ClusterView
from sentinel.model.intent import Intent, intent_of
from sentinel.model.orders import OrderRefused, Root, Watch
from sentinel.model.records import JobView


@lru_cache(maxsize=4096)
def _intent(comment: str) -> Intent:
    return intent_of(comment)  # cached: called for each heartbeat of each node


def unread(live: ClusterView, watched: list[dict[str, Any]]) -> list[int]:
    """The watched jobs whose users asked that their saves not be read while the job runs."""
    views = [live.fleet.jobs.get(entry["job"]) for entry in watched] if live.fleet is not None else []
    return [view.id for view in views if view is not None and not _intent(view.comment).manifests]


def runs_script(view: JobView, node: str) -> bool:
    """Whether this is the node, of those that the job has, on which its batch script runs."""
    return node == (view.batch_host or view.nodes[0])


def watch_list(live: ClusterView, node: str, jobs: object) -> list[dict[str, Any]]:
    """Watch orders for the answer to a heartbeat: node-local folders on each node, shared folders on the batch host."""
    found: list[dict[str, Any]] = []
    for item in jobs if isinstance(jobs, list) and live.fleet is not None else []:
        job = item.get("job") if isinstance(item, dict) else None
        view = live.fleet.jobs.get(job) if live.fleet is not None and isinstance(job, int) else None
        if view is None or view.restarts != item.get("attempt") or view.state != "running" or node not in view.nodes:
            continue
        first = runs_script(view, node)
        since_s = view.started_at.timestamp() if view.started_at is not None else None
        watched = _watch(view.comment, view.id, view.restarts, first, since_s, node)
        if watched is not None:
            found.append(watched)
    return found


@lru_cache(maxsize=16384)
def _watch(
    comment: str, job: int, attempt: int, first: bool, since_s: float | None, node: str
) -> dict[str, Any] | None:
    """What one node watches for one attempt of a job; None: nothing. Cached and shared: callers must not change it."""
    intent = intent_of(comment, job)
    roots = [Root("local", root.replace("%N", node)) for root in intent.local_roots]
    if first:
        roots += [Root("global", root) for root in intent.global_roots]
    if not roots:
        return None
    try:
        return Watch(job, attempt, first, since_s, tuple(roots)).arguments()
    except OrderRefused:  # a comment beyond the limits is ignored and must not fail the heartbeat
        return None
