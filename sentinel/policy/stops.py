"""Decides how many jobs may be stopped in the whole cluster: budgets of an hour, and a breaker for jobs that only hang.

One user's jobs may all fail or hang by one program. They count together against that user, and neither open the breaker for
the jobs of others nor use up their budget.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sentinel.config.settings import Limits
from sentinel.model.records import Fleet, Step, StepKind, Wait
from sentinel.policy.shares import at_least, at_most
from sentinel.policy.situation import SILENCE, Situation

_HOUR = timedelta(hours=1)


def too_many_stops(stop: Step, situation: Situation, limits: Limits, now: datetime) -> Wait | None:
    """What stopping this job would have to wait for, under the cluster-wide limits.

    Stopping a job for its silence alone destroys work if the detection is wrong, and many at once most likely share a cause
    outside the jobs. If the job has ended or a node is convicted, only the rate of restarts is limited.
    """
    what = (f"{'hold' if stop.kind is StepKind.HOLD else 'restart'} {stop.job}",)
    silent = stop.data.get("ground") == SILENCE
    if silent and not situation.breaker_passed and (words := _hangs_with(stop, situation, limits)):
        return Wait("hang-breaker", now, words, what, now + timedelta(seconds=limits.hung_window_s))
    hour = [known for known in situation.stops if now - known.at <= _HOUR and known.job != stop.job]
    user = situation.job.user if situation.job is not None else ""
    for of, counted in (("", hour), (user, [known for known in hour if user and known.user == user])):
        most_silent, most = stops_allowed(situation.fleet, limits, of)
        whose = f" of user {of}" if of else ""
        before = [known.at for known in counted if known.silent]
        if silent and len(before) >= most_silent:
            words = f"{len(before)} stops of silent jobs{whose} in the last hour; {most_silent} are allowed."
            return Wait("restart-budget", now, words, what, min(before, default=now) + _HOUR)
        if stop.kind is not StepKind.HOLD and len(counted) >= most:
            words = f"{len(counted)} restarts and holds of jobs{whose} in the last hour; {most} are allowed."
            return Wait("restart-budget", now, words, what, min((known.at for known in counted), default=now) + _HOUR)
    return None


def _hangs_with(stop: Step, situation: Situation, limits: Limits) -> str:
    """Which other jobs a silent one hangs with, in words; empty: too few for a shared cause.

    Whose user is not known counts as a user of its own.
    """
    own: str | int = (situation.job.user if situation.job is not None else "") or stop.job or 0
    users = Counter(user or job for job, user in situation.hung_jobs.items() if job != stop.job)
    users[own] += 1
    together = max(limits.hung_jobs, at_least(limits.hung_fraction, running_jobs(situation.fleet)))
    each = max(1, (together - 1) // 2)  # of one user: two users' programs are not enough
    if users[own] >= together:
        whose, none, number = f" of user {own}", "None of them", users[own]
    elif sum(min(number, each) for number in users.values()) >= together or (
        users.total() >= together and _most_hang(users, situation.fleet)
    ):
        whose, none, number = "", "None", users.total()
    else:
        return ""
    return (
        f"{number} jobs{whose} were called hung within {limits.hung_window_s:g} s of this one: more likely one shared cause "
        f"than so many hangs. {none} is stopped for its silence until they go on, or an operator has looked: "
        "sentinel resume."
    )


def _most_hang(users: Mapping[str | int, int], fleet: Fleet) -> bool:
    """Whether several jobs of several users hang, half of all that run and half of each of these users': a small cluster's
    outage. Of a single job beside another user's many it is not known."""
    running = Counter(job.user for job in fleet.jobs.values() if job.state == "running")
    half = all(2 * number >= running[user] for user, number in users.items() if isinstance(user, str))
    several = sum(number > 1 for number in users.values()) > 1
    return several and half and 2 * sum(users.values()) >= running.total()


def running_jobs(fleet: Fleet) -> int:
    return sum(job.state == "running" for job in fleet.jobs.values())


def stops_allowed(fleet: Fleet, limits: Limits, user: str = "") -> tuple[int, int]:
    """How many jobs may be stopped for their silence alone, and restarted, within an hour; of them ``user``'s, if given."""
    running = [job.user for job in fleet.jobs.values() if job.state == "running"]
    begun = [job.user for job in fleet.jobs.values() if job.state not in ("pending", "configuring")]
    share = limits.restarts_user_fraction
    return (
        _allowed(limits.silent_restarts_per_hour, limits.silent_restarts_fraction, running, user, share),
        _allowed(limits.restarts_per_hour, limits.restarts_fraction, begun, user, share),
    )


def _allowed(number: int, fraction: float, users: Sequence[str], user: str, share: float) -> int:
    """``number``, or ``fraction`` of the jobs of these users if that is more; of one ``user`` beside others less."""
    most, own = max(number, at_most(fraction, len(users))), users.count(user)
    if not user or own == len(users):
        return most
    return min(max(at_least(share, number), at_most(fraction, own)), max(1, most - 1))
