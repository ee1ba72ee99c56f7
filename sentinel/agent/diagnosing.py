"""Diagnostics that the node runs by itself: a light one now and then, a deeper one in its turn while it is idle, and the
one that the epilog of a failed job asks for. One at a time, each in a killable child; a job that comes ends an idle one.

How many nodes test themselves at once follows from ``idle_period_s``: turns are spread over it by the node's name, so the
share is the diagnostic's length divided by the period.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sentinel.agent.children import Children, Ending, Program
from sentinel.agent.keeping import restore, save, write_atomically
from sentinel.agent.settings import AgentSettings
from sentinel.evidence.gpu_samples import Sample
from sentinel.log import Log

log = Log()

MODULE = "sentinel.agent.probes.diagnose"
NAME = "diagnose"
SETTLED_S = 120.0  # a node without jobs for this long is idle


class Diagnosing:
    """Starts them, reads their answers.

    Args:
        arguments: what the probe needs to know of this node.
        jobs: jobs on this node now.
        sample: the newest sample of the GPUs, for their UUIDs.
        answered: takes the answer of each.
    """

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        arguments: Callable[[], Mapping[str, object]],
        jobs: Callable[[], Sequence[int]],
        sample: Callable[[], Sample | None],
        answered: Callable[[dict[str, Any]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.node = node
        self._settings = settings.diagnostics
        self._children = children
        self._program = program
        self._arguments = arguments
        self._jobs = jobs
        self._sample = sample
        self._answered = answered
        self._clock = clock
        self._state = Path(settings.state) / "diagnostics.json"
        self._requests = Path(settings.run_dir) / "checks"
        self._requests.mkdir(parents=True, exist_ok=True)
        self._idle_since_s: float | None = None
        self._idle_level = 0  # of an idle diagnostic that is running

    def level1(self) -> None:
        self._run(1, None)

    def idle(self) -> None:
        """Called now and then: is it this node's turn?"""
        now_s = self._clock()
        if self._jobs():
            self._idle_since_s = None
            return
        self._idle_since_s = self._idle_since_s or now_s
        if not self._settings.idle_level or now_s - self._idle_since_s < SETTLED_S:
            return
        turn = int((now_s - self.phase_s) // self._settings.idle_period_s)
        kept = restore(self._state)
        if isinstance(kept, dict) and kept.get("turn") == turn:
            return
        if self._run(self._settings.idle_level, None):
            self._idle_level = self._settings.idle_level
            if kept is None:
                log.info("first-idle-diagnostic", level=self._idle_level)
            save(self._state, {"turn": turn})

    @property
    def phase_s(self) -> float:
        """This node's place within the period."""
        digest = hashlib.blake2b(self.node.encode(), digest_size=4).digest()
        return int.from_bytes(digest) / 2**32 * self._settings.idle_period_s

    def job_came(self) -> None:
        """A waiting job goes before an idle diagnostic: end it, also in the host engine."""
        self._idle_since_s = None
        if self._idle_level > 1 and self._children.running(NAME):
            log.info("idle-diagnostic-yields", level=self._idle_level)
            self._children.stop(NAME)
            self._start(f"{NAME}:stop", {"stop": True, "level": 1}, self._settings.stop_s + 5, lambda _: None)
        self._idle_level = 0

    def requests(self) -> None:
        """What epilogs ask for: ``<run dir>/checks/<job>`` holds a level and the job's GPUs as Slurm counts them."""
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
                return  # another one is running: later
        for done in self._requests.glob("*.done"):
            if not done.with_suffix("").exists():
                done.unlink(missing_ok=True)  # its epilog has read it or is gone

    def _chosen(self, gpus: str) -> list[str]:
        sample = self._sample()
        by_index = {gpu.index: gpu.uuid for gpu in sample.gpus if gpu.uuid} if sample is not None else {}
        wanted = [int(word) for word in gpus.split(",") if word.strip().isdigit()]
        found = [by_index.get(index) for index in wanted]
        return [uuid for uuid in found if uuid is not None] if all(found) else []

    def _run(self, level: int, gpus: list[str] | None, request: Path | None = None) -> bool:
        deadline_s = self._settings.deadline_s[level - 1] + self._settings.stop_s + 10
        answers: list[dict[str, Any]] = []

        def ended(ending: Ending) -> None:
            self._idle_level = 0
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
