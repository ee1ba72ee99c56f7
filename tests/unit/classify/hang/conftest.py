"""Dumps in the shapes that processes write, from a few words per rank."""

from __future__ import annotations

import json
import pickle

import pytest

from sentinel.classify.hang.analyse import analyse
from sentinel.evidence.nccl.flight_recorder import read_dump
from sentinel.model.collectives import RankTrace, Unreadable


def entry(group, sequence, *, operation="all_reduce", size=16, kind="Float", state="completed", at=0, **more):
    name, description, local = group
    return {
        "record_id": at,
        "pg_id": local,
        "process_group": (name, description),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1_000 + at,
        "input_sizes": [[size]],
        "input_dtypes": [kind],
        "output_sizes": [[size]],
        "output_dtypes": [kind],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": 2_000 + at if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
        **more,
    }


def dump(entries, config, status=None):
    """``config``: {name: (description, ranks)}; ``status``: {local number: (enqueued, completed)}."""
    return {
        "version": "2.10",
        "pg_config": {n: {"name": n, "desc": d, "ranks": str(list(r))} for n, (d, r) in config.items()},
        "pg_status": {
            str(local): {
                "last_enqueued_collective": enqueued,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for local, (enqueued, completed) in (status or {}).items()
        },
        "entries": entries,
    }


def find(files):
    read = [read_dump(data if isinstance(data, bytes) else pickle.dumps(data, 2), name) for name, data in files.items()]
    return analyse(
        [item for item in read if isinstance(item, RankTrace)], [item for item in read if isinstance(item, Unreadable)]
    )


def nested(absent=()):
    """Four ranks, pairs (0, 1) and (2, 3): rank 3 never makes the third call of its pair, so 2 waits for 3 there, and
    0 and 1 wait for both in the group of all."""
    files = {}
    world = ("0", "default_pg", 0)
    for rank in range(4):
        pair = ("1", "TP_0", 1) if rank < 2 else ("2", "TP_1", 1)
        config = {"0": ("default_pg", range(4)), pair[0]: (pair[1], (0, 1) if rank < 2 else (2, 3))}
        entries = [entry(world, 1, at=0), entry(pair, 1, at=1, size=8), entry(pair, 2, at=2, size=8)]
        if rank < 3:
            entries.append(entry(pair, 3, at=3, size=8, state="completed" if rank < 2 else "scheduled"))
        if rank < 2:
            entries.append(entry(world, 2, at=4, state="scheduled"))
        status = {0: (2, 1) if rank < 2 else (1, 1), 1: ((3, 3), (3, 3), (3, 2), (2, 2))[rank]}
        if rank not in absent:
            files[f"nccl_trace_rank_{rank}"] = dump(entries, config, status)
    return files


def world_files(ranks, last, *, before=1, **more):
    """All ranks in one group; ``last`` gives each rank's pending call as keywords, or None for none."""
    group = ("0", "default_pg", 0)
    files = {}
    for rank in range(ranks):
        entries = [entry(group, number + 1, at=number) for number in range(before)]
        if last(rank) is not None:
            entries.append(entry(group, before + 1, at=before, **{"state": "scheduled", **last(rank)}))
        files[f"nccl_trace_rank_{rank}"] = dump(entries, {"0": ("default_pg", range(ranks))}, **more)
    return files


@pytest.fixture
def make():
    class Make:
        pass

    Make.entry, Make.dump, Make.find, Make.nested, Make.world = map(
        staticmethod, (entry, dump, find, nested, world_files)
    )
    Make.json = staticmethod(lambda value: json.dumps(value).encode())
    return Make


@pytest.fixture(scope="session")
def make_find():
    return find
