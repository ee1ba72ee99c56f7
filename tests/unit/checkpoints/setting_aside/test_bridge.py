"""Megatron-Bridge reads ``latest_train_state.pt`` first: a copy of the state of the run that lies in each of its steps."""

from __future__ import annotations

import struct

import pytest
from saves.commands import run as command
from saves.torch_bytes import Call, Stored

from sentinel.agent.probes.quarantine import answer, move_aside
from sentinel.checkpoints import quarantine as q
from sentinel.checkpoints.formats import tracked
from sentinel.errors import UserError

LATEST, TEXT, STATE = "latest_train_state.pt", "latest_checkpointed_iteration.txt", "train_state.pt"


@pytest.fixture
def run(make):
    root = make.root / "run"
    for step in (10, 20, 30):
        folder = make.megatron(f"run/iter_{step:07d}", step=step, integrity=False)
        make.write(folder / STATE, state_of(make, step), 3)
    (root / LATEST).write_bytes((root / "iter_0000030" / STATE).read_bytes())
    (root / TEXT).write_text("30")
    return root


def state_of(make, step):
    value = {"step": make.tensor((), "int32"), "consumed_train_samples": make.tensor((), "int64", key=1)}
    return make.torch_file(value, [struct.pack("<i", step), struct.pack("<q", 8 * step)])


def test_both_trackers_name_the_chosen_one(run):
    before = (run / LATEST).read_bytes()
    moves = move_aside(run, [str(run / "iter_0000030")], None, "torn", run / "iter_0000020")
    assert (run / LATEST).read_bytes() == (run / "iter_0000020" / STATE).read_bytes()
    assert (run / TEXT).read_text() == "20" and not (run / "iter_0000030").exists() and len(moves) == 3
    assert move_aside(run, [str(run / "iter_0000030")], None, "torn", run / "iter_0000020") == moves
    assert len(q.undo(run)) == 3
    assert (run / LATEST).read_bytes() == before and (run / TEXT).read_text() == "30"


@pytest.mark.parametrize("state", ["none", "torn", "of another step"])
def test_what_it_names_stays_where_the_chosen_one_has_no_state_of_its_own(make, run, state):
    chosen = run / "iter_0000020"
    if state == "none":
        (chosen / STATE).unlink()
    else:
        (chosen / STATE).write_bytes(state_of(make, 10) if state != "torn" else state_of(make, 20)[:-50])
    before = (run / LATEST).read_bytes()
    asked = {"root": str(run), "paths": [str(run / "iter_0000030")], "chosen": str(chosen)}
    assert answer(asked)["result"]["left"] == [[str(run / "iter_0000030"), str(run / LATEST)]]
    assert (run / LATEST).read_bytes() == before and (run / TEXT).read_text() == "30"
    refused = command("quarantine", run, run / "iter_0000030", "--point-to", 20, "--yes").exception
    assert isinstance(refused, UserError) and STATE in refused.message and (run / "iter_0000030").exists()
    assert (run / TEXT).read_text() == "30"


def test_by_hand_both_are_pointed_first(run):
    assert command("quarantine", run, run / "iter_0000030", "--point-to", 20, "--yes").exception is None
    assert (run / LATEST).read_bytes() == (run / "iter_0000020" / STATE).read_bytes()
    assert (run / TEXT).read_text() == "20" and not (run / "iter_0000030").exists()


@pytest.mark.parametrize("text", [b"", b"30", b"PK\x03\x04", b"\0" * 2000])
def test_a_state_that_is_none_hinders_nothing(run, text):
    (run / LATEST).write_bytes(text)
    move_aside(run, [str(run / "iter_0000030")], None, "torn", run / "iter_0000020")
    assert (run / LATEST).read_bytes() == text and (run / TEXT).read_text() == "20"


@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_step_that_is_part_of_what_is_stored(make, shape):
    """A number cut out of a row of them lies where its tensor says; a row is no step, though a number shares its storage."""
    row = make.tensor((3,), "int64")
    one, other = (
        Call(
            "torch._utils",
            "_rebuild_tensor_v2",
            Stored(0, "int64", 3),
            at,
            (),
            (),
            False,
            Call("collections", "OrderedDict"),
        )
        for at in (1, 2)
    )
    text = make.torch_file({"step": row if shape else one, "other": other}, [struct.pack("<3q", 10, 20, 30)])
    assert tracked.named_by_text(LATEST, text, ["iter_0000010", "iter_0000020"]) == (None if shape else "iter_0000020")
