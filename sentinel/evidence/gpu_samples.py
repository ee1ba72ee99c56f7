"""Samples of a GPU telemetry probe: fields by DCGM's number, samples as records. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sentinel.errors import ProtocolError
from sentinel.gpu_values import known_value
from sentinel.model.records import Scalar

# Fields by number: the names changed between releases, the numbers did not (3.3 to 4.6).
MINOR, PCI_BUS_ID = 55, 57
SBE, DBE, DBE_MEMORY, SRAM_THRESHOLD = 310, 311, 319, 346
SBE_AGGREGATE, DBE_AGGREGATE = 312, 313
REMAP_UNCORRECTABLE, REMAP_CORRECTABLE, REMAP_FAILURE, REMAP_PENDING = 393, 394, 395, 396
PCIE_REPLAY, PCIE_GENERATION, PCIE_WIDTH, PCIE_WIDTH_MAX, PCIE_AER_CORRECTABLE = 202, 237, 238, 236, 1501
NVLINK_CRC_FLIT, NVLINK_CRC_DATA, NVLINK_REPLAY, NVLINK_RECOVERY = 409, 419, 429, 439
TEMPERATURE, TEMPERATURE_MEMORY, TEMPERATURE_SLOWDOWN, POWER_W = 150, 140, 158, 155
CLOCK_REASONS, GPU_UTILISATION, MEMORY_USED_MIB = 112, 203, 252
RECOVERY_ACTION, UNREPAIRABLE, FABRIC_MANAGER_ERROR, PERSISTENCE = 1523, 1507, 171, 66
# Of DCGM's profiling module, which a node may lack: shares of time (0 to 1) and bytes a second.
TENSOR_ACTIVE, DRAM_ACTIVE, PCIE_TX, PCIE_RX, NVLINK_TX, NVLINK_RX = 1004, 1005, 1009, 1010, 1011, 1012
TRAFFIC = (TENSOR_ACTIVE, DRAM_ACTIVE, PCIE_TX, PCIE_RX, NVLINK_TX, NVLINK_RX)

# Where a fault shows: read every second.
WATCHED = (
    SBE, DBE, DBE_MEMORY, SRAM_THRESHOLD, REMAP_UNCORRECTABLE, REMAP_FAILURE, REMAP_PENDING, PCIE_REPLAY, PCIE_GENERATION,
    PCIE_WIDTH, NVLINK_CRC_FLIT, NVLINK_CRC_DATA, NVLINK_REPLAY, NVLINK_RECOVERY, TEMPERATURE, TEMPERATURE_MEMORY, POWER_W,
    CLOCK_REASONS, GPU_UTILISATION, MEMORY_USED_MIB, RECOVERY_ACTION, UNREPAIRABLE, FABRIC_MANAGER_ERROR,
)  # fmt: skip
# What belongs to the board, and counters over its life: read now and then.
SLOW = (
    PCIE_WIDTH_MAX, TEMPERATURE_SLOWDOWN, PERSISTENCE, SBE_AGGREGATE, DBE_AGGREGATE, REMAP_CORRECTABLE, PCIE_AER_CORRECTABLE,
)  # fmt: skip
FAST = (RECOVERY_ACTION, REMAP_FAILURE, DBE_MEMORY)  # looked at more often than the rest, together with Xids
# Every working GPU has these, whatever its model: when all of them are blank everywhere, DCGM is blind.
ALWAYS_THERE = (TEMPERATURE, POWER_W, CLOCK_REASONS, GPU_UTILISATION, MEMORY_USED_MIB)

OK, UNSUPPORTED, INACCESSIBLE, LOST, FAKE, DISABLED, DETACHED = 1, 2, 3, 4, 5, 6, 7  # GetGpuStatus; 0: not known
HARD_SLOWDOWN = 0x8 | 0x40 | 0x80  # hardware slowdown, its thermal and its power brake
ACTIONS = {
    0: "none", 1: "GPU reset", 2: "node reboot", 3: "drain peer-to-peer", 4: "drain and reset", 5: "recover the IMEX domain",
    6: "bus reset", 7: "system reboot",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a sample; ``fields`` by number, None where DCGM said blank, absent where it was not read of late."""

    id: int
    uuid: str | None = None
    pci: str | None = None
    minor: int | None = None
    status: int | None = None
    fields: Mapping[int, Scalar] = field(default_factory=dict)

    @property
    def index(self) -> int:
        """As Slurm's gres counts: by the minor number of the device file."""
        return self.id if self.minor is None else self.minor

    @property
    def key(self) -> str:
        return self.uuid or f"gpu{self.id}"

    def number(self, field: int) -> float | None:
        """The value of a field; None where it is not known or no number."""
        value = self.fields.get(field)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class HealthIncident:
    """By entity and code only: the text names wrong GPUs."""

    entity_group: int
    entity: int
    system: int
    health: int  # 10 warning, 20 failure
    code: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    at: datetime
    via: str  # dcgm, dcgmi, nvml, amd_smi
    gpus: tuple[Gpu, ...] = ()
    events: tuple[tuple[int, int, int], ...] = ()  # GPU id, Xid, microseconds
    health: tuple[HealthIncident, ...] | None = None  # None: not asked this time
    full: bool = True  # False: only the fast fields
    closed: bool = False  # of DCGM: no user of the node can reach its host engine
    last_xids: Mapping[int, int] | None = None  # GPU id → its last Xid, of any time; None: the source gives events

    @property
    def open_engine(self) -> bool:
        """Whether any user of the node may have written these values: DCGM's engine asks nobody who connects who it is."""
        return self.via in ("dcgm", "dcgmi") and not self.closed


def sample_from(message: Mapping[str, Any], at: datetime) -> Sample:
    """A sample from the JSON of the probe.

    Raises:
        ProtocolError: of another shape.
    """
    try:
        gpus = tuple(
            Gpu(
                id=int(gpu["id"]),
                uuid=known_value(gpu.get("uuid")),
                pci=known_value(gpu.get("pci")),
                minor=known_value(gpu.get("minor")),
                status=known_value(gpu.get("status")),
                fields={int(number): known_value(value) for number, value in gpu.get("fields", {}).items()},
            )
            for gpu in message["gpus"]
        )
        health, last = message.get("health"), message.get("last_xids")
        return Sample(
            at=at,
            via=str(message["via"]),
            gpus=gpus,
            events=tuple(
                (int(gpu), int(xid), int(at_us))
                for gpu, xid, at_us in message.get("events", ())
                if known_value(xid) is not None
            ),
            last_xids=None
            if last is None
            else {int(gpu): int(xid) for gpu, xid in last.items() if known_value(xid) is not None},
            health=None if health is None else tuple(HealthIncident(**incident) for incident in health),
            full=bool(message.get("full", True)),
            closed=message.get("closed") is True,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a sample: {error!r:.120}") from error
