"""Runs the node's own diagnostics: a light one periodically, and the one that the epilog of a failed job requests.

One at a time, each in a killable child. The daemon orders deeper ones for idle and suspect nodes, since only it knows
how many nodes are idle and whether a job waits (``sentinel.daemon.effects.diagnostics``). A job that starts on the node
ends an ordered diagnostic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.state_files import write_atomically
from sentinel.agent.settings import AgentSettings
from sentinel.evidence.gpu_samples import Sample
from sentinel.log import Log
from sentinel.text import whole_numbers

log = Log()

MODULE = "sentinel.agent.probes.diagnose"
NAME = "diagnose"


class NodeDiagnostics:
    """Starts diagnostics and reads their answers.

    Args:
        arguments: the probe's arguments that come from this node's settings.
        sample: the newest sample of the GPUs, for their UUIDs.
        answered: takes the answer of each.
    """

    def __init__(
        self,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        arguments: Callable[[], Mapping[str, object]],
        sample: Callable[[], Sample | None],
        answered: Callable[[dict[str, Any]], None],
    ) -> None:
        self._settings = settings.diagnostics
        self._children = children
        self._program = program
        self._arguments = arguments
        self._sample = sample
        self._answered = answered
        self._requests = Path(settings.run_dir) / "checks"
        self._requests.mkdir(parents=True, exist_ok=True)
        self.give_way: Callable[[], bool] = lambda: False  # ends ordered diagnostics; True when one was running

    def level1(self) -> None:
        self._run(1, None)

    def job_came(self) -> None:
        """End an ordered diagnostic, also in DCGM's host engine, because a job starts on the node."""
        if self.give_way():
            log.info("diagnostic-yields")
            self._start(f"{NAME}:stop", {"stop": True, "level": 1}, self._settings.stop_s + 5, lambda _: None)

    def requests(self) -> None:
        """Start diagnostics that epilogs request: ``<run dir>/checks/<job>`` holds a level and the job's GPUs.

        The GPUs are in Slurm's numbering.
        """
        for path in self._requests.glob("[0-9]*"):
            if path.suffix or (path.with_suffix(".done")).exists():
                continue
            try:
                level, _, gpus = path.read_text(encoding="utf-8").strip().partition(" ")
            except (OSError, UnicodeDecodeError) as error:
                log.warning("check-request-unreadable", path=path, error=error)
                continue
            if level not in ("1", "2", "3") or not self._chosen(gpus):
                self._done(path, "inconclusive: the job's GPUs are not known")
            elif not self._run(int(level), self._chosen(gpus), path):
                return  # another one is running: try at the next call
        for done in self._requests.glob("*.done"):
            if not done.with_suffix("").exists():
                done.unlink(missing_ok=True)  # the epilog has read it or has ended

    def _chosen(self, gpus: str) -> list[str]:
        sample = self._sample()
        by_index = {gpu.index: gpu.uuid for gpu in sample.gpus if gpu.uuid} if sample is not None else {}
        wanted = whole_numbers(gpus)
        found = [by_index.get(index) for index in wanted]
        return [uuid for uuid in found if uuid is not None] if all(found) else []

    def _run(self, level: int, gpus: list[str] | None, request: Path | None = None) -> bool:
        deadline_s = self._settings.deadline_s[level - 1] + self._settings.stop_s + 10
        answers: list[dict[str, Any]] = []

        def ended(ending: Ending) -> None:
            answer = answers[-1].get("result") if answers else None
            if not isinstance(answer, dict):
                where = f" in state {ending.where}" if ending.where else ""
                answer = {"result": "inconclusive", "reason": f"the diagnostic was killed{where}", "gpus": gpus}
            self._answered(answer)
            if request is not None:
                self._done(request, f"{answer['result']}: {answer.get('reason', '')}")

        arguments = {"level": level, "gpus": gpus, "deadline_s": deadline_s}
        return self._start(NAME, arguments, deadline_s, answers.append, ended)

    def _start(
        self,
        name: str,
        arguments: Mapping[str, object],
        deadline_s: float,
        heard: Callable[[dict[str, Any]], None],
        ended: Callable[[Ending], None] = lambda _: None,
    ) -> bool:
        return self._children.start(
            self._program(
                name,
                MODULE,
                {**self._arguments(), "deadline_s": deadline_s, **arguments},
                silent_s=deadline_s,
                total_s=deadline_s,
                on_message=heard,
                on_end=ended,
            )
        )

    def _done(self, request: Path, text: str) -> None:
        write_atomically(request.with_suffix(".done"), text[:500] + "\n")
