"""The training programs that run on the cluster: they gain steps, save checkpoints, resume, fail and hang."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sentinel.model.launching import NODES, RUN, STEP_NAME, run_of
from sentinel.simulate.happened import AttemptBegan
from sentinel.simulate.slurm.records import SimulatedJob

if TYPE_CHECKING:
    from sentinel.simulate.world import World

STEP_S = 2.0
LOOK_S = 0.5  # between two looks of a launcher for its order
WAIT_S = 60.0  # a launcher waits so long for an order after its step failed
LOAD_S = 6.0  # from the start of an attempt to its first step
PRINT_S = 20.0  # between two step lines that are passed on; every step where the daemon watches for them
_BAD_PRINTS = 5  # as the default of judgement.bad_prints
SAVE_STEPS = 25  # between two checkpoints


@dataclass
class Program:
    """One attempt of one job."""

    job: int
    attempt: int
    nodes: tuple[str, ...]
    began_s: float
    base: int  # step of the checkpoint that it resumed from
    before: int = 0  # the highest step of the attempts before
    runs: bool = True
    hung: str = ""  # the node whose rank holds the others up
    hung_at: int | None = None  # step
    run: int = 0  # of its launcher in this attempt
    onset: int | None = None  # the numbers are bad from this step on
    bad_heard: set[int] = field(default_factory=set)  # steps with bad numbers that the daemon was told of

    def step(self, now_s: float) -> int | None:
        """The newest step; None before the first."""
        if self.hung_at is not None:
            return self.hung_at
        gained = int((now_s - self.began_s - LOAD_S) / STEP_S)
        return self.base + gained if gained >= 1 else None


@dataclass
class Saves:
    """Checkpoints of one job on the shared file system: step -> whether it can be read. 0 is the beginning."""

    valid: dict[int, bool] = field(default_factory=dict)
    moved: set[int] = field(default_factory=set)
    _seen: dict[int, set[int]] = field(default_factory=dict)
    bad: dict[int, Program] = field(default_factory=dict)  # who saved it after the numbers went bad

    def seen_of(self, attempt: int) -> set[int]:
        """Steps that this attempt saved and that are listed here already."""
        return self._seen.setdefault(attempt, set())


class Programs:
    def __init__(self, world: World) -> None:
        self._world = world
        self.newest: dict[int, Program] = {}  # by job
        self.saves: dict[int, Saves] = {}
        self.resume: dict[int, dict[str, str]] = {}  # the file that TaskProlog reads
        self.reached: dict[int, int] = {}  # by job: the highest step of all attempts
        self.at_begin: list[Callable[[Program], None]] = []  # told of each attempt that begins
        self._all: list[Program] = []
        self._fruitless: dict[int, int] = {}

    # -- attempts --------------------------------------------------------------------------------------------------

    def began(self, job: SimulatedJob) -> None:
        """Slurm starts an attempt; on a node that is gone nothing begins."""
        if not job.ghost:
            trains_on = self._world.spec_of(job.id).trains_on
            self._begin(job, job.on[:trains_on] if trains_on else job.on, 0)

    def _begin(self, job: SimulatedJob, nodes: tuple[str, ...], run: int) -> None:
        values = self.resume.get(job.id, {})
        ordered = values.get("SENTINEL_ATTEMPT") == str(job.restarts) and "SENTINEL_RESUME_STEP" in values
        kept = self.checkpoints(job.id)
        found = int(values["SENTINEL_RESUME_STEP"]) if ordered else max(kept, default=None)
        valid = found is None or found in self.good(job.id)
        onset = found if found in self.saves[job.id].bad else None  # saved in bad numbers: it goes on with them
        program = Program(job.id, job.restarts, nodes, self._world.now_s, found or 0, onset=onset, run=run)
        if self._world.spec_of(job.id).trains_on:
            self._world.slurm.begin_step(job, f"{STEP_NAME}{run}", nodes)
        if (other := self.newest.get(job.id)) is not None and other.runs:
            self._forgotten(other)
        anew = other is not None and other.attempt == program.attempt and not run
        program.before = other.before if other is not None and anew else self.reached.get(job.id, 0)
        self.newest[job.id] = program
        self._all.append(program)
        self._world.happened(AttemptBegan(job.id, job.restarts, nodes, found, ordered, valid, run))
        for tell in self.at_begin:
            tell(program)
        if not valid and found is not None and kept.get(found) is not True:
            self._world.later(LOAD_S, lambda: self._unreadable(program))
            return
        self._world.later(LOAD_S + STEP_S + 0.1, lambda: self.print_steps(program))
        runs_s = self._world.spec_of(job.id).runs_s
        if runs_s < self._world.ends_s:
            self._world.later(runs_s, lambda: self.end(program, 0))

    def _unreadable(self, program: Program) -> None:
        if program.runs:
            text = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
            self._world.agents.log(program, text, rank=0)
            self._world.later(1.0, lambda: self.end(program, 1))

    def stopped(self, job: SimulatedJob) -> None:
        program = self.newest.get(job.id)
        if program is not None and program.attempt == job.restarts and program.runs:
            self._stopped(program)

    def _stopped(self, program: Program) -> None:
        if program.runs:
            self._note_reached(program)
            gained = self.reached[program.job] > program.before
            self._fruitless[program.job] = 0 if gained else self._fruitless.get(program.job, 0) + 1
            program.runs = False

    def _forgotten(self, program: Program) -> None:
        """End a program of an attempt that slurmctld forgot: its nodes have killed it since."""
        self._note_reached(program)
        program.runs = False

    def _note_reached(self, program: Program) -> None:
        self.checkpoints(program.job)  # what it saved until now
        self.reached[program.job] = max(program.step(self._world.now_s) or 0, self.reached.get(program.job, 0))

    def end(self, program: Program, exit_code: int, exit_signal: int = 0) -> None:
        """The program ends by itself, if it still runs."""
        job = self._world.slurm.jobs.get(program.job)
        if program.runs and job is not None and job.state == "RUNNING" and job.restarts == program.attempt:
            if self._world.spec_of(program.job).trains_on and (exit_code or exit_signal):
                ended = [n for n, (name, _) in job.steps.items() if run_of(name) == program.run]
                for number in ended:
                    self._world.slurm.step_ends(job, number)
                return
            self._world.slurm.end(program.job, exit_code=exit_code, exit_signal=exit_signal)

    def step_over(self, job: SimulatedJob, name: str) -> None:
        """The step of the job's launcher has ended: it waits for the order to start the next one, and then gives up."""
        program = self.newest.get(job.id)
        if program is None or not program.runs or program.attempt != job.restarts or run_of(name) != program.run:
            return
        self._world.say_what(f"job {job.id}: run {program.run} ends")
        self._stopped(program)
        self._await_order(program, self._world.now_s + WAIT_S)

    def _await_order(self, program: Program, until_s: float) -> None:
        job, values = self._world.slurm.jobs.get(program.job), self.resume.get(program.job, {})
        if job is None or job.state != "RUNNING" or job.restarts != program.attempt or job.ghost:
            return
        ordered = values.get("SENTINEL_ATTEMPT") == str(job.restarts) and int(values.get(RUN, 0)) > program.run
        if ordered and set(values[NODES].split(",")) <= set(job.on):
            self._begin(job, tuple(values[NODES].split(",")), int(values[RUN]))
        elif self._world.now_s >= until_s:
            self._world.slurm.end(program.job, exit_code=1)
        else:
            self._world.later(LOOK_S, lambda: self._await_order(program, until_s))

    def hang(self, program: Program, node: str) -> None:
        if program.runs and program.hung_at is None:
            program.hung_at, program.hung = program.step(self._world.now_s) or program.base, node

    def fruitless(self, job: int) -> int:
        """How many attempts in a row, up to now, gained no step beyond what was reached before."""
        return self._fruitless.get(job, 0)

    def on(self, node: str) -> list[Program]:
        """Programs that run on the node."""
        return [program for program in self.newest.values() if program.runs and node in program.nodes]

    def print_steps(self, program: Program) -> None:
        step = program.step(self._world.now_s)
        if program.runs and program.hung_at is None and step is not None:
            if program.onset is None:
                self._world.agents.step(program, step, STEP_S)
            else:
                self.print_nan(program, step)
            self._world.later(STEP_S if self._world.watched else PRINT_S, lambda: self.print_steps(program), idle=True)

    def print_nan(self, program: Program, step: int) -> None:
        if program.runs:
            text = f"step {step} | loss nan | step time {STEP_S:.2f} s"
            self._world.agents.log(program, text, heard=lambda: program.bad_heard.add(step))

    def tasks(self, node: str, job: int) -> list[dict[str, object]]:
        """The states of the job's processes on the node, as its agent reads them."""
        program = self.newest.get(job)
        if program is None or not program.runs or node not in program.nodes:
            return []
        rank = program.nodes.index(node)
        state = "T" if program.hung == node else "S"
        return [{"rank": rank, "state": state, "pid": 4000 + rank, "cpu_s": 1.0, "leaf": True}]

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoints(self, job: int) -> dict[int, bool]:
        """Those that lie there now, by step, with whether they can be read."""
        saves = self.saves.setdefault(job, Saves())
        program = self.newest.get(job)
        reached = program.step(self._world.now_s) if program is not None and program.runs else None
        if program is not None and reached is not None:
            for step in range(program.base // SAVE_STEPS * SAVE_STEPS + SAVE_STEPS, reached + 1, SAVE_STEPS):
                if step in saves.seen_of(program.attempt):
                    continue
                saves.seen_of(program.attempt).add(step)
                saves.valid[step] = True
                saves.moved.discard(step)
                if program.onset is not None and step >= program.onset:
                    saves.bad[step] = program
                else:
                    saves.bad.pop(step, None)
        return {step: valid for step, valid in saves.valid.items() if step not in saves.moved}

    def good(self, job: int) -> list[int]:
        """Steps of the checkpoints that can be read and hold no bad numbers."""
        there = self.checkpoints(job)
        bad = {step for step, program in self.saves[job].bad.items() if self._known_bad(program)}
        return [step for step, valid in there.items() if valid and step not in bad]

    def _known_bad(self, program: Program) -> bool:
        """Whether the daemon was told of this attempt's bad numbers often enough to know that they stay bad."""
        return len(program.bad_heard) >= _BAD_PRINTS

    def tear_newest(self, job: int) -> None:
        """The newest checkpoint is damaged."""
        there = self.checkpoints(job)
        if there:
            self.saves[job].valid[max(there)] = False

    def move_aside(self, job: int, steps: tuple[int, ...]) -> tuple[int, ...]:
        there = tuple(step for step in steps if step in self.checkpoints(job))
        self.saves[job].moved.update(there)
        return there
