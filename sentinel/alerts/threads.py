"""Decides which message of an incident's thread comes next, and whether it is the last. Pure.

A stage is told once it is reached and never before: *restarting*, then *running again* or *failed*; what waited for a
person or failed is *resolved* when its incident closes. What people are asked for is told with whatever is told then; what
they are asked for later (a maintenance reservation has ended) is a message of its own, whatever the stage is, and so is what
became of a request. That the reservation is there again, and what is wanted waits for that, is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sentinel.alerts.audiences import severity_of
from sentinel.alerts.stages import IncidentFacts, Stage, reached, stage_of
from sentinel.alerts.text import plain
from sentinel.model.approvals import APPROVAL, LAPSED, REFUSED, asked
from sentinel.model.records import IncidentState, Result

REQUESTS = {APPROVAL: Stage.ASKED, LAPSED: Stage.LAPSED, REFUSED: Stage.REFUSED}  # by kind of wait
_OF_JOBS = frozenset({Stage.RESTARTING, Stage.RUNNING, Stage.HELD, Stage.FAILED})
SEVERITIES = ("info", "warning", "critical")
MOST_MESSAGES = 12  # of one incident, and its end: one that goes back and forth has said by then what it is


@dataclass(frozen=True, slots=True)
class Thread:
    """The messages sent about an incident so far."""

    stages: tuple[str, ...]  # that were told, in order; never empty
    worst: str = ""  # severity so far
    final: bool = False  # nothing more is expected
    joined: str = ""  # the incident whose thread tells of it; empty: this one has its own
    labels: Mapping[str, str] = field(default_factory=dict)  # of the first message: later ones are found by them
    # Of the newest request for an approval that was told of: when it began, lapsed or was refused, ISO 8601; empty: none.
    asked: str = ""
    beside: str = ""  # the stage of which they know, where the last message was about a request alone


def thread_from(stored: Mapping[str, Any]) -> Thread:
    """A thread as the store has it. Earlier releases did not keep what people knew of the job beside a request: what the
    thread had told them of it."""
    known = dict(stored)
    if "beside" in known and known["beside"] is None:
        *before, last = stored["stages"]
        of_job = (stage for stage in reversed(before) if stage in _OF_JOBS)
        known["beside"] = next(of_job, "") if last in REQUESTS.values() else ""
    return Thread(**known)


def next_stage(thread: Thread | None, facts: IncidentFacts) -> Stage | None:
    """The stage to send a message about now; None if it was sent already.

    An incident whose last message was final is told of again only when it goes on (late evidence, a step done again).
    """
    stage, closed = stage_of(facts), facts.incident.state is IncidentState.CLOSED
    over = closed and stage is Stage.RESTARTING  # it restarts nothing any more
    if thread is None:
        return Stage.RESOLVED if over else stage
    if len(thread.stages) >= MOST_MESSAGES and (thread.final or not closed):
        return None
    unwanted = stage is Stage.HANDLED and not any(outcome.result is Result.DONE for outcome in facts.outcomes)
    request = _newest_request(facts)
    news = request if request is not None and request[0] > thread.asked else None
    if news is not None and news[1] is not Stage.ASKED and news[1] == thread.stages[-1]:
        news = None  # refused again is refused still
    if news is None and stage in REQUESTS.values() and reached(facts) in _OF_JOBS:
        stage = reached(facts)  # people know what became of the request
    known = thread.beside if thread.beside and request is not None else thread.stages[-1]
    if request is None and known in REQUESTS.values() and facts.plan is not None and facts.plan.waits:
        known = _before_requests(thread)  # nobody answered: what is wanted waits for something else again
    if stage != known and thread.stages[-1] != Stage.RESOLVED and not unwanted and not over:
        return stage
    if news is not None and stage not in (Stage.RESOLVED, Stage.CANCELLED):
        return news[1]
    return Stage.RESOLVED if closed and not thread.final else None


def _before_requests(thread: Thread) -> str:
    """What people know of the job beside the requests that were told last."""
    told = (stage for stage in reversed(thread.stages) if stage not in REQUESTS.values())
    return thread.beside or next(told, "")


def is_news_to_owner(thread: Thread) -> bool:
    """Whether the last message says more to the job's owner than the one before: beside a stage of the job that they know,
    for how many nodes and how often operators are asked is not theirs to answer."""
    return not (thread.beside and thread.stages[-2:] == (Stage.ASKED, Stage.ASKED))


def with_next(thread: Thread | None, facts: IncidentFacts, stage: Stage, joined: str) -> Thread:
    """The thread after the message of this stage."""
    severity, closed = severity_of(facts), facts.incident.state is IncidentState.CLOSED
    request = _newest_request(facts)
    told = request[0] if request is not None else ""
    if thread is None:
        return Thread((str(stage),), severity, closed, joined, _labels(facts), told)
    worst = max(thread.worst, severity, key=SEVERITIES.index)
    of_job = reached(facts)
    beside = str(of_job) if stage in REQUESTS.values() and of_job in _OF_JOBS else ""
    return Thread((*thread.stages, str(stage)), worst, closed, joined, thread.labels, max(thread.asked, told), beside)


def _newest_request(facts: IncidentFacts) -> tuple[str, Stage] | None:
    """Of the newest request for an approval: when it began, lapsed or was refused, ISO 8601, and which of these; None: there
    is none. While something is still asked for, that a part was refused is no state of its own."""
    found = asked(facts.plan) if facts.plan is not None else ()
    waits = [wait for wait in found if wait.kind == APPROVAL] or found
    newest = max(waits, key=lambda wait: wait.since, default=None)
    return (newest.since.isoformat(), REQUESTS[newest.kind]) if newest is not None else None


def _labels(facts: IncidentFacts) -> Mapping[str, str]:
    """What sites route and silence by. Values are names of Slurm's and our own words."""
    job, verdict, nodes = facts.job, facts.verdict, facts.verdict.culprits.nodes
    found = {
        "cause": str(verdict.cause),
        "scope": str(verdict.scope),
        "job": f"{facts.incident.job}" if facts.incident.job is not None else "",
        "partition": plain(job.partition, 64) if job is not None else "",
        "user": plain(job.user, 64) if job is not None else "",
        "node": plain(nodes[0], 64) if len(nodes) == 1 else "",
    }
    return {key: value for key, value in found.items() if value}
