"""A node's jobs for tests of the agent's collector: job files, logs, followers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sentinel.agent.collectors.jobs import Jobs
from sentinel.agent.process.children import Program
from sentinel.agent.settings import AgentSettings
from sentinel.model.records import Evidence


class Bench:
    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.stopped: list[str] = []

    def start(self, program: Program) -> bool:
        self.programs.append(program)
        return True

    def stop(self, name: str) -> None:
        self.stopped.append(name)


class Site:
    """A node's folders, and the jobs on it."""

    def __init__(self, folder: Path) -> None:
        self.run, self.state = folder / "run", folder / "state"
        self.kept: list[Evidence] = []
        self.bench = Bench()
        self.jobs = self.restart()

    def restart(self) -> Jobs:
        settings = AgentSettings(node="n1", run_dir=str(self.run), state=str(self.state))

        def program(name: str, _module: str, arguments: Any, **rest: Any) -> Program:
            return Program(name, ["x"], arguments, **rest)

        self.jobs = Jobs("n1", settings, self.bench, program, self.keep)  # type: ignore[arg-type]
        return self.jobs

    def keep(self, item: Evidence) -> int:
        self.kept.append(item)
        return len(self.kept)

    def came(self, job: int = 5, attempt: int = 0, **changes: str) -> None:
        content = {"job": str(job), "attempt": str(attempt), "uid": str(os.getuid()), "nodelist": "n[1-2]",
                   "stdout": "/data/j.out", **changes}  # fmt: skip
        (self.run / "jobs" / f"{job}.json").write_text(json.dumps(content))
        os.utime(self.run / "jobs" / f"{job}.json", ns=(attempt, attempt + 1))
        self.jobs.scan()
