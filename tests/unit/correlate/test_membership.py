"""Which evidence an incident that is over still takes."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from made_records import AT, ended, incident, plan

from sentinel.correlate.membership import is_over
from sentinel.model.records import IncidentState


@pytest.mark.parametrize(("after_s", "over"), [(-1.0, True), (0.0, False), (1.0, False)])
def test_an_incident_that_left_its_job_running_is_not_over_when_the_job_fails(after_s: float, over: bool) -> None:
    """Also at the very moment of the plan: one snapshot answers a judgement, and then reports the job's end."""
    made = dataclasses.replace(plan(), at=AT)
    end = dataclasses.replace(ended(), seen_at=AT + timedelta(seconds=after_s))
    closed = dataclasses.replace(incident(end), state=IncidentState.CLOSED)
    assert is_over(closed, made) is over
