"""Saves in a folder whose name says that they were deleted or set aside are none to go back to."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import find, listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.parsing.copy_names import holds_none_for_use
from sentinel.checkpoints.records import Costs

SET_ASIDE = ("trash", "bad", "corrupted", "to_delete", "toDelete", "to_be_deleted", "todelete", "Broken", "failed",
             "bad_ckpts", "corrupted-checkpoints", "deleted_steps", "_trash_", "checkpoints_bad", "run_3_bad",
             "step_40_deleted", "2026-11-01_broken", "quarantined", "incomplete")  # fmt: skip
RUNS = ("badger", "bad_lr", "run_bad_init", "deleted_layers_exp", "trash_talk_v2", "tmp", "temp_0.7", "lr_0.1_tmp", "old",
        "backup", "best", "broken_ice_3", "run7", "checkpoints", "saves", "failed_jobs_model", "step_40")  # fmt: skip


def chosen(make, root):
    parts = listing(root, "global", None, now_s=make.now_s)
    decision = choose(
        join([parts]),
        step_last=None,
        step_time_s=1.0,
        next_nodes=None,
        lost_nodes=frozenset(),
        world_size=None,
        costs=Costs(),
    )
    return decision.chosen, {part.key: part.reason for part in parts}


@pytest.mark.parametrize("name", [*SET_ASIDE, *RUNS])
def test_names(name):
    assert holds_none_for_use(name) is (name in SET_ASIDE)


@pytest.mark.parametrize("run", ["", "run/"])
@pytest.mark.parametrize(
    "name", ["trash", "bad", "corrupted", "to_delete", "trash/2026", "step_40_deleted", "iter_9.bad"]
)
def test_newer_saves_there(make, name, run):
    for step, folder in ((20, run), (30, f"{run}{name}/")):
        make.dcp(f"top/{folder}step-{step}", step=step)
    best, reasons = chosen(make, make.root / "top")
    assert best is not None and best.step == 20
    above = f"{run}{name}".removesuffix("/2026")
    assert above in reasons and not any(key.startswith(f"{above}/") for key in reasons), reasons


@pytest.mark.parametrize("name", ["trash", "run_3_bad", "failed"])
def test_whoever_names_that_folder_means_it(make, name):
    """So may the path of a job be called that saves there."""
    make.dcp(f"{name}/top/run/step-30", step=30)
    for root in (make.root / name, make.root / name / "top", make.root / name / "top/run"):
        assert [spot.path.name for spot in find(root).spots] == ["step-30"]
        best, _ = chosen(make, root)
        assert best is not None and best.step == 30


@pytest.mark.parametrize("name", ["tmp", "lr_0.1_tmp", "badger", "step_40"])
def test_a_run_of_such_a_name_is_looked_at(make, name):
    make.dcp(f"top/{name}/step-30", step=30)
    best, reasons = chosen(make, make.root / "top")
    assert best is not None and best.step == 30, reasons
