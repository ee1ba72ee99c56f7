"""``sentinel doctor``: is everything in place? Each finding is good, bad or not known, with what to do."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from sentinel.adapters.daemon_addresses import addresses_of
from sentinel.cli.install.existing import unit_account
from sentinel.cli.operator.daemon_client import DEADLINE_S, config_option, view
from sentinel.cli.operator.doctor_daemon import BAD, GOOD, NOT_KNOWN, ORDER, Finding, certificate, findings_of
from sentinel.cli.operator.doctor_host import hook, repairs, resume_folder, settings_file
from sentinel.cli.operator.output import json_option, print_json, say, shown
from sentinel.config.rules_files import without_rules
from sentinel.config.settings import Settings, load
from sentinel.errors import SentinelError, UserError
from sentinel.protocol import PORT

_INDENT = len(NOT_KNOWN) + 2  # of what stands below an answer


@click.command()
@click.option("--fix", is_flag=True, help="Show what can be mended on this host; with --yes, mend it.")
@click.option("--yes", is_flag=True, help="With --fix: do it.")
@config_option
@json_option
def doctor(fix: bool, yes: bool, config: Path, as_json: bool) -> None:
    """Check that everything is in place, and say what is not: this host, Slurm, the running daemon, its nodes.

    What is bad stands first. Exit status, for monitoring: 0 nothing is bad, 1 something is; what is not known changes
    neither. --fix mends what is Sentinel's own on this host: hooks that do nothing or are of another release, modes of
    files, a missing resume folder. What is done stands there first, and nothing is done without --yes.

    \b
    Examples:
      sentinel doctor
      sentinel doctor --fix
      sentinel doctor --fix --yes
      sentinel doctor --json | jq 'select(.answer != "good")'
    """
    if yes and not fix:
        raise UserError("--yes goes with --fix", fix="sentinel doctor --fix --yes")
    findings = list(examine(config))
    if fix and yes:
        repairs(findings).carry_out()
        findings = list(examine(config))
    if as_json:
        print_json(
            {"what": f.what, "answer": f.answer, "seen": f.seen, "fix": f.fix}
            | ({"repair": repairs([f]).lines()} if fix else {})
            for f in findings
        )
    else:
        for finding in sorted(findings, key=lambda finding: ORDER.index(finding.answer)):
            say(f"{finding.answer:{len(NOT_KNOWN)}}  {finding.what}: {shown(finding.seen)}", hanging=_INDENT)
            if finding.fix:
                say(f"do: {shown(finding.fix)}", " " * _INDENT)
    if fix and not as_json:
        _show_repairs(repairs(findings).lines(), done=yes)
    if any(finding.answer == BAD for finding in findings):
        raise SystemExit(1)


def _show_repairs(lines: Sequence[str], *, done: bool) -> None:
    if lines:
        say(f"\n{'Still to be mended here' if done else 'To be mended here, with --fix --yes'}:")
    else:
        say("Nothing that --fix could mend on this host.")
    for line in lines:
        say(shown(line), "  ")


def examine(config: Path) -> list[Finding]:
    """All findings; one that cannot be had is *not known* and stops none of the others."""
    try:
        settings = load(config, Settings)
    except SentinelError as error:
        return [Finding("settings", BAD, error.message, error.fix)]
    seen: dict[str, Any] = {}
    try:
        seen = view(config, "doctor")
        told = findings_of(seen, settings)
    except SentinelError as error:
        told = [Finding("daemon", BAD, error.message, error.fix)]
    return [
        settings_file(config, settings, _account(seen, settings)),
        _munge(settings),
        *_slurm(settings, seen),
        *(() if "account" in seen else _folders(settings, _account(seen, settings))),  # the daemon says it of itself
        *(() if "partitions" in seen else _modes(settings)),
        *_certificate(settings),
        *_rules(settings),
        *told,
    ]


def _certificate(settings: Settings) -> list[Finding]:
    from sentinel.adapters.tls import certificate_ends

    if settings.daemon.wire != "tls":
        return []
    found = []
    for parts in map(urlsplit, addresses_of(settings.daemon.url)):
        try:
            ends = certificate_ends(parts.hostname or "", parts.port or PORT, settings.daemon.ca_file, DEADLINE_S)
        except SentinelError as error:
            found.append(Finding("wire", BAD, error.message, error.fix))
        else:
            found.append(certificate(ends, datetime.now(UTC)))
    return found


def _rules(settings: Settings) -> list[Finding]:
    empty = without_rules(settings.judgement.rules)
    return [Finding("rules", BAD, empty, "put the site's rules there, or take judgement.rules out")] if empty else []


def _munge(settings: Settings) -> Finding:
    from sentinel.adapters.munge import Munge

    try:
        munge = Munge(settings.daemon.munge_socket)
        signed = munge.decode(munge.encode(b"doctor"))
    except SentinelError as error:
        return Finding("MUNGE", BAD, error.message, error.fix or "start munged; check its key and socket")
    good = signed.payload == b"doctor" and signed.uid == os.getuid()
    return Finding("MUNGE", GOOD if good else BAD, f"encodes and decodes as uid {signed.uid}")


def _slurm(settings: Settings, seen: Mapping[str, Any]) -> list[Finding]:
    from sentinel.adapters.slurm.conf import slurm_config
    from sentinel.adapters.slurm.connect import connect

    reader, _, description = connect(settings.slurm)
    try:
        release = asyncio.run(reader.version())
        conf = asyncio.run(slurm_config(settings.slurm))
    except SentinelError as error:
        return [Finding("Slurm", NOT_KNOWN, error.message, error.fix or "is slurmctld running? scontrol ping")]
    findings = [Finding("Slurm", GOOD, f"release {release}, read by {description}")]
    account = _account(seen, settings) or (
        _own_name() if seen else ""
    )  # a daemon of an earlier release does not say it
    if account:
        findings.append(_rights(settings, conf, account))
    else:
        why = "as whom the daemon runs is not known: it does not answer, and the settings do not say it"
        findings.append(Finding("rights", NOT_KNOWN, why, "set [daemon] uid"))
    findings.extend(_hooks(conf))
    return findings


def _account(seen: Mapping[str, Any], settings: Settings) -> str:
    """As whom the daemon runs: by its own word, the settings, or its unit on this host; empty: not known."""
    if seen.get("account"):
        return str(seen["account"])
    return _name(settings.daemon.uid) if settings.daemon.uid else unit_account()


def _own_name() -> str:
    return _name(os.getuid())


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _rights(settings: Settings, conf: Mapping[str, list[str]], account: str) -> Finding:
    """Whether the daemon's account may drain and requeue."""
    from sentinel.adapters.slurm.conf import admin_level, administrator_command

    slurm_user = (conf.get("SlurmUser") or [""])[0].partition("(")[0]
    if account in (slurm_user, "root"):
        return Finding("rights", GOOD, f"{account}, as whom the daemon runs, may drain and requeue")
    if not (conf.get("AccountingStorageType") or [""])[0].endswith("slurmdbd"):
        seen = f"without slurmdbd only SlurmUser ({slurm_user}) may drain and requeue; the daemon runs as {account}"
        return Finding("rights", BAD, seen, f"sentinel install --controller --account {slurm_user}")
    try:
        level = asyncio.run(admin_level(settings.slurm, account))
    except SentinelError as error:
        fix = f"is slurmdbd running? then sacctmgr show user name={account} format=adminlevel"
        return Finding("rights", NOT_KNOWN, f"the AdminLevel of {account}: {error.message}", fix)
    if level == "Administrator":
        return Finding("rights", GOOD, f"{account}, as whom the daemon runs, is Administrator in Slurm")
    fix = " ".join(administrator_command(account, level))
    return Finding("rights", BAD, f"the AdminLevel of {account} is {level or 'not set'}", fix)


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
        fix = f"set {key} in slurm.conf: {why} (deploy/slurm/; sentinel install --controller shows the lines)"
        found.append(hook(key, there) if there else Finding(key, BAD, "not set", fix))
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
            GOOD if enough else BAD,
            f"{age or 'not set'} s",
            "" if enough else "at least 300: a failed job can be requeued only until it is purged",
        )
    )
    return found


def _contains(key: str, value: str, wanted: str, why: str) -> Finding:
    there = wanted.lower() in value.lower()
    return Finding(key, GOOD if there else BAD, value or "not set", "" if there else f"add {wanted}: {why}")


def _folders(settings: Settings, account: str) -> list[Finding]:
    if not settings.daemon.resume:
        fix = "set [daemon] resume to a folder on the shared file system, then sentinel install --controller"
        return [Finding("resume folder", BAD, "not set: restarted jobs are told nothing", fix)]
    folder = Path(settings.daemon.resume)
    if not folder.is_dir():
        made, owner = resume_folder(folder, account or _own_name()), account or "ACCOUNT"
        fix = f"install -d -m 755 -o {owner} {folder}"
        return [Finding("resume folder", BAD, f"{folder} is no folder", fix, made)]
    writable = os.access(folder, os.W_OK)
    fix = "" if writable else f"chown {account or 'ACCOUNT'} {folder}, the account of the daemon"
    return [Finding("resume folder", GOOD if writable else BAD, str(folder), fix)]


def _modes(settings: Settings) -> list[Finding]:
    modes = {"default": settings.modes.default, **settings.modes.partitions}
    said = []
    for word, verb in (("act", "acts on"), ("suggest", "asks before")):
        kinds = [
            f"{n}: {what}" for n, mode in modes.items() for what in ("drain", "restart") if getattr(mode, what) == word
        ]
        said += [f"{verb} {', '.join(kinds)}"] if kinds else []
    seen = "; ".join(said) or "observes only: plans are shown and nothing is done"
    return [Finding("modes", GOOD, seen)]
