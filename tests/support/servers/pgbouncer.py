"""A PgBouncer before a PostgreSQL, which gives each transaction any of its connections to the server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time

import sqlalchemy as sa

from servers.keeper import Keeper
from servers.postgres import OWNER

_PORT = 6432  # part of its socket's name, in a folder of its own
_CONNECTIONS = 3  # to the server: fewer than its clients have


def missing() -> str:
    """Why there is none here; empty when there is."""
    return "" if _program() else "pgbouncer is not installed (Debian package pgbouncer)"


def _program() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class PgBouncer:
    """``with PgBouncer(url) as pooler: pooler.url``; ``url``: of a database on a server with a socket."""

    def __init__(self, url: str) -> None:
        self._keeper = Keeper("pgb-")
        self._behind = sa.make_url(url)
        self._process: subprocess.Popen[bytes]
        folder = self._keeper.folder
        self.url = self._behind.set(query={"host": str(folder), "port": str(_PORT)}).render_as_string()
        self._socket = folder / f".s.PGSQL.{_PORT}"

    def __enter__(self) -> PgBouncer:
        folder, program = self._keeper.folder, _program()
        assert program is not None
        (folder / "ini").write_text(
            f"[databases]\n* = host={self._behind.query['host']} user={OWNER}\n"
            f"[pgbouncer]\npool_mode = transaction\nauth_type = any\ndefault_pool_size = {_CONNECTIONS}\n"
            f"listen_addr =\nlisten_port = {_PORT}\nunix_socket_dir = {folder}\nlogfile = {folder}/log\n"
        )
        if os.geteuid() == 0:  # it refuses to run as root
            shutil.chown(folder, OWNER)
        self._process = subprocess.Popen(
            [program, str(folder / "ini")],
            env={**os.environ, **self._keeper.environment},
            user=OWNER if os.geteuid() == 0 else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until_s = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > until_s:
                self.__exit__()
                raise AssertionError("PgBouncer does not answer")
            time.sleep(0.05)
        return self

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket)) == 0

    def __exit__(self, *_: object) -> None:
        self._keeper.close()
        self._process.wait()
