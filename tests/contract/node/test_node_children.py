"""Children of the agent are real processes here: silent ones are killed, stuck ones left behind, crashed ones restarted."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.process import children as module
from sentinel.agent.process.children import Children, Ending, Program


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


class Heard:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.endings: list[Ending] = []
        self.changed = threading.Condition()

    def message(self, message: dict[str, Any]) -> None:
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()

    def end(self, ending: Ending) -> None:
        with self.changed:
            self.endings.append(ending)
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, seconds), (self.messages, self.endings)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def program(heard: Heard, code: str, **rest: Any) -> Program:
    return Program("p", python(code), on_message=heard.message, on_end=heard.end, **rest)


def test_arguments_go_in_messages_come_out(children: Children, heard: Heard) -> None:
    code = (
        "import sys,json\n"
        "print(json.dumps({'got': json.loads(sys.stdin.readline())})); print('nonsense'); sys.stderr.write('bye')"
    )
    children.start(program(heard, code, arguments={"x": 1}))
    heard.until(lambda: bool(heard.endings))
    assert heard.messages[0] == {"got": {"x": 1}}
    assert heard.messages[1]["type"] == "unparsable"
    assert (heard.endings[0].status, heard.endings[0].stderr, heard.endings[0].silent) == (0, "bye", False)


def test_a_silent_child_is_killed_with_all_its_own(children: Children, heard: Heard) -> None:
    code = (
        "import subprocess,sys,json,time,signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "p=subprocess.Popen(['sleep','77'])\n"
        "print(json.dumps({'pid':p.pid}),flush=True)\n"
        "time.sleep(77)\n"
    )
    children.start(program(heard, code, silent_s=4.0))
    heard.until(lambda: bool(heard.endings))
    assert heard.endings[0].silent
    assert heard.endings[0].where.startswith("S")
    grandchild = heard.messages[0]["pid"]
    until(lambda: module.standing(grandchild)[:1] in ("", "Z"))


def test_words_keep_a_child_alive(children: Children, heard: Heard) -> None:
    code = "import time\nfor n in range(20): print('{\"n\":%d}'%n, flush=True); time.sleep(0.25)"
    children.start(program(heard, code, silent_s=4.0))
    heard.until(lambda: bool(heard.endings))
    assert not heard.endings[0].silent
    assert len(heard.messages) == 20


def test_a_child_is_not_silent_for_the_time_in_which_we_stood_still_ourselves(heard: Heard) -> None:
    """The agent was stopped, or its whole machine: what its probes did not say meanwhile is no hung driver."""
    now_s = 100.0
    made = Children(lambda: now_s)

    def turns(*spans_s: float) -> None:
        nonlocal now_s
        for span_s in spans_s:
            now_s += span_s
            made.turn(0.0)

    made.start(program(heard, "import time; time.sleep(60)", silent_s=10.0, total_s=30.0))
    try:
        turns(*[1.0] * 5, 600.0, *[1.0] * 4)
        assert heard.endings == []
        turns(1.0, 1.0)
        assert [ending.silent for ending in heard.endings] == [True]
    finally:
        made.shut_down()
        until(lambda: (made.turn(0.0), not made._stuck)[1])


def test_words_do_not_lengthen_the_deadline_of_all(children: Children, heard: Heard) -> None:
    code = "import time\nwhile True: print('{\"n\":1}', flush=True); time.sleep(0.1)"
    children.start(program(heard, code, silent_s=5, total_s=1.0))
    heard.until(lambda: bool(heard.endings))
    assert heard.endings[0].silent


def test_one_of_a_name_at_a_time(children: Children, heard: Heard) -> None:
    assert children.start(program(heard, "import time; time.sleep(60)", silent_s=60))
    assert not children.start(program(heard, "pass"))
    children.stop("p")
    assert children.start(program(heard, "print('{\"ok\":1}')"))
    heard.until(lambda: heard.messages == [{"ok": 1}])


def test_a_crashed_child_comes_back_with_pauses(children: Children, heard: Heard) -> None:
    children.start(program(heard, "raise SystemExit(3)", restart=True))
    heard.until(lambda: len(heard.endings) >= 2)
    assert {ending.status for ending in heard.endings} == {3}
    assert children.running("p")


class OnOurClock:
    """Children whose turns are taken here, by a clock that is set here."""

    def __init__(self, heard: Heard) -> None:
        self.now_s, self.heard = 1000.0, heard
        self.children = Children(clock=lambda: self.now_s)

    def passes(self, seconds: float) -> None:
        """In steps so short that nobody seems to have stood still."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s = min(end_s, self.now_s + module.STOOD_S)
            self.children.turn(0.0)

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(400):
            if condition():
                return
            self.children.turn(0.05)
        raise AssertionError((self.heard.messages, self.heard.endings))


@pytest.fixture
def timed(heard: Heard) -> Iterator[OnOurClock]:
    made = OnOurClock(heard)
    yield made
    made.children.shut_down()
    made.children.run()  # until those that were killed are gone


LONGEST_FIRST_PAUSE_S = 1.25


def test_one_that_worked_before_it_fell_silent_comes_back_soon_each_time(
    timed: OnOurClock, heard: Heard, tmp_path: Path
) -> None:
    word = tmp_path / "word"
    code = (
        "import os, time\n"
        "print('{\"began\": true}', flush=True)\n"
        f"while not os.path.exists({str(word)!r}): time.sleep(0.01)\n"
        f"os.unlink({str(word)!r})\n"
        "print('{\"works\": true}', flush=True)\n"
        "time.sleep(1000)"
    )
    timed.children.start(program(heard, code, silent_s=100.0, restart=True))
    for times in range(1, 6):
        timed.until(lambda times=times: heard.messages.count({"began": True}) == times)  # type: ignore[misc]
        timed.passes(90.0)
        word.touch()
        timed.until(lambda times=times: heard.messages.count({"works": True}) == times)  # type: ignore[misc]
        timed.passes(101.0)
        assert [ending.silent for ending in heard.endings] == [True] * times
        timed.passes(LONGEST_FIRST_PAUSE_S)


def test_one_that_never_worked_comes_back_later_each_time(timed: OnOurClock, heard: Heard) -> None:
    timed.children.start(program(heard, "import time; time.sleep(1000)", silent_s=100.0, restart=True))
    ends_s: list[float] = []
    while len(ends_s) < 5:
        timed.passes(module.STOOD_S)
        ends_s += [timed.now_s] * (len(heard.endings) - len(ends_s))
    assert ends_s[4] - ends_s[3] > ends_s[1] - ends_s[0] >= 100.0


def test_one_that_is_stopped_and_started_again_has_no_failures_behind_it(timed: OnOurClock, heard: Heard) -> None:
    made = program(heard, "raise SystemExit(3)", silent_s=1e6, restart=True)
    timed.children.start(made)
    for times in range(1, 6):
        timed.until(lambda times=times: len(heard.endings) >= times)  # type: ignore[misc]
        timed.passes(60.0)
    timed.children.stop("p")
    before = len(heard.endings)
    timed.children.start(made)
    timed.until(lambda: len(heard.endings) == before + 1)
    timed.passes(LONGEST_FIRST_PAUSE_S)
    timed.until(lambda: len(heard.endings) == before + 2)


def test_one_that_is_stopped_for_its_last_message_does_not_come_back(
    children: Children, heard: Heard, tmp_path: Path
) -> None:
    """It ends by itself at that moment, so the message is read when its end is seen already."""
    go = tmp_path / "go"

    def message(said: dict[str, Any]) -> None:
        if "pid" in said:
            go.touch()  # it says its last word and ends, while we are busy with its first one
            os.waitid(os.P_PID, said["pid"], os.WEXITED | os.WNOWAIT)
        else:
            children.stop("p")
        heard.message(said)

    code = (
        "import os, time\n"
        "print('{\"pid\": %d}' % os.getpid(), flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        'print(\'{"type": "done"}\', flush=True)'
    )
    children.start(Program("p", python(code), on_message=message, on_end=heard.end, silent_s=60, restart=True))
    heard.until(lambda: len(heard.messages) == 2)
    children.start(Program("q", python("print('{}')"), on_end=heard.end))
    heard.until(lambda: any(ending.name == "q" for ending in heard.endings))  # a turn later
    assert not children.running("p") and [ending.name for ending in heard.endings] == ["q"]


def test_a_command_that_is_not_there_is_an_ending(children: Children, heard: Heard) -> None:
    children.start(Program("p", ["/nowhere/program"], on_end=heard.end))
    heard.until(lambda: bool(heard.endings))
    assert heard.endings[0].status == 127


def test_a_grandchild_that_holds_the_pipe_does_not_hold_us(children: Children, heard: Heard) -> None:
    code = "import subprocess; subprocess.Popen(['sleep','100']); print('{\"n\":1}', flush=True)"
    children.start(program(heard, code, silent_s=90))
    heard.until(lambda: bool(heard.endings), 80)
    assert heard.endings[0].status == 0


def test_a_child_that_does_not_die_is_left_behind_and_reported(
    children: Children, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in state D ignores SIGKILL; here the kill is kept from it, which looks the same from outside."""
    told: list[tuple[Program, int, str]] = []
    children.on_unkillable = lambda *what: told.append(what)
    monkeypatch.setattr(module, "STUCK_AFTER_S", 0.2)
    kill = os.killpg
    monkeypatch.setattr(module.os, "killpg", lambda *_: None)
    stuck: list[int] = []
    for number in range(module.STUCK_LIMIT):
        assert children.start(program(heard, "import time; time.sleep(60)", silent_s=0.3))
        heard.until(lambda wanted=number + 1: len(heard.endings) == wanted)  # type: ignore[misc]
    assert children.stuck("p") == module.STUCK_LIMIT
    assert not children.start(program(heard, "pass")), "no fourth one on top"
    until(lambda: len(told) == module.STUCK_LIMIT)
    stuck = [pid for _, pid, _ in told]
    assert len(set(stuck)) == module.STUCK_LIMIT
    for pid in stuck:
        kill(pid, signal.SIGKILL)
    until(lambda: children.wake() or not children.stuck("p"))
    assert children.start(program(heard, "pass")), "and again when they are gone"


def test_nothing_is_left_over(children: Children, heard: Heard) -> None:
    before, zombies = len(os.listdir("/proc/self/fd")), ended()
    for number in range(20):
        children.start(program(heard, "print('{\"n\":1}')"))
        heard.until(lambda wanted=number + 1: len(heard.endings) == wanted)  # type: ignore[misc]
    until(lambda: len(os.listdir("/proc/self/fd")) <= before and ended() <= zombies)
    assert len(heard.endings) == 20


def ended() -> set[str]:
    """Children of ours that ended and were not waited for: other tests may have some."""
    asked = ["ps", "--ppid", str(os.getpid()), "-o", "stat=,pid="]
    lines = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    return {line.split()[1] for line in lines if line.strip().startswith("Z")}


def until(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s, "it never came"
        time.sleep(0.05)


def test_no_files_left_is_an_ending_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    ended: list[Ending] = []
    children = Children()
    assert children.start(Program("probe", ["true"], on_end=ended.append))
    assert [(one.status, one.silent) for one in ended] == [(127, False)] and "Too many open files" in ended[0].stderr


def test_a_child_that_says_too_much_is_killed(children: Children) -> None:
    heard = Heard()
    endless = python("import sys\nwhile True: sys.stdout.write('{\"x\": 1}\\n')")
    children.start(Program("talks", endless, most_bytes=1 << 20, on_message=heard.message, on_end=heard.end))
    heard.until(lambda: heard.endings)
    assert "more than 1048576 bytes" in heard.endings[0].stderr and not children.running("talks")
    assert len(heard.messages) <= (1 << 20) / 9 + 1
