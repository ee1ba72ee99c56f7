"""Two-faced failures: the same words, two causes, told apart only by other ranks, other nodes, order, source or history.

Every family gives one ambiguous symptom and its two (or more) worlds; names, ranks, wording and noise are drawn. The truth
is known by construction.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from judgement_world import JOB, NOW, Case, World

from sentinel.classify import History
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Cause, Incident, Kind, Scope, Source

C = Cause

Face = tuple[str, Cause, Scope | None, bool | None, Callable[[World], None]]
FAMILIES: dict[str, tuple[Face, ...]] = {}


def family(name: str, *faces: Face) -> None:
    FAMILIES[name] = faces


def words(world: World, *choices: str) -> str:
    return world.rng.choice(choices)


ILLEGAL = ("CUDA error: an illegal memory access was encountered", "CUDA_ERROR_ILLEGAL_ADDRESS in kernel launch")
UNSPECIFIED = ("CUDA error: unspecified launch failure", "CUDA error: misaligned address")


def _on_ranks(messages: tuple[str, ...], ranks: int) -> Callable[[World], None]:
    def make(world: World) -> None:
        world.steps(40)
        text = words(world, *messages)
        for rank in range(ranks):
            world.log(f"[rank{rank}]: RuntimeError: {text}", at=rank * 0.1, node=rank // 2)
        world.noise()

    return make


def _node_again(messages: tuple[str, ...], cause: Cause) -> Callable[[World], None]:
    def make(world: World) -> None:
        world.steps(40)
        node = world.rng.randrange(8)
        world.log(f"[rank{node}]: RuntimeError: {words(world, *messages)}", node=node)
        world.failed_before(node, world.rng.randrange(3, 6), cause)
        world.noise()

    return make


def _job_again(messages: tuple[str, ...]) -> Callable[[World], None]:
    def make(world: World) -> None:
        world.log(f"[rank1]: RuntimeError: {words(world, *messages)}", node=1)
        world.failed_before(10, world.rng.randrange(2, 5), C.UNKNOWN, jobs="same")
        world.noise()

    return make


for label, texts in (("illegal", ILLEGAL), ("unspecified", UNSPECIFIED)):
    family(
        label,
        ("on many ranks", C.USER_CODE, Scope.APPLICATION, False, _on_ranks(texts, 6)),
        ("node again", C.GPU_GSP_OR_DRIVER, Scope.GPU, None, _node_again(texts, C.USER_CODE)),
        ("job elsewhere", C.USER_CODE, Scope.APPLICATION, False, _job_again(texts)),
    )


def _soft_xid(nodes: int, past: int) -> Callable[[World], None]:
    def make(world: World) -> None:
        number = world.rng.choice([13, 31])
        for node in range(nodes):
            world.kernel(f"NVRM: Xid (PCI:0000:1a:00): {number}, pid=77, name=python", at=node * 0.2, node=node)
        if past:
            world.failed_before(0, past, C.USER_CODE)
        world.noise()

    return make


family(
    "soft xid",
    ("on four nodes", C.USER_CODE, Scope.APPLICATION, False, _soft_xid(4, 0)),
    ("same node under other jobs", C.GPU_GSP_OR_DRIVER, Scope.GPU, False, _soft_xid(1, 4)),
)


def _teardown(world: World) -> None:
    world.log(
        words(
            world, "[rank0]: KeyError: 'tokens'", "[rank0]: TypeError: unsupported operand", "[rank2]: IndexError: list"
        )
    )
    for node in range(world.rng.randrange(4, 20)):
        world.fact(Kind.XID, Source.KERNEL, at=3 + node * 0.05, node=node, xid=45)


def _teardown_hard(number: int) -> Callable[[World], None]:
    def make(world: World) -> None:
        world.fact(Kind.XID, Source.KERNEL, at=-1, node=3, xid=number, pci="0000:3b:00")
        for i in range(world.rng.randrange(1, 8)):
            world.fact(Kind.XID, Source.KERNEL, at=0.1 * i, node=3, xid=world.rng.choice([45, 43]))
        world.log("[rank12]: RuntimeError: CUDA error: an illegal memory access was encountered", at=1, node=3)
        world.noise()

    return make


family(
    "xid 45 flood",
    ("after a traceback", C.USER_CODE, Scope.APPLICATION, False, _teardown),
    ("after 48", C.GPU_MEMORY_ECC, Scope.GPU, True, _teardown_hard(48)),
    ("after 79", C.GPU_FALLEN_OFF_BUS, Scope.GPU, True, _teardown_hard(79)),
    ("after 95", C.GPU_MEMORY_ECC, Scope.GPU, True, _teardown_hard(95)),
)


GSP = "NVRM: Xid (PCI:0000:3b:00): 119, pid=9, Timeout after 45s of waiting for RPC response"
MISMATCH = "[rank1]: Detected mismatch between collectives on ranks. Rank 1 is running ALLGATHER"
OOM_KILL = "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."
PREEMPTED = "slurmstepd: error: *** STEP 7.0 ON gpu001 CANCELLED AT 2026-03-04T12:00:00 DUE TO PREEMPTION ***"
SHM = "RuntimeError: unable to mmap 512 bytes: unable to allocate shared memory(shm) for file"
STALE = "OSError: [Errno 116] Stale file handle: '/shared/run/data.bin'"
NFS = "nfs: server nas01 not responding, still trying"


def _sleeping(world: World, nodes: int) -> None:
    for node in range(nodes):
        world.fact(Kind.TASK_STATE, Source.PROCESS, at=1, node=node, rank=node, state="D")


def _stall(world: World) -> None:
    world.steps(120)
    world.fact(Kind.STALL, Source.PROGRESS, at=0, step=120, silent_s=13.0)


def _stall_with(more: Callable[[World], None]) -> Callable[[World], None]:
    def make(world: World) -> None:
        _stall(world)
        more(world)
        if world.rng.random() < 0.5:
            world.noise(600)

    return make


family(
    "silence",
    (
        "a task is stopped", C.NCCL_HANG_UNKNOWN, Scope.UNKNOWN, False,
        _stall_with(lambda w: w.fact(Kind.TASK_STATE, Source.PROCESS, at=1, node=2, rank=2, state=w.rng.choice("TD"))),
    ),
    (
        "tasks of many nodes sleep", C.FILESYSTEM_STORAGE, Scope.CLUSTER, False,
        _stall_with(lambda w: _sleeping(w, 5)),
    ),
    (
        "the node is gone", C.NODE_FAILURE, Scope.NODE, True,
        _stall_with(lambda w: w.fact(Kind.NODE_UNREACHABLE, Source.PROBE, at=w.rng.uniform(1, 9), node=5)),
    ),
    (
        "the port went down", C.NETWORK_FABRIC, Scope.LINK, None,
        _stall_with(lambda w: w.kernel("mlx5_core 0000:9b:00.0: Port: 1 Link DOWN", at=-2, node=4)),
    ),
    (
        "the firmware is stuck", C.GPU_GSP_OR_DRIVER, None, None,
        _stall_with(lambda w: w.kernel(GSP, at=-2, node=4)),
    ),
    (
        "one rank left with an exception", C.USER_CODE, Scope.APPLICATION, False,
        _stall_with(lambda w: w.log("[rank9]: AttributeError: 'NoneType' object has no attribute 'grad'", at=-3, node=1)),
    ),
    (
        "ranks call different things", C.COLLECTIVE_MISMATCH, Scope.APPLICATION, False,
        _stall_with(lambda w: w.log(MISMATCH, at=2)),
    ),
)  # fmt: skip


def _oom_at_barrier(world: World) -> None:
    world.log('  File "/job/main.py", line 12, in setup\n    torch.distributed.barrier()', node=2)
    world.log("[rank3]: RuntimeError: CUDA error: out of memory", at=0.5, node=2)
    world.noise()


def _oom_in_training(world: World) -> None:
    world.steps(500)
    world.log("[rank3]: RuntimeError: CUDA error: out of memory", at=0.5, node=2)
    world.noise()


family(
    "out of memory",
    ("at a start-up barrier", C.GPU_MEMORY_ECC, Scope.GPU, None, _oom_at_barrier),
    ("in training", C.APP_OOM_GPU, Scope.APPLICATION, False, _oom_in_training),
)


def _nan(nodes: int, past: int) -> Callable[[World], None]:
    def make(world: World) -> None:
        world.steps(300)
        for node in range(nodes):
            world.log(f"[rank{node * 8}]: step 301 | loss nan | step time 0.4 s", at=0.1 * node, node=node)
        if past:
            world.failed_before(0, past, C.GPU_MEMORY_ECC)

    return make


family(
    "nan",
    ("on all nodes", C.NUMERICAL_NAN, Scope.APPLICATION, False, _nan(4, 0)),
    ("on a node whose memory failed before", C.GPU_MEMORY_ECC, Scope.GPU, False, _nan(1, 3)),
)


def _killed(more: Callable[[World], None]) -> Callable[[World], None]:
    def make(world: World) -> None:
        more(world)
        world.log(words(world, "exitcode  : -9 (pid: 4242)", "srun: error: gpu002: task 5: Killed"), at=2)
        world.noise()

    return make


family(
    "killed",
    (
        "by the cgroup's limit", C.APP_OOM_HOST, Scope.APPLICATION, False,
        _killed(lambda w: w.slurm(OOM_KILL)),
    ),
    ("with its node", C.NODE_FAILURE, Scope.NODE, True, _killed(lambda w: w.fact(Kind.NODE_DOWN, Source.SLURM, node=2))),
    (
        "by preemption", C.SCHEDULER_PREEMPT_OR_TIMELIMIT, None, False,
        _killed(lambda w: w.slurm(PREEMPTED)),
    ),
    (
        "at the time limit", C.SCHEDULER_PREEMPT_OR_TIMELIMIT, None, False,
        _killed(lambda w: w.fact(Kind.JOB_ENDED, Source.SLURM, state="TIMEOUT", exit_code=0, signal=15)),
    ),
)  # fmt: skip


def _bus_error(line: str) -> Callable[[World], None]:
    def make(world: World) -> None:
        world.log(line, at=-1)
        world.log(words(world, "Bus error (core dumped)", "exitcode  : -7 (pid: 99)"))
        world.noise()

    return make


family(
    "bus error",
    ("shared memory", C.DATALOADER, Scope.APPLICATION, False, _bus_error(SHM)),
    ("the file system", C.FILESYSTEM_STORAGE, Scope.CLUSTER, False, _bus_error(STALE)),
)  # fmt: skip


def _hung_tasks(line: str, at: float) -> Callable[[World], None]:
    def make(world: World) -> None:
        world.kernel(line, at=at, node=6)
        for i in range(3):
            world.kernel(f"INFO: task python3:{4200 + i} blocked for more than 120 seconds.", at=130 + i, node=6)
        world.noise(600)

    return make


family(
    "hung tasks",
    ("a stuck GPU", C.GPU_GSP_OR_DRIVER, None, None, _hung_tasks("NVRM: Xid (PCI:0000:3b:00): 62, pid=9, 203c(3090)", 0)),
    ("a silent file server", C.FILESYSTEM_STORAGE, Scope.CLUSTER, False, _hung_tasks(NFS, 0)),
    ("nothing else", C.NODE_OS_OR_HOST, Scope.NODE, None, _hung_tasks("usb 1-1: new high-speed USB device", 0)),
)  # fmt: skip


def _refused(peer_down: bool) -> Callable[[World], None]:
    def make(world: World) -> None:
        world.log(
            "gpu001:12:13 [0] misc/socket.cc:400 NCCL WARN Connect to 10.0.0.9<45123> failed : Connection refused",
            node=1,
        )
        if peer_down:
            world.fact(Kind.NODE_UNREACHABLE, Source.PROBE, at=world.rng.uniform(-3, 3), node=9)
        world.noise()

    return make


family(
    "refused",
    ("the peer is down", C.NODE_FAILURE, Scope.NODE, True, _refused(True)),
    ("at start-up", C.NETWORK_BOOTSTRAP, None, False, _refused(False)),
)


def _unreadable_checkpoint(full: bool) -> Callable[[World], None]:
    def make(world: World) -> None:
        if full:
            world.log("OSError: [Errno 28] No space left on device: '/ckpt/step-400/rank3.pt'", at=-5)
        world.log("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory")
        world.noise()

    return make


family(
    "unreadable checkpoint",
    ("the disk was full before", C.DISK_FULL, None, False, _unreadable_checkpoint(True)),
    ("nothing else", C.CHECKPOINT_CORRUPT, None, False, _unreadable_checkpoint(False)),
)


def _corrected(lost: bool) -> Callable[[World], None]:
    def make(world: World) -> None:
        for i in range(3):
            world.kernel("pcieport 0000:16:01.0: AER: Corrected error received: 0000:17:00.0", at=i, node=3)
        if lost:
            world.kernel("NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.", at=4, node=3)
        world.noise()

    return make


family(
    "corrected bus errors",
    ("then the GPU is lost", C.GPU_FALLEN_OFF_BUS, Scope.GPU, True, _corrected(True)),
    ("alone", C.PCIE, Scope.LINK, False, _corrected(False)),
)


def _links(nodes: int) -> Callable[[World], None]:
    def make(world: World) -> None:
        for node in range(nodes):
            world.kernel("mlx5_core 0000:9b:00.0: Port: 1 Link DOWN", at=0.3 * node, node=node)
        world.noise(600)

    return make


def _hot(nodes: int) -> Callable[[World], None]:
    def make(world: World) -> None:
        for node in range(nodes):
            world.dcgm("HW Thermal Slowdown : Active", at=0.3 * node, node=node)

    return make


family(
    "link down",
    ("one node", C.NETWORK_FABRIC, Scope.LINK, None, _links(1)),
    ("a leaf", C.NETWORK_FABRIC, Scope.CLUSTER, False, _links(6)),
)
family(
    "heat",
    ("one GPU", C.GPU_THERMAL_POWER, Scope.GPU, None, _hot(1)),
    ("the room", C.GPU_THERMAL_POWER, Scope.CLUSTER, False, _hot(6)),
)


def _order(first: str) -> Callable[[World], None]:
    def make(world: World) -> None:
        code, card = (0.0, 4.0) if first == "code" else (4.0, 0.0)
        world.log("[rank2]: TypeError: unsupported operand type(s) for +: 'int' and 'NoneType'", at=code, node=1)
        world.fact(Kind.XID, Source.KERNEL, at=card, node=1, xid=43 if first == "code" else 64)

    return make


family(
    "order",
    ("code, then its channel", C.USER_CODE, Scope.APPLICATION, False, _order("code")),
    ("memory, then code that trips over it", C.GPU_MEMORY_ECC, Scope.GPU, True, _order("card")),
)


def cases(signatures: Signatures, *, each: int = 4, seed: int = 1) -> Iterator[Case]:
    """``each`` draws of every face of every family."""
    rng = random.Random(seed)
    for name, faces in FAMILIES.items():
        for label, cause, scope, drain, make in faces:
            for i in range(each):
                world = World(random.Random(rng.random()), signatures)
                make(world)
                evidence = tuple(sorted(world.evidence, key=lambda item: item.at))
                nodes = tuple(dict.fromkeys(item.where.node for item in evidence if item.where.node))
                incident = Incident(f"{name}-{label}-{i}", NOW, NOW, job=JOB, nodes=nodes, evidence=evidence)
                yield Case(f"{name}: {label}", incident, History(tuple(world.past)), cause, scope, drain)
