"""``sentinel doctor``: is everything in place? Each finding is good, bad or not known, with what to do."""

from __future__ import annotations

import asyncio
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from sentinel.cli.asking import config_option, json_option, print_json, table, view
from sentinel.errors import SentinelError
from sentinel.settings import Settings, load

Answer = Literal["good", "bad", "not known"]


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    answer: Answer
    seen: str
    fix: str = ""


@click.command()
@config_option
@json_option
def doctor(config: Path, as_json: bool) -> None:
    """Check that everything is in place, and say what is not. Exit status 1 if anything is bad."""
    findings = list(examine(config))
    if as_json:
        print_json({"what": f.what, "answer": f.answer, "seen": f.seen, "fix": f.fix} for f in findings)
    else:
        from rich.text import Text

        colours = {"good": "green", "bad": "red", "not known": "yellow"}
        rows = [(f.what, Text(f.answer, style=colours[f.answer]), f.seen, f.fix) for f in findings]
        table("", ("what", "answer", "seen", "what to do"), rows, whole=("what", "answer"))
    if any(finding.answer == "bad" for finding in findings):
        raise SystemExit(1)


def examine(config: Path) -> list[Finding]:
    """All findings; one that cannot be had is *not known* and stops none of the others."""
    try:
        settings = load(config, Settings)
    except SentinelError as error:
        return [Finding("settings", "bad", error.message, error.fix)]
    return [
        Finding("settings", "good", str(config)),
        _munge(settings),
        *_slurm(settings),
        *_folders(settings),
        *_modes(settings),
        *_daemon(config),
    ]


def _munge(settings: Settings) -> Finding:
    from sentinel.adapters.munge import Munge

    try:
        munge = Munge(settings.daemon.munge_socket)
        payload, uid, _ = munge.decode(munge.encode(b"doctor"))
    except SentinelError as error:
        return Finding("MUNGE", "bad", error.message, error.fix or "start munged; check its key and socket")
    good = payload == b"doctor" and uid == os.getuid()
    return Finding("MUNGE", "good" if good else "bad", f"encodes and decodes as uid {uid}")


def _slurm(settings: Settings) -> list[Finding]:
    from sentinel.adapters.slurm import connect
    from sentinel.adapters.slurm_conf import slurm_config

    reader, _, description = connect(settings.slurm)
    try:
        release = asyncio.run(reader.version())
        conf = asyncio.run(slurm_config(settings.slurm))
    except SentinelError as error:
        return [Finding("Slurm", "not known", error.message, error.fix or "is slurmctld running? scontrol ping")]
    findings = [Finding("Slurm", "good", f"release {release}, read by {description}")]
    findings.append(_rights(conf))
    findings.extend(_hooks(conf))
    return findings


def _rights(conf: dict[str, list[str]]) -> Finding:
    name = pwd.getpwuid(os.getuid()).pw_name
    slurm_user = (conf.get("SlurmUser") or [""])[0].partition("(")[0]
    if name in (slurm_user, "root"):
        return Finding("rights", "good", f"{name} may drain and requeue")
    return Finding(
        "rights",
        "not known",
        f"{name} is not SlurmUser ({slurm_user})",
        f"sacctmgr modify user {name} set AdminLevel=Administrator",
    )


def _hooks(conf: dict[str, list[str]]) -> list[Finding]:
    def values(key: str) -> str:
        return ",".join(filter(None, conf.get(key, [])))

    found = []
    for key, why in (
        ("Prolog", "a bad node is caught before the job starts"),
        ("Epilog", "evidence is kept when a job fails"),
        ("TaskProlog", "the resume point reaches the job"),
        ("EpilogSlurmctld", "the daemon hears at once that a job ended"),
    ):
        there = values(key)
        fix = f"set {key} in slurm.conf: {why} (deploy/slurm/)"
        found.append(Finding(key, "good" if there else "bad", there or "not set", "" if there else fix))
    flags = values("PrologFlags")
    found.append(_contains("PrologFlags", flags, "Alloc", "the prolog then runs at allocation, before the first step"))
    scheduler = values("SchedulerParameters")
    found.append(
        _contains("SchedulerParameters", scheduler, "nohold_on_prolog_fail", "else a failed prolog leaves the job held")
    )
    age = values("MinJobAge").split(" ")[0]
    enough = age.isdigit() and int(age) >= 300
    found.append(
        Finding(
            "MinJobAge",
            "good" if enough else "bad",
            f"{age or 'not set'} s",
            "" if enough else "at least 300: a failed job can be requeued only until it is purged",
        )
    )
    return found


def _contains(key: str, value: str, wanted: str, why: str) -> Finding:
    there = wanted.lower() in value.lower()
    return Finding(key, "good" if there else "bad", value or "not set", "" if there else f"add {wanted}: {why}")


def _folders(settings: Settings) -> list[Finding]:
    if not settings.daemon.resume:
        fix = "set [daemon] resume to a folder on the shared file system"
        return [Finding("resume folder", "bad", "not set: restarted jobs are told nothing", fix)]
    folder = Path(settings.daemon.resume)
    if not folder.is_dir():
        return [Finding("resume folder", "bad", f"{folder} is no folder", f"mkdir -m 755 {folder}")]
    writable = os.access(folder, os.W_OK)
    fix = "" if writable else "give it to the daemon's account"
    return [Finding("resume folder", "good" if writable else "bad", str(folder), fix)]


def _modes(settings: Settings) -> list[Finding]:
    modes = {"default": settings.modes.default, **settings.modes.partitions}
    acting = [
        f"{name}: {what}"
        for name, mode in modes.items()
        for what in ("drain", "restart")
        if getattr(mode, what) == "act"
    ]
    seen = "acts on " + ", ".join(acting) if acting else "observes only: plans are shown and nothing is done"
    return [Finding("modes", "good", seen)]


def _daemon(config: Path) -> list[Finding]:
    try:
        seen = view(config, "doctor")
    except SentinelError as error:
        return [Finding("daemon", "bad", error.message, error.fix)]
    findings = [Finding("daemon", "good", f"release {seen['version']}")]
    if seen["slurm_problem"]:
        findings.append(Finding("daemon and Slurm", "bad", seen["slurm_problem"]))
    nodes: dict[str, Any] = seen["nodes"]
    if not nodes:
        why = "the daemon has no answer of Slurm yet"
        return [*findings, Finding("agents", "not known", why), Finding("clocks", "not known", why)]
    silent = sorted(name for name, node in nodes.items() if node["agent"] != "heard")
    seen_agents = f"{len(nodes) - len(silent)} of {len(nodes)} heard" + (f"; not {_few(silent)}" if silent else "")
    fix = "systemctl status sentinel-agent on them" if silent else ""
    return [*findings, Finding("agents", "bad" if silent else "good", seen_agents, fix), _clocks(nodes)]


def _clocks(nodes: dict[str, Any]) -> Finding:
    told = {name: node["clock_offset_s"] for name, node in nodes.items() if node["clock_offset_s"] is not None}
    skewed = sorted(name for name, offset_s in told.items() if abs(offset_s) > 1.0)
    untold = sorted(nodes.keys() - told.keys())
    if skewed:
        fix = "check NTP or chrony on them"
        return Finding("clocks", "bad", f"off by more than 1 s: {_few(skewed)}", fix)
    if untold:
        return Finding("clocks", "not known", f"not told by {_few(untold)}", "are their agents heard?")
    return Finding("clocks", "good", "within 1 s")


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
