"""Random stories of faults, people and our own failures on a real Slurm: at the end of each, every promise holds.

python -m pytest tests/acceptance/chaos/test_stories.py --seed 7 --stories 500 --minutes 300
python -m pytest tests/acceptance/chaos/test_stories.py --seed 7 --stories 500 --minutes 300 --acts 24
python -m pytest tests/acceptance/chaos/test_stories.py --seed 7 --stories 500 --minutes 300 --large
python -m pytest tests/acceptance/chaos/test_stories.py --seed 7 --replay 31
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from chaos.acts import perform, thaw
from chaos.drawn import Size, draw
from chaos.performance import Performance
from chaos.promises import broken, look
from stories.timeline import Story

pytestmark = pytest.mark.slurm

WITHIN_S = 300.0
AGAIN_S = 4.0  # between two looks, in which a job that runs gains steps


def test_every_promise_holds(stage: Story, chance: tuple[int, int], counted: Any, size: Size):
    drawn = draw(*chance, size)
    print(drawn)
    counted.stories += 1
    performance = Performance(stage, drawn)
    try:
        facts = perform(performance)
        print("\n".join(facts.said))
        deadline = time.monotonic() + WITHIN_S
        right, last = 0, ["nothing"]
        before = look(stage, facts)
        while right < 2:  # and it stays so
            time.sleep(AGAIN_S)
            now = look(stage, facts)
            wrong = broken(stage, facts, before, now)
            if not stage.quiet():
                wrong.append(f"an incident is open: {stage.view('incidents')}")
            last = wrong or last
            before, right = now, 0 if wrong else right + 1
            if time.monotonic() > deadline and wrong:
                pytest.fail(f"within {WITHIN_S:.0f} s:\n" + "\n".join([*wrong, str(drawn), *facts.said]))
        print(
            f"right after {WITHIN_S - deadline + time.monotonic():.0f} s more; last of what was not:", *last, sep="\n"
        )
        counted.stories_right += 1
        counted.acts_right += len(facts.said)
    finally:
        thaw(stage)
        counted.acts += len(performance.facts.said)
        counted.incidents += len(stage.corrections())
