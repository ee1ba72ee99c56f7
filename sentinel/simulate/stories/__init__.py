"""Generates histories from a seed: one story for each kind of trouble, and one in which anything happens."""

from __future__ import annotations

import random
from collections.abc import Mapping

from sentinel.simulate.histories import History
from sentinel.simulate.stories import recoveries, sites
from sentinel.simulate.stories.draws import Story

REST_S = 900.0  # after the last thing that happens, until everything must have come to rest

STORIES: Mapping[str, Story] = {
    "killed": recoveries.killed,
    "killed-often": recoveries.killed_often,
    "lost-answers": recoveries.lost,
    "two-faults": recoveries.two_faults,
    "people": recoveries.people,
    "slurmctld": recoveries.slurmctld,
    "network": recoveries.network,
    "own-clock": recoveries.own_clock,
    "store": recoveries.store,
    "crowded": recoveries.crowded,
    "many-nodes": recoveries.many,
    "observe": sites.observed,
    "suggest": sites.suggested,
    "paused": recoveries.paused,
    "again": sites.again,
    "anything": recoveries.anything,
    "returned": sites.returned,
    "put-back": sites.put_back,
    "reserved": sites.reserved,
    "in-allocation": sites.in_allocation,
    "doubled": recoveries.doubled,
    "slow-end": recoveries.slow_end,
    "requeue-held": recoveries.requeue_held,
    "in-turn": recoveries.in_turn,
    "spares": sites.spares,
    "watched": recoveries.watched,
    "done": sites.done,
    "records": recoveries.records,
}
_REST_S = {"watched": 420.0}  # Slurm itself sets a silent node down after 300 s
_RARE = ("watched", "done")  # in turn: one takes ten times as long as others, the other has little to tell
# Of sixteen in a row, by number: the numbers of the others mean what they meant before these came.
_EACH = 16
_LATER = {_EACH - 1: ("doubled", "own-clock"), 7: ("slow-end", "requeue-held", "in-turn", "put-back"), 9: ("records",)}
_TURNS = [*(name for name in STORIES if name not in {*_RARE, *sum(_LATER.values(), ())})] * 8


def history_of(seed: int, number: int, story: str | None = None) -> History:
    """The history of this number; the same for the same seed, story and release."""
    round_, turn = divmod(number, len(_TURNS) + 1)
    regular = _TURNS[turn] if turn < len(_TURNS) else _RARE[round_ % len(_RARE)]
    later = _LATER.get(number % _EACH, ())
    name = story or (later[number // _EACH % len(later)] if later else regular)
    rng = random.Random(f"{seed}/{name}/{number}")  # noqa: S311 - repeatable, not secret
    setup, happenings = STORIES[name](rng)
    happenings.sort(key=lambda one: one.at_s)
    last_s = max((one.at_s for one in happenings), default=0.0)
    # Troubles may last one after the other: a kill strikes a daemon that lives.
    away_s = sum(float(one.data.get(key, 0.0)) for one in happenings for key in ("for_s", "down_s"))
    rest_s = _REST_S.get(name, REST_S)
    return History(seed, number, name, setup, tuple(happenings), last_s + away_s + rest_s)
