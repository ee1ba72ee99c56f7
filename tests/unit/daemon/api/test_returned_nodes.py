"""What is said of a node that an operator returned: whether it answers Slurm, where that is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from in_memory.daemon import Daemon, commands_of
from in_memory.views import Shown
from in_memory.world import World

from sentinel.daemon.api.status import responds_to_slurm
from sentinel.model.records import NodeView
from sentinel.wire import to_json

Worlds = Callable[..., World]


async def test_release_of_a_node_that_does_not_answer_says_so(world: Worlds) -> None:
    shown = Shown(world())
    daemon, made = shown.daemon, commands_of(shown.daemon)
    shown.world.slurm.person_drains("n1", "sentinel: fan")
    shown.world.slurm.nodes["n1"].silent = True
    daemon.live.node("n1").state = "unreachable"
    (row,) = (await shown("nodes", node="n1"))["nodes"]
    assert (row["responds"], row["agent"], row["released"]) == (False, "unreachable", None)
    answer = await made.make("release", {"node": "n1"}, 0)
    assert answer == {
        "node": "n1", "drained": False, "state": "not responding", "responds": False, "agent": "unreachable",
    }  # fmt: skip
    at = to_json(shown.world.slurm.clock.now())
    assert (await shown("why", what="n1"))["node"]["released"] == {"at": at, "by": "root"}
    assert (await shown("nodes", node="n2"))["nodes"][0]["released"] is None
    (after, *_) = [item.entry.after for item in shown.world.store.audit() if item.entry.stage == "done"]
    assert after == {"drained": False, "state": "not responding", "responds": False}


@pytest.mark.parametrize(("state", "flags", "responds"), [
    ("idle", set(), True), ("idle", {"drain", "not_responding"}, False), ("down", {"not_responding"}, False),
    ("down", set(), None), ("unknown", set(), None),
])  # fmt: skip
def test_whether_a_node_answers_slurm(state: str, flags: set[str], responds: bool | None) -> None:
    """A node that is set down may answer: Slurm says nothing of it."""
    assert responds_to_slurm(NodeView(name="n1", state=state, flags=frozenset(flags))) is responds


@pytest.mark.parametrize(("down", "responds", "state"), [(False, True, "idle"), (True, None, "idle")])
async def test_a_node_that_slurm_asks_anew_is_not_said_to_be_silent(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, down: bool, responds: bool | None, state: str
) -> None:
    """Slurm shows each node that it resumes as not responding until its next answer, less than a second later."""
    there = world()
    slurm, undrain = there.slurm, there.slurm.undrain
    slurm.person_drains("n3", "sentinel: fan")
    slurm.nodes["n3"].down = down

    async def asked_anew(node: str) -> None:
        await undrain(node)
        slurm.nodes[node].silent = True

    monkeypatch.setattr(slurm, "undrain", asked_anew)
    answer = await commands_of(Daemon(there)).make("release", {"node": "n3"}, 0)
    assert (answer["responds"], answer["state"]) == (responds, state)
