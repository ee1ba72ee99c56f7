"""A job that is held for a person: the page says so as the command line does."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
from in_memory.page import serving_page
from in_memory.world import World
from made_records import AT, ended, incident, job, verdict

from sentinel.model.records import Cause, IncidentState, Restart

Worlds = Callable[..., World]


@pytest.mark.parametrize(("state", "shown"), [(IncidentState.HELD, "failed, held"), (IncidentState.CLOSED, "failed")])
@pytest.mark.parametrize("path", ["/jobs", "/jobs/201"])
async def test_a_held_job_is_called_held(world: Worlds, path: str, state: IncidentState, shown: str) -> None:
    there = world()
    view = dataclasses.replace(job(201, state="failed"), ended_at=AT)
    there.store.save_attempt(view, first_step=1, last_step=250, step_time_s=2.0)
    there.store.append([ended(201)])
    there.store.save_incident(incident(ended(201), id="aaa1", job=201, state=state), user="ada")
    there.store.save_verdict("aaa1", verdict(Cause.USER_CODE, drain=(), restart=Restart.NONE), AT)
    async with serving_page(there) as page:
        await page.daemon.fleets.take()
        status, text, _ = await page.get(path)
    assert status == 200, text
    (cell, *_) = re.findall(r'<(?:td|dd)>(<span class="state bad">failed</span>.*?)</(?:td|dd)>', text)
    assert re.sub(r"<[^>]*>", "", cell) == shown
