"""Who ended a job: a task of its own that failed, a person, or the scheduler. What follows from its end caused nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from math import isfinite

from sentinel.classify.history import History
from sentinel.classify.outlived import TIME_LIMIT
from sentinel.classify.readings import WARNED, Reading, lines_below, of_context, read
from sentinel.classify.roles import CLOCKS_S, LEADS, points_to
from sentinel.config.rules import LEADING, Form, Role, Rules
from sentinel.model.records import Cause, Evidence, Incident, Kind, Scalar, Trust
from sentinel.model.vocabulary import PARTITION_GONE, PREEMPTED, PREEMPTED_AT
from sentinel.text import whole_number

C = Cause
_ABORTED = re.compile(r"Job step aborted|srun: (?:Terminating|Force Terminated)|\*\*\* STEP \S{1,24} ON ")
ASKED = 2.0  # natural-log odds from which a line says that somebody ended the job
_CANCELLED = "job-cancelled"  # rule; that a step is cancelled follows from any failure
_NEAR_END = 8  # lines between the last such record and the end, of each rank that prints: a last save's, the launcher's
_MOST_RANKS = 4  # that count for this: of more the others went on meanwhile
_FARTHEST = 120  # lines from one record to the next
_AGAIN = 2  # records that are a repetition
_AGAIN_ELSEWHERE = 5  # the same in a log without Slurm's word, whose end is not known: of most lines nothing is kept
_CALLED_NODE_FAILURE = re.compile(r"\*\*\* (?:JOB|STEP) \S{1,60} ON .{1,80} DUE TO NODE FAILURE")
_LOSS = re.compile(r"(?i)loss\w{0,8}['\"]?(?: is)?\s{0,3}[:=]?\s{0,3}-?(?:nan|inf)\b|\bnan or inf found\b")
# Not the training's, which PPO calls the value's, too.
_OTHER_LOSS = re.compile(r"(?i)\b(?:eval|val(?!ue)|test|aux|best)\w{0,12}[ _.-]{0,2}(?:\w{1,12}[ _.-])?loss")
_DIED = frozenset({"killed", "aborted", "segfault", "bus-error", "illegal-instruction"})
_MET = "joined"  # kind of evidence: the ranks found each other
_WAITING = "collective-frame"  # rule: a traceback that stands in a collective call
_JOB_ENDED = "job-ended"  # what Slurm says of the job's end
_STEP_CANCELLED = "step-cancelled"  # rule
_STOPS = "limit-near"  # rule: a program that saves and stops, since it was asked to
_ASKED_BY = re.compile(r"\bSIG(?:TERM|USR[12])\b|(?i:\btime limit\b)")
_SIGNALS = frozenset({"interrupt", "signal-term", _STOPS})  # rules
# A person's interrupt, and the shell's word of a process that was terminated. A launcher passes SIGTERM on once one of its
# own processes has failed, and other signals ask for dumps or saves.
_ENDED = re.compile(r"\bKeyboardInterrupt\b|(?:^|\d )Terminated(?: |$)")
# What workers that are killed with it say, too, and peers of which the connection closes.
_AFTER_AN_END = (C.NCCL_HANG_UNKNOWN, C.DATALOADER, C.APP_OOM_HOST, C.NETWORK_BOOTSTRAP, C.NETWORK_FABRIC)


def for_want_of_a_partition(readings: Sequence[Reading]) -> list[Reading]:
    """``readings``; where Slurm ended the job because its partition is gone, slurmstepd's word of a failed node is Slurm's
    own word for that, and accuses no node."""
    if not any(r.key == _JOB_ENDED and r.evidence.data.get(PARTITION_GONE) for r in readings):
        return list(readings)
    weights, note = {C.SCHEDULER_PREEMPT_OR_TIMELIMIT: 1.0}, "Slurm's word, as its partition is gone"
    return [
        of_context(r.evidence, r.key, weights, note) if _CALLED_NODE_FAILURE.search(r.evidence.text) else r
        for r in readings
    ]


def failed_before(readings: Sequence[Reading], rules: Rules) -> list[Reading]:
    """``readings``; where a cause was told of before Slurm preempted the job, its end is the failure that Slurm calls it."""
    ended = next((r for r in readings if r.key == _JOB_ENDED and r.evidence.data.get(PREEMPTED) is True), None)
    at_s = ended.evidence.data.get(PREEMPTED_AT) if ended is not None else None
    if ended is None or not isinstance(at_s, (int, float)) or not any(_fails_before(r, ended, at_s) for r in readings):
        return list(readings)
    data = {name: value for name, value in ended.evidence.data.items() if name not in (PREEMPTED, PREEMPTED_AT)}
    own = read(replace(ended.evidence, data=data), rules, {})
    return [kept for r in readings if (kept := own if r is ended else r) is not None]


def _fails_before(reading: Reading, ended: Reading, at_s: float) -> bool:
    if (
        reading is ended
        or reading.role not in LEADING
        or reading.strength < LEADS
        or reading.survived
        or reading.passed
    ):
        return False
    asked = points_to(reading) is C.SCHEDULER_PREEMPT_OR_TIMELIMIT
    return not asked and reading.evidence.at.timestamp() < at_s - CLOCKS_S


def self_ended(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """A step is also cancelled when one of its tasks failed or was killed by itself: then nobody asked for its end."""
    ended = next((r for r in readings if r.key == _STEP_CANCELLED), None)
    asked = next((r for r in readings if r.weights.get(C.SCHEDULER_PREEMPT_OR_TIMELIMIT, 0.0) >= ASKED), None)
    if ended is None or asked is None or any(r.evidence.data.get(PREEMPTED) is True for r in readings):
        return []  # Slurm asked for it, by its own record: its tasks end with errors since then
    exits = [r for r in readings if r.key == "task-exit" or (r.key in _DIED and asked is ended and _same_log(r, asked))]
    if not exits or not _earlier(exits[0], asked):
        return []
    weights = {cause: -weight for cause, weight in ended.weights.items() if weight > 0}
    return [
        of_context(exits[0].evidence, "self-ended", weights, "a task failed by itself, and the step was ended for it")
    ]


def _same_log(one: Reading, other: Reading) -> bool:
    """Only then is known which came first: a cancelled step's tasks are killed, too, and say so wherever they write."""
    return one.evidence.where.path == other.evidence.where.path


def _earlier(one: Reading, other: Reading) -> bool:
    """By time, then by line. Of two logs it is not known, and a task that ended by itself is believed."""
    a, b = one.evidence, other.evidence
    return not _same_log(one, other) or (a.at, a.line or 0) <= (b.at, b.line or 0)


def interrupted_wait(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """A job interrupted while it waits in a collective was hung before: the hang is the failure, not the interrupt."""
    interrupted = next((r for r in readings if r.key == "interrupt"), None)
    if interrupted is None or not any(r.key == _WAITING for r in readings):
        return []
    weights = {C.NCCL_HANG_UNKNOWN: 3.0, C.SCHEDULER_PREEMPT_OR_TIMELIMIT: -2.6}
    note = "interrupted while it waited in a collective"
    return [of_context(interrupted.evidence, "interrupted-wait", weights, note)]


def ended_from_outside(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """A process interrupted or terminated in the midst of training, before anything failed: what its peers and workers say
    after that follows from it. A watchdog waits for minutes, so that its word comes last."""
    told = [r for r in readings if r.evidence.trust is Trust.USER and r.evidence.line is not None]
    ended = next((r for r in told if r.key in _SIGNALS or r.strength >= ASKED), None)
    if ended is None or not (_of_a_person(ended) or (ended.key == _STEP_CANCELLED and not _task_failed(told))):
        return []
    if any(r.key == _WAITING or (r.evidence.kind == "watchdog" and ended.key == _STEP_CANCELLED) for r in told):
        return []
    path, line = ended.evidence.where.path, ended.evidence.line or 0
    steps = [e.line or 0 for e in incident.evidence if e.kind == Kind.STEP and e.where.path == path]
    asked = ended.key == _STOPS and _ASKED_BY.search(ended.evidence.text) is not None  # also before its first step
    trained = asked or any(step < line for step in steps)
    if not trained or any(step > line for step in steps):
        return []
    follows = [r for r in told if r.evidence.where.path == path and (r.evidence.line or 0) > line]
    if not any(points_to(r) in _AFTER_AN_END for r in follows):
        return []
    # Several lines of one cause add up, each less than the one before: together to less than twice the strongest.
    weights = {cause: -2.0 * max((r.weights.get(cause, 0.0) for r in follows), default=0.0) for cause in _AFTER_AN_END}
    weights[C.SCHEDULER_PREEMPT_OR_TIMELIMIT] = 3.0
    return [of_context(ended.evidence, "ended-outside", weights, "ended from outside before anything else was said")]


def _of_a_person(reading: Reading) -> bool:
    return reading.key == _STOPS or (reading.key in _SIGNALS and _ENDED.search(reading.evidence.text) is not None)


def _task_failed(readings: Sequence[Reading]) -> bool:
    """Whether a task ended by itself: its step is cancelled then, too."""
    reasons = (r for r in readings if points_to(r) not in _AFTER_AN_END or r.form is Form.SLURM)
    return any(r.key == "task-exit" or r.key in _DIED or _says_what_failed(r) for r in reasons)


def given_up(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """Why a job was cancelled, where it says that itself to its end: ranks do not find each other, or losses are no numbers.

    A logger's level says nothing then: what a program tries again is a warning to it, and a loss a mere record. Ranks that
    look for each other until the time limit were not ended by it; of bad numbers that is not known. Where anything else
    failed, that is why.
    """
    ends = [r for r in readings if r.key in {_CANCELLED, TIME_LIMIT} and r.strength >= ASKED]
    ended = max(ends, key=lambda r: r.evidence.line or 0, default=None)  # of runs in one log the last one's
    if ended is None or any(r.key == "task-exit" or _says_what_failed(r) for r in readings):
        return []
    steps = [e for e in incident.evidence if e.kind == Kind.STEP]
    reason = None if steps else _unmet(incident.evidence) or _unconnected(readings, incident.evidence, ended)
    if reason is None and ended.key == _CANCELLED:
        reason = _no_numbers(readings, incident.evidence, ended)
    if reason is None:
        return []
    return [replace(reason, weights={**reason.weights, C.SCHEDULER_PREEMPT_OR_TIMELIMIT: -ended.strength})]


def _says_what_failed(reading: Reading) -> bool:
    leads = reading.role in LEADING and reading.strength >= LEADS
    return leads and points_to(reading) is not C.SCHEDULER_PREEMPT_OR_TIMELIMIT


def _unmet(evidence: Sequence[Evidence]) -> Reading | None:
    """Members of a job that wait for each other; rank 0, which says that all have come, is among them and did not say it."""
    waiting = [e for e in evidence if e.kind == "joining"]
    members = {e.where.rank for e in waiting}
    if 0 not in members or any(e.kind == _MET for e in evidence):
        return None
    total = whole_number(str(waiting[0].data.get("total"))) or 0
    if total < 2:
        return None
    few = len(members) == 1  # of more the other nodes' logs may not be here
    weights = {C.USER_CONFIG: 3.6 if few else 1.6, C.NETWORK_BOOTSTRAP: 2.6 if few else 3.6}
    note = f"{len(members)} of {total} members were started" if few else "the members did not meet"
    return Reading(waiting[-1], "given-up", weights, Role.CAUSE, note=note)


def _unconnected(readings: Sequence[Reading], evidence: Sequence[Evidence], ended: Reading) -> Reading | None:
    """The loudest of PyTorch's warnings that its store cannot be reached, where they come again until the end.

    After the end they follow from it, and ranks that have met found each other in spite of them.
    """
    told = [
        r
        for r in readings
        if r.warned and r.weights.get(C.NETWORK_BOOTSTRAP, 0.0) > 0 and "[c10d]" in r.evidence.text
        if (lines_below(ended, r) or 0) > 0
    ]
    last = max((r.evidence.line or 0 for r in told), default=0)
    met = any(e.kind == _MET and (e.line or 0) > last for e in evidence)
    return None if met or not _until_the_end(told, evidence, ended) else _raised(max(told, key=lambda r: r.strength))


def _no_numbers(readings: Sequence[Reading], evidence: Sequence[Evidence], ended: Reading) -> Reading | None:
    """A loss that was no number in several records until the end, and no number in any later step's."""
    bad = [
        r
        for r in readings
        if r.evidence.kind == "nan" and r.role is Role.CONTEXT and _LOSS.search(_OTHER_LOSS.sub("", r.evidence.text))
    ]
    if not _until_the_end(bad, evidence, ended):
        return None
    first = bad[0].evidence
    later = [e for e in evidence if e.where.path == first.where.path and (e.line or 0) >= (first.line or 0)]
    return None if any(e.kind == Kind.STEP and _is_number(e.data.get("loss")) for e in later) else _raised(bad[0])


def _until_the_end(told: Sequence[Reading], evidence: Sequence[Evidence], ended: Reading) -> bool:
    """Whether one rank said it again and again until Slurm's word, or where that is in another log until its own ends.

    It is right above the end, or as far above as such lines are from each other. Below it is as good: what ranks print may
    be written after Slurm's word.
    """
    lines: dict[tuple[str | None, int | None], set[int]] = {}
    for reading in told:
        where = reading.evidence.where
        lines.setdefault((where.path, where.rank), set()).add(reading.evidence.line or 0)
    for (path, _), said in lines.items():
        of_log = [e for e in evidence if e.where.path == path]
        here = path == ended.evidence.where.path
        end = (ended.evidence.line if here else max((e.line or 0 for e in of_log), default=0)) or 0
        apart = sorted(below - above for above, below in pairwise(sorted(said)))
        usual = min(apart[(len(apart) - 1) // 2], _FARTHEST) if len(apart) > 1 else 0
        near = max(_NEAR_END * min(len({e.where.rank for e in of_log}), _MOST_RANKS), usual)
        if len(said) >= (_AGAIN if here else _AGAIN_ELSEWHERE) and end - max(said) <= near:
            return True
    return False


def _raised(reading: Reading) -> Reading:
    """With the weight that it has where it is told as an error."""
    weights = {cause: weight / WARNED for cause, weight in reading.weights.items()}
    return Reading(reading.evidence, "given-up", weights, Role.CAUSE, note="until the job was ended")


def _is_number(loss: Scalar) -> bool:
    return isinstance(loss, (int, float)) and isfinite(loss)


def torn_down(
    incident: Incident, readings: Sequence[Reading], _h: History, _rules: Rules, _now: datetime
) -> list[Reading]:
    """Tasks killed after the step was aborted were killed by srun, not by a lack of memory."""
    aborted = next((i for i, r in enumerate(readings) if _ABORTED.search(r.evidence.text)), None)
    killed = next((i for i, r in enumerate(readings) if r.key == "killed"), None)
    if aborted is None or killed is None or killed < aborted:
        return []
    if any(points_to(r) is C.APP_OOM_HOST and r.strength >= LEADS for r in readings if r.key != "killed"):
        return []  # another line says it
    weights = {C.APP_OOM_HOST: -2.6}
    return [of_context(readings[killed].evidence, "torn-down", weights, "killed when the step was ended")]
