"""Ranks that run a training schedule until a fault stops them, and what their flight recorders then hold.

Independent of the analysis: nothing here knows about waiting or culprits. Each rank has a host that enqueues its program
in order (running ahead until a synchronisation) and a device that runs what was enqueued in order; a collective ends
when the devices of all members have reached it with the same arguments. The truth is the rank that the fault was put in.
"""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import dataclass, field

FAULTS = ("hang", "dead", "operation", "size", "type", "skip", "network", "device", "nothing")
FORMATS = ("2.10", "2.10 json", "2.5", "1.4", "1.1", "gloo")


@dataclass
class Op:
    group: str
    operation: str
    elements: int
    kind: str = "Float"
    peer: int | None = None  # global rank, for send and recv
    detached: bool = False  # on a stream of its own: later work does not wait for it


@dataclass
class Record:
    op: Op
    sequence: int
    p2p_sequence: int
    record: int
    created: int
    state: str = "scheduled"


@dataclass
class Rank:
    program: list[Op | None]  # None: the host waits for its device
    at: int = 0
    skew: int = 0  # of its clock, in nanoseconds
    stopped: bool = False
    device_broken: bool = False
    sequences: dict[str, int] = field(default_factory=dict)
    p2p_sequences: dict[str, int] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    pending: list[Record] = field(default_factory=list)


@dataclass
class Case:
    fault: str
    form: str
    shape: tuple[int, int, int]
    truth: set[int]
    also_right: list[set[int]]
    kinds: set[str]
    files: dict[str, bytes]
    detail: str


class Job:
    def __init__(self, rng: random.Random, shape: tuple[int, int, int], *, ahead: int) -> None:
        self.rng = rng
        self.tensor, self.data, self.pipeline = shape
        self.ahead = ahead
        self.world = self.tensor * self.data * self.pipeline
        self.groups: dict[str, list[int]] = {"0": list(range(self.world))}
        self.descriptions = {"0": "default_pg"}
        self.of: dict[int, dict[str, str]] = {rank: {"world": "0"} for rank in range(self.world)}
        self._make_groups()
        self.ranks: list[Rank] = []
        self.clock = 1_700_000_000_000_000_000
        self.broken_network: tuple[str, int] | None = None

    def _make_groups(self) -> None:
        number = 1
        for kind, stride, size in (
            ("tp", 1, self.tensor),
            ("dp", self.tensor, self.data),
            ("pp", self.tensor * self.data, self.pipeline),
        ):
            if size == 1:
                continue
            for first in range(self.world):
                if first // stride % size == 0:
                    members = [first + i * stride for i in range(size)]
                    self.groups[str(number)] = members
                    self.descriptions[str(number)] = f"{kind}_group"
                    for rank in members:
                        self.of[rank][kind] = str(number)
                    number += 1

    def schedule(self, rank: int, steps: int, layers: int, micro: int, detached: bool) -> list[Op | None]:
        own = self.of[rank]
        stage = rank // (self.tensor * self.data)
        block = self.tensor * self.data
        program: list[Op | None] = []

        def layer_work() -> None:
            if "tp" in own:
                program.extend(Op(own["tp"], "all_reduce", 512 * (1 + i % 3)) for i in range(layers))

        for step in range(steps):
            for _ in range(micro):
                if stage > 0:
                    program.append(Op(own["pp"], "recv", 256, peer=rank - block))
                layer_work()
                if stage < self.pipeline - 1:
                    program.append(Op(own["pp"], "send", 256, peer=rank + block))
            for _ in range(micro):
                if stage < self.pipeline - 1:
                    program.append(Op(own["pp"], "recv", 256, peer=rank + block))
                layer_work()
                if stage > 0:
                    program.append(Op(own["pp"], "send", 256, peer=rank - block))
            if "dp" in own:
                program.extend(Op(own["dp"], "_reduce_scatter_base", 4096, detached=detached) for _ in range(2))
                program.append(None)
                program.append(Op(own["dp"], "_all_gather_base", 2048))
            program.append(Op("0", "all_reduce", 1))
            if step % 2:
                program.append(Op("0", "broadcast", 16))
            program.append(None)
        return program

    def enqueue(self, rank: Rank, op: Op) -> None:
        self.clock += self.rng.randint(1_000, 2_000_000)
        if op.peer is None:
            rank.sequences[op.group] = rank.sequences.get(op.group, 0) + 1
        else:
            rank.p2p_sequences[op.group] = rank.p2p_sequences.get(op.group, 0) + 1
        record = Record(
            op,
            rank.sequences.get(op.group, 0),
            rank.p2p_sequences.get(op.group, 0),
            len(rank.records),
            self.clock + rank.skew,
        )
        rank.records.append(record)
        rank.pending.append(record)

    def run(self) -> None:
        """Until nothing moves."""
        moved = True
        while moved:
            moved = False
            order = list(range(self.world))
            self.rng.shuffle(order)
            for number in order:
                moved |= self._host(self.ranks[number])
            moved |= self._devices()

    def _host(self, rank: Rank) -> bool:
        if rank.stopped or rank.at >= len(rank.program):
            return False
        op = rank.program[rank.at]
        if op is None:
            if rank.pending:
                return False
        elif len(rank.pending) >= self.ahead:
            return False
        else:
            self.enqueue(rank, op)
        rank.at += 1
        return True

    def _devices(self) -> bool:
        moved = False
        for rank in self.ranks:
            if rank.device_broken:
                continue
            blocked_groups: set[str] = set()
            for record in rank.pending:
                if record.op.group not in blocked_groups and record.state == "scheduled":
                    record.state = "started"
                    moved = True
                blocked_groups.add(record.op.group)
                if not record.op.detached:
                    break
        ready: dict[tuple, list[tuple[Rank, Record]]] = {}
        for number, rank in enumerate(self.ranks):
            for record in rank.pending:
                if record.state == "started":
                    ready.setdefault(self._meeting(number, record), []).append((rank, record))
        for meeting, present in ready.items():
            needed = 2 if len(meeting) == 4 else len(self.groups[meeting[0]])
            same = (
                len({(r.op.operation if r.op.peer is None else "", r.op.elements, r.op.kind) for _, r in present}) == 1
            )
            if len(present) == needed and same and meeting[:2] != self.broken_network:
                for rank, record in present:
                    record.state = "completed"
                    rank.pending.remove(record)
                moved = True
        return moved

    def _meeting(self, number: int, record: Record) -> tuple:
        op = record.op
        if op.peer is None:
            return op.group, record.sequence
        source, target = (number, op.peer) if op.operation == "send" else (op.peer, number)
        index = sum(
            1
            for r in self.ranks[number].records[: record.record]
            if r.op.operation == op.operation and r.op.peer == op.peer
        )
        return op.group, index, source, target


def _stack(op: Op) -> list[dict]:
    return [
        {"name": op.operation, "filename": "distributed_c10d.py", "line": 100},
        {"name": "train_step", "filename": "train.py", "line": 42},
    ]


def _entry(job: Job, number: int, record: Record, form: str, timing: bool) -> dict:
    op = record.op
    gloo = form == "gloo"
    name = op.operation
    members = job.groups[op.group]
    if op.peer is not None:
        arrow = "->" if op.operation == "send" else "<-"
        name = f"{op.operation} {members.index(number)}{arrow}{members.index(op.peer)}"
    local = list(job.of[number].values()).index(op.group)
    done = record.state == "completed"
    state = record.state if timing or done else "scheduled"
    entry = {
        "frames": _stack(op),
        "pg_id": local,
        "profiling_name": f"{'gloo' if gloo else 'nccl'}:{name}",
        "time_created_ns": record.created,
        "input_sizes": [[op.elements]],
        "output_sizes": [[op.elements]],
        "state": "scheduled" if gloo else state,
        "time_discovered_started_ns": record.created + 1 if timing and state != "scheduled" and not gloo else None,
        "time_discovered_completed_ns": record.created + 2 if done and not gloo else None,
        "retired": done,
    }
    if form in ("1.1", "1.4"):
        entry["seq_id"] = record.sequence if op.peer is None else record.p2p_sequence
        if form == "1.4":
            entry |= {"record_id": record.record, "process_group": (op.group, job.descriptions[op.group])}
        return entry
    return entry | {
        "record_id": record.record,
        "process_group": (op.group, job.descriptions[op.group]),
        "collective_seq_id": record.sequence,
        "p2p_seq_id": record.p2p_sequence,
        "op_id": record.record + 1,
        "input_dtypes": [op.kind],
        "output_dtypes": [op.kind],
        "is_p2p": op.peer is not None,
        "timeout_ms": 600_000,
    }


def dump(job: Job, number: int, form: str, ring: int, timing: bool) -> bytes:
    rank = job.ranks[number]
    entries = [_entry(job, number, record, form, timing) for record in rank.records[-ring:]]
    if form == "1.1":
        return pickle.dumps(entries, 2)
    names = list(job.of[number].values())
    config = {n: {"name": n, "desc": job.descriptions[n], "ranks": str(job.groups[n])} for n in names}
    status = {}
    for local, name in enumerate(names):
        called = [r for r in rank.records if r.op.group == name]
        if called:

            def count(record: Record) -> int:
                return record.sequence if record.op.peer is None else record.p2p_sequence

            done = [count(r) for r in called if r.state == "completed"]
            lag = job.rng.random() < 0.1 and len(done) > 1
            status[str(local)] = {
                "last_enqueued_collective": count(called[-1]),
                "last_started_collective": -1,
                "last_completed_collective": (done[-2] if lag else done[-1]) if done else -1,
            }
    value = {"version": form.split(maxsplit=1)[0], "pg_config": config, "pg_status": status, "entries": entries}
    if form == "gloo":
        value |= {"version": "2.10", "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}, "comm_lib_version": ""}
    if form == "1.4":
        del value["pg_status"]
    if form == "2.10 json":
        for entry in entries:
            del entry["frames"]
            for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                entry[key] = entry[key] or 0
        value["pg_status"] = {k: {n: str(v) for n, v in s.items()} for k, s in status.items()}
        return json.dumps(value).encode()
    return pickle.dumps(value, 2)


def _break(job: Job, rng: random.Random, fault: str, victim: int) -> str:
    rank = job.ranks[victim]
    places = [i for i, op in enumerate(rank.program) if op is not None and i > len(rank.program) // 3]
    collective = [i for i in places if rank.program[i].peer is None]
    at = rng.choice(places if fault in ("hang", "dead", "device") else collective)
    op = rank.program[at]
    if fault in ("hang", "dead"):
        rank.program = rank.program[:at]
    elif fault == "operation":
        rank.program[at] = Op(op.group, "all_to_all" if op.operation != "broadcast" else "all_reduce", op.elements)
    elif fault == "size":
        rank.program[at] = Op(op.group, op.operation, op.elements + 3)
    elif fault == "type":
        rank.program[at] = Op(op.group, op.operation, op.elements, kind="Half")
    elif fault == "skip":
        del rank.program[at]
    elif fault == "network":
        sequence = sum(1 for o in rank.program[: at + 1] if o is not None and o.peer is None and o.group == op.group)
        job.broken_network = (op.group, sequence)
    return f"rank {victim} at {at} of {len(rank.program)}: {op.operation} in {job.descriptions[op.group]}"


SHAPES = ((1, 4, 1), (2, 2, 1), (2, 4, 1), (4, 2, 1), (2, 2, 2), (1, 4, 2), (2, 2, 3), (4, 4, 1), (1, 8, 1))


def make_case(seed: int) -> Case:
    rng = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    form = rng.choice(FORMATS)
    # Gloo records no sends and receives, and the oldest form does not tell a group's name.
    shape = rng.choice([s for s in SHAPES if s[2] == 1]) if form in ("gloo", "1.1") else rng.choice(SHAPES)
    job = Job(rng, shape, ahead=rng.choice((1, 3, 8, 50)))
    layers, micro, steps = rng.randint(1, 4), rng.randint(1, 3), rng.randint(2, 5)
    detached = rng.random() < 0.3
    job.ranks = [Rank(job.schedule(number, steps, layers, micro, detached)) for number in range(job.world)]
    for rank in job.ranks:
        rank.skew = rng.randint(-30_000_000, 30_000_000)
    victim = rng.randrange(job.world)
    if fault == "dead" and form in ("1.1", "gloo"):
        victim = rng.randrange(job.world - 1)  # no group lists its members: that a last rank is missing cannot be seen
    detail = _break(job, rng, fault, victim) if fault != "nothing" else ""
    timing = rng.random() < 0.5 and form != "gloo"
    if fault == "device":
        half = rng.randint(3, 12)
        job.ranks[victim].device_broken = False
        steps_before = 0
        while steps_before < half and (job._host(job.ranks[victim]) | any(list(map(job._host, job.ranks)))):
            job._devices()
            steps_before += 1
        job.ranks[victim].device_broken = True
        for record in job.ranks[victim].pending:
            record.state = "scheduled"
    job.run()
    ring = rng.choice((24, 60, 2000)) if form != "1.1" else 2000
    silent = {victim} if fault == "dead" else set()
    if fault in ("hang", "operation", "size", "type") and job.world >= 8 and rng.random() < 0.3 and form[0] != "1":
        silent = {rng.choice([n for n in range(job.world) if n != victim])}
        detail += f"; no dump of {sorted(silent)}"
    json_name = form == "2.10 json"
    prefix = rng.choice(("nccl_trace_rank_", "comm_lib_trace_rank_", "fr_rank_", "dump-"))
    files = {
        f"{prefix}{n}{'.json' if json_name else ''}": dump(job, n, form, ring, timing)
        for n in range(job.world)
        if n not in silent
    }
    files["torchrun.log"] = b"W1121 07:30:02.154000 4186 run.py:874] starting 8 processes\n"
    truth, also, kinds = {victim}, [], {"missing"}
    if fault in ("operation", "size", "type", "skip"):
        kinds = {"mismatch"} if fault != "skip" else {"mismatch", "missing"}
        members = _group_of(job, detail, victim)
        if len(members) == 2:
            also.append(set(members))  # no majority of two: both are named
        if fault == "type" and form in ("1.1", "1.4"):
            also.append(set())  # element types are not in these dumps
            kinds = {"mismatch", "stuck"}
    elif fault in ("network", "nothing"):
        truth, kinds = set(), {"stuck"} if fault == "network" else {"none"}
    elif fault == "device":
        kinds = {"stuck", "missing"}
        if not timing or form == "1.1":
            also.append(set())  # the dumps do not tell when operations start
    detail += f"; ahead {job.ahead}, ring {ring}, timing {timing}"
    return Case(fault, form, shape, truth, also, kinds, files, detail)


def _group_of(job: Job, detail: str, victim: int) -> list[int]:
    description = detail.split(" in ")[1].split(";", maxsplit=1)[0]
    for name in job.of[victim].values():
        if job.descriptions[name] == description:
            return job.groups[name]
    raise AssertionError(detail)
