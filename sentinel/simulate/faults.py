"""Failures: what breaks on the cluster, and what machines and programs say about it, through the real readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from sentinel.model.records import Kind, Scalar, Source, Trust
from sentinel.simulate.histories import Happening
from sentinel.simulate.programs import LOAD_S, STEP_S, Program

if TYPE_CHECKING:
    from sentinel.simulate.world import World

Act = Callable[["World", Happening], None]
SILENT_S = 40.0  # a hang is called after this long: what the watch on steps needs at 2 s a step
UNREACHABLE_S = 8.0  # three missed heartbeats, then slurmd's port is asked
_PCI = "0000:5d:00"


# -- hardware ------------------------------------------------------------------------------------------------------


def _xid(number: int, words: str, *, dies_s: float | None, must_go: bool = True, then: str = "") -> Act:
    """A GPU fails: its kernel says so, and the job on it dies after ``dies_s`` (None: it hangs).

    Args:
        must_go: what is said convicts the node; else it may be taken out of service, and need not.
        then: what the driver says of the GPU right after that, number and words; empty: nothing.
    """

    def act(world: World, happening: Happening) -> None:
        node = _alive(world, happening)
        if node is None:
            return
        world.observer.broke(node, happening.what, must_go=must_go)
        world.agents.kernel(node, f"NVRM: Xid (PCI:{_PCI}): {number}, pid=4711, name=python, {words}")
        if then:
            world.agents.kernel(node, f"NVRM: Xid (PCI:{_PCI}): {then}")
        if dies_s is not None:
            _dies(world, node, _ends_s(happening, dies_s))
        else:
            for program in world.programs.on(node):
                _hangs(world, program, node)

    return act


def _dies(world: World, node: str, after_s: float) -> None:
    """The programs on the node meet the failed GPU."""
    for program in world.programs.on(node):
        text = "torch.AcceleratorError: CUDA error: unspecified launch failure"
        rank = program.nodes.index(node)
        world.later(after_s - 0.5, partial(_print, world, program, text, rank=rank))
        world.later(after_s, partial(world.programs.end, program, 1))


def _print(world: World, program: Program, *lines: str, rank: int | None = None) -> None:
    if program.runs:
        world.agents.log(program, *lines, rank=rank)


def _link_down(world: World, happening: Happening) -> None:
    """The only network port of a node is down, and its job hangs."""
    node = _alive(world, happening)
    if node is not None:
        world.observer.broke(node, happening.what, must_go=False)
        text = "port mlx5_0:1 is DOWN"
        world.agents.fact(node, "link_down", Source.FABRIC, text, data={"state": "DOWN"})
        for program in world.programs.on(node):
            _hangs(world, program, node)


def _fails_each(world: World, happening: Happening) -> None:
    """From now on each attempt on this node fails before it gains a step; no line alone convicts the node."""
    node = world.node_named(happening.who)
    if node is not None:
        world.observer.fails_each.add(node)
        fails = Happening("gpu-memory-contained", who=node)
        world.programs.at_begin.append(
            lambda program: (
                world.later(LOAD_S, partial(_if_runs, world, program, fails)) if node in program.nodes else None
            )
        )


def _if_runs(world: World, program: Program, fails: Happening) -> None:
    if program.runs and world.programs.newest.get(program.job) is program:
        FAULTS[fails.what](world, fails)


def _storm(world: World, happening: Happening) -> None:
    """Power or fabric: GPUs of many nodes fail within seconds."""
    names = [name for name, node in world.slurm.nodes.items() if node.alive]
    for name in names[: int(happening.data.get("nodes", 6))]:
        fails = Happening("gpu-off-bus", who=name)
        world.later(world.rng.uniform(0.0, 5.0), partial(FAULTS[fails.what], world, fails))


def _diagnostic_failed(world: World, happening: Happening) -> None:
    """A diagnostic that the daemon ordered fails on an idle node."""
    node = _alive(world, happening)
    if node is not None and not world.programs.on(node):
        world.observer.broke(node, happening.what, must_go=False)
        data: dict[str, Scalar] = {"code": 95, "severity": 2, "level": 2, "idle": True, "test": "memory"}
        world.agents.fact(node, Kind.DIAG_FAILED, Source.DIAGNOSTIC, "GPU 3: memory: uncorrectable errors", data=data)


# -- nodes ---------------------------------------------------------------------------------------------------------


def _node_lost(world: World, happening: Happening) -> None:
    """A machine is gone: nothing answers there."""
    node = _alive(world, happening)
    if node is not None:
        world.observer.broke(node, happening.what)
        world.presence.lose(node)
        world.later(UNREACHABLE_S, lambda: unreachable(world, node))


def unreachable(world: World, node: str) -> None:
    there = world.slurm.nodes[node]
    if there.alive or there.down or world.watched:  # who watches finds out by itself
        return
    if world.daemon is None or not world.daemon.ready or there.maintenance:  # there its silence says nothing
        world.later(UNREACHABLE_S, lambda: unreachable(world, node))  # the next daemon will find out
        return
    text = f"{node}: no heartbeat, and slurmd at 127.0.0.1:{there.port}: refused, refused, refused"
    world.agents.fact(node, Kind.NODE_UNREACHABLE, Source.PROBE, text, sender="daemon", data={"attempts": 3})


def _prolog_error(world: World, happening: Happening) -> None:
    """A prolog fails: Slurm drains the node with its own words."""
    node = _alive(world, happening)
    if node is not None and not world.slurm.nodes[node].drained:
        world.observer.node_drained(node)
        world.slurm.person_drains(node, "Prolog error")


def _unreadable(world: World, happening: Happening) -> None:
    """An agent cannot read its sources: nothing is known."""
    node = _alive(world, happening)
    if node is not None:
        text = "nvidia-smi did not answer within 10 s"
        world.agents.fact(node, Kind.UNREADABLE, Source.NVML, text)
        world.agents.fact(node, Kind.PROBE_HUNG, Source.AGENT, "level 1 passed its deadline and was killed")


def _agent_dead(world: World, happening: Happening) -> None:
    """The agent of a node ends, and is started again later; the node and its jobs go on."""
    node = world.node_named(happening.who)
    if node is not None:
        world.heartbeats.dead.add(node)
        world.later(float(happening.data.get("for_s", 60.0)), lambda: world.heartbeats.dead.discard(node))


# -- programs ------------------------------------------------------------------------------------------------------


def _program(world: World, happening: Happening) -> Program | None:
    job = world.job_named(happening.who)
    program = world.programs.newest.get(job.id) if job is not None else None
    return program if program is not None and program.runs else None


def _fails(*lines: str, exit_code: int = 1, exit_signal: int = 0, newest_torn: bool = False) -> Act:
    """A program prints these lines and ends."""

    def act(world: World, happening: Happening) -> None:
        program = _program(world, happening)
        if program is None:
            return
        if newest_torn:
            world.programs.tear_newest(program.job)
        _print(world, program, *lines, rank=0)
        world.later(_ends_s(happening), lambda: world.programs.end(program, exit_code, exit_signal))

    return act


def _ends_s(happening: Happening, usual_s: float = 0.5) -> float:
    """From the last words to a program's end: long where it writes a core file, or its launcher waits for other ranks."""
    return float(happening.data.get("ends_s", usual_s))


def _out_of_memory(world: World, happening: Happening) -> None:
    """The kernel kills the job's process for the job's own memory limit."""
    program = _program(world, happening)
    if program is not None:
        node = program.nodes[0]
        world.observer.accuse(node)
        world.agents.kernel(
            node, "Memory cgroup out of memory: Killed process 4711 (python) total-vm:91234568kB, anon-rss:81234568kB"
        )
        world.later(_ends_s(happening), lambda: world.programs.end(program, 0, 9))


def _application_xid(world: World, happening: Happening) -> None:
    """A program reads beyond its memory: an Xid that speaks against the program, not the GPU."""
    program = _program(world, happening)
    if program is not None:
        node = program.nodes[-1]
        world.observer.accuse(node)
        world.agents.kernel(
            node,
            f"NVRM: Xid (PCI:{_PCI}): 31, pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
        )
        text = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
        _print(world, program, text, rank=len(program.nodes) - 1)
        world.later(_ends_s(happening, 1.0), lambda: world.programs.end(program, 1))


def _prints_xid(world: World, happening: Happening) -> None:
    """A user's program prints what the kernel would say of a broken GPU, and ends."""
    program = _program(world, happening)
    if program is not None:
        for node in program.nodes:
            world.observer.accuse(node)
        lines = [
            f"{node} kernel: NVRM: Xid (PCI:{_PCI}): 79, pid=1, GPU has fallen off the bus." for node in program.nodes
        ]
        _print(world, program, *lines, *[f"{node}: node {node} is broken, drain it" for node in program.nodes])
        world.later(_ends_s(happening), lambda: world.programs.end(program, 1))


def _hang(world: World, happening: Happening) -> None:
    """A rank is stopped, and the others wait for it."""
    program = _program(world, happening)
    if program is not None:
        index = int(happening.who.partition("/")[2] or 0)
        _hangs(world, program, program.nodes[index % len(program.nodes)])


def _hangs(world: World, program: Program, node: str) -> None:
    world.programs.hang(program, node)
    world.later(SILENT_S, lambda: _stall(world, program))


def _stall(world: World, program: Program) -> None:
    """As the watch on steps calls a hang."""
    job = world.slurm.jobs.get(program.job)
    if not program.runs or program.hung_at is None or job is None or job.state != "RUNNING" or world.watched:
        return
    if world.daemon is None or not world.daemon.ready:
        world.later(SILENT_S, lambda: _stall(world, program))  # the next daemon will find out
        return
    text = f"no step after {program.hung_at} for {SILENT_S:g} s"
    world.agents.fact(
        None, Kind.STALL, Source.PROGRESS, text, sender="daemon", job=program.job, attempt=program.attempt,
        trust=Trust.USER, data={"step": program.hung_at, "silent_s": SILENT_S},
    )  # fmt: skip


def _silence(world: World, happening: Happening) -> None:
    """A job is silent for long, is called hung, and goes on: it was only slow."""
    program = _program(world, happening)
    if program is not None:
        program.hung_at = program.step(world.now_s) or program.base
        world.later(SILENT_S, lambda: _stall(world, program))

        def goes_on() -> None:
            program.hung_at = None
            world.programs.print_steps(program)

        world.later(SILENT_S + float(happening.data.get("more_s", 1.0)), goes_on)


def _bad_numbers(world: World, happening: Happening) -> None:
    """The losses of a job are no numbers from now on; it goes on for a while and then fails."""
    program = _program(world, happening)
    step = program.step(world.now_s) if program is not None else None
    if program is None or step is None:
        return
    if program.onset is None:
        world.programs.checkpoints(program.job)
        program.onset = step
    for more in range(6):
        world.later(more * STEP_S, partial(world.programs.print_nan, program, step + more))
    world.later(20.0, lambda: world.programs.end(program, 1))


def _time_limit(world: World, happening: Happening) -> None:
    """The job reaches its time limit: not a failure."""
    program = _program(world, happening)
    job = world.slurm.jobs.get(program.job) if program is not None else None
    if program is not None and job is not None and job.state == "RUNNING":
        world.slurm.end(program.job, exit_code=0, exit_signal=15, state="TIMEOUT")


def _alive(world: World, happening: Happening) -> str | None:
    node = world.node_named(happening.who)
    return node if node is not None and world.slurm.nodes[node].alive else None


HARDWARE: Mapping[str, Act] = {
    "gpu-off-bus": _xid(79, "GPU has fallen off the bus.", dies_s=4.0),
    "gpu-memory": _xid(48, "DBE (double bit error) ECC error", dies_s=2.0),
    "gpu-memory-contained": _xid(94, "Contained: SM (0x1). RST: No, D-RST: No", dies_s=2.0, must_go=False),
    "gpu-firmware": _xid(
        119,
        "Timeout after 6s of waiting for RPC response from GPU0 GSP!",
        dies_s=30.0,
        must_go=False,
        then="154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    ),
    "gpu-lost-silently": _xid(79, "GPU has fallen off the bus.", dies_s=None),
    "link-down": _link_down,
    "diagnostic-failed": _diagnostic_failed,
    "node-lost": _node_lost,
}
PROGRAMS: Mapping[str, Act] = {
    "program-error": _fails(
        "Traceback (most recent call last):",
        '  File "/home/ada/train.py", line 81, in main',
        "IndexError: list index out of range",
    ),
    "checkpoint-torn": _fails("RuntimeError: NCCL communicator was aborted on rank 0", newest_torn=True),
    "storage": _fails("OSError: [Errno 5] Input/output error: '/shared/data/shard-0017.bin'"),
    "disk-full": _fails("OSError: [Errno 28] No space left on device: '/shared/101/step-50'"),
    "killed-process": _fails("srun: error: n1: task 0: Killed", exit_code=0, exit_signal=9),
    "out-of-memory": _out_of_memory,
    "application-xid": _application_xid,
    "prints-xid": _prints_xid,
    "hang": _hang,
    "silence": _silence,
    "bad-numbers": _bad_numbers,
    "time-limit": _time_limit,
}
OTHERS: Mapping[str, Act] = {
    "storm": _storm,
    "fails-each": _fails_each,
    "prolog-error": _prolog_error,
    "unreadable": _unreadable,
    "agent-dead": _agent_dead,
}
FAULTS: Mapping[str, Act] = {**HARDWARE, **PROGRAMS, **OTHERS}
