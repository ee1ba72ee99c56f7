"""A daemon that starts on an older copy of its store finds jobs in Slurm whose restart it does not know of."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from sentinel.model.records import IncidentState
from sentinel.simulate.stories import history_of
from sentinel.simulate.world import World


class RolledBack(World):
    """At the first kill of the daemon the store is as it was so many seconds before."""

    def __init__(self, story: str, seed: int, number: int, lost_s: float, killed_s: float | None = None) -> None:
        super().__init__(history_of(seed, number, story))
        self.lost_s = lost_s
        if killed_s is not None:
            self.later(killed_s, lambda: self.end_life(1.0))
        self.past = [(-1.0, self._kept())]
        self.rolled_back = False

    def _kept(self) -> dict[str, Any]:
        return {name: copy.copy(value) for name, value in vars(self.store).items()}

    def save(self, what: Any) -> Any:
        saved = super().save(what)
        self.past.append((self.now_s, self._kept()))
        return saved

    def end_life(self, down_s: float) -> None:
        lived = self.daemon is not None
        super().end_life(down_s)
        if lived and self.now_s > 0 and not self.rolled_back:
            self.rolled_back = True
            since = self.now_s - self.lost_s
            vars(self.store).update([kept for at, kept in self.past if at <= since][-1])


@pytest.mark.parametrize(("number", "lost_s"), [(60, 0.5), (64, 0.5), (1, 5.0)])
def test_a_job_that_it_had_put_off_is_brought_to_its_end(number: int, lost_s: float) -> None:
    world = RolledBack("killed", 91, number, lost_s)
    assert world.run() == [] and world.rolled_back
    (job,) = (job for job in world.slurm.jobs.values() if job.id == 101)
    assert job.restarts >= 1 and not job.held


@pytest.mark.parametrize("number", [95, 111])
def test_of_a_job_that_it_held_a_moment_people_are_told(number: int) -> None:
    """Slurm shows the same hold where a person asked for it: it is not taken off."""
    world = RolledBack("killed", 91, number, 0.5)
    world.run()
    assert world.rolled_back and world.slurm.jobs[101].held
    assert IncidentState.HELD in {i.state for i in world.store.incidents.values() if i.job == 101}


def test_a_plan_of_the_copy_takes_no_node_out_that_was_rebooted_and_put_back_since() -> None:
    """The drain of n8 waited for its budget in the copy; by now n8 was drained, repaired and returned by a person."""
    world = RolledBack("put-back", 93, 2, 400.0, killed_s=719.0838)
    broken = world.run()
    assert world.rolled_back and not world.slurm.nodes["n8"].drained
    assert not [one for one in broken if "n8" in one.why]
