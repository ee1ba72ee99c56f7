"""Views and pages are computed in turns: one person keeps nobody out, nor does a Slurm that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from in_memory.page import serving_page
from in_memory.server import OPERATOR, RESEARCHER, serving
from in_memory.world import World

from sentinel import protocol
from sentinel.daemon.api.callers import Places
from sentinel.errors import Unavailable
from sentinel.model.records import Fleet

Worlds = Callable[..., World]
_GUARD_S = 60.0  # until a test that would hang fails


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_GUARD_S):
        while not condition():
            await asyncio.sleep(0)


class Hanging:
    """A Slurm that does not answer until it is let go, and then says no."""

    def __init__(self) -> None:
        self.asked, self.let_go = 0, asyncio.Event()

    async def fleet(self) -> Fleet:
        self.asked += 1
        await self.let_go.wait()
        raise Unavailable("slurmctld did not answer")


async def test_one_of_each_person_at_once_and_a_few_in_all() -> None:
    places, here, most, order = Places(2), set[str](), 0, list[str]()
    go_on = asyncio.Event()

    async def ask(person: str, name: str) -> None:
        nonlocal most
        async with places.place(person):
            assert not any(other.startswith(person) for other in here)
            here.add(person + name)
            order.append(person + name)
            most = max(most, len(here))
            await go_on.wait()
            here.discard(person + name)

    tasks = [asyncio.create_task(ask("mallory", f"{number}")) for number in range(20)]
    tasks += [asyncio.create_task(ask(person, "")) for person in ("ada", "bob")]
    await until(lambda: len(here) == 2)
    assert here == {"mallory0", "ada"}
    go_on.set()
    await asyncio.gather(*tasks)
    assert most == 2 and order[:3] == ["mallory0", "ada", "bob"] and len(order) == 22
    assert not places._of and not places._here, "nobody is remembered"


async def test_who_gives_up_while_waiting_leaves_no_trace() -> None:
    places = Places(1)
    async with places.place("ada"):
        waits = [asyncio.create_task(places.place(person).__aenter__()) for person in ("ada", "bob")]
        await until(lambda: set(places._here) == {"ada", "bob"})
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    async with places.place("bob"):
        assert set(places._of) == {"bob"}


async def test_views_that_do_not_need_slurm_are_answered_while_it_hangs(world: Worlds) -> None:
    async with serving(world(nodes=4)) as served:
        served.daemon.fleets._reader, slurm = (hanging := Hanging()), served.daemon.fleets._reader  # type: ignore[assignment]
        served.daemon.fleets._taken_s = float("-inf")
        views = ({"view": "nodes"}, {"view": "nodes"}, {"view": "repairs"}, {"view": "nodes"})
        waiting = [
            asyncio.create_task(served.post(protocol.VIEW, view, uid=uid))
            for uid in (RESEARCHER, OPERATOR)
            for view in views
        ]
        await until(lambda: served.server._turns._under_way[RESEARCHER] == 4 and hanging.asked == 1)
        async with asyncio.timeout(_GUARD_S):
            for view in ("status", "incidents", "history", "doctor"):
                assert (await served.post(protocol.VIEW, {"view": view}, uid=OPERATOR)).status == 200
        assert not any(task.done() for task in waiting)
        hanging.let_go.set()
        assert [(await task).status for task in waiting] == [503] * 8
        assert hanging.asked == 1, "they do not wait for it one after the other"
        served.daemon.fleets._reader = slurm
        assert (await served.post(protocol.VIEW, {"view": "nodes"}, uid=RESEARCHER)).status == 200


async def test_views_of_one_person_leave_a_place_to_others(world: Worlds) -> None:
    async with serving(world(nodes=4)) as served:
        go_on, here = asyncio.Event(), 0

        async def slow(_arguments: dict[str, Any], _user: str | None) -> dict[str, Any]:
            nonlocal here
            here += 1
            await go_on.wait()
            return {}

        served.server._views._views["history"] = slow
        waiting = [
            asyncio.create_task(served.post(protocol.VIEW, {"view": "history"}, uid=RESEARCHER)) for _ in range(4)
        ]
        await until(lambda: here == 1 and served.server._turns._under_way[RESEARCHER] == 4)
        async with asyncio.timeout(_GUARD_S):
            assert (await served.post(protocol.VIEW, {"view": "status"}, uid=OPERATOR)).status == 200
        assert here == 1
        go_on.set()
        assert [(await task).status for task in waiting] == [200] * 4


async def test_pages_of_one_person_are_bounded_and_leave_a_place_to_others(world: Worlds) -> None:
    async with serving_page(world(nodes=4), deadline_s=_GUARD_S) as page:
        go_on, made = asyncio.Event(), page.views._views["history"]

        async def slow(arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
            await go_on.wait()
            return await made(arguments, user)

        page.views._views["history"] = slow
        flood = [asyncio.create_task(page.get("/history", user="mallory")) for _ in range(40)]
        await until(lambda: sum(task.done() for task in flood) == 24)
        refused = [task.result() for task in flood if task.done()]
        assert {status for status, _, _ in refused} == {503}
        assert all("16 requests of mallory are under way" in text for _, text, _ in refused)
        async with asyncio.timeout(_GUARD_S):
            for path in ("/", "/nodes", "/incidents"):
                assert (await page.get(path, user="root"))[0] == 200
                assert (await page.get(path, user="ada"))[0] == 200
        go_on.set()
        assert sorted([(await task)[0] for task in flood]) == [200] * 16 + [503] * 24


async def test_pages_do_not_wait_for_each_other_while_slurm_hangs(world: Worlds) -> None:
    async with serving_page(world(nodes=4), deadline_s=_GUARD_S) as page:
        await page.daemon.fleets.take()
        page.daemon.fleets._reader = hanging = Hanging()  # type: ignore[assignment]
        page.daemon.fleets._taken_s = float("-inf")
        waiting = [asyncio.create_task(page.get("/nodes", user=user)) for user in ("ada", "bob", "eve")]
        await until(lambda: hanging.asked == 1 and len(page.daemon.fleets._lock._waiters or ()) == 2)
        async with asyncio.timeout(_GUARD_S):
            assert (await page.get("/incidents", user="root"))[0] == 200
        hanging.let_go.set()
        assert [(await task)[0] for task in waiting] == [200] * 3, "with what is known"
