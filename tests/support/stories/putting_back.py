"""Everything as before a story: no job, no fault, no drained node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stories.witnesses import until


def put_back(story: Any, settings: str | None) -> None:
    """``settings``: of the daemon, as they were before; None when the story left them alone."""
    from lab import cluster

    slurm = story.lab.slurm
    if story.jobs:
        left = slurm("squeue", "-h", "-o", "%A").split()
        if left:
            slurm("scancel", *left)
        until(lambda: not slurm("squeue", "-h", "-o", "%i").strip(), lambda: f"no job left: {slurm('squeue')}")
    faults = sorted({fault["fault"] for fault in cluster.faults_now(story.paths)})
    undo = [f"inject.undo(lab, ALL[{name!r}], None, as_json=True)" for name in faults]
    if undo:
        story.call_lab("; ".join(["from lab import inject; from lab.faults import ALL", *undo]))
    reboot(story, [name for name in story.paths.names if (_state_of(story, name) / "convictions.json").exists()])
    for name in sorted(story.drained_now()):
        slurm("scontrol", "update", f"NodeName={name}", "State=RESUME")
    if settings is not None:
        (story.lab.dir / "etc" / "sentinel.toml").write_text(settings, encoding="utf-8")
        story.restart_daemon()
    states = lambda: slurm("sinfo", "-h", "-N", "-o", "%N %T").splitlines()  # noqa: E731
    until(lambda: all(line.split()[1] == "idle" for line in states()), lambda: f"all nodes idle: {states()}")
    story.wait_agents()


def reboot(story: Any, names: Sequence[str]) -> None:
    """See ``Story.reboot``."""
    from lab import processes

    for name in names:
        if processes.known(story.paths, f"agent-{name}") is not None:
            story.stop_agent(name, 15)
        (_state_of(story, name) / "convictions.json").unlink()
    if names:
        story.call_lab(f"[services.start_agent(lab, name) for name in {list(names)!r}]")
        verdicts = [story.paths.node(name) / "run" / "verdict" for name in names]
        until(lambda: not any("BAD" in story.read(path) for path in verdicts), "good nodes")


def _state_of(story: Any, name: str) -> Path:
    return Path(story.paths.node(name)) / "agent-state"
