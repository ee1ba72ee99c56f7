"""Who is at the other end of a connection within this host: any user may listen at a port above 1023, or in /tmp.

By the kernel's tables of TCP sockets, which name the account of each, and by the credentials of unix sockets. Of another
host's sockets nothing can be known. Standard library only: the hooks use it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NET = Path("/proc/net")
_LISTENS = b"0A"
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address in the table of IPv6 sockets
_PEER = struct.Struct("iII")  # pid, uid and gid of the other end of a unix socket


class Row(NamedTuple):
    """One socket of the kernel's tables. Addresses as packed bytes: 4 of IPv4, also where an IPv6 socket has it."""

    local: bytes
    port: int
    remote: bytes
    remote_port: int
    uid: int
    inode: int  # 0: no process has it: not accepted yet, or closed


def is_here(stream: socket.socket) -> bool:
    """Whether the other end of this TCP connection is on this host."""
    there, here = _packed(stream.getpeername()[0]), _packed(stream.getsockname()[0])
    return there == here or there[:1] == b"\x7f" or there == _packed("::1")


def listening(address: str, port: int, net: Path = NET) -> list[Row]:
    """The sockets that get what comes to this address of this host; several only where one account shares a port.

    While one of them is open the kernel lets no other account have the same address and port.

    Raises:
        OSError: the tables cannot be read.
    """
    wanted = _packed(address)
    everywhere = bytes(len(wanted))
    for table in ("tcp", "tcp6"):
        # One of :: gets IPv4 connections only where no socket of IPv4 has the port.
        found = [
            row for row in _rows(net / table, port, listeners_only=True)
            if row.local in (wanted, everywhere) or (table == "tcp6" and row.local == bytes(16))
        ]  # fmt: skip
        if found:
            return found
    return []


def accepted_by(stream: socket.socket, net: Path = NET) -> int | None:
    """Uid of the process of this host that accepted our TCP connection; None: none has yet, or it has closed it.

    Who listens proves less: a listener can be closed right after it has accepted.

    Raises:
        OSError: the tables cannot be read, or the connection has ended.
    """
    there, here = stream.getpeername(), stream.getsockname()
    ends = (_packed(there[0]), there[1], _packed(here[0]), here[1])
    owners = {
        row.uid
        for table in ("tcp", "tcp6")
        for row in _rows(net / table, there[1])
        if row.inode and (row.local, row.port, row.remote, row.remote_port) == ends
    }
    return owners.pop() if len(owners) == 1 else None


def owner_of_unix(stream: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process that listens at the unix socket to which we are connected."""
    pid, uid, _ = _PEER.unpack(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return pid, uid


def own_connections() -> Iterator[socket.socket]:
    """The connected sockets of this process, those of libraries among them, each as a copy that is closed behind its use."""
    for entry in Path("/proc/self/fd").iterdir():
        try:
            copy = os.dup(int(entry.name))
        except OSError:
            continue
        try:
            stream = socket.socket(fileno=copy)
        except OSError:  # no socket
            os.close(copy)
            continue
        with stream, contextlib.suppress(OSError):  # not connected
            stream.getpeername()
            yield stream


def _rows(table: Path, port: int, *, listeners_only: bool = False) -> Iterator[Row]:
    """Rows of this local port. The kernel lists those that listen first: then not all of many thousands are read."""
    end = b":%04X" % port
    found = False
    try:
        stream = table.open("rb")
    except FileNotFoundError:  # a kernel without IPv6
        if table.name == "tcp6":
            return
        raise
    with stream:
        next(stream, None)
        for line in stream:
            words = line.split()
            if listeners_only and found and len(words) > 3 and words[3] != _LISTENS:
                return
            if len(words) < 10 or not words[1].endswith(end) or (listeners_only and words[3] != _LISTENS):
                continue
            found = True
            local, remote = words[1].partition(b":"), words[2].partition(b":")
            yield Row(
                _from_table(local[0]), int(local[2], 16), _from_table(remote[0]), int(remote[2], 16),
                int(words[7]), int(words[9]),
            )  # fmt: skip


def _from_table(text: bytes) -> bytes:
    """An address as the tables write it: words of 32 bits, each in the order of this machine."""
    words = (int(text[at : at + 8], 16) for at in range(0, len(text), 8))
    return _short(b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _packed(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return _short(socket.inet_pton(family, address.partition("%")[0]))


def _short(address: bytes) -> bytes:
    return address[12:] if len(address) == 16 and address[:12] == _MAPPED else address
