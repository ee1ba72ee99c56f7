"""What the nodes' agents report and answer: raw lines through the real readers, sent at least once over a bad network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from sentinel.checkpoints.records import Part
from sentinel.config.rules_files import load_rules
from sentinel.errors import Unavailable
from sentinel.evidence.kernel import read_message
from sentinel.evidence.logs.machine_logs import KernelLine
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.orders import Diagnose, ListCheckpoints, MoveAside, TaskStates
from sentinel.model.records import Evidence, Kind, Scalar, Source, Trust, Where, stable_id
from sentinel.simulate.happened import MovedAside

if TYPE_CHECKING:
    from sentinel.simulate.programs import Program
    from sentinel.simulate.world import World

RETRY_S = 5.0  # an agent tries again after this long without an acknowledgement
_DELAY_S = (0.005, 0.1)  # from a line to the daemon, when nothing is wrong
_LOSSY_DELAY_S = 15.0  # most delay of a message while the network is bad
_LOST = 0.3  # share of messages lost on a bad network, and of acknowledgements


@cache
def signatures() -> Signatures:
    """The shipped rules; a site's own are not read, or a seed would mean something else on each machine."""
    return Signatures(load_rules(site=None))


@dataclass
class Network:
    """What is wrong between agents and the daemon."""

    lossy_until_s: float = 0.0
    cut_off: set[str] = field(default_factory=set)  # nodes whose agents do not reach the daemon

    def passes(self, world: World, sender: str) -> bool:
        """Whether a message that is sent now arrives."""
        return sender not in self.cut_off and not (world.now_s < self.lossy_until_s and world.rng.random() < _LOST)


class Agents:
    def __init__(self, world: World) -> None:
        self._world = world
        self.network = Network()
        self.unsent: Counter[str] = Counter()  # messages by sender that were not acknowledged yet
        self._lines = 0

    # -- what they tell --------------------------------------------------------------------------------------------

    def kernel(self, node: str, text: str) -> None:
        """The kernel of ``node`` prints a line."""
        self._lines += 1
        now = self._dated(node)
        line = KernelLine(text, sequence=self._lines)
        found = read_message(signatures(), line, at=now, now=now, where=Where(node=node), boot="1")
        self.say(node, found)

    def log(
        self, program: Program, *lines: str, rank: int | None = None, heard: Callable[[], None] | None = None
    ) -> None:
        """A job's program prints into its log; ``heard`` is called when the daemon has it."""
        where = Where(job=program.job, attempt=program.attempt, path=f"/home/ada/{program.job}.out")
        self._lines += len(lines)
        reader = LogReader(signatures(), source=Source.JOB_LOG, where=where, first_line=self._lines)
        prefix = f"[rank{rank}]: " if rank is not None else ""
        data = "".join(f"{prefix}{line}\n" for line in lines).encode()
        now = self._dated(program.nodes[0])
        self.say(program.nodes[0], [*reader.feed(data, now), *reader.finish(now)], heard)

    def fact(
        self,
        node: str | None,
        kind: str,
        source: Source,
        text: str,
        *,
        sender: str = "",
        job: int | None = None,
        attempt: int | None = None,
        trust: Trust = Trust.SYSTEM,
        data: Mapping[str, Scalar] | None = None,
    ) -> None:
        """Anything else that an agent found out: a value of DCGM, a port, a probe."""
        self._lines += 1
        at = self._dated(sender or node or "")
        where = Where(node=node, job=job, attempt=attempt)
        name = stable_id(kind, source, node, job, self._lines)
        self.say(
            sender or node or "",
            [Evidence(name, at, at, source, kind, where, text, data=data or {}, trust=trust)],
        )

    def step(self, program: Program, step: int, step_s: float) -> None:
        """A step line, as the reader of logs passes it on."""
        now = self._dated(program.nodes[0])
        where = Where(job=program.job, attempt=program.attempt, path=f"/home/ada/{program.job}.out")
        name = stable_id("step", program.job, program.attempt, step)
        data: dict[str, Scalar] = {"step": step, "step_time_s": step_s, "loss": 2.5}
        item = Evidence(name, now, now, Source.JOB_LOG, Kind.STEP, where, f"step {step}", data=data, trust=Trust.USER)
        self.say(program.nodes[0], [item], idle=True)

    def _dated(self, sender: str) -> datetime:
        """The time by the own clock of the node, or of the daemon's host."""
        world = self._world
        return world.now(world.own_off_s if sender == "daemon" else world.clock_off_s.get(sender, 0.0))

    # -- sending ---------------------------------------------------------------------------------------------------

    def say(
        self, sender: str, items: Sequence[Evidence], heard: Callable[[], None] | None = None, *, idle: bool = False
    ) -> None:
        """Send; again until it is acknowledged, whatever happens to the daemon. ``idle``: see ``Timeline.at``."""
        if items:
            self.unsent[sender] += 1
            delay_s = self._world.rng.uniform(*_DELAY_S)
            if self._lossy:
                delay_s += self._world.rng.uniform(0.0, _LOSSY_DELAY_S)
            self._world.later(delay_s, lambda: self._send(sender, tuple(items), heard, idle, []), idle=idle)

    @property
    def _lossy(self) -> bool:
        return self._world.now_s < self.network.lossy_until_s

    def _send(
        self,
        sender: str,
        items: tuple[Evidence, ...],
        told: Callable[[], None] | None,
        idle: bool,
        acknowledged: list[bool],
    ) -> None:
        """``acknowledged`` belongs to all tries: a daemon that stood still answers several at once."""
        world = self._world
        node = world.slurm.nodes.get(sender)
        if node is not None and not node.alive:
            self.unsent[sender] -= 1
            world.presence.when_back(
                sender, lambda: self.say(sender, items, told, idle=idle)
            )  # its spool is on its disk
            return
        lost = not self.network.passes(world, sender)

        def heard() -> None:
            if told is not None:
                told()
            if not (self._lossy and world.rng.random() < _LOST):
                self.unsent[sender] -= not acknowledged
                acknowledged.append(True)

        def again() -> None:
            if not acknowledged:
                self._send(sender, items, told, idle, acknowledged)

        if not lost and world.daemon is not None:
            world.daemon.receive(items, heard)
        world.later(RETRY_S, again, idle=idle)

    # -- what they answer ------------------------------------------------------------------------------------------

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        """``Orders`` over the network."""

        async def answered() -> object:
            there = self._world.slurm.nodes.get(node)
            if there is None or not there.alive or node in self.network.cut_off:
                raise Unavailable(f"the agent of {node} is not connected")
            if kind == Diagnose.kind:
                return await self._world.machines.diagnose(node, _whole(arguments.get("level")))
            return self._answer(node, str(kind), arguments)

        return await self._world.crossings.ask(f"{kind} {node}", answered, deadline_s)

    def _answer(self, node: str, kind: str, arguments: Mapping[str, object]) -> object:
        if kind == ListCheckpoints.kind:
            return {"listings": [self._listing(node, arguments)]}
        if kind == MoveAside.kind:
            return self._move(arguments)
        if kind == TaskStates.kind:
            return {"tasks": self._world.programs.tasks(node, _whole(arguments.get("job")))}
        raise Unavailable(f"the agent of {node} has nothing to answer to {kind}")

    def _listing(self, node: str, arguments: Mapping[str, object]) -> list[dict[str, object]]:
        job, before = _whole(arguments.get("job")), arguments.get("before_step")
        root = f"/shared/{job}"
        return [
            Part(
                host=node, root=root, path=f"{root}/step-{step}", key=f"step-{step}", step=step, tier="global",
                format="dcp", bytes=1000, valid=None if isinstance(before, int) and step >= before else valid,
                level=str(arguments.get("level")), reason="" if valid else "torn", world_size=8,
            ).to_json()
            for step, valid in self._world.programs.checkpoints(job).items()
        ]  # fmt: skip

    def _move(self, arguments: Mapping[str, object]) -> object:
        job, steps = _whole(arguments.get("job")), arguments.get("steps")
        moved = tuple(step for step in steps if isinstance(step, int)) if isinstance(steps, (list, tuple)) else ()
        there = self._world.programs.move_aside(job, moved)
        if there:
            self._world.happened(MovedAside(job, there))
        return {"moved": []}


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
