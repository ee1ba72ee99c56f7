"""A child that does not die: what hangs a child of the node is the node's word, what hangs a user's is the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.agent import agent as module
from sentinel.agent.agent import Agent
from sentinel.agent.settings import AgentSettings
from sentinel.model.records import Evidence, Trust


class NoCredentials:
    def encode(self, payload: bytes) -> str:
        raise AssertionError("nothing is sent")


@pytest.mark.parametrize(
    ("arguments", "trust"), [({"uid": 1001, "gid": 1001}, Trust.USER), ({"path": "/data"}, Trust.SYSTEM)]
)
def test_whose_word_a_child_is_that_does_not_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, object], trust: Trust
) -> None:
    kept: list[Evidence] = []
    monkeypatch.setattr(module.Agent, "keep", lambda _, evidence: kept.append(evidence))
    settings = AgentSettings(node="n1", url="http://127.0.0.1:1", run_dir=str(tmp_path), state=str(tmp_path))
    agent = Agent(settings, NoCredentials())  # type: ignore[arg-type]
    agent.children.on_unkillable(agent.program("log:7.0", "joblog", arguments), 4711, "D in fuse_dev_do_write")
    assert [item.trust for item in kept] == [trust]
