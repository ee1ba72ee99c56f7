"""Watches running jobs: observes those that stopped printing steps until they go on or are hung; reports slow ones.

``sentinel.detect.hang`` defines how long to wait and what an observation proves; this module decides which nodes to ask and
when. Nodes are asked by the daemon's own clock, since a question does no harm. A hang is concluded only from observed
silence, with a fresh report on the job's log, while enough of the cluster is in contact, and after a look at Slurm:

    silent for longer than usual -> nodes observed (``LookAtJob``) -> the job itself asked (``AskHungJob``) -> a hang is
    suspected -> Slurm still says that it runs (``ObserveFleet``) -> evidence of the stall
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.detect.activity import (
    Look,
    Motion,
    all_blocked,
    gpu_idleness,
    motion_of_job,
    stopped,
    trains_over_network,
)
from sentinel.detect.hang import (
    PEEK_EVERY_S,
    PEEK_STILL_S,
    Question,
    SilenceSeen,
    SuspectedHang,
    after_look,
    after_step,
    ask_after_s,
    ask_job_after_s,
    gpus_worked,
    hung_after_s,
    in_pause,
    next_look_s,
    peek_after_s,
    was_observed,
)
from sentinel.detect.hang_evidence import silent_since, stall_evidence
from sentinel.detect.observed_silence import after_line
from sentinel.detect.seen import AttemptSeen
from sentinel.detect.step_rhythm import allowed_s, usual_s
from sentinel.engine import grouping
from sentinel.engine.events import EffectCompleted, EvidenceReceived
from sentinel.engine.reconcile.in_allocation import training_nodes
from sentinel.engine.state import State
from sentinel.engine.transition import AskHungJob, LookAtJob, ObserveFleet, StartTimer, Transition
from sentinel.engine.watch import first_step, log_coverage
from sentinel.engine.watch.events import JobObserved, seconds_of
from sentinel.engine.watch.reconciliation import save_attempts
from sentinel.model.records import Evidence, Kind

ANSWER = "job-answer"  # timer: a suspected hang waits no longer for the job's own answer
ASK = "ask-job"  # effect
STILL_RUNS = "still-runs"  # effect
_ANSWER_S = 2.0  # a verdict waits this long for the job's own answer; a later answer is added afterwards
_SNAPSHOT_S = 1.0  # oldest snapshot that shows that the job still runs
_ANSWER_LOST = timedelta(seconds=60)  # a question without an answer for so long is asked again: its answer was lost
_SET_ASIDE = timedelta(minutes=5)  # an attempt whose examination failed by a bug is not examined for so long


def name_of(job: int, attempt: int) -> str:
    return f"{job}.{attempt}"


def _key(name: str) -> tuple[int, int] | None:
    job, _, attempt = name.partition(".")
    return (int(job), int(attempt)) if job.isdecimal() and attempt.isdecimal() else None


def check(state: State, out: Transition, now: datetime, now_s: float) -> None:
    """Examine every running attempt."""
    counts, watch = log_coverage.silence_counts(state, out, now, now_s), state.watch
    for key, seen in list(state.cluster.attempts.items()):
        if seen.ended or seen.stalled or seen.view.state != "running":
            continue
        if watch.set_aside and now - watch.set_aside.get(key, now - _SET_ASIDE) < _SET_ASIDE:
            continue
        watch.examined = key
        if seen.last_step is not None and ((saved := watch.saved.get(key)) is None or saved.last_step is None):
            save_attempts(state, out, [seen])  # from its first step on
        first_step.learn(state, out, key, seen)
        if counts and (slow := watch.slowdowns.look(seen, now)):
            out.say("job-slow", job=key[0], attempt=key[1], step=seen.last_step)
            grouping.receive(state, out, EvidenceReceived(now, tuple(slow)))
        _examine(state, out, key, seen, now, now_s, counts=counts)
    watch.examined = None


def set_aside(state: State, now: datetime) -> None:
    """The examination of an attempt failed by a bug: the others must not suffer from it."""
    if state.watch.examined is not None:
        state.watch.set_aside[state.watch.examined] = now
        state.watch.examined = None


def _examine(
    state: State, out: Transition, key: tuple[int, int], seen: AttemptSeen, now: datetime, now_s: float, *, counts: bool
) -> None:
    """Ask what must be asked about the attempt's silence, and suspect a hang when it is long enough."""
    rhythm, silence = seen.rhythm, seen.silence
    since = silent_since(seen)
    first_s = first_step.allowed_s(state, key, seen) if rhythm.last_at is None else None
    if since is None or (rhythm.last_at is None and first_s is None):
        return
    seen.observed = after_line(seen.observed, since, now_s)
    if rhythm.last_at is None:
        silence.before_first = True
    elif silence.before_first:
        seen.silence = silence = SilenceSeen(earlier=silence.earlier)
    if silence.watched.step != rhythm.last_step:
        called = silence.called_after
        mistaken_s = (since - called).total_seconds() if called is not None else 0.0
        watched = after_step(silence.watched, rhythm.last_step, max(mistaken_s, 0.0))
        seen.silence = silence = SilenceSeen(watched=watched, earlier=silence.earlier)
    elapsed_s = now_s - seen.observed.since_s
    ask_s = ask_after_s(rhythm) or state.settings.judgement.stall_floor_s
    if first_s is not None:
        ask_s = max(ask_s, first_step.ASK_SHARE * first_s)
    if elapsed_s <= ask_s and not _all_nodes_early(state, out, key, seen, now, elapsed_s):
        return
    _log(state, out, key, seen, now_s, elapsed_s)
    _observe_nodes(state, out, key, seen, now, elapsed_s)
    if not was_observed(silence.watched) or silence.suspected is not None:
        _give_up_lost_check(silence, now)
        return  # activity not known, or being checked
    limits, halted = state.settings.judgement, silence.watched.motion is Motion.STOPPED
    proven = replace(silence.watched, proven=True)
    at_once_s, hung_s = (
        hung_after_s(rhythm, seen_so, limits)
        for seen_so in (proven, proven if _proves(silence.answer) else silence.watched)
    )
    if hung_s is None or at_once_s is None:  # it has no rhythm yet
        at_once_s = hung_s = ask_s if halted else (first_s or limits.stall_startup_s)
    if not halted and elapsed_s > ask_job_after_s(ask_s, at_once_s):
        _ask_job(out, key, seen)
    if seen.observed.silent_s <= hung_s or not seen.observed.fresh(now_s) or not counts:
        return
    silence.called_after = since
    silence.suspected = SuspectedHang(stall_evidence(key, seen, now, hung_s), now)
    if silence.asked_job and silence.answer is None:
        out.do(StartTimer(f"{ANSWER}:{name_of(*key)}", now + timedelta(seconds=_ANSWER_S)))
    else:
        _check_slurm(out, key, silence, now)


def _proves(answer: Iterable[Evidence] | None) -> bool:
    """Whether the job itself answered that a collective is stuck.

    That a rank has not come to it yet is no proof: it may compute, wait for data, or evaluate. Nor is that all ranks
    launched the same operations and none moves: so it is, too, while nobody is inside one.
    """
    found = [item.data for item in answer or ()]
    proofs = [
        data for data in found if data.get("kind") not in (None, "missing", "none") and data.get("basis") != "frozen"
    ]
    return bool(proofs) or any(data.get("basis") == "dead" for data in found)


def _all_nodes_early(
    state: State, out: Transition, key: tuple[int, int], seen: AttemptSeen, now: datetime, elapsed_s: float
) -> bool:
    """Whether to ask all nodes in the middle of a long step: one node is asked first whether its GPUs are idle."""
    silence, early_s = seen.silence, peek_after_s(seen.rhythm)
    if silence.early or early_s is None or elapsed_s <= early_s or _is_asked(silence, now):
        return silence.early
    if silence.peeked_at is None or (now - silence.peeked_at).total_seconds() >= PEEK_EVERY_S:
        silence.peeked_at = now
        nodes = training_nodes(state, *key)[:1]  # in a blocked collective all GPUs wait, so that any node will do
        _ask_nodes(
            out, key, silence, Question(f"peek:{name_of(*key)}:{now.isoformat()}", now, nodes, elapsed_s, early=True)
        )
    return False


def _observe_nodes(
    state: State, out: Transition, key: tuple[int, int], seen: AttemptSeen, now: datetime, elapsed_s: float
) -> None:
    """Observe all nodes when that is due."""
    silence, nodes = seen.silence, training_nodes(state, *key)
    if _is_asked(silence, now):
        return
    rest_s = next_look_s(silence.count, len(nodes), silence.watched.waits_looks)
    if silence.looked_at is not None and (now - silence.looked_at).total_seconds() < rest_s:
        return
    effect = f"look:{name_of(*key)}:{now.isoformat()}"
    question = Question(effect, now, nodes, elapsed_s, before=silence.looked_at)
    silence.looked_at, silence.count = now, silence.count + 1
    _ask_nodes(out, key, silence, question)


def _is_asked(silence: SilenceSeen, now: datetime) -> bool:
    """Whether an answer of nodes is awaited."""
    return silence.question is not None and now - silence.question.at < _ANSWER_LOST


def _ask_nodes(out: Transition, key: tuple[int, int], silence: SilenceSeen, question: Question) -> None:
    silence.question = question
    out.do(LookAtJob(question.effect, *key, question.nodes))


def observed(state: State, out: Transition, event: JobObserved) -> None:
    """The nodes answered, or did not in time: compare with the observation before, and examine the attempt again."""
    state.cluster.place_ranks(event.evidence)
    key = _key(event.effect.split(":")[1]) if event.effect.count(":") else None
    seen = state.cluster.attempts.get(key) if key is not None else None
    if key is None or seen is None or seen.silence.question is None or seen.silence.question.effect != event.effect:
        return
    question, silence, rhythm = seen.silence.question, seen.silence, seen.rhythm
    silence.question = None
    still = gpu_idleness(question.nodes, event.looks, question.at)
    if question.early:
        silence.early = still is not None and still.still_s >= PEEK_STILL_S and gpus_worked(rhythm, still)
    else:
        silence.tasks = list(event.evidence)
        halted = any(stopped(look) is not None for look in event.looks.values())
        if question.before is not None or halted:
            limits = state.settings.judgement
            silence.watched = after_look(
                silence.watched,
                Motion.STOPPED if halted else _motion(question.nodes, silence, event.looks),
                question.before or question.at,
                question.at,
                pause=in_pause(rhythm, limits),
                beyond=question.elapsed_s > (usual_s(rhythm, limits) or 0.0),
                gpu_idleness=still,
                blocked=all_blocked(question.nodes, event.looks),
            )
            silence.early = silence.early and still is not None
        silence.looks = dict(event.looks)
    silence.earlier = silence.earlier or dict(event.looks)
    if not seen.ended and not seen.stalled and seen.view.state == "running":
        now_s = seconds_of(event)
        state.watch.examined = key
        counts = log_coverage.silence_counts(state, out, event.at, now_s)
        _examine(state, out, key, seen, event.at, now_s, counts=counts)
        state.watch.examined = None


def _motion(nodes: tuple[str, ...], silence: SilenceSeen, looks: Mapping[str, Look]) -> Motion:
    by_network = trains_over_network(nodes, silence.earlier, silence.looks)
    return motion_of_job(nodes, silence.looks, looks, by_network=by_network)


def _log(
    state: State, out: Transition, key: tuple[int, int], seen: AttemptSeen, now_s: float, elapsed_s: float
) -> None:
    silence, allowed = seen.silence, allowed_s(seen.rhythm, state.settings.judgement)
    if allowed is None:
        return
    if not silence.logged and seen.observed.silent_s > allowed:
        silence.logged = True
        out.say("job-silent", job=key[0], attempt=key[1], step=seen.last_step)
    if not seen.unread_logged and elapsed_s > allowed and not seen.observed.fresh(now_s):
        seen.unread_logged = True  # once for each attempt, however often its agent is silent
        reading = "no agent reports how far its log is read: not known whether it is silent"
        out.say("log-not-observed", warning=True, job=key[0], attempt=key[1], step=seen.last_step, reading=reading)


# --- a suspected hang -------------------------------------------------------------------------------------------------


def _ask_job(out: Transition, key: tuple[int, int], seen: AttemptSeen) -> None:
    """Ask the job itself, once for each silence, which rank blocks the others."""
    silence = seen.silence
    if silence.asked_job:
        return
    silence.asked_job = f"{ASK}:{name_of(*key)}:{seen.last_step}"
    if seen.view.uid is None or not seen.nodes:
        silence.answer = ()  # agents ask a job only as its user
        return
    out.do(AskHungJob(silence.asked_job, *key, seen.nodes, seen.rhythm.gap_s))


def job_answered(state: State, out: Transition, event: EffectCompleted) -> None:
    """The job answered: its answer is reported with the stall, or afterwards if it is late."""
    key = _key(event.effect.split(":")[1])
    seen = state.cluster.attempts.get(key) if key is not None else None
    if key is None or seen is None or seen.silence.asked_job != event.effect or seen.silence.answer is not None:
        return
    seen.silence.answer = event.evidence
    if seen.stalled and event.evidence:
        grouping.receive(state, out, EvidenceReceived(event.at, event.evidence))
    else:
        _check_slurm(out, key, seen.silence, event.at)


def answer_overdue(state: State, out: Transition, name: str, now: datetime) -> None:
    """A suspected hang waits no longer for the job's own answer."""
    key = _key(name)
    seen = state.cluster.attempts.get(key) if key is not None else None
    if key is not None and seen is not None:
        _check_slurm(out, key, seen.silence, now)


def _check_slurm(out: Transition, key: tuple[int, int], silence: SilenceSeen, now: datetime) -> None:
    suspected = silence.suspected
    if suspected is not None and suspected.checked_at is None:
        silence.suspected = SuspectedHang(suspected.stall, suspected.at, checked_at=now)
        out.do(ObserveFleet(f"{STILL_RUNS}:{name_of(*key)}", _SNAPSHOT_S, once=True))


def _give_up_lost_check(silence: SilenceSeen, now: datetime) -> None:
    if silence.suspected is not None and now - silence.suspected.at >= _ANSWER_LOST:
        silence.suspected = None


def slurm_checked(state: State, out: Transition, event: EffectCompleted) -> None:
    """Report the hang if the job still runs, printed nothing since, and its silence may be judged; else it is examined
    again at the next check."""
    _, _, name = event.effect.partition(":")
    key, now_s = _key(name), seconds_of(event)
    seen = state.cluster.attempts.get(key) if key is not None else None
    suspected = seen.silence.suspected if seen is not None else None
    if key is None or seen is None or suspected is None or suspected.checked_at is None:
        return
    silence, seen.silence.suspected = seen.silence, None
    if not _still_runs(state, key, suspected.checked_at) or silent_since(seen) != suspected.stall.at:
        return  # it ended, printed a step or was suspended meanwhile; or that is not known
    if not log_coverage.silence_counts(state, out, event.at, now_s) or not seen.observed.fresh(now_s):
        return  # the observation became stale while Slurm was asked
    seen.stalled = True
    save_attempts(state, out, [seen])  # a restarted daemon then knows its last step
    out.say("job-stalled", warning=True, job=key[0], attempt=key[1], step=seen.last_step)
    known = [item for item in silence.tasks if item.kind == Kind.TASK_STATE]
    items = (suspected.stall, *known, *(silence.answer or ()))
    grouping.receive(state, out, EvidenceReceived(event.at, items))


def _still_runs(state: State, key: tuple[int, int], asked_at: datetime) -> bool:
    """Whether Slurm says that the attempt still runs; it was asked at ``asked_at``."""
    fleet = state.cluster.fleet
    if fleet is None or state.blind_since is not None or fleet.at < asked_at - timedelta(seconds=_SNAPSHOT_S):
        return False
    view = fleet.jobs.get(key[0])
    return view is not None and view.restarts == key[1] and view.state == "running"
