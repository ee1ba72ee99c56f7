"""What a generated failure is made of: log, kernel and Slurm lines, live facts, noise that follows, and a past."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sentinel.classify import History, PastFailure
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Cause, Evidence, Incident, Scope, Source, Where, stable_id

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
JOB = 4711


@dataclass
class World:
    """Evidence of one failure as it is put together."""

    rng: random.Random
    signatures: Signatures
    evidence: list[Evidence] = field(default_factory=list)
    past: list[PastFailure] = field(default_factory=list)

    def node(self, number: int) -> str:
        return f"gpu{number:03d}"

    def log(self, text: str, *, at: float = 0.0, node: int | None = None) -> None:
        self._read(text, Source.JOB_LOG, at, node)

    def kernel(self, text: str, *, at: float = 0.0, node: int = 0) -> None:
        self._read(text, Source.KERNEL, at, node)

    def dcgm(self, text: str, *, at: float = 0.0, node: int = 0) -> None:
        self._read(text, Source.DCGM, at, node)

    def slurm(self, text: str, *, at: float = 0.0) -> None:
        self._read(text, Source.SLURM, at, None)

    def _read(self, text: str, source: Source, at: float, node: int | None) -> None:
        when = NOW + timedelta(seconds=at)
        name = None if node is None else self.node(node)
        reader = LogReader(self.signatures, source=source, where=Where(node=name, job=JOB, path=f"{source}{node}{at}"))
        self.evidence.extend(reader.feed(text.encode() + b"\n", when) + reader.finish(when))

    def fact(
        self, kind: str, source: Source, *, at: float = 0.0, node: int | None = None, rank: int | None = None, **data
    ):
        when = NOW + timedelta(seconds=at)
        where = Where(node=None if node is None else self.node(node), rank=rank, job=JOB, attempt=0)
        identity = stable_id(kind, source, at, node, rank, sorted(data.items()))
        self.evidence.append(Evidence(identity, when, when, source, kind, where, data=data))

    def steps(self, last: int) -> None:
        for step in range(max(1, last - 3), last + 1):
            self.log(f"step {step} | loss {2 + self.rng.random():.4f} | step time 0.41 s", at=-60 + step - last)

    def noise(self, at: float = 30.0) -> None:
        """What follows any failure."""
        rank = self.rng.randrange(16)
        lines = [
            f"[rank{rank}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91, OpType=ALLREDUCE)",
            f"[rank{rank}]: To avoid data inconsistency, we are taking the entire process down.",
            f"[rank{rank}]: RuntimeError: Connection reset by peer",
            "srun: error: gpu001: task 3: Exited with exit code 1",
        ]
        for line in self.rng.sample(lines, self.rng.randrange(0, len(lines) + 1)):
            self.log(line, at=at)

    def failed_before(self, node: int, count: int, cause: Cause, *, jobs: str = "others") -> None:
        for i in range(count):
            job = JOB if jobs == "same" else 100 + i
            self.past.append(
                PastFailure(
                    NOW - timedelta(days=1 + i), cause, node=self.node(node + (i if jobs == "same" else 0)), job=job
                )
            )


@dataclass(frozen=True)
class Case:
    name: str
    incident: Incident
    history: History
    cause: Cause
    scope: Scope | None = None  # None: not judged
    drain: bool | None = None  # None: not judged
