"""How a drained node comes back on a real Slurm: reset, tested and returned by Sentinel, or kept out for repair."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from stories.lab_nodes import diagnosable, script_diagnostic
from stories.timeline import Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

MEMORY = ("--gpu", "0", "--xid", "48")  # of which a reset of the GPU, then a reboot, is asked for
# Looked at with every snapshot, and tested as soon as the job is gone.
SOON = {"look_s = 1.0": "settled_s = 1.0\nlook_s = 1.0", "[slurm]\n": "[slurm]\nreconcile_s = 2\n"}


@pytest.fixture
def tested(fresh: Story) -> Iterator[Story]:
    with diagnosable(fresh):
        yield fresh


def allow(story: Story, **commands: str) -> None:
    """The site's commands, as lines of shell; a failure is tried again after 2 s."""
    lines = [f"{name} = {json.dumps(['sh', '-c', line, '{node}'])}" for name, line in commands.items()]
    how = ["[returns]", "automatic = true", "command_s = 3", "retry_s = 2", *lines]
    story.restart_daemon({**SOON, "[recovery]\n": "\n".join([*how, "", "[recovery]\n"])})


def calls(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def stage(story: Story, node: str) -> dict[str, object]:
    seen = story.view("nodes")
    rows = {row["node"]: row["return"] for row in seen["nodes"]} if seen is not None else {}
    return rows.get(node) or {}


def test_a_node_is_reset_tested_and_returned_and_not_to_the_job_that_it_hurt(tested: Story, tmp_path: Path):
    story, made = tested, tmp_path / "resets"
    allow(story, reset_command=f'echo "$0" >> {shlex.quote(str(made))}')
    job = story.job(2)
    node = job.nodes[1]
    story.inject("xid", "--node", node, *MEMORY)
    story.expect(drains=[node], restarts=[job], returns=[node], messages=["gpu_memory_ecc"])
    assert calls(made) == [node]
    levels = [line.split("level=")[1][0] for line in story.daemon_log().splitlines() if "return-test-ordered" in line]
    assert levels == ["1", "2", "3"]
    told = story.sentinel("why", node).stdout
    assert stage(story, node)["stage"] == "probation"
    assert f"{node} is idle" in told and f"on probation, kept from job {job.id}" in told
    # Another node breaks under the same job: it is given a third one, and not the one on probation.
    second = job.nodes_now()[0]
    story.inject("xid", "--node", second, *MEMORY)
    story.expect(drains=[second], restarts=[job], messages=["gpu_memory_ecc"])
    assert not {node, second} & set(job.nodes_now())


def test_commands_that_hang_and_fail_lead_to_repair_with_a_bundle_and_a_ticket(tested: Story, tmp_path: Path):
    story, made, ticket = tested, tmp_path / "calls", tmp_path / "ticket"
    said = shlex.quote(str(made))
    allow(
        story,
        reset_command=f"echo reset >> {said}; sleep 600",
        reboot_command=f"echo reboot >> {said}; echo no such machine >&2; exit 4",
        ticket_command=f"cat > {shlex.quote(str(ticket))}",
    )
    job = story.job(2)
    node = job.nodes[0]
    story.inject("xid", "--node", node, *MEMORY)
    story.expect(drains=[node], restarts=[job], messages=["gpu_memory_ecc", {"stage": "repair", "node": node}])
    assert calls(made) == ["reset", "reboot"] and stage(story, node)["stage"] == "repair"
    until(lambda: ticket.exists() and ticket.read_text(), "the ticket")
    told = json.loads(ticket.read_text())
    assert told["node"] == node and told["failures"] == 2 and "no such machine" in told["failed"]
    assert story.sentinel("bundle", node, "--out", str(tmp_path / "bundle")).stdout
    story.settle(5)
    assert node in story.drained_now() and calls(made) == ["reset", "reboot"]


def test_a_test_that_fails_twice_leads_to_repair_and_a_person_may_still_release_it(tested: Story):
    story = tested
    allow(story, reset_command="true", reboot_command="true")
    job = story.job(2)
    node = job.nodes[1]
    broken = {"test": "memory", "gpu": 0, "code": 52, "severity": 2, "category": 10, "text": "memory test failed"}
    script_diagnostic(story, node, errors=[broken])
    story.inject("xid", "--node", node, *MEMORY)
    story.expect(drains=[node], restarts=[job], messages=["gpu_memory_ecc"])
    until(lambda: "memory test failed" in str(stage(story, node).get("failed")), lambda: f"{stage(story, node)}")
    story.sentinel("release", node, "--yes")
    story.expect(returns=[node])
    assert stage(story, node) == {}
