"""What the daemon remembers of one node and of one attempt, as the view of the cluster holds it."""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sentinel.detect.change_point import WINDOW, SlowSeen
from sentinel.detect.hang import SilenceSeen
from sentinel.detect.observed_silence import Observed
from sentinel.detect.progress_curve import ProgressCurve
from sentinel.detect.step_rhythm import Rhythm
from sentinel.evidence.logs.timers import Report
from sentinel.model.records import Evidence, JobView
from sentinel.wire import size_of

_STEP_LINES = 16  # newest step lines of an attempt, at most one a second: more than show that it went on after an error
_SAVES = 50  # newest saves of an attempt, from which its save interval is computed
_REPORTS = 128  # timer reports, at most one in ten seconds: at least twenty minutes
_POOL = 400  # recent evidence kept for each attempt and node, for incidents opened later
_POOL_CHARACTERS = 1 << 20  # of its texts: 400 lines of 2.5 KiB; usual ones have some hundred


class Pool(deque[Evidence]):
    """The newest evidence about an attempt or a node, bounded in number and in size: the oldest is dropped first."""

    def __init__(self) -> None:
        super().__init__(maxlen=_POOL)
        self._characters = 0

    def append(self, item: Evidence) -> None:
        if len(self) == _POOL:
            self.popleft()
        super().append(item)
        self._characters += _characters(item)
        while self._characters > _POOL_CHARACTERS and len(self) > 1:
            self.popleft()

    def popleft(self) -> Evidence:
        item = super().popleft()
        self._characters -= _characters(item)
        return item


def _characters(item: Evidence) -> int:
    return len(item.text) + len(item.where.path or "") + size_of(item.data)


@dataclass(slots=True)
class NodeSeen:
    """What the agent of a node last reported. Times are monotonic seconds of this daemon."""

    contact_s: float | None = None  # when its last message came; None: never
    state: str = "unknown"  # "heard" (in contact), "silent", "unreachable"
    version: str = ""
    verdict: dict[str, object] = field(default_factory=dict)
    beat_s: float | None = None  # interval asked of its heartbeats while a job of it may be hung; None: the usual one
    clock_offset_s: float | None = None  # by how much the node's clock is ahead of the daemon's
    clock_offsets_s: deque[float] = field(default_factory=lambda: deque(maxlen=8))  # by its last heartbeats
    boot: str = ""  # of its host; empty: not told
    booted_at: datetime | None = None  # when that began, by the daemon's clock; None: not known
    kernel_readable: bool | None = None  # whether its agent reads the kernel log; None: not told
    lost: int | None = None  # pieces of evidence that its agent could not hand over
    released_at: datetime | None = None  # when an operator last returned it: its agent disregards older faults
    gpus: dict[tuple[int, int], frozenset[int]] = field(default_factory=dict)  # by job and attempt, where known
    jobs: frozenset[tuple[int, int]] | None = None  # attempts that run there; None: no heartbeat has told
    pool: Pool = field(default_factory=Pool)

    def note_boot(self, boot: str, up_s: float | None, at: datetime) -> None:
        """Take from a heartbeat which boot it is and for how long the host is up; a late one makes it seem younger."""
        if boot != self.boot:
            self.boot, self.booted_at = boot, None
        if boot and up_s is not None:
            began = at - timedelta(seconds=up_s)
            self.booted_at = min(began, self.booted_at or began)


@dataclass(slots=True)
class AttemptSeen:
    """One attempt of a job."""

    view: JobView
    nodes: tuple[str, ...] = ()
    nodes_whole: bool = False  # whether it was ever seen with its whole allocation
    first_step: int | None = None
    last_step: int | None = None
    step_time_s: float | None = None  # of the last step that printed it; see ``usual_step_s``
    rhythm: Rhythm = field(default_factory=Rhythm)
    ended: bool = False
    noted_at: datetime | None = None  # when something was last heard of it
    stalled: bool = False
    silence: SilenceSeen = field(default_factory=SilenceSeen)
    observed: Observed = field(default_factory=Observed)  # how much of the silence was observed
    unread_logged: bool = False  # whether it was logged that no agent reports how far its log is read
    slow: SlowSeen = field(default_factory=SlowSeen)
    pool: Pool = field(default_factory=Pool)
    timers: deque[tuple[datetime, Report]] = field(default_factory=lambda: deque(maxlen=_REPORTS))
    step_lines: deque[Evidence] = field(default_factory=lambda: deque(maxlen=_STEP_LINES))
    saves: deque[Evidence] = field(default_factory=lambda: deque(maxlen=_SAVES))
    read_back_bytes: int = 0  # of saves that were read once for their manifests
    read_back_s: float = 0.0  # how long that took
    curve: ProgressCurve = field(default_factory=ProgressCurve)  # for people to look at
    rank_nodes: dict[int, str] = field(default_factory=dict)  # as the tasks reported
    top_rank: int | None = None  # highest rank named in the log
    run_since: datetime | None = None  # when it was last restarted in its allocation
    start_learned: bool = False  # whether it is kept how long this run took to its first step

    def after_suspension(self, now: JobView, at: datetime) -> None:
        """Let the silence begin anew if Slurm suspended the job since the last snapshot, however shortly."""
        if now.state == "running" and (self.view.state == "suspended" or self.view.suspended_at != now.suspended_at):
            self.rhythm, self.observed = replace(self.rhythm, last_at=self.rhythm.last_at and at), Observed()

    def last_save(self) -> int | None:
        """The step of the newest save that was seen; None: none was, or its step is not known."""
        steps = (item.data.get("step") for item in list(self.saves))
        return max((step for step in steps if isinstance(step, int)), default=None)

    def save_interval_s(self) -> float | None:
        """Median time between saves in seconds; None before the third save."""
        times = sorted(item.at for item in list(self.saves))  # copied: views read it in threads
        gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)]
        return statistics.median(gaps) if len(gaps) >= 2 else None

    def usual_step_s(self) -> float | None:
        """Median step time in seconds, which one long step does not change; None: not known.

        What repeated steps cost is counted by it: the last step that a hung job prints lasted as long as the hang.
        """
        times = self.rhythm.times
        if len(times) < 2 * WINDOW and self.step_time_s is None:
            return None  # none was printed, and the times at which so few lines came say little
        return (statistics.median(times) if times else self.step_time_s) or None

    def save_s(self) -> float | None:
        """Median duration of a save in seconds; None if the log does not print it."""
        took = [s for item in list(self.saves) if isinstance(s := item.data.get("time_s"), (int, float)) and s > 0]
        return float(statistics.median(took)) if took else None
