"""As whom the daemon runs where nobody says it, and what is told where slurm.conf, which would say it, is not found."""

from __future__ import annotations

from pathlib import Path

from sentinel.cli.install.existing import unit_account
from sentinel.cli.install.files import EVENTS
from sentinel.cli.install.slurm_conf import SlurmConf

_ACCOUNT = "sentinel"


def slurm_user(conf: SlurmConf) -> str:
    return conf.get("SlurmUser").partition("(")[0] or "root"


def daemon_account(
    conf: SlurmConf, conf_path: Path | None, root: Path, *, controller: bool, named: str | None, uid: int | None
) -> tuple[str, list[str]]:
    """The daemon's account, and what is told where no slurm.conf is found: what is taken in its place.

    A slurm.conf that is not found says nothing of slurmdbd: the account is then the installed daemon's, else the one that
    Sentinel makes, and never root for want of better knowledge.

    Args:
        named: the account, if the operator named it.
        uid: the account's, if the operator named that.
    """
    if conf_path is not None:
        with_slurmdbd = conf.get("AccountingStorageType").endswith("slurmdbd")
        return named or (_ACCOUNT if with_slurmdbd else slurm_user(conf)), []
    account = named or unit_account(root) or _ACCOUNT
    taken = []
    if named is None and (controller or uid is None):
        taken.append(f"the daemon is taken to run as {account} (--account names another)")
    if controller:
        taken.append(f"SlurmUser is taken to be root, who alone then leaves news in {EVENTS}")
    said = f"no slurm.conf was found: {'; '.join(taken)}. Name it with --slurm-conf (sudo drops SLURM_CONF)"
    return account, [said] if taken else []
