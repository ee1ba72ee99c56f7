"""Has each finished checkpoint of a running job read once, soon after it was written, to verify it before a restart.

One at a time per node, the newest first, since a restart would use it. The child `sentinel.agent.probes.manifest` reads
it as the job's user; each manifest records what the reading cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.settings import Jobs
from sentinel.log import Log
from sentinel.model.records import Evidence, Kind, Scalar, Source, Where, stable_id

log = Log()

WAITING = 64  # saves that wait to be read; the oldest are given up first
SILENT_S = 60.0  # a reader silent for longer is killed; it reports progress every 5 s


@dataclass(frozen=True, slots=True)
class Finished:
    """A checkpoint that is complete judging by its files."""

    job: int
    attempt: int
    uid: int
    gid: int | None
    path: str
    step: int


class Manifests:
    """Queues finished checkpoints and starts one reader at a time."""

    def __init__(
        self,
        node: str,
        settings: Jobs,
        children: Children,
        program: Callable[..., Program],
        keep: Callable[[Evidence], None],
    ) -> None:
        self._node = node
        self._settings = settings
        self._children = children
        self._program = program
        self._keep = keep
        self._waiting: list[Finished] = []
        self._reading: Finished | None = None
        self.unwanted: frozenset[int] = frozenset()  # jobs that asked that their saves not be read

    def finished(self, save: Finished) -> None:
        """Queue a new checkpoint of a running job."""
        if not self._settings.manifests or save.job in self.unwanted:
            return
        self._waiting = [*self._waiting, save][-WAITING:]
        self._next()

    def _next(self) -> None:
        if self._reading is not None or not self._waiting:
            return
        save = self._reading = self._waiting.pop()
        said: dict[str, Any] = {}

        def heard(message: Mapping[str, Any]) -> None:
            said.update(message)

        def ended(ending: Ending) -> None:
            self._reading = None
            if "valid" in said:
                self._tell(save, said)
            else:
                reason = ending.where or (ending.stderr.strip().splitlines() or [""])[-1]
                log.warning("manifest-not-made", job=save.job, path=save.path, silent=ending.silent, reason=reason)
            self._next()

        started = self._children.start(
            self._program(
                f"manifest:{save.job}",
                "sentinel.agent.probes.manifest",
                {
                    "uid": save.uid,
                    "gid": save.gid,
                    "path": save.path,
                    "bytes_per_s": self._settings.manifests_bytes_per_s,
                },
                silent_s=SILENT_S,
                total_s=self._settings.manifests_s,
                on_message=heard,
                on_end=ended,
            )
        )
        if not started:
            self._reading = None

    def _tell(self, save: Finished, said: Mapping[str, Any]) -> None:
        reason = str(said.get("reason", ""))[:300]
        if said["valid"] is None:
            log.warning("manifest-not-made", job=save.job, path=save.path, reason=reason)
            return
        data: dict[str, Scalar] = {
            "step": save.step, "tier": "global", "path": save.path, "on_node": self._node,
            "read_bytes": int(said.get("read", 0)),
        }  # fmt: skip
        if said["valid"]:
            data |= {"level": str(said.get("level")), "read_s": float(said["seconds"]), "cpu_s": float(said["cpu_s"])}
            text = f"step {save.step} was read once: {save.path}" + (f": {reason}" if reason else "")
            self._put(save, Kind.CHECKPOINT_MANIFEST, text, data)
        if reason:
            data |= {"reason": reason, "watched": True}
            self._put(save, Kind.CHECKPOINT_INVALID, f"{save.path}: {reason}", data)

    def _put(self, save: Finished, kind: str, text: str, data: Mapping[str, Scalar]) -> None:
        now = datetime.now(UTC)
        self._keep(
            Evidence(
                id=stable_id("manifest", save.job, save.attempt, kind, save.path),
                at=now,
                seen_at=now,
                source=Source.CHECKPOINT,
                kind=kind,
                where=Where(job=save.job, attempt=save.attempt, path=save.path),
                text=text[:2000],
                data=dict(data),
            )
        )
