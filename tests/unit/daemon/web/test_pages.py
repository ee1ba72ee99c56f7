"""The page over HTTP: who sees what, what is refused, and hostile text that stays text."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pwd
import re
import socket
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hanging_threads import fails_on_the_event_loop
from in_memory.page import ServedPage, serving_page
from in_memory.world import World
from made_records import AT, ended, evidence, incident, job, plan, step, verdict

from sentinel.daemon.web.charts import WIDTH, bars
from sentinel.daemon.web.incident_page import timeline
from sentinel.daemon.web.templates import hours, interval
from sentinel.errors import UserError
from sentinel.model.approvals import APPROVAL, REFUSED
from sentinel.model.records import Cause, Ground, IncidentState, Kind, Outcome, Result, Source, StepKind, Trust, Wait

Worlds = Callable[..., World]
EVIL = (
    "</td><script>alert(1)</script><img src=x onerror=alert(2)> javascript:alert(3) http://evil.example @all "
    "\u202e\x1b[2J{{ 7*7 }}"
)
PATHS = (
    "/",
    "/nodes",
    "/nodes/n1",
    "/incidents",
    "/incidents/aaa1",
    "/jobs",
    "/jobs/201",
    "/history",
    "/plan",
    "/report",
)


def fill(world: World) -> None:
    """ada's and bob's jobs failed on n1; all that users wrote is hostile."""
    store = world.store
    for number, (name, user) in enumerate({"aaa1": "ada", "bbb1": "bob"}.items()):
        view = job(201 + number, user=user, nodes=("n1", "n2"), name=EVIL)
        store.save_attempt(view, first_step=1, last_step=250, step_time_s=2.0)
        again = job(201 + number, user=user, nodes=("n2", "n3"), name=EVIL, restarts=1, started_s=60.0)
        store.save_attempt(again, first_step=201, last_step=400, step_time_s=2.0)
        items = [
            evidence(Kind.XID, node="n1", id=f"xid-{name}", text="NVRM: Xid 79"),
            evidence(
                "traceback", source=Source.JOB_LOG, job=201 + number, id=f"log-{name}", text=EVIL, trust=Trust.USER
            ),
            ended(201 + number),
        ]
        store.append(items)
        opened = incident(*items, id=name, job=201 + number, nodes=("n1",))
        store.save_incident(opened, user=user)
        judged = verdict(drain=("n1",), gpus=("n1:3",), advice=EVIL)
        store.save_verdict(name, dataclasses.replace(judged, grounds=(Ground(items[0], 4.5, EVIL),)), AT)
        drain = step(StepKind.DRAIN, node="n1")
        made = plan(drain, incident=name)
        store.save_plan(made)
        store.intend(made, drain, AT + timedelta(seconds=1))
        store.record(made, Outcome(drain, Result.DONE, AT + timedelta(seconds=2), EVIL))


@pytest.fixture
async def served(world: Worlds) -> AsyncIterator[ServedPage]:
    made = world()
    made.slurm.purge(101)  # it would be recovered from the node that broke in ``fill``
    fill(made)
    async with serving_page(made) as page:
        await page.daemon.fleets.take()
        yield page


class Tags(HTMLParser):
    """What the browser would build: tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("path", PATHS)
async def test_every_page_is_one_and_loads_nothing_from_outside(served: ServedPage, path: str) -> None:
    status, text, headers = await served.get(path)
    assert status == 200, text
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script" not in policy and "unsafe" not in policy
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    tags = Tags(text).tags
    assert [tag for tag, _ in tags].count("h1") == 1 and ("html", {"lang": "en"}) in tags
    for tag, attributes in tags:
        assert tag not in ("script", "iframe", "object", "embed", "img", "style", "base"), tag
        assert not any(name.startswith("on") or name == "style" for name in attributes), attributes
        for name in ("href", "src", "action"):
            assert re.match(r"/(?!/)|#|data:,$", attributes.get(name) or "/"), attributes


@pytest.mark.parametrize("path", PATHS)
async def test_hostile_text_is_text(served: ServedPage, path: str) -> None:
    _, text, _ = await served.get(path)
    assert "<script" not in text and "onerror=alert(2)>" not in text and "\u202e" not in text and "\x1b" not in text
    assert "49" not in re.findall(r"@all ··\[2J(\S*)", text)
    if path in ("/jobs/201", "/incidents/aaa1"):
        assert "&lt;script&gt;" in text and "··[2J{{ 7*7 }}" in text


@pytest.mark.parametrize(
    "path", ["/incidents", "/incidents/bbb1", "/jobs", "/jobs/202", "/history", "/", "/jobs?job=202"]
)
async def test_people_see_their_own_jobs(served: ServedPage, path: str) -> None:
    status, text, _ = await served.get(path, user="ada")
    assert 'href="/incidents/bbb1"' not in text and ">202<" not in text and "bob" not in text
    assert status == 200 or "gpu_memory_ecc" not in text
    own, _, _ = await served.get(path.replace("bbb1", "aaa1").replace("202", "201"), user="ada")
    assert own == 200 and status in (200, 404)
    assert "bob" in (await served.get("/history"))[1], "an operator sees all"


async def test_site_may_show_all_to_all(world: Worlds) -> None:
    made = world()
    fill(made)
    async with serving_page(made, see="all") as page:
        assert "bbb1" in (await page.get("/incidents", user="ada"))[1]


async def test_incident_is_a_time_line(served: ServedPage) -> None:
    _, text, _ = await served.get("/incidents/aaa1")
    line = text.partition('<ol class="timeline">')[2]
    kinds = re.findall(r'<li class="(\w+)">', line)
    assert kinds[:2] == ["evidence", "evidence"] and kinds.index("verdict") < kinds.index("step")
    assert "drain n1: done" in line and "NVRM: Xid 79" in line and "written by a user" in line and "it decided" in line


def test_a_time_without_a_fraction_is_in_order_in_the_time_line() -> None:
    at = "2026-03-04T05:06:0{}Z".format
    nowhere = dict.fromkeys(("node", "gpu", "nic", "rank"))
    items = [
        {"id": id_, "at": when, "kind": "xid", "where": nowhere, "text": id_, "source": "kernel", "trust": "system"}
        for id_, when in (("a", at("7")), ("b", at("7.4")), ("c", at("6.9")))
    ]
    incident = {"decided_at": at("7.2"), "outcome": "", "closed_at": None}
    verdict = {"cause": "pcie", "grounds": []}
    seen = {"incident": incident, "verdict": verdict, "plan": None, "evidence": items, "steps": []}
    assert [event["text"] or event["kind"] for event in timeline(seen)] == ["c", "a", "verdict", "b"]


async def test_job_with_attempts_curves_and_restart_points(served: ServedPage) -> None:
    for attempt, first, last, started_s in ((0, 1, 250, -3600.0), (1, 201, 400, 60.0)):
        served.daemon.live.see_attempt(job(201, restarts=attempt, started_s=started_s))
        for number in range(first, last):
            data = {"step": number, "loss": 5.0 / number, "step_time_s": 2.0}
            where = {"job": 201, "attempt": attempt, "at_s": number * 2.0}
            served.daemon.live.note(evidence(Kind.STEP, source=Source.JOB_LOG, data=data, **where))
    _, text, _ = await served.get("/jobs/201")
    assert text.count('<svg class="chart"') == 2 and text.count("<polyline") == 4
    assert text.count('class="mark"') == 4 and 'aria-label="Loss of job 201 over its steps"' in text
    assert (await served.get("/jobs/201", user="bob"))[0] == 404


async def test_attempt_that_slurm_told_twice_is_shown_once(served: ServedPage) -> None:
    again = job(201, user="ada", nodes=("n1", "n2"), restarts=1, started_s=59.0)
    served.world.store.save_attempt(again, first_step=None, last_step=None, step_time_s=None)
    _, text, _ = await served.get("/jobs/201")
    assert "400 in 2 attempts" in text and re.findall(r'<th scope="row">(\d)</th>', text) == ["0", "1"]


async def test_job_without_a_curve_says_so(served: ServedPage) -> None:
    assert "has seen no step line" in (await served.get("/jobs/201"))[1]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/no-such", 404), ("/incidents/zzz", 404), ("/jobs/99", 404), ("/jobs/x", 404), ("/nodes/n99", 404),
        ("/nodes/n1/more", 404), ("/../etc/passwd", 404), ("/static/../access.py", 404), ("/jobs?job=x", 422),
        ("/history?since=yesterday", 422), ("/history?cause=nothing", 422), ("/incidents?node=n[", 422),
        ("/jobs?from=99999999999", 200), ("/jobs?since=" + "9" * 300, 422), ("/?" + "&".join("a=1" for _ in range(99)), 200),
        ("/history?since=7d&node=n[1-3]&job=201&user=ada&cause=gpu_memory_ecc", 200), ("/?state=down&partition=train", 200),
    ],
)  # fmt: skip
async def test_what_is_not_there_or_not_understood(served: ServedPage, path: str, status: int) -> None:
    answered, text, headers = await served.get(path)
    assert answered == status, text
    assert "Traceback" not in text and headers["Content-Security-Policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_nothing_can_be_changed(served: ServedPage, method: str) -> None:
    status, _, headers = await served.get("/", method=method)
    assert status == 405 and headers["Allow"] == "GET, HEAD"


async def test_head_is_answered_without_a_body(served: ServedPage) -> None:
    status, text, _ = await served.get("/", method="HEAD")
    assert (status, text) == (200, "")


async def test_nobody_without_a_name(served: ServedPage) -> None:
    status, text, headers = await served.get("/", headers={})
    assert status == 403 and "aaa1" not in text and "names nobody" in text and "WWW-Authenticate" not in headers
    assert "request-denied" in served.daemon.said


async def test_who_asks_is_looked_up_while_the_event_loop_goes_on(
    served: ServedPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the proxy's account is an operator: its directory may not answer."""
    asked = fails_on_the_event_loop(monkeypatch, pwd, "getpwnam")
    status, _, _ = await served.get("/", headers={"X-User": "somebody"})
    assert status == 200 and asked == ["somebody"]


async def test_another_site_s_name_is_refused_before_anything_else(served: ServedPage) -> None:
    status, text, _ = await served.get("/", headers={"X-User": "root", "Host": "rebound.example"})
    assert status == 403 and "aaa1" not in text and "rebound.example" in text


async def test_token_is_asked_for(world: Worlds, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"wall {'0' * 64} operator\n")
    file.chmod(0o600)
    async with serving_page(world(), user_header="", proxies=[], tokens=str(file)) as page:
        status, _, headers = await page.get("/", headers={})
        assert status == 401 and headers["WWW-Authenticate"].startswith("Basic realm=")


async def test_socket_knows_the_account_at_its_other_end(world: Worlds, tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    async with serving_page(world(), listen=f"unix:{path}", user_header="", proxies=[]) as page:
        status, text, _ = await page.get("/", headers={})
        assert status == 200 and f"For <bdi>{pwd.getpwuid(os.getuid()).pw_name}</bdi>" in text
        again = ServedPage(page.world, listen=f"unix:{path}", user_header="", proxies=[])
        with pytest.raises(UserError, match="another program's"):
            await again.server.start()
        await again.server.stop()


async def test_socket_of_a_daemon_that_is_gone_is_replaced(world: Worlds, tmp_path: Path) -> None:
    path = tmp_path / "page.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with serving_page(world(), listen=f"unix:{path}", user_header="", proxies=[]) as page:
        assert (await page.get("/", headers={}))[0] == 200
    (tmp_path / "file").write_text("mine")
    other = ServedPage(world(), listen=f"unix:{tmp_path / 'file'}", user_header="", proxies=[])
    with pytest.raises(UserError, match="is no socket"):
        await other.server.start()
    await other.server.stop()
    assert (tmp_path / "file").read_text() == "mine"


async def test_slurm_that_does_not_answer_is_said_with_the_age_of_what_is_shown(served: ServedPage) -> None:
    served.world.slurm.answers = False
    served.world.slurm.clock.advance(600)
    status, text, _ = await served.get("/")
    assert status == 200 and "Slurm does not answer" not in text  # the newest snapshot is good enough to be shown
    served.daemon.fleets._taken_s = float("-inf")
    await served.get("/")
    status, text, _ = await served.get("/")
    assert status == 200 and "Slurm does not answer" in text and "10 min ago" in text and "/nodes/n1" in text
    for path in ("/nodes", "/nodes/n1", "/plan"):
        status, text, _ = await served.get(path)
        assert status == 200 and "was seen 10 min ago" in text, path


async def test_before_slurm_answered_nothing_is_shown_as_healthy(world: Worlds) -> None:
    made = world()
    made.slurm.answers = False
    async with serving_page(made) as page:
        status, text, _ = await page.get("/")
        assert status == 200 and "The nodes are not known" in text and "/nodes/n1" not in text
        assert (await page.get("/nodes"))[0] == 503


async def test_filters_of_the_map(served: ServedPage) -> None:
    served.world.slurm.person_drains("n3", "fan")
    served.daemon.fleets._taken_s = float("-inf")
    _, text, _ = await served.get("/?state=drained")
    assert "1 of 4 nodes" in text and re.findall(r'href="/nodes/(n\d)"', text.partition('class="groups"')[2]) == ["n3"]
    _, text, _ = await served.get("/?node=n[1-2]")
    assert "2 of 4 nodes" in text
    _, text, _ = await served.get("/nodes?state=drained")
    assert re.findall(r'href="/nodes/(n\d)"', text) == ["n3"] and "fan" in text


async def test_open_incident_is_on_the_first_page_and_a_closed_one_is_not(served: ServedPage) -> None:
    assert "aaa1" in (await served.get("/"))[1]
    for name in ("aaa1", "bbb1"):
        over = dataclasses.replace(incident(id=name, job=201), state=IncidentState.CLOSED, outcome="runs again")
        served.world.store.save_incident(over, user="ada")
    _, text, _ = await served.get("/")
    assert "aaa1" not in text.partition('<h2 id="map">')[0] and "None." in text


async def test_plan_from_history(served: ServedPage) -> None:
    worked = dataclasses.replace(job(300, state="completed"), ended_at=AT)
    served.world.store.save_attempt(worked, first_step=None, last_step=None, step_time_s=None)
    _, text, _ = await served.get("/plan")
    assert "failures in" in text and "95 % interval" in text


async def test_bad_numbers_in_a_job_s_log_break_no_page(served: ServedPage) -> None:
    served.daemon.live.see_attempt(job(201))
    for number, loss in enumerate((1e308, -1e308, 5e-324, 0.0, float("nan"), float("inf"), 1e-300, 3.0)):
        served.daemon.live.note(
            evidence(
                Kind.STEP,
                source=Source.JOB_LOG,
                job=201,
                attempt=0,
                at_s=float(number),
                data={"step": number, "loss": loss},
            )
        )
    status, text, _ = await served.get("/jobs/201")
    assert status == 200 and "nan" not in text.partition("<svg")[2].partition("</svg>")[0]


async def test_page_that_takes_too_long_says_so_and_is_no_bug(served: ServedPage) -> None:
    async def forever(*_: object) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    served.server._settings = dataclasses.replace(served.server._settings, deadline_s=0.2)
    served.pages.html = forever  # type: ignore[method-assign]
    status, text, headers = await served.get("/")
    assert status == 503 and "not made within 0.2 s" in text and "load it again" in text
    assert "Content-Security-Policy" in headers
    assert "bug" not in served.daemon.said
    assert served.daemon.telemetry.registry.get_sample_value("sentinel_http_refused_total", {"status": "503"}) == 1


async def test_browser_that_goes_away_is_no_bug(served: ServedPage) -> None:
    began, end, real = asyncio.Event(), asyncio.Event(), served.pages.html

    async def later(*arguments: Any) -> str:
        began.set()
        await end.wait()
        return await real(*arguments)

    served.pages.html = later  # type: ignore[method-assign]
    asked = asyncio.create_task(served.get("/"))
    await began.wait()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    end.set()
    served.pages.html = real  # type: ignore[method-assign]
    assert (await served.get("/"))[0] == 200 and "bug" not in served.daemon.said


async def test_what_people_are_asked_stands_above_the_map_with_the_command_that_answers(served: ServedPage) -> None:
    wait = Wait(APPROVAL, AT, f"drain n1 <b>{EVIL}</b>", ("drain n1",))
    served.world.store.save_plan(dataclasses.replace(plan(incident="aaa1"), waits=(wait,)))
    _, text, _ = await served.get("/")
    above = text.partition('<h2 id="map">')[0]
    assert "A person is asked: 1" in above and "sentinel approve INCIDENT" in above and "<b>" not in above
    assert "A person is asked" not in (await served.get("/", user="bob"))[1], "of others' jobs"
    refused = dataclasses.replace(wait, kind=REFUSED)
    served.world.store.save_plan(dataclasses.replace(plan(incident="aaa1"), waits=(refused,)))
    assert "A person is asked: 0; refused or lapsed: 1</h2>" in (await served.get("/"))[1]


async def test_a_plan_is_said_in_the_words_of_why_and_status(served: ServedPage) -> None:
    """Each step of a restart was listed, an unknown cause was 0.0 % sure, and what is waited for was said twice."""
    words = "An operator is asked to approve drain n1, restart 201."
    wait, steps = Wait("drain-budget", AT, words, ("drain n1",)), [step(StepKind.DRAIN, node="n1")]
    steps += [step(kind, job=201) for kind in (StepKind.REQUEUE_HOLD, StepKind.RELEASE, StepKind.CONFIRM)]
    store = served.world.store
    watched = dataclasses.replace(plan(*steps, incident="aaa1"), observe_only=True, explanation=words, waits=(wait,))
    store.save_plan(watched)
    waiting = dataclasses.replace(incident(id="aaa1", job=201), state=IncidentState.WAITING, outcome=words)
    store.save_incident(waiting, user="ada")
    store.save_verdict("aaa1", dataclasses.replace(verdict(Cause.UNKNOWN), confidence=0.0), AT)
    _, text, _ = await served.get("/")
    assert ": drain n1, restart job 201</li>" in text
    _, text, _ = await served.get("/incidents")
    assert text.count(words) == 1
    _, text, _ = await served.get("/incidents/aaa1")
    assert "% sure" not in text and text.partition('<ol class="timeline">')[2].count(words) == 1


async def test_daemons_that_stand_by_are_named_and_one_alone_is_not(served: ServedPage) -> None:
    assert "standing by" not in (await served.get("/"))[1]
    rows = [{"address": "head1:9478", "state": "active"}, {"address": "head2:9478", "state": "standby"}]
    served.views._daemons = lambda: rows
    _, text, _ = await served.get("/")
    assert "Of 2 daemons head1:9478 is active; standing by: head2:9478." in text


def test_words_beside_the_longest_bar_stay_inside_the_chart() -> None:
    words = "650 (568)"
    drawn = bars("Interruptions", [("gpu_memory_ecc", 650.0, words)])
    assert drawn is not None
    at = float(re.findall(r'<text x="([0-9.]+)"', drawn)[-1])
    assert at + 7 * len(words) <= WIDTH


def test_mtbf_of_a_report_is_in_a_unit_that_people_read() -> None:
    assert hours(0.0704) == "4.2 min" and interval((0.0676, None), "hours") == "(at least 4.1 min)"


async def test_history_says_that_the_oldest_are_missing(served: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole, _ = await served.get("/history")
    monkeypatch.setattr("sentinel.daemon.incident_search.SEARCHED", 1)
    _, text, _ = await served.get("/history")
    assert "the oldest are missing" in text and "the oldest are missing" not in whole


@pytest.mark.parametrize("path", ["/", "/incidents", "/jobs/201", "/no-such-page"])
async def test_every_page_says_that_the_store_cannot_be_written(served: ServedPage, path: str) -> None:
    _, text, _ = await served.get(path)
    assert "store" not in text
    served.views.outage = lambda: {"since": AT, "reason": "the disk is <full>"}
    _, text, _ = await served.get(path)
    assert "Nothing is judged or done" in text and "the disk is &lt;full&gt;" in text


@pytest.mark.parametrize(("method", "headers"), [("GET", {}), ("POST", {"X-User": "root"})])
async def test_who_has_not_proved_who_they_are_is_told_nothing_of_the_store(
    served: ServedPage, method: str, headers: dict[str, str]
) -> None:
    served.views.outage = lambda: {"since": AT, "reason": "no answer (postgresql://sentinel@db1/sentinel)"}
    status, text, _ = await served.get("/", method=method, headers=headers)
    assert status in (403, 405) and "store" not in text and "db1" not in text
