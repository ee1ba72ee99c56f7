"""Slurm's accounting for one test cluster: a MariaDB server and a slurmdbd of its own, on loopback.

MariaDB's files lie in the cluster's folder, which is gone with it; without a flush to disk at each commit, since nothing
of it need survive.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servers.slurm_cluster import Cluster

PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb", "slurmdbd", "sacctmgr", "sacct")
_OWNER, _PASSWORD = "slurm", "only-here"
_DATABASE = """
CREATE DATABASE slurm_acct_db;
CREATE USER 'slurm'@'127.0.0.1' IDENTIFIED BY 'only-here';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
"""


def missing(search: str) -> str:
    """Why there can be no accounting here; empty when there can."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=search) is None]
    return (
        f"not installed: {', '.join(absent)} (Debian packages slurmdbd, mariadb-server-core, mariadb-client-core)"
        if absent
        else ""
    )


class Accounting:
    """``conf_lines`` for slurm.conf, then ``start`` before slurmctld is."""

    def __init__(self, cluster: Cluster, database_port: int, slurmdbd_port: int) -> None:
        self._cluster = cluster
        self._folder: Path = cluster.folder / "db"
        self._ports = database_port, slurmdbd_port

    def conf_lines(self) -> str:
        return f"""AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={self._ports[1]}
AccountingStoragePass={self._cluster.folder}/munge/socket
AccountingStorageTRES=gres/gpu
JobAcctGatherType=jobacct_gather/none
"""

    def start(self) -> None:
        self._start_database()
        self._start_slurmdbd()
        self._cluster.command("sacctmgr", "--immediate", "add", "cluster", "contract")

    def _start_database(self) -> None:
        cluster, folder = self._cluster, self._folder
        folder.mkdir()
        (folder / "tmp").mkdir()
        account = pwd.getpwuid(os.getuid()).pw_name
        common = [
            f"--datadir={folder}",
            f"--user={account}",
            f"--tmpdir={folder}/tmp",  # two databases in /tmp take each other's temporary tables away
            "--innodb-log-file-size=4M",
            "--innodb-buffer-pool-size=32M",
        ]
        # --no-defaults: nothing of a server that may be on this machine.
        install = [
            "mariadb-install-db",
            "--no-defaults",
            *common,
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]
        done = subprocess.run(
            install, env=cluster.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"mariadb-install-db: {done.stdout[-1000:]}{done.stderr[-1000:]}"
        first = folder / "first.sql"
        first.write_text(_DATABASE)
        cluster.start(
            "mariadbd", "--no-defaults", *common, f"--socket={folder}/socket", f"--pid-file={folder}/pid",
            "--bind-address=127.0.0.1", f"--port={self._ports[0]}", f"--init-file={first}",
            "--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve",
        )  # fmt: skip
        cluster.wait(lambda: _listens(self._ports[0]), "MariaDB")

    def _start_slurmdbd(self) -> None:
        cluster = self._cluster
        conf = cluster.folder / "slurmdbd.conf"
        conf.write_text(
            f"""DbdHost={socket.gethostname().split(".")[0]}
DbdAddr=127.0.0.1
DbdPort={self._ports[1]}
SlurmUser={pwd.getpwuid(os.getuid()).pw_name}
AuthType=auth/munge
AuthInfo=socket={cluster.folder}/munge/socket
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={self._ports[0]}
StorageUser={_OWNER}
StoragePass={_PASSWORD}
StorageLoc=slurm_acct_db
LogFile={cluster.folder}/log/slurmdbd.log
PidFile={cluster.folder}/run/slurmdbd.pid
"""
        )
        conf.chmod(0o600)  # slurmdbd refuses to read its password from a file that others may read
        cluster.start("slurmdbd", "-D")
        cluster.wait(lambda: _listens(self._ports[1]), "slurmdbd")

    def sql(self, statement: str) -> str:
        """Ask the database itself: rows of accounting can be put into last month only there."""
        return self._cluster.command(
            "mariadb", "--no-defaults", f"--socket={self._folder}/socket", "--user=root", "--batch",
            "--skip-column-names", "slurm_acct_db", f"--execute={statement}",
        )  # fmt: skip


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
