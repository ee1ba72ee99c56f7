"""Faults of GPUs: the kernel's line where the driver would print it, and the state that the fake DCGM shows."""

from __future__ import annotations

import argparse
from typing import Any

from lab import gpus
from lab.faults.base import Fault, Options, Record, add_node
from lab.layout import Lab, LabError

# What the driver says after the number; other numbers get a neutral text. --text replaces it.
TEXTS = {
    13: "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address",
    31: "Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @ 0x7f2c_40000000",
    43: "Ch 00000018",
    45: "Ch 00000010",
    48: "DBE (double bit error) ECC Error",
    63: "Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "Row Remapper: Error writing to the remapping table",
    74: "NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM (0x1). RST: No, D-RST: No",
    95: "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "Timeout after 6s of waiting for RPC response from GPU GSP! Expected function 76 (GSP_RM_CONTROL).",
    140: "An uncorrectable ECC error detected (possible firmware handling failure) DRAM:0, LTC:0, MMU:0, PCIE:0",
}
GSP = (119, 120)  # of its firmware: one alone only advises a drain
# DCGM fields (facts of DCGM 4): double-bit and single-bit totals, volatile and aggregate; row remapping.
SBE_VOLATILE, DBE_VOLATILE, SBE_AGGREGATE, DBE_AGGREGATE, DBE_MEMORY = 310, 311, 312, 313, 319
REMAP_UNCORRECTABLE, REMAP_FAILED, REMAP_PENDING = 393, 395, 396


def address(lab: Lab, node: str, index: int) -> str:
    """PCI address as the driver prints it in an Xid line, e.g. ``0000:3b:00``."""
    pci: str = gpus.read(lab, node)["gpus"][index]["pci"]
    return pci.rpartition(".")[0]


def check(lab: Lab, options: Options) -> tuple[str, int]:
    lab.index(options.node)
    if not 0 <= options.gpu < lab.spec.gpus:
        raise LabError(f"--gpu {options.gpu}: the nodes of this lab have GPUs 0 to {lab.spec.gpus - 1}")
    return options.node, options.gpu


def add_gpu(parser: argparse.ArgumentParser) -> None:
    add_node(parser)
    parser.add_argument("--gpu", type=int, default=0)


def xid(lab: Lab, options: Options) -> list[Record]:
    node, index = check(lab, options)
    text = options.text or TEXTS.get(options.xid, "Unknown error")
    where = address(lab, node, index)
    lines = [f"NVRM: Xid (PCI:{where}): {options.xid}, pid='<unknown>', name=<unknown>, {text}"]
    if options.xid == 79:
        identity = gpus.read(lab, node)["gpus"][index]["uuid"]
        lines.insert(0, f"NVRM: GPU at PCI:{where}: {identity}")
        lines.append(f"NVRM: GPU {where}.0: GPU has fallen off the bus.")
    if options.xid in GSP:  # as drivers since 555 go on
        reset = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
        lines.append(f"NVRM: Xid (PCI:{where}): 154, pid='<unknown>', name=<unknown>, {reset}")
    said = [gpus.kernel_line(lab, node, line) for line in lines]
    gpus.add_xid(lab, node, index, options.xid, lost=options.xid == 79)
    return [XID.record(node=node, gpu=index, xid=options.xid, kmsg=said)]


def xid_arguments(parser: argparse.ArgumentParser) -> None:
    add_gpu(parser)
    parser.add_argument("--xid", type=int, required=True, help="any number; 79 also takes the GPU off the bus")
    parser.add_argument("--text", help="the driver's words after the number")


def gpu_lost(lab: Lab, options: Options) -> list[Record]:
    node, index = check(lab, options)

    def edit(state: dict[str, Any]) -> None:
        state["gpus"][index]["status"] = "lost"

    gpus.change(lab, node, edit)
    return [GPU_LOST.record(node=node, gpu=index)]


KINDS = {
    "dbe": {DBE_VOLATILE: 1, DBE_AGGREGATE: 1, DBE_MEMORY: 1},
    "sbe": {SBE_VOLATILE: 12, SBE_AGGREGATE: 12},
    "remap-pending": {REMAP_UNCORRECTABLE: 1, REMAP_PENDING: 1},
    "remap-failed": {REMAP_UNCORRECTABLE: 8, REMAP_FAILED: 1},
}
ECC_XID = {"dbe": 48, "remap-pending": 63, "remap-failed": 64}


def ecc(lab: Lab, options: Options) -> list[Record]:
    node, index = check(lab, options)

    def edit(state: dict[str, Any]) -> None:
        fields = state["gpus"][index]["fields"]
        for field, more in KINDS[options.kind].items():
            fields[str(field)] = fields.get(str(field), 0) + more

    gpus.change(lab, node, edit)
    said = []
    number = ECC_XID.get(options.kind)
    if number:
        where = address(lab, node, index)
        said.append(gpus.kernel_line(lab, node, f"NVRM: Xid (PCI:{where}): {number}, {TEXTS[number]}"))
        gpus.add_xid(lab, node, index, number)
    return [ECC.record(node=node, gpu=index, kind=options.kind, kmsg=said)]


def ecc_arguments(parser: argparse.ArgumentParser) -> None:
    add_gpu(parser)
    parser.add_argument(
        "--kind", choices=sorted(KINDS), default="dbe", help="dbe: double-bit, sbe: corrected (harmless)"
    )


def heal(lab: Lab, record: Record) -> str:
    gpus.heal(lab, record["node"])
    return f"all GPUs of {record['node']} are healthy again"


XID = Fault("xid", "an Xid of a GPU: kernel line and DCGM event (79: the GPU is lost too)", xid, heal, xid_arguments)
GPU_LOST = Fault("gpu-lost", "a GPU that DCGM no longer reaches, without any Xid", gpu_lost, heal, add_gpu)
ECC = Fault("ecc", "memory errors of a GPU: double-bit, corrected, row remapping", ecc, heal, ecc_arguments)
FAULTS = (XID, GPU_LOST, ECC)
