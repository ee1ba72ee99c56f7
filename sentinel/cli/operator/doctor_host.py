"""What ``sentinel doctor`` looks for in this host's files, and what ``--fix`` does about it.

Only what is Sentinel's own is repaired: its hooks, the mode of its settings, a missing resume folder. Slurm's configuration,
settings and everything that is a decision is left to people.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Sequence
from pathlib import Path

from sentinel.cli.install.accounts import Account, account_of
from sentinel.cli.install.existing import holds_secrets
from sentinel.cli.install.files import REMOVED, shipped
from sentinel.cli.install.host import Actions, Write
from sentinel.cli.operator.doctor_daemon import BAD, GOOD, Finding
from sentinel.config.settings import Settings

# The hooks by the last two parts of their path, as `sentinel install` names them.
_HOOKS = {
    ("Prolog", "10-sentinel"): "prolog/10-sentinel",
    ("Epilog", "10-sentinel"): "epilog/10-sentinel",
    ("TaskProlog", "task-sentinel"): "prolog/task-sentinel",
    ("EpilogSlurmctld", "slurmctld-sentinel"): "epilog/slurmctld-sentinel",
}
_HOOK_MODE = 0o755


def hook(key: str, value: str) -> Finding:
    """The hook that slurm.conf names, where this host has it. One that does nothing is worse than none: it looks good."""
    for name in value.split(","):
        path = Path(name).parent / "10-sentinel" if name.endswith("/*") else Path(name)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError):
            continue  # on other hosts only, or not for our eyes
        ours = _HOOKS.get((key, path.name))
        ours = ours if ours and (REMOVED in text or _heading(text) == _heading(shipped(ours))) else None
        written = (Write(path, shipped(ours), _HOOK_MODE, "changed"),) if ours and not path.is_symlink() else ()
        if REMOVED in text:
            role = "controller" if key == "EpilogSlurmctld" else "node"
            seen = f"{path} does nothing: Sentinel was removed here"
            return Finding(key, BAD, seen, f"sentinel install --{role}", written)
        if not os.access(path, os.X_OK):
            made = (
                (("chmod", "755", str(path)),) if written else ()
            )  # whether the site's own script runs is its decision
            return Finding(key, BAD, f"{path} cannot be run", f"chmod 755 {path}", made)
        if key == "TaskProlog" and (closed := _closed_to_users(path)) is not None:
            ours_alone = written and closed in (path, path.parent) and path.parent.name == "sentinel"
            made = (("chmod", "o+rx", str(closed)),) if ours_alone else ()
            seen = f"users cannot run {path}, and Slurm runs it as them: {closed} is closed to them"
            return Finding(key, BAD, seen, f"chmod o+rx {closed}", made)
        if ours and text != shipped(ours):
            return Finding(key, BAD, f"{path} is of another release", "sentinel install --refresh", written)
    return Finding(key, GOOD, value)


def _closed_to_users(path: Path) -> Path | None:
    """What keeps others than its owner from running a script: a folder above it, or its own mode."""
    for folder in reversed(path.absolute().parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    needed = stat.S_IROTH | stat.S_IXOTH
    return None if path.stat().st_mode & needed == needed else path


def _heading(text: str) -> str:
    """The first line of a hook's comment: what has another one is the site's own, though it has the name of ours."""
    return "".join(text.splitlines()[1:2])


def settings_file(config: Path, settings: Settings, account: str) -> Finding:
    """The file may be read by all unless it holds what is secret: addresses of webhooks, channels, tickets, a password.
    The daemon must read it in any case.

    Args:
        account: as whom the daemon runs; empty: not known.
    """
    status, daemon = config.stat(), account_of(account) if account else None
    secret = holds_secrets(settings)
    if secret and status.st_mode & stat.S_IROTH:
        seen = f"{config} can be read by everybody and holds addresses or a password"
    elif daemon and not _reads(account, daemon, config):
        seen = f"{account}, as whom the daemon runs, cannot read {config}"
    else:
        return Finding("settings", GOOD, str(config))
    if daemon is None:
        return Finding(
            "settings", BAD, seen, f"chgrp to the group of the daemon's account, then chmod g+r,o-r {config}"
        )
    made: list[tuple[str, ...]] = []
    own = daemon.uid in (0, status.st_uid)
    if not own and status.st_gid not in _groups(account, daemon):
        made.append(("chgrp", daemon.group, str(config)))  # first: the daemon must not lose it
    made.append(("chmod", f"{'u' if own else 'g'}+r{',o-r' if secret else ''}", str(config)))
    return Finding("settings", BAD, seen, "; ".join(map(" ".join, made)), tuple(made))


def _reads(account: str, daemon: Account, path: Path) -> bool:
    """Whether the account may read the file, as the kernel decides it; true where an access list may say so."""
    status = path.stat()
    if daemon.uid == 0 or "system.posix_acl_access" in os.listxattr(path):
        return True
    if daemon.uid == status.st_uid:
        return bool(status.st_mode & stat.S_IRUSR)
    return bool(status.st_mode & (stat.S_IRGRP if status.st_gid in _groups(account, daemon) else stat.S_IROTH))


def _groups(account: str, daemon: Account) -> list[int]:
    return os.getgrouplist(account, daemon.gid)


def resume_folder(folder: Path, account: str) -> tuple[tuple[str, ...], ...]:
    """The command that makes a missing folder for the daemon's account; none where something is there already, or where
    others could put a link there in the meantime: ``install`` would give away what that names."""
    if os.path.lexists(folder) or not folder.parent.is_dir() or not _ours_alone(folder.parent.resolve()):
        return ()
    try:
        pwd.getpwnam(account)
    except KeyError:
        return ()
    return (("install", "-d", "-m", "755", "-o", account, str(folder)),)


def _ours_alone(folder: Path) -> bool:
    """Whether nobody but root and this account can make or replace anything in the folder, or the folder itself."""
    for part in (folder, *folder.parents):
        status = part.stat()
        open_to_others = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != 0)
        sticky = status.st_mode & stat.S_ISVTX and part != folder  # as /tmp: nobody renames what is another's
        if status.st_uid not in (0, os.geteuid()) or (open_to_others and not sticky):
            return False
    return True


def repairs(findings: Sequence[Finding]) -> Actions:
    """What can be done about them on this host, in the form in which ``sentinel install`` shows and does it."""
    actions = Actions()
    for repair in dict.fromkeys(repair for finding in findings for repair in finding.repair):
        if isinstance(repair, Write):
            actions.writes.append(repair)
        else:
            actions.after.append(list(repair))
    return actions
