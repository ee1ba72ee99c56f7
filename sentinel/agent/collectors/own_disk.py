"""Reports when the disk with the agent's state does not answer: a node with such a disk is about to fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from sentinel.adapters.spool import Spool
from sentinel.agent.process import state_files
from sentinel.log import Log
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id

log = Log()


class DiskWatch:
    """Reports each hang of a folder with the agent's state once.

    Args:
        hung_s: a write that takes longer than this counts as hung.
    """

    def __init__(
        self,
        node: str,
        spool: Spool,
        keep: Callable[[Evidence], None],
        *,
        hung_s: float,
        stuck: Callable[[], Mapping[Path, float]] = state_files.stuck,
    ) -> None:
        self.node = node
        self._spool = spool
        self._keep = keep
        self._hung_s = hung_s
        self._stuck = stuck
        self._said: set[Path] = set()

    def look(self) -> None:
        """Check for hung writes; called periodically. It does not touch the disk itself."""
        late = {**self._stuck(), self._spool.folder: self._spool.stuck_s}
        self._said &= {path for path, seconds in late.items() if seconds > 0}
        for path, seconds in late.items():
            if seconds >= self._hung_s and path not in self._said:
                self._said.add(path)
                self._say(path, seconds)

    def _say(self, path: Path, seconds: float) -> None:
        now = datetime.now(UTC)
        text = f"the disk below {path} hangs: a write has not returned for {seconds:.0f} s"
        log.warning("state-disk-hangs", path=path, seconds=round(seconds, 1))
        self._keep(
            Evidence(
                id=stable_id("state-disk", self.node, path, now.isoformat()),
                at=now,
                seen_at=now,
                source=Source.AGENT,
                kind=Kind.PROBE_HUNG,
                where=Where(node=self.node, path=str(path)),
                text=text,
                data={"probe": "state", "stuck_s": round(seconds, 1)},
            )
        )
