"""A month of history as people are shown it: lemons, bursts, ageing parts, filters, and what is no node's failure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon
from in_memory.month import AGEING, BURST, LEMON, Month
from in_memory.world import World
from made_records import AT, job, later

from sentinel.classify import NodeScore
from sentinel.classify.ageing import Counter
from sentinel.daemon.api.fleet_history import exposure
from sentinel.daemon.api.scores import Scores, compared
from sentinel.daemon.api.views import Views
from sentinel.daemon.effects.orders import OrderBook
from sentinel.daemon.ingest.prologs import Prologs
from sentinel.engine.history import failures_of
from sentinel.errors import UserError
from sentinel.model.records import Cause
from sentinel.model.vocabulary import END_NOT_SEEN
from sentinel.wire import to_json

Worlds = Callable[..., World]
COUNTERS = {
    "row_remap_correctable": Counter("row_remap_correctable", "remapped rows", Cause.GPU_MEMORY_ECC, per_day=0.1)
}


class Shown:
    def __init__(self, world: World) -> None:
        self.world, self.daemon = world, Daemon(world)
        self.month = Month(world.store, world.slurm.clock.now())
        self.month.fill()
        self.views = Views(
            store=world.store, live=self.daemon.live, fleets=self.daemon.fleets,
            orders=OrderBook(), settings=SETTINGS, operators={0}, clock=world.slurm.clock, counters=COUNTERS,
            prologs=Prologs(),
        )  # fmt: skip

    async def __call__(self, view: str, **arguments: Any) -> Any:
        return json.loads(json.dumps(to_json(await self.views.show(view, arguments, 0))))


async def test_recurring_nodes_stand_first_and_say_why(world: Worlds) -> None:
    rows = (await Shown(world(nodes=24))("nodes"))["nodes"]
    assert [row["node"] for row in rows[:3]] == [BURST, LEMON, AGEING]
    assert [row["node"] for row in rows if row["suspect"]] == [BURST, LEMON, AGEING]
    burst, lemon, ageing = rows[:3]
    assert "3 within 52 min" in burst["suspect_reasons"] and "always GPU 2" in burst["suspect_reasons"]
    assert lemon["suspect_reasons"][:2] == ["4 x gpu_memory_ecc", "under 4 different jobs"]
    assert ageing["suspect_reasons"][0].startswith("remapped rows of gpu1: 0.21 a day") and ageing["failures_30d"] == 0
    assert [row["node"] for row in rows[5:]] == [n for n in rows_in_order(24) if n not in {r["node"] for r in rows[:5]}]


async def test_a_lemon_is_seen_behind_any_number_of_newer_failures_of_programs(world: Worlds) -> None:
    shown = Shown(world(nodes=24))
    shown.world.store.save_closed(5001, shown.world.slurm.clock.now() - timedelta(hours=1), every_s=0.5)
    (row,) = (await shown("nodes", node=LEMON))["nodes"]
    assert (row["failures_30d"], row["suspect"]) == (4, True)


def rows_in_order(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


async def test_three_in_an_hour_and_four_in_a_month_differ(world: Worlds) -> None:
    rows = {row["node"]: row["score"] for row in (await Shown(world(nodes=24))("nodes"))["nodes"]}
    burst, lemon, other = rows[BURST], rows[LEMON], rows["n19"]
    assert burst["busy_days"] < 0.05 and lemon["busy_days"] > 29 and burst["failures"] == 3 < lemon["failures"]
    assert burst["low_per_month"] > lemon["low_per_month"] > other["low_per_month"]
    assert burst["burst_s"] < 4000 and lemon["burst_s"] > 1e6 and burst["last_at"] > lemon["last_at"]
    assert not other["lemon"] and other["failures"] == 1


async def test_programs_and_shared_faults_are_no_node_s(world: Worlds) -> None:
    rows = {row["node"]: row for row in (await Shown(world(nodes=24))("nodes"))["nodes"]}
    assert rows["n2"]["failures_30d"] == 0 and rows["n4"]["failures_30d"] == 0  # user_code and bad numbers seen there
    shown = await Shown(world(nodes=24))("nodes", node="n2")
    assert {row["cause"] for row in shown["incidents"]} == {"user_code"} and len(shown["incidents"]) == 11


async def test_suspects_at_a_glance(world: Worlds) -> None:
    shown = Shown(world(nodes=24))
    assert (await shown("status"))["suspects"] == []  # before Slurm answered nothing is known of any node
    await shown.daemon.fleets.take()
    assert [row["node"] for row in (await shown("status"))["suspects"]] == [BURST, LEMON, AGEING]


async def test_history_is_grouped_with_the_most_frequent_first(world: Worlds) -> None:
    by = (await Shown(world(nodes=24))("history"))["by"]
    assert [(g["key"], g["failures"]) for g in by["cause"]][:2] == [("user_code", 11), ("filesystem_storage", 6)]
    assert [(g["key"], g["failures"]) for g in by["node"]][:2] == [(LEMON, 4), (BURST, 3)]
    assert by["node"][0]["score"]["lemon"] and "n2" not in {g["key"] for g in by["node"]}  # user_code was seen there
    days = [g["key"] for g in by["time"]]
    assert days == sorted(days) and sum(g["failures"] for g in by["time"]) == 28
    assert by["user"][0]["key"] == "eve" and by["user"][0]["causes"]["user_code"] == 11


@pytest.mark.parametrize(
    ("asked", "count"),
    [
        ({"node": LEMON}, 4),
        ({"node": "n2"}, 11),
        ({"cause": "filesystem_storage"}, 6),
        ({"user": "eve", "cause": "user_code"}, 11),
        ({"job": 7000}, 3),
        ({"node": LEMON, "cause": "user_code"}, 0),
        ({"cause": "unknown"}, 1),
        ({"node": LEMON, "days": 10}, 2),
    ],
)
async def test_filters(world: Worlds, asked: dict[str, Any], count: int) -> None:
    seen = await Shown(world(nodes=24))("history", **asked)
    assert len(seen["incidents"]) == count and sum(g["failures"] for g in seen["by"]["cause"]) == count


@pytest.mark.parametrize("asked", [{"cause": "gremlins"}, {"node": ""}, {"user": 7}, {"job": "x"}, {"node": "x" * 300}])
async def test_filters_that_fit_nothing_are_told(world: Worlds, asked: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        await Shown(world(nodes=24))("history", **asked)
    assert caught.value.fix


def test_what_all_share_is_no_nodes_failure() -> None:
    row = {"opened_at": AT, "cause": "network_fabric", "job": 1, "user": "ada", "id": "i1", "onset_step": None,
           "culprit_nodes": ["n1", "n2"], "culprit_gpus": ["n1:3"], "culprit_ranks": [7], "seen_on": None}  # fmt: skip
    shared = list(failures_of(row | {"scope": "cluster"}))
    assert [(past.node, past.blamed) for past in shared] == [(None, False)]
    (one, two) = failures_of(row | {"scope": "link"})
    assert (one.node, one.gpu, one.ranks, one.blamed) == ("n1", "3", (7,), True) and (two.node, two.gpu) == ("n2", None)
    assert list(failures_of(row | {"scope": "link", "cause": None})) == []


def test_exposure_is_cut_to_the_window_and_leaves_out_what_is_not_known(world: Worlds) -> None:
    store = world().store
    for number, (start, end) in enumerate([(-3000.0, -1000.0), (-500.0, None), (-900.0, None)]):
        view = dataclasses.replace(job(201 + number, nodes=("n1", "n2")[: 1 + number % 2], started_s=start))
        view = dataclasses.replace(
            view, ended_at=None if end is None else later(end), state="failed" if end else "running"
        )
        store.save_attempt(view, first_step=None, last_step=None, step_time_s=None)
    since = AT - timedelta(seconds=2000)
    view = dataclasses.replace(job(206, nodes=("n1",), state=END_NOT_SEEN, started_s=-900.0), ended_at=AT)
    store.save_attempt(view, first_step=None, last_step=None, step_time_s=None)
    assert exposure(store, since, AT, {(202, 0)}) == {"n1": 1000.0 + 500.0, "n2": 500.0}
    assert exposure(store, since, AT, None) == {"n1": 1000.0 + 500.0 + 900.0, "n2": 500.0}


@pytest.mark.parametrize(
    ("busy_days", "others_days", "lemon", "answer"),
    [
        (0.01, 500.0, False, "not known"),
        (20.0, 3.0, False, "not known"),
        (20.0, 3.0, True, "not known"),
        (0.01, 500.0, True, "worse"),
        (20.0, 500.0, False, "not worse"),
        (20.0, 500.0, True, "worse"),
    ],
)
def test_a_rate_is_told_only_after_enough_work(busy_days: float, others_days: float, lemon: bool, answer: str) -> None:
    score = NodeScore("n1", 1, busy_days, 9.9, 0.2, 20.0, lemon, others=0.01)
    assert compared(score, others_days) == answer
    busy = {"n1": busy_days, "n2": others_days}
    scores = Scores({"n1": score, "n2": NodeScore("n2", 0, others_days, 0.01, 0.0, 0.1, False)})
    shown = scores.shown("n1")["score"]
    assert shown["compared"] == answer and shown["others_busy_days"] == busy["n2"]
    assert (shown["per_month"] is None) is (answer == "not known")


def test_a_node_that_an_operator_cleared_has_no_failure_and_one_that_they_named_has() -> None:
    row = {"opened_at": AT, "cause": "network_fabric", "scope": "link", "job": 1, "user": "ada", "id": "i1",
           "onset_step": None, "culprit_nodes": ["n1"], "culprit_gpus": ["n1:3"], "culprit_ranks": [],
           "seen_on": ["n1", "n2"], "users_words": True}  # fmt: skip
    cleared = {"cause": "user_config", "scope": "application"}
    (past,) = failures_of(row | {"corrections": [cleared]})
    assert (past.cause, past.node, past.gpu, past.blamed) == ("user_config", None, None, False)
    (past,) = failures_of(row | {"corrections": [cleared, {"cause": "gpu_nvlink", "scope": "link"}]})
    assert (past.cause, past.node, past.blamed, past.users_words) == ("gpu_nvlink", "n1", True, False)
    (past,) = failures_of(row | {"corrections": [{"cause": "of_a_later_release", "scope": "link"}]})
    assert past.cause == "network_fabric"
