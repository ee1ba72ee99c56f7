"""Summaries of dumps on their way to the daemon: the same finding comes out, and hostile ones are refused."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.classify.hang.analyse import analyse
from sentinel.errors import ProtocolError
from sentinel.evidence.nccl.flight_recorder import read_dump
from sentinel.evidence.nccl.flight_recorder_wire import CALLS, FRAMES, from_wire, to_wire
from sentinel.model.collectives import Call, Channel, GroupTrace, RankTrace, Unreadable


def dump(rank: int, calls: int) -> bytes:
    entries = [
        {
            "record_id": number, "process_group": ("0", "default_pg"), "collective_seq_id": number + 1, "pg_id": 0,
            "profiling_name": "nccl:all_reduce", "input_sizes": [[8]], "output_sizes": [[8]], "input_dtypes": ["Float"],
            "output_dtypes": ["Float"], "state": "completed" if number < 90 else "scheduled", "is_p2p": False,
            "frames": [{"name": f"f{depth}", "filename": "step.py", "line": depth} for depth in range(9)],
        }
        for number in range(calls)
    ]  # fmt: skip
    entries.append(
        {"record_id": calls, "process_group": ("1", "pp"), "p2p_seq_id": 1, "collective_seq_id": 0, "is_p2p": True,
         "profiling_name": f"nccl:send {rank}->{(rank + 1) % 3}", "state": "scheduled", "input_sizes": [[2]]}
    )  # fmt: skip
    return pickle.dumps({"version": "2.10", "entries": entries, "pg_config": {"0": {"name": "0", "desc": "default_pg",
                                                                                  "ranks": "[0, 1, 2]"}}})  # fmt: skip


def through(item: RankTrace | Unreadable) -> RankTrace | Unreadable:
    return from_wire(json.loads(json.dumps(to_wire(item))))


def test_the_same_finding_comes_out_of_far_fewer_bytes() -> None:
    raw = {rank: dump(rank, 100 if rank != 1 else 92) for rank in range(3)}
    traces = [read_dump(data, f"nccl_trace_rank_{rank}") for rank, data in raw.items()]
    sent = [through(trace) for trace in traces if isinstance(trace, RankTrace)]
    assert len(sent) == 3
    before, after = (analyse(t for t in them if isinstance(t, RankTrace)) for them in (traces, sent))
    assert after == before
    assert after.culprit_ranks == (1,)
    for trace, data in zip(sent, raw.values(), strict=True):
        assert len(json.dumps(to_wire(trace))) < len(data)
        assert isinstance(trace, RankTrace)
        for group in trace.groups:
            assert len(group.calls) <= CALLS
            assert all(len(call.frames) <= FRAMES for call in group.calls)
    assert isinstance(sent[0], RankTrace)
    (channel,) = [group.sends for group in sent[0].groups if group.sends]
    assert (list(channel), channel[1].open) == ([1], 1)


def test_a_torn_dump_stays_torn() -> None:
    torn = Unreadable("name\n\udcff", 3, "ends early")
    assert through(torn) == torn


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "trace",
                        "unreadable",
                        "groups",
                        "rank",
                        "ranks",
                        "calls",
                        "sends",
                        "receives",
                        "source",
                        "version",
                        "name",
                        "description",
                        "sequence",
                        "operation",
                        "1",
                        "x",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_comes_is_a_dump_or_refused(value: Any) -> None:
    try:
        made = from_wire(value)
    except ProtocolError:
        return
    assert isinstance(made, (RankTrace, Unreadable))


@pytest.mark.parametrize("rank", [-1, 1 << 40])
def test_ranks_out_of_bounds_are_refused(rank: int) -> None:
    group = GroupTrace(
        "0", "", ranks=frozenset({rank}), calls=(Call(1, "all_reduce"),), sends={0: Channel(1, 1, "send")}
    )
    with pytest.raises(ProtocolError):
        from_wire(to_wire(RankTrace("f", rank, "2.10", ())))
    with pytest.raises(ProtocolError):
        from_wire(to_wire(RankTrace("f", 1, "2.10", (group,))))
