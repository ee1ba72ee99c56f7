"""The present code keeps its promises in a few generated histories of each story.

``tests/run``, as in CI, runs 10,000 others: ``sentinel explore --seed 2026 --histories 10000``.
"""

from __future__ import annotations

import pytest

from sentinel.simulate.explore import explore
from sentinel.simulate.stories import STORIES

SEED = 20_261
EACH = 2  # histories of each story: 20 to 50 ms each


@pytest.mark.parametrize("story", STORIES)
def test_no_promise_is_broken(story: str) -> None:
    ran = list(explore(SEED, EACH, story=story))
    found = [one.found.to_json() for one in ran if one.found is not None]
    assert len(ran) == EACH and not found, found[:2]
