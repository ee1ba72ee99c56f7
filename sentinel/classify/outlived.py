"""Lowers the weight of errors that the job outlived: it went on training, or was only started, after them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sentinel.classify.readings import Reading, lines_below
from sentinel.classify.roles import LEADS, points_to
from sentinel.classify.unanswered import FINISHED, STEPS_AFTER
from sentinel.classify.weights import FAMILIES
from sentinel.config.rules import Drain, Form, Role
from sentinel.model.records import Cause, Evidence, Incident, Kind, Trust
from sentinel.model.vocabulary import CAUGHT, RUN_START

_LABEL = re.compile(r"\d{1,6}: ")
TIME_LIMIT = "time-limit"  # rule
LOSSES_AFTER = 3  # steps with a loss after an error, and nothing else until the log's end
FEW_STEPS = 2  # that were made after an error where the log's end is told otherwise
_PYTHON = re.compile(r"\b[A-Za-z_][\w.]{0,80}(?:Error|Exception|Exit)\b")
_OF_GPUS = re.compile(r"(?i)\b(?:cuda|hip|nccl|rccl|cublas|cudnn|gpu|device-side)")
_ONE_EVENT = 12  # lines: an error, and the traceback that says it again
_PRINTED_ON = 50  # lines: more than a traceback and what a launcher says of it
_NO_ANSWER, _ANSWERS = "nfs", "nfs-answers"  # rules
_NOT_FOUND = re.compile(r": line \d{1,6}: \S{1,200}: command not found")
# Words of the batch script itself, which goes on after them: of its shell, of conda and of environment modules. A shell that
# is named itself runs what a task gave it (`bash -c`).
_BATCH = r"^\S{0,200}slurm_script: line \d{1,6}: "
_SHELL = re.compile(
    rf"{_BATCH}|^(?!-?(?:ba|da|k|z)?sh: )[\w./-]{{1,200}}: line \d{{1,6}}: \S{{1,200}}: command not found"
    r"|\bconda (?:init|activate)\b|'(?:conda|mamba|micromamba) |\bLmod\b|\bmodulefile\b"
)
_ENDED_BY_IT = 12  # lines between a command that a task did not find and srun's word of its exit status, 127
_EXCEPTION = re.compile(r"(?:^|[\s\]:])[\w.]{0,80}(?:Error|Exception)\b: ")
_OF_A_SCRIPT = frozenset({Cause.SOFTWARE_ENV, Cause.USER_CONFIG})  # commands and modules that are not there, paths
_OF_MACHINES = frozenset({Form.KERNEL, Form.DCGM})
_RAISED = frozenset({Role.CAUSE, Role.FALLBACK, Role.SYMPTOM})


def outlived(readings: Sequence[Reading], incident: Incident) -> list[Reading]:
    """``readings``, of which those that a program printed and that ended nothing weigh a fifth; bad numbers keep theirs."""
    steps: dict[str | None, list[int]] = {}  # their lines, by log
    losses: dict[str | None, list[int]] = {}  # of these, those with a loss: no bar of a download
    ends: dict[str | None, int] = {}  # of the program's word that it finished, by log
    begun: dict[str | None, int] = {}  # where the log begins anew the last time
    caught: dict[tuple[str | None, str], list[int]] = {}  # lines of what the program went on without, by log and rule
    stopped = _stopped_by_slurm(readings)
    for evidence in incident.evidence:
        if evidence.kind == Kind.STEP and evidence.line is not None:
            steps.setdefault(evidence.where.path, []).append(evidence.line)
            if evidence.data.get("loss") is not None:
                losses.setdefault(evidence.where.path, []).append(evidence.line)
        if evidence.kind == FINISHED:
            ends[evidence.where.path] = max(ends.get(evidence.where.path, 0), evidence.line or 0)
        if evidence.data.get(CAUGHT) is True:
            caught.setdefault((evidence.where.path, evidence.rule or ""), []).append(evidence.line or 0)
        if evidence.kind == RUN_START and (
            evidence.data.get("followed") is True or _stopped_between(evidence, 1, evidence.line or 0, stopped)
        ):
            begun[evidence.where.path] = max(begun.get(evidence.where.path, 0), evidence.line or 0)
    kept = []
    for reading in readings:
        log = reading.evidence.where.path
        printed = reading.evidence.trust is Trust.USER and reading.evidence.line is not None
        asked = printed and reading.evidence.kind != "nan"
        went_on = asked and (
            _went_on(reading, steps.get(log, []), ends.get(log, 0), readings)
            or _trained_on(reading, losses.get(log, []), readings)
            or any(0 < line - (reading.evidence.line or 0) <= _ONE_EVENT for line in caught.get((log, reading.key), []))
            or _of_an_earlier_run(reading, begun.get(log, 0), steps.get(log, []), readings, stopped)
        )
        kept.append(_lowered(reading) if went_on or _answers_again(reading, readings) else reading)
    hot = {
        _notice(reading) for reading in kept if reading.survived
    }  # told all along: what the job ended in is another thing
    kept = [_lowered(r) if not r.survived and (n := _notice(r)) is not None and n in hot else r for r in kept]
    # Of runs appended to one log the last one counts: what it ended in says more than that an earlier one was resumed.
    final = {reading.key for reading in kept if not reading.survived}
    return [reading for reading in kept if not (reading.survived and reading.key in final)]


def _answers_again(one: Reading, readings: Sequence[Reading]) -> bool:
    """Whether the server that did not answer did so later, no more was said of it, and then a program failed otherwise."""
    peer = one.evidence.data.get("peer")
    if one.key != _NO_ANSWER or not peer:
        return False
    below = [r for r in readings if (lines_below(r, one) or 0) > 0]
    told = [r for r in below if r.key in {_NO_ANSWER, _ANSWERS} and r.evidence.data.get("peer") == peer]
    last = max(told, key=lambda r: r.evidence.line or 0, default=one)
    others = [r for r in readings if points_to(r) in FAMILIES[0] and r.strength >= LEADS and r.role in _RAISED]
    return last.key == _ANSWERS and any((lines_below(r, last) or 1) > 0 for r in others)


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
    after = [step for step in steps if step > line]
    if len(after) >= STEPS_AFTER or (len(after) >= FEW_STEPS and _ended_otherwise(reading, after, readings)):
        return True
    return _of_the_script(reading, readings) or _long_before_its_limit(reading, readings)


def _trained_on(one: Reading, losses: Sequence[int], readings: Sequence[Reading]) -> bool:
    """Whether losses follow it and no other error does. Ranks that wait for one that failed print one more, at most two."""
    if (points_to(one) in FAMILIES[4] and one.form is Form.SLURM) or points_to(one) in FAMILIES[1]:
        return False  # Slurm ends a job some time after it says so, and a machine may fail slowly
    line = one.evidence.line or 0
    later = (r for r in readings if (lines_below(r, one) or 0) > 0 and r.strength >= LEADS and not r.warned)
    return sum(loss > line for loss in losses) >= LOSSES_AFTER and not any(r.role in _RAISED for r in later)


def _ended_otherwise(one: Reading, after: Sequence[int], readings: Sequence[Reading]) -> bool:
    """Whether the program raised another error, or met its time limit, once it had made some steps after this one.

    One rank may fail while another prints a last step; the others wait for it then, and a broken machine's failure is told
    by what runs on it.
    """
    cause = points_to(one)
    of_machine = cause in FAMILIES[1] or cause in FAMILIES[2]
    for other in readings:
        below = lines_below(other, one)
        if below is None or below <= 0 or other.strength < LEADS or points_to(other) is cause or other.warned:
            continue
        made = sum(step < (other.evidence.line or 0) for step in after)
        stopped = other.form is Form.SLURM and points_to(other) in FAMILIES[4] and other.role in _RAISED
        if stopped and made > FEW_STEPS and not of_machine:
            return True
        raised = other.role in _RAISED and points_to(other) in FAMILIES[0] and _PYTHON.search(other.evidence.text)
        if raised and made >= FEW_STEPS and not (of_machine and _OF_GPUS.search(other.evidence.text)):
            return True
    return False


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
    ends = [r for r in later if r.strength >= LEADS and r.role in _RAISED]
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
    if points_to(one) not in _OF_A_SCRIPT:
        return False
    least = 1 if _SHELL.search(one.evidence.text) and not _ended_task(one, readings) else _PRINTED_ON
    return any(r.key == TIME_LIMIT and (lines_below(r, one) or 0) >= least for r in readings)


def _ended_task(one: Reading, readings: Sequence[Reading]) -> bool:
    """Whether a task, and no batch script, ended by a command that was not found."""
    if re.search(_BATCH, one.evidence.text):
        return False
    exits = [r for r in readings if r.key == "task-exit" and re.search(r"\b127\b", r.evidence.text)]
    return any(0 < (lines_below(r, one) or 0) <= _ENDED_BY_IT for r in exits)


def _of_the_script(one: Reading, readings: Sequence[Reading]) -> bool:
    """Whether the batch script met the error, before what it started raised one of its own.

    ``srun --label`` puts the task's number before each line that a task writes: what has none is the script's. A shell names
    its script and the line of a command that it does not find, and goes on with the next.
    """
    if _LABEL.match(one.evidence.text) or points_to(one) not in _OF_A_SCRIPT:
        return False
    below = {id(r): lines for r in readings if (lines := lines_below(r, one)) is not None}  # of the same log
    same = [r for r in readings if id(r) in below]
    raised = [
        r for r in same if points_to(r) in FAMILIES[0] and r.strength >= LEADS and r.role in _RAISED and not r.warned
    ]
    if _NOT_FOUND.search(one.evidence.text):
        return any(below[id(r)] > 0 and _EXCEPTION.search(r.evidence.text) for r in raised)
    tasks = [r for r in same if _LABEL.match(r.evidence.text)]
    return all(below[id(r)] > 0 for r in tasks) and any(r in tasks for r in raised)
