"""explore finds faults planted into the return of drained nodes; see ``test_planted_faults``."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sentinel.engine.node_return import turns
from sentinel.engine.node_return.next_step import PutBack, RunTest
from sentinel.simulate.explore import run
from sentinel.simulate.histories import Happening, History, Setup
from sentinel.simulate.stories import history_of

Patch = pytest.MonkeyPatch
SEED = 1
BUS_FAULT = Happening("gpu-off-bus", 60.0, "job0/1")


def broken(history: History) -> set[str]:
    return {one.promise for one in run(history)[0]}


def untested(patch: Patch) -> None:
    real = turns.next_step

    def next_step(*what: Any) -> Any:
        needed, missing = real(*what)
        return (PutBack() if isinstance(needed, RunTest) else needed), missing

    patch.setattr(turns, "next_step", next_step)


def test_explore_finds_a_return_without_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    histories = [history_of(SEED, number, "returned") for number in range(8)]
    assert not any("proof-before-return" in broken(history) for history in histories)
    untested(monkeypatch)
    assert any("proof-before-return" in broken(history) for history in histories)


def test_explore_finds_a_return_of_what_a_person_took_over(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [
        History(SEED, number, "returned", Setup(returns=True), (BUS_FAULT, Happening("drain", 75.0, "n2")), 500.0)
        for number in range(6)
    ]
    assert not any("only-what-is-ours" in broken(history) for history in taken)
    monkeypatch.setattr(
        turns, "_with_reason", lambda _state, record, view: dataclasses.replace(record, reason=view.reason)
    )
    monkeypatch.setattr("sentinel.adapters.slurm.writer.OURS", "")  # and the writer's own look
    assert any("only-what-is-ours" in broken(history) for history in taken)
