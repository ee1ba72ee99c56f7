"""What people see: each command, its JSON and its exit status, before, during and after a failure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stories.timeline import Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]


def rows(story: Story, *command: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in story.sentinel(*command, "--json").stdout.splitlines()]


def test_commands_after_a_recovery(story: Story):
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "3", "--xid", "79")
    (told,) = story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    name = told["incident"]

    everybody = {"heard": len(story.paths.names)}  # on a busy machine one may just be late
    status = until(lambda: [row for row in rows(story, "status") if row["agents"] == everybody], "all agents")[0]
    assert status["slurm"]["answers"] is True and status["paused"] is False
    assert status["drained_by_us"] == [victim]
    assert sum(status["nodes"].values()) == len(story.paths.names)
    assert name in {row["id"] for row in status["recent_incidents"]}
    assert status["open_incidents"] == []
    assert victim in story.sentinel("status").stdout

    nodes = {row["node"]: row for row in rows(story, "nodes")}
    assert sorted(nodes) == sorted(story.paths.names)
    assert nodes[victim]["state"] in ("drained", "draining")
    assert nodes[victim]["reason"].startswith(f"sentinel:{name}")
    assert nodes[victim]["failures_30d"] >= 1
    assert [row["node"] for row in rows(story, "nodes", victim)] == [victim]
    assert name in story.sentinel("nodes", victim).stdout
    assert "no node" in story.sentinel("nodes", "n99", code=2).stderr

    attempts = rows(story, "jobs", str(job.id))
    assert sorted(row["attempt"] for row in attempts) == [0, 1]
    newest = next(row for row in attempts if row["attempt"] == 1)
    assert newest["state"] == "running"
    assert newest["first_step"] is None or newest["first_step"] > (job.resumed()[0] or 0)  # None: not yet read
    assert job.id in {row["job"] for row in rows(story, "jobs")}

    (incident,) = rows(story, "incidents", "--job", str(job.id))
    assert (incident["id"], incident["cause"], incident["state"]) == (name, "gpu_fallen_off_bus", "closed")
    assert incident["culprit_nodes"] == [victim]

    (why,) = rows(story, "why", name)
    done = [step["kind"] for step in why["steps"]]
    assert done == [
        "drain",
        "requeue_hold",
        "choose_checkpoint",
        "quarantine",
        "write_resume",
        "exclude",
        "release",
        "confirm",
    ]
    assert {step["result"] for step in why["steps"]} == {"done"}
    assert why["verdict"]["culprits"]["gpus"] == [f"{victim}:3"]
    assert any("Xid" in ground["evidence"]["text"] for ground in why["verdict"]["grounds"])
    shown = story.sentinel("why", name[:6]).stdout
    assert "fallen off the bus" in shown and "Would change it" in shown
    assert "not known" in story.sentinel("why", "ffffffffff", code=2).stderr

    by = rows(story, "history", "--by", "node")
    assert next(row["failures"] for row in by if row["key"] == victim) >= 1
    assert {row["by"] for row in rows(story, "history")} >= {"node", "job", "user", "cause"}

    checks: dict[str, str] = {}

    def well() -> bool:
        said = story.sentinel("doctor", "--json", code=None).stdout.splitlines()
        checks.update({row["what"]: row["answer"] for row in map(json.loads, said)})
        return set(checks.values()) <= {"good", "not known"}

    until(well, lambda: f"all to be well: {checks}")
    assert checks["Slurm"] == checks["MUNGE"] == checks["daemon"] == checks["agents"] == "good"


def test_draining_and_releasing_by_hand(story: Story):
    shown = story.sentinel("drain", "n2", "--reason", "fan is loud", stdin="n\n", code=1)
    assert "n2 is idle" in shown.stdout
    assert story.drains() == {}
    (answer,) = rows(story, "drain", "n2", "--reason", "fan is loud", "--yes")
    assert (answer["node"], answer["drained"], answer["before"]) == ("n2", True, None)
    story.expect(drains=["n2"])
    assert "fan is loud" in story.lab.slurm("sinfo", "-h", "-N", "-n", "n2", "-o", "%E")
    (answer,) = rows(story, "release", "n2", "--yes")
    assert (answer["node"], answer["drained"]) == ("n2", False)
    story.expect(returns=["n2"])
    assert "not drained" in story.sentinel("release", "n2", "--yes", code=4).stderr
    assert "no node" in story.sentinel("drain", "n99", "--reason", "x", "--yes", code=2).stderr


def test_without_a_daemon_every_command_says_what_to_do(story: Story):
    story.kill_daemon()
    for command in (
        ["status"],
        ["nodes"],
        ["jobs"],
        ["incidents"],
        ["why", "x"],
        ["history"],
        ["release", "n1", "--yes"],
    ):
        said = story.sentinel(*command, code=3)
        assert "is the daemon running?" in said.stderr, said.stderr
    checks = {
        row["what"]: row for row in map(json.loads, story.sentinel("doctor", "--json", code=1).stdout.splitlines())
    }
    assert checks["daemon"]["answer"] == "bad"
    assert checks["Slurm"]["answer"] == "good"
    story.start_daemon()
    story.wait_agents()
