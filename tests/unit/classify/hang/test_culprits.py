"""Who is named, and as what."""

from __future__ import annotations

import pickle

import pytest


def test_a_rank_that_never_called_is_named(make):
    found = make.find(make.world(4, lambda rank: None if rank == 2 else {}))
    assert (found.kind, found.culprit_ranks) == ("missing", (2,))
    assert (found.collective, found.sequence) == ("all_reduce", 2)
    assert found.waiting == {0: (2,), 1: (2,), 3: (2,)}


def test_of_nested_groups_the_root_is_named_and_not_those_that_wait_for_it(make):
    found = make.find(make.nested())
    assert (found.kind, found.culprit_ranks, found.sequence) == ("missing", (3,), 3)
    assert found.group_name == "2"
    assert found.waiting == {0: (2, 3), 1: (2, 3), 2: (3,)}


def test_a_rank_without_a_dump_is_named_when_the_others_wait_for_it(make):
    found = make.find(make.nested(absent={3}))
    assert (found.culprit_ranks, found.without_dump, found.basis) == ((3,), (3,), "unseen")
    assert "left no dump" in found.explanation


def test_an_innocent_rank_without_a_dump_is_not_named(make):
    files = make.world(8, lambda rank: None if rank == 2 else {})
    del files["nccl_trace_rank_5"]
    found = make.find(files)
    assert (found.culprit_ranks, found.without_dump) == ((2,), (5,))
    assert found.confidence < make.find(make.world(8, lambda rank: None if rank == 2 else {})).confidence


@pytest.mark.parametrize(
    ("odd", "word"),
    [({"operation": "all_gather"}, "operation"), ({"size": 32}, "size"), ({"kind": "Half"}, "element type")],
)
def test_the_minority_of_a_mismatch_is_named(make, odd, word):
    found = make.find(make.world(4, lambda rank: odd if rank == 1 else {}))
    assert (found.kind, found.culprit_ranks, found.sequence) == ("mismatch", (1,), 2)
    assert f"({word} differs)" in found.explanation
    assert found.waiting == {0: (1,), 2: (1,), 3: (1,)}


def test_without_a_majority_all_are_named(make):
    found = make.find(make.world(2, lambda rank: {"size": 16 + rank}))
    assert (found.kind, found.culprit_ranks, found.basis) == ("mismatch", (0, 1), "tie")


def test_another_shape_of_the_same_size_is_no_mismatch(make):
    found = make.find(make.world(3, lambda rank: {"input_sizes": [[4, 4]] if rank else [[16]]}))
    assert found.kind == "stuck"


def test_unequal_splits_of_all_to_all_are_no_mismatch(make):
    found = make.find(make.world(3, lambda rank: {"operation": "all_to_all", "size": 10 + rank}))
    assert found.kind == "stuck"


def test_two_names_of_one_operation_are_no_mismatch(make):
    names = ("all_gather", "_all_gather_base", "all_gather_into_tensor")
    assert make.find(make.world(3, lambda rank: {"operation": names[rank]})).kind == "stuck"


def test_a_call_that_all_made_is_stuck_and_nobody_is_named(make):
    found = make.find(make.world(4, lambda rank: {}))
    assert (found.kind, found.culprit_ranks, found.waiting) == ("stuck", (), {})
    assert (found.collective, found.sequence) == ("all_reduce", 2)


def test_the_rank_whose_gpu_has_not_begun_is_named(make):
    found = make.find(make.world(4, lambda rank: {"state": "scheduled" if rank == 1 else "started"}))
    assert (found.kind, found.culprit_ranks, found.basis) == ("stuck", (1,), "not started")


def test_the_rank_on_which_alone_it_does_not_complete_is_named(make):
    found = make.find(make.world(4, lambda rank: {"state": "scheduled" if rank == 1 else "completed"}))
    assert (found.kind, found.culprit_ranks, found.basis) == ("stuck", (1,), "not completed")


def _active_only(make, behind, operation="all_reduce"):
    """Four ranks of which those ``behind`` finished nothing after 4 and called up to 8; the others finished 8."""
    group = ("0", "default_pg", 0)
    files = {}
    for rank in range(4):
        pending, status = (range(5, 9), (8, 4)) if rank in behind else (range(9, 12), (11, 8))
        entries = [make.entry(group, n, at=n, state="scheduled", operation=operation) for n in pending]
        files[f"nccl_trace_rank_{rank}"] = make.dump(entries, {"0": ("default_pg", range(4))}, {0: status})
    return files


def test_the_rank_whose_device_finishes_nothing_more_is_named_from_dumps_of_active_calls(make):
    found = make.find(_active_only(make, {2}))
    assert (found.kind, found.culprit_ranks, found.sequence) == ("stuck", (2,), 5)
    assert (found.basis, found.waiting) == ("not completed", {0: (2,), 1: (2,), 3: (2,)})
    assert "others finished it and went on" in found.explanation
    assert "does not complete" not in found.explanation


@pytest.mark.parametrize(("behind", "operation"), [({0, 1, 2}, "all_reduce"), ({2}, "broadcast")])
def test_one_that_ran_ahead_accuses_nobody(make, behind, operation):
    found = make.find(_active_only(make, behind, operation))
    assert "went on" not in found.explanation


def test_nothing_pending_is_no_hang(make):
    found = make.find(make.world(4, lambda rank: None))
    assert (found.kind, found.culprit_ranks, found.collective) == ("none", (), None)


def test_calls_lost_from_the_ring_do_not_count_as_never_made(make):
    """Rank 3's calls in the group of all were overwritten by those in its pair; the state of the groups is not there."""
    files = make.world(4, lambda rank: {})
    pair = ("9", "TP_1", 1)
    entries = [make.entry(pair, number, at=500 + number) for number in range(1, 5)]
    value = make.dump(entries, {"0": ("default_pg", range(4)), "9": ("TP_1", (2, 3))})
    del value["pg_status"]
    files["nccl_trace_rank_3"] = value
    found = make.find(files)
    assert not (found.kind == "missing" and found.basis == "idle")


def test_the_state_of_the_groups_outlives_the_ring(make):
    files = make.world(4, lambda rank: {})
    for name, value in files.items():
        last = 1 if name.endswith("_2") else 2
        value["pg_status"] = {
            "0": {"last_enqueued_collective": last, "last_started_collective": -1, "last_completed_collective": 1}
        }
        if last == 1:
            value["entries"] = [make.entry(("0", "default_pg", 0), 1, at=700)]
    assert make.find(files).culprit_ranks == (2,)


def test_a_receiver_waits_for_the_sender_that_never_sent(make):
    pipe = ("3", "PP", 1)
    config = {"3": ("PP", (4, 7))}

    def p2p(title, number, state):
        more = {"is_p2p": True, "p2p_seq_id": number, "operation": title, "state": state}
        return make.entry(pipe, 0, at=number, **more)

    files = {
        "nccl_trace_rank_4": make.dump([p2p("send 0->1", 1, "completed")], config),
        "nccl_trace_rank_7": make.dump([p2p("recv 1<-0", 1, "completed"), p2p("recv 1<-0", 2, "started")], config),
    }
    found = make.find(files)
    assert (found.kind, found.culprit_ranks, found.collective) == ("missing", (4,), "recv")
    assert found.waiting == {7: (4,)}


def test_ranks_in_opposite_order_are_all_named(make):
    a, b = ("1", "A", 0), ("2", "B", 1)
    config = {"1": ("A", (0, 1)), "2": ("B", (0, 1))}
    files = {
        "trace_rank_0": make.dump([make.entry(a, 1, at=0, state="scheduled")], config, {0: (1, -1)}),
        "trace_rank_1": make.dump([make.entry(b, 1, at=0, state="scheduled")], config, {1: (1, -1)}),
    }
    found = make.find(files)
    assert (found.kind, found.culprit_ranks) == ("mismatch", (0, 1))
    assert found.confidence <= 0.5


def test_the_newest_dump_of_a_rank_counts(make):
    files = make.world(4, lambda rank: None if rank == 2 else {})
    old = make.world(4, lambda rank: None if rank == 0 else {})
    for name, value in old.items():
        for item in value["entries"]:
            item["time_created_ns"] -= 900
        files[f"old/{name}"] = value
    assert make.find(files).culprit_ranks == (2,)


def test_a_torn_dump_still_tells_how_far_the_rank_was(make):
    files = {name: pickle.dumps(value, 2) for name, value in make.nested().items()}
    files["nccl_trace_rank_3"] = files["nccl_trace_rank_3"][: files["nccl_trace_rank_3"].index(b"entries") + 40]
    found = make.find(files)
    assert (found.culprit_ranks, found.basis) == ((3,), "idle")


def test_a_dump_that_cannot_be_read_is_not_taken_for_a_dead_rank(make):
    files = make.nested()
    files["nccl_trace_rank_3"] = b"\x80\x02garbage"
    found = make.find(files)
    assert (found.culprit_ranks, found.without_dump) == ((3,), ())
    assert "cannot be read" in found.explanation


def test_thousands_of_ranks(make):
    found = make.find(make.world(2000, lambda rank: None if rank == 77 else {}))
    assert found.culprit_ranks == (77,)
    assert len(found.waiting) == 1999
    assert len(found.explanation) < 500


def exchanges(make, rank, operations, *, number=1):
    """Sends and receives of two ranks in one group: ("send", state), each numbered."""
    pipe = ("1", "pipe", 1)
    arrow = {"send": f"send {rank}->{1 - rank}", "recv": f"recv {rank}<-{1 - rank}"}
    entries = [
        make.entry(pipe, 0, operation=arrow[side], state=state, at=at, p2p_seq_id=at + number, is_p2p=True)
        for at, (side, state) in enumerate(operations)
    ]
    return make.dump(entries, {"1": ("pipe", (0, 1))})


def test_two_ranks_that_both_receive_first_are_both_named(make):
    files = {
        "rank_0": exchanges(make, 0, [("send", "completed"), ("recv", "scheduled")]),
        "rank_1": exchanges(make, 1, [("recv", "completed"), ("recv", "scheduled")]),
    }
    found = make.find(files)
    assert found.culprit_ranks == (0, 1)
    assert "each receives before it sends" in found.explanation


def test_the_rank_that_makes_two_calls_in_the_other_order_is_named(make):
    """Pairs (0, 1) and (2, 3); rank 1 calls in the group of all first, and everybody else in the pair first."""
    world = ("0", "default_pg", 0)
    files = {}
    for rank in range(4):
        pair = ("1", "pair", 1) if rank < 2 else ("2", "pair", 1)
        calls = [(pair, {"size": 8}), (world, {})]
        done = rank > 1
        entries = [
            make.entry(group, 1, at=at, state="completed" if done and group is pair else "scheduled", **more)
            for at, (group, more) in enumerate(reversed(calls) if rank == 1 else calls)
        ]
        config = {"0": ("default_pg", range(4)), pair[0]: ("pair", (0, 1) if rank < 2 else (2, 3))}
        files[f"rank_{rank}"] = make.dump(entries, config)
    found = make.find(files)
    assert (found.culprit_ranks, found.basis) == ((1,), "order")


def test_a_dump_of_active_calls_whose_batches_are_done_waits_for_nobody(make):
    """Parts of a batch are active for ever; what closed it is not in such a dump once it is completed."""

    def active(rank, parts):
        pipe = ("1", "pipe", 1)
        name = f"send {rank}->{1 - rank}" if rank == 0 else f"recv {rank}<-{1 - rank}"
        entries = [
            make.entry(pipe, 0, operation=name, state="scheduled", at=at, p2p_seq_id=number, is_p2p=True)
            for number, at in parts
        ]
        return make.dump(entries, {"1": ("pipe", (0, 1))}, {1: (9, 9)})

    # The ring of one of them holds one batch less.
    files = {"rank_0": active(0, [(7, 21), (8, 24), (9, 30)]), "rank_1": active(1, [(8, 40), (9, 44)])}
    assert make.find(files).kind == "none"


def test_a_rank_whose_device_begins_nothing_is_named(make):
    """Four stages hand on to the next: all have called, all devices but the last one have begun."""
    pipe = ("1", "pipe", 1)
    files = {}
    for rank in range(4):
        made = [(f"recv {rank}<-{rank - 1}", "completed")] if rank else []
        made += [(f"send {rank}->{rank + 1}", "started")] if rank < 3 else []
        made += [(f"recv {rank}<-{rank - 1}", "scheduled")] if rank else []
        entries = [
            make.entry(pipe, 0, operation=name, state=state, at=at, p2p_seq_id=at + 1, is_p2p=True)
            | {"time_discovered_started_ns": 5 if state != "scheduled" else None}
            for at, (name, state) in enumerate(made)
        ]
        if rank < 3:
            entries.insert(0, make.entry(pipe, 0, operation=f"send {rank}->{rank + 1}", is_p2p=True, at=9))
        files[f"rank_{rank}"] = make.dump(entries, {"1": ("pipe", range(4))})
    found = make.find(files)
    assert (found.kind, found.culprit_ranks, found.basis) == ("stuck", (3,), "not started")
