"""Messages as PyTorch, NCCL, CUDA, the kernel, Slurm and file systems print them, each alone, to its cause."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Incident, Recommendation, Source, Where

NOW = datetime(2026, 3, 4, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()

MESSAGES = [
    (
        "user_code",
        'Traceback (most recent call last):\n  File "t.py", line 3, in forward\nRuntimeError: The siz'
        "e of tensor a (512) must match the size of tensor b (511) at non-singleton dimension 1",
    ),
    ("user_config", "AssertionError: num_attention_heads (30) must be divisible by tensor_model_parallel_size (8)"),
    (
        "software_env",
        "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by x.so)",
    ),
    (
        "app_oom_gpu",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 39.59"
        " GiB total capacity; 38.02 GiB already allocated)",
    ),
    ("app_oom_host", "slurmstepd: error: Detected 3 oom-kill event(s) in StepId=123.batch cgroup."),
    (
        "dataloader",
        "RuntimeError: DataLoader worker (pid 4411) exited unexpectedly with exit code 1. Details a"
        "re lost due to multiprocessing.",
    ),
    ("numerical_nan", "FloatingPointError: Loss is infinite or NaN at iteration=401!"),
    (
        "collective_mismatch",
        "RuntimeError: [1]: params[0] in this process with sizes [2, 4] appears not to match sizes "
        "of the same param in process 0.",
    ),
    (
        "nccl_hang_unknown",
        "[rank3]:[E ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective operation timeout"
        ": WorkNCCL(SeqNum=4401, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=8, Timeout(ms)=600000)"
        " ran for 600112 milliseconds before timing out.",
    ),
    (
        "network_bootstrap",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the "
        "C10d store has failed. See inner exception for details.",
    ),
    (
        "network_fabric",
        "mlx5_2: Port 1 state change: ACTIVE -> DOWN\n n3:1:2 [0] NCCL WARN NET/IB : Got completion "
        "from peer 10.0.1.2<4321> with error 12, opcode 32538, len 0, vendor err 129",
    ),
    ("gpu_memory_ecc", "kernel: NVRM: Xid (PCI:0000:4e:00): 94, pid=1, Contained: SM (0x1). RST: No, D-RST: No"),
    (
        "gpu_fallen_off_bus",
        "nvidia-smi: Unable to determine the device handle for GPU 0000:C1:00.0: GPU is lost.  Rebo"
        "ot the system to recover this GPU",
    ),
    (
        "gpu_nvlink",
        "kernel: NVRM: Xid (PCI:0000:4e:00): 74, pid=1, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0)",
    ),
    (
        "gpu_gsp_or_driver",
        "NVRM: Xid (PCI:0000:4e:00): 119, pid=1710, name=nv-hostengine, Timeout after 6s of waiting"
        " for RPC response from GPU0 GSP! Expected function 76",
    ),
    ("gpu_thermal_power", "GPU 00000000:4E:00.0: clocks_throttle_reasons.hw_thermal_slowdown: Active"),
    ("pcie", "pcieport 0000:80:01.1: AER: Uncorrected (Fatal) error received: 0000:81:00.0"),
    ("node_os_or_host", "mce: [Hardware Error]: CPU 44: Machine Check Exception: 5 Bank 12: be00000000800400"),
    ("node_failure", "slurmctld: error: Nodes gpu012 not responding, setting DOWN"),
    (
        "filesystem_storage",
        "LustreError: 11-0: scratch-MDT0000-mdc: operation ldlm_enqueue to node 10.1.1.1@o2ib failed: rc = -107",
    ),
    (
        "disk_full",
        "RuntimeError: [enforce fail at inline_container.cc:595] . PytorchStreamWriter failed writi"
        "ng file data/17: file write failed\nOSError: [Errno 28] No space left on device",
    ),
    (
        "checkpoint_corrupt",
        "_pickle.UnpicklingError: invalid load key, '\\x00'.\nFailed to load checkpoint from /ckpt/iter_0001200",
    ),
    (
        "scheduler_preempt_or_timelimit",
        "slurmstepd: error: *** STEP 99.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
    ),
    ("user_config", "srun: error: Unable to create step for job 44: More processors requested than permitted"),
    ("software_env", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)."),
    (
        "network_bootstrap",
        "RuntimeError: [/x/gloo/transport/tcp/pair.cc:144] no error. Gloo connectFullMesh failed with timeout",
    ),
    ("network_fabric", "UCX  ERROR mlx5_0:1/IB: local_ack timeout, retry exceeded on qp 0x44 to remote lid 12"),
    (
        "gpu_gsp_or_driver",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure th"
        "at the latest NVIDIA driver is installed and running.",
    ),
    ("numerical_nan", "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output."),
    (
        "user_code",
        "torch.distributed.DistBackendError: ...\nNotImplementedError: Cannot copy out of meta tensor; no data!",
    ),
    ("filesystem_storage", "bash: /gpfs/run/train.sh: Stale file handle"),
    ("app_oom_host", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    (
        "checkpoint_corrupt",
        "RuntimeError: unable to open file: checkpoint shard model-00003-of-00008.safetensors is truncated",
    ),
    ("disk_full", "OSError: [Errno 122] Disk quota exceeded: '/home/u/.cache'"),
    (
        "node_failure",
        "slurmstepd: error: *** JOB 17 ON n4 CANCELLED AT 2026-01-01T00:00:00 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***",
    ),
    ("software_env", "OSError: libnccl.so.2: cannot open shared object file: No such file or directory"),
    ("user_config", "yaml.parser.ParserError: while parsing a block mapping"),
    ("dataloader", "urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='x', port=443): Read timed out."),
    ("pcie", "GPU 5: PCIe link width degraded: current x4, expected x16"),
    ("node_os_or_host", "EDAC MC1: 1 UE memory read error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0"),
    ("gpu_nvlink", "nvidia-fabricmanager: failed to initialize NVSwitch: fabric manager exiting with error"),
]


@pytest.mark.parametrize(("cause", "text"), MESSAGES, ids=[f"{i}-{cause}" for i, (cause, _) in enumerate(MESSAGES)])
def test_a_message_alone(cause: str, text: str) -> None:
    reader = LogReader(SIGNATURES)
    found = reader.feed(text.encode() + b"\n", NOW) + reader.finish(NOW)
    verdict = classify(Incident("i", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW)
    assert verdict.cause.value == cause
    assert verdict.drain == ()  # nothing that a job's log says drains a node


NO_SWITCH = (
    "nv-fabricmanager[4177]: request to query NVSwitch failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
)
LOST_SWITCH = "nvidia-nvswitch2: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"


@pytest.mark.parametrize(("lines", "drain"), [([NO_SWITCH], ()), ([NO_SWITCH, LOST_SWITCH], ("n1",))])
def test_a_fabric_manager_without_switches_drains_nothing_and_hides_no_lost_switch(
    lines: list[str], drain: tuple[str, ...]
) -> None:
    reader = LogReader(SIGNATURES, source=Source.KERNEL, where=Where(node="n1"))
    found = reader.feed("".join(f"{line}\n" for line in lines).encode(), NOW) + reader.finish(NOW)
    verdict = classify(Incident("i", NOW, NOW, nodes=("n1",), evidence=tuple(found)), rules=RULES, now=NOW)
    assert verdict.drain == drain
    assert (verdict.recommendation is Recommendation.DRAIN) == bool(drain)
