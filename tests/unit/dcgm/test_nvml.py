"""NVML in DCGM's place, over a made-up pynvml with the errors of the real one."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from sentinel.adapters.gpu.nvml import Nvml
from sentinel.errors import Unavailable


class NVMLError(Exception):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class Library(types.ModuleType):
    """Two GPUs; ``lost`` and ``down`` change what they answer."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    nvmlEventTypeXidCriticalError = 8
    nvmlMemory_v2 = 0x2000028

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.lost: set[int] = set()
        self.down = ""
        self.xids: list[tuple[int, int]] = []
        self.freed = 0
        self.remapped: Any = (1, 2, 0, 0)

    def nvmlInit(self) -> None:
        if self.down:
            raise NVMLError(self.down)

    def nvmlShutdown(self) -> None:
        self.freed += 1

    def nvmlEventSetWait_v2(self, _events: Any, _timeout: int) -> Any:
        if not self.xids:
            raise NVMLError("Timeout")
        device, xid = self.xids.pop(0)
        return types.SimpleNamespace(device=device, eventData=xid)

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": 2, "nvmlEventSetCreate": "set",
            "nvmlDeviceRegisterEvents": None, "nvmlEventSetFree": None, "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetTemperatureThreshold": 90, "nvmlDeviceGetPowerUsage": 123400,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 1, "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=7),
            "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(used=5 * 2**20), "nvmlDeviceGetPcieReplayCounter": 3,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5, "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkWidth": 16, "nvmlDeviceGetTotalEccErrors": 4,
            "nvmlDeviceGetRemappedRows": self.remapped,
            "nvmlDeviceGetPciInfo": types.SimpleNamespace(busId=b"00000000:1B:00.0"),
            "nvmlDeviceGetFieldValues": [
                types.SimpleNamespace(nvmlReturn=0, valueType=1, value=types.SimpleNamespace(uiVal=2))
            ],
        }  # fmt: skip
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if arguments and arguments[0] in self.lost:
                raise NVMLError_GpuIsLost("GPU is lost")
            if name in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMinorNumber"):
                return arguments[0]
            if name == "nvmlDeviceGetUUID":
                return f"GPU-{arguments[0]}"
            if name not in answers or answers[name] is NVMLError_NotSupported:
                raise NVMLError_NotSupported("Not Supported")
            return answers[name]

        return call


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    made = Library()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    yield made


def test_fields_under_dcgms_numbers(library: Library) -> None:
    with Nvml() as nvml:
        sample = nvml.sample()
    assert [gpu["uuid"] for gpu in sample["gpus"]] == ["GPU-0", "GPU-1"]
    fields = sample["gpus"][0]["fields"]
    assert (fields["150"], fields["155"], fields["252"], fields["238"], fields["1523"]) == (55, 123.4, 5, 16, 2)
    assert (fields["394"], fields["393"], fields["396"], fields["395"]) == (1, 2, 0, 0)
    assert sample["gpus"][0]["pci"] == "00000000:1B:00.0"
    assert library.freed == 1


def test_what_is_not_supported_is_blank(library: Library) -> None:
    library.remapped = NVMLError_NotSupported
    with Nvml() as nvml:
        fields = nvml.sample()["gpus"][0]["fields"]
    assert (fields["395"], fields["150"]) == (None, 55)


def test_a_lost_gpu_has_a_status_and_no_fields(library: Library) -> None:
    with Nvml() as nvml:
        nvml.sample()
        library.lost.add(1)
        gpus = nvml.sample()["gpus"]
    assert [(gpu["status"], gpu["uuid"]) for gpu in gpus] == [(1, "GPU-0"), (4, "GPU-1")]
    assert gpus[1]["fields"] == {}


def test_xids_since_the_last_call(library: Library) -> None:
    with Nvml() as nvml:
        nvml.sample()
        library.xids += [(1, 31), (1, 79)]
        assert [event[:2] for event in nvml.sample()["events"]] == [(1, 31), (1, 79)]
        assert nvml.sample()["events"] == []


def test_a_driver_that_does_not_fit_its_library(library: Library) -> None:
    library.down = "Driver/library version mismatch"
    with pytest.raises(Unavailable, match="version mismatch"), Nvml():
        pass


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Unavailable, match="nvidia-ml-py"):
        Nvml()
