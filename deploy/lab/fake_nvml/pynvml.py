"""What the driver itself says of the GPUs of `gpus.json`, shaped like nvidia-ml-py: the functions that Sentinel calls.

It says what the fake DCGM says, as both ask one driver; and what is put into `"injected"` of a GPU, as `dcgmi test --inject`
puts it into DCGM alone, it does not.
"""

import pathlib
import sys
import types

sys.path.append(str(pathlib.Path(__file__).parents[1] / "fake_dcgm"))

import fake_state

NVML_TEMPERATURE_GPU = NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 1523
nvmlMemory_v2 = 2
nvmlEventTypeXidCriticalError = 8


class NVMLError(Exception):
    pass


class NVMLError_GpuIsLost(NVMLError):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


def _gpus():
    return fake_state.gpus(fake_state.call(None))


def _value(handle, number):
    state = fake_state.call(None)
    gpu = fake_state.gpus(state)[handle]
    if gpu.get("status", "ok") == "lost":
        raise NVMLError_GpuIsLost("GPU is lost")
    found = fake_state.value({**state, "all_blank": False}, {**gpu, "injected": {}}, number)
    if found is None:
        raise NVMLError_NotSupported("not supported")
    return found


def nvmlInit():
    fake_state.call(None)


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index):
    handle = sorted(_gpus())[index]
    _value(handle, 150)
    return handle


def nvmlDeviceGetUUID(handle):
    return _gpus()[handle]["uuid"]


def nvmlDeviceGetPciInfo(handle):
    return types.SimpleNamespace(busId=_gpus()[handle].get("pci", ""))


def nvmlDeviceGetMinorNumber(handle):
    return _value(handle, 55)


def nvmlDeviceGetTemperature(handle, _sensor):
    return _value(handle, 150)


def nvmlDeviceGetTemperatureThreshold(handle, _kind):
    return _value(handle, 158)


def nvmlDeviceGetPowerUsage(handle):
    return _value(handle, 155) * 1000


def nvmlDeviceGetCurrentClocksThrottleReasons(handle):
    return _value(handle, 112)


def nvmlDeviceGetUtilizationRates(handle):
    return types.SimpleNamespace(gpu=_value(handle, 203))


def nvmlDeviceGetMemoryInfo(handle, _version=None):
    return types.SimpleNamespace(used=_value(handle, 252) * 2**20)


def nvmlDeviceGetPcieReplayCounter(handle):
    return _value(handle, 202)


def nvmlDeviceGetCurrPcieLinkGeneration(handle):
    return _value(handle, 237)


def nvmlDeviceGetCurrPcieLinkWidth(handle):
    return _value(handle, 238)


def nvmlDeviceGetMaxPcieLinkWidth(handle):
    return _value(handle, 236)


def nvmlDeviceGetTotalEccErrors(handle, kind, _counter):
    return _value(handle, 310 + kind)


def nvmlDeviceGetRemappedRows(handle):
    return tuple(_value(handle, number) for number in (394, 393, 396, 395))


def nvmlDeviceGetFieldValues(handle, numbers):
    return [
        types.SimpleNamespace(nvmlReturn=0, valueType=1, value=types.SimpleNamespace(uiVal=_value(handle, number)))
        for number in numbers
    ]


def nvmlEventSetCreate():
    raise NVMLError_NotSupported("the kernel log tells of Xids")
