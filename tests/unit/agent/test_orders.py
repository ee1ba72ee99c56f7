"""An order is done once, its result is kept until the daemon has it, also over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.children import Ending, Program
from sentinel.agent.orders import Orders
from sentinel.protocol import ORDER_RESULT, OrderKind


class Bench:
    """Stands in for the children: programs are kept, the test ends them."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.stopped: list[str] = []

    def stop(self, name: str) -> None:
        self.stopped.append(name)

    def start(self, program: Program) -> bool:
        self.programs.append(program)
        return True


def program(name: str, module: str, arguments: Any, **rest: Any) -> Program:
    return Program(name, [module], arguments, **rest)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def make(tmp_path: Path, bench: Bench, scripted: Any) -> Any:
    client = scripted(lambda *_: {})

    def made(done: Any = lambda *_: None) -> tuple[Orders, Any]:
        return Orders("n1", tmp_path, bench, program, lambda: client, lambda _: {"node": "n1"}, done), client

    return made


def order(identity: str = "o1", kind: str = "task_states", **arguments: Any) -> dict[str, Any]:
    return {"id": identity, "kind": kind, "arguments": {"job": 5, **arguments}, "deadline_s": 9}


def end(
    started: Program, *messages: dict[str, Any], status: int | None = 0, silent: bool = False, stderr: str = ""
) -> None:
    for message in messages:
        started.on_message(message)
    started.on_end(Ending(started.name, status, silent, stderr, "D in rpc_wait" if silent else ""))


def test_an_order_runs_in_a_child_with_its_deadline(make: Any, bench: Bench) -> None:
    orders, client = make()
    orders.take(order())
    (started,) = bench.programs
    assert started.command == ["sentinel.agent.probes.tasks"]
    assert (started.total_s, started.arguments["job"], started.arguments["node"]) == (9, 5, "n1")
    end(started, {"result": {"tasks": []}})
    orders.send(client, "o1")
    assert client.asked == [
        (ORDER_RESULT, {"node": "n1", "id": "o1", "ok": True, "result": {"tasks": []}, "error": ""})
    ]


def test_given_again_it_is_not_done_again(make: Any, bench: Bench) -> None:
    orders, client = make()
    orders.take(order())
    orders.take(order())
    end(bench.programs[0], {"result": 1})
    orders.take(order())
    assert len(bench.programs) == 1
    orders.send(client, "o1")
    orders.take(order())
    assert len(bench.programs) == 1
    assert orders._unsent == ["o1"], "its result is sent again"


def test_a_result_outlives_the_agent(make: Any, bench: Bench) -> None:
    orders, _ = make()
    orders.take(order())
    end(bench.programs[0], {"result": {"moved": []}})
    after, client = make()
    assert after._unsent == ["o1"]
    after.take(order())
    assert len(bench.programs) == 1
    after.send(client, "o1")
    assert client.asked[0][1]["result"] == {"moved": []}
    last, _ = make()
    assert last._unsent == []


def test_a_child_that_is_killed_is_an_answer(make: Any, bench: Bench) -> None:
    orders, client = make()
    orders.take(order())
    end(bench.programs[0], status=None, silent=True)
    orders.send(client, "o1")
    assert client.asked[0][1]["ok"] is False
    assert "D in rpc_wait" in client.asked[0][1]["error"]


def test_a_child_that_fails_is_an_answer(make: Any, bench: Bench) -> None:
    orders, client = make()
    orders.take(order())
    end(bench.programs[0], status=1, stderr="PermissionError: no")
    orders.send(client, "o1")
    assert "PermissionError" in client.asked[0][1]["error"]


def test_roots_that_answered_are_kept_when_another_hangs(make: Any, bench: Bench) -> None:
    orders, client = make()
    orders.take(order(kind="inventory"))
    unseen = [[{"root": "/a", "valid": None}], [{"root": "/b", "valid": None}]]
    end(bench.programs[0], {"listings": unseen}, {"index": 0, "listing": [{"step": 3}]}, status=None, silent=True)
    orders.send(client, "o1")
    body = client.asked[0][1]
    assert body["ok"] is True
    assert body["result"] == {"listings": [[{"step": 3}], [{"root": "/b", "valid": None}]]}


@pytest.mark.parametrize(
    "bad", [{"kind": "reboot"}, {"kind": "inventory", "arguments": 7}, {"deadline_s": "soon"}, {"kind": None}]
)
def test_an_order_that_is_not_understood_is_refused_by_an_answer(make: Any, bench: Bench, bad: dict[str, Any]) -> None:
    orders, _ = make()
    orders.take({**order(), **bad})
    assert bench.programs == []
    assert orders._results["o1"]["ok"] is False


@pytest.mark.parametrize("bad", [None, 3, {}, {"id": 7}])
def test_what_is_no_order_is_passed_over(make: Any, bench: Bench, bad: Any) -> None:
    orders, _ = make()
    orders.take(bad)
    assert bench.programs == []


def test_results_are_told(make: Any, bench: Bench) -> None:
    told: list[Any] = []
    orders, _ = make(lambda *what: told.append(what))
    orders.take(order(kind="diagnose"))
    end(bench.programs[0], {"result": {"result": "pass"}})
    assert told[0][0] is OrderKind.DIAGNOSE
    assert told[0][2] == {"result": "pass"}


def test_an_id_cannot_leave_its_folder(make: Any, bench: Bench, tmp_path: Path) -> None:
    orders, _ = make()
    orders.take(order("../../../etc/cron.d/x"))
    end(bench.programs[0], {"result": 1})
    assert [path.parent for path in tmp_path.rglob("*.json")] == [tmp_path]


def test_a_job_that_comes_ends_what_yields_to_it(make: Any, bench: Bench) -> None:
    orders, _ = make()
    orders.take({"id": "o1", "kind": "diagnose", "arguments": {"level": 2, "gpus": None, "yields": True}})
    orders.take({"id": "o2", "kind": "diagnose", "arguments": {"level": 2, "gpus": ["GPU-1"]}})
    assert orders.give_way() is True
    assert bench.stopped == ["order:o1"], "the other one is for a drained node"
    assert orders._results["o1"]["result"]["result"] == "inconclusive"
    assert "o2" not in orders._results
    assert orders.give_way() is False


def test_where_a_job_is_already_nothing_that_yields_is_begun(make: Any, bench: Bench) -> None:
    orders, _ = make()
    orders.busy = lambda: True
    orders.take({"id": "o1", "kind": "diagnose", "arguments": {"level": 2, "yields": True}})
    assert bench.programs == []
    assert "a job goes before it" in orders._results["o1"]["result"]["reason"]
