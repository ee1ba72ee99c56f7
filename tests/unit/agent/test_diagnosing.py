"""When a node tests itself, and when it yields."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.children import Ending, Program
from sentinel.agent.diagnosing import Diagnosing
from sentinel.agent.settings import AgentSettings, Diagnostics
from sentinel.evidence.gpu_samples import Gpu, Sample

DAY = 86400.0


class Node:
    """A node's diagnostics with a clock, jobs and children of the test."""

    def __init__(self, folder: Path, name: str = "n1", level: int = 2) -> None:
        self.folder, self.name, self.level = folder, name, level
        self.now_s, self.jobs = 1000 * DAY, []  # type: ignore[var-annotated]
        self.programs: list[Program] = []
        self.alive: set[str] = set()
        self.stopped: list[str] = []
        self.answers: list[dict[str, Any]] = []
        gpus = tuple(Gpu(id=n, uuid=f"GPU-{n}", minor=7 - n) for n in range(8))
        self.sample: Sample | None = Sample(datetime(2031, 1, 1, tzinfo=UTC), "dcgm", gpus)
        self.made = self.restart()

    def restart(self) -> Diagnosing:
        settings = AgentSettings(
            run_dir=str(self.folder),
            state=str(self.folder),
            diagnostics=Diagnostics(idle_level=self.level, idle_period_s=DAY),
        )

        def program(name: str, module: str, arguments: Any, **rest: Any) -> Program:
            return Program(name, [module], arguments, **rest)

        self.made = Diagnosing(
            self.name, settings, self, program, lambda: {}, lambda: self.jobs, lambda: self.sample,  # type: ignore[arg-type]
            self.answers.append, lambda: self.now_s,
        )  # fmt: skip
        return self.made

    def start(self, program: Program) -> bool:
        if program.name in self.alive:
            return False
        self.alive.add(program.name)
        self.programs.append(program)
        return True

    def stop(self, name: str) -> None:
        self.stopped.append(name)
        self.alive.discard(name)

    def running(self, name: str) -> bool:
        return name in self.alive

    def end(self, answer: dict[str, Any] | None = None) -> None:
        program = self.programs[-1]
        self.alive.discard(program.name)
        if answer is not None:
            program.on_message({"result": answer})
        program.on_end(Ending(program.name, 0, answer is None, "", ""))

    def live(self, hours: float) -> int:
        """Pass this time, two minutes at a step; how many diagnostics were begun."""
        before = len(self.programs)
        for _ in range(int(hours * 30)):
            self.now_s += 120
            self.made.idle()
            if self.alive:
                self.end({"result": "pass"})
        return len(self.programs) - before


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_idle_node_has_one_turn_in_a_period(node: Node) -> None:
    assert node.live(0.05) == 0, "it must have been idle for a while"
    assert 1 <= node.live(24) <= 2
    assert node.live(24) == 1
    assert node.live(72) == 3


def test_a_turn_is_not_taken_twice_by_a_restart(node: Node) -> None:
    node.live(1)
    begun = len(node.programs)
    node.restart()
    node.live(0.1)
    assert len(node.programs) == begun


def test_turns_are_spread(tmp_path: Path) -> None:
    phases = [Node(tmp_path, f"node{n}").made.phase_s / DAY for n in range(400)]
    busiest = max(sum(start <= phase < start + 0.05 for phase in phases) for start in (n / 20 for n in range(20)))
    assert busiest < 0.12 * len(phases)


def test_a_busy_node_is_left_alone(node: Node) -> None:
    node.jobs = [4]
    assert node.live(48) == 0


def test_a_job_goes_before_a_diagnostic(node: Node) -> None:
    while not node.alive:
        node.now_s += 30
        node.made.idle()
    node.made.job_came()
    assert node.stopped == ["diagnose"]
    assert node.programs[-1].arguments["stop"] is True, "and in the host engine"
    node.made.job_came()
    assert len(node.stopped) == 1


def test_without_a_level_there_is_none(tmp_path: Path) -> None:
    assert Node(tmp_path, level=0).live(48) == 0


def test_an_epilog_has_its_jobs_gpus_tested(node: Node) -> None:
    checks = node.folder / "checks"
    (checks / "31").write_text("2 0,7\n")
    node.made.requests()
    assert node.programs[-1].arguments["gpus"] == ["GPU-7", "GPU-0"], "by UUID, as Slurm counts"
    node.made.requests()
    assert len(node.programs) == 1
    node.end({"result": "fail", "reason": "GPU 0: replace"})
    assert (checks / "31.done").read_text() == "fail: GPU 0: replace\n"
    assert node.answers[0]["result"] == "fail"
    (checks / "31").unlink()
    node.made.requests()
    assert list(checks.iterdir()) == []


def test_a_diagnostic_that_is_killed_is_inconclusive(node: Node) -> None:
    (node.folder / "checks" / "31").write_text("2 0\n")
    node.made.requests()
    node.end(None)
    assert (node.folder / "checks" / "31.done").read_text().startswith("inconclusive")


@pytest.mark.parametrize("content", ["", "2", "9 0", "2 x", "2 0,99", "rm -rf /"])
def test_a_request_that_is_not_understood_is_answered(node: Node, content: str) -> None:
    (node.folder / "checks" / "31").write_text(content)
    node.made.requests()
    assert node.programs == []
    assert (node.folder / "checks" / "31.done").exists()


def test_two_epilogs_take_turns(node: Node) -> None:
    for job in (31, 32):
        (node.folder / "checks" / str(job)).write_text("2 0\n")
    node.made.requests()
    assert len(node.programs) == 1
    node.end({"result": "pass"})
    node.made.requests()
    assert len(node.programs) == 2
