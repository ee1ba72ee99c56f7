"""What operators change: one action each, and nothing that is not ours."""

from __future__ import annotations

import asyncio
import pwd
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hanging_threads import fails_on_the_event_loop
from in_memory.daemon import Daemon, commands_of
from in_memory.views import Shown
from in_memory.world import World
from made_records import AT, incident, verdict

from sentinel.daemon.api.commands import OperatorCommands
from sentinel.daemon.api.explanation import drained_for
from sentinel.errors import Denied, Refused, Timeout, Unavailable, UserError
from sentinel.model.changes import Change, SettingChanged
from sentinel.wire import to_json

Worlds = Callable[..., World]
EARLIER = datetime(2026, 2, 1, tzinfo=UTC)


def commands(there: World, daemon: Daemon | None = None) -> tuple[Daemon, OperatorCommands]:
    daemon = daemon or Daemon(there)
    return daemon, commands_of(daemon)


async def change(there: World, name: str, **arguments: Any) -> dict[str, Any]:
    daemon, made = commands(there)
    answer = await made.make(name, arguments, 0, "10.0.0.7")
    await daemon.quiet()
    return answer


async def test_drain_and_release(world: Worlds) -> None:
    there = world()
    assert (await change(there, "drain", node="n1", reason="loose\ncable"))["drained"]
    assert there.slurm.nodes["n1"].reason == "sentinel:root: loosecable"
    assert not (await change(there, "release", node="n1"))["drained"]
    assert not there.slurm.nodes["n1"].drained
    assert there.store.get("released") == {"n1": to_json(there.slurm.clock.now())}  # the agent is told, also later


async def test_who_commands_is_looked_up_while_the_event_loop_goes_on(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    asked = fails_on_the_event_loop(monkeypatch, pwd, "getpwuid")
    assert (await change(there, "pause"))["by"] == "root" and asked == [0]


async def test_who_looks_after_a_change_sees_it(world: Worlds) -> None:
    shown = Shown(world())
    _, made = commands(shown.world, shown.daemon)
    assert [row["state"] for row in (await shown("nodes"))["nodes"]][:1] == ["mixed"]
    await made.make("drain", {"node": "n1", "reason": "fan"}, 0)
    assert [row["state"] for row in (await shown("nodes"))["nodes"]][:1] == ["draining"]
    await made.make("release", {"node": "n1"}, 0)
    assert (await shown("status"))["drained_by_us"] == []
    assert [row["state"] for row in (await shown("nodes"))["nodes"]][:1] == ["mixed"]


@pytest.mark.parametrize("name", ["drain", "release"])
async def test_change_of_which_nobody_knows_whether_it_was_made_is_looked_for(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shown = Shown(world())
    _, made = commands(shown.world, shown.daemon)
    shown.world.slurm.person_drains("n1", "sentinel: fan")
    await shown("nodes")
    assert (await shown("status"))["drained_by_us"] == ["n1"]

    async def lost_answer(node: str, *_: object, **__: object) -> None:
        shown.world.slurm.person_resumes(node)
        raise Timeout("slurmctld does not answer")

    monkeypatch.setattr(shown.world.slurm, "drain", lost_answer)
    monkeypatch.setattr(shown.world.slurm, "undrain", lost_answer)
    with pytest.raises(Timeout):
        await made.make(name, {"node": "n1", "reason": "fan"}, 0)
    assert (await shown("status"))["drained_by_us"] == []


async def test_nodes_that_are_released_at_once_are_all_remembered(world: Worlds) -> None:
    """Each is a request of its own, and their changes of the store overlap."""
    there = world()
    _, made = commands(there)
    for name in ("n1", "n2", "n3"):
        there.slurm.person_drains(name, "sentinel: loose cable")
    await asyncio.gather(*(made.make("release", {"node": name}, 0) for name in ("n1", "n2", "n3")))
    assert sorted(there.store.get("released")) == ["n1", "n2", "n3"]


@pytest.mark.parametrize("before", [None, EARLIER])
@pytest.mark.parametrize("error", [Refused("Slurm does not resume n1"), Denied("Slurm refused us")])
async def test_release_that_slurm_refuses_is_none(
    world: Worlds, monkeypatch: pytest.MonkeyPatch, before: datetime | None, error: Exception
) -> None:
    """Else its agent would drop what convicts it, and a drain that slurmctld loses would not be repeated."""
    there = world()
    there.slurm.person_drains("n1", "sentinel: loose cable")
    if before is not None:
        there.store.put("released", {"n1": to_json(before), "n2": to_json(before)})
        there.store.put("released_by", {"n1": "ada", "n2": "bob"})
    daemon, made = commands(there)
    seen_meanwhile = []

    async def undrain(_: str) -> None:
        seen_meanwhile.append(daemon.live.node("n1").released_at)
        raise error

    monkeypatch.setattr(there.slurm, "undrain", undrain)
    stored = [there.store.get(name, {}) for name in ("released", "released_by")]
    with pytest.raises(type(error)):
        await made.make("release", {"node": "n1"}, 0)
    assert seen_meanwhile == [there.slurm.clock.now()]  # a snapshot that shows it in service must find it released
    assert daemon.live.node("n1").released_at == before and stored == [
        there.store.get(name, {}) for name in ("released", "released_by")
    ]


async def test_release_of_which_nobody_knows_whether_it_was_done_counts(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = world()
    there.slurm.person_drains("n1", "sentinel: loose cable")
    daemon, made = commands(there)

    async def undrain(_: str) -> None:
        raise Timeout("slurmctld does not answer")

    monkeypatch.setattr(there.slurm, "undrain", undrain)
    with pytest.raises(Timeout):
        await made.make("release", {"node": "n1"}, 0)
    assert daemon.live.node("n1").released_at == there.slurm.clock.now() and "n1" in there.store.get("released")


async def test_release_that_cannot_be_stored_is_none(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    there = world()
    there.slurm.person_drains("n1", "sentinel: loose cable")
    daemon, made = commands(there)

    commit = there.store.commit

    def without_settings(changes: Sequence[Change]) -> None:
        if any(isinstance(one, SettingChanged) for one in changes):
            raise Unavailable("the disk is full")
        commit(changes)

    monkeypatch.setattr(there.store, "commit", without_settings)
    with pytest.raises(Unavailable):
        await made.make("release", {"node": "n1"}, 0)
    assert daemon.live.node("n1").released_at is None and there.slurm.nodes["n1"].drained


async def test_somebody_elses_drain_is_never_returned(world: Worlds) -> None:
    there = world()
    there.slurm.person_drains("n1", "a person")
    with pytest.raises(Refused, match="drained by somebody else") as caught:
        await change(there, "release", node="n1")
    assert "State=RESUME" in caught.value.fix and there.slurm.nodes["n1"].drained
    with pytest.raises(Refused):
        await change(there, "drain", node="n1")


async def test_node_that_is_not_drained_is_not_released(world: Worlds) -> None:
    with pytest.raises(Refused, match="not drained"):
        await change(world(), "release", node="n1")


@pytest.mark.parametrize(("name", "arguments"), [("drain", {"node": "ghost"}), ("release", {}), ("explode", {})])
async def test_what_is_not_known_is_told(world: Worlds, name: str, arguments: dict[str, str]) -> None:
    with pytest.raises(UserError) as caught:
        await change(world(), name, **arguments)
    assert caught.value.fix


async def test_pause_outlives_the_daemon(world: Worlds) -> None:
    there = world()
    await change(there, "pause")
    assert there.store.get("paused") is True
    await change(there, "resume")
    assert there.store.get("paused") is False


def audited(there: World) -> list[tuple[object, ...]]:
    return [
        (item.entry.who, item.entry.origin, item.entry.action, item.entry.stage, item.entry.target, item.entry.why)
        for item in there.store.audit()
    ]


async def test_each_change_is_in_the_audit_before_and_after_it(world: Worlds) -> None:
    there = world()
    await change(there, "drain", node="n1", reason="loose cable")
    begun, done = (item.entry for item in there.store.audit())
    assert audited(there) == [
        ("root", "10.0.0.7", "drain", "begun", "node n1", "loose cable"),
        ("root", "10.0.0.7", "drain", "done", "node n1", ""),
    ]
    assert begun.before == {"state": "mixed", "drained": False, "reason": ""}
    assert done.after == {"drained": True, "reason": "sentinel:root: loose cable"}
    await change(there, "release", node="n1")
    await change(there, "pause")
    await change(there, "pause")
    await change(there, "resume")
    assert [(row[2], row[3]) for row in audited(there)[2:]] == [
        ("release", "begun"), ("release", "done"), ("pause", "done"), ("pause", "done"), ("resume", "done"),
    ]  # fmt: skip
    assert [item.entry.before for item in there.store.audit()[4:]] == [{"paused": p} for p in (False, True, True)]
    assert there.store.check_audit().fault == ""


@pytest.mark.parametrize("words", ["sentinel:root: fan", "sentinel:0f3a gpu_memory_ecc n1:3"])
async def test_drain_of_a_node_that_sentinel_drained_gives_it_the_new_reason(world: Worlds, words: str) -> None:
    """A drain whose reason a person changed is theirs from then on: no test of Sentinel's returns the node."""
    there = world()
    there.slurm.person_drains("n1", words)
    answer = await change(there, "drain", node="n1", reason="pump")
    assert answer == {"node": "n1", "drained": True, "reason": "sentinel:root: pump", "before": words}
    assert there.slurm.nodes["n1"].reason == "sentinel:root: pump"
    begun, done = (item.entry for item in there.store.audit())
    assert begun.before["reason"] == words and done.after == {"drained": True, "reason": "sentinel:root: pump"}


async def test_drain_of_a_node_that_is_out_for_an_incident_goes_on_naming_it(world: Worlds) -> None:
    """Else nobody could tell any more which part of the node is to be repaired."""
    there = world()
    there.store.save_incident(incident(id="0f3a", nodes=("n1",), job=101))
    there.slurm.person_drains("n1", "sentinel:0f3a gpu_memory_ecc n1:3")
    for _ in range(2):
        answer = await change(there, "drain", node="n1", reason="RMA 7")
        assert answer["reason"] == "sentinel:root: RMA 7 [incident 0f3a]"
    assert drained_for(there.slurm.nodes["n1"].reason) == "0f3a"


async def test_answer_and_audit_say_what_slurm_holds(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    there = world()
    drain = there.slurm.drain

    async def changed_at_once(node: str, reason: str, *, replace: bool = False) -> None:
        await drain(node, reason, replace=replace)
        there.slurm.person_drains(node, "mine now")

    monkeypatch.setattr(there.slurm, "drain", changed_at_once)
    assert (await change(there, "drain", node="n1", reason="fan"))["reason"] == "mine now"
    assert there.store.audit()[-1].entry.after == {"drained": True, "reason": "mine now"}


async def test_what_cannot_be_read_again_is_as_asked_for(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm has said yes: that its next answer is missing makes no failure of it."""
    there = world()
    drain = there.slurm.drain

    async def last_answer(node: str, reason: str, *, replace: bool = False) -> None:
        await drain(node, reason, replace=replace)
        there.slurm.answers = False

    monkeypatch.setattr(there.slurm, "drain", last_answer)
    assert (await change(there, "drain", node="n1", reason="fan"))["reason"] == "sentinel:root: fan"
    assert audited(there)[-1][3] == "done" and there.slurm.nodes["n1"].drained


async def test_a_refused_change_is_in_the_audit_too(world: Worlds) -> None:
    there = world()
    there.slurm.person_drains("n1", "a person")
    with pytest.raises(Refused):
        await change(there, "drain", node="n1", reason="mine")
    assert [row[3] for row in audited(there)] == ["begun", "refused"] and "somebody else" in str(audited(there)[1][5])


async def test_without_the_audit_nothing_is_changed(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    there = world()

    def commit(_: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(there.store, "commit", commit)
    with pytest.raises(Unavailable):
        await change(there, "drain", node="n1", reason="x")
    assert not there.slurm.nodes["n1"].drained


async def test_what_slurm_does_not_answer_is_not_known(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    there = world()

    async def drain(*_: object, **__: object) -> None:
        raise Unavailable("slurmctld does not answer")

    monkeypatch.setattr(there.slurm, "drain", drain)
    with pytest.raises(Unavailable):
        await change(there, "drain", node="n1", reason="x")
    assert [row[3] for row in audited(there)] == ["begun", "not_known"]


async def test_a_correction_is_kept_audited_and_counted(world: Worlds) -> None:
    there = world()
    there.store.save_incident(incident(id="abc1", nodes=("n1",), job=101))
    there.store.save_verdict("abc1", verdict(), AT)
    answer = await change(there, "correct", incident="abc", cause="user_code", note="seen\nelsewhere")
    assert (answer["incident"], answer["scope"], answer["note"]) == ("abc1", "application", "seenelsewhere")
    await change(there, "correct", incident="abc1", cause="gpu_nvlink", scope="link")
    (row,) = there.store.incident_rows(ids=["abc1"])
    assert row["cause"] == verdict().cause and [c["cause"] for c in row["corrections"]] == ["user_code", "gpu_nvlink"]
    entries = [item.entry for item in there.store.audit() if item.entry.action == "correct"]
    assert [(e.who, e.origin, e.incident) for e in entries] == [("root", "10.0.0.7", "abc1")] * 2
    assert entries[0].before["cause"] == verdict().cause and entries[0].after["cause"] == "user_code"
    assert entries[0].why == "seenelsewhere"


@pytest.mark.parametrize(
    "arguments",
    [
        {"incident": "abc1", "cause": "user_cod"},
        {"incident": "abc1"},
        {"incident": "abc1", "cause": "user_code", "scope": "moon"},
        {"incident": "ghost", "cause": "user_code"},
    ],
)
async def test_a_correction_that_says_nothing_is_refused(world: Worlds, arguments: dict[str, str]) -> None:
    there = world()
    there.store.save_incident(incident(id="abc1", nodes=("n1",), job=101))
    with pytest.raises(UserError) as caught:
        await change(there, "correct", **arguments)
    assert caught.value.fix and not there.store.incident_rows(ids=["abc1"])[0]["corrections"]


async def test_of_an_answer_that_is_not_taken_the_audit_keeps_a_few_parts(world: Worlds) -> None:
    there = world()
    with pytest.raises(Refused) as caught:
        await change(there, "approve", incident="abc1", request="r", what=[f"{'x' * 190}{n}" for n in range(1000)])
    (entry,) = [item.entry for item in there.store.audit()]
    assert len(entry.before["asked"]) == 5 and entry.before["further"] == 995
    assert len(str(entry)) < 2500 and len(caught.value.message) < 2500


async def test_names_that_nobody_asked_about_drive_no_terminal(world: Worlds) -> None:
    """They come back in the answer, and stay in the audit and its copy in syslog."""
    there, hostile = world(), "x\x1b[2J\n<0>fake\x00"
    with pytest.raises(Refused) as caught:
        await change(there, "approve", incident=hostile, request=hostile, what=[hostile], note=hostile)
    (entry,) = [item.entry for item in there.store.audit()]
    for text in (
        caught.value.message,
        entry.target,
        entry.incident,
        entry.why,
        *entry.before["asked"],
        entry.before["request"],
    ):
        assert text.isprintable(), text
