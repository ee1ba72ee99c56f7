"""explore finds what it is for: a fault planted into the code for each promise, found in a few histories.

Each case patches one thing and lets generated histories run until the promise is broken. The same history breaks it by the
planted fault only: without it the promise holds.
"""

from __future__ import annotations

from collections.abc import Callable

import planted_faults as faults
import pytest

from sentinel.simulate.explore import SAME_END, run
from sentinel.simulate.histories import Happening, History, Setup
from sentinel.simulate.promises import PROMISES
from sentinel.simulate.stories import history_of

Patch = pytest.MonkeyPatch
SEED = 1
MOST = 60  # histories until the planted fault must be found
BUS_FAULT = Happening("gpu-off-bus", 60.0, "job0/1")
ENOUGH = 3  # histories that break the promise; of these, one must keep it without the planted fault


def people(*happenings: Happening) -> list[History]:
    """What a person does at the moment at which it matters; generated histories meet it rarely."""
    return [History(SEED, 0, "people", Setup(), (BUS_FAULT, *happenings), 700.0)]


BUS_CANCELLED = [
    history for at_s in (60.1, 60.3, 60.5, 60.6, 61.0) for history in people(Happening("cancel", at_s, "job0"))
]
BUS_REQUEUED_AND_HELD = [
    history for tenth in range(1, 8) for history in people(Happening("requeue-hold", 60.0 + tenth / 10, "job0"))
]
BUS_RESUMED = people(Happening("resume-node", 66.0, "n2"))


MAINTAINED = [
    History(
        SEED, 0, "reserved", Setup(), (Happening("maintenance", at_s, "n2", {"for_s": 60.0}), BUS_FAULT), 600.0
    )
    for at_s in (40.0, 50.0)
]  # fmt: skip
RETURNED = [  # n2 breaks under the job and is returned; then its other node breaks
    History(
        SEED, number, "returned", Setup(nodes=4, returns=True),
        (BUS_FAULT, Happening("gpu-off-bus", at_s, "job0/0")), 700.0,
    )
    for number, at_s in enumerate((260.0, 280.0, 300.0, 320.0, 340.0, 360.0))
]  # fmt: skip

BROKEN_UNDER_WAY = [
    History(
        SEED, 0, "two-faults", Setup(), (BUS_FAULT, Happening("gpu-lost-silently", 62.6 + hundredth / 100, "n3")), 700.0
    )
    for hundredth in range(30)
]

# promise -> where its planted fault shows: the story that is generated, or histories of its own
WHERE: dict[str, str | list[History]] = {
    "no-bug": "killed",
    "unknown-drains-nobody": "network",
    "never-drained-on-user-words": "again",
    "saved-before-done": "killed",
    "audited-before-done": "killed",
    "nothing-twice": "killed",
    "one-daemon-acts": "doubled",
    "nothing-lost": "killed",
    SAME_END: "killed",
    "blast-radius": "many-nodes",
    "breaker": "many-nodes",
    "no-fruitless-restarts": "again",
    "left-to-people": MAINTAINED,
    "brought-back": "killed",
    "only-what-is-ours": BUS_CANCELLED,
    "done-stays-done": "done",
    "holds-stay": BUS_CANCELLED,
    "our-reason": "killed",
    "proof-before-return": "killed",
    "not-offered-back": "killed",
    "probation": RETURNED,
    "not-in-turn": "in-turn",
    "leaves-bad-nodes": BROKEN_UNDER_WAY,
    "observe-changes-nothing": "observe",
    "nothing-unapproved": "suggest",
    "approved-is-done": "suggest",
    "pause-begins-nothing": "paused",
    "stays-in-its-allocation": "in-allocation",
    "resumed-from-valid": "again",
    "resume-point-first": "killed",
    "explained": "killed",
    "one-notice": "killed",
    "told": "killed",
    "told-to-the-end": "killed",
    "true-words": "killed",
    "comes-to-rest": "killed",
}


def watched(*happenings: Happening) -> list[History]:
    return [History(SEED, 0, "watched", Setup(watched=True), happenings, happenings[-1].at_s + 150.0)]


LOST = Happening("node-lost", 80.0, "job0/1")

# the same for what is watched in some histories only
PLANTED_IN_WATCHING: list[tuple[str, Callable[[Patch], None], list[History]]] = [
    ("unknown-drains-nobody", faults.silence_convicts, watched(Happening("agent-dead", 80.0, "n2", {"for_s": 60.0}))),
    ("comes-to-rest", faults.silent_jobs_are_not_watched, watched(Happening("hang", 80.0, "job0/1"))),
    ("nothing-lost", faults.silent_nodes_are_not_watched, watched(LOST)),
]


# the same for what one story shows and others hide
PLANTED_IN_STORIES: list[tuple[str, Callable[[Patch], None], list[History]]] = [
    (
        "brought-back",
        faults.ends_of_running_jobs_are_only_noted,
        [history_of(SEED, n, "slow-end") for n in range(MOST)],
    ),
    ("only-what-is-ours", faults.lets_go_whoever_holds, BUS_REQUEUED_AND_HELD),
    ("nothing-twice", faults.drains_again, BUS_RESUMED),
    ("nothing-lost", faults.a_start_forgets, [history_of(SEED, n, "killed") for n in range(MOST)]),
    ("nothing-lost", faults.unread_records_end_convictions, [history_of(SEED, n, "records") for n in range(2 * MOST)]),
    ("done-stays-done", faults.never_asks_whether_it_was_done, [history_of(SEED, n, "done") for n in range(MOST)]),
]


def test_every_promise_has_a_planted_fault() -> None:
    assert faults.PLANTED.keys() == {*PROMISES, SAME_END}
    assert faults.PLANTED.keys() - WHERE.keys() == {"lends-to-who-lost-a-node", "loans-end"}  # test_spares.py


@pytest.mark.parametrize("promise", WHERE)
def test_explore_finds_the_planted_fault(promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where = WHERE[promise]
    histories = where if isinstance(where, list) else [history_of(SEED, number, where) for number in range(MOST)]
    is_found(promise, faults.PLANTED[promise], histories, monkeypatch)


@pytest.mark.parametrize(("promise", "plant", "histories"), [*PLANTED_IN_WATCHING, *PLANTED_IN_STORIES])
def test_explore_finds_the_fault_planted_where_few_histories_show_it(
    promise: str, plant: Callable[[Patch], None], histories: list[History], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_found(promise, plant, histories, monkeypatch)


def is_found(promise: str, plant: Callable[[Patch], None], histories: list[History], monkeypatch: Patch) -> None:
    found = 0
    for history in histories:
        with monkeypatch.context() as patch:
            plant(patch)
            if promise not in broken(history):
                continue
        found += 1
        if promise not in broken(history):
            return
        if found == ENOUGH:
            break
    assert found, f"not found in {len(histories)} histories"
    pytest.fail("broken without the planted fault as well")


def broken(history: History) -> set[str]:
    return {one.promise for one in run(history)[0]}
