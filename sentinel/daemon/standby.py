"""Standby mode: waits for the lease, and answers each request meanwhile by naming the active daemon."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from typing import Protocol

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from sentinel import __version__
from sentinel.adapters.daemon_addresses import addresses_of
from sentinel.adapters.tls import client_context
from sentinel.config.settings import Daemon
from sentinel.daemon.api.transport import Listener
from sentinel.daemon.lease import Lease
from sentinel.errors import SentinelError, Unavailable, UserError
from sentinel.log import Log
from sentinel.protocol import ACTIVE, ELSEWHERE, STANDBY, TELLS
from sentinel.telemetry import EXPOSITION_TYPE, Telemetry

_KNOWN = ("sentinel_active", "sentinel_build_info")  # a standby daemon's metrics; others are the active one's

_MOST_HEALTH = 64  # bytes of what /healthz says


class Startable(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class StandbyServer:
    """Serves the daemon's address in standby: ``/healthz``, ``/metrics``, and the active daemon's name for all else.

    No request is read or stored, so that no credential is checked.
    """

    def __init__(
        self,
        settings: Daemon,
        lease: Lease,
        telemetry: Telemetry,
        log: Log,
        tells: Callable[[], bool] = lambda: False,
    ) -> None:
        """``tells``: whether this daemon tells people that the store cannot be written."""
        self._lease, self._address, self._tells = lease, settings.listen, tells
        telemetry.build_info.labels(version=__version__).set(1)
        self._metrics = telemetry.exposition(*_KNOWN)
        self._listener = Listener(settings, self._answer, telemetry, log)

    async def start(self) -> None:
        await start_listening(self._listener, self._address)

    async def stop(self) -> None:
        await self._listener.stop()

    @property
    def address(self) -> tuple[str, int]:
        return self._listener.address

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if (request.method, request.path) == ("GET", "/healthz"):
            return web.Response(text=f"{STANDBY}\n", headers={TELLS: "yes"} if self._tells() else {})
        if (request.method, request.path) == ("GET", "/metrics"):
            return web.Response(body=self._metrics, headers={"Content-Type": EXPOSITION_TYPE})
        return web.json_response(standing_by(self._lease), status=ELSEWHERE)


async def start_listening(server: Startable, address: str) -> None:
    """Start the server, of the active daemon or of one that stands by.

    Raises:
        UserError: the address cannot be used: taken, not of this host, or not permitted.
    """
    try:
        await server.start()
    except (OSError, ValueError) as error:
        await server.stop()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "is taken by another program" if taken else f"cannot be listened at: {error}"
        port = address.rpartition(":")[2]
        fix = (
            f"ss -tlnp 'sport = :{port}' shows which; or set [daemon] listen to another"
            if taken
            else "correct [daemon] listen"
        )
        raise UserError(f"{address} {why}", fix=fix) from error


def standing_by(lease: Lease) -> dict[str, str]:
    """The answer of a standby daemon, as JSON."""
    active = lease.active
    if active is not None and active.address == lease.address:  # the caller already asks the right address
        return {
            "error": "standby: this daemon has just started, and the one before it may still run",
            "fix": f"try again: it becomes active within {lease.lease_s:g} s if that one is gone",
        }
    where = f"the active daemon is {active.address}" if active is not None else "no daemon is active yet"
    return {"error": f"standby: {where}", "fix": "name the addresses of all daemons in url, separated by commas"}


async def stand_by(
    lease: Lease, server: StandbyServer, log: Log, answers: Callable[[str], None] = lambda _: None
) -> None:
    """Return when the lease is ours. ``server`` is started only if the lease cannot be taken at once.

    Args:
        answers: called after each try with why the database does not answer; empty: it does.
    """
    said, problem = "", ""
    while True:
        try:
            if await asyncio.to_thread(lease.try_to_take):
                return
            problem = ""
            answers("")
        except Unavailable as error:
            answers(error.message)
            if error.message != problem:
                problem = error.message
                log.warning("standing-by-without-database", reason=problem, fix=error.fix)
        active = lease.active.address if lease.active is not None else "not known"
        if not said:
            await server.start()
        if active != said:
            log.info("standing-by", active=active)
            said = active
        await asyncio.sleep(lease.every_s / 2)


async def another_acts(lease: Lease | None, settings: Daemon, deadline_s: float, *, or_tells: bool = False) -> bool:
    """Whether another daemon of this database says that it is the active one. What is not known is no.

    That answer is not authenticated: whoever forges it keeps back the message that nothing is done, and changes nothing.

    Args:
        lease: None: the database has not answered yet.
        deadline_s: of each answer; all are asked at once.
        or_tells: also whether one says that it tells people that none acts.
    """
    known = lease.other_addresses if lease is not None else ()
    addresses = dict.fromkeys([*known, *addresses_of(settings.url)])
    said = await asyncio.gather(*(_health(one, settings.ca_file, deadline_s) for one in addresses))
    return any(one == ACTIVE or (or_tells and tells) for one, tells in said)


async def _health(address: str, ca_file: str, deadline_s: float) -> tuple[str, bool]:
    """What the daemon there says of itself (empty: no answer), and whether it tells people that the store cannot be written.
    One without the lease does not call itself active."""
    with contextlib.suppress(ClientError, OSError, ValueError, TimeoutError, SentinelError):
        context = client_context(ca_file) if address.startswith("https:") else True
        async with (
            ClientSession(timeout=ClientTimeout(total=deadline_s)) as session,
            session.get(f"{address.rstrip('/')}/healthz", ssl=context, allow_redirects=False) as answer,
        ):
            said = (await answer.content.read(_MOST_HEALTH)).decode("utf-8", "replace").strip()
            return said, TELLS in answer.headers
    return "", False
