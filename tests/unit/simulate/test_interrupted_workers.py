"""Ctrl-C goes to the command and to its workers at once: the command takes it, and ends them without a word."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from sentinel.simulate import explore
from sentinel.simulate.long_run import seeds
from sentinel.simulate.long_run.scenario import Scenario


def _how_it_takes_it(_task: object) -> Any:
    return 0, signal.getsignal(signal.SIGINT)


def test_workers_of_explore_leave_an_interrupt_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "_one", _how_it_takes_it)
    found: list[Any] = list(explore.explore(1, 4, processes=2))
    assert {how for _, how in found} == {signal.SIG_IGN}


def test_workers_of_simulate_leave_an_interrupt_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "_task", _how_it_takes_it)
    found: list[Any] = list(seeds.run_all([Scenario()], [1, 2], ["sentinel"], processes=2))
    assert {how for _, how in found} == {signal.SIG_IGN}
