"""Reads AMD GPUs through amdsmi (ROCm's Python module) and reports them under DCGM's field numbers.

Written from amdsmi 7.0.2's own documentation and module. **Never run on hardware.** What has no counterpart, or none in an
older release, stays blank; RAS, resets and XGMI come as lines of the amdgpu kernel driver as well (``rules/amd.toml``), and
faster.

Runs in a probe's process: every call may block as long as the driver does.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from sentinel.errors import Unavailable

UNKNOWN, OK = 0, 1  # as DCGM's GetGpuStatus; amdsmi says of no GPU that it is lost
# A driver that counts an error block twice adds exactly this much at each question; no memory fails in such steps.
MISCOUNT = 0xFFFF0
HEAT, BRAKE = 0x40, 0x80  # of DCGM's clocks-event reasons: thermal slowdown and power brake


class AmdSmi:
    """A session with AMD's library; a context manager.

    Raises:
        Unavailable: no amdsmi, no library of ROCm, or no amdgpu driver.
    """

    def __init__(self) -> None:
        try:
            self._smi: Any = importlib.import_module("amdsmi")
        except (
            ImportError,
            OSError,
            AttributeError,
            KeyError,
        ) as error:  # without ROCm's library it fails while importing
            raise Unavailable(f"amdsmi cannot be used: {error}", fix="install ROCm's amdsmi") from error
        self._error: type[Exception] = self._smi.AmdSmiException
        self._handles: list[Any] = []
        self._identities: dict[int, tuple[str | None, str | None]] = {}

    def __enter__(self) -> AmdSmi:
        try:
            self._smi.amdsmi_init()
            self._handles = list(self._smi.amdsmi_get_processor_handles())
        except self._error as error:
            raise Unavailable(f"AMD SMI: {error}", fix="is the amdgpu driver loaded?") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ask("amdsmi_shut_down")

    def sample(self) -> dict[str, Any]:
        """Every GPU with the fields that could be read. No events: AMD's errors come from the kernel log."""
        gpus = [self._gpu(index, handle) for index, handle in enumerate(self._handles)]
        return {"gpus": gpus, "events": []}

    def _gpu(self, index: int, handle: Any) -> dict[str, Any]:
        if index not in self._identities:
            uuid = self._ask("amdsmi_get_gpu_device_uuid", handle)
            bdf = self._ask("amdsmi_get_gpu_device_bdf", handle)
            self._identities[index] = (uuid or None, bdf or None)
        uuid, pci = self._identities[index]
        fields = self._fields(handle)
        known = any(value is not None for value in fields.values())
        if uuid is None:
            del self._identities[index]
        return {"id": index, "uuid": uuid, "pci": pci, "status": OK if known else UNKNOWN, "fields": fields}

    def _fields(self, handle: Any) -> dict[str, float | None]:
        smi = self._smi
        power = self._table("amdsmi_get_power_info", handle)
        activity = self._table("amdsmi_get_gpu_activity", handle)
        memory = self._table("amdsmi_get_gpu_vram_usage", handle)
        errors = self._table("amdsmi_get_gpu_total_ecc_count", handle)
        link = self._table("amdsmi_get_pcie_info", handle)
        metric, static = _part(link, "pcie_metric"), _part(link, "pcie_static")
        hottest, current = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        vram, critical = smi.AmdSmiTemperatureType.VRAM, smi.AmdSmiTemperatureMetric.CRITICAL
        watts = (_number(power.get(key)) for key in ("current_socket_power", "socket_power", "average_socket_power"))
        pages = self._pages(handle) or {}
        return {
            "150": _number(self._ask("amdsmi_get_temp_metric", handle, hottest, current)),
            "158": _number(self._ask("amdsmi_get_temp_metric", handle, hottest, critical)),
            "140": _number(self._ask("amdsmi_get_temp_metric", handle, vram, current)),
            "155": next((value for value in watts if value), None),
            "112": self._slowdown(handle),
            "203": _number(activity.get("gfx_activity")),
            "252": _number(memory.get("vram_used")),
            "310": _count(errors.get("correctable_count")),
            "311": _count(errors.get("uncorrectable_count")),
            "202": _number(metric.get("pcie_replay_count")),
            "238": _number(metric.get("pcie_width")),
            "236": _number(static.get("max_pcie_width")),
            "396": pages.get("pending"),
            "1507": self._unrepairable(handle, pages.get("retired")),
            # 0 none, 1 one, 2 several since the last reset of the status: grows like a counter.
            "429": _number(self._ask("amdsmi_gpu_xgmi_error_status", handle)),
        }

    def _pages(self, handle: Any) -> dict[str, int] | None:
        """Number of bad pages waiting for a reset, and of retired pages; None if not known."""
        listed = self._ask("amdsmi_get_gpu_bad_page_info", handle)
        if not isinstance(listed, list):
            return None
        kinds = self._smi.AmdSmiMemoryPageStatus
        states = [page.get("status") for page in listed if isinstance(page, Mapping)]
        return {"pending": states.count(int(kinds.PENDING)), "retired": states.count(int(kinds.RESERVED))}

    def _unrepairable(self, handle: Any, retired: int | None) -> int | None:
        """1 when more pages are bad than the board may have: AMD's criterion for a return."""
        limit = _number(self._ask("amdsmi_get_gpu_bad_page_threshold", handle))
        if retired is None or not limit:
            return None
        return int(retired > limit)

    def _slowdown(self, handle: Any) -> int | None:
        """External reasons for reduced clocks, as DCGM's bits of clocks-event reasons."""
        state = self._table("amdsmi_get_violation_status", handle)
        heat = [state.get(f"active_{part}_thrm") for part in ("socket", "vr", "hbm")]
        brake = state.get("active_prochot_thrm")
        if not any(isinstance(value, bool) for value in (*heat, brake)):
            return None
        return (HEAT if True in heat else 0) | (BRAKE if brake is True else 0)

    def _table(self, function: str, *arguments: Any) -> Mapping[str, Any]:
        made = self._ask(function, *arguments)
        return made if isinstance(made, Mapping) else {}

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Call a function of the library; None if this GPU or this release does not support it."""
        try:
            return getattr(self._smi, function)(*arguments) if hasattr(self._smi, function) else None
        except self._error:
            return None


def _part(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    made = table.get(name)
    return made if isinstance(made, Mapping) else {}


def _number(value: object) -> float | None:
    """The number; None for "N/A" and anything else that is not a number."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(value: object) -> float | None:
    number = _number(value)
    return None if number is None or (number and number % MISCOUNT == 0) else number
