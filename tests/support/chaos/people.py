"""What people do in a random story: users with their jobs, operators with nodes and with Sentinel."""

from __future__ import annotations

import contextlib
import time

from lab import cluster
from stories.timeline import until

from chaos.drawn import Act
from chaos.performance import Performance, undo


def scancel(self: Performance, act: Act) -> None:
    job = self.job(act)
    if job.state() in ("COMPLETED", "FAILED", "CANCELLED") or job.failed_by_itself():
        return
    self.say(f"scancel {job.id} ({job.state()})")
    self.slurm("scancel", str(job.id))
    job.cancelled = not job.failed_by_itself()  # its script may have ended between our look and the request


def hold(self: Performance, act: Act) -> None:
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


def requeue(self: Performance, act: Act) -> None:
    job = self.job(act)
    if job.cancelled or job.held() or job.state() != "RUNNING" or job.asked.kind == "het":
        return
    self.say(f"requeue {job.id} by its user")
    job.requeued_by_user = True
    self.blame(job)
    with contextlib.suppress(AssertionError):  # it ended, or is requeued by us, just now
        self.slurm("scontrol", "requeue", str(job.id))


def suspend(self: Performance, act: Act) -> None:
    job = self.job(act)
    if job.state() != "RUNNING" or job.asked.kind in ("het", "array"):
        return
    self.say(f"suspend {job.id} for {act.lasts_s} s")
    with contextlib.suppress(AssertionError):
        self.slurm("scontrol", "suspend", str(job.id))
        time.sleep(act.lasts_s)
        self.slurm("scontrol", "resume", str(job.id))
        job.held_at, job.held_perhaps = None, False  # Slurm gives it its priority back, and with that takes the hold


def drain(self: Performance, act: Act) -> None:
    node = self.node(act)
    if self.facts.drained_by_user or node in self.facts.ever_faulty:
        return
    reason = f"ticket {self.drawn.number}"
    self.say(f"{node} drained by a person")
    self.slurm("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")
    self.facts.drained_by_user[node] = reason


def resume(self: Performance, act: Act) -> None:
    """A person returns a node that we took out."""
    ours = sorted(self.story.drained_now() & self.facts.faulty)
    states = {name: self.slurm("sinfo", "-h", "-n", name, "-o", "%T").strip() for name in ours}
    ours = [name for name in ours if states[name].startswith("drain") and not states[name].endswith("*")]
    if not ours:
        return
    try:
        self.slurm("scontrol", "update", f"nodename={ours[0]}", "state=resume")
    except AssertionError as error:
        if "Invalid node state specified" not in str(error):
            raise
        # slurmctld was started just now, and the node has not registered yet: 22.05 may take the drain back all the same
        if self.slurm("sinfo", "-h", "-n", ours[0], "-o", "%T").startswith("drain"):
            return
    self.say(f"{ours[0]} returned by a person")
    self.facts.faulty.discard(ours[0])
    self.facts.returned_by_user.add(ours[0])


def requeue_hold(self: Performance, act: Act) -> None:
    """Its user wants it to stop and to wait."""
    job = self.job(act)
    if job.cancelled or job.held() or job.state() != "RUNNING" or job.asked.kind == "het":
        return
    restarts = job.restarts()
    try:
        self.slurm("scontrol", "requeuehold", str(job.id))
    except AssertionError:  # it ended, or is requeued by us, just now
        return
    self.say(f"requeuehold {job.id} by its user")
    job.held_at = -1
    job.held_perhaps = job.faults > 0 or job.restarts() != restarts + 1  # it may be our hold as well
    self.blame(job)


def reconfigure(self: Performance, act: Act) -> None:
    self.say("scontrol reconfigure")
    self.slurm("scontrol", "reconfigure")


def pause(self: Performance, act: Act) -> None:
    """Until the next such act, or the end of what is drawn."""
    if self.facts.paused:
        resume_acting(self)
        return
    self.say("sentinel pause")
    self.facts.paused = True
    _command(self, "pause")


def resume_acting(self: Performance) -> None:
    if self.facts.paused:
        self.say("sentinel resume")
        _command(self, "resume")
        self.facts.paused = False


def _command(self: Performance, command: str) -> None:
    """Again while a daemon that was started just now stands by: the process of the one before is not yet gone."""

    def carried_out() -> bool:
        done = self.story.sentinel(command, code=None)
        assert done.returncode == 0 or "standby: " in done.stderr, done.stdout + done.stderr
        return done.returncode == 0

    until(carried_out, f"sentinel {command} to be carried out")


def repair(self: Performance, act: Act) -> None:
    """A node that we took out is mended, and returned with our own command."""
    ours = sorted(self.story.drained_now() & self.facts.faulty)
    free = [name for name in ours if not self.jobs_on(name)]
    if not free:
        return
    name = free[0]
    for fault in {record["fault"] for record in cluster.faults_now(self.story.paths) if record["node"] == name}:
        undo(self, fault, name)
    if (self.story.paths.node(name) / "agent-state" / "convictions.json").exists():
        self.story.reboot([name])
    up = lambda: "*" not in self.slurm("sinfo", "-h", "-n", name, "-o", "%T")  # noqa: E731
    until(up, lambda: f"{name} to answer: {self.slurm('scontrol', 'show', 'node', name)}")
    done = self.story.sentinel("release", "--yes", name, code=None)
    self.say(f"{name} repaired; sentinel release: {done.returncode} {done.stdout.strip()} {done.stderr.strip()}")
    if done.returncode == 0:
        self.facts.faulty.discard(name)
        self.facts.returned_by_user.add(name)
