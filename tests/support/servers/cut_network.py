"""A network in front of a unix socket that can be cut: what is sent then is taken and goes nowhere, and nobody is told."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from types import TracebackType


class CutNetwork:
    """``with CutNetwork(Path("/run/x/socket")) as net: connect to 127.0.0.1:net.port``; ``net.cut()``, ``net.mend()``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.port = self._listens.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> CutNetwork:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._over = True
        self._listens.close()
        self._lose_all()
        self._open.set()

    def cut(self) -> None:
        self._open.clear()

    def mend(self) -> None:
        """Connections of before stay lost, as after minutes without an answer."""
        self._lose_all()
        self._open.set()

    def _lose_all(self) -> None:
        with self._lock:
            lost, self._sockets = self._sockets, []
        for one in lost:
            with contextlib.suppress(OSError):  # it was not connected, or the other side is gone
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listens.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            with self._lock:
                if self._over:
                    near.close()
                    far.close()
                    return
                self._sockets += [near, far]
            threading.Thread(target=self._through, args=(near, far), daemon=True).start()

    def _through(self, near: socket.socket, far: socket.socket) -> None:
        self._open.wait()
        try:
            far.connect(str(self._path))
        except OSError:
            near.close()
            far.close()
            return
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                if not self._open.is_set():
                    continue  # lost
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return
