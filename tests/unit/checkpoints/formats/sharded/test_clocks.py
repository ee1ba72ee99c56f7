"""Nodes whose clocks differ: a save is written by several, and a client may set the times of its files itself (Lustre)."""

from __future__ import annotations

import os

import pytest

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.records import Costs
from sentinel.checkpoints.validate import Settings, validate
from sentinel.daemon.effects.unusable_parts import unusable

AHEAD_S = [8, 60, 600, 7200]


@pytest.fixture
def saves(make):
    """Makes so many saves of a run, one every 1,000 s."""

    def made(kind, name, count):
        paths = []
        for number in range(1, count + 1):
            step = {} if kind == "consolidated" else {"step": 10 * number}
            paths.append(getattr(make, kind)(name.format(10 * number), **step))
            for path in [*paths[-1].rglob("*"), paths[-1]]:
                at_s = path.stat().st_mtime - 1000 * (count - number)
                os.utime(path, (at_s, at_s))
        return paths

    return made


def ahead(path, pattern, seconds):
    """As a node leaves its files whose clock is so far ahead."""
    for file in path.rglob(pattern):
        at_s = file.stat().st_mtime + seconds
        os.utime(file, (at_s, at_s))


def ask(make, path):
    return validate(path, "checksum", now_s=make.now_s + 1e5, settings=Settings(unsummed=True))


@pytest.mark.parametrize("seconds", AHEAD_S[:-1])
@pytest.mark.parametrize(
    ("kind", "name", "pattern"),
    [
        ("dcp", "run/step-{}", "__[23]_0.distcp"),
        ("accelerate", "run/step_{}", "random_states_[1-9].pkl"),
        ("consolidated", "run/step-{}", "shard-0000[34]-*"),
    ],
)
def test_a_node_whose_clock_is_ahead_in_every_save(make, saves, kind, name, pattern, seconds):
    paths = saves(kind, name, 2)
    for path in paths:
        ahead(path, pattern, seconds)
    assert [ask(make, path).valid for path in paths] == [True, True], [ask(make, path) for path in paths]


@pytest.mark.parametrize("seconds", AHEAD_S)
def test_the_only_save_is_not_known_by_the_times_of_another_nodes_clock(make, seconds):
    path = make.dcp("run/step-10")
    ahead(path, "__[23]_0.distcp", seconds)
    answer = ask(make, path)
    assert answer.valid is None and "or by a clock that is ahead" in answer.reason, answer


def test_a_clock_that_is_further_ahead_than_saves_are_apart_makes_none_invalid(make, saves):
    paths = saves("dcp", "run/step-{}", 2)
    for path in paths:
        ahead(path, "__[23]_0.distcp", 7200)
    assert False not in [ask(make, path).valid for path in paths]


@pytest.mark.parametrize("file", ["__0_0.distcp", "__[0-3]_0.distcp"])
def test_one_clock_proves_a_save_overwritten_in_place(make, file):
    """Rank 0 writes the marker, too."""
    make.dcp("run/step-20", step=20)
    path = make.dcp("run/step-10")
    ahead(path, file, 1800)
    answer = ask(make, path)
    assert answer.valid is False and "__0_0.distcp was written" in answer.reason, answer


def test_a_clock_explains_no_save_that_is_much_later_than_the_one_beside(make, saves):
    paths = saves("dcp", "run/step-{}", 3)
    for path, seconds in zip(paths, (8, 8, 1800), strict=True):
        ahead(path, "__[23]_0.distcp", seconds)
    assert [ask(make, path).valid for path in paths] == [True, True, None]


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_moved_aside_for_a_clock(make, saves, count):
    for path in saves("dcp", "run/step-{}", count):
        ahead(path, "__[23]_0.distcp", 8)
    parts = [
        part.after_its_writer()
        for part in listing(make.root / "run", "global", "n1", level="checksum", now_s=make.now_s)
    ]
    candidates = join([parts])
    decision = choose(
        candidates, step_last=35, step_time_s=10, next_nodes=None, lost_nodes=frozenset(), world_size=None,
        costs=Costs(), level="checksum",
    )  # fmt: skip
    assert unusable(parts, candidates, {}) == [], decision
    assert (decision.chosen is None) is (count == 1), decision
