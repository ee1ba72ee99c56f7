"""What the people of a job are told to do: whoever cannot reach a machine reads nothing that only operators can follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.page import serving_page
from in_memory.views import ADA, OPERATOR, Shown, name_people
from in_memory.world import World
from made_records import AT, incident, plan, step, verdict

from sentinel.model.records import Cause, IncidentState, Outcome, Result, Scope, StepKind

Worlds = Callable[..., World]
RMA = "Run dcgmi diag -r 3 and replace the GPU."


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    name_people(monkeypatch)


def failed(world: World, scope: Scope, state: IncidentState = IncidentState.HELD) -> Shown:
    shown = Shown(world)
    cause = Cause.USER_CODE if scope is Scope.APPLICATION else Cause.GPU_MEMORY_ECC
    world.store.save_verdict("aaa1", verdict(cause, scope=scope, advice=RMA), AT)
    made, hold = plan(step(StepKind.HOLD, job=201, attempt=0), incident="aaa1"), step(StepKind.HOLD, job=201, attempt=0)
    world.store.save_plan(made)
    world.store.intend(made, hold, AT)
    world.store.record(made, Outcome(hold, Result.DONE, AT))
    closed = AT if state is IncidentState.CLOSED else None
    world.store.save_incident(
        dataclasses.replace(incident(id="aaa1", job=201), state=state, closed_at=closed), user="ada"
    )
    return shown


@pytest.mark.parametrize("asked", [{"what": "201"}, {"what": "aaa1"}, {"incident": "aaa1"}])
@pytest.mark.parametrize(
    ("state", "to_do"),
    [
        (IncidentState.HELD, "The operators are told. To let it start: scontrol release 201."),
        (IncidentState.CLOSED, "Nothing to do."),
    ],
)
async def test_a_researcher_reads_what_they_can_do_and_an_operator_the_advice(
    world: Worlds, asked: dict[str, str], state: IncidentState, to_do: str
) -> None:
    shown = failed(world(), Scope.GPU, state)
    theirs, ours = [await shown("why", uid, **asked) for uid in (ADA, OPERATOR)]
    assert (theirs["verdict"]["advice"], theirs["to_do"]) == ("", to_do)
    assert (ours["verdict"]["advice"], ours["to_do"]) == (RMA, None)


async def test_of_a_job_that_nobody_puts_back_its_people_do_not_read_that_nothing_is_to_be_done(world: Worlds) -> None:
    """As of one that Slurm preempted on a broken node: its incident is over at once, and its message says the same."""
    shown = failed(world(), Scope.GPU, IncidentState.CLOSED)
    shown.world.store.save_plan(plan(incident="aaa1"))
    assert (await shown("why", ADA, what="201"))["to_do"] == "The operators are told."


async def test_the_page_says_so_too(world: Worlds) -> None:
    made = world()
    failed(made, Scope.GPU)
    async with serving_page(made) as page:
        theirs, ours = [(await page.get("/incidents/aaa1", user=user))[1] for user in ("ada", "root")]
    assert "<dt>Next</dt>" in theirs and "The operators are told." in theirs and "dcgmi" not in theirs
    assert RMA in ours and "<dt>Next</dt>" not in ours


async def test_where_all_see_everything_the_page_tells_whoever_is_no_operator_the_same(world: Worlds) -> None:
    made = world()
    failed(made, Scope.GPU)
    async with serving_page(made, see="all") as page:
        theirs, ours = [(await page.get("/incidents/aaa1", user=user))[1] for user in ("bob", "root")]
    assert "<dt>Next</dt>" in theirs and "dcgmi" not in theirs
    assert RMA in ours and "<dt>Next</dt>" not in ours


async def test_what_is_wrong_with_a_program_is_its_owner_s_to_mend(world: Worlds) -> None:
    seen = await failed(world(), Scope.APPLICATION)("why", ADA, what="201")
    assert (seen["verdict"]["advice"], seen["to_do"]) == (RMA, "")


async def test_of_what_nothing_is_known_nothing_is_to_be_done(world: Worlds) -> None:
    shown = Shown(world())
    await shown.daemon.fleets.take()
    assert (await shown("why", ADA, what="n4"))["to_do"] == "" and (await shown("why", what="n4"))["to_do"] is None


async def test_a_step_of_a_later_release_is_left_out(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = failed(world(), Scope.GPU)
    rows = shown.world.store.steps_of("aaa1")
    later = [{**rows[0], "kind": "teleport"}, {**rows[0], "result": "postponed"}]
    monkeypatch.setattr(shown.world.store, "steps_of", lambda incident: [*later, *rows])
    assert "scontrol release 201" in (await shown("why", ADA, what="201"))["to_do"]
