"""When a node tests itself, and what an ordered test yields to."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.health.diagnostics import NodeDiagnostics
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings
from sentinel.evidence.gpu_samples import Gpu, Sample


class Node:
    """A node's diagnostics with children of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[Program] = []
        self.alive: set[str] = set()
        self.stopped: list[str] = []
        self.answers: list[dict[str, Any]] = []
        gpus = tuple(Gpu(id=n, uuid=f"GPU-{n}", minor=7 - n) for n in range(8))
        self.sample: Sample | None = Sample(datetime(2031, 1, 1, tzinfo=UTC), "dcgm", gpus)
        self.made = self.restart()

    def restart(self) -> NodeDiagnostics:
        settings = AgentSettings(run_dir=str(self.folder), state=str(self.folder))

        def program(name: str, module: str, arguments: Any, **rest: Any) -> Program:
            return Program(name, [module], arguments, **rest)

        self.made = NodeDiagnostics(
            settings, self, program, lambda: {}, lambda: self.sample, self.answers.append,  # type: ignore[arg-type]
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


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_job_goes_before_an_ordered_diagnostic(node: Node) -> None:
    node.made.job_came()
    assert node.programs == [], "there is none"
    node.made.give_way = lambda: True
    node.made.job_came()
    assert node.programs[-1].arguments["stop"] is True, "it is ended in the host engine too"


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
