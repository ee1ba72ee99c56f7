"""What the flight recorders of those jobs hold, in the forms of several PyTorch releases, and what is really wrong."""

from __future__ import annotations

import hashlib
import json
import pickle
import random
from dataclasses import dataclass, field

from parallel_jobs import LAYOUTS, Job, Made, Op, Rank, megatron

FAULTS = (
    "stopped", "dead", "node dead", "operation", "size", "type", "skipped", "swapped", "network", "device",
    "crossed", "two", "some dumps lost", "nothing",
)  # fmt: skip
FORMS = ("1.1", "2.1", "2.4", "2.7", "2.10", "2.10 json", "2.10 active", "2.10 active json")


@dataclass
class Case:
    fault: str
    form: str
    layout: str
    right: list[set[int]]  # any of these sets of culprits is right
    within: set[int]  # and some of these (of a node that is gone, any rank leads to it)
    kinds: set[str]
    files: dict[str, bytes]
    detail: str = ""


@dataclass
class Form:
    name: str
    timing: bool  # the start of operations is recorded
    ring: int
    names: dict[str, str] = field(default_factory=dict)
    uneven: bool = False  # processes number the same group differently

    @property
    def number(self) -> tuple[int, int]:
        major, minor = self.name.split()[0].split(".")
        return int(major), int(minor)


def _names(job: Job, rng: random.Random, form: Form) -> None:
    how = rng.choice(("counted", "hashed", "alike"))
    for count, key in enumerate(job.groups):
        role = job.roles[key]
        if role == "world":
            form.names[key] = "0"
        elif how == "counted":
            form.names[key] = str(count)
        elif how == "hashed":
            form.names[key] = hashlib.sha1(f"{role}{job.groups[key]}".encode(), usedforsecurity=False).hexdigest()
        else:
            form.names[key] = f"mesh_{role}"


def _description(job: Job, key: str, form: Form) -> str:
    role = job.roles[key]
    return "default_pg" if role == "world" else "undefined" if form.names[key].isdigit() else f"mesh_{role}"


def _local_number(job: Job, rank: int, form: Form, key: str) -> int:
    """Processes count the groups that they are in; the default one is the first."""
    at = list(job.of[rank].values()).index(key)
    return at + (rank % 3 if form.uneven and at else 0)


def _entry(job: Job, rank: int, form: Form, made: Made, **more: object) -> dict:
    seen = made.state if form.timing or made.state == "completed" else "scheduled"
    entry = {
        "frames": [
            {"name": made.op.name, "filename": "/opt/torch/distributed/distributed_c10d.py", "line": 2000},
            {"name": "train_step", "filename": "/srv/run/pretrain.py", "line": 80 + made.index % 7},
        ],
        "pg_id": _local_number(job, rank, form, made.op.group),
        "process_group": (form.names[made.op.group], _description(job, made.op.group, form)),
        "time_created_ns": made.created,
        "input_sizes": [[made.op.elements[0]]],
        "output_sizes": [[made.op.elements[1]]],
        "input_dtypes": [made.op.kind],
        "output_dtypes": [made.op.kind],
        "state": seen,
        "time_discovered_started_ns": made.started_at + 900 if form.timing and seen != "scheduled" else None,
        "time_discovered_completed_ns": made.ended_at + 5_000_000 if seen == "completed" else None,
        "retired": seen == "completed",
        "timeout_ms": 600_000,
        "is_p2p": bool(made.op.parts),
        "thread_id": "139872",
        "thread_name": "pt_main_thread",
        **more,
    }
    if seen == "completed" and form.timing:
        entry["duration_ms"] = 1.5
    if form.number < (2, 2):
        for key in ("input_dtypes", "output_dtypes", "timeout_ms", "is_p2p"):
            del entry[key]
    if form.number < (2, 10):
        del entry["thread_id"], entry["thread_name"]
    return entry


def _entries(job: Job, rank: int, form: Form) -> list[dict]:
    """One entry a call; of a batch one for each part, which nothing ever completes, and one that closes it."""
    entries: list[dict] = []
    collective: dict[str, int] = {}
    exchange: dict[str, int] = {}
    bumps = form.number < (2, 6)  # a batch took a number of the collectives
    for made in job.ranks[rank].made:
        op = made.op
        counter = exchange if op.parts and not (op.batch and bumps) else collective
        counter[op.group] = counter.get(op.group, 0) + 1
        numbers = {"collective_seq_id": collective.get(op.group, 0), "p2p_seq_id": exchange.get(op.group, 0)}
        members = job.groups[op.group]
        names = []
        for side, peer, size in op.parts:
            arrow = "->" if side == "send" else "<-"
            names.append((f"nccl:{side} {members.index(rank)}{arrow}{members.index(peer)}", size))
        if op.batch:
            for name, size in names:
                part = _entry(job, rank, form, made, profiling_name=name, **numbers)
                part |= {"state": "scheduled", "retired": False, "input_sizes": [[size]], "output_sizes": [[size]]}
                part |= {"time_discovered_started_ns": None, "time_discovered_completed_ns": None}
                entries.append(part)
            closing = {"profiling_name": "nccl:coalesced", "input_sizes": [], "output_sizes": [], "is_p2p": not bumps}
            closing |= {"input_dtypes": [], "output_dtypes": []}
            entries.append(_entry(job, rank, form, made, **numbers) | closing)
        elif names:
            name, size = names[0]
            sizes = {"input_sizes": [[size]], "output_sizes": [[size]]}
            entries.append(_entry(job, rank, form, made, profiling_name=name, **numbers, **sizes))
        else:
            entries.append(_entry(job, rank, form, made, profiling_name=f"nccl:{op.name}", **numbers))
    for number, entry in enumerate(entries):
        entry |= {"record_id": number, "op_id": number + 1}
        if form.number < (2, 0):
            entry["seq_id"] = entry.pop("collective_seq_id") + entry.pop("p2p_seq_id")
            for key in ("record_id", "op_id", "process_group"):
                del entry[key]
    pending = [entry for entry in entries if entry["state"] != "completed" and "send" not in entry["profiling_name"]]
    if pending and job.rng.random() < 0.3:
        pending[0]["retired"] = True  # its time ran out
    return entries


def dump(job: Job, rank: int, form: Form) -> bytes:
    entries = _entries(job, rank, form)[-form.ring :]
    if form.number < (2, 0):
        return pickle.dumps(entries, 2)
    groups = list(job.of[rank].values())
    config = {
        form.names[key]: {
            "name": form.names[key],
            "desc": _description(job, key, form),
            "ranks": "[" + ", ".join(map(str, job.groups[key])) + "]",
        }
        for key in groups
    }
    value: dict = {"version": form.name.split()[0], "pg_config": config}
    if form.number >= (2, 4):
        value["pg_status"] = _status(job, rank, form, groups)
        value["nccl_version" if form.number < (2, 9) else "comm_lib_version"] = "2.27.5"
    if "active" in form.name:
        entries = [entry for entry in entries if entry["time_discovered_completed_ns"] is None]
    if entries or "json" not in form.name:
        value["entries"] = entries
    if "json" not in form.name:
        return pickle.dumps(value, 2)
    for entry in entries:
        del entry["frames"]
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            entry[key] = entry[key] or 0
    if "pg_status" in value:
        value["pg_status"] = {k: {n: str(v) for n, v in item.items()} for k, item in value["pg_status"].items()}
    return json.dumps(value).encode()


def _status(job: Job, rank: int, form: Form, groups: list[str]) -> dict:
    status = {}
    for key in groups:
        called = [made for made in job.ranks[rank].made if made.op.group == key]
        if not called:
            continue
        done = [made.number for made in called if made.state == "completed"]
        late = 1 + (job.rng.random() < 0.03 and len(done) > 1)  # the watchdog looks ten times a second
        begun = [made.number for made in called if made.state != "scheduled"]
        status[str(_local_number(job, rank, form, key))] = {
            "last_enqueued_collective": called[-1].number,
            "last_started_collective": begun[-1] if begun and form.timing else -1,
            "last_completed_collective": done[-late] if done else -1,
        }
    return status


# --- faults -------------------------------------------------------------------------------------------------------------


def _collectives(rank: Rank, *, start: float = 0.25) -> list[int]:
    first = int(len(rank.program) * start)
    return [i for i, op in enumerate(rank.program) if i >= first and op.name not in ("sync", "join") and not op.parts]


def _pair(job: Job, members: list[int]) -> list[set[int]]:
    return [set(members)] if len(members) == 2 else []


def _stop(job: Job, rng: random.Random, victim: int) -> None:
    program = job.ranks[victim].program
    calls = [i for i, op in enumerate(program) if op.name not in ("sync", "join") and i >= len(program) // 4]
    del program[rng.choice(calls) :]


def _alter(job: Job, rng: random.Random, fault: str, victim: int) -> tuple[list[set[int]], str]:
    program = job.ranks[victim].program
    places = [i for i in _collectives(job.ranks[victim]) if not program[i].name.startswith("all_to_all")]
    if fault in ("size", "type"):
        places = [i for i in places if "barrier" not in program[i].name]  # it always has the same argument
    if fault == "swapped":
        places = [i for i in places[:-1] if i + 1 in places and program[i].group != program[i + 1].group]
        places = [i for i in places if not program[i].overlap and not program[i + 1].overlap]
    if not places:
        return [], ""
    at = rng.choice(places)
    op = program[at]
    right = [{victim}, *_pair(job, job.groups[op.group])]
    if fault == "operation":
        program[at] = Op("all_reduce" if op.name != "all_reduce" else "broadcast", op.group, op.elements, op.kind)
    elif fault == "size":
        program[at] = Op(
            op.name, op.group, (op.elements[0] + 8, op.elements[1] + 8 * len(job.groups[op.group])), op.kind
        )
    elif fault == "type":
        program[at] = Op(op.name, op.group, op.elements, "Half" if op.kind != "Half" else "Float")
    elif fault == "skipped":
        del program[at]
    else:
        program[at], program[at + 1] = program[at + 1], op
        right += _pair(job, job.groups[program[at].group])
    return right, f"{op.name} of {op.group} at {at} of {len(program)}"


def _cross(job: Job, rng: random.Random) -> tuple[list[set[int]], str]:
    """Two neighbours that each receive first and send only after that, with the host waiting in between."""
    if "pp" not in job.of[0]:
        return [], ""
    group = rng.choice([key for key, role in job.roles.items() if role == "pp"])
    members = job.groups[group]
    at = rng.randrange(len(members) - 1)
    first, second = members[at], members[at + 1]
    for own, other in ((first, second), (second, first)):
        program = job.ranks[own].program
        ends = [i for i, op in enumerate(program) if op.name == "sync"]
        where = ends[len(ends) // 2] + 1
        program[where:where] = [
            Op("recv", group, parts=(("recv", other, 64),)), Op("sync"), Op("send", group, parts=(("send", other, 64),)),
        ]  # fmt: skip
    return [{first, second}], f"{first} and {second}"


def _awaited(job: Job) -> set[int]:
    """Whom a call that did not end lacks: who has not made it."""
    lacking: set[int] = set()
    for number, rank in enumerate(job.ranks):
        for made in rank.open:
            if made.op.parts:
                for side, peer, _ in made.op.parts:
                    own = sum(s == side and p == peer for m in rank.made[: made.index + 1] for s, p, _ in m.op.parts)
                    back = "recv" if side == "send" else "send"
                    there = sum(s == back and p == number for m in job.ranks[peer].made for s, p, _ in m.op.parts)
                    if there < own:
                        lacking.add(peer)
            else:
                for other in job.groups[made.op.group]:
                    if job.ranks[other].numbers.get((made.op.group, False), 0) < made.number:
                        lacking.add(other)
    return lacking


def _break(job: Job, rng: random.Random, fault: str, victim: int) -> tuple[list[set[int]], set[str], set[int], str]:
    """(which culprits are right, which kinds, ranks without a dump, what was done); no culprits: try again."""
    if fault in ("stopped", "dead", "some dumps lost"):
        _stop(job, rng, victim)
        others = [n for n in range(len(job.ranks)) if n != victim]
        lost = rng.sample(others, min(len(others) // 3, rng.randint(1, 2))) if fault == "some dumps lost" else []
        return [{victim}], {"missing"}, {victim} if fault == "dead" else set(lost), ""
    if fault == "node dead":
        size = 4 if len(job.ranks) > 8 else 2
        ranks = set(range(victim // size * size, min(len(job.ranks), (victim // size + 1) * size)))
        for rank in ranks:
            _stop(job, rng, rank)
        return [ranks], {"missing"}, ranks, f"{sorted(ranks)}"
    if fault == "two":
        other = rng.choice([n for n in range(len(job.ranks)) if n != victim])
        _stop(job, rng, victim)
        _stop(job, rng, other)
        return [{victim, other}], {"missing"}, set(), f"{sorted((victim, other))}"
    if fault == "network":
        keys = [(op.group, job.ranks[victim].program[:i].count(op)) for i, op in enumerate(job.ranks[victim].program)]
        at = rng.choice(_collectives(job.ranks[victim]))
        group = keys[at][0]
        number = sum(
            op.group == group and not op.parts and op.name != "join" for op in job.ranks[victim].program[: at + 1]
        )
        job.broken.add((group, number))
        return [set()], {"stuck"}, set(), f"{group} {number}"
    if fault == "device":
        job.run(most=rng.randint(4, 25))
        job.ranks[victim].frozen = True
        for made in job.ranks[victim].open:
            made.state = "scheduled"
        return [{victim}], {"stuck", "missing"}, set(), ""
    if fault == "crossed":
        right, detail = _cross(job, rng)
        return right, {"missing", "mismatch"}, set(), detail
    if fault == "nothing":
        return [set()], {"none"}, set(), ""
    right, detail = _alter(job, rng, fault, victim)
    return right, {"mismatch"} if fault not in ("skipped", "swapped") else {"mismatch", "missing"}, set(), detail


def make_case(seed: int) -> Case:
    """Tries layouts and places until the fault stops the job (or nothing does, where nothing is wrong)."""
    rng = random.Random(seed)
    fault, form_name = FAULTS[seed % len(FAULTS)], rng.choice(FORMS)
    while True:
        job = (megatron if fault == "crossed" else rng.choice(LAYOUTS))(rng)
        victim = rng.randrange(len(job.ranks))
        if form_name == "1.1" and fault in ("crossed", "dead", "node dead"):
            form_name = "2.1"  # that one names neither groups nor their members
        if form_name == "1.1" and any(op.batch for rank in job.ranks for op in rank.program):
            continue  # that form says nothing about what a batch holds
        if fault in ("node dead", "two", "some dumps lost") and len(job.ranks) < 6:
            continue
        for rank in job.ranks:
            rank.skew = rng.randint(-2_000_000_000, 2_000_000_000)
        right, kinds, silent, detail = _break(job, rng, fault, victim)
        job.run()
        stands = any(rank.open for rank in job.ranks)
        if right and stands == (fault != "nothing"):
            break
    form = Form(form_name, timing=rng.random() < 0.4, ring=rng.choice((40, 200, 2000)))
    form.uneven = form.number >= (2, 0) and rng.random() < 0.2
    _names(job, rng, form)
    right = _also_right(job, form, fault, victim, right)
    if fault == "type" and form.number < (2, 2):
        kinds |= {"stuck"}
    files = {
        f"nccl_trace_rank_{number}{'.json' if 'json' in form.name else ''}": dump(job, number, form)
        for number in range(len(job.ranks))
        if number not in silent
    }
    detail += f"; victim {victim}; ring {form.ring}{' timing' if form.timing else ''}{' uneven' if form.uneven else ''}"
    return Case(fault, form_name, job.layout, right, silent if fault == "node dead" else set(), kinds, files, detail)


def _also_right(job: Job, form: Form, fault: str, victim: int, right: list[set[int]]) -> list[set[int]]:
    if fault == "two":
        # One of them may itself wait for the other, or nobody may have come as far as to wait for it.
        stopped = {n for n in right[0] if job.ranks[n].at >= len(job.ranks[n].program)}
        awaited = stopped & _awaited(job)
        idle = {n for n in awaited if not job.ranks[n].open}  # the others of them can as well be held up
        return [stopped, awaited or stopped, idle or stopped]
    if fault == "device" and not form.timing:
        return [*right, set()]  # that form does not tell when an operation starts
    if fault == "type" and form.number < (2, 2):
        return [*right, set()]
    return right
