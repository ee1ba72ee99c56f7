"""Whose the other end of a local connection is: by the kernel's tables, recorded and real."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sentinel.adapters.host import local_peer

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
TAIL = "1 0000000000000000 100 0 0 10 0"
# Linux 6.1, x86_64. 127.0.0.1:5555 and 10.0.0.7:5556 listen, a stranger on 127.0.0.2:5555; two connections to the first,
# the second of which was not accepted yet.
TCP = f"""{HEAD}\
   0: 0100007F:15B3 00000000:0000 0A 00000000:00000001 00:00000000 00000000     0        0 4711 {TAIL}
   1: 0200007F:15B3 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4712 {TAIL}
   2: 0700000A:15B4 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 4713 {TAIL}
   3: 0100007F:15B3 0100007F:CE58 01 00000000:00000000 00:00000000 00000000     0        0 0 {TAIL}
   4: 0100007F:CE4A 0100007F:15B3 01 00000000:00000000 00:00000000 00000000   998        0 4714 {TAIL}
   5: 0100007F:15B3 0100007F:CE4A 01 00000000:00000000 00:00000000 00000000   998        0 4715 {TAIL}
   6: 0100007F:15B3 0100007F:CE4B 06 00000000:00000000 03:00000085 00000000     0        0 0 3 {TAIL}
"""
ANY6, LOOP6, MAPPED = "0" * 32, "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"
TCP6 = f"""{HEAD}\
   0: {ANY6}:15B5 {ANY6}:0000 0A 00000000:00000000 00:00000000 00000000   997        0 4720 {TAIL}
   1: {ANY6}:15B3 {ANY6}:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4721 {TAIL}
   2: {LOOP6}:15B6 {ANY6}:0000 0A 00000000:00000000 00:00000000 00000000   996        0 4722 {TAIL}
   3: {MAPPED}:15B5 {MAPPED}:89E4 01 00000000:00000000 00:00000000 00000000   997        0 4723 {TAIL}
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.byteorder", "little")
    (tmp_path / "tcp").write_text(TCP)
    (tmp_path / "tcp6").write_text(TCP6)
    return tmp_path


class Connection(socket.socket):
    """One with these ends."""

    def __init__(self, there: tuple[str, int], here: tuple[str, int]) -> None:
        super().__init__(socket.AF_INET)
        self._ends = there, here

    def getpeername(self) -> tuple[str, int]:
        return self._ends[0]

    def getsockname(self) -> tuple[str, int]:
        return self._ends[1]


@pytest.mark.parametrize(
    ("address", "port", "found"),
    [
        ("127.0.0.1", 5555, [(0, 4711)]),  # one of IPv6 for all addresses gets nothing of it
        ("127.0.0.2", 5555, [(1000, 4712)]),
        ("10.0.0.7", 5556, [(998, 4713)]),
        ("127.0.0.1", 5556, []),
        ("127.0.0.1", 5557, [(997, 4720)]),  # of IPv4, too, as nobody has that port there
        ("::1", 5557, [(997, 4720)]),
        ("::1", 5558, [(996, 4722)]),
        ("127.0.0.1", 5558, []),
        ("127.0.0.1", 0xCE4A, []),  # does not listen
    ],
)
def test_who_listens(net: Path, address: str, port: int, found: list[tuple[int, int]]) -> None:
    assert [(row.uid, row.inode) for row in local_peer.listening(address, port, net)] == found


@pytest.mark.parametrize(
    ("port", "own", "uid"),
    [(5555, 0xCE4A, 998), (5555, 0xCE58, None), (5555, 0xCE4B, None), (5555, 1, None), (5557, 0x89E4, 997)],
)
def test_who_accepted(net: Path, port: int, own: int, uid: int | None) -> None:
    """Nobody yet, or nobody any more, is not root, whom the kernel names there."""
    with Connection(("127.0.0.1", port), ("127.0.0.1", own)) as stream:
        assert local_peer.accepted_by(stream, net) == uid


def test_a_kernel_without_ipv6(net: Path) -> None:
    (net / "tcp6").unlink()
    assert local_peer.listening("127.0.0.1", 5557, net) == []
    (net / "tcp").unlink()
    with pytest.raises(OSError, match="tcp"):
        local_peer.listening("127.0.0.1", 5557, net)


@pytest.mark.parametrize(
    ("there", "here", "local"),
    [
        ("127.0.0.1", "127.0.0.1", True), ("127.0.0.2", "127.0.0.1", True), ("10.0.0.7", "10.0.0.7", True),
        ("10.0.0.8", "10.0.0.7", False), ("::1", "::1", True), ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", False),
    ],
)  # fmt: skip
def test_which_addresses_are_of_this_host(there: str, here: str, local: bool) -> None:
    with Connection((there, 5555), (here, 40000)) as stream:
        assert local_peer.is_here(stream) is local


def test_with_this_kernel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (row,) = local_peer.listening("127.0.0.1", port)
        assert (row.uid, row.inode) == (os.geteuid(), os.fstat(server.fileno()).st_ino)
        with socket.create_connection(("127.0.0.1", port)) as stream:
            assert local_peer.accepted_by(stream) is None
            with server.accept()[0]:
                assert local_peer.accepted_by(stream) == os.geteuid()
                mine = {copy.getpeername() for copy in local_peer.own_connections()}
    assert ("127.0.0.1", port) in mine
    assert local_peer.listening("127.0.0.1", port) == []
