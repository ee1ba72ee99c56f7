"""The choice, held against brute force."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.records import LEVELS, Candidate, Costs, Run

HOSTS = ["a", "b", "c", "d"]
COSTS = Costs(
    restore_s={"local": 5, "peer": 9, "global": 30}, read_bytes_per_s={"local": 10, "global": 2}, wait_s={"local": 3}
)


def candidate(**changes):
    base = {
        "path": "/g/step-10", "step": 10, "tier": "global", "format": "dcp", "bytes": 0, "world_size": 2, "shards": {},
        "valid": True, "level": "content", "reason": "",
    }  # fmt: skip
    return Candidate(**(base | changes))


def pick(candidates, **changes):
    asked = {
        "step_last": 100, "step_time_s": 1.0, "next_nodes": frozenset("ab"), "lost_nodes": frozenset(),
        "world_size": 2, "costs": Costs(),
    }  # fmt: skip
    return choose(candidates, **(asked | changes))


def local(step, shards, **changes):
    return candidate(path=f"/l/step-{step}", step=step, tier="local", shards=shards, **changes)


BOTH = {0: frozenset("a"), 1: frozenset("b")}


def test_nearest_local_wins():
    near, far = local(90, BOTH), candidate()
    decision = pick([far, near])
    assert decision.chosen is near and decision.lost_steps == 10
    assert "more" in decision.candidates[1].verdict


def test_a_valid_save_proves_that_its_step_was_reached():
    """A batch host that dies takes the last lines of the log with it: the step that was told last is an older one."""
    newest, older = candidate(path="/g/step-20", step=20, bytes=101), candidate(bytes=100)
    decision = pick([older, newest], step_last=11, costs=COSTS)
    assert decision.chosen is newest and decision.lost_steps == 0
    assert decision.candidates[1].lost_steps == 10
    torn = candidate(path="/g/step-30", step=30, valid=False)
    assert pick([older, torn], step_last=11).lost_steps == 1


BEGAN_S = 1e9


def save(step, after_s, **changes):
    return candidate(path=f"/g/step-{step}", step=step, written_s=BEGAN_S + after_s, **changes)


def test_a_save_of_an_older_run_in_the_same_folder():
    """The run began anew beside it, and its own saves are of lower steps: it was never there."""
    own, older = [save(step, step) for step in (100, 200)], save(5000, -86_400)
    run = Run(began_s=BEGAN_S, first_step=1, last_step=230)
    decision = pick([older, *own], run=run, step_last=230)
    assert decision.chosen is own[1] and decision.lost_steps == 30
    assert decision.candidates[-1].verdict == (
        "written 86400 s before this run began, which has saved steps 100 to 200 since and made step 230: of another run"
    )


def test_a_run_that_continues_from_an_older_one():
    """Its steps go on where the older one's save was made; before it has saved anything its numbers prove nothing."""
    older, own = save(5000, -86_400), save(5100, 100)
    assert pick([older], run=Run(BEGAN_S, 5001, 5050), step_last=5050).chosen is older
    assert pick([older, own], run=Run(BEGAN_S, 5001, 5150), step_last=5150).chosen is own
    torn = save(5100, 100, valid=False)
    assert pick([older, torn], run=Run(BEGAN_S, 5001, 5150), step_last=5150).chosen is older
    assert pick([older], run=Run(BEGAN_S, 1, 50), step_last=50).chosen is older


def test_a_log_that_counts_other_steps_than_the_saves():
    """Lightning's bar counts batches of an epoch: the saves since the run began show that its log says nothing of them."""
    older, own = save(5000, -86_400), save(4900, 100)
    assert pick([older, own], run=Run(BEGAN_S, 1, 50), step_last=50).chosen is older


def test_a_save_of_a_clock_a_little_behind_or_of_no_time():
    own = save(200, 200)
    run = Run(BEGAN_S, 1, 230)
    assert pick([late := save(300, -100), own], run=run, step_last=230).chosen is late
    assert pick([late := candidate(step=300, path="/g/step-300"), own], run=run, step_last=230).chosen is late


def test_a_lost_host_takes_its_shard():
    decision = pick([local(90, BOTH), candidate()], lost_nodes=frozenset("b"))
    assert decision.chosen.tier == "global" and "lost" in decision.candidates[1].verdict


def test_a_replica_saves_it():
    near = local(90, {0: frozenset("a"), 1: frozenset("bc")})
    assert pick([near], lost_nodes=frozenset("b"), next_nodes=frozenset("ac")).chosen is near


def test_ranks_that_move_away_from_their_shards():
    near = local(90, BOTH)
    moved = {0: "b", 1: "a"}
    assert pick([near], rank_hosts=moved).chosen is None
    assert pick([near], rank_hosts=moved, fetch_peers=True).chosen is near


def test_numbers_that_went_bad():
    decision = pick([local(90, BOTH), candidate(step=50), candidate(path="/g/20", step=20)], onset_step=50)
    assert decision.chosen.step == 20
    assert pick([candidate(step=49, level="checksum")], onset_step=50).chosen is None


def test_world_size_must_match_for_local_only():
    assert pick([local(90, BOTH, world_size=4)]).chosen is None
    assert pick([candidate(world_size=4)]).chosen is not None


def test_rejected_then_the_next():
    near, far = local(90, BOTH), candidate()
    assert pick([near, far], rejected={near.path: "why"}).chosen is far
    assert pick([near, far], rejected=dict.fromkeys([near.path, far.path], "why")).chosen is None


def test_not_known_is_not_valid():
    decision = pick([candidate(valid=None, reason="being written")])
    assert decision.chosen is None and "being written" in decision.explanation


def test_nothing_to_choose_from():
    assert pick([]).explanation == "there is no checkpoint to choose from"


hosts = st.frozensets(st.sampled_from(HOSTS))
candidates = st.lists(
    st.builds(
        candidate,
        path=st.text("xyz", min_size=1, max_size=4),
        step=st.none() | st.integers(0, 60),
        tier=st.sampled_from(["local", "global"]),
        bytes=st.integers(0, 200),
        world_size=st.none() | st.integers(1, 3),
        shards=st.dictionaries(st.integers(0, 3), hosts, max_size=4),
        valid=st.sampled_from([True, True, True, False, None]),
        level=st.sampled_from(LEVELS),
    ),
    max_size=6,
)


def brute_force(items, step_last, step_time_s, following, lost, world, onset, rejected, level):
    """The least cost over all that are admissible, straight from the rule; None where none is."""
    wanted = LEVELS.index(level or ("content" if onset is not None else "structural"))
    if step_last is None:
        step_last = max((c.step for c in items if c.step is not None), default=0)
    step_last = max([step_last, *(c.step for c in items if c.valid and c.step is not None)])
    costs = []
    for c in items:
        if c.valid is not True or c.step is None or c.path in rejected or LEVELS.index(c.level) < wanted:
            continue
        if onset is not None and c.step >= onset:
            continue
        if c.tier == "local":
            size = world if world is not None else c.world_size
            if size is None or c.world_size not in (None, size) or any(rank >= size for rank in c.shards):
                continue
            usable = set(HOSTS) - lost if following is None else following - lost
            if any(not c.shards.get(rank, frozenset()) & usable for rank in range(size)):
                continue
        fixed = 5 + 3 if c.tier == "local" else 30
        costs.append(max(0, step_last - c.step) * step_time_s + fixed + c.bytes / (10 if c.tier == "local" else 2))
    return min(costs, default=None)


@settings(max_examples=600, deadline=None)
@given(
    candidates,
    st.none() | st.integers(0, 80),
    st.sampled_from([0.0, 0.5, 7.0]),
    st.none() | hosts,
    hosts,
    st.none() | st.integers(1, 3),
    st.none() | st.integers(0, 60),
    st.sets(st.text("xyz", min_size=1, max_size=4), max_size=2),
    st.none() | st.sampled_from(LEVELS),
)
def test_always_the_least_cost(items, step_last, step_time_s, following, lost, world, onset, rejected, level):
    decision = choose(
        items, step_last=step_last, step_time_s=step_time_s, next_nodes=following, lost_nodes=lost, world_size=world,
        costs=COSTS, onset_step=onset, rejected=dict.fromkeys(rejected, "why"), level=level,
    )  # fmt: skip
    best = brute_force(items, step_last, step_time_s, following, lost, world, onset, rejected, level)
    assert (decision.chosen is None) == (best is None)
    if best is not None:
        assert abs(decision.cost_s - best) < 1e-9
    assert len(decision.candidates) == len(items) and all(entry.verdict for entry in decision.candidates)


@given(candidates)
def test_the_order_of_the_candidates_does_not_matter(items):
    forward, backward = pick(items), pick(items[::-1])
    assert (forward.chosen is None) == (backward.chosen is None)
    if forward.chosen is not None:
        assert forward.cost_s == backward.cost_s and forward.chosen.path == backward.chosen.path


@pytest.mark.parametrize(
    ("copy", "original"),
    [
        ("epoch=0-step=30-EMA.ckpt", "epoch=0-step=30.ckpt"),  # NeMo's callback; it goes on from the other
        ("ckpt_ema_step_30.pt", "ckpt_step_30.pt"),
        ("best.ckpt", "last.ckpt"),
    ],
)
@pytest.mark.parametrize("size", [100, 101, 102])
def test_a_copy_that_training_does_not_go_on_from_comes_last_whatever_its_size(copy, original, size):
    items = [candidate(path=f"/g/{copy}", step=30, bytes=size), candidate(path=f"/g/{original}", step=30, bytes=101)]
    assert pick(items, costs=COSTS).chosen is items[1]
    assert pick(items[:1], costs=COSTS).chosen is items[0]
    newer = candidate(path=f"/g/later-{copy}", step=40, bytes=size)
    assert pick([*items, newer], costs=COSTS, step_last=None).chosen is newer


def test_a_name_in_which_the_letters_are_part_of_a_word_is_no_copy():
    items = [candidate(path=f"/g/{name}-step=30.ckpt", step=30) for name in ("schema", "z")]
    assert pick(items).chosen is items[0]
