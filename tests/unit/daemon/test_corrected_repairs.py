"""What is to be repaired, after an operator said what an incident's cause was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.views import Shown, name_people
from in_memory.world import World
from made_records import AT, evidence, incident, later, verdict

from sentinel.model.changes import VerdictCorrected
from sentinel.model.corrections import Correction
from sentinel.model.records import Cause, Ground, Kind, Scope
from sentinel.wire import to_json

Worlds = Callable[..., World]


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    name_people(monkeypatch)


async def repair(world: World, *told: Correction) -> dict[str, Any]:
    shown = Shown(world)
    xid = evidence(Kind.XID, node="n1", text="NVRM: Xid 79", data={"serial": "165052"})
    xid = dataclasses.replace(xid, where=dataclasses.replace(xid.where, gpu=3))
    shown.world.store.append([xid])
    shown.world.store.save_incident(incident(xid, id="ddd1", job=None, attempt=None, nodes=("n1",)), user="ada")
    judged = verdict(Cause.GPU_FALLEN_OFF_BUS, drain=("n1",), gpus=("n1:3",), advice="reboot the node")
    shown.world.store.save_verdict("ddd1", dataclasses.replace(judged, grounds=(Ground(xid, 5.0),)), later(0))
    shown.world.store.commit([VerdictCorrected("ddd1", one) for one in told])
    shown.world.slurm.nodes["n1"].drained, shown.world.slurm.nodes["n1"].reason = True, "sentinel:ddd1 gpu n1:3"
    (row,) = (await shown("repairs"))["repairs"]
    assert isinstance(row, dict)
    return row


def correction(cause: Cause, scope: Scope) -> Correction:
    return Correction(at=AT, by="root", cause=cause, scope=scope, was="gpu_fallen_off_bus")


async def test_without_a_correction_the_gpu_at_fault_is_named(world: Worlds) -> None:
    row = await repair(world())
    assert (row["cause"], row["gpu"], row["serial"], row["advice"]) == (
        "gpu_fallen_off_bus", "3", "165052", "reboot the node",
    )  # fmt: skip
    assert row["evidence"] == ["NVRM: Xid 79"] and row["corrected"] is None


@pytest.mark.parametrize(
    ("cause", "scope"), [(Cause.USER_CODE, Scope.APPLICATION), (Cause.FILESYSTEM_STORAGE, Scope.CLUSTER)]
)
async def test_what_was_no_machine_s_fault_names_none_to_pull(world: Worlds, cause: Cause, scope: Scope) -> None:
    row = await repair(world(), correction(cause, scope))
    assert (row["cause"], row["gpu"], row["serial"], row["advice"], row["evidence"]) == (cause, None, None, "", [])
    assert row["corrected"] == {"was": "gpu_fallen_off_bus", "at": to_json(AT), "no_machine": True}


async def test_another_fault_of_the_machine_is_still_its_own(world: Worlds) -> None:
    row = await repair(world(), correction(Cause.USER_CODE, Scope.APPLICATION), correction(Cause.PCIE, Scope.GPU))
    assert (row["cause"], row["gpu"], row["serial"], row["advice"]) == ("pcie", "3", "165052", "")
    assert row["corrected"]["no_machine"] is False
