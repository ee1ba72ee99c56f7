"""Records of the agent's children: what to run, how it ended, one that runs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_LEAST_S = 0.1  # of time that is left to a program


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
        shared_by: programs of one command and mark may be one process, which answers them one after the other.
        stays_s: how long such a process waits for the next one.
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


@dataclass
class Child:
    """One that runs, or waits for its next request."""

    program: Program
    process: subprocess.Popen[bytes]
    began_s: float
    heard_s: float
    ended_fd: int | None  # readable when the process has ended, whoever still holds its pipes
    buffer: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    open_streams: int = 2
    said_bytes: int = 0
    feed: int | None = None  # where the next request is written; None for one that takes no other
    finished: bool = False  # it has answered, and would take another request
    staying: bool = False  # it waits for one, until then:
    until_s: float = 0.0
    unasked: bool = False  # it spoke or closed its pipes while it waited
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
    """The same with so much of its time gone."""
    total_s = program.total_s if program.total_s is None else max(_LEAST_S, program.total_s - by_s)
    return replace(program, silent_s=max(_LEAST_S, program.silent_s - by_s), total_s=total_s)
