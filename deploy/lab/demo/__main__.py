"""`bash deploy/demo`: bring the lab up, train, break things five ways, recover, and show it in a table that fills.

Nothing here knows what Sentinel decides: faults go in through `lab inject`, answers come out of `sentinel ... --json`,
and Slurm's own commands and the job's log are the witnesses.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lab import cluster, layout, slurm
from lab.demo.table import Row, table
from lab.layout import HERE, Lab, LabError
from lab.submit import Request, submit

STEP = re.compile(r"^step (\d+) \| loss", re.MULTILINE)
RESUMED = re.compile(r"^resumed from step (\d+) \((\w+)\)", re.MULTILINE)
NODES = 6
JOB_NODES = 3
PATIENCE_S = 240.0  # for one recovery; a stuck one fails the demo instead of holding it up


@dataclass(frozen=True)
class Scene:
    """A fault, and what a right answer to it is."""

    name: str
    inject: Callable[[Demo], None]
    causes: frozenset[str]
    drains: Callable[[Demo], set[str]]
    restarts: bool = True


class Demo:
    def __init__(self, lab: Lab, say: Callable[[str], None]) -> None:
        self.lab = lab
        self.say = say
        self.job = 0
        self.victim = ""
        self.bad_step = -1  # of the checkpoint that was spoilt
        self.refused = ""  # what Sentinel's last command said, if it failed

    # --- the witnesses ------------------------------------------------------------------------------------------------

    def sentinel(self, *arguments: str) -> list[Any] | None:
        """Rows that a command of Sentinel prints with --json; None while the daemon does not answer."""
        command = [self.lab.spec.python, "-m", "sentinel", *arguments, "--json"]
        environment = {**os.environ, **self.lab.environment()}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
        self.refused = f"sentinel {' '.join(arguments)}: {done.stderr.strip()}" if done.returncode else ""
        return None if done.returncode else [json.loads(line) for line in done.stdout.splitlines()]

    def answered(self, *arguments: str) -> tuple[list[Any]] | None:
        """The rows in a tuple, which counts as an answer also where there are none."""
        rows = self.sentinel(*arguments)
        return None if rows is None else (rows,)

    def log(self) -> str:
        path = next(iter(self.lab.shared.glob(f"*-{self.job}.out")), None)
        return path.read_text(encoding="utf-8", errors="replace") if path else ""

    def last_step(self) -> int | None:
        found = STEP.findall(self.log())
        return int(found[-1]) if found else None

    def job_nodes(self) -> list[str]:
        shown = slurm.client(self.lab, ["squeue", "-h", "-j", str(self.job), "-o", "%N"]).strip()
        return slurm.client(self.lab, ["scontrol", "show", "hostnames", shown]).split() if shown else []

    def drained(self) -> set[str]:
        said = slurm.client(self.lab, ["sinfo", "-h", "-N", "-o", "%N %T %E"])
        rows = (line.split(maxsplit=2) for line in said.splitlines())
        return {row[0] for row in rows if len(row) > 1 and ("drain" in row[1] or "down" in row[1])}

    def job_state(self) -> dict[str, str]:
        said = slurm.client(self.lab, ["scontrol", "show", "job", "--oneliner", str(self.job)])
        return dict(part.split("=", 1) for part in said.split() if "=" in part)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def until(self, what: str, ready: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        """The first true answer of ``ready``; LabError when there is none in time."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            try:
                answer = ready()
            except LabError:
                answer = None  # slurmctld is busy: asked again
            if answer:
                return answer
            time.sleep(0.2)
        raise LabError(f"{what}: not within {patience_s:.0f} s")

    def train(self) -> None:
        request = Request(nodes=JOB_NODES, run="demo", step_time_s=0.2, local_every=10, global_every=25, steps=100_000)
        self.job = submit(self.lab, request)
        self.say(f"job {self.job}: {JOB_NODES} nodes, PyTorch DDP; log {self.lab.shared}/demo-{self.job}.out")
        self.settle()

    def settle(self) -> None:
        """Steps are gained, and a global and a newer local checkpoint of this attempt are there."""
        begun = len(self.log())
        self.until("a checkpoint of each tier", lambda: self._saved(self.log()[begun:]))

    @staticmethod
    def _saved(log: str) -> bool:
        tiers = re.findall(r"^saved step \d+ \((local|global)\)", log, re.MULTILINE)
        return "global" in tiers and tiers[-1:] == ["local"]

    def inject(self, *arguments: str) -> str:
        done = subprocess.run(
            ["bash", str(HERE / "lab"), "inject", *arguments, "--dir", str(self.lab.dir)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise LabError(f"inject {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    # --- one fault ----------------------------------------------------------------------------------------------------

    def play(self, scene: Scene, show: Callable[[Row], None]) -> Row:
        row = Row(fault=scene.name)
        show(row)
        told = self.until("the incidents so far", lambda: self.answered("incidents"))[0]
        known = {incident["id"] for incident in told}
        drained_before, log_before = self.drained(), len(self.log())
        last = self.last_step()
        began = time.time()
        scene.inject(self)
        try:
            incident = self.until("an incident", lambda: self._new_incident(known))
            row.detected_s = round(_seconds(incident["decided_at"]) - began, 2)
            row.cause, row.scope = incident["cause"], incident["scope"]
            (why,) = self.until("the grounds", lambda: self.sentinel("why", incident["id"]))
            row.culprits = why["verdict"]["culprits"]
            show(row)
            self._await_end(scene, row, incident["id"], began, log_before, show)
        except LabError as error:
            row.wrong = "; ".join(filter(None, (str(error), self.refused)))
        row.drained = sorted(self.drained() - drained_before)
        if row.resumed_step is not None and last is not None:
            row.lost_steps = max(0, self._reached(log_before) - row.resumed_step)
        self._check(scene, row)
        show(row)
        return row

    def _new_incident(self, known: set[str]) -> dict[str, Any] | None:
        """The oldest new one that does something with the job.

        A spoilt checkpoint may also be seen by who watches the saves, before the job runs into it: then nothing is done.
        """
        fresh = [i for i in self.sentinel("incidents") or () if i["id"] not in known and i["decided_at"]]
        return next((i for i in reversed(fresh) if self._has_job_steps(i["id"])), None)

    def _has_job_steps(self, incident: str) -> bool:
        shown = self.sentinel("why", incident)
        return bool(shown) and any(step["kind"] in ("requeue_hold", "hold", "release") for step in shown[0]["steps"])

    def _await_end(
        self, scene: Scene, row: Row, incident: str, began: float, log_before: int, show: Callable[[Row], None]
    ) -> None:
        if not scene.restarts:
            self.until("the hold", lambda: self._step_done(incident, "hold"))
            row.action = "held, user told"
            return
        released = self.until("the release", lambda: self._step_done(incident, "release"))
        row.restarted_s = round(_seconds(released["finished_at"]) - began, 2)
        row.action = "restarted"
        show(row)
        self.until("steps after the restart", lambda: self._steps_after_resume(log_before))
        row.restarted_s = round(time.time() - began, 2)
        resumed = RESUMED.findall(self.log()[log_before:])
        if resumed:
            row.resumed_step, row.tier = int(resumed[-1][0]), resumed[-1][1]
        self.until("the proof", lambda: self._step_done(incident, "confirm"))

    def _step_done(self, incident: str, kind: str) -> dict[str, Any] | None:
        shown = self.sentinel("why", incident)
        steps: list[dict[str, Any]] = shown[0]["steps"] if shown else []
        return next((s for s in steps if s["kind"] == kind and s["result"] == "done"), None)

    def _steps_after_resume(self, log_before: int) -> bool:
        text = self.log()[log_before:]
        resumed = list(re.finditer(r"^(resumed from|starting from scratch)", text, re.MULTILINE))
        return bool(resumed) and STEP.search(text, resumed[-1].start()) is not None

    def _reached(self, log_before: int) -> int:
        """Last step before the restart: the highest in the log up to the last resume."""
        text = self.log()
        resumed = list(re.finditer(r"^(resumed from|starting from scratch)", text, re.MULTILINE))
        head = text[: resumed[-1].start()] if resumed and resumed[-1].start() >= log_before else text
        steps = STEP.findall(head)
        return int(steps[-1]) if steps else 0

    def _check(self, scene: Scene, row: Row) -> None:
        expected = scene.drains(self)
        state = self.job_state()
        problems = [
            row.wrong,
            "" if row.cause in scene.causes else f"cause {row.cause}, not {' or '.join(sorted(scene.causes))}",
            "" if set(row.drained) == expected else f"drained {row.drained}, not {sorted(expected)}",
        ]
        if scene.restarts:
            problems.append("" if row.resumed_step is not None else "did not resume from a checkpoint")
            problems.append("" if row.resumed_step != self.bad_step else "resumed from the spoilt checkpoint")
            problems.append("" if state.get("JobState") == "RUNNING" else f"the job is {state.get('JobState')}")
        else:
            problems.append(
                "" if state.get("JobState") == "PENDING" else f"the job is {state.get('JobState')}, not held"
            )
        row.wrong = "; ".join(filter(None, problems))
        row.ok = not row.wrong


# --- the five faults --------------------------------------------------------------------------------------------------


def _xid(demo: Demo) -> None:
    demo.victim = demo.job_nodes()[1]
    demo.inject("xid", "--node", demo.victim, "--gpu", "5", "--xid", "79")


def _hang(demo: Demo) -> None:
    demo.inject("hang", "--job", str(demo.job), "--rank", "2")


def _spoil(demo: Demo) -> None:
    """An operator requeues the job; its newest global checkpoint is truncated meanwhile, and the job walks into it."""
    slurm.client(demo.lab, ["scontrol", "requeue", str(demo.job)])
    demo.until("the requeued job", lambda: demo.job_state().get("JobState") == "PENDING")
    # Only now: while it runs it may save another one.
    said = demo.inject("corrupt-checkpoint", "--tier", "global", "--how", "truncate", "--json")
    demo.bad_step = int(json.loads(said)["step"])
    time.sleep(2)  # within the same second slurmd takes the new start for the one that was just revoked
    slurm.client(demo.lab, ["scontrol", "update", f"JobId={demo.job}", "StartTime=now"])


def _lose_node(demo: Demo) -> None:
    demo.bad_step = -1
    demo.victim = demo.job_nodes()[0]
    demo.inject("node-crash", "--node", demo.victim)


def _crash(demo: Demo) -> None:
    demo.inject("crash", "--job", str(demo.job), "--rank", "1")


def _victim(demo: Demo) -> set[str]:
    return {demo.victim}


def _nobody(_demo: Demo) -> set[str]:
    return set()


SCENES = (
    Scene("Xid 79 on one GPU", _xid, frozenset({"gpu_fallen_off_bus"}), _victim),
    Scene("hung rank", _hang, frozenset({"nccl_hang_unknown"}), _nobody),
    Scene("newest checkpoint torn", _spoil, frozenset({"checkpoint_corrupt"}), _nobody),
    Scene("lost node", _lose_node, frozenset({"node_failure"}), _victim),
    Scene("Python exception", _crash, frozenset({"user_code"}), _nobody, restarts=False),
)


def _seconds(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


def run(options: argparse.Namespace) -> int:
    directory = options.dir or layout.default_dir().with_name(layout.default_dir().name + "-demo")
    spec = layout.new_spec(
        directory,
        nodes=NODES,
        gpus=8,
        partition="gpu",
        isolated=False,
        sentinel=True,
        python=sys.executable,
        mode="act",
    )
    began = time.monotonic()
    print(f"bringing a Slurm cluster of {NODES} nodes up in {directory} ...", flush=True)
    lab = cluster.up(spec, ready_s=120.0)
    rows: list[Row] = []
    try:
        demo = Demo(lab, lambda text: print(text, flush=True))
        demo.train()
        with table(options.svg) as draw:
            for scene in SCENES:
                rows.append(Row(fault=scene.name))
                if len(rows) > 1:
                    demo.settle()
                rows[-1] = demo.play(scene, lambda row: (rows.__setitem__(-1, row), draw(rows))[0])
                draw(rows)
                if not rows[-1].ok:
                    break
            draw(rows, _total(demo, rows, time.monotonic() - began))
        for row in rows:
            if row.wrong:
                print(f"  {row.fault}: {row.wrong}; logs in {lab.log}")
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        rows.append(Row(fault="the lab", wrong=str(error)))
    finally:
        _write(options.json, rows)
        if options.keep:
            _how_to_look(lab)
        else:
            cluster.down(directory, keep=any(not row.ok for row in rows))
    return 0 if len(rows) == len(SCENES) and all(row.ok for row in rows) else 1


def _total(demo: Demo, rows: list[Row], took_s: float) -> str:
    messages = demo.lab.messages.read_text(encoding="utf-8").splitlines()
    good = sum(1 for row in rows if row.ok)
    return f"{good} of {len(SCENES)} recoveries right, {len(messages)} messages to people, {took_s:.0f} s in all"


def _write(path: Path | None, rows: list[Row]) -> None:
    if path is not None:
        path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")


def _how_to_look(lab: Lab) -> None:
    entry = f"bash {HERE / 'lab'}"
    print(f"""
The lab is still up. Look around:
  eval "$({entry} env --dir {lab.dir})"     then: sinfo, squeue, scontrol show job, sentinel status, sentinel nodes
  sentinel incidents; sentinel why INCIDENT; sentinel history
  {entry} messages --dir {lab.dir}          what people were told
  {entry} inject --help                     more faults
  {entry} down --dir {lab.dir}              end it""")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bash deploy/demo", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON object for each fault")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the final table as a picture")
    parser.add_argument("--keep", action="store_true", help="leave the lab up afterwards")
    parser.add_argument("--dir", type=Path, help="folder of the lab")
    options = parser.parse_args()
    try:
        status = run(options)
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        print("demo: interrupted; `bash deploy/lab/lab down` cleans up", file=sys.stderr)
        status = 130
    sys.exit(status)


if __name__ == "__main__":
    main()
