"""What watching remembers between two events. Attempts and the names of heard agents survive a restart, in the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sentinel.detect.observed_silence import Transit
from sentinel.detect.own_host import OwnDelays
from sentinel.detect.slow_steps import SlowdownWatch
from sentinel.detect.visibility import Visibility
from sentinel.engine.events import ReportedEnd
from sentinel.model.changes import AttemptSeen

NEVER_S = float("-inf")


@dataclass(slots=True)
class Probe:
    """A probe of a silent node under way: several attempts to connect to slurmd's port, one after the other."""

    began_s: float
    contact_s: float | None  # when the node was last in contact: a later message ends the probe
    cut_off: bool  # it began while all nodes were silent: it convicts no node
    effect: str = ""  # the attempt under way; empty during the pause before the next one
    look: str = ""  # the snapshot under way that shows whether the node is in service
    refusals: list[str] = field(default_factory=list)


@dataclass(slots=True)
class JobEnds:
    """Jobs that ended according to a hook, and of which Slurm is asked until it has their final state."""

    tries: dict[int, int] = field(default_factory=dict)  # by job, how often Slurm was asked
    told: dict[int, ReportedEnd] = field(default_factory=dict)  # by job, of those in ``tries``: what the hook said
    asked_at: datetime | None = None  # when it was asked; None: not under way
    timer: bool = False  # whether the pause before the next question is running


@dataclass(slots=True)
class LostEnd:
    """An attempt that Slurm lists as running and that no agent of its nodes has any longer."""

    since: datetime
    asked_at: datetime | None = None  # when its nodes were last asked for its processes
    answered: bool = False  # each of them found none


@dataclass(slots=True)
class WatchState:
    delays: OwnDelays
    slowdowns: SlowdownWatch
    running: bool = False  # whether the runner delivers messages, so that the periodic timer is started again
    began_s: float = 0.0
    visibility: Visibility | None = None  # None before the first event
    first_steps: dict[int, float] = field(default_factory=dict)  # see ``watch.first_step``
    not_judged: str = ""  # the reason last logged for not judging silence; empty while it is judged
    transits: dict[str, Transit] = field(default_factory=dict)  # by node
    agents: int = 0  # nodes in contact
    agents_before: set[str] = field(default_factory=set)  # nodes whose agents only an earlier daemon heard
    missing: frozenset[str] = frozenset()  # of these, the ones in service, once agents have had time to connect again
    agents_kept: frozenset[str] = frozenset()  # nodes of heard agents as they are in the store
    agents_kept_s: float = NEVER_S  # when they were saved
    agents_changed: bool = False  # others were heard since
    probes: dict[str, Probe] = field(default_factory=dict)  # by node
    probed_s: dict[str, float] = field(default_factory=dict)  # when each silent node was last probed
    all_silent_s: float = NEVER_S  # when all nodes were last silent together
    all_silent_logged: bool = False
    down: frozenset[str] | None = None  # nodes that Slurm called down in the last reconciliation
    reconciling_at: datetime | None = None  # when the snapshot for it was requested; None: not under way
    reconcile_again: bool = False  # requested once more meanwhile
    requested_s: float = NEVER_S  # when an agent's unknown job last requested it
    job_ends: JobEnds = field(default_factory=JobEnds)
    was_on_nodes: set[tuple[int, int]] = field(default_factory=set)  # attempts that an agent had in a heartbeat
    lost_ends: dict[tuple[int, int], LostEnd] = field(default_factory=dict)
    saved: dict[tuple[int, int], AttemptSeen] = field(default_factory=dict)  # attempts as they are in the store
    examined: tuple[int, int] | None = None  # the attempt that is being examined, in case of an exception
    own_clock_logged: bool = False  # whether the log says that the daemon's clock is off
    set_aside: dict[tuple[int, int], datetime] = field(default_factory=dict)  # attempts whose examination failed
