"""The accounts of a host, or of the image whose folder is named."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int  # of its first group
    group: str  # its first group's name; the number where that has none


def account_of(name: str, root: Path = Path("/")) -> Account | None:
    """The account, of the image below ``root`` where that has accounts of its own; None: there is none of this name."""
    passwd = root / "etc/passwd"
    if root == Path("/") or not passwd.is_file():
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            return None
        return Account(entry.pw_uid, entry.pw_gid, _group(entry.pw_gid))
    groups = {gid: group for group, _, gid, *_ in _rows(root / "etc/group", 3)}
    for account, _, uid, gid, *_ in _rows(passwd, 4):
        if account == name and uid.isdecimal() and gid.isdecimal():
            return Account(int(uid), int(gid), groups.get(gid, gid))
    return None


def is_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _rows(path: Path, least: int) -> Iterator[list[str]]:
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) >= least:
                yield fields
