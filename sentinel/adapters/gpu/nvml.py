"""Reads GPUs through NVML (nvidia-ml-py) on nodes without DCGM, under DCGM's field numbers, as far as NVML has them.

Runs in a probe's process: every call may block as long as the driver does.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from sentinel.errors import Unavailable

_LOST = "NVMLError_GpuIsLost"
UNKNOWN, OK, LOST = 0, 1, 4  # as DCGM's GetGpuStatus
_RECOVERY_ACTION = "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"


class Nvml:
    """A session with the driver's library; a context manager.

    Args:
        folder: where ``pynvml.py`` lies; empty: it is installed.

    Raises:
        Unavailable: no nvidia-ml-py, no driver, or the driver and its library do not fit.
    """

    def __init__(self, folder: str = "") -> None:
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            self._nvml: Any = importlib.import_module("pynvml")
        except ImportError as error:
            raise Unavailable("nvidia-ml-py is not installed", fix="pip install nvidia-ml-py") from error
        self._error: type[Exception] = self._nvml.NVMLError
        self._events: Any = None
        self._handles: list[Any] = []
        self._gone: set[int] = set()
        self._identities: dict[int, tuple[str | None, str | None]] = {}

    def __enter__(self) -> Nvml:
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
        except self._error as error:
            # "Driver/library version mismatch" arrives here: the driver was updated and the node not rebooted.
            raise Unavailable(
                f"NVML: {error}", fix="is the driver loaded, and of the version of its library?"
            ) from error
        for index in range(count):
            self._handles.append(self._handle(index))  # None where the driver gives none
        self._watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._events is not None:
                self._nvml.nvmlEventSetFree(self._events)
            self._nvml.nvmlShutdown()
        except self._error:
            return  # the driver is gone, which is why we leave

    def sample(self) -> dict[str, Any]:
        """Every GPU with the fields that could be read, and the Xids since the last call."""
        return {
            "gpus": [self._gpu(index, handle) for index, handle in enumerate(self._handles)],
            "events": self._xids(),
        }

    # ------------------------------------------------------------------------------------------------ one GPU

    def _handle(self, index: int) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(index)
        except self._error as error:
            if type(error).__name__ == _LOST:
                self._gone.add(index)
            return None  # no interrupts, no power cable: of this one nothing is known, of the others everything

    def _gpu(self, index: int, handle: Any) -> dict[str, Any]:
        if handle is None:
            return {"id": index, "status": LOST if index in self._gone else UNKNOWN, "fields": {}}
        nvml = self._nvml
        if index not in self._identities:
            uuid = self._text(lambda: nvml.nvmlDeviceGetUUID(handle))
            pci = self._text(lambda: nvml.nvmlDeviceGetPciInfo(handle).busId)
            self._identities[index] = (uuid, pci)
        uuid, pci = self._identities[index]
        self._gone.discard(index)
        made: dict[str, Any] = {"id": index, "uuid": uuid, "pci": pci}
        minor = self._number(index, lambda: nvml.nvmlDeviceGetMinorNumber(handle))
        if minor is not None:
            made["minor"] = int(minor)
        fields = self._fields(index, handle)
        if index in self._gone:
            return {**made, "status": LOST, "fields": {}}
        return {**made, "status": OK, "fields": fields}

    def _fields(self, index: int, handle: Any) -> dict[str, float | None]:
        nvml = self._nvml
        corrected, uncorrected, volatile = 0, 1, 0
        remapped = self._tuple(index, lambda: nvml.nvmlDeviceGetRemappedRows(handle), 4)
        readers: dict[int, Callable[[], Any]] = {
            150: lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            158: lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
            155: lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            112: lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),  # its newer name is not in old drivers
            203: lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            252: lambda: self._memory(handle).used / 2**20,
            202: lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle),
            237: lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            238: lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
            236: lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
            310: lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, corrected, volatile),
            311: lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, uncorrected, volatile),
            1523: lambda: self._field_value(handle, _RECOVERY_ACTION),
        }
        fields = {str(number): self._number(index, reader) for number, reader in readers.items()}
        for place, number in enumerate((394, 393, 396, 395)):  # corrected, uncorrected, pending, failure
            fields[str(number)] = remapped[place]
        return fields

    def _memory(self, handle: Any) -> Any:
        """As nvidia-smi and DCGM count it. NVML's first form, all that drivers before 510 have, counts what the driver
        reserves as used: 615 MiB of an idle H200.
        """
        try:
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, self._nvml.nvmlMemory_v2)
        except self._error as error:
            if type(error).__name__ != "NVMLError_FunctionNotFound":
                raise
            return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _field_value(self, handle: Any, name: str) -> Any:
        number = getattr(self._nvml, name, None)
        if number is None:
            return None
        value = self._nvml.nvmlDeviceGetFieldValues(handle, [number])[0]
        if value.nvmlReturn != 0:
            return None
        kinds = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
        kind = kinds.get(int(value.valueType))
        return getattr(value.value, kind, None) if kind else None

    def _number(self, index: int, read: Callable[[], Any]) -> float | None:
        try:
            value = read()
        except self._error as error:
            if type(error).__name__ == _LOST:
                self._gone.add(index)
            return None  # not supported, no permission, not known
        return value if isinstance(value, (int, float)) else None

    def _tuple(self, index: int, read: Callable[[], Any], size: int) -> tuple[float | None, ...]:
        try:
            values = tuple(read())
        except self._error as error:
            if type(error).__name__ == _LOST:
                self._gone.add(index)
            return (None,) * size
        return tuple(float(value) for value in values) if len(values) == size else (None,) * size

    def _text(self, read: Callable[[], Any]) -> str | None:
        try:
            value = read()
        except self._error:
            return None
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    # ------------------------------------------------------------------------------------------------ Xids

    def _watch(self) -> None:
        """Have the driver queue Xids from now on; GPUs that do not support this report none."""
        nvml = self._nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
        except self._error:
            return
        for handle in self._handles:
            if handle is not None:
                try:
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
                except self._error:
                    continue

    def _xids(self) -> list[tuple[int, int, int]]:
        if self._events is None:
            return []
        uuids = {uuid: index for index, (uuid, _) in self._identities.items()}
        found: list[tuple[int, int, int]] = []
        while len(found) < 1000:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._error:
                return found  # a timeout: there is nothing more
            uuid = self._text(lambda device=event.device: self._nvml.nvmlDeviceGetUUID(device))  # type: ignore[misc]
            if uuid in uuids:
                found.append((uuids[uuid], int(event.eventData), int(time.time() * 1e6)))
        return found
