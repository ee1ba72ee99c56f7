"""A job's local checkpoints at its end: who is marked, what is listed, and when the epilog may go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.collectors.jobs import JobOnNode
from sentinel.agent.collectors.saves import Watched
from sentinel.agent.postmortem.held_checkpoints import HeldCheckpoints
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings
from sentinel.checkpoints.packed import unpack
from sentinel.checkpoints.records import Part
from sentinel.model.records import Evidence, Kind, Trust

JOB = JobOnNode(7, 0, 1000, 1000, "n1", "")
LOCAL, SHARED = ("local", "/nvme/run"), ("global", "/shared/run")


def watched(*roots: tuple[str, str], job: int = 7, attempt: int = 0) -> Watched:
    return Watched(job, attempt, True, 0.0, roots)


def part(step: int) -> dict[str, Any]:
    return Part(
        "n1", "/nvme/run", f"/nvme/run/step-{step}", f"step-{step}", step, "local", "dcp", 10, True, "structural", ""
    ).to_json()


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[Watched] = []
        self.kept: list[Evidence] = []
        self.programs: list[Program] = []
        self.can_start = True
        self.holding = self.restart()

    def restart(self) -> HeldCheckpoints:
        self.holding = HeldCheckpoints(
            "n1",
            AgentSettings(node="n1", run_dir=str(self.folder)),
            self,  # type: ignore[arg-type]
            lambda name, _module, arguments, **rest: Program(name, ["x"], arguments, **rest),
            self.kept.append,
            lambda: self.asked,
        )
        return self.holding

    def start(self, program: Program) -> bool:
        if self.can_start:
            self.programs.append(program)
        return self.can_start

    def running(self, name: str) -> bool:
        return any(program.name == name for program in self.programs)

    def marks(self) -> list[str]:
        return sorted(os.listdir(self.folder / "local"))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_only_a_job_with_a_local_tier_is_marked(node: Node) -> None:
    node.asked = [watched(SHARED)]
    node.holding.look({7: JOB})
    assert node.marks() == []
    node.asked = [watched(LOCAL, SHARED)]
    node.holding.look({})
    assert node.marks() == [], "it is not here"
    node.holding.look({7: JobOnNode(7, 1, 1000, None, "n1", "")})
    assert node.marks() == [], "it is another attempt"
    node.holding.look({7: JOB})
    assert node.marks() == ["7.0"]


def test_what_it_holds_is_told_and_its_epilog_goes_on(node: Node) -> None:
    node.asked = [watched(LOCAL, SHARED)]
    node.holding.look({7: JOB})
    node.asked = []  # the daemon asks no more: it has heard that the job ended
    node.holding.look({7: JOB})
    node.holding.ended(JOB)
    (program,) = node.programs
    assert program.arguments["roots"] == [{"tier": "local", "path": "/nvme/run"}]
    assert (program.arguments["uid"], program.arguments["level"]) == (1000, "structural")
    node.holding.look({})
    assert node.marks() == ["7.0"], "it is being listed"
    program.on_message({"listings": [[part(1)]]})  # the answer for a root that never answers
    program.on_message({"index": 0, "listing": [part(40), part(20)]})
    program.on_end(Ending("held:7.0", 0, False, "", ""))
    assert node.marks() == []
    (found,) = node.kept
    assert (found.kind, found.trust, found.where.node, found.where.job) == (Kind.CHECKPOINTS_HELD, Trust.USER, "n1", 7)
    assert [item.step for item in unpack(str(found.data["listing"]))] == [40, 20]
    assert "40, 20" in found.text


def test_a_folder_that_hangs_holds_up_no_epilog(node: Node) -> None:
    node.asked = [watched(LOCAL)]
    node.holding.look({7: JOB})
    node.holding.ended(JOB)
    node.programs[0].on_end(Ending("held:7.0", None, True, "", "D in nfs_wait"))
    assert (node.marks(), node.kept) == ([], [])


def test_half_an_answer_is_told(node: Node) -> None:
    node.asked = [watched(LOCAL, ("local", "/nvme/other"))]
    node.holding.look({7: JOB})
    node.holding.ended(JOB)
    node.programs[0].on_message({"index": 1, "listing": [part(40)]})
    node.programs[0].on_end(Ending("held:7.0", None, True, "", "D"))
    assert [item.step for item in unpack(str(node.kept[0].data["listing"]))] == [40]


def test_when_nothing_can_be_started_nobody_waits(node: Node) -> None:
    node.asked = [watched(LOCAL)]
    node.holding.look({7: JOB})
    node.can_start = False
    node.holding.ended(JOB)
    assert node.marks() == []


def test_a_job_of_which_nothing_is_known_is_not_listed(node: Node) -> None:
    node.holding.ended(JOB)
    assert node.programs == []


def test_an_end_between_two_looks_is_not_missed(node: Node) -> None:
    """The job's file is gone at this look, and that it ended is read at the next."""
    node.asked = [watched(LOCAL)]
    node.holding.look({7: JOB})
    node.asked = []
    node.holding.look({})
    assert node.marks() == ["7.0"]
    node.holding.ended(JOB)
    assert len(node.programs) == 1


def test_marks_of_jobs_that_are_gone_go(node: Node) -> None:
    node.asked = [watched(LOCAL)]
    node.holding.look({7: JOB})
    node.restart()
    node.asked = []
    node.holding.look({})
    assert node.marks() == []
    node.asked = [watched(LOCAL)]
    node.holding.look({7: JOB})
    node.asked = []
    for _ in range(2):
        node.holding.look({})
    assert node.marks() == [], "its epilog never came"
