"""Transactions that are not answered are ended; those that are in time are left alone."""

from __future__ import annotations

import socket
import threading

import pytest

from sentinel.adapters.store.deadlines import Deadlines


def test_the_deadline_of_one_transaction_ends_no_other() -> None:
    clock = [0.0]
    deadlines = Deadlines(lambda: clock[0])
    one, other = socket.socketpair()
    late, far = socket.socketpair()
    ended = threading.Event()
    with deadlines.within(5.0, one.fileno()), deadlines.within(50.0, late.fileno()):
        threading.Thread(target=lambda: (other.recv(1), ended.set()), daemon=True).start()
        clock[0] = 10.0
        assert ended.wait(60)
        late.settimeout(0)
        with pytest.raises(BlockingIOError):
            late.recv(1)
    for each in (one, other, late, far):
        each.close()
