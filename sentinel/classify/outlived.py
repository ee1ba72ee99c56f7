"""Lowers the weight of errors that the job outlived: it went on training, or was only started, after them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite

from sentinel.classify.faults.other_programs import OF_PROGRAMS
from sentinel.classify.readings import Reading, lines_below
from sentinel.classify.roles import LEADS, points_to
from sentinel.classify.unanswered import FINISHED, STEPS_AFTER, steps_and_epochs
from sentinel.classify.weights import FAMILIES
from sentinel.config.rules import LEADING, Drain, Form, Role
from sentinel.model.records import Cause, Evidence, Incident, Trust
from sentinel.model.vocabulary import CAUGHT, RUN_START, STEP_LINES

_LABEL = re.compile(r"\d{1,6}: ")
TIME_LIMIT = "time-limit"  # rule
TRAINED_AFTER = 3  # steps after an error until the log's end, or until Slurm ended the job
FEW_STEPS = 2  # steps after an error until the program raised another one
_BAR = "step-bar"  # rule
NAN = "nan"  # kind
ATTEMPT_BEGINS = "attempt-begins"  # rule
_PYTHON = re.compile(r"\b[A-Za-z_][\w.]{0,80}(?:Error|Exception|Exit)\b")
_MESSAGE = 60  # characters of an error's end by which it is known
_NOT_OF_STORAGE = FAMILIES[0] - {Cause.DATALOADER, Cause.CHECKPOINT_CORRUPT}
_ONE_EVENT = 12  # lines: an error, and the traceback that says it again
_PRINTED_ON = 50  # lines: more than a traceback and what a launcher says of it
_LONG = 200  # lines: more than what all ranks of a node say of it
_NO_ANSWER, _ANSWERS = "nfs", "nfs-answers"  # rules
_NOT_FOUND = re.compile(r": line \d{1,6}: \S{1,200}: command not found")
_NO_PROGRAM = re.compile(r"^\S{0,200}python[\d.]{0,6}: can't open file '")
# Words of the batch script itself, which goes on after them: of its shell, of conda and of environment modules. A shell that
# is named itself runs what a task gave it (`bash -c`).
_BATCH = r"^\S{0,200}slurm_script: line \d{1,6}: "
_ENVIRONMENT = re.compile(r"\bconda (?:init|activate)\b|'(?:conda|mamba|micromamba) |\bLmod\b|\bmodulefile\b")
_SHELL = re.compile(
    rf"{_BATCH}|^(?!-?(?:ba|da|k|z)?sh: )[\w./-]{{1,200}}: line \d{{1,6}}: \S{{1,200}}: command not found"
    rf"|{_ENVIRONMENT.pattern}"
)
_ENDED_BY_IT = 12  # lines between a command that a task did not find and srun's word of its exit status, 127
# torchrun was told to end: it ends its workers. It watches them, and of one that had ended by itself it says so.
_SIGNALLED = re.compile(r"\bSignalException: Process \d|\bdeath signal, shutting down\b")
_WORKER_ENDED = re.compile(r"\bfailed \(exitcode|\bChildFailedError\b")
_EXCEPTION = re.compile(r"(?:^|[\s\]:])[\w.]{0,80}(?:Error|Exception)\b: ")
_OUT_OF_SPACE = frozenset({Cause.APP_OOM_GPU, Cause.APP_OOM_HOST, Cause.DISK_FULL})
_OF_A_SCRIPT = frozenset({Cause.SOFTWARE_ENV, Cause.USER_CONFIG})  # commands and modules that are not there, paths
_OF_MACHINES = frozenset({Form.KERNEL, Form.DCGM})


def outlived(readings: Sequence[Reading], incident: Incident) -> list[Reading]:
    """``readings``, of which those that a program printed and that ended nothing weigh a fifth.

    Bad numbers keep their weight until they are finite again: a training goes on with them.
    """
    steps: dict[str | None, list[int]] = {}  # their lines, by log
    trained: dict[str | None, list[Evidence]] = {}  # of these, those of a training: no bar of a download
    ends: dict[str | None, list[Evidence]] = {}  # the program's words that it finished, by log
    begun: dict[str | None, int] = {}  # where the log begins anew the last time
    caught: dict[tuple[str | None, str], list[Evidence]] = {}  # what the program went on without, by log and rule
    stopped = _stopped_by_slurm(readings)
    signalled = _launchers_signals(readings)
    for step in steps_and_epochs(incident.evidence):
        if step.line is not None:
            steps.setdefault(step.where.path, []).extend([step.line] * _lines(step))
            if step.rule != _BAR:
                trained.setdefault(step.where.path, []).append(step)
    for evidence in incident.evidence:
        if evidence.kind == FINISHED:
            ends.setdefault(evidence.where.path, []).append(evidence)
        if evidence.data.get(CAUGHT) is True:
            caught.setdefault((evidence.where.path, evidence.rule or ""), []).append(evidence)
        if (
            evidence.kind == RUN_START
            and evidence.rule != ATTEMPT_BEGINS
            and (evidence.data.get("followed") is True or _stopped_between(evidence, 1, evidence.line or 0, stopped))
        ):
            begun[evidence.where.path] = max(begun.get(evidence.where.path, 0), evidence.line or 0)
    for log, line in _last_attempts(incident).items():
        begun[log] = max(begun.get(log, 0), line)
    kept = []
    for reading in readings:
        log = reading.evidence.where.path
        printed = reading.evidence.trust is Trust.USER and reading.evidence.line is not None
        numbers = reading.evidence.kind == NAN
        asked = printed and not numbers
        end = max((e.line or 0 for e in ends.get(log, []) if _may_be_of(e, reading)), default=0)
        went_on = asked and (
            _went_on(reading, steps.get(log, []), end, readings)
            or _beside_the_launchers_signal(reading, signalled.get(log))
            or _trained_on(reading, trained.get(log, []), readings)
            or any(_says_again(e, reading) for e in caught.get((log, reading.key), []))
            or _of_an_earlier_run(reading, begun.get(log, 0), steps.get(log, []), readings, stopped)
        )
        well = (
            numbers
            and printed
            and (_finite_again(reading, trained.get(log, []), readings) or _out_of_space_after(reading, readings))
        )
        kept.append(_lowered(reading) if went_on or well or _answers_again(reading, readings) else reading)
    if any(reading.key == TIME_LIMIT for reading in stopped):  # throttled all along, it ran into its limit
        hot = {_notice(reading) for reading in kept if reading.survived} - {None}
        kept = [_lowered(r) if not r.survived and _notice(r) in hot else r for r in kept]
    # Of runs appended to one log the last one counts: what it ended in says more than that an earlier one was resumed.
    final = {reading.key for reading in kept if not reading.survived}
    return [reading for reading in kept if not (reading.survived and reading.key in final)]


def _lines(step: Evidence) -> int:
    """How many step lines it stands for: of a running job's log an agent passes one on for each second."""
    told = step.data.get(STEP_LINES)
    return max(1, min(told, STEPS_AFTER)) if isinstance(told, int) else 1


def _last_attempts(incident: Incident) -> dict[str | None, int]:
    """By log the line at which its last attempt begins, where attempts are numbered: each task may say so."""
    last: dict[str | None, tuple[int, int]] = {}  # the number, and the first line with it below 0
    for evidence in incident.evidence:
        number = str(evidence.data.get("text"))  # of a job's own process: it may be anything
        if evidence.rule == ATTEMPT_BEGINS and evidence.line is not None and re.fullmatch(r"[0-9]{1,4}", number):
            told = int(number), -evidence.line
            last[evidence.where.path] = max(last.get(evidence.where.path, told), told)
    return {log: -line for log, (_, line) in last.items()}


def _may_be_of(evidence: Evidence, reading: Reading) -> bool:
    """Whether both may be of one rank."""
    ranks = evidence.where.rank, reading.evidence.where.rank
    return None in ranks or ranks[0] == ranks[1]


def _says_again(caught: Evidence, reading: Reading) -> bool:
    """Whether what the program went on without is the error that ``reading`` told of right above it."""
    lines = (caught.line or 0) - (reading.evidence.line or 0)
    same = _same_end(caught.text, reading.evidence.text)
    return 0 < lines <= _ONE_EVENT and same and _may_be_of(caught, reading)


def _same_end(one: str, other: str) -> bool:
    return one.endswith(other[-_MESSAGE:]) or other.endswith(one[-_MESSAGE:])


def _answers_again(one: Reading, readings: Sequence[Reading]) -> bool:
    """Whether the server that did not answer did so later in the same log, by the same writer's word, and then a program
    failed otherwise."""
    peer = one.evidence.data.get("peer")
    if one.key != _NO_ANSWER or not peer:
        return False
    below = [r for r in readings if (lines_below(r, one) or 0) > 0]
    told = [r for r in below if r.key in {_NO_ANSWER, _ANSWERS} and r.evidence.data.get("peer") == peer]
    told = [r for r in told if r.evidence.trust is one.evidence.trust]
    last = max(told, key=lambda r: r.evidence.line or 0, default=one)
    others = (r for r in below if points_to(r) in _NOT_OF_STORAGE and r.strength >= LEADS and r.role in LEADING)
    return last.key == _ANSWERS and any((lines_below(r, last) or 0) > 0 for r in others)


def _finite_again(one: Reading, trained: Sequence[Evidence], readings: Sequence[Reading]) -> bool:
    """Whether the numbers that were bad are finite in the steps below the last bad one.

    Mixed precision begins like that, and a mean that has no value yet.
    """
    bad = [below for r in readings if r.evidence.kind == NAN and (below := lines_below(r, one)) is not None]
    told = [(e, numbers) for e in trained if _may_be_of(e, one) and (numbers := _numbers(e))]
    last = max(
        (one.evidence.line or 0) + max(bad, default=0),
        max((e.line or 0 for e, numbers in told if not all(map(isfinite, numbers))), default=0),
    )
    finite = [e for e, _ in told if (e.line or 0) > last]
    return max(len(finite), _steps_made(finite)) >= TRAINED_AFTER


def _steps_made(steps: Sequence[Evidence]) -> int:
    """From the first to the last of these lines, of which a program may print one for every tenth step."""
    numbers = [step.data.get("step") for step in steps]
    known = [number for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
    return known[-1] - known[0] if known else 0


def _out_of_space_after(one: Reading, readings: Sequence[Reading]) -> bool:
    """Whether the program ended by what bad numbers bring about in no case: it ran out of memory, or out of disk."""
    later = (r for r in readings if (lines_below(r, one) or 0) > 0 and r.strength >= LEADS and r.role in LEADING)
    return any(points_to(r) in _OUT_OF_SPACE and not r.warned for r in later)


def _numbers(step: Evidence) -> list[float]:
    """What a step line printed of the loss and of the norm of the gradients."""
    found = (step.data.get("loss"), step.data.get("grad_norm"))
    return [float(value) for value in found if isinstance(value, (int, float)) and not isinstance(value, bool)]


def _notice(reading: Reading) -> tuple[object, ...] | None:
    """Which GPU of which log a program says to be throttled; None of any other line."""
    where = reading.evidence.where
    told = reading.evidence.trust is Trust.USER and points_to(reading) is Cause.GPU_THERMAL_POWER
    return (where.path, where.node, where.gpu, reading.key) if told else None


def _lowered(reading: Reading) -> Reading:
    weights = {cause: 0.2 * weight for cause, weight in reading.weights.items()}
    note = f"{reading.note} (the job went on after it)"
    return replace(reading, weights=weights, role=Role.CONTEXT, note=note, survived=True)


def _went_on(reading: Reading, steps: Sequence[int], end: int, readings: Sequence[Reading]) -> bool:
    """Whether the job trained on, finished (on the line ``end``; 0: it did not say so) or was only started after it."""
    line = reading.evidence.line or 0
    torn_down = reading.role is Role.CONSEQUENCE and reading.evidence.kind != "watchdog"  # it waited for minutes
    after_end = (torn_down or reading.warned) and not any(step > end for step in steps)
    if end > 0 and (end > line or after_end):
        return True
    if sum(step > line for step in steps) >= STEPS_AFTER:
        return True
    return _of_the_script(reading, readings) or _long_before_its_limit(reading, readings)


def _trained_on(one: Reading, trained: Sequence[Evidence], readings: Sequence[Reading]) -> bool:
    """Whether the training went on after it: to the log's end, or until another error or Slurm ended it.

    A machine may fail slowly, and Slurm ends a job some time after it says so. Where nothing more is told, only warnings and
    errors of the program between two steps were outlived: steps that were buffered may be written below an error.
    """
    cause = points_to(one)
    if cause in FAMILIES[1] or cause in FAMILIES[4]:
        return False
    beyond = _beyond(one, trained)
    if len(beyond) < (1 if one.warned else FEW_STEPS):
        return False
    few = FEW_STEPS if cause in FAMILIES[0] or one.warned else TRAINED_AFTER
    later = [r for r in readings if (lines_below(r, one) or 0) > 0 and not r.warned]
    if not any(r.weights and r.role is not Role.CONTEXT for r in later):
        known = cause in FAMILIES[0] and any((e.line or 0) < (one.evidence.line or 0) for e in trained)
        return one.warned or (known and len(beyond) >= TRAINED_AFTER)
    for other in later:
        made = sum(line < (other.evidence.line or 0) for line in beyond)
        if other.strength < LEADS or other.role not in LEADING or points_to(other) is cause:
            continue
        if made >= TRAINED_AFTER and other.form is Form.SLURM and points_to(other) in FAMILIES[4]:
            return True
        if made >= few and points_to(other) in FAMILIES[0] and _PYTHON.search(other.evidence.text):
            return True
    return False


def _beyond(one: Reading, trained: Sequence[Evidence]) -> list[int]:
    """Lines of the steps after it that go beyond the last one before it: each number once, of its rank where that is told.

    One rank may fail while the others print the step they are in.
    """
    line = one.evidence.line or 0
    own = sorted((e for e in trained if _may_be_of(e, one)), key=lambda e: e.line or 0)
    numbers = [(e.line or 0, e.data.get("step")) for e in own]
    reached = max((n for at, n in numbers if at < line and isinstance(n, (int, float))), default=-1.0)
    lines = []
    for at, number in numbers:
        if at > line and (not isinstance(number, (int, float)) or number > reached):
            reached = number if isinstance(number, (int, float)) else reached
            lines.append(at)
    return lines


def _of_an_earlier_run(
    one: Reading, begun: int, steps: Sequence[int], readings: Sequence[Reading], stopped: Sequence[Reading]
) -> bool:
    """Whether the job was started again after it (on the line ``begun``), and trained or ended otherwise then.

    A rank that is late prints the same first lines, and then that it finds nobody: only where Slurm had ended the run is
    that another run's end. What convicts a machine holds for the run after it, too.
    """
    if (one.evidence.line or 0) >= begun or (one.drain is not Drain.NO and one.form in _OF_MACHINES):
        return False
    if any(step > begun for step in steps):
        return True
    later = [r for r in readings if r.evidence.where.path == one.evidence.where.path and (r.evidence.line or 0) > begun]
    ends = [r for r in later if r.strength >= LEADS and r.role in LEADING]
    by_slurm = _stopped_between(one.evidence, one.evidence.line or 0, begun, stopped)
    return any(by_slurm or points_to(r) not in FAMILIES[2] for r in ends)


def _stopped_by_slurm(readings: Sequence[Reading]) -> list[Reading]:
    """What says that Slurm ended a run, as it does before it requeues a job."""
    causes = {Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, Cause.NODE_FAILURE}
    return [r for r in readings if r.form is Form.SLURM and r.strength >= LEADS and points_to(r) in causes]


def _stopped_between(of_log: Evidence, first: int, begun: int, stopped: Sequence[Reading]) -> bool:
    """Whether Slurm ended a run from the line ``first`` on, before the line ``begun``, by the log that ``of_log`` is of."""
    log = of_log.where.path
    return any(r.evidence.where.path == log and first <= (r.evidence.line or 0) < begun for r in stopped)


def _long_before_its_limit(one: Reading, readings: Sequence[Reading]) -> bool:
    """Whether the job ran on after a word of its environment, until its time limit ended it.

    What cannot start ends at once; a program that raised printed on for long, or its ranks only waited for each other.
    """
    if points_to(one) in _OF_A_SCRIPT:
        least = 1 if _SHELL.search(one.evidence.text) and not _ended_task(one, readings) else _PRINTED_ON
    elif (
        points_to(one) in OF_PROGRAMS and "frame" not in one.evidence.data and not _EXCEPTION.search(one.evidence.text)
    ):
        least = _LONG
    else:
        return False
    return any(r.key == TIME_LIMIT and (lines_below(r, one) or 0) >= least for r in readings)


def _launchers_signals(readings: Sequence[Reading]) -> dict[str | None, Reading]:
    """By log torchrun's first word that it was told to end, where no worker had ended by itself."""
    told: dict[str | None, Reading] = {}
    for reading in readings:
        if _SIGNALLED.search(reading.evidence.text):
            told.setdefault(reading.evidence.where.path, reading)
    ended = {r.evidence.where.path for r in readings if told and _WORKER_ENDED.search(r.evidence.text)}
    return {log: reading for log, reading in told.items() if log not in ended}


def _beside_the_launchers_signal(one: Reading, told: Reading | None) -> bool:
    """Whether a word of the environment stands long above torchrun's that it was told to end, or an error below that.

    Of what a rank raised before, it may have hung until somebody ended the job.
    """
    above = (lines_below(told, one) or 0) if told is not None else 0
    if above < 0:
        return points_to(one) in FAMILIES[0] and _EXCEPTION.search(one.evidence.text) is not None
    return above >= _PRINTED_ON and points_to(one) in _OF_A_SCRIPT and not _EXCEPTION.search(one.evidence.text)


def _ended_task(one: Reading, readings: Sequence[Reading]) -> bool:
    """Whether a task, and no batch script, ended by a command that was not found."""
    if re.search(_BATCH, one.evidence.text):
        return False
    exits = [r for r in readings if r.key == "task-exit" and re.search(r"\b127\b", r.evidence.text)]
    return any(0 < (lines_below(r, one) or 0) <= _ENDED_BY_IT for r in exits)


def _of_the_script(one: Reading, readings: Sequence[Reading]) -> bool:
    """Whether the batch script met the error, before what it started raised one of its own.

    ``srun --label`` puts the task's number before each line that a task writes: what has none is the script's. A shell names
    its script and the line of a command that it does not find, and goes on with the next, as it does where Python finds no
    program.
    """
    if _LABEL.match(one.evidence.text) or points_to(one) not in _OF_A_SCRIPT:
        return False
    below = {id(r): lines for r in readings if (lines := lines_below(r, one)) is not None}  # of the same log
    same = [r for r in readings if id(r) in below]
    raised = [
        r for r in same if points_to(r) in FAMILIES[0] and r.strength >= LEADS and r.role in LEADING and not r.warned
    ]
    if _NOT_FOUND.search(one.evidence.text):
        others = (r for r in same if r.strength >= LEADS and r.role in LEADING and not r.warned)
        later = any(below[id(r)] >= _PRINTED_ON and points_to(r) not in _OF_A_SCRIPT for r in others)
        return later or any(below[id(r)] > 0 and _EXCEPTION.search(r.evidence.text) for r in raised)
    if _NO_PROGRAM.search(one.evidence.text):  # another one was started, and printed on for long before it failed
        return any(below[id(r)] >= _PRINTED_ON and _EXCEPTION.search(r.evidence.text) for r in raised)
    if _ENVIRONMENT.search(one.evidence.text) and any(
        below[id(r)] > 0 and _EXCEPTION.search(r.evidence.text) and points_to(r) not in _OF_A_SCRIPT for r in raised
    ):
        return True  # what was to be loaded was there: the program failed otherwise
    tasks = [r for r in same if _LABEL.match(r.evidence.text)]
    return all(below[id(r)] > 0 for r in tasks) and any(r in tasks for r in raised)
