"""Records about the agent's child processes: the program to run, a running child, and how a child ended."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_LEAST_S = 0.1  # shortest time limit given to a program


@dataclass(frozen=True)
class Ending:
    """How a child ended. ``status``: exit status; None if it was killed and has not exited yet."""

    name: str
    status: int | None
    silent: bool  # killed because it was silent past its deadline
    stderr: str
    where: str  # process state and kernel function when it was killed, as text


@dataclass(frozen=True)
class Program:
    """A program to run and its limits.

    Attributes:
        arguments: passed as JSON on stdin.
        silent_s: it is killed after this many seconds without a line of output.
        total_s: it is killed after this many seconds in all; None for a child that streams for ever.
        restart: start it again, with growing pauses, when it ends.
        most_bytes: it is killed after this much output; None for a child that streams for ever.
        shared_by: programs with the same command and the same value here share a process, which serves one at a time.
        stays_s: how many seconds such a process waits for its next request before it is ended.
    """

    name: str
    command: Sequence[str]
    arguments: Mapping[str, object] = field(default_factory=dict)
    silent_s: float = 10.0
    total_s: float | None = None
    restart: bool = False
    most_bytes: int | None = None
    shared_by: str = ""
    stays_s: float = 0.0
    environment: Mapping[str, str] | None = None
    on_message: Callable[[dict[str, Any]], None] = lambda _: None
    on_end: Callable[[Ending], None] = lambda _: None

    @property
    def of_user(self) -> bool:
        """Whether it works as a job's user, who can stop it, or hang it for ever with a file system of their own (FUSE)."""
        return "uid" in self.arguments


@dataclass
class Child:
    """A child process that runs, or waits for its next request."""

    program: Program
    process: subprocess.Popen[bytes]
    began_s: float
    heard_s: float
    ended_fd: int | None  # pidfd: readable when the process has ended, even if another one holds its pipes
    buffer: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    open_streams: int = 2
    said_bytes: int = 0
    feed: int | None = None  # pipe for the next request; None if it takes no other
    finished: bool = False  # it has answered and can take another request
    staying: bool = False  # it waits for a request, at most until:
    until_s: float = 0.0
    unasked: bool = False  # it wrote output or closed its pipes while it waited
    reused: bool = False

    @property
    def said_too_much(self) -> bool:
        return self.program.most_bytes is not None and self.said_bytes > self.program.most_bytes


def kind_of(program: Program) -> tuple[str, ...]:
    return (program.shared_by, *program.command)


def request_of(program: Program) -> bytes:
    return json.dumps(dict(program.arguments)).encode() + b"\n"


def fill(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)


def deadline_of(child: Child) -> float:
    silent = child.heard_s + child.program.silent_s
    return silent if child.program.total_s is None else min(silent, child.began_s + child.program.total_s)


def shortened(program: Program, by_s: float) -> Program:
    """The program with its time limits reduced by ``by_s``."""
    total_s = program.total_s if program.total_s is None else max(_LEAST_S, program.total_s - by_s)
    return replace(program, silent_s=max(_LEAST_S, program.silent_s - by_s), total_s=total_s)
