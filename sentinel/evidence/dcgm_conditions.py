"""What DCGM's fields mean: which show a condition of a GPU, which count its errors, and how much of that is too much."""

from __future__ import annotations

from sentinel.evidence.gpu_samples import (
    CLOCK_REASONS,
    DBE,
    DBE_MEMORY,
    FABRIC_MANAGER_ERROR,
    NVLINK_CRC_DATA,
    NVLINK_CRC_FLIT,
    NVLINK_RECOVERY,
    NVLINK_REPLAY,
    PCIE_REPLAY,
    PCIE_WIDTH,
    PCIE_WIDTH_MAX,
    PERSISTENCE,
    RECOVERY_ACTION,
    REMAP_FAILURE,
    REMAP_PENDING,
    REMAP_UNCORRECTABLE,
    SRAM_THRESHOLD,
    TEMPERATURE,
    TEMPERATURE_SLOWDOWN,
    UNREPAIRABLE,
)
from sentinel.model.records import Kind

PCIE_REPLAYS_PER_MIN = 8.0  # DCGM's own limit of the replay rate for the boards it knows
NVLINK_CRC_PER_S = 100.0  # DCGM's own limit

# Flags: condition and kind, field, sentence.
FLAGS = (
    ("row_remap_failure", REMAP_FAILURE, "a row remapping failed: the memory cannot be repaired"),
    ("row_remap_pending", REMAP_PENDING, "a row remapping waits for a reset"),
    ("sram_threshold", SRAM_THRESHOLD, "too many uncorrectable SRAM errors"),
    ("memory_unrepairable", UNREPAIRABLE, "memory that cannot be repaired"),
    ("fabric_manager", FABRIC_MANAGER_ERROR, "the fabric manager reports an error"),
)
# What decides conditions of a GPU, beside its status.
CONDITIONS = (
    RECOVERY_ACTION, *(number for _, number, _ in FLAGS), PCIE_WIDTH, PCIE_WIDTH_MAX, TEMPERATURE, TEMPERATURE_SLOWDOWN,
    PERSISTENCE, CLOCK_REASONS,
)  # fmt: skip
# Counters: field, kind, growth per second above which it is said (0: any growth), sentence.
COUNTERS = (
    (DBE, "ecc_dbe", 0.0, "uncorrectable memory errors"),
    (DBE_MEMORY, "ecc_dbe", 0.0, "uncorrectable errors of device memory"),
    (REMAP_UNCORRECTABLE, "row_remap_uncorrectable", 0.0, "rows remapped after uncorrectable errors"),
    (PCIE_REPLAY, "pcie_replay", PCIE_REPLAYS_PER_MIN / 60, "PCIe replays"),
    (NVLINK_CRC_FLIT, "nvlink_errors", NVLINK_CRC_PER_S, "NVLink CRC flit errors"),
    (NVLINK_CRC_DATA, "nvlink_errors", NVLINK_CRC_PER_S, "NVLink CRC data errors"),
    (NVLINK_REPLAY, "nvlink_errors", 0.0, "NVLink replays"),
    (NVLINK_RECOVERY, "nvlink_errors", 0.0, "NVLink recoveries"),
)
# Conditions whose kind of evidence has another name.
KINDS = {"gpu_count": str(Kind.GPU_LOST), "gpu_surplus": "gpu_count_mismatch"}
# What the verdict says of a condition that convicts while it holds.
SENTENCES = {
    "gpu_lost": "a GPU is lost",
    "gpu_count": "GPUs are missing",
    "recovery_action": "the driver asks for recovery action",
    "row_remap_failure": "row remapping failed",
    "memory_unrepairable": "GPU memory cannot be repaired",
}
# Kinds of evidence of which the reader knows whether they still hold.
HOLDS = frozenset(
    [
        "gpu_lost", "recovery_action", "row_remap_failure", "row_remap_pending", "sram_threshold", "memory_unrepairable",
        "fabric_manager", "pcie_width", "gpu_thermal", "persistence_off", "clocks_slowdown", "dcgm_all_blank", "gpu_health",
        "gpu_count_mismatch",
    ]
)  # fmt: skip
