"""Dumps of all versions and under all names; files that are none."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.evidence.nccl.flight_recorder import rank_of_name, read_dump
from sentinel.model.collectives import RankTrace, Unreadable


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("/a/b/comm_lib_trace_rank_0", 0),
        ("fr_rank_3.json", 3),
        ("fr_active_rank_31.json", 31),
        ("trace_7", 7),
        ("dump-5.pkl", 5),
        ("node2/rank_4/dump.pkl", 4),
        ("nccl_trace_rank_9_1700000000", 9),
        ("dump.json", None),
    ],
)
def test_the_rank_in_a_name(name, rank):
    assert rank_of_name(name) == rank


def older(make, number):
    """The nested failure as older versions wrote it."""
    files = {}
    for name, value in make.nested().items():
        entries = []
        for item in value["entries"]:
            kept = {key: item[key] for key in ("pg_id", "profiling_name", "time_created_ns", "input_sizes", "state")}
            kept["seq_id"] = item["collective_seq_id"]
            if number == "1.4":
                kept |= {"process_group": item["process_group"], "record_id": item["record_id"]}
            entries.append(kept)
        top = {"version": "1.4", "pg_config": value["pg_config"], "entries": entries}
        files[name] = top if number == "1.4" else entries
    return files


@pytest.mark.parametrize("number", ["1.4", "1.1"])
def test_older_versions_lead_to_the_same_rank(make, number):
    assert make.find(older(make, number)).culprit_ranks == (3,)


def test_json_with_numbers_as_text_and_zero_for_no_time(make):
    files = {}
    for name, value in make.nested().items():
        for item in value["entries"]:
            item["time_discovered_completed_ns"] = item["time_discovered_completed_ns"] or 0
            item["time_discovered_started_ns"] = 0
        value["pg_status"] = {k: {n: str(v) for n, v in s.items()} for k, s in value["pg_status"].items()}
        files[f"{name}.json"] = make.json(value)
    assert make.find(files).culprit_ranks == (3,)


def test_gloo_marks_finished_work_as_retired_only_and_lists_no_members(make):
    files = {}
    for name, value in make.nested().items():
        for item in value["entries"]:
            item["profiling_name"] = item["profiling_name"].replace("nccl", "gloo")
            item |= {"state": "scheduled", "time_discovered_completed_ns": None}
        files[name] = value | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}, "pg_status": {}}
    found = make.find(files)
    assert (found.kind, found.culprit_ranks) == ("missing", (3,))
    assert 3 not in found.waiting  # its finished calls count as finished


def test_the_groups_tell_the_rank_when_the_name_is_wrong(make):
    value = make.nested()["nccl_trace_rank_2"]
    value["pg_config"]["0"]["ranks"] = "[0, 2, 4, 6]"
    trace = read_dump(pickle.dumps(value, 2), "node3_trace_1")
    assert trace.rank == 2


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"epoch 3 loss 2.1\n", "torchrun.log"),
        (b"", "notes.txt"),
        (b'{"lr": 0.1}', "config.json"),
        (b"[1, 2, 3]", "list.json"),
        (b"\x00\x01\x02" * 50, "core.123"),
        (pickle.dumps({"weights": [1, 2]}), "model.pkl"),
    ],
)
def test_other_files_are_left_alone(data, name):
    assert read_dump(data, name) is None


@pytest.mark.parametrize("data", [b"", b"\x80\x02}q\x00(X", b'{"entries": [{"pg_id"', b"\x1f\x8b\x08garbage"])
def test_damaged_dumps_are_unreadable_and_keep_their_rank(data):
    found = read_dump(data, "nccl_trace_rank_6")
    assert isinstance(found, Unreadable)
    assert (found.rank, bool(found.reason)) == (6, True)


def test_a_dump_that_would_run_a_command_is_data(make, tmp_path):
    trace = tmp_path / "ran"

    class Runs:
        def __reduce__(self):
            return os.system, (f"touch {trace}",)

    value = make.nested()["nccl_trace_rank_0"]
    value["entries"].append(Runs())
    value["nccl_comm_state"] = Runs()
    found = read_dump(pickle.dumps(value, 2), "nccl_trace_rank_0")
    assert isinstance(found, RankTrace)
    assert not trace.exists()


def test_a_dump_of_many_megabytes_reads_as_a_small_one_does(make):
    """It is read in parts, of which the last calls of each group stay."""
    stack = [{"name": f"layer_{line}", "filename": "/srv/run/model.py", "line": line} for line in range(40)]
    value = make.nested()["nccl_trace_rank_2"]
    last = [{**item, "record_id": item["record_id"] + 9000} for item in value["entries"]]
    world = ("0", "default_pg", 0)
    many = [make.entry(world, 1, at=at, frames=[dict(frame) for frame in stack]) for at in range(9000)]
    data = pickle.dumps({**value, "entries": many + last}, 2)
    assert len(data) > 4 << 20
    read, small = read_dump(data, "nccl_trace_rank_2"), read_dump(pickle.dumps(value, 2), "nccl_trace_rank_2")
    assert (read.entries, read.records) == (9000 + small.entries, 9000 + small.records)
    for group, other in zip(read.groups, small.groups, strict=True):
        assert (group.name, group.ranks, group.enqueued, group.completed) == (
            other.name,
            other.ranks,
            other.enqueued,
            other.completed,
        )
        assert group.calls[-len(other.calls) :] == other.calls


def test_sends_of_a_batch_are_as_far_as_the_entry_that_closes_it(make):
    """The parts of a batch have no events of their own and stay scheduled for ever."""
    group = ("2", "pipeline", 1)

    def part(operation, number, at):
        return make.entry(group, 0, operation=operation, state="scheduled", at=at, p2p_seq_id=number, is_p2p=True)

    def closing(number, at, state):
        return part("coalesced", number, at) | {"state": state, "input_sizes": [], "output_sizes": []}

    entries = [part("send 0->1", 1, 0), part("recv 0<-1", 1, 1), closing(1, 2, "completed")]
    entries += [part("send 0->1", 2, 3), part("recv 0<-1", 2, 4), closing(2, 5, "scheduled"), part("send 0->1", 3, 6)]
    (seen,) = read_dump(pickle.dumps(make.dump(entries, {"2": ("pipeline", (4, 6))}), 2), "nccl_trace_rank_4").groups
    assert (seen.sends[1].total, seen.sends[1].open, seen.sends[1].oldest_open.sequence) == (3, 2, 2)
    assert (seen.receives[1].total, seen.receives[1].open) == (2, 1)
    assert (seen.open_batches, seen.calls) == (0, ())


def test_deeply_nested_json_is_unreadable():
    found = read_dump(b'{"entries": ' + b"[" * 200_000, "fr_rank_0.json")
    assert isinstance(found, Unreadable)


def test_json_that_would_fill_the_memory_is_refused_unparsed():
    found = read_dump(b'{"entries": [' + b"[]," * 9_000_000, "fr_rank_0.json")
    assert isinstance(found, Unreadable)
    assert "memory" in found.reason


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(
    st.dictionaries(st.sampled_from(["entries", "pg_config", "pg_status", "version"]), junk),
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [
                    "pg_id",
                    "process_group",
                    "collective_seq_id",
                    "seq_id",
                    "profiling_name",
                    "state",
                    "input_sizes",
                    "frames",
                    "time_created_ns",
                    "record_id",
                    "is_p2p",
                    "p2p_seq_id",
                    "input_dtypes",
                    "retired",
                ]
            ),
            junk | st.sampled_from(["nccl:send 0->1", "nccl:recv 1<-0", "started", "nccl:all_reduce"]),
        ),
        max_size=4,
    ),
)
def test_any_fields_of_any_type_are_survived(make_find, top, entries):
    found = make_find({"rank_0": top | {"entries": entries}, "rank_1": {"entries": entries}})
    assert 0.0 <= found.confidence <= 1.0 and found.kind in {"missing", "mismatch", "stuck", "none"}
