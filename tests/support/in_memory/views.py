"""The daemon's views over a small world: ada's and bob's jobs failed on n1, and a node failed under no job."""

from __future__ import annotations

import json
import pwd
from typing import Any

import pytest
from made_records import AT, ended, evidence, incident, job, verdict

from in_memory.daemon import SETTINGS, Daemon
from in_memory.world import World
from sentinel.config.settings import Settings
from sentinel.daemon.api.views import Views
from sentinel.daemon.effects.orders import OrderBook
from sentinel.daemon.ingest.prologs import Prologs
from sentinel.model.records import Kind
from sentinel.wire import to_json

ADA, BOB, OPERATOR = 50001, 50002, 50003  # uids


def name_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ada and bob have an account."""
    names = {ADA: "ada", BOB: "bob"}

    def getpwuid(uid: int) -> Any:
        if uid not in names:
            raise KeyError(uid)
        return type("Entry", (), {"pw_name": names[uid], "pw_gid": uid})

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)


class Shown:
    """Views over a world in which ada's and bob's jobs failed on n1, and a node failed under no job."""

    def __init__(self, world: World, settings: Settings = SETTINGS) -> None:
        self.world = world
        self.daemon = Daemon(world)
        self.prologs = Prologs()
        self.views = Views(
            store=world.store, live=self.daemon.live, fleets=self.daemon.fleets,
            orders=OrderBook(), settings=settings, operators={OPERATOR}, clock=world.slurm.clock,
            prologs=self.prologs,
        )  # fmt: skip
        for number, (name, user) in enumerate({"aaa1": "ada", "bbb1": "bob"}.items()):
            view = job(201 + number, user=user, nodes=("n1", "n2"))
            world.store.save_attempt(view, first_step=1, last_step=250, step_time_s=2.0)
            self.failed(name, view.id, user)
        self.failed("ccc1", None, None)

    def failed(self, name: str, job_id: int | None, user: str | None) -> None:
        items = [evidence(Kind.XID, node="n1", id=f"xid-{name}", text="NVRM: Xid 79")]
        items += [ended(job_id)] if job_id is not None else []
        self.world.store.append(items)
        self.world.store.save_incident(incident(*items, id=name, job=job_id, nodes=("n1",)), user=user)
        self.world.store.save_verdict(name, verdict(drain=("n1",), gpus=("n1:3",)), AT)

    async def __call__(self, view: str, uid: int = OPERATOR, **arguments: Any) -> Any:
        shown = await self.views.show(view, arguments, uid)
        return json.loads(json.dumps(to_json(shown)))  # as the server sends it
