"""Accounts of this host by uid. One that it does not know is *not known*, never somebody else."""

from __future__ import annotations

import pwd


def name_of(uid: int) -> str:
    """The account's name; where there is none, words that no account can have as its name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def gid_of(uid: int | None) -> int | None:
    """The account's own group; None where account or group is not known."""
    try:
        return pwd.getpwuid(uid).pw_gid if uid is not None else None
    except KeyError:
        return None
