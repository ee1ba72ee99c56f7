"""What each cause of an interruption does to a job, and what machines and programs say of it, line by line.

The names are those of Llama 3's table 5 (``sentinel.planning.fleet``). The paper gives counts, not messages: how a cause is
spread over messages is assumed here, equal where nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.model.records import Scalar, Source
from sentinel.simulate.long_run.assumptions import MAINTENANCE, REPAIR, RESET, SWITCH_REPAIR, Span

CRASH, HANG, LOST, TAKEN = "crash", "hang", "lost", "taken"


@dataclass(frozen=True, slots=True)
class Fact:
    """What a node's agent finds out otherwise than by a log."""

    kind: str
    source: Source
    text: str
    data: Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Sign:
    """One way in which a cause shows.

    ``ends``: the job crashes ``after_s`` later, hangs, or its node is gone ("lost") or is taken by its operators ("taken").
    ``broken``: how long the node is away for repair; None: no node is broken, and the job may run where it ran.
    ``nodes``: how many nodes it strikes at once.
    """

    name: str
    weight: float = 1.0
    kernel: tuple[str, ...] = ()
    fact: Fact | None = None
    log: tuple[str, ...] = ()
    ends: str = CRASH
    after_s: float = 3.0
    broken: Span | None = None
    nodes: int = 1
    exit_code: int = 1
    exit_signal: int = 0


def _xid(number: int, words: str) -> tuple[str, ...]:
    return (f"NVRM: Xid (PCI:0000:5d:00): {number}, pid=4711, name=python, {words}",)


# The texts of CUDA's own errors for these failures (cudaErrorUnknown, ...ECCUncorrectable, ...NvlinkUncorrectable).
_CUDA = ("torch.AcceleratorError: CUDA error: unknown error",)
_ECC = ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",)
_NVLINK = ("torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",)
_IB_ERROR = (
    "n1:4711:4790 [3] NCCL WARN NET/IB: Got completion from peer 10.0.0.7<38291> with status=IBV_WC_RETRY_EXC_ERR(12) "
    "opcode=0 len=0 vendor err 129 (Recv) hca mlx5_3",
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
)
_LINK_DOWN = Fact("link_down", Source.FABRIC, "port mlx5_0:1 is DOWN", {"state": "DOWN"})
_HOT = Fact("thermal-gpu", Source.DCGM, "GPU 3 temperature exceeds the shutdown threshold", {"severity": 2})

_GPU = (
    Sign("off the bus", 3, _xid(79, "GPU has fallen off the bus."), log=_CUDA, after_s=4.0, broken=REPAIR),
    Sign(
        "NVLink", 2, _xid(74, "NVLink: fatal error detected on link 2(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
        log=_NVLINK, broken=REPAIR,
    ),
)  # fmt: skip
_HBM = (
    Sign("double bit error", 1, _xid(48, "DBE (double bit error) ECC error"), log=_ECC, broken=RESET),
    Sign("contained", 2, _xid(94, "Contained: SM (0x1). RST: No, D-RST: No"), log=_ECC, broken=RESET),
    Sign("remap failed", 1, _xid(64, "Row remapper: row remap failed"), log=_ECC, broken=REPAIR),
)
_SRAM = (
    Sign("uncontained", 1, _xid(95, "Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"), log=_ECC, broken=RESET),
)
_GSP = (
    Sign(
        "RPC timeout",
        1,
        _xid(119, "Timeout after 6s of waiting for RPC response from GPU0 GSP!"),
        ends=HANG,
        broken=RESET,
    ),
    Sign("GSP error", 1, _xid(120, "GSP task panic: 4 @ pc:0x4fd32c, partition:4#0"), log=_CUDA, broken=RESET),
)
_SWITCH = (
    Sign("retries exhausted", 3, log=_IB_ERROR),
    Sign("port down", 2, fact=_LINK_DOWN, ends=HANG, broken=SWITCH_REPAIR),
    Sign("a leaf is gone", 0.25, fact=_LINK_DOWN, ends=HANG, broken=SWITCH_REPAIR, nodes=16),
)
_NIC = (Sign("port down", 1, fact=_LINK_DOWN, ends=HANG, broken=REPAIR),)
_LOST = (Sign("node is gone", 1, ends=LOST, broken=REPAIR),)
_BOARD = (
    Sign(
        "machine check", 1, ("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: bd80000000100134",),
        ends=LOST, after_s=1.0, broken=REPAIR,
    ),
    Sign("node is gone", 1, ends=LOST, broken=REPAIR),
)  # fmt: skip
_BUG = (
    Sign("hang", 1, ends=HANG),
    Sign("segmentation fault", 1, log=("srun: error: n1: task 0: Segmentation fault",), exit_code=0, exit_signal=11),
    Sign(
        "library fails", 1,
        log=("torch.distributed.DistBackendError: NCCL error: internal error - please report this to the NCCL developers",),
    ),
    Sign(
        "data loader", 1,
        log=("RuntimeError: DataLoader worker (pid 5512) is killed by signal: Bus error.",),
    ),
)  # fmt: skip
NEEDS_CODE = Sign(
    "fails at once, every time",
    log=(
        "Traceback (most recent call last):",
        '  File "/home/ada/train.py", line 81, in main',
        "IndexError: list index out of range",
    ),
    after_s=1.0,
)

SIGNS: Mapping[str, tuple[Sign, ...]] = {
    "faulty GPU": _GPU,
    "GPU HBM memory": _HBM,
    "software bug": _BUG,
    "network switch or cable": _SWITCH,
    "host maintenance": (Sign("operators take the node", ends=TAKEN, broken=MAINTENANCE),),
    "GPU SRAM memory": _SRAM,
    "GPU system processor": _GSP,
    "NIC": _NIC,
    "NCCL watchdog timeout": (Sign("hang", ends=HANG),),
    "silent data corruption": (
        Sign(
            "NaN stops the job", broken=REPAIR,
            log=("RuntimeError: Unexpected result nan (message='found NaN in local grad norm for bucket #3')",),
        ),
    ),
    "GPU thermal interface and sensor": (Sign("too hot", fact=_HOT, log=_CUDA, broken=REPAIR),),
    "SSD": (
        Sign(
            "I/O error", 1, ("blk_update_request: critical medium error, dev nvme0n1, sector 1953520640",),
            log=("OSError: [Errno 5] Input/output error: '/nvme/run1/step-50/shard-17'",), broken=REPAIR,
        ),
    ),
    "power supply": _LOST,
    "server chassis": _LOST,
    "IO expansion board": _LOST,
    "dependency": (
        Sign("a service is gone", log=("requests.exceptions.ConnectionError: HTTPSConnectionPool: Max retries exceeded",)),
    ),
    "CPU": _BOARD,
    "system memory": _BOARD,
}  # fmt: skip
SOFTWARE_BUG = "software bug"
# Words of sites' own histories for these causes: Sentinel's ids, and what people write.
SAME_AS: Mapping[str, str] = {
    "gpu_fallen_off_bus": "faulty GPU", "gpu_nvlink": "faulty GPU", "pcie": "faulty GPU", "gpu": "faulty GPU",
    "gpu_memory_ecc": "GPU HBM memory", "gpu_memory": "GPU HBM memory", "hbm": "GPU HBM memory",
    "gpu_gsp_or_driver": "GPU system processor", "gpu_thermal_power": "GPU thermal interface and sensor",
    "network_fabric": "network switch or cable", "network": "network switch or cable", "nic": "NIC",
    "nccl_hang_unknown": "NCCL watchdog timeout", "hang": "NCCL watchdog timeout",
    "numerical_nan": "silent data corruption", "node_failure": "server chassis", "node": "server chassis",
    "node_os_or_host": "CPU", "disk_full": "SSD", "disk": "SSD", "filesystem_storage": "dependency",
    "storage": "dependency", "user_code": SOFTWARE_BUG, "user_config": SOFTWARE_BUG, "software_env": SOFTWARE_BUG,
    "software": SOFTWARE_BUG, "collective_mismatch": SOFTWARE_BUG, "dataloader": SOFTWARE_BUG,
    "app_oom_gpu": SOFTWARE_BUG, "app_oom_host": SOFTWARE_BUG, "network_bootstrap": "dependency",
    "checkpoint_corrupt": SOFTWARE_BUG, "scheduler_preempt_or_timelimit": "host maintenance",
    "unknown": "NCCL watchdog timeout", "maintenance": "host maintenance", "power": "power supply",
}  # fmt: skip
