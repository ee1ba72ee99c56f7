"""An order is done once, its result is kept until the daemon has it, also over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.collectors.jobs import JobOnNode
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.process.job_owners import Owners
from sentinel.agent.settings import AgentSettings, Slurm
from sentinel.agent.uplink.orders import RESULT_BYTES, Orders
from sentinel.errors import ProtocolError, SentinelError
from sentinel.model.orders import Diagnose
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

    state = tmp_path / "state"
    owners = Owners(AgentSettings(state=str(state)))
    state.mkdir()
    owners.came(JobOnNode(5, 0, 1000, 100, "n1", ""))
    owners.came(JobOnNode(6, 0, 0, 0, "n1", ""))  # root's

    def made(done: Any = lambda *_: None, squeue: str = "squeue") -> tuple[Orders, Any]:
        slurm = Slurm(squeue=squeue, conf="/etc/slurm.conf", deadline_s=3.0)
        return Orders("n1", tmp_path / "o", bench, program, lambda: client, OWN.get, owners, slurm, done), client

    return made


# What the agent itself knows; the attacks below try to set it.
OWN: dict[OrderKind, dict[str, object]] = {
    kind: {"node": "n1", "dcgmi": "/usr/bin/dcgmi", "host": "127.0.0.1:5555", "socket": "", "state": "/var/lib/agent"}
    for kind in OrderKind
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "task_states": {"job": 5},
    "inventory": {"job": 5, "roots": [{"tier": "global", "path": "/a"}], "level": "structural", "before_step": None},
    "quarantine": {
        "job": 5,
        "root": "/a",
        "paths": ["/a/step-1"],
        "steps": [1],
        "reason": "incident i1",
        "chosen": None,
    },
    "ask_job": {"job": 5, "ras": False, "gap_s": 2.5},
    "collected": {"job": 5, "attempt": 0},
    "job_log": {"job": 5, "attempt": 0, "text": "sentinel: attempt 0: user_code; the job is held"},
    "messages_file": {"job": 5},
    "diagnose": {"level": 1, "gpus": None, "yields": False},
}


def order(identity: str = "o1", kind: str = "task_states", **arguments: Any) -> dict[str, Any]:
    return {"id": identity, "kind": kind, "arguments": {**ARGUMENTS[kind], **arguments}, "deadline_s": 9}


def end(
    started: Program, *messages: dict[str, Any], status: int | None = 0, silent: bool = False, stderr: str = ""
) -> None:
    for message in messages:
        started.on_message(message)
    started.on_end(Ending(started.name, status, silent, stderr, "D in rpc_wait" if silent else ""))


def begun(bench: Bench) -> Program:
    """What carries the order out, once Slurm was asked what has to be known before."""
    while bench.programs[-1].command == ["sentinel.agent.probes.ask_slurm"]:
        asked = bench.programs[-1]
        end(asked, {"named": ["/a"]} if "named_on" in asked.arguments else {"owner": {"uid": 1002, "gid": 102}})
        assert bench.programs[-1] is not asked
    return bench.programs[-1]


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


def test_what_a_child_said_before_it_hung_is_its_answer(make: Any, bench: Bench) -> None:
    orders, client = make()
    orders.take(order())
    end(bench.programs[0], {"result": {"tasks": []}}, status=None, silent=True)
    orders.send(client, "o1")
    assert client.asked[0][1]["ok"] is True and client.asked[0][1]["result"] == {"tasks": []}


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
    assert told == [(Diagnose(1, None, yields=False), {"result": "pass"})]


def test_an_id_cannot_leave_its_folder(make: Any, bench: Bench, tmp_path: Path) -> None:
    orders, _ = make()
    orders.take(order("../../../etc/cron.d/x"))
    end(bench.programs[0], {"result": 1})
    assert [path.parent for path in tmp_path.rglob("*.json") if path.name != "owners.json"] == [tmp_path / "o"]


def test_a_job_that_comes_ends_what_yields_to_it(make: Any, bench: Bench) -> None:
    orders, _ = make()
    orders.take(order("o1", "diagnose", level=2, yields=True))
    orders.take(order("o2", "diagnose", level=2, gpus=["GPU-1"]))
    assert orders.give_way() is True
    assert bench.stopped == ["order:o1"], "the other one is for a drained node"
    assert orders._results["o1"]["result"]["result"] == "inconclusive"
    assert "o2" not in orders._results
    assert orders.give_way() is False


def test_where_a_job_is_already_nothing_that_yields_is_begun(make: Any, bench: Bench) -> None:
    orders, _ = make()
    orders.busy = lambda: True
    orders.take(order("o1", "diagnose", level=2, yields=True))
    assert bench.programs == []
    assert "a job goes before it" in orders._results["o1"]["result"]["reason"]


# --- what a daemon that is not itself any more may try --------------------------------------------------------------------


def refused(orders: Orders, client: Any) -> str:
    """What the daemon is told of the only order."""
    orders.send(client, "o1")
    ((_, body),) = client.asked
    assert body["ok"] is False and body["result"] is None
    return str(body["error"])


ATTACKS: list[tuple[str, dict[str, Any]]] = [
    ("diagnose", {"dcgmi": "/tmp/evil"}),
    ("diagnose", {"host": "evil:5555"}),
    ("diagnose", {"socket": "/tmp/evil"}),
    ("diagnose", {"stop": True}),
    ("collected", {"state": "/home/evil"}),
    ("collected", {"node": "n2"}),
    ("inventory", {"uid": 0, "gid": 0}),
    ("inventory", {"uid": 1001}),
    ("inventory", {"limit": 10**9}),
    ("quarantine", {"uid": 0}),
    ("quarantine", {"gid": 0}),
    ("ask_job", {"uid": 0}),
    ("ask_job", {"gid": 42}),
    ("task_states", {"uid": 0}),
]


@pytest.mark.parametrize(("kind", "more"), ATTACKS)
def test_an_order_sets_nothing_of_the_agents_own(make: Any, bench: Bench, kind: str, more: dict[str, Any]) -> None:
    orders, client = make()
    orders.take(order(kind=kind, **more))
    assert bench.programs == []
    said = refused(orders, client)
    assert kind in said and next(iter(more)) in said and "known here" in said
    assert orders.refused == 1
    client.asked.clear()
    orders.take(order("o2", kind))
    assert len(bench.programs) == 1, "it goes on"


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("inventory", {"roots": [{"tier": "local", "path": "../etc"}]}),
        ("inventory", {"roots": [{"tier": "local", "path": "/data/../etc"}]}),
        ("inventory", {"roots": [{"tier": "local", "path": "/data", "uid": 0}]}),
        ("quarantine", {"root": "/data/../etc"}),
        ("quarantine", {"paths": ["etc/shadow"]}),
        ("quarantine", {"steps": []}),
        ("quarantine", {"steps": [1, 2]}),
        ("diagnose", {"gpus": ["--iterations=9"]}),
        ("diagnose", {"level": "1; id"}),
        ("collected", {"job": "../../../etc"}),
        ("collected", {"job": True}),
    ],
)
def test_values_beyond_their_bounds_are_refused(make: Any, bench: Bench, kind: str, more: dict[str, Any]) -> None:
    orders, client = make()
    orders.take(order(kind=kind, **more))
    assert bench.programs == []
    assert next(iter(more)) in refused(orders, client)


@pytest.mark.parametrize("kind", list(OrderKind))
def test_what_is_the_agents_own_comes_last(make: Any, bench: Bench, kind: OrderKind) -> None:
    """Also if a key of an order should one day have the name of a setting."""
    orders, _ = make()
    orders.take(order(kind=str(kind)))
    started = begun(bench)
    own = {**OWN[kind], "node": "n1", "deadline_s": started.arguments["deadline_s"], "order": "o1"}
    assert {name: started.arguments[name] for name in own} == own and 0 < own["deadline_s"] <= 9
    assert not set(own) & set(ARGUMENTS[str(kind)])


@pytest.mark.parametrize("kind", ["inventory", "quarantine", "ask_job"])
def test_files_are_touched_as_whom_roots_own_record_names(make: Any, bench: Bench, kind: str) -> None:
    orders, _ = make()
    orders.take(order(kind=kind))
    started = begun(bench)
    assert (started.arguments["uid"], started.arguments["gid"]) == (1000, 100)


@pytest.mark.parametrize("kind", ["inventory", "quarantine", "ask_job"])
def test_what_is_roots_is_not_touched(make: Any, bench: Bench, kind: str) -> None:
    orders, client = make()
    orders.take(order(kind=kind, job=6))
    assert bench.programs == []
    assert "job 6 is root's" in refused(orders, client)


def test_a_job_that_is_not_here_is_not_asked(make: Any, bench: Bench) -> None:
    orders, client = make()
    orders.take(order(kind="ask_job", job=77))
    assert bench.programs == []
    assert refused(orders, client) == "job 77 does not run and did not lately run on this node"


@pytest.mark.parametrize("kind", ["inventory", "quarantine"])
def test_whose_a_job_is_that_was_never_here_slurm_says(make: Any, bench: Bench, kind: str) -> None:
    orders, _ = make()
    orders.take(order(kind=kind, job=77))
    (asked,) = bench.programs
    assert asked.command == ["sentinel.agent.probes.ask_slurm"]
    assert asked.arguments == {"job": 77, "squeue": "squeue", "conf": "/etc/slurm.conf", "deadline_s": 3.0}
    started = begun(bench)
    assert (started.arguments["uid"], started.arguments["gid"], started.arguments["job"]) == (1002, 102, 77)
    assert 0 < started.arguments["deadline_s"] <= 9


@pytest.mark.parametrize(
    ("messages", "named"),
    [([{"named": ["/a"]}], ["/a"]), ([{"named": None}], None), ([{"error": "no"}], None), ([], None)],
)
def test_which_folders_a_job_names_is_asked_as_root_before_anything_runs_as_the_user(
    make: Any, bench: Bench, messages: list[dict[str, Any]], named: list[str] | None
) -> None:
    """What the agent executes as a user that user may take over."""
    orders, _ = make()
    orders.take(order(kind="quarantine"))
    (asked,) = bench.programs
    assert asked.command == ["sentinel.agent.probes.ask_slurm"] and "uid" not in asked.arguments
    assert (asked.arguments["job"], asked.arguments["named_on"], asked.arguments["deadline_s"]) == (5, "n1", 3.0)
    end(asked, *messages)
    started = bench.programs[1].arguments
    assert (started["uid"], started["named"]) == (1000, named)
    assert not {"squeue", "conf"} & set(started) and 0 < started["deadline_s"] <= 9


def test_where_slurm_may_not_be_asked_what_an_order_names_counts(make: Any, bench: Bench) -> None:
    make(squeue="")[0].take(order(kind="quarantine"))
    (started,) = bench.programs
    assert (started.arguments["uid"], started.arguments["named"]) == (1000, None)


@pytest.mark.parametrize(
    ("messages", "silent", "words"),
    [
        ([{"owner": {"uid": 0, "gid": 0}}], False, "root's"),
        ([{"error": "Slurm does not know it"}], False, "did not lately run on this node, and whose it is"),
        ([], True, "no answer within 3 s"),
    ],
)
def test_a_job_that_nobody_knows_is_refused(
    make: Any, bench: Bench, messages: list[dict[str, Any]], silent: bool, words: str
) -> None:
    orders, client = make()
    orders.take(order(kind="inventory", job=77))
    end(bench.programs[0], *messages, status=None if silent else 0, silent=silent)
    assert len(bench.programs) == 1
    assert words in refused(orders, client)
    assert orders.refused == 1


def test_a_flood_of_orders_starts_no_flood_of_children(make: Any, bench: Bench) -> None:
    orders, client = make()
    for number in range(300):
        orders.take(order(f"o{number}"))
    assert len(bench.programs) == 128 and orders.refused == 172
    end(bench.programs[0], {"result": 1})
    orders.send(client, "o0")
    orders.take(order("o299"))
    assert len(bench.programs) == 129, "it goes on as results are taken"


def test_a_site_may_forbid_that_slurm_is_asked(make: Any, bench: Bench) -> None:
    orders, client = make(squeue="")
    orders.take(order(kind="inventory", job=77))
    assert bench.programs == []
    assert "did not lately run" in refused(orders, client)


def refusing(error: SentinelError, takes_errors: bool) -> Any:
    def answer(_path: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["id"] == "o1" and not (takes_errors and not body["ok"]):
            raise error
        return {}

    return answer


@pytest.mark.parametrize("takes_errors", [True, False])
def test_a_result_that_the_daemon_does_not_take_holds_up_no_other(make: Any, bench: Bench, takes_errors: bool) -> None:
    orders, client = make()
    error = ProtocolError("too much")
    error.signed = True
    client.answer = refusing(error, takes_errors)
    for name in ("o1", "o2"):
        orders.take(order(name))
        end(bench.programs[-1], {"result": "x"})
    orders.send(client, "o1")
    orders.send(client, "o2")
    assert orders._unsent == [] and orders.given_up == 1
    first, again, second = (body for path, body in client.asked if path == ORDER_RESULT)
    assert (first["ok"], again["ok"], again["result"], second["ok"]) == (True, False, None, True)
    assert "too much" in again["error"]


def test_a_result_is_kept_for_an_answer_that_says_nothing_about_it(make: Any, bench: Bench) -> None:
    orders, client = make()
    client.answer = refusing(ProtocolError("not of the daemon"), False)
    orders.take(order())
    end(bench.programs[-1], {"result": "x"})
    with pytest.raises(ProtocolError):
        orders.send(client, "o1")
    assert orders._unsent == ["o1"] and orders.given_up == 0


def test_a_result_without_end_is_replaced_by_an_error(make: Any, bench: Bench) -> None:
    orders, client = make()
    orders.take(order())
    end(bench.programs[0], {"result": {"rings": "x" * (RESULT_BYTES + 1)}})
    orders.send(client, "o1")
    (body,) = (body for path, body in client.asked if path == ORDER_RESULT)
    assert not body["ok"] and str(RESULT_BYTES) in body["error"] and orders.given_up == 1


@pytest.mark.parametrize("listings", [5, "x", None, {"a": 1}])
def test_a_child_that_lists_nonsense_is_an_answer(make: Any, bench: Bench, listings: Any) -> None:
    """It may run as the user whose job is asked; what is never finished would be under way for ever."""
    orders, client = make()
    orders.take(order(kind="inventory"))
    end(bench.programs[0], {"listings": listings}, {"index": 0, "listing": []})
    orders.send(client, "o1")
    assert not client.asked[-1][1]["ok"] and not orders._running


def test_a_child_that_talks_without_end_fills_no_memory(make: Any, bench: Bench) -> None:
    """It may run as the user whose job is asked."""
    orders, client = make()
    orders.take(order())
    (started,) = bench.programs
    assert started.most_bytes == 16 << 20
    end(started, *({"said": number} for number in range(5000)), {"result": "last"})
    orders.send(client, "o1")
    assert client.asked[-1][1]["result"] == "last"
    assert started.on_message.__closure__ is not None
    kept = [cell.cell_contents for cell in started.on_message.__closure__ if isinstance(cell.cell_contents, list)]
    assert [len(one) for one in kept] == [1024]
