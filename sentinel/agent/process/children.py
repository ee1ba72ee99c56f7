"""Runs probes in killable child processes, so that a probe that hangs cannot stop the agent.

A child gets one JSON object on stdin and answers JSON objects, one per line, on stdout. A child that is silent past its
deadline is killed with its whole process group and **never waited for**: one that is stuck in the kernel (state D) does
not exit, so it is set aside, polled now and then, and reported. A probe with too many stuck children is not started
again.

A program with ``shared_by`` may say ``{"finished": true, "stays": true}`` instead of ending: its process then waits,
and takes the next request with the same command and the same ``shared_by``.
"""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sentinel.agent.process.child import Child, Ending, Program, deadline_of, fill, kind_of, request_of, shortened
from sentinel.log import Log
from sentinel.text import is_deep, json_with_bytes

__all__ = ["Children", "Ending", "Program"]

log = Log()

MAX_LINE_BYTES = 4 << 20
REQUEST_BYTES = (
    32 << 10
)  # largest request to a waiting child: half of what a pipe holds, so that the write never blocks
QUEUED_S = 2.0  # how long a request waits for a busy process: starting another one takes as long
STUCK_LIMIT = 3  # children of one probe stuck in the kernel at which it is not started again
STUCK_AFTER_S = 2.0  # a killed process that exists for longer counts as stuck in the kernel
WORKED_S = 60.0  # one that worked for longer than the longest pause has no failures behind it
STOOD_S = 2.0  # a turn this late: the agent itself was stopped, and perhaps its children too


class Children:
    """Starts, reads, kills and restarts children, in one thread of its own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, Child] = {}
        self._staying: dict[tuple[str, ...], Child] = {}  # by ``shared_by`` and command
        self._stuck: list[tuple[Program, subprocess.Popen[bytes], float, bool]] = []
        self._queued: dict[str, tuple[float, Program]] = {}  # by name: since when it waits for a busy process
        self._due: dict[str, tuple[float, Program]] = {}  # by name: when it is started again
        self._failures: dict[str, int] = {}
        self._stopped = False
        self._turned_s = clock()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self.on_unkillable: Callable[[Program, int, str], None] = lambda _program, _pid, _where: None
        self.on_bug: Callable[[], None] = lambda: None

    # ------------------------------------------------------------------------------------------------ for other threads

    def start(self, program: Program) -> bool:
        """Start a program. False if one of this name is running, or too many of them are stuck in the kernel."""
        with self._lock:
            if self._stopped or program.name in self._running or program.name in self._queued:
                return False
            if self.stuck(program.name) >= STUCK_LIMIT:
                log.warning("probe-left-alone", name=program.name)
                return False
            self._due.pop(program.name, None)
            if program.stays_s and self._busy(program):
                self._queued[program.name] = (self._clock(), program)
            elif not self._hand_over(program):
                self._spawn(program)
        self.wake()
        return True

    def stop(self, name: str) -> None:
        """Kill the child of this name, if there is one; its ``on_end`` is not called."""
        with self._lock:
            self._due.pop(name, None)
            self._queued.pop(name, None)
            self._failures.pop(name, None)
            child = self._running.pop(name, None)
            if child is not None:
                self._kill(child)
        self.wake()

    def running(self, name: str) -> bool:
        with self._lock:
            return name in self._running or name in self._due or name in self._queued

    def stuck(self, name: str) -> int:
        with self._lock:
            return sum(1 for other, _, _, _ in self._stuck if other.name == name)

    def shut_down(self) -> None:
        with self._lock:
            self._stopped = True
            self._due.clear()
            self._queued.clear()
            for name in list(self._running):
                self.stop(name)
            self._end_staying(lambda _: True)
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it will wake up anyway
            os.write(self._wake_write, b"x")

    def run(self) -> None:
        """The thread's loop, until ``shut_down``."""
        while not self._stopped:
            try:
                self.turn(self._next_s())
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                log.bug("children")
                self.on_bug()
                time.sleep(0.5)
        end_s = self._clock() + 1.0
        while self._stuck and self._clock() < end_s:  # wait for children just killed, not for stuck ones
            with self._lock:
                self._bury(self._clock())
            time.sleep(0.02)

    # ------------------------------------------------------------------------------------------------ one turn

    def turn(self, timeout_s: float) -> None:
        """Read available output, kill children that are late, start those that are due."""
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
                if stood_s > STOOD_S:  # we were stopped, suspended or starved: their silence proves nothing
                    child.heard_s, child.began_s = min(now, child.heard_s + stood_s), child.began_s + stood_s
                self._judge(child, now)
            self._dequeue(now)
            self._end_staying(lambda child: child.until_s <= now or child.unasked or child.process.poll() is not None)
            self._bury(now)
            for name, (at, program) in list(self._due.items()):
                if at <= now and self.stuck(name) < STUCK_LIMIT:
                    del self._due[name]
                    self._spawn(program)

    def _next_s(self) -> float:
        now = self._clock()
        with self._lock:
            times = [deadline_of(child) for child in self._running.values()]
            times += [at for at, _ in self._due.values()]
            times += [since_s + QUEUED_S for since_s, _ in self._queued.values()]
            times += [child.until_s for child in self._staying.values()]
            times += [now + 1.0] if self._stuck else []
            if any(not child.open_streams for child in self._running.values()):
                times.append(now + 0.02)  # it closed its pipes and will exit soon
        return min(30.0, max(0.0, min(times) - now)) if times else 30.0

    def _spawn(self, program: Program) -> None:
        request = request_of(program)
        given: int | None = None
        feed: int | None = None
        try:
            if program.stays_s and len(request) <= REQUEST_BYTES:
                given, feed = os.pipe()
                os.set_blocking(feed, False)
                os.write(feed, request)
            else:  # in a memory file, not a pipe: long arguments block nobody, even if the child never reads
                given = os.memfd_create("arguments", os.MFD_CLOEXEC)
                fill(given, request)
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
            if feed is not None:
                os.close(feed)
            self._ended(program, Ending(program.name, 127, False, str(error), ""))
            return
        finally:
            if given is not None:
                os.close(given)
        assert process.stdout is not None and process.stderr is not None
        now = self._clock()
        try:
            ended_fd = os.pidfd_open(process.pid)
        except OSError:  # no pidfd on an old kernel: the end is noticed when the pipes close
            ended_fd = None
        child = Child(program, process, now, now, ended_fd, feed=feed)
        self._running[program.name] = child
        if ended_fd is not None:
            self._selector.register(ended_fd, selectors.EVENT_READ, (child, None))
        for stream in (process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (child, stream is process.stdout))

    def _read(self, child: Child, is_output: bool) -> bool:
        """Read what one pipe has; False when it has nothing now or is closed."""
        stream = child.process.stdout if is_output else child.process.stderr
        assert stream is not None
        with self._lock:
            if child.staying:
                child.unasked = True
                return False  # killed at the end of this turn
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

    def _messages(self, child: Child) -> None:
        while not child.finished and (end := child.buffer.find(b"\n")) >= 0:
            line = bytes(child.buffer[:end])
            del child.buffer[: end + 1]
            try:
                message = json_with_bytes(line)
                if is_deep(line, message):
                    raise ValueError("nested too deeply")
            except ValueError:
                message = {"type": "unparsable", "text": line[:200].decode("utf-8", "replace")}
            if isinstance(message, dict) and message:
                child.program.on_message(message)
                child.finished = child.feed is not None and message.get("stays") is True
        if len(child.buffer) > MAX_LINE_BYTES:
            child.buffer.clear()
            child.program.on_message({"type": "unparsable", "text": f"a line longer than {MAX_LINE_BYTES} bytes"})

    def _busy(self, program: Program) -> bool:
        """Whether a process that may take this request works on another one."""
        kind = kind_of(program)
        return any(child.feed is not None and kind_of(child.program) == kind for child in self._running.values())

    def _dequeue(self, now: float) -> None:
        """Start queued requests whose process is free or gone, or is busy for so long that it may hang."""
        for name, (since_s, program) in list(self._queued.items()):
            if now - since_s >= QUEUED_S or not self._busy(program):
                del self._queued[name]
                left = shortened(program, now - since_s)
                if not self._hand_over(left):
                    self._spawn(left)

    def _hand_over(self, program: Program) -> bool:
        """Give the request to a waiting process, if there is one; whether it took it."""
        request = request_of(program)
        child = self._staying.pop(kind_of(program), None) if len(request) <= REQUEST_BYTES else None
        if child is None or child.feed is None:
            return False
        try:
            if child.unasked or child.process.poll() is not None or os.write(child.feed, request) < len(request):
                raise BlockingIOError
        except OSError:  # it ended, or does not read
            self._kill(child)
            return False
        child.program, child.reused, child.finished, child.staying = program, True, False, False
        child.began_s = child.heard_s = self._clock()
        child.said_bytes, child.errors = 0, bytearray()
        self._running[program.name] = child
        return True

    def _stay(self, child: Child, now: float) -> None:
        """Keep a child that has answered for the next request. Output before that request is unasked and ends it."""
        program = child.program
        del self._running[program.name]
        child.staying, child.until_s, child.unasked = True, now + program.stays_s, bool(child.buffer)
        before = self._staying.pop(kind_of(program), None)
        if before is not None:
            self._kill(before)
        self._staying[kind_of(program)] = child
        self._ended(program, Ending(program.name, 0, False, child.errors.decode("utf-8", "replace"), ""))

    def _end_staying(self, over: Callable[[Child], bool]) -> None:
        for kind, child in list(self._staying.items()):
            if over(child):
                del self._staying[kind]
                self._kill(child)

    def _judge(self, child: Child, now: float) -> None:
        program = child.program
        status = child.process.poll()
        if child.said_too_much:
            del self._running[program.name]
            self._kill(child)
            reason = f"it said more than {program.most_bytes} bytes"
            self._worked(child, now)
            self._ended(program, Ending(program.name, None, False, reason, ""))
        elif status is not None:
            for is_output in (True, False):  # read what is left in the pipes
                while self._read(child, is_output):
                    continue
            self._forget(child)
            if self._running.get(program.name) is not child:
                return  # stopped because of its last output
            del self._running[program.name]
            if child.reused and not child.said_bytes:  # it was ending already when it got the request
                self._spawn(program)
                return
            self._worked(child, now)
            self._ended(program, Ending(program.name, status, False, child.errors.decode("utf-8", "replace"), ""))
        elif child.finished:
            self._stay(child, now)
        elif now >= deadline_of(child):
            where = standing(child.process.pid)
            del self._running[program.name]
            self._kill(child)
            self._worked(child, child.heard_s)
            self._ended(program, Ending(program.name, None, True, child.errors.decode("utf-8", "replace"), where))

    def _worked(self, child: Child, until_s: float) -> None:
        """Forget failures before this child, if it worked for long."""
        if until_s - child.began_s > WORKED_S:
            self._failures.pop(child.program.name, None)

    def _ended(self, program: Program, ending: Ending) -> None:
        if program.restart and not self._stopped:
            failures = self._failures[program.name] = self._failures.get(program.name, 0) + 1
            pause = min(60.0, 0.5 * 2 ** min(failures, 8)) * (0.75 + random.random() / 2)  # noqa: S311
            self._due[program.name] = (self._clock() + pause, program)
        program.on_end(ending)

    def _kill(self, child: Child) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        self._forget(child)
        self._stuck.append((child.program, child.process, self._clock(), False))

    def _forget(self, child: Child) -> None:
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
        if child.feed is not None:
            os.close(child.feed)
            child.feed = None

    def _bury(self, now: float) -> None:
        left = []
        for program, process, since_s, reported in self._stuck:
            if process.poll() is not None:
                continue
            if not reported and now - since_s >= STUCK_AFTER_S:
                self.on_unkillable(program, process.pid, standing(process.pid))
                reported = True  # noqa: PLW2901
            left.append((program, process, since_s, reported))
        self._stuck = left


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
