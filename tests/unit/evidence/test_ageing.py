"""Counters that age: said now and then, sooner when they grow, never when they are not known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sentinel.correlate.incidents import opens
from sentinel.evidence.counters import NAMES, Ageing
from sentinel.evidence.gpu_samples import SLOW, WATCHED, Gpu, Sample
from sentinel.model.records import Kind, Source

NOW = datetime(2031, 5, 1, tzinfo=UTC)


def sample(minutes: float, full: bool = True, **fields: float | None) -> Sample:
    known = {number: fields[name] for number, name in NAMES.items() if name in fields}
    gpus = (Gpu(id=0, uuid="GPU-a", minor=3, fields=known), Gpu(id=1, uuid="GPU-b", minor=5))
    return Sample(NOW + timedelta(minutes=minutes), "dcgm", gpus, full=full)


def test_what_ages_is_watched() -> None:
    assert set(NAMES) <= {*WATCHED, *SLOW}


def test_one_evidence_for_the_node_by_unit_and_name() -> None:
    ageing = Ageing("n1", Source.DCGM)
    assert ageing.gpus(sample(0, full=False, pcie_replay=1)) == []
    (item,) = ageing.gpus(sample(0, pcie_replay=1, row_remap_correctable=2, ecc_corrected=None))
    assert item.data == {"gpu3/pcie_replay": 1.0, "gpu3/row_remap_correctable": 2.0}, (
        "as Slurm counts; unknown is absent"
    )
    assert (item.kind, item.where.node, item.at) == (Kind.COUNTERS, "n1", NOW)
    assert not opens(item)


def test_unchanged_they_are_said_seldom_and_changed_soon() -> None:
    ageing = Ageing("n1", Source.DCGM, period_s=3600, change_s=600)
    said = [minute for minute in range(180) if ageing.gpus(sample(minute, pcie_replay=7))]
    assert said == [0, 60, 120]
    said = [minute for minute in range(180, 240) if ageing.gpus(sample(minute, pcie_replay=minute))]
    assert said == [180, 190, 200, 210, 220, 230]


def test_nothing_known_is_nothing_said() -> None:
    assert Ageing("n1", Source.DCGM).gpus(sample(0)) == []


def test_a_clock_that_was_set_back_silences_nobody() -> None:
    ageing = Ageing("n1", Source.DCGM)
    assert ageing.gpus(sample(600, pcie_replay=7))
    assert ageing.gpus(sample(0, pcie_replay=7))
