"""The dashboards: every query asks for metrics that there are, and a real Prometheus that scrapes them answers it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from dashboards import PATHS, dashboard, queries
from in_memory.daemon import SETTINGS
from in_memory.views import Shown
from in_memory.world import World, opened
from made_records import AT, evidence, job
from prometheus_client import generate_latest
from servers.prometheus import BINARY, PrometheusServer

from sentinel.daemon.fleet_metrics import FleetMetrics
from sentinel.model.records import Kind, Source, StepKind
from sentinel.telemetry import described_metrics

ALL = [pytest.param(path, id=path.stem) for path in PATHS]
WITHIN_S = 120.0


def test_there_are_two() -> None:
    assert [path.name for path in PATHS] == ["fleet.json", "jobs.json"]
    assert len({dashboard(path)["uid"] for path in PATHS}) == 2


@pytest.mark.parametrize("path", ALL)
def test_queries_ask_for_metrics_that_are_there(path: Path) -> None:
    known = {name for name, _, _, _ in described_metrics()}
    for title, query in queries(path):
        asked = {name.removesuffix("_bucket") for name in re.findall(r"sentinel_[a-z_]+", query)}
        assert asked and asked <= known, (title, query)
        assert "$" not in query, (title, query)


@pytest.mark.parametrize("path", ALL)
def test_labels_are_those_of_the_metrics(path: Path) -> None:
    labels = {name: {*labels, "le"} for name, _, labels, _ in described_metrics()}
    for title, query in queries(path):
        for name, filters in re.findall(r"(sentinel_[a-z_]+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)[=!]", filters)) <= labels[name], (title, query)


@pytest.mark.parametrize("path", ALL)
def test_panels_have_their_own_place_and_say_what_they_show(path: Path) -> None:
    panels = dashboard(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for a, b in combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (a, b)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for panel in panels:
        assert panel["title"] and (panel["type"] == "row" or panel["targets"]), panel
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"


def ask(url: str, query: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': query})}", timeout=20) as answer:
        made: dict[str, Any] = json.loads(answer.read())
        return made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as store:
        yield World(store)


class Scraped:
    """A daemon whose metrics go on, and a Prometheus that scrapes them."""

    def __init__(self, world: World) -> None:
        self.shown = shown = Shown(world)
        self.telemetry = shown.daemon.telemetry
        self.metrics = FleetMetrics(world.store, shown.daemon.live, SETTINGS, self.telemetry, world.slurm.clock)
        self.prometheus = PrometheusServer(every_s=1)

    def go_on(self) -> None:
        """As if it had worked for a while."""
        telemetry = self.telemetry
        telemetry.evidence.labels(source=Source.KERNEL).inc()
        telemetry.incidents.labels(cause="gpu_memory_ecc").inc()
        telemetry.decision_s.observe(0.4)
        telemetry.restart_s.observe(4.0)
        for kind in (StepKind.CONFIRM, StepKind.HOLD, StepKind.DRAIN):
            telemetry.steps.labels(kind=kind, result="done").inc()
        self.metrics.read()
        self.prometheus.metrics[:] = generate_latest(telemetry.registry).decode().splitlines()


@pytest.fixture
async def scraped(world: World) -> AsyncIterator[Scraped]:
    made = Scraped(world)
    await made.shown.daemon.fleets.take()
    # One in whose partition nothing failed: of the others' the cost is not known.
    sound = dataclasses.replace(job(203, state="completed", nodes=("n3",), partition="other"), ended_at=AT)
    world.store.save_attempt(sound, first_step=1, last_step=250, step_time_s=2.0)
    live = made.shown.daemon.live
    live.see_attempt(job(101, nodes=("n1", "n2")))
    live.note(evidence(Kind.CHECKPOINT_SAVED, source=Source.JOB_LOG, job=101, attempt=0, data={"step": 1}))
    live.node("n1").state, live.node("n1").version = "heard", "1.0"
    try:
        yield made
    finally:
        made.prometheus.stop()


@pytest.mark.skipif(BINARY is None, reason="needs the program prometheus (Debian package prometheus)")
async def test_every_query_answers_from_a_real_prometheus(scraped: Scraped) -> None:
    missing = {(path.stem, *item) for path in PATHS for item in queries(path)}
    assert len(missing) > 25
    until_s = time.monotonic() + WITHIN_S
    why: dict[Any, Any] = {}
    while missing:
        assert time.monotonic() < until_s, [(item, why.get(item)) for item in sorted(missing)]
        scraped.go_on()
        await asyncio.sleep(1)  # a scrape: what Prometheus has cannot be waited for in another way
        for item in sorted(missing):
            try:
                answer = await asyncio.to_thread(ask, scraped.prometheus.url, item[2])
            except OSError as error:  # not up yet; a query that it refuses stays missing
                why[item] = str(error)
                continue
            values = [found["value"][1] for found in answer["data"]["result"]]
            why[item] = values
            if values and not all(value == "NaN" for value in values):
                missing.discard(item)
