"""The promises of Sentinel as code: each is a function that sees what happened and says what is wrong with it.

A promise's first line is the promise. Most are checked against everything that happens, before it has its effect; what can
only be said at the end is checked there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from sentinel.simulate.happened import Happened, HistoryEnded
from sentinel.simulate.observer import Observer
from sentinel.simulate.promises import as_it_happens as now
from sentinel.simulate.promises import at_the_end, modes, node_returns

Promise = Callable[[Observer, Happened], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    why: str
    at_s: float


def _at_the_end(check: Callable[[Observer], Iterator[str]]) -> Promise:
    def promise(seen: Observer, what: Happened) -> Iterator[str]:
        if isinstance(what, HistoryEnded):
            yield from check(seen)

    promise.__doc__ = check.__doc__
    return promise


PROMISES: Mapping[str, Promise] = {
    "no-bug": now.no_bug,
    "unknown-drains-nobody": now.unknown_drains_nobody,
    "never-drained-on-user-words": now.never_drained_on_user_words,
    "saved-before-done": now.saved_before_done,
    "audited-before-done": now.audited_before_done,
    "nothing-twice": now.nothing_twice,
    "one-daemon-acts": now.one_daemon_acts,
    "nothing-lost": _at_the_end(at_the_end.nothing_lost),
    "blast-radius": now.blast_radius,
    "breaker": now.breaker,
    "no-fruitless-restarts": now.no_fruitless_restarts,
    "only-what-is-ours": now.only_what_is_ours,
    "done-stays-done": now.done_stays_done,
    "left-to-people": now.left_to_people,
    "brought-back": _at_the_end(at_the_end.brought_back),
    "holds-stay": _at_the_end(at_the_end.holds_stay),
    "our-reason": now.our_reason,
    "proof-before-return": node_returns.proof_before_return,
    "not-offered-back": now.not_offered_back,
    "probation": node_returns.on_probation,
    "not-in-turn": node_returns.not_in_turn,
    "leaves-bad-nodes": _at_the_end(at_the_end.leaves_bad_nodes),
    "observe-changes-nothing": modes.observe_changes_nothing,
    "nothing-unapproved": modes.nothing_unapproved,
    "approved-is-done": _at_the_end(at_the_end.approved_is_done),
    "pause-begins-nothing": modes.pause_begins_nothing,
    "stays-in-its-allocation": node_returns.stays_in_its_allocation,
    "lends-to-who-lost-a-node": node_returns.lends_to_who_lost_a_node,
    "loans-end": _at_the_end(node_returns.loans_end),
    "resumed-from-valid": now.resumed_from_valid,
    "resume-point-first": now.resume_point_first,
    "explained": now.explained,
    "one-notice": now.one_notice,
    "told": _at_the_end(at_the_end.told),
    "told-to-the-end": _at_the_end(at_the_end.told_to_the_end),
    "true-words": now.true_words,
    "comes-to-rest": _at_the_end(at_the_end.comes_to_rest),
}


def check(seen: Observer, what: Happened) -> Iterator[Violation]:
    """What now violates a promise; each violation is reported once in a history."""
    for name, promise in PROMISES.items():
        for why in promise(seen, what):
            if (name, why) not in seen.broken_once:
                seen.broken_once.add((name, why))
                yield Violation(name, why, seen.world.now_s)
    seen.after(what)
