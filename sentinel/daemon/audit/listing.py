"""Shows the audit to operators, and checks its chain. Read-only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from sentinel.adapters.store.audit import Checked
from sentinel.adapters.store.store import Store
from sentinel.daemon.api.histories import since_of
from sentinel.errors import Denied, ProtocolError, Refused, UserError
from sentinel.model.audit import FIRST, ChainedEntry
from sentinel.wire import to_json

PAGE = 1000  # entries in one answer: about 1 MB
_CHECKED = 20_000  # entries that one answer checks where it is asked for a part: about a second
_NEWEST = 50  # shown if the request does not say since when


async def audit(store: Store, arguments: Mapping[str, Any], user: str | None) -> dict[str, Any]:
    """Entries, the oldest first, and the number before which there may be more; or the result of a check of the chain.

    Raises:
        Denied: the caller is no operator.
        UserError: an argument is wrong.
        Refused: an entry cannot be read.
    """
    if user is not None:
        raise Denied("only operators see the audit", fix="see [daemon] operators")
    if arguments.get("verify"):
        return await _verified(store, arguments)
    since, after = since_of(arguments), arguments.get("after", 0)
    if not isinstance(after, int) or isinstance(after, bool) or not 0 <= after < 2**31:
        raise UserError(f"{after!r:.40} is no number of an entry", fix="upgrade the daemon or the command line")
    newest = _NEWEST if since is None and not after and not arguments.get("all") else None
    try:
        found = await asyncio.to_thread(store.audit, since=since, after=after, newest=newest, most=PAGE)
    except ProtocolError as error:
        raise Refused(f"an entry was changed: {error.message}", fix="sentinel audit --verify names it") from error
    return {"entries": [shown(item) for item in found], "more": newest is None and len(found) == PAGE}


async def _verified(store: Store, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a check of the whole chain, or of a part of it: with where to go on, and how many entries there are.

    Raises:
        UserError: an argument is wrong.
    """
    if not arguments.get("part"):  # of an earlier release
        return {"checked": to_json(await asyncio.to_thread(store.check_audit))}
    after, head = arguments.get("after", 0), arguments.get("head", FIRST)
    if not isinstance(after, int) or isinstance(after, bool) or not 0 <= after < 2**31 or not isinstance(head, str):
        raise UserError(f"{after!r:.40} is no number of an entry", fix="upgrade the daemon or the command line")
    found = await asyncio.to_thread(store.check_audit, Checked(after, head), _CHECKED)
    more = not found.fault and found.entries - after >= _CHECKED
    return {"checked": to_json(found), "more": more, "of": await asyncio.to_thread(store.audit_length)}


def shown(item: ChainedEntry) -> dict[str, Any]:
    """An entry as JSON: the same in the view, in ``--json`` and in syslog."""
    entry: dict[str, Any] = to_json(item.entry)
    return {"number": item.number, **entry, "previous": item.previous, "digest": item.digest}
