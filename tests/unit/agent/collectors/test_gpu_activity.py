"""What a node tells of its GPUs: from samples of every second, a handful of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from sentinel.agent.collectors.gpu_activity import GpuActivityLog
from sentinel.agent.probes.tasks import own_gpus
from sentinel.evidence.gpu_samples import (
    DRAM_ACTIVE,
    GPU_UTILISATION,
    NVLINK_RX,
    NVLINK_TX,
    PCIE_RX,
    PCIE_TX,
    POWER_W,
    TENSOR_ACTIVE,
    Gpu,
    Sample,
)
from sentinel.model.records import Scalar, utc

START = utc(1_900_000_000)
WORKS: dict[int, Scalar] = {
    GPU_UTILISATION: 98, POWER_W: 600.0, TENSOR_ACTIVE: 0.4, DRAM_ACTIVE: 0.5, NVLINK_TX: 5e10, NVLINK_RX: 5e10,
}  # fmt: skip
SPINS: dict[int, Scalar] = {
    GPU_UTILISATION: 100, POWER_W: 180.0, TENSOR_ACTIVE: 0.0, DRAM_ACTIVE: 0.002, NVLINK_TX: 1e5, NVLINK_RX: 1e5,
}  # fmt: skip


class Node:
    def __init__(self) -> None:
        self.work, self.now_s = GpuActivityLog(), 0.0

    def seconds(self, count: int, fields: Mapping[int, Scalar], without: tuple[int, ...] = ()) -> Node:
        kept = {number: value for number, value in fields.items() if number not in without}
        for _ in range(count):
            self.now_s += 1.0
            at = START + timedelta(seconds=self.now_s)
            self.work.add(Sample(at, "dcgm", (Gpu(0, uuid="GPU-0", minor=5, fields=kept),)))
        return self

    def told(self, after_s: float = 0.0) -> Mapping[str, Any]:
        (found,) = self.work.report(START + timedelta(seconds=self.now_s + after_s))
        return found


def test_a_gpu_that_spins_is_still_since_it_last_worked() -> None:
    told = Node().seconds(100, WORKS).seconds(9, SPINS).told()
    assert (told["index"], told["still_s"], told["stood"]) == (5, 8.0, [])
    assert told["traffic"] == pytest.approx(0.002) and told["usual_w"] == 600.0


def test_a_gpu_that_works_is_not_still_and_what_was_is_remembered() -> None:
    node = Node().seconds(100, WORKS).seconds(12, SPINS).seconds(50, WORKS)
    told = node.seconds(2, SPINS).seconds(20, WORKS).told()  # two seconds are not worth remembering
    assert told["still_s"] == 0.0
    assert told["stood"] == [[83.0, 12.0]]
    assert told["traffic"] == pytest.approx(1.0)  # NVLink as usual is more than memory


# Read from an H200 under driver 580: a product of matrices in a loop; a kernel that waits for a flag in memory; nothing.
READ = (GPU_UTILISATION, POWER_W, TENSOR_ACTIVE, DRAM_ACTIVE, PCIE_TX, PCIE_RX, NVLINK_TX, NVLINK_RX)
H200: dict[str, dict[int, Scalar]] = {
    name: dict(zip(READ, values, strict=True))
    for name, values in {
        "busy": (100, 691.4, 0.936, 0.159, 4_663_596, 13_666_091, 0, 0),
        "waiting": (100, 140.8, 0.0, 3.87e-06, 270_479, 26_209, 0, 0),
        "idle": (0, 81.9, 0.0, 3.79e-06, 273_580, 20_439, 0, 0),
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("still", ["waiting", "idle"])
@pytest.mark.parametrize("missing", [(), (TENSOR_ACTIVE, DRAM_ACTIVE, PCIE_TX, PCIE_RX, NVLINK_TX, NVLINK_RX)])
def test_a_real_gpu_that_waits_is_told_from_one_that_works(still: str, missing: tuple[int, ...]) -> None:
    node = Node().seconds(100, H200["busy"], missing)
    assert node.told()["still_s"] == 0.0
    assert node.seconds(9, H200[still], missing).told()["still_s"] == 8.0


def test_without_profiling_power_tells() -> None:
    missing = (TENSOR_ACTIVE, DRAM_ACTIVE, NVLINK_TX, NVLINK_RX)
    told = Node().seconds(100, WORKS, missing).seconds(9, SPINS, missing).told()
    assert (told["traffic"], told["still_s"]) == (None, 8.0)


@pytest.mark.parametrize("lost", [TENSOR_ACTIVE, DRAM_ACTIVE])
def test_one_of_two_activities_alone_is_not_known(lost: int) -> None:
    """Memory may rest while the tensor cores work, and the other way round."""
    assert Node().seconds(70, WORKS, (lost,)).told()["traffic"] is None


def test_a_quiet_link_alone_proves_nothing() -> None:
    node = Node().seconds(100, WORKS, (TENSOR_ACTIVE, DRAM_ACTIVE))
    computes = {**WORKS, POWER_W: 590.0, NVLINK_TX: 0.0, NVLINK_RX: 0.0}
    assert node.seconds(20, computes, (TENSOR_ACTIVE, DRAM_ACTIVE)).told()["still_s"] == 0.0


def test_a_young_node_knows_no_usual_power_and_says_so() -> None:
    missing = (TENSOR_ACTIVE, DRAM_ACTIVE)
    told = Node().seconds(10, SPINS, missing).told()
    assert (told["usual_w"], told["still_s"]) == (None, None)


def test_a_gap_in_the_samples_breaks_what_is_known() -> None:
    node = Node().seconds(100, WORKS).seconds(9, SPINS)
    assert node.told(after_s=6.0)["still_s"] is None
    node.now_s += 30.0
    assert node.seconds(5, SPINS).told()["still_s"] == 4.0


def test_a_blank_second_is_not_known() -> None:
    assert Node().seconds(100, WORKS).seconds(9, SPINS).seconds(1, {}).seconds(3, SPINS).told()["still_s"] == 2.0


def test_short_stretches_of_each_step_do_not_push_out_those_of_pauses() -> None:
    node = Node().seconds(100, WORKS).seconds(60, SPINS)
    for _ in range(60):
        node.seconds(10, WORKS).seconds(5, SPINS)
    stood = node.seconds(1, WORKS).told()["stood"]
    assert len(stood) == 24 and 60.0 in [length_s for _, length_s in stood]
    assert min(ago_s for ago_s, _ in stood) == 5.0


GPUS = [{"index": n} for n in range(4)]


@pytest.mark.parametrize(
    ("environments", "left"),
    [
        ([{"SLURM_JOB_GPUS": "0,1,2,3"}, {"SLURM_STEP_GPUS": "2,3"}, {"SLURM_STEP_GPUS": "0,1"}], [0, 1, 2, 3]),
        ([{"SLURM_STEP_GPUS": "2,3"}, {"SLURM_STEP_GPUS": "2,3", "SLURM_JOB_GPUS": "0"}], [2, 3]),
        ([{"SLURM_STEP_GPUS": "2,3"}, {}], [0, 1, 2, 3]),  # not known of all
        ([{"SLURM_STEP_GPUS": "2,9"}], [0, 1, 2, 3]),  # numbers of another kind
        ([{"SLURM_STEP_GPUS": "GPU-1;rm"}], [0, 1, 2, 3]),
    ],
)
def test_a_job_is_judged_by_its_own_gpus(environments: list[dict[str, str]], left: list[int]) -> None:
    found = own_gpus(GPUS, iter(environments))
    assert isinstance(found, list) and [gpu["index"] for gpu in found] == left


def test_where_gpus_are_not_known_none_are_chosen() -> None:
    assert own_gpus(None, iter([{}])) is None


def test_a_clock_that_was_set_back_makes_no_duration() -> None:
    node = Node().seconds(100, WORKS).seconds(9, SPINS)
    node.now_s -= 3600.0
    told = node.seconds(3, SPINS).told()
    assert (told["still_s"], told["utilisation"], told["stood"]) == (2.0, 1.0, [])
    assert node.seconds(2, WORKS).told()["still_s"] == 0.0
