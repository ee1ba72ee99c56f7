"""CONTRIBUTING's page "What happens when a GPU fails" names the files that a failure passes: no more, none less.

An Xid goes from a kernel log in a file through a real agent, over HTTP, through the daemon's server, engine and effects to
Slurm in memory and a webhook. A file is passed when one of its functions is on the call stack while a record that carries
the failure is made (evidence, incident, verdict, plan, outcome, notice), or leaves for another process or the store.
"""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from in_memory.server import NODE, serving
from in_memory.world import World

from sentinel.adapters.notify import webhook
from sentinel.agent.agent import Agent
from sentinel.agent.settings import AgentSettings, Kernel

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = f"{REPOSITORY}/sentinel/"
XID = "NVRM: Xid (PCI:0000:5d:00): 79, pid=1234, name=python, GPU has fallen off the bus."
RECORDS = {"Evidence", "Incident", "Verdict", "Plan", "Outcome", "Notice"}
LEAVES = {
    ("adapters/host/kmsg.py", "_record"),
    ("adapters/spool.py", "append"),
    ("adapters/client.py", "post"),
    ("adapters/store/store.py", "commit"),
    ("adapters/slurm/writer.py", "drain"),
    ("adapters/slurm/writer.py", "requeue"),
    ("adapters/notify/webhook.py", "send"),
}
# Shapes and codec are everywhere; the simulated parts stand for what is outside.
NOT_PASSED = ("model/", "wire.py", "simulate/")
MOST = 30


class Passed:
    """The files that the failure passes."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_filename == "<string>" and code.co_name == "__init__":
            made_by = frame.f_back
            altered = made_by is not None and made_by.f_code.co_name == "replace"  # one field of a record that was made
            if type(frame.f_locals.get("self")).__name__ in RECORDS and not altered:
                self._note(made_by)
        elif (code.co_filename.removeprefix(ROOT), code.co_name) in LEAVES:
            self._note(frame)

    def _note(self, frame: FrameType | None) -> None:
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(ROOT) and not name.removeprefix(ROOT).startswith(NOT_PASSED):
                self.files.add("sentinel/" + name.removeprefix(ROOT))
            frame = frame.f_back


@contextmanager
def tracing() -> Iterator[Passed]:
    passed = Passed()
    threading.setprofile(passed.called)
    sys.setprofile(passed.called)
    try:
        yield passed
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def named() -> list[str]:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text()
    page = text.partition("## What happens when a GPU fails\n")[2].partition("\nOther ways:")[0]
    return re.findall(r"`(sentinel/[\w/]+\.py)`", page)


async def test_contributing_names_the_files_that_a_failure_passes(
    world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    async def post(_url: str, body: bytes, _headers: object, **_: object) -> None:
        told.append(body.decode())

    monkeypatch.setattr(webhook, "post", post)
    kmsg = tmp_path / "kmsg"
    kmsg.touch()
    there = world()
    async with serving(there, sinks=[webhook.Webhook("http://pager/", deadline_s=5.0)]) as served:
        settings = AgentSettings(
            node="n1", url=served.url, run_dir=str(tmp_path), state=str(tmp_path), kernel=Kernel(path=str(kmsg))
        )
        agent = Agent(settings, served.signers[NODE])
        source, _ = agent.kernel._open()
        kmsg.write_text(f"4,1,{int(time.monotonic() * 1e6)},-;{XID}\n")
        await served.daemon.start()
        with tracing() as passed:
            assert agent.kernel.turn(source) == 1
            await asyncio.get_running_loop().run_in_executor(None, agent.sender.send_batch)
            agent.sender._client.close()  # else the server waits for its next request
            await served.daemon.quiet()
        source.close()
        agent.sender.stop()
    assert "running again" in told[-1] and there.slurm.nodes["n1"].drained and served.daemon.bugs() == 0
    assert set(named()) == passed.files
    assert len(passed.files) <= MOST
