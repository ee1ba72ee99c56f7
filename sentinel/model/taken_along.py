"""The incident of another job on a node that an incident takes out: its id says so, also long after."""

from __future__ import annotations

from sentinel.model.records import stable_id


def taken_along_id(incident: str, job: int, attempt: int) -> str:
    """The id of the incident of this attempt, which has its grounds from ``incident``."""
    return stable_id("taken along", incident, job, attempt)[:10]
