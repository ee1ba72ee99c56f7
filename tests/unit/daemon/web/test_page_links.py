"""Links of the page lead to what they say: with the filters of the page they stand on, also to what Slurm has no more."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.page import ServedPage, serving_page
from in_memory.world import World
from made_records import AT, evidence, incident, job, later, verdict

from sentinel.model.records import Cause, Ground, IncidentState, Scope, Source

Worlds = Callable[..., World]
DAY_S = 86400.0


@pytest.fixture
async def served(world: Worlds) -> AsyncIterator[ServedPage]:
    made = world()
    made.slurm.purge(101)
    async with serving_page(made) as page:
        await page.daemon.fleets.take()
        yield page


def failed(
    page: ServedPage,
    name: str,
    days: float,
    *,
    node: str = "n1",
    number: int | None = 900,
    user: str = "eve",
    state: IncidentState = IncidentState.CLOSED,
    cause: Cause = Cause.GPU_MEMORY_ECC,
) -> None:
    at = -days * DAY_S
    made = incident(id=name, job=number, nodes=(node,), state=state, opened_s=at, updated_s=at)
    page.world.store.save_incident(made, user=user)
    page.world.store.save_verdict(name, verdict(cause, drain=(node,)), later(at))


def ids(text: str) -> list[str]:
    return re.findall(r'<th scope="row"><a href="/incidents/(\w+)"', text)


def link(text: str, words: str) -> str:
    """Where the link with these words leads."""
    return html.unescape(re.findall(rf'<a href="([^"]*)">{words}</a>', text)[0])


async def test_all_open_incidents_are_behind_the_link_that_counts_them(served: ServedPage) -> None:
    for number in range(22):
        failed(served, f"open{number:02}", 20 + number, state=IncidentState.HELD)
    for number in range(3):
        failed(served, f"over{number}", number / 10)
    _, text, _ = await served.get("/")
    assert len(ids(text)) == 20
    _, found, _ = await served.get(link(text, "All 22"))
    assert ids(found) == [f"open{number:02}" for number in range(22)] and 'value="yes" selected' in found
    assert "over0" in (await served.get("/incidents?open="))[1]


async def test_what_the_fleets_page_leaves_out_of_a_list_is_counted_there(
    served: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = await served.views.show_to("status", {}, None)
    about = {"incident": "aaa1", "since": AT, "at": AT, "explanation": "a person is needed", "steps": []}
    told = {
        "asked": [about | {"kind": "approval"}] * 13,
        "under_way": [about | {"step": "drain", "node": "n1", "job": None}] * 14,
        "would_have_done": [about] * 20,
        "would_have_done_more": 5,
        "suspects": [{"node": "n1", "reasons": ["fails often"]}] * 26,
        "comment_problems": list(range(100, 117)),
    }

    async def show_to(view: str, *arguments: Any) -> dict[str, Any]:
        return {**status, **told} if view == "status" else {"nodes": [], "seen_at": AT}

    monkeypatch.setattr(served.views, "show_to", show_to)
    _, text, _ = await served.get("/")
    for more in (
        '3 more: <a href="/incidents?open=yes">open incidents</a>',
        "4 more: <code>sentinel status</code> lists them",
        "15 more: <code>sentinel status --json</code> has the newest 20",
        "6 more: <code>sentinel nodes --suspects</code> lists them",
        "7 more: <code>sentinel status --json</code> has them",
    ):
        assert more in text, more


async def test_incidents_behind_the_newest_have_pages(served: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.daemon.web.pages.ROWS", 3)
    for number in range(7):
        failed(served, f"eve{number}", 40 + number)
        failed(served, f"bob{number}", 40 + number, user="bob")
    asked, found = "/incidents?user=eve&since=90d", []
    for _ in range(3):
        _, text, _ = await served.get(asked)
        found += ids(text)
        asked = link(text, "further") if ">further<" in text else ""
    assert found == [f"eve{number}" for number in range(7)] and not asked
    assert "7 to 7 of 7" in text and link(text, "newer") == "/incidents?user=eve&since=90d&from=3"


async def test_where_more_incidents_are_than_are_read_at_once_the_last_page_says_so(
    served: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("daemon.incident_search", "daemon.web.pages"):
        monkeypatch.setattr(f"sentinel.{module}.SEARCHED", 4)
    monkeypatch.setattr("sentinel.daemon.web.pages.ROWS", 2)
    for number in range(6):
        failed(served, f"eve{number}", 1 + number)
    _, text, _ = await served.get("/incidents")
    assert "1 to 2 of more than 2" in text and "the oldest are missing" not in text
    _, text, _ = await served.get("/incidents?from=99")
    assert ids(text) == ["eve2", "eve3"] and "the oldest are missing" in text and ">further<" not in text


async def test_a_node_with_many_incidents_leads_to_all_of_them(
    served: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.daemon.web.pages.ROWS", 2)
    for number in range(5):
        failed(served, f"old{number}", 40 + number)
    _, text, _ = await served.get("/nodes/n1")
    assert ids(text) == ["old0", "old1"]
    _, found, _ = await served.get(link(text, "all of them"))
    assert ids(found) == ["old0", "old1"] and "1 to 2 of more than 2" in found


async def test_links_of_a_chart_keep_the_filters_of_its_page(served: ServedPage) -> None:
    for number in range(3):
        failed(served, f"new{number}", number / 100)
        failed(served, f"bob{number}", number / 100, user="bob")
        failed(served, f"old{number}", 20 + number)
    _, text, _ = await served.get("/history?since=1d&user=eve&from=0")
    assert "3 incidents" in text
    for words in ("gpu_memory_ecc", "n1"):
        _, found, _ = await served.get(link(text, words))
        assert "3 incidents" in found, words
    assert link(text, "n1") == "/history?since=1d&user=eve&node=n1"


async def test_what_is_asked_for_is_no_markup_in_a_link(served: ServedPage) -> None:
    failed(served, "new0", 0.1, user='"><script>&x=1')
    _, text, _ = await served.get("/history?user=%22%3E%3Cscript%3E%26x%3D1")
    assert "1 incident " in text and "<script" not in text
    assert link(text, "n1") == "/history?user=%22%3E%3Cscript%3E%26x%3D1&node=n1"


async def test_links_of_the_map_s_groups_keep_its_filters(served: ServedPage) -> None:
    served.world.slurm.person_drains("n3", "fan")
    served.daemon.fleets._taken_s = float("-inf")
    _, text, _ = await served.get("/?state=drained")
    group = html.unescape(re.findall(r'<h3><a href="([^"]*)"', text)[0])
    for asked in (group, link(text, "as a list")):
        _, listed, _ = await served.get(asked)
        assert re.findall(r'<a href="/nodes/(n\d)"', listed) == ["n3"], asked


async def test_a_node_that_slurm_has_no_more_has_its_incidents(served: ServedPage) -> None:
    failed(served, "gone1", 2, node="gone9", user="ada")
    failed(served, "gone2", 3, node="gone9", user="bob")
    for path in ("/incidents", "/history", "/incidents/gone1"):
        assert 'href="/nodes/gone9"' in (await served.get(path))[1], path
    status, text, _ = await served.get("/nodes/gone9")
    assert status == 200 and "Slurm has no node gone9" in text and ids(text) == ["gone1", "gone2"]
    assert len(ids((await served.get(link(text, "all that point to it")))[1])) == 2
    status, text, _ = await served.get("/nodes/gone9", user="ada")
    assert status == 200 and ids(text) == ["gone1"]
    assert (await served.get("/nodes/gone9", user="mia"))[0] == 404
    for name in ("gone1", "last", "900"):  # an incident and a job are no nodes
        assert (await served.get(f"/nodes/{name}"))[0] == 404


async def test_a_job_of_which_no_attempt_was_seen_has_its_incidents(served: ServedPage) -> None:
    failed(served, "lost1", 2, number=1234, user="ada")
    status, text, _ = await served.get("/jobs/1234")
    assert status == 200 and "No attempt of it was seen, or none is kept" in text and ids(text) == ["lost1"]
    assert "State in Slurm" not in text
    assert (await served.get("/jobs/1234", user="ada"))[0] == 200
    assert (await served.get("/jobs/1234", user="bob"))[0] == 404


async def test_a_job_that_only_slurm_knows_is_shown_as_slurm_shows_it(served: ServedPage) -> None:
    evil = "<b>x</b>"
    waits = dataclasses.replace(job(2458, state="pending", nodes=(), started_s=None, name=evil), reason=evil)
    fleet = served.daemon.live.fleet
    assert fleet is not None
    served.daemon.live.fleet = dataclasses.replace(fleet, jobs={2458: waits})
    status, text, _ = await served.get("/jobs/2458")
    assert status == 200 and "pending" in text and "&lt;b&gt;x&lt;/b&gt;" in text and "<b>" not in text
    assert (await served.get("/jobs/2458", user="bob"))[0] == 404


@pytest.mark.parametrize("path", ["/incidents", "/history", "/jobs", "/nodes"])
async def test_behind_the_end_of_a_table_is_its_last_page(
    served: ServedPage, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("sentinel.daemon.web.pages.ROWS", 3)
    for number in range(4):
        failed(served, f"eve{number}", 1 + number)
        view = job(700 + number, started_s=-DAY_S * (number + 1), state="failed")
        ended_at = AT - timedelta(days=number + 0.5)
        served.world.store.save_attempt(
            dataclasses.replace(view, ended_at=ended_at), first_step=1, last_step=2, step_time_s=1.0
        )
    status, text, _ = await served.get(f"{path}?from=100000")
    assert status == 200 and "4 to 4 of 4" in text and text.count("<tbody>\n<tr>") == 1
    assert (await served.get(link(text, "newer")))[0] == 200


async def test_days_and_dates_of_the_page_are_said_to_be_utc(served: ServedPage) -> None:
    for number in range(20):
        failed(served, f"eve{number}", 1 + number)
    _, text, _ = await served.get("/history")
    assert "By day (UTC): the last 14 of 20 with any" in text
    for path in ("/history", "/incidents", "/jobs", "/report"):
        _, text, _ = await served.get(path)
        assert '<label>Since (UTC) <input name="since"' in text, path


async def test_a_node_on_which_a_program_failed_is_no_culprit_here_either(served: ServedPage) -> None:
    """The command line has the same column: that the program's line came from n3 says nothing against n3."""
    judged = verdict(Cause.USER_CODE, scope=Scope.APPLICATION)
    line = evidence("traceback", source=Source.JOB_LOG, job=900, node="n3")
    served.world.store.save_incident(incident(line, id="prog1", job=900), user="eve")
    served.world.store.save_verdict("prog1", dataclasses.replace(judged, grounds=(Ground(line, 4.0),)), AT)
    _, text, _ = await served.get("/incidents")
    row = text.partition('href="/incidents/prog1"')[2].partition("</tr>")[0]
    assert row and "/nodes/n3" not in row and '<th scope="col">Culprit nodes</th>' in text


async def test_a_comment_that_is_not_understood_is_told_on_the_pages_of_its_job(served: ServedPage) -> None:
    fleet = served.daemon.live.fleet
    assert fleet is not None
    comment = '{"sentinel": {"<b>x</b>": 1}}'
    views = {
        801: job(801, comment=comment, nodes=("n1",)),
        802: job(802, comment=comment, state="pending", nodes=(), started_s=None),
    }
    served.daemon.live.see_attempt(views[801])
    served.world.store.save_attempt(views[801], first_step=1, last_step=2, step_time_s=1.0)
    served.daemon.live.fleet = dataclasses.replace(fleet, jobs=views)
    for number in views:
        _, text, _ = await served.get(f"/jobs/{number}")
        assert "Not understood</span>: unknown key &#39;&lt;b&gt;x&lt;/b&gt;&#39;" in text and "<b>" not in text, number
        _, text, _ = await served.get("/")
        assert f'href="/jobs/{number}"' in text.partition("Comment not understood")[2].partition("</p>")[0]
    assert "Comment not understood" not in (await served.get("/", user="bob"))[1]


async def test_jobs_that_had_one_id_are_shown_each_by_itself(served: ServedPage) -> None:
    """What the first gained and lost is not the second's, and neither is its user."""
    for user, began_s, last in (("bob", -40.0 * DAY_S, 900), ("ada", -3600.0, 50)):
        for attempt in (0, 1) if user == "bob" else (0,):
            view = job(700, user=user, restarts=attempt, started_s=began_s + 600.0 * attempt)
            over = (
                view if user == "ada" else dataclasses.replace(view, state="failed", ended_at=later(began_s + 6000.0))
            )
            served.world.store.save_attempt(over, first_step=1, last_step=last, step_time_s=2.0)
    _, text, _ = await served.get("/jobs/700")
    assert "<bdi>ada</bdi>" in text and "<bdi>bob</bdi>" not in text and "50 in 1 attempt<" in text
    assert "2 of them are of jobs that had the same id before" in text
    assert re.findall(r'<th scope="row">(\d)</th>', text) == ["0", "1", "0"]
    _, text, _ = await served.get("/jobs?since=90d&job=700")
    assert text.count('<th scope="row"><a href="/jobs/700">') == 2
    assert "<td>2</td><td>900</td>" in text and "<td>1</td><td>50</td>" in text


async def test_a_task_of_an_array_is_found_as_squeue_names_it(served: ServedPage) -> None:
    slurm = served.world.slurm
    task = slurm.submit(nodes=1, user="ada", array=(440, 2))
    await served.daemon.fleets.take()
    status, text, _ = await served.get("/jobs/440_2", user="ada")
    assert status == 200 and f"Job {task}" in text and text == (await served.get(f"/jobs/{task}", user="ada"))[1]
    view = served.daemon.live.fleet.jobs[task]  # type: ignore[union-attr]
    served.world.store.save_attempt(view, first_step=1, last_step=9, step_time_s=1.0)
    assert f"<h1>Job {task}" in (await served.get("/jobs/440_2", user="ada"))[1]
    status, text, _ = await served.get("/jobs?job=440_2", user="ada")
    assert status == 200 and f'href="/jobs/{task}"' in text
    for path, status in (("/jobs/440_3", 404), ("/jobs/440_", 404), ("/jobs?job=440_2_1", 422)):
        assert (await served.get(path))[0] == status, path
