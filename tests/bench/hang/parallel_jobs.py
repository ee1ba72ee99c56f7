"""Training jobs of many layouts, run until nothing moves: what each host has called and each device has done.

Made from what the frameworks do and not from the analysis: a rank has a host that calls its program in order, and streams
on its device, one for each group and one for each pair that exchanges without a batch. A call starts when it is at the
head of its stream and what its rank must have finished before it is finished; it ends when all that belong to it have
started and agree. Nothing here knows who waits for whom.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field


@dataclass(slots=True)
class Op:
    """One call. ``parts`` of a batch: (send or recv, global rank of the peer, elements). A ``sync`` is no call."""

    name: str
    group: str = ""
    elements: tuple[int, int] = (1, 1)  # in, out
    kind: str = "BFloat16"
    parts: tuple[tuple[str, int, int], ...] = ()
    batch: bool = False
    overlap: bool = False  # later calls do not wait for it, until a join


@dataclass(slots=True)
class Made:
    """A call that a host has made."""

    op: Op
    number: int  # of the group's collectives on this rank, or of its exchanges
    created: int
    index: int  # in the order of the rank
    state: str = "scheduled"
    started_at: int = 0
    ended_at: int = 0


@dataclass
class Rank:
    program: list[Op] = field(default_factory=list)
    at: int = 0
    frozen: bool = False  # its device begins nothing more
    slow: bool = False
    made: list[Made] = field(default_factory=list)
    open: list[Made] = field(default_factory=list)
    numbers: dict[tuple[str, bool], int] = field(default_factory=dict)
    skew: int = 0


class Job:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.groups: dict[str, list[int]] = {}  # key -> global ranks
        self.roles: dict[str, str] = {}
        self.of: list[dict[str, str]] = []  # role -> key, of each rank
        self.ranks: list[Rank] = []
        self.clock = 1_790_000_000_000_000_000 + rng.randrange(10**15)
        self.broken: set[tuple[str, int]] = set()  # collectives that never end
        self.layout = ""

    def split(self, role: str, members: list[list[int]]) -> None:
        for ranks in members:
            key = f"{role}:{ranks[0]}"
            self.groups[key], self.roles[key] = ranks, role
            for rank in ranks:
                self.of[rank][role] = key

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, most: int | None = None) -> None:
        """Until nothing moves, or so many rounds."""
        order = list(range(len(self.ranks)))
        while most is None or most > 0:
            self.rng.shuffle(order)
            moved = False
            for number in order:
                moved |= self._call(self.ranks[number])
            moved |= self._work()
            if not moved:
                return
            most = most - 1 if most is not None else None

    def _call(self, rank: Rank) -> bool:
        moved = False
        for _ in range(self.rng.randint(1, 6)):
            if rank.at >= len(rank.program):
                break
            op = rank.program[rank.at]
            if op.name == "sync":
                if rank.open:
                    break
            elif op.name != "join":
                self.clock += self.rng.randint(1_000, 3_000_000)
                exchange = bool(op.parts)
                key = (op.group, exchange)
                rank.numbers[key] = rank.numbers.get(key, 0) + 1
                made = Made(op, rank.numbers[key], self.clock + rank.skew, len(rank.made))
                rank.made.append(made)
                rank.open.append(made)
            elif any(made.op.overlap and made.op.group == op.group for made in rank.open):
                break  # a device would wait here; the host of this model does
            rank.at += 1
            moved = True
        return moved

    def _work(self) -> bool:
        moved = False
        for number, rank in enumerate(self.ranks):
            if rank.frozen:
                continue
            streams: set[object] = set()
            for made in rank.open:
                stream = self._stream(number, made.op)
                if made.state == "scheduled" and stream not in streams:
                    made.state, made.started_at, moved = "started", self.clock + rank.skew, True
                streams.add(stream)
                if not made.op.overlap:
                    break
        return self._end_collectives() | self._end_exchanges() | moved

    def _stream(self, number: int, op: Op) -> object:
        if op.parts and not op.batch:
            return op.group, frozenset((number, op.parts[0][1]))
        return op.group

    def _finish(self, number: int, made: Made) -> None:
        self.clock += self.rng.randint(100, 40_000)
        made.state, made.ended_at = "completed", self.clock + self.ranks[number].skew
        self.ranks[number].open.remove(made)

    def _end_collectives(self) -> bool:
        ready: dict[tuple[str, int], list[tuple[int, Made]]] = defaultdict(list)
        for number, rank in enumerate(self.ranks):
            for made in rank.open:
                if made.state == "started" and not made.op.parts:
                    ready[made.op.group, made.number].append((number, made))
        moved = False
        for key, there in ready.items():
            agree = len({self._signature(made.op) for _, made in there}) == 1
            if len(there) == len(self.groups[key[0]]) and agree and key not in self.broken:
                for number, made in there:
                    self._finish(number, made)
                moved = True
        return moved

    @staticmethod
    def _signature(op: Op) -> object:
        free = op.name in ("all_to_all", "all_to_allv")
        return op.name, None if free else op.elements, op.kind

    def _end_exchanges(self) -> bool:
        """A part is done when its counterpart (the next of that direction between the two) has started as well."""
        found: dict[tuple[str, int, int, int], set[str]] = defaultdict(set)
        parts: dict[tuple[int, int], list[tuple[str, int, int, int]]] = {}
        for number, rank in enumerate(self.ranks):
            count: dict[tuple[str, str, int], int] = defaultdict(int)
            for made in rank.made:
                for side, peer, _ in made.op.parts:
                    which = count[made.op.group, side, peer]
                    count[made.op.group, side, peer] += 1
                    if made.state == "scheduled":
                        continue
                    ends = (number, peer) if side == "send" else (peer, number)
                    meeting = (made.op.group, *ends, which)
                    found[meeting].add(side)
                    if made.state == "started":
                        parts.setdefault((number, made.index), []).append(meeting)
        moved = False
        for (number, index), meetings in parts.items():
            if all(len(found[meeting]) == 2 for meeting in meetings):
                self._finish(number, self.ranks[number].made[index])
                moved = True
        return moved


# --- layouts ------------------------------------------------------------------------------------------------------------


def _coll(group: str, name: str, size: int, *, kind: str = "BFloat16", ways: int = 1, overlap: bool = False) -> Op:
    sizes = {"_all_gather_base": (size, size * ways), "_reduce_scatter_base": (size * ways, size)}
    return Op(name, group, sizes.get(name, (size, size)), kind, overlap=overlap)


def megatron(rng: random.Random) -> Job:
    """Tensor, data and pipeline groups, at times with experts; exchanges one at a time or in batches."""
    job = Job(rng)
    tensor, data, stages = rng.choice(
        [(2, 2, 2), (2, 1, 4), (1, 2, 4), (4, 2, 2), (2, 4, 2), (1, 1, 4), (2, 2, 4), (4, 4, 2), (8, 2, 2), (2, 4, 1)]
    )
    block, world = tensor * data, tensor * data * stages
    job.of = [{} for _ in range(world)]
    job.split("world", [list(range(world))])
    if tensor > 1:
        job.split("tp", [list(range(at, at + tensor)) for at in range(0, world, tensor)])
    if data > 1:
        starts = [stage * block + lane for stage in range(stages) for lane in range(tensor)]
        job.split("dp", [[at + tensor * i for i in range(data)] for at in starts])
        if rng.random() < 0.4:
            job.split("ep", [[at + tensor * i for i in range(data)] for at in starts])
    if stages > 1:
        job.split("pp", [[at + block * i for i in range(stages)] for at in range(block)])
    batch, micro = rng.random() < 0.6, rng.randint(1, 4)
    layers, steps, overlap = rng.randint(1, 3), rng.randint(2, 4), rng.random() < 0.5
    job.layout = f"tp{tensor} dp{data} pp{stages}{' ep' if 'ep' in job.of[0] else ''}{' batched' if batch else ''}"
    for number in range(world):
        program = _Megatron(job, number, block, stages, batch=batch, layers=layers, overlap=overlap)
        job.ranks.append(Rank(program.steps(steps, micro)))
    return job


class _Megatron:
    def __init__(self, job: Job, number: int, block: int, stages: int, *, batch: bool, layers: int, overlap: bool):
        self.own, self.job, self.number = job.of[number], job, number
        self.block, self.stages, self.stage = block, stages, number // block
        self.batch, self.layers, self.overlap = batch, layers, overlap
        self.program: list[Op] = []

    def pass_(self, sizes: int) -> None:
        for layer in range(self.layers):
            if "tp" in self.own:
                self.program.append(_coll(self.own["tp"], "all_reduce", sizes))
            if "ep" in self.own and layer % 2 == 0:
                uneven = sizes + self.number % 5
                self.program.append(Op("all_to_all", self.own["ep"], (uneven, uneven)))

    def exchange(self, *wanted: tuple[str, int]) -> None:
        """(send or recv, +1 for the next stage or -1 for the one before), as far as there is such a stage."""
        there = [
            (side, self.number + step * self.block, 4096)
            for side, step in wanted
            if 0 <= self.stage + step < self.stages
        ]
        if self.batch and there:
            self.program.append(Op("coalesced", self.own["pp"], parts=tuple(there), batch=True))
        else:
            self.program.extend(Op(side, self.own["pp"], parts=((side, peer, size),)) for side, peer, size in there)

    def steps(self, count: int, micro: int) -> list[Op]:
        for step in range(count):
            if self.batch:
                self._one_forward_one_backward(micro)
            else:
                for _ in range(micro):
                    self.exchange(("recv", -1))
                    self.pass_(512)
                    self.exchange(("send", 1))
                for _ in range(micro):
                    self.exchange(("recv", 1))
                    self.pass_(1024)
                    self.exchange(("send", -1))
            self._update(step)
        return self.program

    def _one_forward_one_backward(self, micro: int) -> None:
        ahead = min(self.stages - self.stage - 1, micro)
        for _ in range(ahead):
            self.exchange(("recv", -1))
            self.pass_(512)
            self.exchange(("send", 1))
        if micro > ahead:
            self.exchange(("recv", -1))
        for left in range(micro - ahead, 0, -1):
            self.pass_(512)
            self.exchange(("send", 1), ("recv", 1))
            self.pass_(1024)
            self.exchange(("send", -1), *((("recv", -1),) if left > 1 else ()))
        for _ in range(ahead):
            self.exchange(("recv", 1))
            self.pass_(1024)
            self.exchange(("send", -1))

    def _update(self, step: int) -> None:
        if "dp" in self.own:
            ways = len(self.job.groups[self.own["dp"]])
            self.program.extend(
                _coll(self.own["dp"], "_reduce_scatter_base", 8192, kind="Float", ways=ways, overlap=self.overlap)
                for _ in range(2)
            )
            self.program.append(Op("join", self.own["dp"]))
        self.program.append(_coll(self.own["world"], "all_reduce", 1, kind="Float"))
        if "dp" in self.own:
            self.program.append(
                _coll(self.own["dp"], "_all_gather_base", 8192, ways=len(self.job.groups[self.own["dp"]]))
            )
        if step % 2:
            self.program.append(Op("all_reduce_barrier", self.own["world"], (1, 1), "Byte"))
        self.program.append(Op("sync"))


def sharded(rng: random.Random) -> Job:
    """Parameters sharded over a group, gathered ahead of their use; gradients at times summed over replicas."""
    job = Job(rng)
    shard, replicas = rng.choice([(4, 1), (8, 1), (4, 2), (8, 2), (2, 4), (16, 1), (8, 4), (3, 1), (6, 2)])
    world = shard * replicas
    job.of = [{} for _ in range(world)]
    job.split("world", [list(range(world))])
    if replicas > 1 or rng.random() < 0.5:
        job.split("shard", [list(range(at, at + shard)) for at in range(0, world, shard)])
    if replicas > 1:
        job.split("replicate", [[at + shard * i for i in range(replicas)] for at in range(shard)])
    layers, steps = rng.randint(2, 6), rng.randint(2, 4)
    job.layout = f"shard{shard} replicas{replicas}"
    for number in range(world):
        own, program = job.of[number], list[Op]()
        home = own.get("shard", own["world"])
        for step in range(steps):
            for layer in range(layers):
                program.append(_coll(home, "_all_gather_base", 1000 + layer, ways=shard, overlap=layer % 2 == 0))
            for layer in reversed(range(layers)):
                program.append(_coll(home, "_all_gather_base", 1000 + layer, ways=shard))
                program.append(
                    _coll(home, "_reduce_scatter_base", 1000 + layer, kind="Float", ways=shard, overlap=True)
                )
                if replicas > 1:
                    program.append(_coll(own["replicate"], "all_reduce", 1000 + layer, kind="Float"))
            program += [Op("join", home), _coll(own["world"], "all_reduce", 1, kind="Float")]
            if step % 2:
                program.append(_coll(own["world"], "broadcast", 16))
            program.append(Op("sync"))
        job.ranks.append(Rank(program))
    return job


def plain_ddp(rng: random.Random) -> Job:
    """One group; gradients in buckets."""
    job = Job(rng)
    world = rng.choice([2, 3, 4, 6, 8, 16, 32])
    job.of = [{} for _ in range(world)]
    job.split("world", [list(range(world))])
    buckets, steps = [rng.choice([4096, 8192, 10240]) for _ in range(rng.randint(1, 5))], rng.randint(2, 6)
    job.layout = f"ddp{world}"
    for _ in range(world):
        program: list[Op] = []
        for step in range(steps):
            program += [_coll("world:0", "all_reduce", size, kind="Float", overlap=True) for size in buckets]
            program.append(Op("join", "world:0"))
            if step % 3 == 2:
                program += [Op("all_reduce_barrier", "world:0", (1, 1), "Byte"), Op("sync")]
        job.ranks.append(Rank(program))
    return job


LAYOUTS = (megatron, megatron, megatron, sharded, sharded, plain_ddp)
