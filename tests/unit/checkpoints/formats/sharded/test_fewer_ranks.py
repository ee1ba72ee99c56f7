"""A step that was saved anew by fewer ranks into the folder of the first save: the shards of the others stay there."""

from __future__ import annotations

import shutil

import pytest

from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.validate import validate


def aged(make, path, seconds):
    for file in path.rglob("*"):
        if file.is_file():
            make.age(file, seconds)
    make.age(path, seconds)
    return path


def saved_anew(make, ranks=2, before=4, inside=""):
    """Two steps of a run that began anew on fewer ranks; of both nothing was deleted before."""
    for index, step in enumerate((10, 20)):
        first = aged(make, make.dcp(f"run/step-{step}{inside}", step=step, ranks=before), 90000 - 3600 * index)
        again = aged(make, make.dcp(f"again/step-{step}{inside}", step=step, ranks=ranks), 9000 - 3600 * index)
        for file in again.iterdir():
            shutil.copy2(file, first / file.name)
    return [make.root / f"run/step-{step}" for step in (10, 20)]


@pytest.mark.parametrize("level", ["structural", "checksum", "content"])
@pytest.mark.parametrize("inside", ["", "/model_and_optim"])
def test_it_is_whole(make, level, inside):
    paths = saved_anew(make, inside=inside)
    answers = [validate(path, level, now_s=make.now_s) for path in paths]
    assert [answer.reason for answer in answers if answer.valid is not True] == []
    assert all(part.valid for part in listing(make.root / "run", "global", None, level=level, now_s=make.now_s))


def test_files_that_the_new_ranks_have_one_of_each(make):
    """What is left of rank 3 does not say that the others lack theirs."""
    for path in saved_anew(make):
        for rank in range(2):
            make.write(path / f"data_rank_{rank}.pt", make.torch_file({"seen": rank}))
            make.age(path / f"data_rank_{rank}.pt", 9000 - 3600 * (path.name == "step-20"))
        answer = validate(path, "checksum", now_s=make.now_s)
        assert answer.valid is True, answer


def test_an_old_shard_that_is_named_is_of_another_save(make):
    _, path = saved_anew(make, ranks=4)
    make.age(path / "__3_0.distcp", 88000)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is None and "two saves mixed" in answer.reason, answer


def test_a_save_by_more_ranks_that_has_begun_over_it(make):
    _, path = saved_anew(make)
    make.age(path / "__0_0.distcp", 3000)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is False and "overwritten in place" in answer.reason, answer
