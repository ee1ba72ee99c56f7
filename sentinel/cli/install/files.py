"""The files of a controller and of a node: where each goes, its text, its mode, and whether a site may change it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

import sentinel
from sentinel.errors import FileError

UNITS = "/etc/systemd/system"
SETTINGS = "/etc/sentinel"
SLURM_CONF = f"{SETTINGS}/slurm_conf"  # where slurm.conf lies, if not where Slurm has it
REPORT_TIMER = "sentinel-report.timer"
EVENTS = "/run/sentinel-events"
STATE = "/var/lib/sentinel"
# Where a host is both: the folder of the daemon is the daemon's, so the agent keeps its state elsewhere.
AGENT_STATE_BESIDE_DAEMON = "/var/lib/sentinel-agent"
REMOVED = "Sentinel was removed from this host"  # in a hook that does nothing any more
_MARK = "# Written by `sentinel install`; it is replaced by the next one."


@dataclass(frozen=True, slots=True)
class File:
    path: str
    text: str
    mode: int = 0o644
    gid: int = -1  # its group; -1: root's
    ours: bool = True  # replaced by every install and removed by uninstall; otherwise written once and then the site's


@dataclass(frozen=True, slots=True)
class Choice:
    """What is known of the host and what the operator chose."""

    program: tuple[str, ...]  # how this Sentinel is started
    python: str  # its interpreter, for hooks
    account: str  # of the daemon
    slurm_user: str
    daemon_url: str
    daemon_uid: int | None = None  # None: not known yet
    group: str = ""  # the account's first group; empty: of its own name
    daemon_gid: int = -1  # of its account's first group; -1: not known yet
    slurm_uid: int | None = None
    resume: str = ""
    writable: tuple[str, ...] = ()  # folders besides that the daemon's settings name: its unit must allow them
    slurm_etc: str = "/etc/slurm"
    prolog_folder: str = "/etc/slurm/prolog.d"
    epilog_folder: str = "/etc/slurm/epilog.d"
    both: bool = False  # controller and node on one host

    @property
    def group_name(self) -> str:
        return self.group or self.account


def shipped(name: str) -> str:
    """A file that came with this Sentinel: ``sentinel/_data`` when installed, the checkout otherwise."""
    package = Path(sentinel.__file__).parent
    for folder in (package / "_data", package.parent, package.parent / "deploy"):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise FileError(package / "_data" / name, "is not there", fix="install the package again")


def controller_files(choice: Choice) -> list[File]:
    hooks = f"{choice.slurm_etc}/sentinel"
    return [
        File(f"{UNITS}/sentinel-daemon.service", _unit("systemd/sentinel-daemon.service", choice)),
        File(f"{UNITS}/sentinel-report.service", _unit("systemd/sentinel-report.service", choice)),
        File(f"{UNITS}/{REPORT_TIMER}", _unit(f"systemd/{REPORT_TIMER}", choice)),
        File("/etc/tmpfiles.d/sentinel.conf", _tmpfiles(choice)),
        _hook(f"{hooks}/slurmctld-sentinel", "epilog/slurmctld-sentinel"),
        # Of the daemon's group, so that it reads its settings also once they hold secrets and are closed to others.
        File(f"{SETTINGS}/sentinel.toml", _daemon_settings(choice), gid=choice.daemon_gid, ours=False),
        File(f"{SETTINGS}/hook.conf", _hook_settings(choice, controller=True), ours=False),
    ]


def node_files(choice: Choice) -> list[File]:
    return [
        File(f"{UNITS}/sentinel-agent.service", _unit("systemd/sentinel-agent.service", choice)),
        _hook(f"{choice.prolog_folder}/10-sentinel", "prolog/10-sentinel"),
        _hook(f"{choice.epilog_folder}/10-sentinel", "epilog/10-sentinel"),
        _hook(f"{choice.slurm_etc}/sentinel/task-sentinel", "prolog/task-sentinel"),
        File(f"{SETTINGS}/agent.toml", _agent_settings(choice), ours=False),
        File(f"{SETTINGS}/hook.conf", _hook_settings(choice, controller=choice.both), ours=False),
    ]


def _hook(path: str, name: str) -> File:
    return File(path, shipped(name), mode=0o755)


def nothing_hook(file: File) -> str:
    """What stands in a hook's place while slurm.conf still names it: a script that does nothing."""
    what = f"Take {file.path}, or its folder where nothing else is in it, out of slurm.conf; then delete this file."
    return f"#!/bin/sh\n# {REMOVED}.\n# {what}\nexit 0\n"


def _unit(name: str, choice: Choice) -> str:
    text = shipped(name).replace("/usr/bin/env sentinel", shlex.join(choice.program))
    text = text.replace("User=sentinel\nGroup=sentinel\n", f"User={choice.account}\nGroup={choice.group_name}\n")
    folders = dict.fromkeys([*([choice.resume] if choice.resume else []), *choice.writable])
    if folders:
        lines = "\n".join(f"ReadWritePaths={_quoted(f'-{folder}')}" for folder in folders)
        text = text.replace("ReadWritePaths=-/shared/sentinel/resume", lines)
    if choice.both:
        text = text.replace("StateDirectory=sentinel/agent", f"StateDirectory={Path(AGENT_STATE_BESIDE_DAEMON).name}")
    return f"{_MARK}\n{text}"


def _quoted(value: str) -> str:
    """A word of a unit: % begins a specifier there, a space another word."""
    value = value.replace("%", "%%")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if set(value) & set(" \t\"'\\") else value


def _tmpfiles(choice: Choice) -> str:
    return (
        f"{_MARK}\n# The controller's hook leaves its news here: SlurmUser's, readable for the daemon, closed to others.\n"
        f"d {EVENTS} 2770 {choice.slurm_user} {choice.group_name} -\n"
    )


def _daemon_settings(choice: Choice) -> str:
    trusted = [choice.slurm_uid] if choice.slurm_uid not in (None, 0) and choice.account != choice.slurm_user else []
    return f"""\
# Settings of the daemon. `sentinel config show` lists every key with unit, default and reason;
# `sentinel config check` reads this file strictly.

[daemon]
url = "{choice.daemon_url}"
{_uid(choice)}resume = "{choice.resume}"   # a folder on the shared file system: restarted jobs read their resume point there
events = "{EVENTS}"
trusted_uids = {trusted}   # SlurmUser's, whose hook tells that a job ended
operators = []   # who may drain, release, pause: ["ada", "%hpc-ops"]

# Sentinel begins by observing: it judges, plans and tells, and changes nothing. Acting is switched on by partition:
#[modes.partitions.gpu]
#drain = "act"
#restart = "act"
"""


def _uid(choice: Choice) -> str:
    known = choice.daemon_uid is not None
    return f"uid = {choice.daemon_uid}   # as whom the daemon runs: commands believe its answers\n" if known else ""


def _wire(choice: Choice) -> str:
    return 'wire = "tls"\n' if choice.daemon_url.startswith("https:") else ""


def _agent_settings(choice: Choice) -> str:
    trusted = [choice.daemon_uid] if choice.daemon_uid else []
    beside = f'state = "{AGENT_STATE_BESIDE_DAEMON}"\n' if choice.both else ""
    return f"""\
# Settings of this node's agent. `sentinel config show --agent` lists every key with unit, default and reason;
# `sentinel config check --agent --config /etc/sentinel/agent.toml` reads this file strictly.

url = "{choice.daemon_url}"
{_wire(choice)}trusted_uids = {trusted}   # as whom the daemon runs: an answer of anybody else is not believed
resume = "{choice.resume}"   # the same folder as the daemon's
{beside}"""


def _hook_settings(choice: Choice, *, controller: bool) -> str:
    events = f"SENTINEL_EVENTS={EVENTS}\n" if controller else ""
    wire = "SENTINEL_WIRE=tls\n" if _wire(choice) else ""
    # The controller makes the account; a node may know its uid only. Without it hooks believe whoever answers there.
    daemon = choice.account if controller else choice.daemon_uid
    user = f"SENTINEL_DAEMON_USER={daemon}\n" if daemon is not None else ""
    return (
        "# Settings of the hooks: NAME=value lines, read and never run.\n"
        f"SENTINEL_PYTHON={choice.python}\nSENTINEL_URL={choice.daemon_url}\n{user}{wire}{events}"
    )
