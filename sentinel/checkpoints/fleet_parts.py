"""Facts about a job's checkpoints that follow from the parts of all its nodes together. Pure."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from sentinel.checkpoints.records import CANNOT_BE_READ, NO_ANSWER, Candidate, Part
from sentinel.model.intent import Intent


def world_size_of(parts: Sequence[Part], nodes: int) -> int | None:
    """Number of ranks of the job, inferred from its checkpoints; None if not known.

    A missing node is assumed to hold as many ranks as the others. Too large a number only sends the job back to a shared
    checkpoint; too small a number would miss a lost rank.
    """
    per_node = max((len(part.owners) for part in parts if part.tier == "local"), default=0)
    written = max((part.world_size or 0 for part in parts if part.tier == "global"), default=0)
    return max(per_node * nodes, written) or None


def is_unread_root(part: Part) -> bool:
    """Whether it says that the folder itself could not be read. That older saves were left out is said in other words."""
    return part.key == "." and part.valid is None and part.reason.startswith((CANNOT_BE_READ, NO_ANSWER))


def may_not_exist(part: Part) -> bool:
    """Of an unread folder: it may be one that the job has yet to make."""
    return part.reason == f"{CANNOT_BE_READ} ({os.strerror(errno.ENOENT)})"


def root_of(part: Part, intent: Intent) -> str:
    """The root as written in the job's comment: parts of several hosts under one %N pattern belong together."""
    for root in (*intent.local_roots, *intent.global_roots):
        if root.replace("%N", part.host).rstrip("/") == part.root.rstrip("/"):
            return root
    return part.root


def rank_hosts(world: int | None, nodes: Sequence[str]) -> dict[int, str] | None:
    """The node of each rank, assuming block distribution with the same number of ranks on each node."""
    if not world or not nodes or world % len(nodes):
        return None
    each = world // len(nodes)
    return {rank: nodes[rank // each] for rank in range(world)}


def pattern_of(chosen: Candidate, intent: Intent) -> str:
    """The checkpoint's path for all nodes: with %N where it differs between nodes."""
    for host, path in chosen.paths.items():
        for root in intent.local_roots:
            base = root.replace("%N", host).rstrip("/")
            if "%N" in root and path.startswith(base + "/"):
                return root.rstrip("/") + path[len(base) :]
    return chosen.path
