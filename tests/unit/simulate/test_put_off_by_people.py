"""A job that a person requeued and had start far ahead, or held, is that person's: nobody else lets it go."""

from __future__ import annotations

import pytest

from sentinel.simulate.slurm.records import SimulatedJob
from sentinel.simulate.stories import history_of
from sentinel.simulate.world import World

_DAY_S = 86_400.0


class PutOff(World):
    """A person requeues job 101 at 200 s, and has it start so many days later; None: holds it."""

    def __init__(self, days: float | None, *, killed_s: float | None = None) -> None:
        super().__init__(history_of(91, 3, "put-back"))
        self.days = days
        self.later(200.0, self._requeue)
        if killed_s is not None:
            self.later(killed_s, lambda: self.end_life(20.0))

    @property
    def job(self) -> SimulatedJob:
        return self.slurm.jobs[101]

    def _requeue(self) -> None:
        self.observer.person(101, "requeue")
        if self.days is None:
            self.observer.person(101, "hold")
            self.slurm.person_requeues_and_holds(101)
        else:
            self.slurm.person_requeues(101)
            self._put_off()

    def _put_off(self) -> None:
        if self.job.completing:
            self.later(0.5, self._put_off)
        elif self.days is not None:
            self.job.eligible = self.slurm.time_s() + self.days * _DAY_S


@pytest.mark.parametrize("days", [30.0, 60.0])
@pytest.mark.parametrize("killed_s", [None, 150.0, 260.0])
def test_a_job_that_a_person_put_off_by_a_month_is_not_started(days: float, killed_s: float | None) -> None:
    """Neither while the daemon watches, nor by the next one: what its store has is whole up to its last word."""
    world = PutOff(days, killed_s=killed_s)
    world.run()
    assert world.job.state == "PENDING" and not world.job.held
    assert world.job.eligible - world.slurm.time_s() > (days - 1.0) * _DAY_S
    assert not [incident for incident in world.store.incidents.values() if incident.job == 101]


def test_of_a_job_put_off_by_two_months_while_no_daemon_was_alive_it_is_known_that_sentinel_did_not() -> None:
    world = PutOff(60.0, killed_s=190.0)
    world.run()
    assert world.job.eligible - world.slurm.time_s() > 59.0 * _DAY_S


@pytest.mark.parametrize("killed_s", [None, 260.0])
def test_of_a_job_that_a_person_requeued_and_holds_nobody_is_told(killed_s: float | None) -> None:
    world = PutOff(None, killed_s=killed_s)
    assert world.run() == [] and world.job.held
    assert not [incident for incident in world.store.incidents.values() if incident.job == 101]
