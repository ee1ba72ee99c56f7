"""NeMo resumes from the save whose name ends in ``-last`` alone: without one it trains from scratch beside whole saves."""

from __future__ import annotations

import os

import pytest
from saves.commands import run as command

from sentinel.agent.probes.quarantine import answer
from sentinel.checkpoints import quarantine as q
from sentinel.daemon.effects.unusable_parts import words_of_links
from sentinel.errors import UserError

NAME = "gpt--val_loss=2.0{}-step={}-consumed_samples={}.0{}"


def name_of(step, end=""):
    return NAME.format(step // 10, step, step * 8, end)


@pytest.fixture(params=["folder", "file"])
def run(make, request):
    for step, end in ((10, ""), (20, ""), (30, ""), (30, "-last")):
        if request.param == "folder":
            make.nemo(f"run/{name_of(step, end)}", step)
        else:
            make.lightning(f"run/{name_of(step, end)}.ckpt", step)
    return make.root / "run"


def save(run, step, end=""):
    return next(path for path in run.iterdir() if path.name.removesuffix(".ckpt") == name_of(step, end))


def test_it_stays_where_none_is_left_and_is_told(run):
    last, torn, chosen = save(run, 30, "-last"), save(run, 30), save(run, 20)
    asked = {"root": str(run), "paths": [str(last), str(torn)], "chosen": str(chosen)}
    told = answer(asked)["result"]
    assert [source for source, _ in told["moved"]] == [str(torn)] and last.exists()
    (words,) = words_of_links(told)
    assert str(last) in words and "NeMo" in words and "resume_from_path" in words
    assert answer(asked)["result"]["left"] == told["left"] == [[str(last), "NeMo"]]


@pytest.mark.parametrize("stays", [True, False])
def test_it_goes_where_another_one_stays(run, stays):
    last, other = save(run, 30, "-last"), save(run, 20)
    renamed = run / last.name.replace(name_of(30), name_of(20))
    other.rename(renamed)
    chosen = renamed if stays else save(run, 10)
    told = answer({"root": str(run), "paths": [str(last)], "chosen": str(chosen)})["result"]
    assert not last.exists() and told["left"] == []


def test_a_person_may_move_it_by_its_name_alone(run):
    last = save(run, 30, "-last")
    refused = command("quarantine", run, "--newer-than", 20, "--yes")
    assert isinstance(refused.exception, UserError) and "NeMo" in refused.exception.message
    assert len(os.listdir(run)) == 4
    assert command("quarantine", run, last, "--yes").exception is None and not last.exists()
    assert [move.source for move in q.undo(run)] == [str(last)]
