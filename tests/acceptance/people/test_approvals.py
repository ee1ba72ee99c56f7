"""Mode suggest on a real Slurm: nothing is done before a person approves it, and nothing of what a person refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stories.timeline import Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

GPU = "gpu_fallen_off_bus"
SUGGEST = {'drain = "act"\nrestart = "act"': 'drain = "suggest"\nrestart = "suggest"'}


def asked(story: Story) -> dict[str, Any]:
    """What people are asked, when they are."""

    def waits() -> list[dict[str, Any]]:
        return [wait for wait in (story.view("status") or {}).get("asked", ()) if wait["kind"] == "approval"]

    until(lambda: len(waits()) == 1, lambda: f"to be asked: {story.daemon_log()[-2000:]}")
    return waits()[0]


def test_a_person_is_asked_and_nothing_is_done_against_the_answer(story: Story):
    story.restart_daemon(SUGGEST)
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "3", "--xid", "79")
    wait = asked(story)
    assert sorted(wait["what"]) == sorted([f"drain {victim}", f"restart {job.id}"])
    until(lambda: story.messages(), lambda: "the request to be told")
    assert f"sentinel approve {wait['incident']}" in story.messages()[0]["operator_text"]

    assert "Waits (approval)" in story.sentinel("why", wait["incident"]).stdout
    story.sentinel("refuse", wait["incident"], "--note", "ticket 7", "--yes")
    until(lambda: story.corrections()[wait["incident"]] == ["asked", "refused"], lambda: str(story.corrections()))
    assert not story.drains() and job.restarts() == 0 and job.state() == "RUNNING"
    assert "ticket 7" in story.sentinel("why", str(job.id)).stdout

    story.sentinel("approve", wait["incident"], "--note", "after all", "--yes")
    story.expect(drains=[victim], restarts=[job], messages=[{"cause": GPU, "stage": "asked", "severity": "critical"}])
    assert victim not in job.nodes_now()
    assert story.corrections()[wait["incident"]] == ["asked", "refused", "restarting", "running again"]
    entries = [json.loads(line) for line in story.sentinel("audit", "--json").stdout.splitlines()]
    answers = [(e["action"], e["why"], e["stage"]) for e in entries if e["action"] in ("approve", "refuse")]
    assert answers[-2:] == [("refuse", "ticket 7", "done"), ("approve", "after all", "done")]
    nothing = story.sentinel("approve", wait["incident"], "--yes", code=None)
    assert nothing.returncode != 0 and "waits for an approval" in nothing.stderr
