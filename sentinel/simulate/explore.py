"""Runs many histories over the cores, and shrinks each that breaks a promise to the shortest that still does."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sentinel.errors import UserError
from sentinel.simulate.histories import Happening, History
from sentinel.simulate.promises import Violation
from sentinel.simulate.stories import STORIES, history_of
from sentinel.simulate.world import World

SAME_END = "same-end"  # checked over two runs, here
_SAME_END_STORIES = frozenset({"killed"})
_CUTS = frozenset({"kill", "lose"})
# After 300 s Slurm sets silent nodes down and forgets jobs that have ended: then another end is right.
_SLURM_ACTS_S = 250.0
# After a lost node Slurm restarts the job itself after 120 s. A job that went on with bad numbers and ended while nobody
# looked is one failure, not two.
_OTHERWISE_S = {"node-lost": 100.0, "bad-numbers": 1.0}
_TIMED = frozenset({"silence"})  # how it ends depends on when it is looked at: the job goes on by itself
_GC_THRESHOLD = 100_000  # new objects between two looks; a process grows by some 20 MB
_CHUNK = 8  # histories that a process takes at a time
MOST_HISTORIES = 10_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """A history that broke a promise, shrunk. ``name``: what ``--replay`` takes."""

    seed: int
    name: str
    story: str
    violation: Violation
    happenings: tuple[Happening, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "seed": self.seed,
            "id": self.name,
            "promise": self.violation.promise,
            "story": self.story,
            "at": round(self.violation.at_s, 3),
            "why": self.violation.why,
            "events": [f"{one.at_s:.3f} s: {one}" for one in self.happenings],
        }


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one history."""

    number: int
    cuts: int  # crossings at which the daemon was killed or an answer lost
    found: Found | None


def run(history: History, tell: Callable[[float, str], None] | None = None) -> tuple[list[Violation], int]:
    """The promises that the history breaks, and at how many crossings it was cut."""
    world = World(history, tell=tell)
    violations = world.run()
    if _ends_the_same(history):
        kept = tuple(one for one in history.happenings if one.what not in _CUTS)
        whole = World(dataclasses.replace(history, happenings=kept))
        whole.run()
        violations = [*violations, *same_end(world, whole)]
    return violations, len(world.crossings.cut_at)


def _ends_the_same(history: History) -> bool:
    """Whether the history must end as it would without its kills."""
    happened = {one.what for one in history.happenings}
    away_s = max((float(one.data.get("down_s", 0.0)) for one in history.happenings), default=0.0)
    most_s = next((most_s for what, most_s in _OTHERWISE_S.items() if what in happened), _SLURM_ACTS_S)
    return bool(history.story in _SAME_END_STORIES and happened & _CUTS and not happened & _TIMED and away_s < most_s)


def same_end(world: World, whole: World) -> list[Violation]:
    """Killed at any instant and started again, the daemon ends in the same state as if it had not been (``whole``)."""
    end, other = world.end_state(), whole.end_state()
    differs = [f"{key}: {end[key]} instead of {other[key]}" for key in end if end[key] != other[key]]
    # Both went the same way until the first cut: what was in the store by then keeps its id.
    saved = world.saved_at_cut or frozenset()
    told, all_told = saved & world.observer.notices.keys(), saved & whole.observer.notices.keys()
    if told != all_told:
        differs.append(f"of incidents that were saved before, {sorted(told)} are told instead of {sorted(all_told)}")
    if not differs:
        return []
    return [Violation(SAME_END, f"another end than without the kill: {'; '.join(differs)}", world.now_s)]


def explore(seed: int, histories: int, *, story: str | None = None, processes: int = 1) -> Iterator[Ran]:
    """Run so many histories of this seed, from number 0 on, in no particular order."""
    jobs = [(seed, number, story) for number in range(histories)]
    if processes <= 1:
        yield from map(_one, jobs)
        return
    with multiprocessing.get_context("fork").Pool(processes, initializer=_begin) as pool:
        yield from pool.imap_unordered(_one, jobs, chunksize=_CHUNK)


def _begin() -> None:
    """In a worker. A history leaves little that only the garbage collector finds: looking for it less often saves 7 % of the
    time. Ctrl-C goes to all of the terminal's processes, and is for the first one alone to take."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _one(job: tuple[int, int, str | None]) -> Ran:
    seed, number, story = job
    history = history_of(seed, number, story)
    violations, cuts = run(history)
    return Ran(number, cuts, shrunk(history, violations[0]) if violations else None)


def shrunk(history: History, violation: Violation) -> Found:
    """The shortest history found that still breaks this promise: parts are left out as long as it does."""
    kept = list(range(len(history.happenings)))
    best = violation
    size = max(1, len(kept) // 2)
    while size >= 1:
        start, smaller = 0, False
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            broken = _breaks(part_of(history, fewer), violation.promise)
            if broken is not None:
                kept, best, smaller = fewer, broken, True
            else:
                start += size
        size = size if smaller and size == 1 else size // 2
    parts = f":{','.join(map(str, kept))}" if len(kept) < len(history.happenings) else ""
    happenings = tuple(history.happenings[index] for index in kept)
    return Found(history.seed, history.name + parts, history.story, best, happenings)


def _breaks(history: History, promise: str) -> Violation | None:
    return next((one for one in run(history)[0] if one.promise == promise), None)


def part_of(history: History, kept: Sequence[int]) -> History:
    """The history with only these of its happenings."""
    return dataclasses.replace(history, happenings=tuple(history.happenings[index] for index in kept))


def named(seed: int, name: str) -> History:
    """The history of an id: story, number, and which of its happenings are kept, e.g. "people-17" or "people-17:0,3".

    Raises:
        UserError: that is no such id.
    """
    whole, colon, kept = name.partition(":")
    story, _, number = whole.rpartition("-")
    fix = "give the id that explore printed, e.g. --replay people-17 or --replay people-17:0,3"
    if not (number.isascii() and number.isdecimal()) or int(number) >= MOST_HISTORIES:
        raise UserError(f"--replay {name!r:.80}: no id of a history", fix=fix)
    known_story(story)
    history = history_of(seed, int(number), story)
    if not colon:
        return history
    indices = kept.split(",")
    count = len(history.happenings)
    if not all(index.isascii() and index.isdecimal() and int(index) < count for index in indices):
        raise UserError(f"--replay {name!r:.80}: {whole} has events 0 to {count - 1}", fix=fix)
    return part_of(history, [int(index) for index in indices])


def known_story(story: str | None) -> None:
    """
    Raises:
        UserError: there is no such story.
    """
    if story is not None and story not in STORIES:
        raise UserError(f"no story {story!r:.80}", fix=f"stories: {', '.join(STORIES)}")
