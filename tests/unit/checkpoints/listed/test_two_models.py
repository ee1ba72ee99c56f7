"""Two models of one run in folders of their own go on from one step, or the run trains states that never were together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.agent.probes.quarantine import answer
from sentinel.checkpoints import quarantine as q
from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.records import Candidate, Costs
from sentinel.daemon.effects.unusable_parts import unusable


def saved(path, step, **changes):
    base = {
        "path": path, "step": step, "tier": "global", "format": "dcp", "bytes": 7, "world_size": None, "shards": {},
        "valid": True, "level": "content", "reason": "torn", "written_s": 1e9 + step * 600,
    }  # fmt: skip
    return Candidate(**(base | changes))


def two(torn=True, other="critic", apart_s=5.0, bytes_then=9, **changes):
    found = [saved(f"/r/actor/step-{step}", step) for step in (10, 20, 30)]
    for step in (10, 20, 30):
        how = changes | ({"valid": False} if torn and step == 30 else {})
        at_s = 1e9 + step * 600 + apart_s
        found.append(saved(f"/r/{other}/step-{step}", step, **({"bytes": bytes_then, "written_s": at_s} | how)))
    return found


def chosen_of(candidates):
    return choose(
        candidates, step_last=None, step_time_s=1.0, next_nodes=None, lost_nodes=frozenset(), world_size=None,
        costs=Costs(),
    )  # fmt: skip


def test_a_step_that_is_torn_in_one_of_them_is_not_chosen():
    decision = chosen_of(two())
    assert decision.chosen.step == 20 and decision.lost_steps == 10
    (actor,) = [entry for entry in decision.candidates if entry.candidate.path == "/r/actor/step-30"]
    assert "critic/step-30" in actor.verdict and "another model" in actor.verdict and not actor.feasible


@pytest.mark.parametrize(
    "candidates",
    [
        two(torn=False),
        two(apart_s=7200),  # another run's
        two(apart_s=0, bytes_then=7),  # copies
        two(written_s=0.0),  # not known
        two(other="best"),
        [one for one in two() if one.step == 30],  # nothing says that the two belong together
        [one if one.valid else saved(one.path, 30, valid=None) for one in two()],  # unknown is no reason
        [
            saved(one.path.replace("actor", "run1").replace("critic", "run2"), one.step, valid=one.valid)
            for one in two()
        ],
        [saved(one.path.replace("/r/critic", "/other/critic"), one.step, valid=one.valid) for one in two()],
    ],
)
def test_what_is_not_known_to_be_of_two_models_is_judged_by_itself(candidates):
    assert chosen_of(candidates).chosen.step == 30


def run_of(make, how):
    """Both models' saves, the second one's newest torn; each folder has what names its newest."""
    for model in ("_actor", "_critic"):
        for step in (10, 20, 30):
            if how == "deepspeed":
                path = make.deepspeed(f"run/{model}/global_step{step}", step)
                (path.parent / "latest").write_text(path.name)
            else:
                path = make.dcp(f"run/{model}/step-{step}", step=step)
                (path.parent / "newest").unlink(missing_ok=True)
                os.symlink(path.name, path.parent / "newest")
    for file in (make.root / "run/_critic").rglob("*"):
        if file.is_file():
            status = file.stat()
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 5_000_000_000))
    torn = max(path.rglob("*optim_states.pt" if how == "deepspeed" else "*.distcp"))
    status = torn.stat()
    os.truncate(torn, status.st_size // 2)
    os.utime(torn, ns=(status.st_atime_ns, status.st_mtime_ns))
    return make.root / "run"


@pytest.mark.parametrize("how", ["deepspeed", "dcp"])
def test_both_go_on_from_the_same_step(make, how):
    root = run_of(make, how)
    parts = [part.after_its_writer() for part in listing(root, "global", "n1", now_s=make.now_s)]
    candidates = join([parts])
    chosen = chosen_of(candidates).chosen
    assert chosen.step == 20
    bad = unusable(parts, candidates, {"step": chosen.step, "path": chosen.path})
    asked = {"root": str(root), "paths": [part.path for part in bad], "chosen": chosen.path}
    told = answer(asked)["result"]
    name = Path(chosen.path).name
    for model in (root / "_actor", root / "_critic"):
        assert not list(model.glob("*step*30")) and (model / name).is_dir()
        says = (model / "latest").read_text() if how == "deepspeed" else os.readlink(model / "newest")
        assert says == name, model
    assert told["left"] == [] and answer(asked)["result"] == told
    q.undo(root)
    assert all(list(model.glob("*step*30")) for model in root.iterdir())
    assert {(one.read_text() if how == "deepspeed" else os.readlink(one)) for one in root.glob("*/*est")} == {
        name.replace("20", "30")
    }
