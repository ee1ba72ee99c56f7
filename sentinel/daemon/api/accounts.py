"""Looks up accounts and groups of this host.

The directory that knows them may be another host's and not answer: on the event loop they are looked up in ``LOOK_UPS``.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterable

from sentinel.adapters.threads import Threads

LOOK_UPS = Threads("accounts", 4)  # of people, who are few at once


async def account_of(uid: int) -> str:
    """As ``name_of``, without waiting for it on the event loop."""
    return await LOOK_UPS.call(name_of, uid)


def name_of(uid: int) -> str:
    """The account's name; for an unknown uid "uid N", which cannot be an account's name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def uids_of(named: Iterable[int | str]) -> tuple[set[int], list[str]]:
    """The uids of accounts ("ada"), members of groups ("%hpc-ops") and numbers; and the names that do not exist."""
    found: set[int] = set()
    unknown: list[str] = []
    for item in named:
        if isinstance(item, int):
            found.add(item)
            continue
        try:
            found.update(_members(item[1:]) if item.startswith("%") else {pwd.getpwnam(item).pw_uid})
        except KeyError:
            unknown.append(item)
    return found, unknown


def _members(group: str) -> set[int]:
    """Uids of a group's members, and of accounts whose primary group it is."""
    entry = grp.getgrnam(group)
    listed = set()
    for name in entry.gr_mem:
        try:
            listed.add(pwd.getpwnam(name).pw_uid)
        except KeyError:
            continue  # a removed account that the group still lists
    return listed | {account.pw_uid for account in pwd.getpwall() if account.pw_gid == entry.gr_gid}
