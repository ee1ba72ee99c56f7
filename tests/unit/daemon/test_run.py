"""The daemon's start: an address that cannot be had, and what this host runs out of."""

from __future__ import annotations

import asyncio
import errno
import io
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import Daemon
from in_memory.world import World

from sentinel.config.settings import Settings
from sentinel.daemon import outage_standby, run
from sentinel.daemon.clock import SteadyClock
from sentinel.daemon.run import _report_exhaustion, _stop
from sentinel.daemon.standby import start_listening
from sentinel.errors import Unavailable, UserError
from sentinel.log import Log
from sentinel.model.records import Fleet


@pytest.mark.parametrize(
    ("error", "ours"),
    [(OSError(errno.EMFILE, "Too many open files"), True), (OSError(errno.ENOMEM, "no memory"), True),
     (ConnectionResetError(errno.ECONNRESET, "reset"), False), (ValueError("x"), False), (None, False)],
)  # fmt: skip
async def test_a_connection_that_could_not_be_accepted_makes_silence_say_nothing(
    world: Callable[..., World], error: BaseException | None, ours: bool
) -> None:
    daemon = Daemon(world())
    context = {"message": "socket.accept() out of system resource"} | ({"exception": error} if error else {})
    _report_exhaustion(daemon.runner, SteadyClock(), asyncio.get_running_loop(), context)
    seen = daemon.state.watch.visibility
    assert (seen is not None and "no connection can be accepted" in seen.why) is ours


class NeverServing:
    """A server that cannot take its address."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.stopped = False

    async def start(self) -> None:
        raise self._error

    async def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize(
    ("error", "words", "fix"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), "0.0.0.0:9478 is taken by another program", "ss -tlnp"),
        (OSError(errno.EACCES, "Permission denied"), "cannot be listened at", "correct [daemon] listen"),
        (ValueError("invalid literal for int()"), "cannot be listened at", "correct [daemon] listen"),
    ],
)
async def test_address_that_cannot_be_had_is_one_line_with_the_fix(error: Exception, words: str, fix: str) -> None:
    server = NeverServing(error)
    with pytest.raises(UserError) as caught:
        await start_listening(server, Settings().daemon.listen)
    assert words in caught.value.message and fix in caught.value.fix and server.stopped


class Hanging:
    """A slurmctld that does not answer, until it does."""

    def __init__(self, world: World) -> None:
        self.goes_on = asyncio.Event()
        self._world = world

    async def fleet(self) -> Fleet:
        await self.goes_on.wait()
        return await self._world.slurm.fleet()


async def test_a_slurm_that_hangs_holds_no_start_up_and_is_taken_in_when_it_answers(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the host of slurmctld the daemon on it may be lost: the other one has to answer."""
    monkeypatch.setattr(run, "_FIRST_SNAPSHOT_S", 0.0)
    daemon, log = Daemon(world()), io.StringIO()
    hangs = Hanging(daemon.world)
    daemon.fleets._reader = hangs  # type: ignore[assignment]
    taking = await run._first_snapshot(daemon.fleets, Log(log))
    assert not taking.done() and "carrying-on-without-slurm" in log.getvalue()
    hangs.goes_on.set()
    await taking
    assert daemon.live.fleet is not None


async def test_a_slurm_that_answers_is_waited_for(world: Callable[..., World]) -> None:
    daemon, log = Daemon(world()), io.StringIO()
    taking = await run._first_snapshot(daemon.fleets, Log(log))
    assert taking.done() and daemon.live.fleet is not None and not log.getvalue()


async def test_a_slurm_that_refuses_is_said_once(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, log = Daemon(world()), io.StringIO()

    async def fails() -> Fleet:
        raise Unavailable("slurmctld refuses the connection")

    monkeypatch.setattr(daemon.fleets, "take", fails)
    await run._first_snapshot(daemon.fleets, Log(log))
    assert "slurmctld refuses the connection" in log.getvalue() and daemon.live.fleet is None


async def test_a_start_whose_note_is_not_taken_goes_on_and_is_noted_later(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is nearly full: who ended would be started again and again, and tell nobody."""
    there, log = world(), io.StringIO()
    commit, full = there.store.commit, [True]

    def written(changes: Any) -> None:
        if full:
            raise Unavailable("database or disk is full")
        commit(changes)

    monkeypatch.setattr(there.store, "commit", written)
    monkeypatch.setattr(outage_standby, "_AGAIN_S", 0.0)
    noting = await run._start_noted(there.store, Settings(), there.slurm.clock.now(), Log(log))
    assert not noting.done() and "disk is full" in log.getvalue()
    full.clear()
    await noting
    assert [one.entry.action for one in there.store.audit()] == ["started"]


class Part:
    """Notes when it is stopped."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self._name, self._ended = name, ended

    async def stop(self) -> None:
        self._ended.append(self._name)

    close = stop


async def test_what_effects_ask_is_closed_after_them(world: Callable[..., World]) -> None:
    """An incident may begin to ask Prometheus while the daemon stops."""
    ended, there = list[str](), world()
    runner, signals, page, server = (Part(name, ended) for name in ("effects", "prometheus", "page", "server"))
    await _stop(runner, signals, page, server, there.store, there.slurm.clock)  # type: ignore[arg-type]
    assert ended.index("effects") < ended.index("prometheus") and set(ended) >= {"page", "server"}
    assert [one.entry.action for one in there.store.audit()] == ["stopped"]
