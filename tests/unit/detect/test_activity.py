"""Two looks at a job's processes and GPUs: what a GPU does, what a job does, and for how long all GPUs have stood."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sentinel.detect.activity import (
    GpuActivity,
    Look,
    Motion,
    Process,
    all_blocked,
    gpu_idleness,
    motion_of_job,
    read_look,
    trains_over_network,
)
from sentinel.model.records import utc

NOW = utc(1_900_000_000)
SPINS = GpuActivity(0, 1.0, 180.0, 600.0, 0.0, 20.0)
IDLE = GpuActivity(1, 0.0, 90.0, 600.0, 0.0, 30.0)
WORKS = GpuActivity(2, 1.0, 590.0, 600.0, 0.6, 0.0)


@pytest.mark.parametrize(
    ("utilisation", "power_w", "usual_w", "traffic", "word"),
    [
        (1.0, 180.0, 600.0, None, "spins"),  # power alone
        (1.0, 500.0, 600.0, None, "unclear"),  # between a wait and work
        (1.0, 500.0, 600.0, 0.01, "spins"),  # what it moves decides
        (1.0, 400.0, 600.0, 0.5, "works"),  # bound by memory: less power than usual, and no wait
        (1.0, 400.0, 600.0, 0.06, "unclear"),
        (1.0, 590.0, 600.0, 0.0, "works"),  # no tensor core and no memory, but full power
        (1.0, None, None, 0.0, "spins"),
        (1.0, None, None, None, "unclear"),
        (0.5, 180.0, 600.0, 0.0, "moves"),
        (0.0, 90.0, 600.0, None, "idle"),
        (0.0, 90.0, 600.0, 0.8, "works"),  # copies run without a kernel
        (None, 180.0, 600.0, 0.0, "unclear"),
    ],
)
def test_what_a_gpu_does(
    utilisation: float | None, power_w: float | None, usual_w: float | None, traffic: float | None, word: str
) -> None:
    assert GpuActivity(0, utilisation, power_w, usual_w, traffic).word == word


def look(at_s: float, *cpu_s: float, gpus: tuple[GpuActivity, ...] | None, written: int = 0) -> Look:
    processes = tuple(Process(50 + n, "S", cpu, 0, written, leaf=True) for n, cpu in enumerate(cpu_s))
    return Look(at_s, processes, gpus)


@pytest.mark.parametrize(
    ("busy", "gpus", "motion"),
    [
        ((0, 0), (SPINS, IDLE), Motion.WAITS),
        ((1, 0), (SPINS, IDLE), Motion.WAITS),  # one polls for the one that spins
        ((1, 1), (SPINS, SPINS), Motion.WAITS),
        ((1, 1), (SPINS, IDLE), Motion.LOOPS),  # one polls; whose GPU idles, that one computes
        ((1, 0), (IDLE, IDLE), Motion.LOOPS),
        ((0, 0), (SPINS, WORKS), Motion.WORKS),
        ((1, 0), (), Motion.UNCLEAR),  # a node without GPUs
        ((0, 0), None, Motion.UNCLEAR),
    ],
)
def test_what_a_node_does(busy: tuple[int, int], gpus: tuple[GpuActivity, ...] | None, motion: Motion) -> None:
    before = {"n1": look(0.0, 1.0, 1.0, gpus=gpus)}
    after = {"n1": look(5.0, *(1.0 + 5.0 * one for one in busy), gpus=gpus)}
    assert motion_of_job(["n1"], before, after) is motion


def test_who_works_or_does_not_answer_comes_before_who_loops() -> None:
    before = {"n1": look(0.0, 1.0, gpus=(IDLE,)), "n2": look(0.0, 1.0, gpus=(WORKS,))}
    after = {"n1": look(5.0, 6.0, gpus=(IDLE,)), "n2": look(5.0, 1.0, gpus=(WORKS,))}
    assert motion_of_job(["n1"], before, after) is Motion.LOOPS
    assert motion_of_job(["n1", "n2"], before, after) is Motion.WORKS
    assert motion_of_job(["n1", "n3"], before, after) is Motion.UNKNOWN


@pytest.mark.parametrize(
    ("answer", "motion"), [(0, Motion.UNSEEN), (1, Motion.UNSEEN), (2, Motion.UNKNOWN), (4, Motion.WAITS)]
)
def test_less_than_half_of_the_nodes_say_nothing_of_the_job(answer: int, motion: Motion) -> None:
    nodes = ["n1", "n2", "n3", "n4"]
    before = {name: look(0.0, 1.0, gpus=(SPINS,)) for name in nodes[:answer]}
    after = {name: look(5.0, 1.0, gpus=(SPINS,)) for name in nodes[:answer]}
    assert motion_of_job(nodes, before, after) is motion
    assert motion_of_job(nodes, {}, after) is Motion.UNSEEN  # one look compares with nothing


NOT_KNOWN = GpuActivity(1, 1.0, 500.0, 600.0, None, 0.0)


@pytest.mark.parametrize(
    ("gpus", "moved", "written", "motion"),
    [
        (None, 5_000, 0, Motion.QUIET),
        ((NOT_KNOWN, SPINS), 5_000, 0, Motion.QUIET),
        ((GpuActivity(1, 0.5, 180.0, 600.0, 0.0), SPINS), 5_000, 0, Motion.UNCLEAR),  # a GPU that works now and then
        (None, 50_000_000, 0, Motion.UNCLEAR),
        (None, None, 0, Motion.UNCLEAR),  # no counters
        (None, -1_000, 0, Motion.UNCLEAR),  # started anew
        (None, 5_000, 1_000_000, Motion.UNCLEAR),  # a process moves data, which are not on their way yet
        (None, 5_000, 100_000_000, Motion.WRITES),
        ((SPINS,), 5_000, 0, Motion.WAITS),  # what the GPUs do is known
        ((WORKS,), 5_000, 0, Motion.WORKS),
        ((), 5_000, 0, Motion.UNCLEAR),  # a node without GPUs, whose processes compute
    ],
)
def test_a_quiet_network_tells_where_the_gpus_do_not(
    gpus: tuple[GpuActivity, ...] | None, moved: int | None, written: int, motion: Motion
) -> None:
    before = {"n1": replace(look(0.0, 1.0, gpus=gpus), network_bytes=10**9)}
    network_bytes = None if moved is None else 10**9 + moved
    after = {
        "n1": replace(look(5.0, 6.0 if gpus == () else 1.0, gpus=gpus, written=written), network_bytes=network_bytes)
    }
    assert motion_of_job(["n1"], before, after, by_network=True) is motion
    unseen = Motion.UNCLEAR if motion is Motion.QUIET else motion
    assert motion_of_job(["n1"], before, after) is unseen  # its collectives may take another way


def test_a_job_trains_over_the_network_if_its_nodes_moved_much() -> None:
    nodes = ["n1", "n2"]

    def moved(at_s: float, *bytes_: int | None) -> dict[str, Look]:
        looks = (replace(look(at_s, 1.0, gpus=None), network_bytes=each) for each in bytes_)
        return dict(zip(nodes, looks, strict=False))

    earlier, much = moved(0.0, 0, 0), 600 * 10_000_000
    assert trains_over_network(nodes, earlier, moved(600.0, much, much))
    assert trains_over_network(nodes, earlier, moved(600.0, much))  # n2 does not answer
    assert trains_over_network(nodes, moved(0.0, 0), moved(600.0, much, much))  # n1 alone was asked
    assert not trains_over_network(nodes, earlier, moved(600.0, much, much // 2))
    assert not trains_over_network(nodes, {}, moved(600.0, much, much))
    assert not trains_over_network(nodes, earlier, moved(600.0, much, None))
    assert not trains_over_network(nodes, moved(900.0, 0, 0), moved(600.0, much, much))  # started anew
    assert not trains_over_network(nodes[:1], earlier, moved(600.0, much))  # nothing of one node need leave it


def test_a_save_shows_before_the_gpus_do() -> None:
    before, after = look(0.0, 1.0, gpus=(WORKS,)), look(5.0, 1.0, gpus=(WORKS,), written=100_000_000)
    assert motion_of_job(["n1"], {"n1": before}, {"n1": after}) is Motion.WRITES


@pytest.mark.parametrize(
    ("gpus", "blocked"),
    [
        ((SPINS, SPINS), True),
        ((SPINS, IDLE), False),  # one rank did not come: it may fetch data, save or compute on its host
        ((SPINS, WORKS), False),
        ((SPINS, GpuActivity(1, 1.0, 180.0, 600.0, None, 20.0)), False),  # power alone: may be a generation
        ((), False),
        (None, False),
    ],
)
def test_all_gpus_wait_inside_a_collective(gpus: tuple[GpuActivity, ...] | None, *, blocked: bool) -> None:
    looks = {"n1": look(0.0, 0.0, gpus=(SPINS, SPINS)), "n2": look(0.0, 0.0, gpus=gpus)}
    assert all_blocked(("n1", "n2"), looks) is blocked
    assert not all_blocked(("n1", "n2", "n3"), looks)  # a node did not answer
    assert not all_blocked(("n1",), {"n1": look(0.0, 0.0, gpus=(SPINS,))})  # one GPU waits for nobody


def test_all_gpus_stand_since_the_last_one_worked() -> None:
    looks = {"n1": look(0.0, 1.0, gpus=(SPINS, IDLE)), "n2": look(0.0, 1.0, gpus=())}
    found = gpu_idleness(["n1", "n2"], looks, NOW)
    assert found is not None
    assert (found.still_s, NOW - found.since) == (20.0, timedelta(seconds=30))


def test_a_few_gpus_may_work_while_all_others_wait_for_them() -> None:
    looks = {"n1": look(0.0, 1.0, gpus=(SPINS, IDLE)), "n2": look(0.0, 1.0, gpus=(IDLE, WORKS))}
    found = gpu_idleness(["n1", "n2"], looks, NOW)
    assert found is not None
    assert (found.still_s, NOW - found.since) == (20.0, timedelta(seconds=30))
    unclear = GpuActivity(1, 1.0, 500.0, 600.0, None, 0.0)
    assert gpu_idleness(["n1"], {"n1": look(0.0, 1.0, gpus=(SPINS,) * 7 + (unclear,))}, NOW) is None


@pytest.mark.parametrize(
    "gpus",
    [(SPINS, SPINS, WORKS), (SPINS, GpuActivity(1, 0.0, 90.0, 600.0)), (), None],
    ids=["works", "old agent", "none", "blind"],
)
def test_a_third_that_works_or_one_gpu_that_is_not_known_ends_it(gpus: tuple[GpuActivity, ...] | None) -> None:
    assert gpu_idleness(["n1"], {"n1": look(0.0, 1.0, gpus=gpus)}, NOW) is None
    assert gpu_idleness(["n1", "n2"], {"n1": look(0.0, 1.0, gpus=(SPINS,))}, NOW) is None  # n2 did not answer


def test_what_an_agent_tells_of_a_gpu_is_read_and_nonsense_is_not_known() -> None:
    def gpu(**told: Any) -> GpuActivity:
        answer = {"tasks": [{"pid": 1, "state": "S", "rank": 0}], "gpus": [{"index": 3, **told}]}
        found = read_look(answer, 0.0)
        assert found is not None and found.gpus is not None
        return found.gpus[0]

    assert gpu(traffic=0.02, still_s=7.5, stood=[[60.0, 12.0], ["x", 1], [1.0]]) == GpuActivity(
        3, None, None, None, 0.02, 7.5, ((60.0, 12.0),)
    )
    assert gpu(traffic="much", still_s=True, stood={"a": 1}) == GpuActivity(3, None, None, None)
