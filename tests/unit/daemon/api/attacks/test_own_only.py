"""Whoever sees incidents of his own jobs only is told so: that there is none is said of these alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.views import ADA, BOB, OPERATOR, Shown, name_people
from in_memory.world import World

from sentinel.errors import UserError

Worlds = Callable[..., World]
NOBODY = 59999


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    name_people(monkeypatch)


@pytest.mark.parametrize("view", ["status", "incidents", "history", "nodes", "jobs", "repairs"])
async def test_a_view_of_own_incidents_says_so(world: Worlds, view: str) -> None:
    shown = Shown(world())
    assert [(await shown(view, uid)).get("own_only") for uid in (OPERATOR, ADA, NOBODY)] == [None, True, True]


async def test_why_says_of_whom_it_speaks(world: Worlds) -> None:
    shown = Shown(world())
    await shown.daemon.fleets.take()
    assert (await shown("why", NOBODY, what="n1"))["own_only"] is True
    with pytest.raises(UserError, match="there is no incident of your jobs yet"):
        await shown("why", NOBODY, what="last")
    with pytest.raises(UserError, match="'bbb1' is not known as an incident") as caught:
        await shown("why", ADA, what="bbb1")
    assert "operators" in caught.value.fix
    with pytest.raises(UserError) as caught:
        await shown("why", OPERATOR, what="ddd1")
    assert "operators" not in caught.value.fix


async def test_repairs_tell_whose_incident_may_be_read(world: Worlds) -> None:
    shown = Shown(world())
    shown.world.slurm.nodes["n1"].drained, shown.world.slurm.nodes["n1"].reason = True, "sentinel:aaa1 ecc n1:3"
    readable = {uid: (await shown("repairs", uid))["repairs"][0]["readable"] for uid in (OPERATOR, ADA, BOB, NOBODY)}
    assert readable == {OPERATOR: True, ADA: True, BOB: False, NOBODY: False}
