"""NVML in DCGM's place, over the real nvidia-ml-py: its symbols, structures, constants and errors are what we use.

No driver is needed: below the module lies a library of Python functions that fills the structures which it declares.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.gpu.nvml import LOST, OK, UNKNOWN, Nvml
from sentinel.errors import Unavailable

pynvml: Any = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


class Driver:
    """libnvidia-ml with three GPUs: one well, one lost, one that gives no handle."""

    def __init__(self) -> None:
        self.xids = [(1, 63), (1, 94)]
        self.freed: list[str] = []
        self.down = 0
        self.old = False  # before release 510

    def __getattr__(self, name: str) -> Callable[..., int]:
        method = type(self).__dict__.get(f"_{name}")
        if method is None:
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            return int(method(self, *arguments) or 0)

        return function

    def _nvmlInitWithFlags(self, _flags: int) -> int:
        return self.down

    def _nvmlShutdown(self) -> None:
        self.freed.append("session")

    def _nvmlErrorString(self, code: int) -> bytes:
        return f"error {code}".encode()

    def _nvmlDeviceGetCount_v2(self, count: Any) -> None:
        count._obj.value = 3

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        ctypes.cast(ctypes.addressof(handle._obj), ctypes.POINTER(ctypes.c_void_p))[0] = 100 + index.value
        return int(pynvml.NVML_ERROR_IRQ_ISSUE) if index.value == 2 else 0

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, _size: Any) -> None:
        text.value = b"GPU-%d" % (_address(handle) - 100)

    def _nvmlDeviceGetPciInfo_v3(self, _handle: Any, info: Any) -> None:
        info._obj.busId = b"00000000:1B:00.0"

    def _nvmlDeviceGetMinorNumber(self, handle: Any, number: Any) -> int:
        number._obj.value = 7 - (_address(handle) - 100)
        return int(pynvml.NVML_ERROR_GPU_IS_LOST) if _address(handle) == 101 else 0

    def _nvmlDeviceGetTemperature(self, _handle: Any, sensor: Any, value: Any) -> None:
        assert sensor.value == 0
        value._obj.value = 55

    def _nvmlDeviceGetTemperatureThreshold(self, _handle: Any, threshold: Any, value: Any) -> None:
        value._obj.value = {1: 90}[threshold.value]

    def _nvmlDeviceGetPowerUsage(self, _handle: Any, value: Any) -> None:
        value._obj.value = 123400

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: Any, value: Any) -> None:
        value._obj.value = 0x40

    def _nvmlDeviceGetUtilizationRates(self, _handle: Any, value: Any) -> None:
        value._obj.gpu = 97

    def _nvmlDeviceGetMemoryInfo(self, _handle: Any, value: Any) -> None:
        value._obj.used = (5 + 615) << 20  # as an H200 of driver 580: with what the driver reserves

    def _nvmlDeviceGetMemoryInfo_v2(self, _handle: Any, value: Any) -> int:
        if self.old:
            return int(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        assert value._obj.version == pynvml.nvmlMemory_v2
        value._obj.used, value._obj.reserved = 5 << 20, 615 << 20
        return 0

    def _nvmlDeviceGetPcieReplayCounter(self, _handle: Any, value: Any) -> None:
        value._obj.value = 3

    def _nvmlDeviceGetCurrPcieLinkGeneration(self, _handle: Any, value: Any) -> None:
        value._obj.value = 4

    def _nvmlDeviceGetCurrPcieLinkWidth(self, _handle: Any, value: Any) -> None:
        value._obj.value = 8

    def _nvmlDeviceGetMaxPcieLinkWidth(self, _handle: Any, value: Any) -> None:
        value._obj.value = 16

    def _nvmlDeviceGetTotalEccErrors(self, _handle: Any, kind: Any, counter: Any, value: Any) -> None:
        assert counter.value == pynvml.NVML_VOLATILE_ECC
        value._obj.value = {
            pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED: 11,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED: 2,
        }[kind.value]

    def _nvmlDeviceGetRemappedRows(self, _handle: Any, *values: Any) -> None:
        for value, number in zip(values, (6, 5, 1, 0), strict=True):  # corrected, uncorrected, pending, failure
            value._obj.value = number

    def _nvmlDeviceGetFieldValues(self, _handle: Any, count: Any, values: Any) -> None:
        assert count.value == 1
        (value,) = values._obj
        assert value.fieldId == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        value.nvmlReturn, value.valueType = 0, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        value.value.uiVal = 2

    def _nvmlEventSetCreate(self, events: Any) -> None:
        ctypes.cast(ctypes.addressof(events._obj), ctypes.POINTER(ctypes.c_void_p))[0] = 500

    def _nvmlEventSetFree(self, _events: Any) -> None:
        self.freed.append("events")

    def _nvmlDeviceRegisterEvents(self, _handle: Any, kinds: Any, _events: Any) -> None:
        assert kinds.value == pynvml.nvmlEventTypeXidCriticalError

    def _nvmlEventSetWait_v2(self, _events: Any, data: Any, timeout_ms: Any) -> int:
        assert timeout_ms.value == 0, "the probe never waits in the driver"
        if not self.xids:
            return int(pynvml.NVML_ERROR_TIMEOUT)
        gpu, xid = self.xids.pop(0)
        ctypes.cast(ctypes.addressof(data._obj), ctypes.POINTER(ctypes.c_void_p))[0] = 100 + gpu - 1
        data._obj.eventData = xid
        return 0


def _address(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(pynvml, "nvmlLib", made)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return made


def test_fields_under_dcgms_numbers(driver: Driver) -> None:
    with Nvml() as nvml:
        sample = nvml.sample()
    first, lost, mute = sample["gpus"]
    assert (first["uuid"], first["pci"], first["minor"], first["status"]) == ("GPU-0", "00000000:1B:00.0", 7, OK)
    assert first["fields"] == {
        "150": 55, "158": 90, "155": 123.4, "112": 0x40, "203": 97, "252": 5.0, "202": 3, "237": 4, "238": 8, "236": 16,
        "310": 11, "311": 2, "394": 6, "393": 5, "396": 1, "395": 0, "1523": 2,
    }  # fmt: skip
    assert (lost["status"], lost["fields"]) == (LOST, {})
    assert (mute["status"], mute["fields"]) == (UNKNOWN, {}), "one without a handle does not blind us for the others"
    assert driver.freed == ["events", "session"]


def test_memory_of_an_old_driver_is_told_with_what_it_reserves(driver: Driver) -> None:
    driver.old = True
    with Nvml() as nvml:
        assert nvml.sample()["gpus"][0]["fields"]["252"] == 620.0


def test_xids_come_as_events_of_their_gpu(driver: Driver) -> None:
    with Nvml() as nvml:
        events = nvml.sample()["events"]
        assert [(gpu, xid) for gpu, xid, _ in events] == [(0, 63), (0, 94)]
        assert nvml.sample()["events"] == []


def test_a_driver_that_does_not_fit_its_library(driver: Driver) -> None:
    driver.down = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    with pytest.raises(Unavailable, match="NVML"), Nvml():
        pass


def test_no_driver_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    if list(Path("/proc/driver").glob("nvidia")):
        pytest.skip("there is a driver here")
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    with pytest.raises(Unavailable, match="NVML"), Nvml():
        pass


def test_the_numbers_that_the_made_up_module_has() -> None:
    """``tests/unit/dcgm/test_nvml.py`` runs without nvidia-ml-py over a module with these."""
    assert (pynvml.NVML_TEMPERATURE_GPU, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == (0, 1)
    assert (pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, pynvml.nvmlEventTypeXidCriticalError) == (230, 8)
    assert pynvml.nvmlMemory_v2 == 0x2000028
    assert pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST).__class__.__name__ == "NVMLError_GpuIsLost"
    assert [
        pynvml.NVML_VALUE_TYPE_DOUBLE, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG,
        pynvml.NVML_VALUE_TYPE_SIGNED_INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT,
    ] == list(range(7))  # fmt: skip
