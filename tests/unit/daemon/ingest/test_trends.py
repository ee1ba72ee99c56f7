"""Counters from agents to trends: telemetry, kept once a day, and a reason to suspect a node, never to drain it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from in_memory.daemon import Daemon
from in_memory.world import World
from made_records import OPTED_IN, ended, evidence, later
from shipped import shipped_signatures

from sentinel.config.signals_files import load_signals
from sentinel.daemon.ingest.trends import read_trends
from sentinel.detect.counters import counter_rows
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Evidence, Kind, Source, Where

Worlds = Callable[..., World]
DAY_S = 86400.0
KNOWN = load_signals().counters


def told(day: float, node: str = "n1", **values: float) -> Evidence:
    data: dict[str, Any] = {key.replace("__", "/"): value for key, value in values.items()}
    return evidence(Kind.COUNTERS, at_s=day * DAY_S, node=node, source=Source.DCGM, data=data, text="counters")


async def test_counters_are_telemetry(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    assert await daemon.observe(
        [told(n / 4, gpu3__row_remap_correctable=float(n), gpu0__pcie_replay=0.0) for n in range(8)]
    )
    await daemon.quiet()
    assert there.store.evidence_since(later(-1)) == [] and daemon.state.incidents == {}
    rows = there.store.counters(later(-1))
    assert [(row["unit"], row["name"], row["value"]) for row in rows if row["unit"]] == [
        ("gpu3", "row_remap_correctable", 1.0),
        ("gpu3", "row_remap_correctable", 5.0),
        ("gpu3", "row_remap_correctable", 7.0),
    ]


async def test_growth_from_zero_is_seen_though_zeros_are_not_kept(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there)
    grown = [told(float(day), gpu3__row_remap_correctable=float(max(0, day - 10))) for day in range(21)]
    await daemon.observe(grown)
    (trend,) = read_trends(there.store, KNOWN, later(20 * DAY_S))
    assert (trend.node, trend.unit, trend.value) == ("n1", "gpu3", 10.0) and abs(trend.days - 20) < 0.01
    assert (
        trend.suspect
        and trend.faster
        and trend.reason.startswith("rows remapped after corrected errors of gpu3: 0.5 a day")
    )


def test_of_a_node_whose_clock_is_ahead_counters_are_of_when_they_came() -> None:
    """Those of a time to come would be kept until then, and end each trend there."""
    ahead = dataclasses.replace(told(9000.0, gpu0__x=1.0), seen_at=later(0.0))
    behind = dataclasses.replace(told(-1.0, gpu0__x=1.0), seen_at=later(0.0))
    assert {row["at"] for row in counter_rows([ahead])} == {later(0.0)}
    assert {row["at"] for row in counter_rows([behind])} == {later(-DAY_S)}


def test_what_is_no_counter_is_left_out() -> None:
    data = {"gpu0/x": float("nan"), "gpu1/x": -1.0, "gpu2/x": True, "gpu3/": 1, "y" * 100 + "/x": 1, "a/" + "z" * 60: 1,
            "gpu4/x": "1", "mlx5_0:1/link_downed": 2, "b/told by me": 1}  # fmt: skip
    rows = counter_rows([evidence(Kind.COUNTERS, node="n1", source=Source.HOST, data=data), evidence(node="n1")])
    assert [(row["unit"], row["name"]) for row in rows] == [("", "told by host"), ("mlx5_0:1", "link_downed")]
    assert counter_rows([evidence(Kind.COUNTERS, data={"gpu0/x": 1})]) == []


async def test_ageing_part_leans_what_could_be_either_and_drains_nothing(world: Worlds) -> None:
    there = world()
    there.slurm.cancel(there.job)
    said = []
    for node in ("n1", "n2"):  # the same words on both
        job = there.slurm.submit(nodes=1, required=(node,), comment=OPTED_IN)
        reader = LogReader(
            shipped_signatures(), source=Source.JOB_LOG, where=Where(node=node, job=job, attempt=0, path="/log")
        )
        now = there.slurm.clock.now()
        line = b"[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
        said.append((job, [*reader.feed(line, now), *reader.finish(now), ended(job, at_s=0.0)]))
    daemon = Daemon(there, counters=KNOWN)
    await daemon.observe([told(float(day - 20), gpu3__row_remap_correctable=float(day)) for day in range(21)])
    await daemon.look_back()
    await daemon.fleets.take()
    for job, items in said:
        there.slurm.end(job, exit_code=1)
        await daemon.observe(items)
    await daemon.quiet()
    grounds = {}
    for job, _ in said:
        (row,) = there.store.incident_rows(job=job)
        verdict = there.store.last_verdict(row["id"])
        assert verdict is not None and verdict.drain == ()
        grounds[job] = [ground.note for ground in (*verdict.grounds, *verdict.against)]
    notes = list(grounds.values())
    assert any(note.startswith("n1 ages: rows remapped") for note in notes[0])
    assert not any("ages" in note for note in notes[1])
