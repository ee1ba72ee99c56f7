"""What machines and programs say, as evidence: raw lines through the real readers."""

from __future__ import annotations

from datetime import datetime

from sentinel.evidence.kernel import read_message
from sentinel.evidence.logs.machine_logs import KernelLine
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Evidence, Kind, Scalar, Source, Trust, Where, stable_id
from sentinel.simulate.agents import signatures
from sentinel.simulate.long_run.causes import Fact


class Signs:
    """Makes evidence; numbers its lines, so that no two are the same."""

    def __init__(self) -> None:
        self._lines = 0

    def kernel(self, node: str, text: str, at: datetime, now: datetime) -> list[Evidence]:
        self._lines += 1
        line = KernelLine(text, sequence=self._lines)
        return read_message(signatures(), line, at=at, now=now, where=Where(node=node), boot="1")

    def log(self, job: int, attempt: int, lines: tuple[tuple[int, str], ...], now: datetime) -> list[Evidence]:
        """A job's program prints: rank and text of each line."""
        where = Where(job=job, attempt=attempt, path=f"/home/ada/{job}.out")
        self._lines += len(lines)
        reader = LogReader(signatures(), source=Source.JOB_LOG, where=where, first_line=self._lines)
        data = "".join(f"[rank{rank}]: {line}\n" for rank, line in lines).encode()
        return [*reader.feed(data, now), *reader.finish(now)]

    def fact(self, node: str, fact: Fact, at: datetime, now: datetime) -> list[Evidence]:
        self._lines += 1
        name = stable_id(fact.kind, fact.source, node, self._lines)
        return [Evidence(name, at, now, fact.source, fact.kind, Where(node=node), fact.text, data=fact.data)]

    def unreachable(self, node: str, now: datetime) -> list[Evidence]:
        """As the watch on nodes concludes."""
        self._lines += 1
        text = f"{node}: no heartbeat, and slurmd at {node}:6818: timed out, timed out, timed out"
        name, data = stable_id("unreachable", node, self._lines), {"attempts": 3, "silent_nodes": 1}
        return [Evidence(name, now, now, Source.PROBE, Kind.NODE_UNREACHABLE, Where(node=node), text, data=data)]

    def stall(self, job: int, attempt: int, step: int, silent_s: float, now: datetime) -> list[Evidence]:
        """As the watch on steps concludes."""
        text = f"no step after {step} for {silent_s:.0f} s"
        data: dict[str, Scalar] = {"step": step, "silent_s": silent_s}
        return [
            Evidence(
                stable_id("stall", job, attempt, step), now, now, Source.PROGRESS, Kind.STALL,
                Where(job=job, attempt=attempt), text, data=data, trust=Trust.USER,
            )
        ]  # fmt: skip

    def blocks(self, job: int, attempt: int, node: str, rank: int, now: datetime) -> list[Evidence]:
        """As the job itself answers when it is asked who holds the others up."""
        data: dict[str, Scalar] = {
            "kind": "missing", "collective": "ALLREDUCE", "confidence": 0.85, "basis": "laggard", "ranks": str(rank),
            "live": True,
        }  # fmt: skip
        return [
            Evidence(
                stable_id("asked", job, attempt, rank), now, now, Source.FLIGHT_RECORDER, "hang",
                Where(node=node, rank=rank, job=job, attempt=attempt),
                f"the job, asked while it stood still ({node}): rank {rank} did not call ALLREDUCE", data=data,
                trust=Trust.USER,
            )
        ]  # fmt: skip

    def step(self, job: int, attempt: int, step: int, step_s: float, now: datetime) -> list[Evidence]:
        where = Where(job=job, attempt=attempt, path=f"/home/ada/{job}.out")
        data: dict[str, Scalar] = {"step": step, "step_time_s": step_s, "loss": 2.5}
        name = stable_id("step", job, attempt, step)
        return [Evidence(name, now, now, Source.JOB_LOG, Kind.STEP, where, f"step {step}", data=data, trust=Trust.USER)]

    def diagnostic(self, node: str, level: int, passed: bool, now: datetime) -> list[Evidence]:
        self._lines += 1
        kind = Kind.DIAG_PASSED if passed else Kind.DIAG_FAILED
        text = f"level {level} passed" if passed else "GPU 3: memory: uncorrectable errors"
        data: dict[str, Scalar] = {"level": level, "idle": True}
        data |= {} if passed else {"code": 95, "severity": 2, "test": "memory"}
        name = stable_id("diagnostic", node, self._lines)
        return [Evidence(name, now, now, Source.DIAGNOSTIC, kind, Where(node=node), text, data=data)]
