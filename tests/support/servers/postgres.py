"""A PostgreSQL server of its own in a temporary folder, reachable through a socket in that folder only."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from servers.keeper import Keeper

OWNER = "postgres"  # the server refuses to run as root; Debian's package makes this account


def _programs() -> Path | None:
    """Folder of initdb and pg_ctl: the newest that Debian installed, or PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3].split(".")[0]))
    on_path = shutil.which("initdb")
    chosen = found[-1] if found else Path(on_path).resolve() if on_path else None
    return chosen.parent if chosen else None


def missing() -> str:
    """Why a server cannot be had here; empty when it can."""
    if _programs() is None:
        return "initdb is not installed (Debian package postgresql)"
    if os.geteuid() == 0 and OWNER not in {entry.pw_name for entry in pwd.getpwall()}:
        return f"no account {OWNER} to run the server"
    return ""


@contextlib.contextmanager
def empty_database(url: str) -> Iterator[str]:
    """URL of a new database on the server of ``url``; dropped afterwards, whoever still uses it."""
    base, name = sa.make_url(url), f"t{uuid.uuid4().hex}"
    admin = sa.create_engine(base, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        yield base.set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        admin.dispose()


class PostgresServer:
    """``with PostgresServer() as server: server.url``"""

    def __init__(self) -> None:
        self._keeper = Keeper("pg-")
        self.folder = self._keeper.folder
        self.url = f"postgresql+psycopg://{OWNER}@/postgres?host={self.folder}"

    def __enter__(self) -> PostgresServer:
        try:
            if os.geteuid() == 0:
                shutil.chown(self.folder, OWNER)
            self._run(
                "initdb", "-D", f"{self.folder}/data", "-U", OWNER, "-A", "trust", "-N", "-E", "UTF8", "--locale=C"
            )
            options = f"-k {self.folder} -c listen_addresses= -c fsync=off"
            self._run(
                "pg_ctl",
                "-D",
                f"{self.folder}/data",
                "-l",
                f"{self.folder}/log",
                "-o",
                options,
                "-w",
                "-t",
                "60",
                "start",
            )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.close()

    def _run(self, program: str, *arguments: str) -> None:
        folder = _programs()
        assert folder is not None
        done = subprocess.run(
            [str(folder / program), *arguments],
            env={**os.environ, "LC_ALL": "C", **self._keeper.environment},
            cwd=self.folder,
            user=OWNER if os.geteuid() == 0 else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a pipe would stay open in the server
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            log = self.folder / "log"
            said = done.stderr or (log.read_text(errors="replace") if log.exists() else "")
            raise AssertionError(f"{program} ended with status {done.returncode}: {said[-2000:]}")
