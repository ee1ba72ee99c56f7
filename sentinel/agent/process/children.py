"""Killable children: every probe runs in one, so that nothing it meets can stop the agent.

A child gets one JSON object on stdin and answers JSON objects, one per line, on stdout. A child that is silent past its
deadline is killed with its whole process group and **never waited for**: one that stands in the kernel (state D) does not
go away, so it is put aside, looked at now and then, and reported. Too many of those, and its probe is not started again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.agent.process.state_files import bug
from sentinel.log import Log
from sentinel.text import json_with_bytes

log = Log()

MAX_LINE_BYTES = 4 << 20
STUCK_LIMIT = 3  # children of one probe that may stand in the kernel before it is left alone
STUCK_AFTER_S = 2.0  # a killed process that is still there after this long stands in the kernel
STOOD_S = 2.0  # a turn that comes so late: we stood still ourselves, and perhaps our children with us


@dataclass(frozen=True)
class Ending:
    """How a child ended. ``status`` is None when it had to be killed and is not gone yet."""

    name: str
    status: int | None
    silent: bool  # killed because it was silent past its deadline
    stderr: str
    where: str  # state and kernel function that it was in when it was killed, for people


@dataclass(frozen=True)
class Program:
    """What to run and within which bounds.

    Attributes:
        arguments: given to it as JSON on stdin.
        silent_s: killed after this long without a line.
        total_s: killed after this long in all; None for a child that streams for ever.
        restart: begun again with growing pauses when it ends.
        most_bytes: of output, after which it is killed; None for a child that streams for ever.
    """

    name: str
    command: Sequence[str]
    arguments: Mapping[str, object] = field(default_factory=dict)
    silent_s: float = 10.0
    total_s: float | None = None
    restart: bool = False
    most_bytes: int | None = None
    environment: Mapping[str, str] | None = None
    on_message: Callable[[dict[str, Any]], None] = lambda _: None
    on_end: Callable[[Ending], None] = lambda _: None


@dataclass
class _Child:
    program: Program
    process: subprocess.Popen[bytes]
    began_s: float
    heard_s: float
    ended_fd: int | None  # readable when the process has ended, whoever still holds its pipes
    buffer: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    open_streams: int = 2
    said_bytes: int = 0

    @property
    def said_too_much(self) -> bool:
        return self.program.most_bytes is not None and self.said_bytes > self.program.most_bytes


class Children:
    """Starts, hears, kills and restarts children from one thread of its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, _Child] = {}
        self._stuck: list[tuple[str, subprocess.Popen[bytes], float, bool]] = []
        self._due: dict[str, tuple[float, Program]] = {}  # to be started again
        self._failures: dict[str, int] = {}
        self._stopped = False
        self._turned_s = clock()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self.on_unkillable: Callable[[str, int, str], None] = lambda _name, _pid, _where: None
        self.on_bug: Callable[[], None] = lambda: None

    # ------------------------------------------------------------------------------------------------ from outside

    def start(self, program: Program) -> bool:
        """Start it unless one of this name is running. False when it runs, or when too many of it stand in the kernel."""
        with self._lock:
            if self._stopped or program.name in self._running:
                return False
            if self.stuck(program.name) >= STUCK_LIMIT:
                log.warning("probe-left-alone", name=program.name)
                return False
            self._due.pop(program.name, None)
            self._spawn(program)
        self.wake()
        return True

    def stop(self, name: str) -> None:
        """Kill the child of this name, if there is one; its ``on_end`` is not called."""
        with self._lock:
            self._due.pop(name, None)
            child = self._running.pop(name, None)
            if child is not None:
                self._kill(child)
        self.wake()

    def running(self, name: str) -> bool:
        with self._lock:
            return name in self._running or name in self._due

    def stuck(self, name: str) -> int:
        with self._lock:
            return sum(1 for other, _, _, _ in self._stuck if other == name)

    def shut_down(self) -> None:
        with self._lock:
            self._stopped = True
            self._due.clear()
            for name in list(self._running):
                self.stop(name)
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it will wake up anyway
            os.write(self._wake_write, b"x")

    def run(self) -> None:
        """The thread: until ``shut_down``."""
        while not self._stopped:
            try:
                self.turn(self._next_s())
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                bug(log, "children")
                self.on_bug()
                time.sleep(0.5)
        end_s = self._clock() + 1.0
        while self._stuck and self._clock() < end_s:  # what was killed last; what stands in the kernel stays behind
            with self._lock:
                self._bury(self._clock())
            time.sleep(0.02)

    # ------------------------------------------------------------------------------------------------ one turn

    def turn(self, timeout_s: float) -> None:
        """Read what there is, kill what is late, start what is due."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_read, 4096)
            elif key.data[1] is not None:
                self._read(*key.data)
        now = self._clock()
        stood_s = now - self._turned_s - timeout_s
        self._turned_s = now
        with self._lock:
            for child in list(self._running.values()):
                if stood_s > STOOD_S:  # stopped, suspended, starved: that they were not heard says nothing of them
                    child.heard_s, child.began_s = min(now, child.heard_s + stood_s), child.began_s + stood_s
                self._judge(child, now)
            self._bury(now)
            for name, (at, program) in list(self._due.items()):
                if at <= now and self.stuck(name) < STUCK_LIMIT:
                    del self._due[name]
                    self._spawn(program)

    def _next_s(self) -> float:
        now = self._clock()
        with self._lock:
            times = [_deadline(child) for child in self._running.values()]
            times += [at for at, _ in self._due.values()]
            times += [now + 1.0] if self._stuck else []
            if any(not child.open_streams for child in self._running.values()):
                times.append(now + 0.02)  # it closed its pipes and is about to end
        return min(30.0, max(0.0, min(times) - now)) if times else 30.0

    def _spawn(self, program: Program) -> None:
        # Its arguments in memory, not in a pipe: a child that never reads them blocks nobody, however long they are.
        given: int | None = None
        try:
            given = os.memfd_create("arguments", os.MFD_CLOEXEC)
            _fill(given, json.dumps(dict(program.arguments)).encode() + b"\n")
            process = subprocess.Popen(
                list(program.command),
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(program.environment) if program.environment is not None else None,
                cwd="/",
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._ended(program, Ending(program.name, 127, False, str(error), ""))
            return
        finally:
            if given is not None:
                os.close(given)
        assert process.stdout is not None and process.stderr is not None
        now = self._clock()
        try:
            ended_fd = os.pidfd_open(process.pid)
        except OSError:  # an old kernel: its end is seen when it closes its pipes
            ended_fd = None
        child = _Child(program, process, now, now, ended_fd)
        self._running[program.name] = child
        if ended_fd is not None:
            self._selector.register(ended_fd, selectors.EVENT_READ, (child, None))
        for stream in (process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (child, stream is process.stdout))

    def _read(self, child: _Child, is_output: bool) -> bool:
        """Take what one pipe has; False when it has nothing now, or will have nothing any more."""
        stream = child.process.stdout if is_output else child.process.stderr
        assert stream is not None
        if stream.closed:
            return False
        try:
            content = os.read(stream.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        except OSError:
            content = b""
        if not content:
            self._selector.unregister(stream)
            stream.close()
            child.open_streams -= 1
        elif is_output:
            child.heard_s = self._clock()
            child.said_bytes += len(content)
            if child.said_too_much:
                child.buffer.clear()
                return False  # killed at the next turn
            child.buffer += content
            self._messages(child)
        else:
            child.errors = (child.errors + content)[-4096:]
        return bool(content)

    def _messages(self, child: _Child) -> None:
        while (end := child.buffer.find(b"\n")) >= 0:
            line = bytes(child.buffer[:end])
            del child.buffer[: end + 1]
            try:
                message = json_with_bytes(line)
            except ValueError:
                message = {"type": "unparsable", "text": line[:200].decode("utf-8", "replace")}
            if isinstance(message, dict) and message:
                child.program.on_message(message)
        if len(child.buffer) > MAX_LINE_BYTES:
            child.buffer.clear()
            child.program.on_message({"type": "unparsable", "text": f"a line longer than {MAX_LINE_BYTES} bytes"})

    def _judge(self, child: _Child, now: float) -> None:
        program = child.program
        status = child.process.poll()
        if child.said_too_much:
            del self._running[program.name]
            self._kill(child)
            reason = f"it said more than {program.most_bytes} bytes"
            self._ended(program, Ending(program.name, None, False, reason, ""))
        elif status is not None:
            for is_output in (True, False):  # what is still in the pipes
                while self._read(child, is_output):
                    continue
            self._forget(child)
            self._running.pop(program.name, None)
            if now - child.began_s > 60:
                self._failures.pop(program.name, None)
            self._ended(program, Ending(program.name, status, False, child.errors.decode("utf-8", "replace"), ""))
        elif now >= _deadline(child):
            where = standing(child.process.pid)
            del self._running[program.name]
            self._kill(child)
            silent = Ending(program.name, None, True, child.errors.decode("utf-8", "replace"), where)
            self._ended(program, silent)

    def _ended(self, program: Program, ending: Ending) -> None:
        if program.restart and not self._stopped:
            failures = self._failures[program.name] = self._failures.get(program.name, 0) + 1
            pause = min(60.0, 0.5 * 2 ** min(failures, 8)) * (0.75 + random.random() / 2)  # noqa: S311
            self._due[program.name] = (self._clock() + pause, program)
        program.on_end(ending)

    def _kill(self, child: _Child) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        self._forget(child)
        self._stuck.append((child.program.name, child.process, self._clock(), False))

    def _forget(self, child: _Child) -> None:
        for stream in (child.process.stdout, child.process.stderr):
            if stream is not None and not stream.closed:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(stream)
                stream.close()
        child.open_streams = 0
        if child.ended_fd is not None:
            self._selector.unregister(child.ended_fd)
            os.close(child.ended_fd)
            child.ended_fd = None

    def _bury(self, now: float) -> None:
        left = []
        for name, process, since_s, reported in self._stuck:
            if process.poll() is not None:
                continue
            if not reported and now - since_s >= STUCK_AFTER_S:
                self.on_unkillable(name, process.pid, standing(process.pid))
                reported = True  # noqa: PLW2901
            left.append((name, process, since_s, reported))
        self._stuck = left


def _fill(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)


def _deadline(child: _Child) -> float:
    silent = child.heard_s + child.program.silent_s
    return silent if child.program.total_s is None else min(silent, child.began_s + child.program.total_s)


def standing(pid: int) -> str:
    """State letter and kernel function of a process, as far as /proc tells, e.g. ``D in rpc_wait_bit_killable``."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
    try:
        function = Path(f"/proc/{pid}/wchan").read_text(errors="replace").strip("\0\n")
    except OSError:
        function = ""
    return f"{state} in {function}" if function not in ("", "0") else state
