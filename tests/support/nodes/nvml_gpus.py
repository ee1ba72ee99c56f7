"""Eight H100 as DCGM's NVML injection reads them (``NVML_INJECTION_MODE=True``, ``NVML_YAML_FILE``): a healthy node.

    python tests/support/nodes/nvml_gpus.py > gpus.yaml

Keys are the names of NVML's getters; a value is its status (0: success) and what it returns, in NVML's units: degrees
Celsius, milliwatts, megahertz, bytes. JSON is YAML. Figures are those of NVIDIA's data sheet for H100 SXM5, or what a real
one answered under driver 580 (thresholds, temperature and power when idle, rows to remap, retired pages, events, link
speed); serial numbers are made up.
"""

from __future__ import annotations

import json
from typing import Any

GPUS = 8
MIB = 1 << 20
H100_PCI_DEVICE = 0x233010DE
H100_SUBSYSTEM = 0x16C110DE
HOPPER = 9  # nvmlDeviceArchitecture_t
NVLINKS = 18
# nvmlTemperatureThresholds_t: shutdown, slowdown, memory's maximum, GPU's maximum
THRESHOLDS = {0: 95, 1: 89, 2: 95, 3: 87}
GRAPHICS, SM, MEMORY, VIDEO = range(4)  # nvmlClockType_t
MAX_CLOCKS = {GRAPHICS: 1980, SM: 1980, MEMORY: 2619, VIDEO: 1545}
# nvml.h, NVML_FI_DEV_...: ECC totals (volatile and aggregate, single and double bit), remapped rows, NVLink's CRC (flits,
# data), replay and recovery errors.
ECC_TOTALS, REMAPPED_ROWS, NVLINK_ERRORS = range(3, 7), range(142, 146), (38, 45, 52, 59)
UNSIGNED_LONG_LONG = 3  # nvmlValueType_t
NOT_SUPPORTED = 3  # NVML_ERROR_NOT_SUPPORTED
# The fabric manager is done with a GPU: state 3 (NVML_GPU_FABRIC_STATE_COMPLETED), status 0.
FABRIC = {"clusterUuid": "5e417135-0000-4000-8000-0000000000fa", "status": 0, "cliqueId": 1, "state": 3}


def _ok(value: Any) -> dict[str, Any]:
    return {"FunctionReturn": 0, "ReturnValue": value}


def _each(keys: Any, value: Any) -> dict[int, Any]:
    """The same answer for each second key of a getter."""
    return {key: _ok(value) for key in keys}


def _field(number: int, value: int) -> dict[str, Any]:
    return {
        "fieldId": number, "scopeId": 0, "timestamp": 0, "latencyUsec": 0, "valueType": UNSIGNED_LONG_LONG, "nvmlReturn": 0,
        "value": value,
    }  # fmt: skip


def uuid_of(index: int) -> str:
    return f"GPU-5e417135-0000-4000-8000-{index:012x}"


def _device(index: int) -> dict[str, Any]:
    bus = 0x1B + 0x10 * index
    errors = {kind: {counter: _ok(0) for counter in (0, 1)} for kind in (0, 1)}
    locations = {kind: {counter: _each(range(8), 0) for counter in (0, 1)} for kind in (0, 1)}
    return {
        "Name": _ok("NVIDIA H100 80GB HBM3"), "Brand": _ok(14), "Index": _ok(index), "MinorNumber": _ok(index),
        "Serial": _ok(f"16500230{index:05d}"), "UUID": _ok(uuid_of(index)), "BoardPartNumber": _ok("692-2G520-0200-000"),
        "VbiosVersion": _ok("96.00.74.00.01"), "InforomImageVersion": _ok("G520.0200.00.05"),
        "InforomVersion": _each(range(3), "16.0"), "ValidateInforom": {"FunctionReturn": 0},
        "InforomConfigurationChecksum": _ok(12345 + index), "Architecture": _ok(HOPPER),
        "CudaComputeCapability": _ok({"major": 9, "minor": 0}), "NumGpuCores": _ok(16896), "BoardId": _ok(bus << 8),
        "MultiGpuBoard": _ok(0), "DisplayMode": _ok(0), "DisplayActive": _ok(0), "PersistenceMode": _ok(1),
        "ComputeMode": _ok(0), "AccountingMode": _ok(0), "AccountingBufferSize": _ok(4000), "BusType": _ok(2),
        "EccMode": _ok({"current": 1, "pending": 1}), "DefaultEccMode": _ok(1),
        "MigMode": _ok({"currentMode": 0, "pendingMode": 0, "current": 0, "pending": 0}), "MaxMigDeviceCount": _ok(7),
        "VirtualizationMode": _ok(0), "HostVgpuMode": {"FunctionReturn": NOT_SUPPORTED},
        "PciInfo": _ok({
            "busIdLegacy": f"0000:{bus:02X}:00.0", "busId": f"00000000:{bus:02X}:00.0", "domain": 0, "bus": bus,
            "device": 0, "pciDeviceId": H100_PCI_DEVICE, "pciSubSystemId": H100_SUBSYSTEM,
        }),
        "MaxPcieLinkGeneration": _ok(5), "CurrPcieLinkGeneration": _ok(5), "MaxPcieLinkWidth": _ok(16),
        "CurrPcieLinkWidth": _ok(16), "PcieReplayCounter": _ok(0), "PcieThroughput": _each((0, 1), 100),
        "PcieLinkMaxSpeed": _ok(5), "PcieSpeed": _ok(32000),
        "MemoryInfo": _ok({"total": 81559 * MIB, "free": 81000 * MIB, "used": 4 * MIB, "reserved": 555 * MIB, "version": 2}),
        "BAR1MemoryInfo": _ok({"bar1Total": 131072 * MIB, "bar1Free": 131070 * MIB, "bar1Used": 2 * MIB}),
        "MemoryBusWidth": _ok(5120), "UtilizationRates": _ok({"gpu": 0, "memory": 0}),
        "EncoderUtilization": _ok({"utilization": 0, "samplingPeriodUs": 1000}),
        "DecoderUtilization": _ok({"utilization": 0, "samplingPeriodUs": 1000}),
        "Temperature": _each((0,), 43),
        "TemperatureThreshold": {key: _ok(value) for key, value in THRESHOLDS.items()},
        "ClockInfo": {key: _ok(value if key == MEMORY else 345) for key, value in MAX_CLOCKS.items()},
        "MaxClockInfo": {key: _ok(value) for key, value in MAX_CLOCKS.items()},
        "ApplicationsClock": {key: _ok(value) for key, value in MAX_CLOCKS.items()},
        "DefaultApplicationsClock": {key: _ok(value) for key, value in MAX_CLOCKS.items()},
        "MaxCustomerBoostClock": {key: _ok(value) for key, value in MAX_CLOCKS.items()},
        "SupportedMemoryClocks": _ok([MAX_CLOCKS[MEMORY]]),
        "SupportedGraphicsClocks": _each((MAX_CLOCKS[MEMORY],), [MAX_CLOCKS[GRAPHICS], 345]),
        "CurrentClocksEventReasons": _ok(1), "CurrentClocksThrottleReasons": _ok(1),
        "SupportedClocksEventReasons": _ok(511), "SupportedClocksThrottleReasons": _ok(511),
        "PerformanceState": _ok(0), "PowerState": _ok(0), "PowerManagementMode": _ok(1), "PowerUsage": _ok(75000 + index),
        "PowerManagementLimit": _ok(700000), "PowerManagementDefaultLimit": _ok(700000), "EnforcedPowerLimit": _ok(700000),
        "PowerManagementLimitConstraints": _ok({"minLimit": 200000, "maxLimit": 700000}),
        "TotalEnergyConsumption": _ok(1000), "SupportedEventTypes": _ok(0xFF9F),
        "ViolationStatus": _each(range(8), {"referenceTime": 0, "violationTime": 0}),
        "TotalEccErrors": errors, "MemoryErrorCounter": locations,
        "RemappedRows": _ok({"corrRows": 0, "uncRows": 0, "isPending": 0, "failureOccurred": 0}),
        "RowRemapperHistogram": _ok({"max": 2560, "high": 0, "partial": 0, "low": 0, "none": 0}),
        "RetiredPages": _each((0, 1), []), "RetiredPagesPendingStatus": {"FunctionReturn": NOT_SUPPORTED},
        "NvLinkState": _each(range(NVLINKS), 1), "NvLinkVersion": _each(range(NVLINKS), 7),
        "NvLinkRemoteDeviceType": _each(range(NVLINKS), 2),
        "NvLinkErrorCounter": {link: _each(range(5), 0) for link in range(NVLINKS)},
        "NvLinkCapability": {link: _each(range(6), 1) for link in range(NVLINKS)},
        "TopologyCommonAncestor": {uuid_of(other): _ok(50) for other in range(GPUS) if other != index},
        "OnSameBoard": {uuid_of(other): _ok(False) for other in range(GPUS) if other != index},
        "GpuFabricInfo": _ok(FABRIC), "GpuFabricInfoV": _ok({**FABRIC, "version": 2, "healthMask": 0, "healthSummary": 1}),
        "SupportedVgpus": _ok([]), "QueryDeviceSupport": _ok({"version": 1, "isSupportedDevice": 0}),
        "ComputeRunningProcesses": _ok([]), "GraphicsRunningProcesses": _ok([]),
        "FieldValues": _ok({number: _field(number, 0) for number in (*ECC_TOTALS, *REMAPPED_ROWS, *NVLINK_ERRORS)}),
        "CpuAffinity": _ok([(1 << 64) - 1]),
    }  # fmt: skip


def node() -> dict[str, Any]:
    """The whole node, as ``NVML_YAML_FILE`` holds it."""
    return {
        "Global": {
            "DeviceOrder": [uuid_of(index) for index in range(GPUS)], "Count": _ok(GPUS), "Count_v2": _ok(GPUS),
            "DriverVersion": _ok("570.86.15"), "NVMLVersion": _ok("12.570.86.15"), "CudaDriverVersion": _ok(12080),
            "CudaDriverVersion_v2": _ok(12080), "ExcludedDeviceCount": _ok(0),
        },
        "Device": {uuid_of(index): _device(index) for index in range(GPUS)},
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(node(), indent=1))
