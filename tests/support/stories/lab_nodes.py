"""Nodes of a lab otherwise than ``lab up`` makes them: agents with further settings, GPUs whose diagnostics can be run."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lab import gpus

from stories.timeline import ROOT, Story, until


def agents_with(story: Story, text: str) -> None:
    """All agents with a further section in their files, or more of one that is there."""
    head, _, rest = text.partition("\n")
    for node in story.paths.names:
        path = story.lab.dir / "nodes" / node / "sentinel.toml"
        before = path.read_text(encoding="utf-8")
        there = f"\n{head}\n" in before
        after = before.replace(f"\n{head}\n", f"\n{head}\n{rest}") if there else f"{before}\n{text}"
        path.write_text(after, encoding="utf-8")
        story.stop_agent(node, 15)
        story.start_agent(node)
    story.wait_agents()


@contextmanager
def diagnosable(story: Story, look_s: float = 1.0, retry_s: float = 1.0) -> Iterator[None]:
    """Diagnostics can be run on all nodes, and suspects are looked for all the time.

    The command is the lab's ``dcgmi``; its host engine is this test, which is only asked whether it listens.
    """
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as engine:
        engine.daemon_threads = True
        threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        command = ROOT / "deploy" / "lab" / "fake_dcgm" / "dcgmi"
        agents_with(story, f'[dcgm]\ndcgmi = "{command}"\nhost = "127.0.0.1:{engine.server_address[1]}"\n')
        story.restart_daemon({"[recovery]\n": f"[diagnostics]\nlook_s = {look_s}\nretry_s = {retry_s}\n\n[recovery]\n"})
        try:
            yield
        finally:
            engine.shutdown()


def script_diagnostic(story: Story, node: str, **script: Any) -> None:
    """What a diagnostic of that node finds from now on; see ``deploy/lab/fake_dcgm/README.md``."""

    def edit(state: dict[str, Any]) -> None:
        state["diag"] = script

    gpus.change(story.paths, node, edit)


def checkup(story: Story, node: str) -> dict[str, Any]:
    """What Sentinel shows of a node's diagnostics: since when it is suspect, when it passed."""
    seen = story.view("nodes")
    rows = {row["node"]: row["diagnostic"] for row in seen["nodes"]} if seen is not None else {}
    return dict(rows.get(node, {"suspect": "not known"}))


def wait_checkup(story: Story, node: str, right: Callable[[dict[str, Any]], object]) -> None:
    until(lambda: right(checkup(story, node)), lambda: f"{checkup(story, node)}\n{story.daemon_log()[-3000:]}")


@contextmanager
def set_aside(story: Story, nodes: str) -> Iterator[None]:
    """These nodes are reserved, as a person does it who wants to look at them; what runs there goes on."""
    slurm = story.lab.slurm
    window = ["StartTime=now", "Duration=60", f"Users={story.paths.spec.user}", "Flags=ignore_jobs"]
    slurm("scontrol", "create", "reservation", "ReservationName=aside", f"Nodes={nodes}", *window)
    for name in nodes.split(","):
        until(lambda name=name: "RESERVED" in slurm("scontrol", "show", "node", name), f"{name} to be reserved")
    try:
        yield
    finally:
        slurm("scontrol", "delete", "ReservationName=aside")
