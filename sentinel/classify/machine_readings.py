"""What the machine's own telemetry speaks for, by kind of evidence: GPU fields, host, ports, mounts."""

from __future__ import annotations

from sentinel.config.rules import Role
from sentinel.model.records import Cause

C = Cause
# kind -> weights (natural-log odds), what part it can play, words. Which convict a node: rules/convictions.toml.
TELEMETRY: dict[str, tuple[dict[Cause, float], Role, str]] = {
    "row_remap_failure": ({C.GPU_MEMORY_ECC: 5.5}, Role.CAUSE, "a row remapping failed"),
    "memory_unrepairable": ({C.GPU_MEMORY_ECC: 5.5}, Role.CAUSE, "GPU memory cannot be repaired"),
    "row_remap_pending": ({C.GPU_MEMORY_ECC: 2.5}, Role.CAUSE, "a row remapping waits for a reset"),
    "sram_threshold": ({C.GPU_MEMORY_ECC: 4.5}, Role.CAUSE, "too many uncorrectable SRAM errors"),
    "ecc_dbe": ({C.GPU_MEMORY_ECC: 4.5}, Role.CAUSE, "new uncorrectable memory errors"),
    "row_remap_uncorrectable": ({C.GPU_MEMORY_ECC: 3.5}, Role.CAUSE, "rows remapped after errors"),
    "fabric_manager": ({C.GPU_NVLINK: 4.0}, Role.CAUSE, "the fabric manager reports an error"),
    "nvlink_errors": ({C.GPU_NVLINK: 3.0}, Role.CAUSE, "NVLink errors grow"),
    "pcie_width": ({C.PCIE: 3.8}, Role.CAUSE, "the PCIe link is narrower than it can be"),
    "pcie_replay": ({C.PCIE: 3.0}, Role.CAUSE, "PCIe replays grow"),
    "gpu_thermal": ({C.GPU_THERMAL_POWER: 4.0}, Role.CAUSE, "a GPU is at its slowdown temperature"),
    "clocks_slowdown": ({C.GPU_THERMAL_POWER: 3.8}, Role.CAUSE, "the hardware slows the clocks"),
    "dcgm_all_blank": ({C.GPU_GSP_OR_DRIVER: 2.5}, Role.SYMPTOM, "the driver stopped answering DCGM"),
    "gpu_health": ({C.GPU_GSP_OR_DRIVER: 1.0}, Role.CONTEXT, "DCGM's health watch warns"),
    "kernel_panic": ({C.NODE_OS_OR_HOST: 5.5}, Role.CAUSE, "the kernel died"),
    "link_down": ({C.NETWORK_FABRIC: 4.2}, Role.CAUSE, "a fabric port is down"),
    "link_flap": ({C.NETWORK_FABRIC: 3.5}, Role.CAUSE, "a fabric port flaps"),
    "host_memory_ecc": ({C.NODE_OS_OR_HOST: 4.5}, Role.CAUSE, "uncorrected errors of host memory"),
    "host_memory_low": ({C.APP_OOM_HOST: 1.5, C.NODE_OS_OR_HOST: 0.5}, Role.CONTEXT, "host memory is low"),
    "disk_full": ({C.DISK_FULL: 3.5}, Role.CAUSE, "a disk is full"),
    "disk_failing": ({C.NODE_OS_OR_HOST: 4.0}, Role.CAUSE, "a local disk says that it fails"),
    "disk_errors": ({C.NODE_OS_OR_HOST: 2.2}, Role.CAUSE, "errors of a local disk grow"),
    "driver_mismatch": ({C.GPU_GSP_OR_DRIVER: 4.0}, Role.CAUSE, "driver and library versions differ"),
    "mount_error": ({C.FILESYSTEM_STORAGE: 3.2}, Role.CAUSE, "a mount does not answer"),
    "mount_missing": ({C.FILESYSTEM_STORAGE: 2.6, C.NODE_OS_OR_HOST: 1.0}, Role.CAUSE, "a mount is missing"),
    "stray_gpu_process": ({C.APP_OOM_GPU: 0.8}, Role.CONTEXT, "a process of no job holds a GPU"),
}
