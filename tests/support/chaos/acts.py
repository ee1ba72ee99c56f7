"""How the acts of a random story are performed, and what was thereby made so: the facts that promises are held to."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from lab import cluster, processes
from lab.layout import LabError
from stories.timeline import Story, until
from stories.witnesses import wait_jobs_saved

from chaos import people
from chaos.drawn import JOB_FAULTS, NODE_FAULTS, Act
from chaos.jobs import nodes_of, submit, wait_running
from chaos.performance import Facts, Performance, undo

FAULTS = frozenset(NODE_FAULTS) | frozenset(JOB_FAULTS)
OF_RUNNING_NODES = FAULTS - {"node-crash"}  # a node that crashed starts no service again


def perform(self: Performance) -> Facts:
    self.facts.jobs += [submit(self.story, place, asked) for place, asked in enumerate(self.drawn.jobs)]
    for job in self.facts.jobs:
        wait_running(self.story, job)
    while self.left:
        _next(self)
    people.resume_acting(self)
    return self.facts


def _next(self: Performance) -> None:
    act = self.left.pop(0)
    self.wait_for(act)
    with contextlib.suppress(LabError, subprocess.TimeoutExpired):  # its victim is gone by now
        ACTS[act.what](self, act)


def _away(self: Performance, seconds: float, *, faults: frozenset[str] = FAULTS) -> None:
    back = time.monotonic() + seconds
    _meanwhile(self, lambda: time.monotonic() >= back, faults)


def _meanwhile(self: Performance, over: Callable[[], bool], faults: frozenset[str] = FAULTS) -> None:
    """What is drawn next happens meanwhile, where it is a fault that waits for nothing."""
    while not over():
        if self.left and self.left[0].what in faults and not self.left[0].after:
            _next(self)
        else:
            time.sleep(0.05)


# --- nodes ------------------------------------------------------------------------------------------------------------


def _node_goes_bad(inject: Callable[[Performance, Act, str], None]) -> Callable[[Performance, Act], None]:
    def act_on(self: Performance, act: Act) -> None:
        node = self.node(act)
        if node in self.facts.ever_faulty or len(self.facts.ever_faulty) >= self.drawn.size.bad_nodes:
            return
        hit = self.jobs_on(node)
        self.facts.faulty.add(node)
        self.facts.ever_faulty.add(node)
        self.facts.touched.add(node)
        self.facts.returned_by_user.discard(node)
        self.facts.node_faults += 1
        self.blame(*hit)
        self.say(f"{act.what} {act.number or ''} on {node} under {[job.id for job in hit]}")
        inject(self, act, node)

    return act_on


def _xid(self: Performance, act: Act, node: str) -> None:
    self.story.inject("xid", "--node", node, "--gpu", str(act.place), "--xid", str(act.number))


def _ecc(self: Performance, act: Act, node: str) -> None:
    self.story.inject("ecc", "--node", node, "--gpu", str(act.place))


def _crash_node(self: Performance, act: Act, node: str) -> None:
    self.story.inject("node-crash", "--node", node)


def _contained(self: Performance, act: Act) -> None:
    node = self.node(act)
    hit = self.jobs_on(node)
    if not hit or node in self.facts.touched:
        return  # a second one on the same GPU may well convict it
    self.facts.touched.add(node)
    self.facts.node_faults += 1
    self.blame(*hit)
    self.say(f"Xid {act.number} on {node} under {[job.id for job in hit]}")
    _xid(self, act, node)


# --- jobs -------------------------------------------------------------------------------------------------------------


def _rank_fault(*words: str) -> Callable[[Performance, Act], None]:
    def act_on(self: Performance, act: Act) -> None:
        job = self.job(act)
        if job.asked.kind == "het":
            return  # its program has no ranks that could be asked
        self.blame(job)
        job.bad_numbers |= words[0] == "nan"
        job.program_fails = True
        self.facts.touched.update(nodes_of(job))
        self.say(f"{' '.join(words)} in job {job.id}")
        self.story.inject(*words, "--job", str(job.id))

    return act_on


def _disk_full(self: Performance, act: Act) -> None:
    job = self.job(act)
    node = self.node(act)
    hit = self.jobs_on(node)
    if job not in hit or job.asked.kind == "het":
        return
    self.blame(*hit)
    for one in hit:
        one.program_fails = True
    self.facts.touched.add(node)
    self.say(f"disk of {node} full under {[job.id for job in hit]}")
    self.story.inject("disk-full", "--node", node)


def _corrupt(self: Performance, act: Act) -> None:
    job = self.job(act)
    tier, how = ("local", "global")[act.number % 2], ("truncate", "flip", "zero", "torn")[act.number // 2]
    for done in self.story.inject("corrupt-checkpoint", "--tier", tier, "--how", how, "--run", job.run):
        job.damaged.append(f"{done['tier']}:{done['step']}")
        self.say(f"{how} {done['tier']} step {done['step']} of job {job.id}")


def _storage(self: Performance, act: Act) -> None:
    self.story.inject("storage")
    for job in self.facts.jobs:
        job.program_fails = True
    self.say(f"shared storage blocks for {act.lasts_s} s")
    time.sleep(act.lasts_s)
    self.story.inject("storage", "--undo")


# --- ourselves and what we lean on -------------------------------------------------------------------------------------


def _kill(self: Performance, act: Act) -> None:
    self.say(f"daemon killed, away for {act.lasts_s} s")
    self.story.kill_daemon()
    _away(self, act.lasts_s)
    with ThreadPoolExecutor() as pool:
        started = pool.submit(self.story.start_daemon)
        _meanwhile(self, started.done)
    started.result()


def _kill_twice(self: Performance, act: Act) -> None:
    _kill(self, act)
    time.sleep(random.Random(str(act)).uniform(0, 2))
    _kill(self, act)


def _freeze(self: Performance, act: Act) -> None:
    daemon = processes.known(self.story.paths, "daemon")
    assert daemon is not None, "the daemon ended by itself"
    self.say(f"daemon stopped for {act.lasts_s} s")
    daemon.send(signal.SIGSTOP)
    _away(self, act.lasts_s)
    daemon.send(signal.SIGCONT)


def _agent(self: Performance, act: Act) -> None:
    node = self.node(act)
    if processes.known(self.story.paths, f"agent-{node}") is None:
        return
    self.say(f"agent of {node} killed, away for {act.lasts_s} s")
    self.story.stop_agent(node)
    _away(self, act.lasts_s, faults=OF_RUNNING_NODES)
    self.story.start_agent(node)


def _agent_frozen(self: Performance, act: Act) -> None:
    node = self.node(act)
    agent = processes.known(self.story.paths, f"agent-{node}")
    if agent is None:
        return
    self.say(f"agent of {node} stopped for {act.lasts_s} s")
    agent.send(signal.SIGSTOP)
    _away(self, act.lasts_s, faults=OF_RUNNING_NODES)
    agent.send(signal.SIGCONT)


def _slurmd(self: Performance, act: Act) -> None:
    """As in an upgrade: its jobs run on, and none can begin there meanwhile."""
    node = self.node(act)
    slurmd = processes.known(self.story.paths, f"slurmd-{node}")
    if slurmd is None:
        return
    self.facts.touched.add(node)
    self.facts.node_faults += 1
    self.say(f"slurmd of {node} restarted, away for {act.lasts_s} s")
    slurmd.send(signal.SIGTERM)
    processes.wait_gone([slurmd], 30)
    _away(self, act.lasts_s, faults=OF_RUNNING_NODES)
    self.story.call_lab(f"from lab import slurm; slurm.start_slurmd(lab, {node!r})")


def _boot(self: Performance, act: Act) -> None:
    """A node that crashed comes back by itself: whether it was noticed before, nobody can tell."""
    gone = [record["node"] for record in cluster.faults_now(self.story.paths) if record["fault"] == "node-crash"]
    for node in gone[:1]:
        self.say(f"{node} boots")
        self.facts.faulty.discard(node)
        undo(self, "node-crash", node)


def _restart(self: Performance, act: Act) -> None:
    self.say("daemon restarted")
    self.story.restart_daemon()


def _munged(self: Performance, act: Act) -> None:
    self.say(f"munged killed, away for {act.lasts_s} s")
    self.story.stop_munged()
    time.sleep(act.lasts_s)
    self.story.start_munged()


@contextlib.contextmanager
def _without_controller(self: Performance, number: int) -> Iterator[None]:
    found = processes.known(self.story.paths, "slurmctld")
    assert found is not None and found.send(number)
    until(lambda: not found.alive, "slurmctld to be gone")
    try:
        yield
    finally:
        self.story.call_lab("from lab import slurm; slurm.start_controller(lab)")
        until(lambda: _answers(self), "slurmctld to answer again")


def _answers(self: Performance) -> bool:
    said = subprocess.run(["sinfo", "-h"], capture_output=True, timeout=60, env=self.story.lab.environment())
    return said.returncode == 0


def _controller_restart(self: Performance, act: Act) -> None:
    self.say(f"slurmctld restarted, away for {act.lasts_s} s")
    with _without_controller(self, signal.SIGTERM):
        time.sleep(act.lasts_s)


def _controller_kill(self: Performance, act: Act) -> None:
    """Once it has saved that the jobs run: what was submitted within the last seconds is lost in any cluster."""
    wait_jobs_saved(self.story)
    self.say(f"slurmctld killed, away for {act.lasts_s} s")
    self.facts.controller_forgot = True
    for job in self.facts.jobs:
        job.forges = True  # the counts of starts in Slurm and in the log may differ
    with _without_controller(self, signal.SIGKILL):
        time.sleep(act.lasts_s)


def _controller_frozen(self: Performance, act: Act) -> None:
    self.say(f"slurmctld frozen for {act.lasts_s + 3} s")
    self.story.inject("controller-frozen")
    time.sleep(act.lasts_s + 3)
    self.story.inject("controller-frozen", "--undo")


def thaw(story: Story) -> None:
    """A story that failed half-way must not leave what its lab cannot be taken down with."""
    for fault in {fault["fault"] for fault in cluster.faults_now(story.paths)} & {"storage", "controller-frozen"}:
        story.inject(fault, "--undo")
    daemon = processes.known(story.paths, "daemon")
    if daemon is not None:
        daemon.send(signal.SIGCONT)


ACTS: dict[str, Callable[[Performance, Act], None]] = {
    "xid": _node_goes_bad(_xid),
    "ecc": _node_goes_bad(_ecc),
    "node-crash": _node_goes_bad(_crash_node),
    "contained": _contained,
    "hang": _rank_fault("hang"),
    "crash": _rank_fault("crash"),
    "oom-gpu": _rank_fault("oom", "--how", "gpu"),
    "oom-host": _rank_fault("oom", "--how", "host"),
    "nan": _rank_fault("nan"),
    "disk-full": _disk_full,
    "corrupt": _corrupt,
    "storage": _storage,
    "scancel": people.scancel,
    "hold": people.hold,
    "requeue": people.requeue,
    "suspend": people.suspend,
    "drain": people.drain,
    "resume": people.resume,
    "requeuehold": people.requeue_hold,
    "reconfigure": people.reconfigure,
    "pause": people.pause,
    "repair": people.repair,
    "boot": _boot,
    "kill": _kill,
    "restart": _restart,
    "kill twice": _kill_twice,
    "freeze": _freeze,
    "agent": _agent,
    "agent frozen": _agent_frozen,
    "slurmd": _slurmd,
    "munged": _munged,
    "controller restart": _controller_restart,
    "controller kill": _controller_kill,
    "controller frozen": _controller_frozen,
}
