"""The receiver that writes into a job's log: asks the agent of the first node, and troubles nobody when it cannot."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_records import AT

from sentinel.daemon.effects.job_logs import JobLogs
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.delivery import is_for_log
from sentinel.errors import Timeout, Unavailable
from sentinel.log import Log
from sentinel.model.records import Notice

LINE = "sentinel: attempt 1: user_code; the job is held"


def notice(**changes: object) -> Notice:
    return Notice("1", "i", AT, "t", "b", {"job": 7, "attempt": 1, "log_text": LINE, **changes})


class Agents:
    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.asked = error, list[tuple[str, str, Mapping[str, object]]]()

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        self.asked.append((node, str(kind), arguments))
        if self.error is not None:
            raise self.error
        return {"written": True}


def sent(agents: Agents, what: Notice) -> None:
    live = SimpleNamespace(attempts={(7, 1): SimpleNamespace(nodes=("n3", "n4")), (8, 0): SimpleNamespace(nodes=())})
    logs = JobLogs(cast(Any, agents), cast(ClusterView, live), Log(io.StringIO()), deadline_s=1.0)
    asyncio.run(logs.send(what))


def test_the_agent_of_the_first_node_is_asked() -> None:
    agents = Agents()
    sent(agents, notice())
    assert agents.asked == [("n3", "job_log", {"job": 7, "attempt": 1, "text": LINE})]


@pytest.mark.parametrize("error", [Unavailable("not connected"), Timeout("late")])
def test_a_log_that_cannot_be_written_is_no_undelivered_message(error: Exception) -> None:
    agents = Agents(error)
    sent(agents, notice())
    assert len(agents.asked) == 1


@pytest.mark.parametrize("changes", [{"job": None}, {"job": 9}, {"job": 8, "attempt": 0}, {"log_text": ""}])
def test_nobody_is_asked_without_a_log(changes: dict[str, object]) -> None:
    agents = Agents()
    sent(agents, notice(**changes))
    assert agents.asked == []


def test_only_messages_with_a_line_for_the_log_go_there() -> None:
    assert (
        is_for_log(notice())
        and not is_for_log(notice(log_text=""))
        and not is_for_log(Notice("1", "i", AT, "t", "b", {}))
    )
