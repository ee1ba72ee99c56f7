"""Whose process answers as DCGM's host engine: its default port is one that every user of the node may listen at.

Whoever listens there while the engine is away could have sound GPUs reported as lost and the node drained. An engine on this
node is believed if its socket belongs to root, to the account that the site names, or to our own account. Of one on another
host nothing can be known: it is taken as configured.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from ipaddress import IPv6Address
from pathlib import Path

from sentinel.adapters.host import local_peer
from sentinel.errors import Unavailable

ACCOUNT = "nvidia-dcgm"  # of DCGM's packages, where its service is not root's
PORT = 5555  # of the engine, where the address names none
_CONNECT_S = 2.0
_LOOK_S = 0.02
_FIX = (
    "see who listens there (ss -ltnp; ss -lxp), then start nvidia-dcgm.service; if the engine runs as another account, name"
    " it: dcgm.account, SENTINEL_DCGM_ACCOUNT of the hooks"
)

Seen = tuple[object, ...]  # what stays the same while one engine listens


class NobodyListens(Unavailable):
    pass


def with_port(host: str) -> str:
    """``host`` with a port, DCGM's own where it names none. Of an IPv6 address that has none the last part is no port."""
    try:
        return f"[{IPv6Address(host.strip('[]'))}]:{PORT}"
    except ValueError:
        return host if re.search(r":\d{1,5}$", host) else f"{host}:{PORT}"


class EngineOwner:
    """
    Args:
        host: TCP address of the engine, used when ``path`` is empty.
        path: its unix socket.
        account: name or uid of who may run it besides root and us; empty: nobody.
    """

    def __init__(self, *, host: str, path: str, account: str) -> None:
        self._host = host if path else with_port(host)
        self._path = path
        self._account = account
        self._here = ""  # the address that was looked at: behind a name may be several

    @property
    def address(self) -> str:
        """The TCP address, with its port."""
        return self._host

    @property
    def where(self) -> str:
        """The engine's address for ``dcgmi``."""
        return f"unix://{self._path}" if self._path else self._here or self._host

    def is_closed(self) -> bool:
        """Whether nobody but its account and root can connect: a unix socket that nobody else may write to.

        The engine asks nobody who connects who it is, and lets everybody write values (``dcgmi test --inject``). A TCP
        port is open to all users of the node.
        """
        try:
            mode = Path(self._path).stat().st_mode if self._path else 0
        except OSError:
            return False
        return bool(mode) and not mode & (stat.S_IWGRP | stat.S_IWOTH)

    def look(self) -> Seen:
        """Connect, and look whose the engine's socket is.

        Returns: what tells it from another one; on another host always the same. If two looks saw the same, no other
        account had the address in between.

        Raises:
            NobodyListens: nothing listens there. Unavailable: somebody else does, or it cannot be known.
        """
        try:
            return self._look_at_path() if self._path else self._look_at_port()
        except (OSError, ValueError) as error:
            raise Unavailable(f"whose the DCGM host engine on {self.where} is cannot be seen: {error}") from error

    def require_own_connections(self, within_s: float) -> None:
        """Look who accepted the connections that this process has to the engine, as DCGM's library makes one.

        Raises:
            Unavailable: somebody who is not believed, or nobody within that time.
        """
        end_s = time.monotonic() + within_s
        _, _, port = self._host.rpartition(":")
        for stream in local_peer.own_connections():
            if self._path:
                if stream.family == socket.AF_UNIX and stream.getpeername() == self._path:
                    self._believe(local_peer.owner_of_unix(stream)[1])
                continue
            if stream.family not in (socket.AF_INET, socket.AF_INET6) or stream.type != socket.SOCK_STREAM:
                continue
            if str(stream.getpeername()[1]) != port or not local_peer.is_here(stream):
                continue
            while (uid := local_peer.accepted_by(stream)) is None:
                if time.monotonic() >= end_s:
                    raise Unavailable(f"the DCGM host engine on {self.where} does not take connections")
                time.sleep(_LOOK_S)
            self._believe(uid)

    def _look_at_port(self) -> Seen:
        try:
            name, _, port = self._host.rpartition(":")
            stream = socket.create_connection((name.strip("[]") or "127.0.0.1", int(port)), timeout=_CONNECT_S)
        except (OSError, ValueError) as error:
            raise self._nobody(error) from error
        with stream:
            if not local_peer.is_here(stream):
                return ()
            address = stream.getpeername()[0]
        if ":" not in address:
            self._here = f"{address}:{port}"
        # Twice: of a table that changes while it is read a row may be missed.
        rows = local_peer.listening(address, int(port)) or local_peer.listening(address, int(port))
        if not rows:
            raise Unavailable(
                f"the DCGM host engine on {self.where} answers and no process of this node listens there: not believed",
                fix="where the port is forwarded to a container, name the container's own address",
            )
        for row in rows:
            self._believe(row.uid)
        return tuple(sorted(row.inode for row in rows))

    def _look_at_path(self) -> Seen:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
                stream.settimeout(_CONNECT_S)
                stream.connect(self._path)
                pid, uid = local_peer.owner_of_unix(stream)
        except OSError as error:
            raise self._nobody(error) from error
        self._believe(uid)
        # Who may rename in a folder above it can put another socket into its place for a moment.
        real = Path(self._path).resolve()
        here = real.stat()
        for folder in real.parents:
            found = folder.stat()
            self._believe(found.st_uid, f"the folder {folder} of the DCGM host engine's socket")
            if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
                raise Unavailable(
                    f"others may replace the DCGM host engine's socket in {folder}: not believed",
                    fix=f"chmod go-w {folder}",
                )
        return (here.st_dev, here.st_ino, pid)

    def _nobody(self, error: Exception) -> NobodyListens:
        return NobodyListens(f"no DCGM host engine on {self.where}: {error}", fix="start nvidia-dcgm.service")

    def _believe(self, uid: int, what: str = "") -> None:
        """
        Raises:
            Unavailable: what belongs to this uid is not believed.
        """
        if uid in (0, os.geteuid()) or uid == self._uid():
            return
        whose = f"root or {self._account}" if self._account else "root"
        what = what or f"the DCGM host engine on {self.where}"
        raise Unavailable(f"{what} belongs to uid {uid}, not to {whose}: not believed", fix=_FIX)

    def _uid(self) -> int | None:
        """Of the account that the site names. Looked up only for what is not root's: that may ask a directory service."""
        if self._account.isdecimal():
            return int(self._account)
        import pwd

        try:
            return pwd.getpwnam(self._account).pw_uid if self._account else None
        except KeyError:
            return None
