"""How many random stories, and which."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from chaos.drawn import GPUS, LARGE, SMALL, Size
from stories.timeline import Story

FIXED = [(2026, 1)]  # what CI runs


KILLS = 4
LEAST_KILLS = 4  # of a round, as a rule


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="random stories of this seed (default: a few fixed ones)")
    parser.addoption("--stories", type=int, default=10, help="... so many")
    parser.addoption(
        "--large", action="store_true", help=f"... on {LARGE.nodes} nodes, with more jobs and faults at once"
    )
    parser.addoption("--acts", type=int, help="... of at most so many acts")
    parser.addoption("--replay", type=int, help="... only the one of this number")
    parser.addoption("--minutes", type=float, help="none is begun after this time")
    parser.addoption("--kills", type=int, default=KILLS, help="of the daemon during recoveries")


@dataclass
class Counted:
    """Over all stories and rounds of a run."""

    kills_wanted: int
    kills: int = 0
    kills_right: int = 0  # in rounds that ended right
    stories: int = 0
    stories_right: int = 0
    acts: int = 0  # of the stories: faults, people's acts and failures of ours that came about
    acts_right: int = 0  # in stories that ended right
    incidents: int = 0  # of the stories: that people were told of


COUNTED = pytest.StashKey[Counted]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    if "kill_round" in metafunc.fixturenames:
        seed = option("--seed", None) or 2026
        rounds = range(1, 1 + -(-option("--kills", KILLS) // LEAST_KILLS))
        metafunc.parametrize("kill_round", [(seed, n) for n in rounds], ids=[f"{seed}-{n}" for n in rounds])
    if "chance" not in metafunc.fixturenames:
        return
    seed, replay = option("--seed", None), option("--replay", None)
    wanted = FIXED
    if seed is not None:
        numbers = [replay] if replay is not None else range(1, option("--stories") + 1)
        wanted = [(seed, number) for number in numbers]
    metafunc.parametrize("chance", wanted, ids=[f"{seed}-{number}" for seed, number in wanted])


@pytest.fixture(scope="session")
def began() -> float:
    return time.monotonic()


@pytest.fixture(scope="session")
def size(request: pytest.FixtureRequest) -> Size:
    found = LARGE if request.config.getoption("--large", False) else SMALL
    most = request.config.getoption("--acts", None)
    return found if most is None else replace(found, acts=(min(found.acts[0], most), most))


@pytest.fixture
def stage(
    new_lab: Callable[..., Any], made: list[Any], request: pytest.FixtureRequest, began: float, size: Size
) -> Iterator[Story]:
    """A story in a lab of its own: what happened to nodes and jobs before counts for judgements."""
    minutes = request.config.getoption("--minutes", None)
    if minutes is not None and time.monotonic() - began > 60 * minutes:
        pytest.skip(f"optional: {minutes} minutes are over")
    lab = new_lab("--nodes", str(size.nodes), "--gpus", str(GPUS))
    # Stories follow one another faster than failures on a real cluster do.
    Story(lab).restart_daemon({"drain_count = 100": "drain_count = 100\nbreaker_nodes = 1000"})
    yield Story(lab)
    lab.run("down")
    shutil.rmtree(lab.dir.parent)
    made.remove(lab)


@pytest.fixture(scope="session")
def counted(request: pytest.FixtureRequest) -> Counted:
    return request.config.stash.setdefault(COUNTED, Counted(request.config.getoption("--kills", KILLS)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    found = config.stash.get(COUNTED, None)
    if found is not None and found.stories:
        text = f"random stories: {found.stories} with {found.acts} acts and {found.incidents} incidents; "
        text += f"{found.stories_right} with {found.acts_right} acts ended right"
        terminalreporter.write_line(text)
    if found is not None and found.kills:
        terminalreporter.write_line(f"kill -9: {found.kills}, in rounds that ended right: {found.kills_right}")
