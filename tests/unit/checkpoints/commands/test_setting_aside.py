"""Setting aside: everything is checked before the first thing is moved, and no tracker names what is gone."""

from __future__ import annotations

import os

import pytest
from saves.commands import rows, run

from sentinel.errors import UserError


@pytest.fixture
def megatron(make):
    for step in (100, 200, 300):
        make.megatron(f"run/iter_{step:07d}", step=step)
    root = make.root / "run"
    (root / "latest_checkpointed_iteration.txt").write_text("300")
    return root


def refused_and_nothing_moved(root, result):
    assert isinstance(result.exception, UserError), result.output
    assert {"iter_0000100", "iter_0000200", "iter_0000300"} <= set(os.listdir(root))
    assert (root / "latest_checkpointed_iteration.txt").read_text() == "300"
    assert not (root.parent / ".quarantine").exists()
    return result.exception.message


def test_the_tracker_names_the_step_that_stays(megatron):
    result = run("quarantine", megatron, "--newer-than", 200, "--point-to", 200, "--yes", "--json")
    assert [row["source"] for row in rows(result)] == [str(megatron / "iter_0000300")]
    assert (megatron / "latest_checkpointed_iteration.txt").read_text() == "200"


@pytest.mark.parametrize("step", [20, 300])
def test_a_step_that_is_not_there_or_goes_itself(megatron, step):
    result = run("quarantine", megatron, "--newer-than", 200, "--point-to", step, "--yes")
    assert str(step) in refused_and_nothing_moved(megatron, result)


def test_a_part_of_the_step_that_is_to_be_named(megatron):
    part = next(path for path in (megatron / "iter_0000200").iterdir() if path.is_file())
    refused_and_nothing_moved(megatron, run("quarantine", megatron, part, "--point-to", 200, "--yes"))


def test_no_tracker_to_point(make):
    for step in (10, 20):
        make.dcp(f"run/step-{step}", step=step, ranks=1)
    root = make.root / "run"
    result = run("quarantine", root, "--newer-than", 10, "--point-to", 10, "--yes")
    assert "has no tracker" in result.exception.message and sorted(os.listdir(root)) == ["step-10", "step-20"]


def test_what_the_tracker_names_is_not_moved_from_under_it(megatron):
    for words in (("--newer-than", 200), (megatron / "iter_0000300",)):
        message = refused_and_nothing_moved(megatron, run("quarantine", megatron, *words, "--yes"))
        assert "names iter_0000300" in message
    tracker = megatron / "latest_checkpointed_iteration.txt"
    assert run("quarantine", megatron, megatron / "iter_0000300", tracker, "--yes").exception is None
    assert sorted(os.listdir(megatron)) == ["iter_0000100", "iter_0000200"]


def test_the_tracker_of_a_run_below_the_folder(megatron):
    result = run("quarantine", megatron.parent, megatron / "iter_0000300", "--yes")
    refused_and_nothing_moved(megatron, result)


def test_one_that_is_not_there_beside_one_that_is(megatron):
    result = run("quarantine", megatron, megatron / "iter_0000200", megatron / "iter_0000020", "--yes")
    assert "iter_0000020 is not there" in refused_and_nothing_moved(megatron, result)


def test_named_twice_and_what_lies_in_another_one(megatron):
    newest = megatron / "iter_0000300"
    again = f"{megatron}/./iter_0000300/"
    part = next(path for path in newest.iterdir() if path.is_file())
    result = run("quarantine", megatron, newest, again, part, "--newer-than", 200, "--point-to", 100, "--yes", "--json")
    assert [row["source"] for row in rows(result)] == [str(newest)], result.exception
    assert run("quarantine", megatron, newest, "--yes").exception is None  # once more, as after an end in between
