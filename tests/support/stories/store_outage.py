"""A daemon whose store can be away, and receivers of what is told of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World

from sentinel.daemon.outage import EVERY_S, StoreOutage
from sentinel.daemon.outage_told import OutageTold
from sentinel.errors import Unavailable
from sentinel.log import Log
from sentinel.model.records import Notice

FULL = "the store does not answer: database or disk is full"


class Case:
    """A daemon whose store can be full, whose lease can be out, and beside which another one may act."""

    def __init__(
        self, there: World, monkeypatch: pytest.MonkeyPatch, *sinks: FakeSink, file: Path | None = None
    ) -> None:
        self.daemon, self.clock = Daemon(there, sinks), there.slurm.clock
        self.full, self.lease, self.other_acts = False, "", False
        commit = there.store.commit

        def written(changes: Any) -> None:
            if self.full:
                raise Unavailable(FULL)
            commit(changes)

        monkeypatch.setattr(there.store, "commit", written)
        log = Log(self.daemon.stream)

        async def acts() -> bool:
            return self.other_acts

        self.outage = StoreOutage(
            self.daemon.runner, self.clock, log,
            lease_problem=lambda: self.lease, another_acts=acts, told=OutageTold(file, log),
        )  # fmt: skip

    async def looks(self, span_s: float) -> None:
        for _ in range(round(span_s / EVERY_S)):
            self.clock.advance(EVERY_S)
            await self.outage.look()


def events(sink: FakeSink) -> list[Any]:
    return [notice.data["event"] for notice in sink.all if not notice.incident]


class Mailbox(FakeSink):
    """Of its two addresses one refuses until ``heals``; or its server says nothing after it had all."""

    silent = heals = False

    async def send(self, notice: Notice) -> None:
        took, self.all = notice.delivery.took, [*self.all, notice]
        if not self.heals and (self.silent or not took):
            error = Unavailable("not taken by all")
            error.took, error.unsure = () if self.silent else ("ops@example.org",), self.silent
            raise error
