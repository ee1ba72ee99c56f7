from __future__ import annotations

import inspect
from datetime import UTC, datetime

import pytest

from sentinel.adapters import slurm_dry
from sentinel.adapters.slurm_dry import DryWriter, WouldHave
from sentinel.ports import SlurmWriter

AT = datetime(2026, 3, 1, tzinfo=UTC)


async def test_everything_is_noted_and_told_in_order() -> None:
    told: list[WouldHave] = []
    writer = DryWriter(tell=told.append, now=lambda: AT)
    await writer.drain("n1", "sentinel: i42")
    await writer.down("n2", "sentinel: i42")
    await writer.requeue_hold(7)
    await writer.update_job(7, excluded=["n1", "n2"], required=[], start_now=True)
    await writer.update_job(7, admin_comment="c")
    await writer.release(7)
    await writer.notify(7, "hello")
    await writer.undrain("n1")
    assert told == writer.notes
    assert [(note.verb, note.node, note.job, dict(note.data)) for note in told] == [
        ("drain", "n1", None, {"reason": "sentinel: i42"}),
        ("down", "n2", None, {"reason": "sentinel: i42"}),
        ("requeue_hold", None, 7, {}),
        ("update_job", None, 7, {"excluded": "n1,n2", "required": "", "start_now": True}),
        ("update_job", None, 7, {"admin_comment": "c"}),
        ("release", None, 7, {}),
        ("notify", None, 7, {"text": "hello"}),
        ("undrain", "n1", None, {}),
    ]
    assert {note.at for note in told} == {AT}


def test_every_method_of_the_port_is_there() -> None:
    """One that is missing would be a write that dry run cannot catch."""
    methods = {name for name, _ in inspect.getmembers(SlurmWriter, inspect.isfunction) if not name.startswith("_")}
    assert methods == {
        name for name, _ in inspect.getmembers(DryWriter, inspect.isfunction) if not name.startswith("_")
    }
    for name in methods:
        assert list(inspect.signature(getattr(DryWriter, name)).parameters) == list(
            inspect.signature(getattr(SlurmWriter, name)).parameters
        )


async def test_notes_do_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_dry, "KEPT", 3)
    writer = DryWriter(now=lambda: AT)
    for job in range(5):
        await writer.release(job)
    assert [note.job for note in writer.notes] == [2, 3, 4]
