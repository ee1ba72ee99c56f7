"""Saves to node-local tiers, joined over the nodes of a running job: told once, and only when it is so."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from in_memory.daemon import RULES, SETTINGS
from made_records import fleet, job

from sentinel.checkpoints.packed import pack
from sentinel.checkpoints.records import Part
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.joined_saves import SETTLED_S, SIZES, JoinedSaves
from sentinel.engine import Engine
from sentinel.engine.events import EvidenceReceived
from sentinel.engine.loading import state_of
from sentinel.model.changes import EvidenceAdded, SettingChanged
from sentinel.model.records import Evidence, Kind, Source, Where
from sentinel.model.stored import Stored
from sentinel.model.vocabulary import CHECKPOINTS_SEEN

COMMENT = '{"sentinel": {"local": ["/nvme/%N/run"]}}'
NODES = ("n1", "n2")
START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
RANKS = {"n1": (0, 1), "n2": (2, 3)}


def part(node: str, step: int, ranks: tuple[int, ...], at_s: float, size: int = 1000) -> Part:
    root = f"/nvme/{node}/run"
    return Part(
        node, root, f"{root}/step-{step}", f"step-{step}", step, "local", "nvrx_local", size, True, "structural", "",
        whole=False, owners=frozenset(ranks), marked=True, newest_mtime_s=START.timestamp() + at_s,
    )  # fmt: skip


def told(node: str, *parts: Part, as_node: str = "") -> Evidence:
    return Evidence(
        id=f"{node}{[(p.step, sorted(p.owners)) for p in parts]}", at=START, seen_at=START, source=Source.CHECKPOINT,
        kind=CHECKPOINTS_SEEN, where=Where(job=101, attempt=0, path=f"/nvme/{node}/run", node=as_node or node), text="",
        data={"listing": pack(parts)},
    )  # fmt: skip


class World:
    def __init__(self) -> None:
        self.live = ClusterView()
        self.live.see_fleet(fleet(2, [job(nodes=NODES, comment=COMMENT)]))
        self.joined = JoinedSaves(self.live)

    def take(self, after_s: float, *items: Evidence, ahead_s: float = 0.0) -> list[Evidence]:
        """Nodes that list by their clocks ``after_s``; ``ahead_s``: how far the daemon's is ahead of them."""
        at = START + timedelta(seconds=after_s)
        return self.joined.take([replace(item, at=at) for item in items], at + timedelta(seconds=ahead_s))

    def saved(self, step: int, at_s: float, size: int = 1000) -> list[Evidence]:
        """All nodes save that step and keep only it; the nodes tell one after the other."""
        found: list[Evidence] = []
        for node in NODES:
            found += self.take(at_s + 30, told(node, part(node, step, RANKS[node], at_s, size)))
        return found


@pytest.fixture
def world() -> World:
    return World()


def test_whole_saves_are_nothing_to_tell_and_listings_are_not_kept(world: World) -> None:
    assert [item for step in range(1, 6) for item in world.saved(step * 10, step * 300.0)] == []


def test_a_node_that_is_behind(world: World) -> None:
    world.saved(10, 300.0)
    ahead = told("n1", part("n1", 20, RANKS["n1"], 600.0))
    assert world.take(630.0, ahead) == []  # n2 may still be writing
    again = told("n1", part("n1", 20, RANKS["n1"], 600.0), part("n1", 10, RANKS["n1"], 300.0))
    (finding,) = world.take(600.0 + SETTLED_S + 1, again)
    assert (finding.kind, finding.data["step"], finding.data["watched"]) == (Kind.CHECKPOINT_INVALID, 20, True)
    assert "n2 hold nothing of it" in finding.text
    assert world.take(2000.0, ahead) == []


def test_a_clock_that_is_set_forward_makes_no_save_old(world: World) -> None:
    world.saved(10, 300.0)
    ahead = told("n1", part("n1", 20, RANKS["n1"], 600.0))
    assert world.take(630.0, ahead, ahead_s=300.0) == []  # the daemon's
    assert world.take(930.0, ahead, ahead_s=-300.0) == []  # the node's
    assert world.take(930.0, ahead, ahead_s=300.0) != []


def test_ranks_that_do_not_add_up(world: World) -> None:
    world.saved(10, 300.0)
    first = told("n1", part("n1", 20, (0, 1), 600.0))
    second = told("n2", part("n2", 20, (3,), 600.0))
    (finding,) = world.take(1000.0, first, second)
    assert "rank 2" in finding.text


def test_an_older_one_that_is_being_deleted_is_not_incomplete(world: World) -> None:
    world.saved(10, 300.0)
    world.saved(20, 600.0)
    left = told("n1", part("n1", 20, (0, 1), 600.0), part("n1", 10, (0, 1), 300.0))
    assert world.take(5000.0, left) == []


def test_nodes_that_tell_at_different_times_of_short_saves(world: World) -> None:
    """Each keeps its newest only and they look a minute apart: no step is ever seen on both, and none is missing."""
    for turn in range(1, 8):
        node = NODES[turn % 2]
        assert world.take(turn * 300.0, told(node, part(node, turn * 10, RANKS[node], turn * 300.0 - 30))) == []


def test_a_save_that_is_smaller_on_all_nodes_together(world: World) -> None:
    for step in (10, 20, 30):
        assert world.saved(step, step * 30.0) == []
    (finding,) = world.saved(40, 1200.0, size=700)
    assert (finding.kind, finding.data["step"]) == ("saves_shrank", 40)


def test_until_every_node_has_told_nothing_is_known(world: World) -> None:
    assert world.take(9000.0, told("n1", part("n1", 20, (0, 1), 600.0))) == []


def test_what_is_no_listing_is_said_and_passed_over(world: World) -> None:
    broken = told("n1", part("n1", 20, (0, 1), 600.0))
    broken.data["listing"] = "no listing"  # type: ignore[index]
    assert world.take(700.0, broken) == []


def test_a_node_speaks_for_itself(world: World) -> None:
    """What n1 says of n2's shards counts as n1's."""
    world.saved(10, 300.0)
    lying = told("n1", part("n2", 20, (0, 1, 2, 3), 600.0), as_node="n1")
    (finding,) = world.take(1000.0, lying, told("n2", part("n2", 10, RANKS["n2"], 300.0)))
    assert "n2 hold nothing of it" in finding.text


def stored(joined: JoinedSaves) -> Any:
    return json.loads(json.dumps(joined.unsaved()))


def test_what_is_usual_outlives_the_daemon(world: World) -> None:
    for step in (10, 20, 30):
        assert world.saved(step, step * 30.0) == []
    kept = stored(world.joined)
    assert kept and world.joined.unsaved() is None
    world.joined = JoinedSaves(world.live, kept)
    (finding,) = world.saved(40, 1200.0, size=700)
    assert (finding.kind, finding.data["step"]) == ("saves_shrank", 40)


def test_only_the_newest_sizes_are_kept(world: World) -> None:
    for step in range(1, SIZES + 20):
        world.saved(step, step * 30.0)
    (rows,) = stored(world.joined).values()
    assert [step for _, step, _ in rows] == list(range(20, SIZES + 20))


@pytest.mark.parametrize("kept", [None, 7, {"101": []}, {"101.0": [["r", 1]]}, {"x.y": 3}, {"101.0": [["r", "s", 1]]}])
def test_what_cannot_be_read_is_learned_again(world: World, kept: Any) -> None:
    world.joined = JoinedSaves(world.live, kept)
    assert world.saved(10, 300.0) == []


def test_the_engine_keeps_findings_and_sizes_and_no_listing(world: World) -> None:
    state = state_of(Stored(), world.live, rules=RULES, settings=SETTINGS)
    engine = Engine(state)
    listings = told("n1", part("n1", 20, (0, 1), 600.0)), told("n2", part("n2", 20, (3,), 600.0))
    now = START + timedelta(seconds=1000)
    out = engine.handle(EvidenceReceived(now, tuple(replace(item, at=now) for item in listings)))
    (added,) = (change for change in out.changes if isinstance(change, EvidenceAdded))
    assert [item.kind for item in added.items] == [Kind.CHECKPOINT_INVALID]
    assert engine.handle(EvidenceReceived(START + timedelta(seconds=1010), listings)).changes == []
    whole = told("n1", part("n1", 30, RANKS["n1"], 900.0)), told("n2", part("n2", 30, RANKS["n2"], 900.0))
    out = engine.handle(EvidenceReceived(START + timedelta(seconds=1200), whole))
    (kept,) = (change for change in out.changes if isinstance(change, SettingChanged))
    again = state_of(Stored(settings={kept.name: kept.value}), ClusterView(), rules=RULES, settings=SETTINGS)
    assert again.joined_saves._attempts[101, 0].whole == {("/nvme/%N/run", 30): 2000}
    torn = told("n1", part("n1", 40, (0, 1), 1200.0))
    torn.data["listing"] = "no listing"  # type: ignore[index]
    out = engine.handle(EvidenceReceived(START + timedelta(seconds=1300), (torn,)))
    assert [remark.name for remark in out.remarks] == ["listing-unreadable"] and out.changes == []


def test_a_finding_about_the_saves_of_a_later_job_with_the_same_id_is_news(world: World) -> None:
    state = state_of(Stored(), world.live, rules=RULES, settings=SETTINGS)
    engine, now = Engine(state), START + timedelta(seconds=1000)
    listings = told("n1", part("n1", 20, (0, 1), 600.0)), told("n2", part("n2", 20, (3,), 600.0))

    def findings() -> list[str]:
        out = engine.handle(EvidenceReceived(now, tuple(replace(item, at=now) for item in listings)))
        return [i.kind for change in out.changes if isinstance(change, EvidenceAdded) for i in change.items]

    assert findings() == [Kind.CHECKPOINT_INVALID]
    state.joined_saves.leave(101)
    state.used_ids.note(world.live.attempts[101, 0].view, START)
    assert findings() == [Kind.CHECKPOINT_INVALID]
