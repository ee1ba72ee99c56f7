"""A small language for stories of a lab, which counts.

    with Story(lab) as story:
        job = story.job(nodes=2)
        story.inject("xid", "--node", job.nodes[1], "--gpu", "3", "--xid", "79")
        story.expect(drains=[job.nodes[1]], restarts=[job], messages=["gpu_fallen_off_bus"])

``expect`` adds to what the story expects, waits until all of it is there and the daemon has nothing open, and then counts:
exactly these drains, returns, restarts, holds and messages since the story began, not one more. The witnesses are Slurm's
own words (slurmctld's log for every change of a node, ``sinfo``, ``scontrol show job``), the job's log and the webhook
receiver's file. Sentinel is asked only whether it is still busy.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from stories.job import SAVED, START, STEP, Job
from stories.putting_back import put_back, reboot
from stories.witnesses import OURS, PATIENCE_S, NodeChange, node_changes, our_drains, until

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "deploy"))

from lab import inject, layout, processes  # noqa: E402 - the lab is no part of the package
from lab.__main__ import parser  # noqa: E402
from lab.faults.base import ranks_of  # noqa: E402 - stories that stop ranks themselves

SETTLE_S = 1.5  # after everything is there: a second drain or message would come in the same breath
_START = (
    "import sys; from pathlib import Path; from lab import layout, services; lab = layout.load(Path(sys.argv[1]))\n"
)
_numbers = itertools.count(1)

__all__ = ["PATIENCE_S", "START", "STEP", "Job", "NodeChange", "Story", "ranks_of", "until"]


class Story:
    """See the module's docstring. ``lab`` is a ``LabUnderTest`` with Sentinel."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        self.paths = layout.load(lab.dir)
        self.jobs: list[Job] = []
        self._controller = self.lab.dir / "log" / "slurmctld.log"
        self._daemon = self.lab.dir / "log" / "daemon.log"
        self._controller_from = len(self.read(self._controller))
        self._daemon_from = len(self.read(self._daemon))
        self._messages_from = len(self._lines())
        self._shown = 0
        self._drains: Counter[str] = Counter()
        self._returns: Counter[str] = Counter()
        self._restarts: Counter[int] = Counter()
        self._held: set[int] = set()
        self._messages: list[Mapping[str, Any]] = []
        self._settings: str | None = None  # as they were before the story
        lab.broken = True  # until the story ended well and everything is as before it

    def __enter__(self) -> Story:
        counted = getattr(self.lab, "messages_counted", None)
        assert counted in (None, self._messages_from), "a message came after the last story had ended"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._count()
            put_back(self, self._settings)
            self.lab.messages_counted = len(self._lines())
            assert len(self.messages()) == len(self._messages), self._lines()[-3:]
            self.lab.broken = False

    # --- what happens -------------------------------------------------------------------------------------------------

    def job(
        self,
        nodes: int = 2,
        *arguments: str,
        run: str = "",
        saved: bool = True,
        pace: float = 0.1,
        torch: bool = False,
    ) -> Job:
        """A training job; returned when it runs, and has saved to both tiers and gone on (unless told otherwise)."""
        run = run or f"run{next(_numbers)}"
        cut = arguments.index("--") if "--" in arguments else len(arguments)
        words = ["--nodes", str(nodes), "--run", run, "--step-time", str(pace), "--local-every", "5"]
        words += ["--global-every", "10", "--steps", "100000", *([] if torch else ["--standin"])]
        job = Job(self.lab, self.lab.submit(*words, *arguments[:cut], *arguments[cut:]), run)
        return self.adopt(job, saved=saved)

    def adopt(self, job: Job, *, saved: bool = True) -> Job:
        """A job submitted otherwise."""
        self.jobs.append(job)
        until(lambda: job.state() == "RUNNING", lambda: f"job {job.id} to run: {job.shown()}")
        job.nodes = job.nodes_now()
        if saved:
            self.wait_saved(job)
        return job

    def wait_saved(self, job: Job, after: int = 0) -> None:
        """A global checkpoint and a newer local one, printed after that many characters of the log."""

        def both() -> bool:
            tiers = [tier for _, tier in SAVED.findall(job.log[after:])]
            return "global" in tiers and tiers[-1] == "local"

        until(both, lambda: f"checkpoints of both tiers of job {job.id}:\n{job.log[-2000:]}")

    def inject(self, *arguments: str) -> list[dict[str, Any]]:
        """``lab inject``, in this very process: faults that are to come together do not wait for Python to start."""
        options = parser().parse_args(["inject", *arguments, "--json"])
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            inject.run(self.paths, options)
        return [json.loads(line) for line in shown.getvalue().splitlines()]

    def cancel(self, job: Job) -> None:
        """By its user: it counts no longer."""
        self.lab.slurm("scancel", str(job.id))
        until(lambda: not self.lab.slurm("squeue", "-h", "-j", str(job.id), "-o", "%T").strip(), "the job to end")
        self.jobs.remove(job)

    def kill_daemon(self) -> None:
        """kill -9."""
        daemon = processes.known(self.paths, "daemon")
        assert daemon is not None, "the daemon ended by itself"
        daemon.send(9)
        until(lambda: not daemon.alive, "the killed daemon to be gone")

    @contextlib.contextmanager
    def daemon_stopped_at(self, pattern: str) -> Iterator[None]:
        """The daemon stands still from (shortly after) the line of its log that matches until the block is over."""
        self.wait_daemon_log(pattern)
        daemon = processes.known(self.paths, "daemon")
        assert daemon is not None and daemon.send(signal.SIGSTOP), "the daemon ended by itself"
        try:
            yield
        finally:
            daemon.send(signal.SIGCONT)

    def start_daemon(self) -> None:
        self.call_lab("services.start_daemon(lab); services.wait_daemon(lab, 120)")

    def restart_daemon(self, changes: Mapping[str, str] | None = None) -> None:
        """Again with other settings: text to replace in its file, each piece found exactly once."""
        path = self.lab.dir / "etc" / "sentinel.toml"
        text = path.read_text(encoding="utf-8")
        if changes and self._settings is None:
            self._settings = text
        for old, new in (changes or {}).items():
            assert text.count(old) == 1, (old, text)
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
        daemon = processes.known(self.paths, "daemon")
        if daemon is not None:
            daemon.send(15)
            until(lambda: not daemon.alive, "the daemon to end")
        self.start_daemon()
        self.wait_agents()

    def change(self, name: str, **arguments: object) -> None:
        """What ``sentinel pause`` and its like ask for, without the time that a command takes to start."""
        from sentinel.cli.operator.daemon_client import ask
        from sentinel.protocol import CHANGE

        ask(self.lab.dir / "etc" / "sentinel.toml", CHANGE, {"change": name, "arguments": arguments})

    def stop_agent(self, node: str, number: int = 9) -> None:
        agent = processes.known(self.paths, f"agent-{node}")
        assert agent is not None, f"the agent of {node} ended by itself"
        agent.send(number)
        until(lambda: not agent.alive, f"the agent of {node} to end")

    def start_agent(self, node: str) -> None:
        self.call_lab(f"services.start_agent(lab, {node!r})")

    def stop_munged(self) -> None:
        """Killed, as an update of its package may do: every authentication is refused until it runs again."""
        munged = processes.known(self.paths, "munged")
        assert munged is not None
        munged.send(9)
        until(lambda: not munged.alive, "munged to be gone")

    def start_munged(self) -> None:
        self.call_lab("from lab import slurm; slurm.start_munged(lab)")

    def call_lab(self, statement: str) -> None:
        """In a process of its own, as people's commands do: what it starts is nobody's child here."""
        done = subprocess.run(
            [sys.executable, "-c", _START + statement, str(self.lab.dir)],
            env={**self.lab.environment(), "PYTHONPATH": f"{ROOT}:{ROOT / 'deploy'}"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    # --- waiting ------------------------------------------------------------------------------------------------------

    def daemon_log(self) -> str:
        """Since the story began."""
        return self.read(self._daemon)[self._daemon_from :]

    def wait_daemon_log(self, pattern: str, within_s: float = PATIENCE_S) -> str:
        """The first line since the story began that matches; looked for often, to be quick at the heels of a step."""
        wanted = re.compile(pattern)
        deadline = time.monotonic() + within_s
        while True:
            for line in self.daemon_log().splitlines():
                if wanted.search(line):
                    return line
            if time.monotonic() > deadline:
                pytest.fail(f"not within {within_s:.0f} s: {pattern!r} in daemon.log:\n{self.daemon_log()[-3000:]}")
            time.sleep(0.01)

    def wait_agents(self) -> None:
        """Until the daemon hears all agents that run: those of crashed nodes do not."""
        names = {name for name in self.paths.names if processes.known(self.paths, f"agent-{name}") is not None}

        def all_heard() -> bool:
            seen = self.view("nodes")
            return seen is not None and {n["node"] for n in seen["nodes"] if n["agent"] == "heard"} >= names

        until(all_heard, lambda: f"all agents to be heard: {self.view('nodes')}")

    def view(self, name: str, **arguments: object) -> dict[str, Any] | None:
        """What Sentinel shows; None while the daemon does not answer."""
        from sentinel.cli.operator.daemon_client import view
        from sentinel.errors import SentinelError

        try:
            return view(self.lab.dir / "etc" / "sentinel.toml", name, **arguments)
        except SentinelError:
            return None

    def quiet(self) -> bool:
        """Whether the daemon answers and no incident is open."""
        seen = self.view("incidents")
        return seen is not None and all(row["state"] in ("closed", "held") for row in seen["incidents"])

    def sentinel(
        self, *arguments: str, code: int | None = 0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The command as people run it; ``code`` is the exit status it must have (None: any)."""
        done = subprocess.run(
            [sys.executable, "-m", "sentinel", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            input=stdin,
            env={**self.lab.environment(), "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        )
        assert code in (None, done.returncode), (
            f"{arguments}: {done.returncode}, not {code}: {done.stdout}{done.stderr}"
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    # --- counting -----------------------------------------------------------------------------------------------------

    def expect(
        self,
        *,
        drains: Iterable[str] = (),
        returns: Iterable[str] = (),
        restarts: Iterable[Job] = (),
        held: Iterable[Job] = (),
        free: Iterable[Job] = (),
        messages: Sequence[str | Mapping[str, Any]] = (),
        within_s: float = PATIENCE_S,
    ) -> list[dict[str, Any]]:
        """More of what must have happened by now; gives the messages that came since the last call, in order.

        Args:
            drains: nodes, each drained (or set down) once by Sentinel. returns: nodes that Sentinel returned to work.
            restarts: jobs, each restarted once; they must train again. held: jobs that now wait held; a held job counts
            one restart in Slurm, too. free: jobs that are no longer expected to be held.
            messages: in any order; a cause, or fields of the message (a set means: one of).
        """
        self._drains.update(drains)
        self._returns.update(returns)
        for job in restarts:
            self._restarts[job.id] += 1
            self._held.discard(job.id)
        self._held -= {job.id for job in free}
        for job in held:
            self._restarts[job.id] += 1
            self._held.add(job.id)
        self._messages += [{"cause": wanted} if isinstance(wanted, str) else wanted for wanted in messages]
        until(self._all_there, self._amiss, within_s)
        time.sleep(SETTLE_S)
        until(self._all_there, self._amiss, within_s)
        self._count()
        told = self.messages()
        fresh, self._shown = [dict(m) for m in told[self._shown :]], len(told)
        return fresh

    def messages(self) -> list[dict[str, Any]]:
        """As a receiver sees them that drops what it has: a daemon that is killed between a receiver's answer and its own
        record of it sends the notice again, under the same id.

        Of each incident the first, see ``corrections``.
        """
        return [message for message in self.received() if not _is_later(message)]

    def corrections(self) -> dict[str, list[str]]:
        """What people heard of each incident, in order: the stages of its messages."""
        heard: dict[str, list[str]] = {}
        for message in self.received():
            if isinstance(message, dict):
                heard.setdefault(message["incident"], []).append(message.get("stage", ""))
        return heard

    def received(self) -> list[dict[str, Any]]:
        """All messages since the story began, each once."""
        seen: dict[str, dict[str, Any]] = {}
        for line in self._lines()[self._messages_from :]:
            message = json.loads(line)["message"]
            seen.setdefault(message["id"] if isinstance(message, dict) else line, message)
        return list(seen.values())

    def controller_log(self) -> str:
        """Of slurmctld, since the story began."""
        return self.read(self._controller)[self._controller_from :]

    def changes(self) -> list[NodeChange]:
        return node_changes(self.controller_log())

    def drains(self) -> Counter[str]:
        """How often Sentinel drained each node (or set it down), by slurmctld's log."""
        return Counter(our_drains(self.changes()))

    def settle(self, seconds: float) -> None:
        """Time for something to happen that must not."""
        time.sleep(seconds)
        until(self.quiet, "no incident to be open")

    def accept_what_became_of(self, job: Job) -> None:
        """How often it was restarted and told of is not this story's matter; that nothing else was told is."""
        self._restarts[job.id] = job.restarts()
        self._held = self._held - {job.id} | ({job.id} if job.held() else set())
        self._messages += [{"job": job.id}] * (len(self.messages()) - len(self._messages))

    def drains_ever(self) -> int:
        """In this lab, also before the story."""
        return len(our_drains(node_changes(self.read(self._controller))))

    def returns(self) -> Counter[str]:
        return Counter(c.node for c in self.changes() if not c.state.startswith(("DRAIN", "DOWN")))

    def drained_now(self) -> set[str]:
        """By Sentinel, as sinfo says."""
        rows = (line.split("|", 2) for line in self.lab.slurm("sinfo", "-h", "-N", "-o", "%N|%T|%E").splitlines())
        return {
            row[0] for row in rows if len(row) == 3 and row[2].startswith(OURS) and row[1].startswith(("drain", "down"))
        }

    def counts(self) -> dict[str, Any]:
        return {
            "drains": dict(self.drains()),
            "returns": dict(self.returns()),
            "restarts": {job.id: job.restarts() for job in self.jobs},
            "held": sorted(job.id for job in self.jobs if job.held()),
            "messages": len(self.messages()),
        }

    def expected(self) -> dict[str, Any]:
        return {
            "drains": dict(self._drains),
            "returns": dict(self._returns),
            "restarts": {job.id: self._restarts[job.id] for job in self.jobs},
            "held": sorted(self._held),
            "messages": len(self._messages),
        }

    def _all_there(self) -> bool:
        # What costs nothing first: files. Slurm is asked when they say that it may be so.
        if len(self.messages()) != len(self._messages) or self.drains() != self._drains:
            return False
        if any(stages[-1] == "restarting" for stages in self.corrections().values()):
            return False  # people are still to hear what became of it
        if any(self._restarts[job.id] and job.id not in self._held and not job.steps_again() for job in self.jobs):
            return False
        return self.quiet() and self.counts() == self.expected()

    def _amiss(self) -> str:
        told = [m if isinstance(m, str) else m.get("title") for m in self.messages()]
        return f"expected {self.expected()}\ncounted  {self.counts()}\ntold {told}\n{self.daemon_log()[-4000:]}"

    def _count(self) -> None:
        """Exactly what was expected, in every witness's words."""
        assert self.counts() == self.expected(), self._amiss()
        assert self.drained_now() == set((self._drains - self._returns).keys()), self._amiss()
        left = list(self.messages())
        for wanted in self._messages:
            found = next((m for m in left if isinstance(m, dict) and _fits(wanted, m)), None)
            assert found is not None, f"no message fits {dict(wanted)}: {self._amiss()}"
            left.remove(found)
        incidents = [m["incident"] for m in self.messages()]
        assert len(set(incidents)) == len(incidents), f"an incident was told twice: {incidents}"
        heard = self.corrections().values()
        again = [stages for stages in heard if any(one == following for one, following in itertools.pairwise(stages))]
        assert not again, f"the same was told twice: {again}"
        for job in (job for job in self.jobs if not job.forges):
            seen = len(START.findall(job.log))
            runs = job.log.count("\nsentinel: run ")  # of a launcher, in one attempt
            assert seen <= job.restarts() + 1 + runs, (
                f"job {job.id} started more often than Slurm counts: {job.log[-3000:]}"
            )

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def reboot(self, names: Sequence[str]) -> None:
        """What a convicted node needs before it is believed again; here only the agent can be told of it."""
        reboot(self, names)

    def _lines(self) -> list[str]:
        whole = self.read(self.paths.messages).rpartition("\n")[0]  # without one that is being written
        return [line for line in whole.splitlines() if line.strip()]

    @staticmethod
    def read(path: Path) -> str:
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _is_later(message: object) -> bool:
    return isinstance(message, dict) and message.get("message", 1) > 1


def _fits(wanted: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    return all(
        message.get(key) in value if isinstance(value, (set, frozenset)) else message.get(key) == value
        for key, value in wanted.items()
    )
