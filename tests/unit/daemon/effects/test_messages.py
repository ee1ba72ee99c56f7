"""What operators see of messages, and the test messages that they send."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink
from in_memory.world import World

from sentinel.config.alerts import Channel
from sentinel.daemon.api.commands import OperatorCommands
from sentinel.daemon.effects.messages import messages
from sentinel.errors import Refused, UserError
from sentinel.log import Log
from sentinel.model.records import Delivery, Notice

Worlds = Callable[..., World]


class Deaf(FakeSink):
    async def send(self, notice: Notice) -> None:
        raise Refused("answered 404")


def commands(daemon: Daemon) -> OperatorCommands:
    there = daemon.world
    return OperatorCommands(
        store=there.store, live=daemon.live, fleets=daemon.fleets, clock=there.slurm.clock, reader=there.slurm,
        writer=there.slurm, runner=daemon.runner, log=Log(daemon.stream),
    )  # fmt: skip


async def test_test_goes_to_every_channel_once_whatever_it_chose(world: Worlds) -> None:
    there, chat = world(), FakeSink("chat")
    daemon = Daemon(there, [chat, Deaf("mail")], settings=dataclasses.replace(SETTINGS, cluster="alps"))
    answer = await commands(daemon).make("test_alert", {}, 0)
    assert answer["results"] == [
        {"receiver": "chat", "delivered": True, "reason": ""},
        {"receiver": "mail", "delivered": False, "reason": "answered 404"},
    ]
    (notice,) = chat.got
    assert "Nothing has happened" in notice.body and notice.data["cluster"] == "alps"
    assert there.store.undelivered() == [], "a test is no message that is tried again"


async def test_test_of_one_channel(world: Worlds) -> None:
    there, chat, other = world(), FakeSink("chat"), FakeSink("other")
    daemon = Daemon(there, [chat, other])
    await commands(daemon).make("test_alert", {"to": "other"}, 0)
    assert (len(chat.got), len(other.got)) == (0, 1)
    with pytest.raises(UserError, match="no channel 'pager'") as caught:
        await commands(daemon).make("test_alert", {"to": "pager"}, 0)
    assert "chat, other" in caught.value.fix


async def test_test_without_channels_says_how_to_set_one(world: Worlds) -> None:
    with pytest.raises(UserError, match="no channel is set"):
        await commands(Daemon(world())).make("test_alert", {}, 0)


async def test_what_was_not_delivered_is_shown_however_old_and_to_its_user_only(world: Worlds) -> None:
    there = world()
    now = there.slurm.clock.now()
    old, new = now - timedelta(days=9), now
    failed = Delivery(12, "answered 503", True)
    there.store.record_notice(Notice("a", "", old, "t", "b", {"user": "ada"}, failed), "chat", False)
    there.store.record_notice(Notice("b", "", old, "t", "b", {"user": "bo"}), "chat", True)
    there.store.record_notice(Notice("c", "", new, "t", "b", {"user": "bo"}), "chat", True)
    there.store.record_notice(Notice("d", "", new, "t", "b", {"user": "bo"}), "chat", False)
    shown = (await messages(there.store, now, {}, None))["messages"]
    assert [(row["id"], row["state"]) for row in shown] == [("c", "delivered"), ("d", "waits"), ("a", "given up")]
    assert shown[2]["reason"] == "answered 503" and shown[2]["tries"] == 12
    own = (await messages(there.store, now, {}, "ada"))["messages"]
    assert [row["id"] for row in own] == ["a"]


async def test_what_is_held_back_says_until_when_and_why(world: Worlds) -> None:
    there = world()
    now = there.slurm.clock.now()  # noon
    night = Channel("mail", to=["a@example.org"], quiet="10:00-14:00")
    channels = {
        "night": night,
        "digest": Channel("mail", to=["a@example.org"], digest_s=7200.0),
        "both": dataclasses.replace(night, digest_s=3600.0),
    }
    store, info = there.store, {"severity": "info"}
    for name in (*channels, "hook"):
        store.record_notice(Notice(name, "", now, "t", "b", info), name, False)
    store.record_notice(Notice("grave", "", now, "t", "b", {"severity": "critical"}), "night", False)
    store.record_notice(Notice("tried", "", now, "t", "b", info, Delivery(1, "answered 503", False)), "night", False)
    store.record_notice(Notice("told", "", now, "t", "b", info), "night", True)
    shown = (await messages(store, now, {}, None, channels))["messages"]
    quiet, two = "the channel's quiet hours", timedelta(hours=2)
    assert {row["id"]: (row["state"], row["next_at"], row["reason"]) for row in shown} == {
        "night": ("waits", now + two, quiet), "both": ("waits", now + two, quiet),
        "digest": ("waits", now + two, "for the channel's next digest"), "hook": ("waits", None, ""),
        "grave": ("waits", None, ""), "tried": ("tried", None, "answered 503"), "told": ("delivered", None, ""),
    }  # fmt: skip
    later = (await messages(store, now + two, {}, None, channels))["messages"]
    assert {row["next_at"] for row in later} == {None}


async def test_what_was_not_delivered_is_not_hidden_by_newer_messages(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.daemon.effects.messages._MOST", 3)
    there = world()
    now = there.slurm.clock.now()
    lost = Delivery(12, "answered 503", True)
    there.store.record_notice(Notice("a", "", now - timedelta(hours=9), "t", "b", {"user": "ada"}, lost), "chat", False)
    for number in range(4):
        there.store.record_notice(Notice(f"b{number}", "", now, "t", "b", {"user": "bo"}), "chat", True)
        there.store.record_notice(Notice(f"c{number}", "", now, "t", "b", {"user": "bo"}), "mail", number < 2)
    shown = (await messages(there.store, now, {}, None))["messages"]
    assert [row["id"] for row in shown if row["state"] != "delivered"] == ["c2", "c3", "a"]
    assert len(shown) == 6
    assert [row["id"] for row in (await messages(there.store, now, {}, "ada"))["messages"]] == ["a"]
