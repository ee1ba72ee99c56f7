"""How the acts of a random story are performed, and what was thereby made so: the facts that promises are held to."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lab import cluster, processes
from lab.layout import LabError
from timeline import Story, until

from chaos.drawn import Act, Drawn
from chaos.jobs import Witnessed, nodes_of, submit, wait_running

AFTER_S = 15.0  # so long is waited for a line of the daemon's log, which may never come


@dataclass
class Facts:
    """What people and faults did so far."""

    jobs: list[Witnessed]
    faulty: set[str] = field(default_factory=set)  # nodes that must be out of service
    ever_faulty: set[str] = field(default_factory=set)
    touched: set[str] = field(
        default_factory=set
    )  # nodes where something happened that may cost the jobs there a restart
    drained_by_user: dict[str, str] = field(default_factory=dict)  # node: reason
    returned_by_user: set[str] = field(default_factory=set)
    node_faults: int = 0
    controller_forgot: bool = False
    storage_blocked: bool = False
    said: list[str] = field(default_factory=list)  # what was done, for people


class Performance:
    """One story in one lab."""

    def __init__(self, story: Story, drawn: Drawn) -> None:
        self.story = story
        self.slurm = story.lab.slurm
        self.drawn = drawn
        self.facts = Facts([])
        self._began = time.monotonic()

    def perform(self) -> Facts:
        self.facts.jobs += [submit(self.story, place, asked) for place, asked in enumerate(self.drawn.jobs)]
        for job in self.facts.jobs:
            wait_running(self.story, job)
        for act in self.drawn.acts:
            self._wait_for(act)
            with contextlib.suppress(LabError, subprocess.TimeoutExpired):  # its victim is gone by now
                ACTS[act.what](self, act)
        return self.facts

    def say(self, text: str) -> None:
        self.facts.said.append(f"{time.monotonic() - self._began:6.1f} s  {text}")

    def _wait_for(self, act: Act) -> None:
        time.sleep(act.pause_s)
        deadline = time.monotonic() + AFTER_S
        while act.after and act.after not in self.story.daemon_log() and time.monotonic() < deadline:
            time.sleep(0.02)

    # --- victims ------------------------------------------------------------------------------------------------------

    def job(self, act: Act) -> Witnessed:
        assert act.job is not None
        return self.facts.jobs[act.job]

    def node(self, act: Act) -> str:
        """A node of the job as it runs now; without one, or where it runs nowhere, one that is idle."""
        nodes = nodes_of(self.job(act)) if act.job is not None else []
        if not nodes:
            said = self.slurm("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()
            nodes = [name for name in said if name not in self.facts.ever_faulty | set(self.facts.drained_by_user)]
        if not nodes:
            raise LabError("no node is left for it")
        return nodes[act.place % len(nodes)]

    def jobs_on(self, node: str) -> list[Witnessed]:
        return [job for job in self.facts.jobs if node in nodes_of(job)]

    def blame(self, *jobs: Witnessed) -> None:
        for job in jobs:
            job.faults += 1


# --- nodes ------------------------------------------------------------------------------------------------------------


def _node_goes_bad(inject: Callable[[Performance, Act, str], None]) -> Callable[[Performance, Act], None]:
    def act_on(self: Performance, act: Act) -> None:
        node = self.node(act)
        if node in self.facts.ever_faulty or len(self.facts.ever_faulty) >= 2:
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
    self.facts.storage_blocked = True
    self.say(f"shared storage blocks for {act.lasts_s} s")
    time.sleep(act.lasts_s)
    self.story.inject("storage", "--undo")


# --- people -----------------------------------------------------------------------------------------------------------


def _scancel(self: Performance, act: Act) -> None:
    job = self.job(act)
    if job.state() in ("COMPLETED", "FAILED"):
        return
    self.say(f"scancel {job.id} ({job.state()})")
    job.cancelled = True
    self.slurm("scancel", str(job.id))


def _hold(self: Performance, act: Act) -> None:
    job = self.job(act)
    restarts = job.restarts()
    state = job.state()
    if job.cancelled or state not in ("RUNNING", "PENDING"):
        return
    if job.held():
        return  # by us: whose hold it then is, nobody can tell
    for number in (job.id, *job.others):
        self.slurm("scontrol", "hold", str(number))
    ran = "RUNNING" in (state, job.state())  # no held job begins
    job.held_at = restarts if ran else -1
    job.held_perhaps = ran and job.restarts() > restarts  # slurmctld counts when it gets the request
    self.say(f"hold {job.id}, after {job.held_at} restarts{', while it was requeued' if job.held_perhaps else ''}")


def _requeue(self: Performance, act: Act) -> None:
    job = self.job(act)
    if job.cancelled or job.held() or job.state() != "RUNNING" or job.asked.kind == "het":
        return
    self.say(f"requeue {job.id} by its user")
    job.requeued_by_user = True
    self.blame(job)
    with contextlib.suppress(AssertionError):  # it ended, or is requeued by us, just now
        self.slurm("scontrol", "requeue", str(job.id))


def _suspend(self: Performance, act: Act) -> None:
    job = self.job(act)
    if job.state() != "RUNNING" or job.asked.kind in ("het", "array"):
        return
    self.say(f"suspend {job.id} for {act.lasts_s} s")
    with contextlib.suppress(AssertionError):
        self.slurm("scontrol", "suspend", str(job.id))
        time.sleep(act.lasts_s)
        self.slurm("scontrol", "resume", str(job.id))


def _drain(self: Performance, act: Act) -> None:
    node = self.node(act)
    if self.facts.drained_by_user or node in self.facts.ever_faulty:
        return
    reason = f"ticket {self.drawn.number}"
    self.say(f"{node} drained by a person")
    self.slurm("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")
    self.facts.drained_by_user[node] = reason


def _resume(self: Performance, act: Act) -> None:
    """A person returns a node that we took out."""
    ours = sorted(self.story.drained_now() & self.facts.faulty)
    states = {name: self.slurm("sinfo", "-h", "-n", name, "-o", "%T").strip() for name in ours}
    ours = [name for name in ours if states[name].startswith("drain") and not states[name].endswith("*")]
    if not ours:
        return
    self.say(f"{ours[0]} returned by a person")
    self.facts.faulty.discard(ours[0])
    self.facts.returned_by_user.add(ours[0])
    self.slurm("scontrol", "update", f"nodename={ours[0]}", "state=resume")


# --- ourselves and what we lean on -------------------------------------------------------------------------------------


def _kill(self: Performance, act: Act) -> None:
    self.say(f"daemon killed, away for {act.lasts_s} s")
    self.story.kill_daemon()
    time.sleep(act.lasts_s)
    self.story.start_daemon()


def _kill_twice(self: Performance, act: Act) -> None:
    _kill(self, act)
    time.sleep(random.Random(str(act)).uniform(0, 2))
    _kill(self, act)


def _freeze(self: Performance, act: Act) -> None:
    daemon = processes.known(self.story.paths, "daemon")
    assert daemon is not None, "the daemon ended by itself"
    self.say(f"daemon stopped for {act.lasts_s} s")
    daemon.send(signal.SIGSTOP)
    time.sleep(act.lasts_s)
    daemon.send(signal.SIGCONT)


def _agent(self: Performance, act: Act) -> None:
    node = self.node(act)
    if processes.known(self.story.paths, f"agent-{node}") is None:
        return
    self.say(f"agent of {node} killed, away for {act.lasts_s} s")
    self.story.stop_agent(node)
    time.sleep(act.lasts_s)
    self.story.start_agent(node)


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
    saved, now = self.story.paths.state / "job_state", time.time()
    until(lambda: saved.stat().st_mtime > now, "slurmctld to save its jobs")
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
    "scancel": _scancel,
    "hold": _hold,
    "requeue": _requeue,
    "suspend": _suspend,
    "drain": _drain,
    "resume": _resume,
    "kill": _kill,
    "kill twice": _kill_twice,
    "freeze": _freeze,
    "agent": _agent,
    "munged": _munged,
    "controller restart": _controller_restart,
    "controller kill": _controller_kill,
    "controller frozen": _controller_frozen,
}
