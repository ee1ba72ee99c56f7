"""Moving aside what a framework's tracker or list names: it would not start any more."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from saves.commands import run as command

from sentinel.agent.probes.quarantine import answer, move_aside
from sentinel.checkpoints import quarantine as q
from sentinel.checkpoints.setting_aside import trackers
from sentinel.checkpoints.validate import validate
from sentinel.errors import UserError

LIST = "checkpoint_manager_snapshot.json"
RAY = [f"checkpoint_2026-11-30_03-42-1{number}.701471" for number in range(3)]


def ray(make):
    """As Ray 2.60 keeps its list; the results in the order of a score."""
    for number, name in enumerate(RAY):
        state = make.state(number)
        make.write(make.root / f"run/{name}/optimizer.pt", make.torch_file({"state": state[0]}, state[1]))
    results = [{"version": 0, "checkpoint_dir_name": name, "metrics": {"loss": 1 / 3}} for name in RAY]
    listed = {
        "ray_version": "2.60.0",
        "checkpoint_results": [results[1], results[2], results[0]],
        "checkpoint_report_indices": [3, 4, 2],
        "latest_checkpoint_result": results[2],
        "pending_training_results": [results[2]],
        "pending_validation_specs": [True],
        "current_report_index": 5,
        "validated_checkpoint_dir_names": [],
    }
    (make.root / "run" / LIST).write_text(json.dumps(listed))
    return [make.root / "run" / name for name in RAY]


def as_ray_reads(root):
    """The names in its list, each with the number of its report, and the one that it resumes from."""
    listed = json.loads((root / LIST).read_text())
    names = [entry["checkpoint_dir_name"] for entry in listed["checkpoint_results"]]
    assert all((root / name).is_dir() for name in names), "CheckpointManagerInitializationError"
    assert len(names) == len(listed["checkpoint_report_indices"])
    assert len(listed["pending_training_results"]) == len(listed["pending_validation_specs"])
    assert all(entry["checkpoint_dir_name"] in names for entry in listed["pending_training_results"])
    latest = listed["latest_checkpoint_result"]["checkpoint_dir_name"]
    assert latest in names
    return dict(zip(names, listed["checkpoint_report_indices"], strict=True)), latest


@pytest.mark.parametrize("chosen", [None, 1, 0])
def test_rays_list_holds_what_stays(make, chosen):
    saves = ray(make)
    root, before = saves[0].parent, (saves[0].parent / LIST).read_bytes()
    moves = move_aside(root, [str(saves[2])], None, "torn", None if chosen is None else saves[chosen])
    named = RAY[1 if chosen is None else chosen]
    assert not saves[2].exists() and [move.points_to for move in moves] == ["", named]
    assert as_ray_reads(root) == ({RAY[1]: 3, RAY[0]: 2}, named)
    assert json.loads((root / LIST).read_text())["current_report_index"] == 5
    assert move_aside(root, [str(saves[2])], None, "torn", saves[1]) == moves
    assert len(q.undo(root, [saves[2]])) == 2
    assert (root / LIST).read_bytes() == before and as_ray_reads(root)[1] == RAY[2]


def test_rays_latest_stays_where_another_one_is_moved(make):
    saves = ray(make)
    move_aside(saves[0].parent, [str(saves[0])], None, "torn")
    assert as_ray_reads(saves[0].parent) == ({RAY[1]: 3, RAY[2]: 4}, RAY[2])


def test_what_is_all_that_rays_list_names_stays(make):
    saves = ray(make)
    asked = {"root": str(saves[0].parent), "paths": [str(path) for path in saves]}
    told = answer(asked)["result"]
    assert told["moved"] == [] and sorted(told["left"]) == [[str(path), str(path.parent / LIST)] for path in saves]
    assert as_ray_reads(saves[0].parent)[1] == RAY[2] and answer(asked)["result"] == told
    assert isinstance(command("quarantine", saves[0].parent, *saves, "--yes").exception, UserError)
    assert all(path.exists() for path in saves)
    assert command("quarantine", saves[0].parent, *saves, saves[0].parent / LIST, "--yes").exception is None
    assert os.listdir(saves[0].parent) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"checkpoint_results": 7}', '{"checkpoint_results": [7]}', "\0" * 64])
def test_a_list_that_is_none_hinders_nothing(make, text):
    saves = ray(make)
    (saves[0].parent / LIST).write_text(text)
    (saves[0].parent / "last_checkpoint").write_text(text)
    move_aside(saves[0].parent, [str(saves[2])], None, "torn", saves[1])
    assert not saves[2].exists() and (saves[0].parent / LIST).read_text() == text


def mmengine(make, prefix=""):
    for step in (10, 20, 30):
        make.legacy(f"run/iter_{step}.pth", step=step)
    root = make.root / "run"
    (root / "last_checkpoint").write_text(f"{prefix}iter_30.pth")
    return root


def megatron(make):
    for step in (10, 20, 30):
        make.megatron(f"run/iter_{step:07d}", step=step)
    (make.root / "run/latest_checkpointed_iteration.txt").write_text("30\n")
    return make.root / "run"


def verl(make):
    """verl gives the number alone in a file of Megatron-LM's name, and has folders of its own name."""
    for step in (10, 20, 30):
        state, payloads = make.state(step)
        path = make.root / f"run/global_step_{step}/actor/optim_world_size_1_rank_0.pt"
        make.write(path, make.torch_file({"state": state}, payloads))
    (make.root / "run/latest_checkpointed_iteration.txt").write_text("30")
    return make.root / "run"


def deepspeed(make):
    for step in (10, 20, 30):
        make.deepspeed(f"run/global_step{step}", step=step)
    (make.root / "run/latest").write_text("global_step30")
    return make.root / "run"


def loop(make, named="step-30", name="step-{}"):
    """People's own loops, and nanotron, keep the last save's name, its path or its number."""
    for step in (10, 20, 30):
        state, payloads = make.state(step)
        make.write(make.root / "run" / name.format(step) / "model.pt", make.torch_file({"state": state}, payloads))
    (make.root / "run/latest.txt").write_text(named)
    return make.root / "run"


def test_of_verls_run_the_folder_is_to_be_named(make):
    told = validate(verl(make), "structural")
    assert told.valid is None and "global_step_30" in told.reason


TRACKED = {
    "mmengine": (mmengine, "last_checkpoint", "iter_{}.pth", "iter_20.pth"),
    "megatron": (megatron, "latest_checkpointed_iteration.txt", "iter_00000{}", "20"),
    "verl": (verl, "latest_checkpointed_iteration.txt", "global_step_{}", "20"),
    "deepspeed": (deepspeed, "latest", "global_step{}", "global_step20"),
    "loop": (loop, "latest.txt", "step-{}", "step-20"),
    "loop, a path": (lambda make: loop(make, "/data/run/step-30\n"), "latest.txt", "step-{}", "/data/run/step-20\n"),
    "loop, the step": (lambda make: loop(make, "30"), "latest.txt", "step-{}", "20"),
    "loop, the number in its name": (
        lambda make: loop(make, "000030\n", "step-0000{}"),
        "latest.txt",
        "step-0000{}",
        "000020\n",
    ),
    "loop, a path of a folder": (lambda make: loop(make, "run/step-30/\n"), "latest.txt", "step-{}", "run/step-20/\n"),
    "nanotron": (lambda make: loop(make, "30", "{}"), "latest.txt", "{}", "20"),
}


@pytest.mark.parametrize("kind", TRACKED)
def test_a_tracker_names_the_chosen_one(make, kind):
    made, tracker, name, after = TRACKED[kind]
    root = made(make)
    (root / tracker).chmod(0o640)
    before = (root / tracker).read_bytes()
    moves = move_aside(root, [str(root / name.format(30))], None, "torn", root / name.format(20))
    assert (root / tracker).read_text() == after and (root / tracker).stat().st_mode & 0o777 == 0o640
    assert move_aside(root, [str(root / name.format(30))], None, "torn", root / name.format(20)) == moves
    assert not [entry for entry in os.listdir(root) if entry.endswith("tmp")]
    assert len(q.undo(root)) == 2
    assert (root / tracker).read_bytes() == before and (root / name.format(30)).exists()


@pytest.mark.parametrize("kind", TRACKED)
@pytest.mark.parametrize("chosen", [None, "elsewhere"])
def test_what_a_tracker_names_stays_where_it_can_name_nothing_else(make, kind, chosen):
    made, tracker, name, _ = TRACKED[kind]
    root = made(make)
    before = (root / tracker).read_bytes()
    paths = [str(root / name.format(step)) for step in (20, 30)]
    told = answer({"root": str(root), "paths": paths, "chosen": chosen and str(root.parent / chosen)})["result"]
    assert [Path(source).name for source, _ in told["moved"]] == [name.format(20)]
    assert told["left"] == [[str(root / name.format(30)), str(root / tracker)]]
    assert (root / name.format(30)).exists() and (root / tracker).read_bytes() == before


@pytest.mark.parametrize(
    "text", ["", "epoch 3\nloss 2", "40", "../x", "step-30 of 100", "step-20", "9" * 5000, "30\nrun/step-30"]
)
def test_a_latest_txt_that_names_nothing_of_it_hinders_nothing(make, text):
    root = loop(make, text)
    move_aside(root, [str(root / "step-30")], None, "torn", root / "step-20")
    assert not (root / "step-30").exists() and (root / "latest.txt").read_text() == text


def test_another_programs_latest_txt_is_not_pointed(make):
    root = megatron(make)
    (root / "latest.txt").write_text("all well")
    assert command("quarantine", root, root / "iter_0000030", "--point-to", 20, "--yes").exception is None
    assert (root / "latest.txt").read_text() == "all well"
    assert (root / "latest_checkpointed_iteration.txt").read_text() == "20"


def test_by_hand_the_number_in_latest_txt_is_pointed(make):
    root = loop(make, "30")
    (root / "log_20.txt").write_text("")
    refused = command("quarantine", root, root / "step-30", "--yes").exception
    assert isinstance(refused, UserError) and (root / "step-30").exists()
    assert command("quarantine", root, root / "step-30", "--point-to", 20, "--yes").exception is None
    assert (root / "latest.txt").read_text() == "20"


def test_by_hand_latest_txt_is_pointed_first(make):
    root = loop(make)
    refused = command("quarantine", root, root / "step-30", "--yes").exception
    assert isinstance(refused, UserError) and "step-30" in refused.message and (root / "step-30").exists()
    assert command("quarantine", root, root / "step-30", "--point-to", 20, "--yes").exception is None
    assert (root / "latest.txt").read_text() == "step-20" and not (root / "step-30").exists()


@pytest.mark.parametrize("prefix", ["/data/work_dirs/x/", "work_dirs/x/"])
def test_mmengines_tracker_keeps_its_folder(make, prefix):
    root = mmengine(make, prefix)
    move_aside(root, [str(root / "iter_30.pth")], None, "torn", root / "iter_10.pth")
    assert (root / "last_checkpoint").read_text() == f"{prefix}iter_10.pth"


def test_by_hand_mmengines_tracker_is_pointed_first(make):
    root = mmengine(make, "x/")
    refused = command("quarantine", root, root / "iter_30.pth", "--yes").exception
    assert isinstance(refused, UserError) and "iter_30.pth" in refused.message and (root / "iter_30.pth").exists()
    assert command("quarantine", root, root / "iter_30.pth", "--point-to", 20, "--yes").exception is None
    assert (root / "last_checkpoint").read_text() == "x/iter_20.pth" and not (root / "iter_30.pth").exists()


def test_a_tracker_that_was_written_since_is_not_taken_back(make):
    root = mmengine(make)
    move_aside(root, [str(root / "iter_30.pth")], None, "torn", root / "iter_20.pth")
    (root / "last_checkpoint").write_text("iter_40.pth")
    assert [Path(move.source).name for move in q.undo(root)] == ["iter_30.pth"]
    assert (root / "last_checkpoint").read_text() == "iter_40.pth" and q.undo(root) == []


@pytest.mark.parametrize("writes", [0, 1])
def test_killed_before_the_tracker_is_written(make, monkeypatch, writes):
    root, left = mmengine(make), [writes]
    real = trackers.write

    def killed(*arguments, **more):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(*arguments, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trackers, "write", killed)
        move_aside(root, [str(root / "iter_30.pth")], None, "torn", root / "iter_20.pth")
    assert (root / "last_checkpoint").read_text() == "iter_30.pth" and (root / "iter_30.pth").exists()
    move_aside(root, [str(root / "iter_30.pth")], None, "torn", root / "iter_20.pth")
    assert (root / "last_checkpoint").read_text() == "iter_20.pth" and not (root / "iter_30.pth").exists()
    q.undo(root)
    assert (root / "last_checkpoint").read_text() == "iter_30.pth" and (root / "iter_30.pth").exists()
