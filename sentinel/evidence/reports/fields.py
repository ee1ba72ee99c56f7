"""Fields of DCGM by the names that ``dcgmi dmon`` and exporters give them, and what a value of one says."""

from __future__ import annotations

from sentinel.evidence.reports.page import Page, Told, positive
from sentinel.model.records import Kind

XID, DBE, REMAP_FAILURE, REMAP_PENDING, RETIRED_PENDING, ACTION, UNREPAIRABLE, SRAM = range(8)
_NAMES = {
    "XIDER": XID, "DCGM_FI_DEV_XID_ERRORS": XID,
    "EDVTL": DBE, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": DBE,
    "RRF": REMAP_FAILURE, "DCGM_FI_DEV_ROW_REMAP_FAILURE": REMAP_FAILURE,
    "RRP": REMAP_PENDING, "DCGM_FI_DEV_ROW_REMAP_PENDING": REMAP_PENDING,
    "RPPEN": RETIRED_PENDING, "DCGM_FI_DEV_RETIRED_PENDING": RETIRED_PENDING,
    "DCGM_FI_DEV_PAGE_RETIRED_PENDING": RETIRED_PENDING,
    "GPURECOV": ACTION, "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": ACTION, "DCGM_FI_DEV_GPU_RECOVERY_ACTION": ACTION,
    "nvidia_smi_ecc_errors_uncorrected_volatile_total": DBE,
    "nvidia_smi_remapped_rows_failure": REMAP_FAILURE, "nvidia_smi_remapped_rows_pending": REMAP_PENDING,
    "DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG": UNREPAIRABLE,
    "DCGM_FI_DEV_THRESHOLD_SRM": SRAM, "DCGM_FI_DEV_SRAM_EXCEEDED": SRAM,
}  # fmt: skip
_ACTIONS = {1: "GPU_RESET", 2: "NODE_REBOOT", 3: "DRAIN_P2P", 4: "DRAIN_AND_RESET"}
MOST_XID = 999
_SENTENCES = {
    DBE: "GPU {gpu} has {value} volatile double-bit ECC errors",
    REMAP_FAILURE: "GPU {gpu} had uncorrectable memory errors and row remapping failed",
    REMAP_PENDING: "GPU {gpu} had memory errors and row remappings are pending",
    RETIRED_PENDING: "GPU {gpu} had memory errors and row remappings are pending",
    UNREPAIRABLE: "GPU {gpu} had uncorrectable memory errors and row remapping failed: memory is not repairable",
    SRAM: "GPU {gpu} has uncorrectable ECC errors of SRAM above the threshold",
}


def field_of(name: str) -> int | None:
    """Which field a column or metric is; None for those that say nothing of a fault by one value."""
    return _NAMES.get(name)


def say_field(page: Page, line: int, which: int | None, value: str, gpu: int | None) -> None:
    """What one value says. Blank ("N/A") and 0 say nothing."""
    if which is None or not positive(value):
        return
    number = float(value)
    about = gpu if gpu is not None else "?"
    if which == XID:
        xid = int(number)
        if number == xid and xid <= MOST_XID:
            text = f"the last Xid of GPU {about} was {xid}"
            page.tell(Told(line, str(Kind.XID), text, gpu, {"xid": xid}, last_known=True))
    elif which == ACTION:
        word = _ACTIONS.get(int(number))
        if word:
            page.say(line, f"GPU {about} asks for a recovery. Recovery action: {int(number)} ({word})", gpu)
    elif number == 1 or (which == DBE and number < 1e15):  # flags are 0 or 1; DCGM's blank values are larger
        page.say(line, _SENTENCES[which].format(gpu=about, value=f"{number:g}"), gpu)
