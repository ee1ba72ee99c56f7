"""A page of jobs is read by itself, and shows what it would as a part of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.views import Shown
from in_memory.world import World
from made_records import ended, incident, job, later, verdict

from sentinel.daemon.api.jobs import Page
from sentinel.model.records import Cause, Restart
from sentinel.wire import to_json

Worlds = Callable[..., World]
ROWS = 4
HOUR_S = 3600.0


def furnished(there: World) -> Shown:
    """Jobs with one attempt and with several, of which some began at one time, and some had an id one after the other."""

    def save(number: int, began_h: float, *, attempt: int = 0, user: str = "ada", ended_h: float | None = None) -> None:
        view = job(number, user=user, restarts=attempt, started_s=began_h * HOUR_S, state="running")
        if ended_h is not None:
            view = dataclasses.replace(view, state="failed", ended_at=later(ended_h * HOUR_S))
        there.store.save_attempt(view, first_step=1, last_step=100 + attempt, step_time_s=1.0)

    for number in range(600, 610):
        save(number, -20.0 - number % 3, ended_h=-10.0)
    save(610, -15.0, ended_h=-14.0)
    save(610, -13.0, attempt=1)
    save(611, -90.0, attempt=3, ended_h=-50.0)  # its first attempts were not seen
    save(611, -12.0)  # another job of that id, of the same user
    save(612, -300.0, user="bob", ended_h=-200.0)
    save(612, -11.0, user="ada", ended_h=-10.5)
    there.store.append([ended(610)])
    there.store.save_incident(incident(ended(610), id="aaa1", job=610), user="ada")
    there.store.save_verdict("aaa1", verdict(Cause.USER_CODE, drain=(), restart=Restart.NONE), later(-14.0 * HOUR_S))
    return Shown(there)


def keys_of(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["job"], row["nth_of_id"]) for row in rows]


@pytest.mark.parametrize("asked", [{}, {"user": "ada"}, {"cause": "user_code"}, {"job": 611}, {"job": 1}])
@pytest.mark.parametrize("user", [None, "bob"])
async def test_the_pages_together_are_all_jobs_each_once(
    world: Worlds, asked: dict[str, Any], user: str | None
) -> None:
    shown = furnished(world())
    whole = to_json(await shown.views.show_to("jobs", asked, user))
    expected = list(dict.fromkeys(reversed(keys_of(whole["attempts"]))))
    found: list[tuple[int, int]] = []
    for start in range(0, max(1, len(expected)), ROWS):
        page = to_json(await shown.views.show_to("jobs", {**asked, "page": Page(start, ROWS)}, user))
        assert (page["start"], page["total"]) == (start, len(expected))
        of_page = [tuple(key) for key in page["jobs"]]
        assert len(of_page) <= ROWS
        found += of_page
        rows = [row for row in page["attempts"] if (row["job"], row["nth_of_id"]) in of_page]
        assert rows == [row for row in whole["attempts"] if (row["job"], row["nth_of_id"]) in of_page]
    assert sorted(found) == sorted(expected)
    began = {key: row["started_at"] for key, row in zip(keys_of(whole["attempts"]), whole["attempts"], strict=True)}
    assert [began[key] for key in found] == [began[key] for key in expected], "the one that began last first"


async def test_only_the_attempts_of_its_jobs_are_read(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    there = world()
    shown, read = furnished(there), list[int]()
    attempts = there.store.attempts

    def counted(**wanted: Any) -> list[dict[str, Any]]:
        rows = attempts(**wanted)
        if wanted.get("jobs") is not None:
            read.extend(row["job"] for row in rows)
        return rows

    monkeypatch.setattr(there.store, "attempts", counted)
    page = await shown.views.show_to("jobs", {"page": Page(8, ROWS)}, None)
    assert page["total"] > 12 and set(read) <= {611, 612, *(number for number, _ in page["jobs"])}


@pytest.mark.parametrize("given", [{"start": 0, "rows": 0}, [0, 0], "x", -1])
async def test_a_page_that_others_ask_for_is_all(world: Worlds, given: object) -> None:
    shown = furnished(world())
    whole = await shown.views.show_to("jobs", {}, None)
    assert await shown.views.show_to("jobs", {"page": given}, None) == whole and "total" not in whole


async def test_behind_the_last_page_is_the_last(world: Worlds) -> None:
    shown = furnished(world())
    page = await shown.views.show_to("jobs", {"page": Page(10_000, ROWS)}, None)
    assert page["start"] == (page["total"] - 1) // ROWS * ROWS and page["attempts"]
