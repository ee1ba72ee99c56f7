"""A cluster as `sentinel doctor` examines it: Slurm's configuration, MUNGE, and what the daemon says of itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from in_memory.cli_asked import Asked, objects
from sentinel.config.settings import Settings, load
from sentinel.daemon.api.status import settings_digest
from sentinel.ports import Signed
from sentinel.wire import to_json

CONF = {
    "SlurmUser": ["root(0)"], "Prolog[0]": ["x"], "Prolog": ["/etc/sentinel/prolog.sh"], "Epilog": ["/etc/epilog.sh"],
    "TaskProlog": ["/etc/task.sh"], "EpilogSlurmctld": ["/etc/ended.sh"], "PrologFlags": ["Alloc,Contain"],
    "SchedulerParameters": ["nohold_on_prolog_fail"], "MinJobAge": ["300 sec"],
}  # fmt: skip


HEARD = {"agent": "heard", "clock_offset_s": 0.2}


DAEMON = {"version": "1.0", "slurm_problem": "", "modes": {}, "resume": "", "nodes": {"n1": HEARD, "n2": HEARD}}


class FakeMunge:
    error: Exception | None = None

    def __init__(self, _socket: str = "") -> None:
        self.payload = b""

    def encode(self, payload: bytes) -> str:
        if FakeMunge.error is not None:
            raise FakeMunge.error
        return payload.decode()

    def decode(self, credential: str) -> Signed:
        return Signed(credential.encode(), os.getuid(), 0)


class Cluster:
    def __init__(self) -> None:
        self.conf: dict[str, list[str]] = dict(CONF)
        self.error: Exception | None = None

    async def version(self) -> str:
        if self.error is not None:
            raise self.error
        return "22.05.8"

    async def config(self, _settings: object) -> dict[str, list[str]]:
        return self.conf


def examine(asked: Asked, config: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    found = asked.run("doctor", "--config", str(config), "--json")
    return found.exit_code, {row["what"]: row for row in objects(found.stdout)}


GPUS_READ = HEARD | {"version": "1.0", "verdict": {"word": "OK"}}


OWN: dict[str, Any] = DAEMON | {
    "account": "root", "uid": 0, "database": "sqlite", "operators_unknown": [], "resume_writable": True,
    "partitions": {"gpu": {"mode": "act", "drain": "act", "restart": "act", "known": True}},
    "nodes": {"n1": GPUS_READ, "n2": GPUS_READ},
}  # fmt: skip


def own(config: Path, **changes: Any) -> dict[str, Any]:
    settings = load(config, Settings)
    same = {"settings": settings_digest(settings), "modes": to_json(settings.modes), "resume": settings.daemon.resume}
    return OWN | same | changes
