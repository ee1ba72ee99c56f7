"""What is moved aside before a restart, and what stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from in_memory.checkpoints import (
    GLOBAL,
    SHARED,
    WHOLE_LOCAL,
    Nodes,
    failed,
    local,
    shared,
)
from in_memory.watch import Seconds
from in_memory.world import World
from made_records import verdict

from sentinel.errors import Refused, Unavailable
from sentinel.model.records import Cause

Worlds = Callable[..., World]


async def test_newer_and_broken_ones_are_moved_where_they_lie(world: Worlds) -> None:
    orders = Nodes(
        shared(100, valid=False), shared(200), shared(250, valid=None), shared(300), local("n1", 150, 0, 1),
        local("n1", 300, 0, 1), local("n2", 300, 2, 3), local("n2", 120, 2, 3, valid=False),
    )  # fmt: skip
    case = await failed(world(), orders)
    await case.choose()
    found = await case.quarantine({"path": f"{GLOBAL}/step-200", "step": 200})
    moved = {(node, path) for node, paths in orders.moved for path in paths}
    assert {path for _, path in moved if path.startswith(GLOBAL)} == {f"{GLOBAL}/step-{s}" for s in (100, 250, 300)}
    assert {(node, path) for node, path in moved if path.startswith("/nvme")} == {
        ("n1", "/nvme/n1/run/step-300"), ("n2", "/nvme/n2/run/step-300"), ("n2", "/nvme/n2/run/step-120"),
    }  # fmt: skip
    assert found["moved"] == 6 and found["explanation"].startswith("quarantined 6: ")


async def test_chosen_one_and_older_sound_ones_stay(world: Worlds) -> None:
    orders = Nodes(shared(100), shared(200), *WHOLE_LOCAL)
    case = await failed(world(), orders)
    chosen = await case.choose()
    assert chosen["step"] == 300
    assert await case.quarantine(chosen) == {"moved": 0} and orders.moved == []


async def test_a_torn_save_that_no_longer_states_its_step_is_moved_by_its_number(world: Worlds) -> None:
    saves = [replace(shared(number), path=f"{GLOBAL}/ckpt_{number}.pt", key=f"ckpt_{number}.pt") for number in (20, 30)]
    torn = replace(shared(40, valid=None), path=f"{GLOBAL}/ckpt_40.pt", key="ckpt_40.pt", step=None, number=40)
    case = await failed(world(), nodes := Nodes(*saves, torn), comment=SHARED)
    assert (chosen := await case.choose())["step"] == 30
    assert (await case.quarantine(chosen))["moved"] == 1
    assert nodes.moved == [("n1", [torn.path])]


async def test_of_an_attempt_that_is_over_nothing_is_being_written(world: Worlds) -> None:
    """It is all that there is: its script would take it again."""
    torn = replace(shared(40, valid=None), reason="changed less than 120 s ago", unfinished="no end record")
    case = await failed(world(), nodes := Nodes(torn), comment=SHARED)
    chosen = await case.choose()
    assert "invalid: no end record" in chosen["explanation"]
    await case.quarantine(chosen)
    assert nodes.moved == [("n1", [torn.path])]


async def test_what_becomes_of_links_is_told(world: Worlds) -> None:
    class Linked(Nodes):
        async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
            made = await super().ask(node, kind, arguments, deadline_s=deadline_s)
            if str(kind) != "quarantine":
                return made
            assert arguments["chosen"] == f"{GLOBAL}/step-200"
            return {"moved": [], "links": [[f"{GLOBAL}/latest", "step-200"], [f"{GLOBAL}/best", ""], "nonsense"]}

    case = await failed(world(), Linked(shared(200), shared(300, valid=False)), comment=SHARED)
    told = (await case.quarantine(await case.choose()))["explanation"]
    assert f"the link {GLOBAL}/latest now names step-200" in told and f"the link {GLOBAL}/best was moved, too" in told


async def test_no_save_with_bad_numbers_is_offered_back(world: Worlds) -> None:
    """Those from the onset on are not read, so that 'valid' says only that they are complete."""
    late = [shared(step, level="structural") for step in (253, 300)]
    unread = replace(shared(400, level="structural"), step=None)
    orders = Nodes(shared(200, level="content"), shared(240, level="content"), *late, unread)
    case = await failed(world(), orders, comment=SHARED)
    bad = verdict(Cause.NUMERICAL_NAN, onset_step=253)
    assert (await case.choose(bad))["step"] == 240
    told = (await case.quarantine({"path": f"{GLOBAL}/step-240", "step": 240}, bad))["explanation"]
    assert "2 of them were saved at or after step 253, where the numbers went bad" in told, told
    assert "found valid" not in told and "--undo" not in told

    told = (await case.quarantine({"path": f"{GLOBAL}/step-200", "step": 200}, bad))["explanation"]
    assert "1 of them were found valid" in told, told
    assert told.endswith(
        f"`sentinel checkpoints quarantine {GLOBAL} {GLOBAL}/step-240 --undo` brings back what it names"
    )


async def test_what_was_looked_at_less_thoroughly_than_asked_is_not_called_valid(world: Worlds) -> None:
    saves = [shared(step, level="structural") for step in (200, 300)]
    case = await failed(world(), Nodes(*saves), comment=SHARED, checkpoint_level="checksum")
    await case.choose()
    assert "found valid" not in (await case.quarantine({"path": f"{GLOBAL}/step-200", "step": 200}))["explanation"]


async def test_without_a_choice_only_broken_ones_are_moved(world: Worlds) -> None:
    """After a restart of the daemon nothing is remembered of what was seen: it is looked at again."""
    orders = Nodes(shared(200), shared(300, valid=False))
    case = await failed(world(), orders, comment=SHARED)
    assert (await case.quarantine({}))["moved"] == 1
    assert orders.moved == [("n1", [f"{GLOBAL}/step-300"])]


async def test_move_that_fails_is_tried_again_and_then_given_up(world: Worlds, seconds: Seconds) -> None:
    orders = Nodes(shared(200), shared(300, valid=False))
    case = await failed(world(), orders, comment=SHARED, quarantine_s=60.0)
    orders.stuck = {"n1"}
    with pytest.raises(Unavailable, match="not moved: the agent of n1"):
        await case.quarantine({"step": 200})
    seconds.now_s += 59.0
    with pytest.raises(Unavailable):
        await case.quarantine({"step": 200})
    seconds.now_s += 1.0
    with pytest.raises(Refused, match="not moved after 60 s"):
        await case.quarantine({"step": 200})


async def test_what_was_seen_for_old_incidents_is_forgotten(world: Worlds, seconds: Seconds) -> None:
    case = await failed(world(), Nodes(shared(200)), comment=SHARED)
    view = await case.view()
    for number in range(200):
        task = case.task()
        await case.checkpoints.choose(replace(task, incident=replace(task.incident, id=f"inc{number}")), view)
    assert len(case.checkpoints._seen) <= 64


async def test_what_becomes_of_trackers_is_told(world: Worlds) -> None:
    """What a tracker names alone is left, so that the run starts, and not told of as moved."""

    class Tracked(Nodes):
        async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
            made = await super().ask(node, kind, arguments, deadline_s=deadline_s)
            left = [[f"{GLOBAL}/step-300", f"{GLOBAL}/last_checkpoint"], 7]
            return made if str(kind) != "quarantine" else {"trackers": [[f"{GLOBAL}/latest", "step-200"]], "left": left}

    case = await failed(world(), Tracked(shared(200), shared(300, valid=False)), comment=SHARED)
    done = await case.quarantine(await case.choose())
    assert done["moved"] == 0 and "quarantined" not in done["explanation"], done
    assert f"{GLOBAL}/latest now names step-200" in done["explanation"]
    assert f"{GLOBAL}/step-300 stays: {GLOBAL}/last_checkpoint names it" in done["explanation"]
