"""What users and operators do, and what becomes of slurmctld, the daemon, the network and the store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sentinel.engine.events import ApprovalGiven
from sentinel.model.approvals import asked, open_names, request_of
from sentinel.simulate.crossings import Cut
from sentinel.simulate.faults import UNREACHABLE_S, unreachable
from sentinel.simulate.histories import Happening

if TYPE_CHECKING:
    from sentinel.simulate.world import World

Act = Callable[["World", Happening], None]
_DOWN_S = 2.0  # from a kill to the next start, where the history does not say
_REBOOT_S = 60.0
_TRIES_AGAIN_S = 10.0  # after slurmctld is back: by then who polls it has seen it
_AGAIN_S = 5.0  # an operator whose command was not answered by then tries again


def _scontrol(act: Act) -> Act:
    """What a person does through slurmctld: while that is dead the command fails, and is given again once it is back."""

    def by_a_person(world: World, happening: Happening) -> None:
        dead_s = world.slurmctld_dead_until_s - world.now_s
        if dead_s > 0.0:
            world.later(dead_s + _TRIES_AGAIN_S, partial(by_a_person, world, happening))
        else:
            act(world, happening)

    return by_a_person


# -- users ---------------------------------------------------------------------------------------------------------


def _cancel(world: World, happening: Happening) -> None:
    job = world.job_named(happening.who)
    if job is not None and not (job.over and not job.completing):
        world.observer.person(job.id, "cancel")
        world.slurm.cancel(job.id)


def _hold(world: World, happening: Happening) -> None:
    """scontrol uhold; Slurm does nothing for a job that is held already."""
    job = world.job_named(happening.who)
    if job is not None and not job.over and not job.held:
        world.observer.person(job.id, "hold")
        world.slurm.person_holds(job.id)


def _release(world: World, happening: Happening) -> None:
    job = world.job_named(happening.who)
    if job is not None and not job.over:
        world.observer.person(job.id, "release")
        world.slurm.person_releases(job.id)


def _requeue(world: World, happening: Happening) -> None:
    job = world.job_named(happening.who)
    if job is not None and not job.completing:
        world.observer.person(job.id, "requeue")
        world.slurm.person_requeues(job.id)


def _requeue_hold(world: World, happening: Happening) -> None:
    """scontrol requeuehold; Slurm refuses it for a job that waits in the queue."""
    job = world.job_named(happening.who)
    if job is not None and not job.completing and job.state != "PENDING" and job.batch and job.requeue:
        world.observer.person(job.id, "requeue")
        world.observer.person(job.id, "hold")
        world.slurm.person_requeues_and_holds(job.id)


# -- operators -----------------------------------------------------------------------------------------------------


def _drain(world: World, happening: Happening) -> None:
    node = world.node_named(happening.who)
    if node is not None:
        world.observer.node_drained(node)
        world.slurm.person_drains(node, "cable swap")


def _resume_node(world: World, happening: Happening) -> None:
    node = world.node_named(happening.who)
    if node is not None and world.slurm.nodes[node].out:
        world.observer.node_resumed(node)
        world.slurm.person_resumes(node)


def _repair(world: World, _happening: Happening) -> None:
    """The first node that Sentinel drained is repaired and put back into service."""
    for name in world.observer.ours()[:1]:
        world.observer.repaired(name)
        world.observer.node_resumed(name)
        world.presence.booted(name)
        world.slurm.person_resumes(name)


def _reboot(world: World, happening: Happening) -> None:
    """The node goes away for a minute and comes back whole; a drain stays."""
    node = world.node_named(happening.who)
    if node is None:
        return
    world.observer.broke(node, "reboot", must_go=False)
    world.presence.lose(node)
    world.later(UNREACHABLE_S, lambda: unreachable(world, node))
    world.later(_REBOOT_S, lambda: world.presence.booted(node))


def _maintenance(world: World, happening: Happening) -> None:
    """The node is in a maintenance reservation for a while: people work on it."""
    _reserve(world, happening, [world.node_named(happening.who)], "")


def _reservation(world: World, happening: Happening) -> None:
    """Nodes are reserved for a user for a while."""
    first = int(happening.data.get("first", 1))
    names = [f"n{first + more}" for more in range(int(happening.data.get("nodes", 1)))]
    _reserve(world, happening, [name if name in world.slurm.nodes else None for name in names], "olga")


def _reserve(world: World, happening: Happening, names: Sequence[str | None], user: str) -> None:
    nodes = world.slurm.nodes
    taken = [name for name in names if name and not (nodes[name].maintenance or nodes[name].reserved_for)]
    world.slurm.person_reserves(taken, user)
    for name in taken if not user else ():
        world.observer.maintained[name] = world.now_s

    def over() -> None:
        world.slurm.reservation_ends(taken)
        for name in taken:
            world.observer.maintained.pop(name, None)

    world.later(float(happening.data.get("for_s", 60.0)), over)


def _pause(world: World, _happening: Happening) -> None:
    _command(world, "pause")


def _resume(world: World, _happening: Happening) -> None:
    _command(world, "resume")


def _answer(approved: bool) -> Act:
    """A person looks at what is asked, and answers a while later: by then it may be something else."""

    def act(world: World, happening: Happening) -> None:
        store = world.store
        for incident, plan in sorted(store.plans.items()):
            if not asked(plan) or incident not in store.verdicts or plan.id in store.finished:
                continue
            cause, names = store.verdicts[incident].cause, open_names(asked(plan))
            what = names[:1] if happening.data.get("part") else names
            given = ApprovalGiven(world.now(), incident, request_of(plan, cause), what, approved, "olga")
            world.later(float(happening.data.get("late_s", 0.0)), partial(_answered, world, given))

    return act


def _answered(world: World, given: ApprovalGiven) -> None:
    if given.approved:
        world.observer.approved[given.incident].update(given.what)
    if world.daemon is not None and world.daemon.ready:
        world.daemon.answer(dataclasses.replace(given, at=world.daemon.clock.now()))


def _command(world: World, command: str) -> None:
    """Give the command, again until it is answered or another one is given."""
    answered: list[bool] = []
    world.commanded = command
    if world.daemon is not None:
        world.daemon.command(command, lambda: answered.append(True))

    def again() -> None:
        if not answered and world.commanded == command:
            _command(world, command)

    world.later(_AGAIN_S, again)


# -- slurmctld, the daemon, the network, the store -----------------------------------------------------------------


def _slurmctld(state: str) -> Act:
    def act(world: World, happening: Happening) -> None:
        world.crossings.slurm = state
        world.away.append((world.now_s, world.now_s + float(happening.data.get("for_s", 30.0))))

        def back() -> None:
            world.crossings.slurm = "up"

        world.later(float(happening.data.get("for_s", 30.0)), back)

    return act


def _refused(of: str) -> Act:
    def act(world: World, happening: Happening) -> None:
        """slurmctld answers, and refuses to change nodes, or jobs."""
        for_s = float(happening.data.get("for_s", 30.0))
        world.slurm.refused_until_s[of] = world.slurm.time_s() + for_s
        world.away.append((world.now_s, world.now_s + for_s))

    return act


def _slurmctld_crash(world: World, happening: Happening) -> None:
    """slurmctld is killed, forgets its last seconds, and is back after ``for_s``."""
    held = {job.id for job in world.slurm.jobs.values() if job.held}
    away_s = float(happening.data.get("for_s", 30.0))
    world.slurm.crash(away_s)
    for this in world.slurm.jobs.values():
        if this.held and this.id not in held and this.id in world.observer.let_go_by_people:  # it forgot that
            world.observer.held[this.id] = world.slurmctld_saved_s
    world.presence.slurmctld_starts()
    world.observer.slurmctld_dies()
    jobs = world.slurm.jobs
    for this in [jobs[job] for job in world.observer.held if job in jobs]:
        # Where it forgot a person's hold, as of a requeuehold, one that is there was there before: ours.
        if not this.held or world.observer.held[this.id] > world.slurmctld_saved_s:
            del world.observer.held[this.id]
    for node in [name for name in world.observer.maintained if not world.slurm.nodes[name].maintenance]:
        del world.observer.maintained[node]  # it forgot the reservation
    for job in [job for job in world.observer.cancelled if job in jobs and jobs[job].state != "CANCELLED"]:
        del world.observer.cancelled[job]
    _slurmctld("gone")(world, happening)
    world.slurmctld_dead_until_s = world.now_s + away_s


def _cut(kill: bool) -> Act:
    def act(world: World, happening: Happening) -> None:
        data = happening.data
        cut = Cut(kill, bool(data.get("after", False)), float(data.get("down_s", _DOWN_S)))
        for following in range(int(data.get("times", 1))):
            world.crossings.arm(int(data.get("nth", 0)) + following, cut)

    return act


def _freeze(world: World, happening: Happening) -> None:
    """The daemon is stopped (SIGSTOP) and goes on later."""
    if world.doubled is not None:
        world.doubled.stop(float(happening.data.get("for_s", 30.0)))
        return
    world.frozen_until_s = world.now_s + float(happening.data.get("for_s", 30.0))
    world.away.append((world.now_s, world.frozen_until_s))


def _lossy(world: World, happening: Happening) -> None:
    world.agents.network.lossy_until_s = world.now_s + float(happening.data.get("for_s", 60.0))


def _cut_off(world: World, happening: Happening) -> None:
    node = world.node_named(happening.who)
    if node is not None:
        world.agents.network.cut_off.add(node)
        world.later(float(happening.data.get("for_s", 60.0)), lambda: world.agents.network.cut_off.discard(node))


def _record_spoiled(world: World, happening: Happening) -> None:
    """Slurm's record of a node cannot be read for a while."""
    node = world.node_named(happening.who)
    if node is not None:
        world.slurm.unreadable.add(node)
        world.later(float(happening.data.get("for_s", 60.0)), lambda: world.slurm.unreadable.discard(node))


def _clock_off(world: World, happening: Happening) -> None:
    """The clock of a node is wrong by ``by_s``."""
    node = world.node_named(happening.who)
    if node is not None:
        world.clock_off_s[node] = float(happening.data.get("by_s", 30.0))


def _own_clock(world: World, happening: Happening) -> None:
    """The clock of the daemon's host is set, wrong or right again."""
    world.own_off_s = float(happening.data.get("by_s", 0.0))


def _store_full(world: World, happening: Happening) -> None:
    world.store_full = True
    world.away.append((world.now_s, world.now_s + float(happening.data.get("for_s", 30.0))))

    def space_again() -> None:
        world.store_full = False

    world.later(float(happening.data.get("for_s", 30.0)), space_again)


ACTS: Mapping[str, Act] = {
    "cancel": _scontrol(_cancel),
    "hold": _scontrol(_hold),
    "release": _scontrol(_release),
    "requeue": _scontrol(_requeue),
    "requeue-hold": _scontrol(_requeue_hold),
    "drain": _scontrol(_drain),
    "resume-node": _scontrol(_resume_node),
    "repair": _scontrol(_repair),
    "reboot": _reboot,
    "maintenance": _scontrol(_maintenance),
    "reservation": _scontrol(_reservation),
    "pause": _pause,
    "resume": _resume,
    "approve": _answer(approved=True),
    "refuse": _answer(approved=False),
    "slurmctld-gone": _slurmctld("gone"),
    "slurmctld-slow": _slurmctld("slow"),
    "slurmctld-refuses": _slurmctld("refuses"),
    "slurmctld-crash": _slurmctld_crash,
    "nodes-refused": _refused("nodes"),
    "jobs-refused": _refused("jobs"),
    "kill": _cut(kill=True),
    "lose": _cut(kill=False),
    "freeze": _freeze,
    "lossy": _lossy,
    "cut-off": _cut_off,
    "record-spoiled": _record_spoiled,
    "clock-off": _clock_off,
    "own-clock": _own_clock,
    "store-full": _store_full,
}
