"""A child that answered stays for the next request of its kind: a start of Python costs more than a listing."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.probe_programs import INVENTORY, probe_command, probe_environment

ANSWERS = """
import sys, json, os
for served, line in enumerate(sys.stdin, 1):
    asked = json.loads(line)
    if asked.get("dies") and served > 1: os._exit(5)
    print(json.dumps({"n": asked["n"], "bytes": len(line), "pid": os.getpid()}), flush=True)
    print(json.dumps({"finished": True, "stays": not asked.get("leaves")}), flush=True)
    if asked.get("leaves"): break
    if asked.get("chatters"): print('{"unasked": 1}', flush=True)
"""


class Asked:
    """Asks one after the other, and waits for each."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._changed = threading.Condition()
        self.messages: list[dict[str, Any]] = []
        self.endings: list[Ending] = []

    def _message(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def _end(self, ending: Ending) -> None:
        with self._changed:
            self.endings.append(ending)
            self._changed.notify_all()

    def begin(
        self, name: str, mark: str = "u", stays_s: float = 60.0, code: str = ANSWERS, **arguments: object
    ) -> None:
        command = [sys.executable, "-S", "-c", code]
        assert self._children.start(
            Program(
                name, command, arguments, silent_s=60.0, shared_by=mark, stays_s=stays_s, most_bytes=4096,
                on_message=self._message, on_end=self._end,
            )
        )  # fmt: skip

    def ended(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.endings) >= count, 60.0), (self.messages, self.endings)

    def answer(self, n: int, **rest: Any) -> int:
        """The process that answered request ``n``."""
        before = len(self.endings)
        self.begin(f"p{n}", n=n, **rest)
        self.ended(before + 1)
        found = [message for message in self.messages if message.get("n") == n]
        assert len(found) == 1 and self.endings[-1].status == 0, (self.messages, self.endings)
        return int(found[0]["pid"])


@pytest.fixture
def asked(children: Children) -> Asked:
    return Asked(children)


def test_the_next_of_its_mark_is_answered_by_the_same_process(asked: Asked, children: Children) -> None:
    first = asked.answer(1)
    assert not children.running("p1")
    assert [asked.answer(n) for n in (2, 3)] == [first, first]
    assert [ending.name for ending in asked.endings] == ["p1", "p2", "p3"]


def test_another_mark_is_another_process(asked: Asked) -> None:
    """The mark is the user: nobody is served by another user's process."""
    assert asked.answer(1) != asked.answer(2, mark="v")


def test_what_does_not_stay_is_not_asked_again(asked: Asked) -> None:
    assert asked.answer(1, leaves=True) != asked.answer(2)
    assert asked.answer(3, stays_s=0.0, mark="w") != asked.answer(4, mark="w")


def test_a_request_waits_for_the_process_that_is_busy(asked: Asked) -> None:
    for n in (1, 2, 3):
        asked.begin(f"p{n}", n=n)
    asked.ended(3)
    pids = {message["pid"] for message in asked.messages if "pid" in message}
    assert [message["n"] for message in asked.messages if "n" in message] == [1, 2, 3] and len(pids) == 1


def test_it_does_not_wait_for_one_that_hangs(asked: Asked, children: Children) -> None:
    code = ANSWERS.replace(
        "asked = json.loads(line)", "asked = json.loads(line); asked.get('hangs') and time.sleep(600)"
    )
    code = code.replace("import sys,", "import time, sys,")
    asked.begin("hangs", code=code, hangs=True)
    assert asked.answer(1, code=code) and children.running("hangs")


def test_what_waits_can_be_stopped(asked: Asked, children: Children) -> None:
    code = "import sys, time\ntime.sleep(600)"
    asked.begin("slow", code=code)
    asked.begin("waits", code=code)
    assert children.running("waits")
    children.stop("waits")
    assert not children.running("waits")


def test_one_that_was_killed_is_replaced(asked: Asked) -> None:
    first = asked.answer(1)
    os.kill(first, signal.SIGKILL)
    assert asked.answer(2) != first


def test_one_that_dies_of_the_next_request_is_replaced_once(asked: Asked) -> None:
    """Its end may come between our look at it and the request: that says nothing of what was asked."""
    first = asked.answer(1)
    assert asked.answer(2, dies=True) != first


def test_one_that_speaks_unasked_is_ended(asked: Asked) -> None:
    first = asked.answer(1, chatters=True)
    until(lambda: not alive(first))
    assert asked.answer(2) != first
    assert not any("unasked" in message for message in asked.messages)


def test_after_its_time_it_is_ended(asked: Asked) -> None:
    first = asked.answer(1, stays_s=0.05)
    until(lambda: not alive(first))
    assert asked.answer(2) != first


def test_a_request_longer_than_the_pipe_is_answered_by_one_that_does_not_stay(asked: Asked) -> None:
    first = asked.answer(1)
    long = asked.answer(2, text="x" * (1 << 20))
    assert long != first and asked.messages[-2]["bytes"] > 1 << 20
    assert asked.answer(3) in (first, long)


def test_all_end_with_the_agent_and_leave_no_files(asked: Asked, children: Children) -> None:
    before = len(os.listdir("/proc/self/fd"))
    pids = {asked.answer(n, mark=str(n)) for n in range(4)}
    assert len(pids) == 4
    children.shut_down()
    until(lambda: not any(map(alive, pids)))
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second: it went between open and read
        return False


def until(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s, "it never came"
        time.sleep(0.02)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """pytest's own folder is closed to other users."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class Lister:
    """The process that lists and moves a user's checkpoints, asked as the agent asks it."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._ended = threading.Semaphore(0)
        self.uid, self.gid = os.getuid() or 65534, os.getgid() or 65534
        self.messages: list[dict[str, Any]] = []
        self.pids: set[int] = set()

    def _heard(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.pids.update(child.process.pid for child in self._children._running.values())

    def ask(self, name: str, **asked: Any) -> None:
        user = {"node": "n1", "uid": self.uid, "gid": self.gid, "deadline_s": 60.0}
        program = Program(
            name, probe_command(INVENTORY), {**user, **asked}, silent_s=60.0, shared_by=str(self.uid), stays_s=60.0,
            environment=probe_environment(), on_message=self._heard, on_end=lambda _: self._ended.release(),
        )  # fmt: skip
        assert self._children.start(program)
        assert self._ended.acquire(timeout=60.0)

    def steps(self, name: str, root: Path) -> set[int]:
        self.messages.clear()
        self.ask(name, level="structural", roots=[{"tier": "local", "path": str(root)}])
        (listing,) = (message["listing"] for message in self.messages if "listing" in message)
        return {part["step"] for part in listing}


def test_the_lister_sees_at_each_request_what_lies_there_now(children: Children, open_to_all: Path) -> None:
    """Nothing is remembered from one listing to the next but the program itself."""
    lister, root = Lister(children), open_to_all / "run"
    (root / "checkpoint-10").mkdir(parents=True)
    assert lister.steps("order:1", root) == {10}
    (root / "checkpoint-20").mkdir()
    assert lister.steps("held:1", root) == {10, 20}
    (root / "checkpoint-10").rmdir()
    assert lister.steps("order:2", root) == {20}
    assert len(lister.pids) == 1


def test_the_process_that_listed_moves_aside_as_well(children: Children, open_to_all: Path) -> None:
    """A restart waits for both, and a start of Python takes twenty times as long as either."""
    lister, root = Lister(children), open_to_all / "runs" / "run"
    for step in (10, 20):
        (root / f"checkpoint-{step}").mkdir(parents=True)
    for folder in (root.parent, root, *root.iterdir()):
        os.chown(folder, lister.uid, lister.gid)
    assert lister.steps("order:1", root) == {10, 20}
    lister.messages.clear()
    lister.ask("order:2", job=7, root=str(root), paths=[f"{root}/checkpoint-20"], steps=[20], reason="torn")
    (answer,) = lister.messages
    assert [source for source, _ in answer["result"]["moved"]] == [f"{root}/checkpoint-20"], answer
    lister.messages.clear()
    lister.ask("order:3", job=7, root=str(root), paths=[f"{root}/checkpoint-30"], steps=[30], reason="torn")
    assert "is not there" in lister.messages[0]["error"]
    assert lister.steps("order:4", root) == {10} and len(lister.pids) == 1
