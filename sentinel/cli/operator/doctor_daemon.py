"""What ``sentinel doctor`` concludes from the running daemon's own answer: its settings, its partitions, its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from sentinel.adapters.daemon_addresses import addresses_of
from sentinel.cli.install.host import Write
from sentinel.cli.operator.output import counted, folded, when
from sentinel.cli.operator.status import outage_words, unread_words
from sentinel.config.settings import Settings
from sentinel.detect.own_host import MOST_SKEW_S, ahead_s, in_words
from sentinel.wire import to_json

Answer = Literal["good", "bad", "not known"]
GOOD: Answer = "good"
BAD: Answer = "bad"
NOT_KNOWN: Answer = "not known"
ORDER = (BAD, NOT_KNOWN, GOOD)  # as they are shown
_RENEW_DAYS = 14  # a certificate that ends sooner should have been renewed: most are a month before
_AUDIT_WAITING = 100  # entries; what one burst of drains and restarts writes
_TOLD = timedelta(days=1)
_SHOWN = 5  # reasons that are named


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    answer: Answer
    seen: str
    fix: str = ""
    repair: tuple[Write | tuple[str, ...], ...] = ()  # what --fix does about it on this host: files, commands


def findings_of(seen: Mapping[str, Any], settings: Settings) -> list[Finding]:
    """All findings from the answer of the view ``doctor``.

    Args:
        settings: as the file says them now.
    """
    found = [Finding("daemon", GOOD, _active_daemon(seen))]
    found += _daemons(seen.get("daemons") or (), settings)
    if outage := seen.get("outage"):
        fix = "disk space and rights of the state folder, or the database server; journalctl -u sentinel-daemon"
        found.append(Finding("store", BAD, outage_words(outage), fix))
    if problem := seen["slurm_problem"]:
        found.append(Finding("daemon and Slurm", BAD, problem, "scontrol ping; may its account ask slurmctld?"))
    if unread := seen.get("unread"):
        words = unread_words(unread, seen["unread_count"])
        found.append(Finding("records", NOT_KNOWN, words, "scontrol show job or node shows it; it is not acted on"))
    if "account" in seen:  # a daemon of an earlier release does not say these
        found += [_settings(seen, settings), _resume(seen), _operators(seen)]
    if "wire" in seen:
        found += [*_wire(seen), *_audit(seen)]
    if "partitions" in seen:
        found += _partitions(seen["partitions"])
    if seen.get("spares"):
        found.append(_spares(seen["spares"]))
    found += _dependents(seen.get("dependents") or ())
    found += _messages(seen.get("undelivered") or (), datetime.now(UTC))
    return [*found, *_nodes(seen)]


def _active_daemon(seen: Mapping[str, Any]) -> str:
    who = f" as {seen['account']} (uid {seen['uid']}), store {seen['database']}" if "account" in seen else ""
    return f"release {seen['version']}{who}"


def _daemons(daemons: Sequence[Mapping[str, Any]], settings: Settings) -> list[Finding]:
    """Whether another daemon can take over, where the settings name several."""
    wanted = addresses_of(settings.daemon.url)
    others = [str(row["address"]) for row in daemons if row["state"] != "active"]
    if len(wanted) < 2 and not others:
        return []
    active = ", ".join(str(row["address"]) for row in daemons if row["state"] == "active") or "none"
    seen = f"{active} is active, {', '.join(others) or 'none'} standing by"
    if len(daemons) < len(wanted):
        fix = "systemctl status sentinel-daemon on the others; do all name the same [daemon] database?"
        return [Finding("daemons", BAD, f"{seen}; [daemon] url names {len(wanted)}", fix)]
    if others and len(wanted) < 2:
        return [Finding("daemons", BAD, f"{seen}; [daemon] url names one", "name all of them, separated by commas")]
    releases = sorted({str(row["version"]) for row in daemons})
    if len(releases) > 1:
        return [Finding("daemons", BAD, f"{seen}; of releases {', '.join(releases)}", "upgrade the older ones")]
    return [Finding("daemons", GOOD, seen)]


def _settings(seen: Mapping[str, Any], settings: Settings) -> Finding:
    from sentinel.daemon.api.status import settings_digest

    if seen["settings"] == settings_digest(settings):
        return Finding("settings in force", GOOD, "those of the file")
    what = "the modes differ from the file's" if to_json(settings.modes) != seen["modes"] else "not those of this file"
    return Finding("settings in force", BAD, what, "systemctl restart sentinel-daemon, or name its file with --config")


def _resume(seen: Mapping[str, Any]) -> Finding:
    if not seen["resume"]:
        fix = "set [daemon] resume to a folder on the shared file system, then sentinel install --controller"
        return Finding("resume folder", BAD, "not set: restarted jobs are told no checkpoint", fix)
    if seen["resume_writable"] is None:
        words, fix = f"{seen['resume']} does not answer the daemon", "mend its mount: resume points cannot be written"
        return Finding("resume folder", NOT_KNOWN, words, fix)
    if not seen["resume_writable"]:
        from sentinel.cli.operator.doctor_host import resume_folder

        if seen.get("resume_read_only"):
            words = f"{seen['resume']} is read-only for the daemon: its mount is, or its unit does not allow it"
            fix = "sentinel install --controller, whose unit allows the folders of its settings; or remount it"
            return Finding("resume folder", BAD, words, fix)
        fix = f"install -d -m 755 -o {seen['account']} {seen['resume']}"
        made = resume_folder(Path(str(seen["resume"])), str(seen["account"]))
        return Finding("resume folder", BAD, f"the daemon cannot write {seen['resume']}", fix, made)
    return Finding("resume folder", GOOD, str(seen["resume"]))


def _operators(seen: Mapping[str, Any]) -> Finding:
    if unknown := seen["operators_unknown"]:
        return Finding("operators", BAD, f"nobody is called {', '.join(unknown)}", "correct [daemon] operators")
    return Finding("operators", GOOD, "all are known")


def _wire(seen: Mapping[str, Any]) -> list[Finding]:
    if seen["wire"] == "munge":
        return [Finding("wire", GOOD, "requests and answers are encrypted by MUNGE")]
    if seen["wire"] == "tls":
        return []  # told with the certificate
    what = "in clear: whoever reads the network reads log lines, names and paths"
    return [Finding("wire", GOOD, what, 'set [daemon] wire to "tls" or "munge" where users can read it')]


def certificate(ends: datetime, now: datetime) -> Finding:
    """``ends``: until when it is good."""
    left_days = (ends - now).total_seconds() / 86400
    seen = f"encrypted by TLS; the certificate is good until {ends:%Y-%m-%d}"
    if left_days < _RENEW_DAYS:
        return Finding("wire", BAD, seen, "renew it: the daemon takes the new files without a restart")
    return Finding("wire", GOOD, seen)


def _audit(seen: Mapping[str, Any]) -> list[Finding]:
    entries, where = seen["audit_entries"], seen["audit_syslog"]
    written = counted(entries, "entry")
    if not where:
        return [Finding("audit", GOOD, f"{written}, in the database only", "[daemon] audit_syslog copies them")]
    if (rewritten := seen.get("audit_rewritten")) is not None:
        what = f"entry {rewritten} is not the one that was copied to syslog at {where}"
        return [Finding("audit", BAD, what, "somebody rewrote the database: compare the copy, sentinel audit --verify")]
    waiting = entries - (seen["audit_exported"] or 0)
    if waiting < 0:
        gone = f"{counted(-waiting, 'entry')} fewer in the database than were copied to syslog at {where}"
        return [Finding("audit", BAD, gone, "somebody removed them: compare the copy, sentinel audit --verify")]
    if waiting > _AUDIT_WAITING:
        return [
            Finding("audit", BAD, f"{counted(waiting, 'entry')} not in syslog at {where}", "is it listening there?")
        ]
    return [Finding("audit", GOOD, f"{written}, copied to {where}")]


def _partitions(partitions: Mapping[str, Any]) -> list[Finding]:
    found = []
    missing = [name for name, entry in partitions.items() if entry["known"] is False]
    if missing:
        fix = "correct [modes.partitions]: what is meant for them holds nowhere"
        found.append(Finding("partitions", BAD, f"Slurm has no partition {', '.join(missing)}", fix))
    known = {name: entry for name, entry in partitions.items() if entry["known"] is not False}
    words = [f"{name} {str(entry['mode']).upper()}" for name, entry in known.items()]
    return [*found, Finding("modes", GOOD, ", ".join(words) or "not known: Slurm has not answered yet")]


def _spares(kept: Mapping[str, Any]) -> Finding:
    name, nodes = kept["reservation"], kept["nodes"]
    if nodes is None:
        fix = f"scontrol --all show reservation {name}; recovery.spares names it"
        return Finding("spare nodes", BAD, f"Slurm shows no reservation {name} to the daemon", fix)
    if not nodes:
        fix = f"scontrol update ReservationName={name} NodeCnt=N gives it some; sentinel plan spares says how many"
        return Finding("spare nodes", BAD, f"no node is left in reservation {name}", fix)
    return Finding("spare nodes", GOOD, f"{folded(nodes)} in reservation {name}")


def _messages(undelivered: Sequence[Mapping[str, Any]], now: datetime) -> list[Finding]:
    """Whether people were told, in the last day: older messages are not sent again."""
    found = []
    for given_up, words, answer in ((True, "given up", BAD), (False, "tried again", NOT_KNOWN)):
        rows = [row for row in undelivered if row["given_up"] is given_up]
        rows = [row for row in rows if now - datetime.fromisoformat(str(row["at"])) < _TOLD]
        if rows:
            reasons = list(dict.fromkeys(f"{row['receiver']}: {row['reason']}" for row in rows))
            seen = f"{len(rows):,} {words} ({'; '.join(reasons[:_SHOWN])})"
            found.append(
                Finding("messages", answer, seen, "sentinel alerts list; correct [alerts], then restart the daemon")
            )
    return found


def _dependents(waiting: Sequence[Mapping[str, Any]]) -> list[Finding]:
    if not waiting:
        return []
    jobs = ", ".join(f"{row['job']} ({row['kind']}:{row['on']})" for row in waiting[:_SHOWN])
    seen = (
        f"{jobs}{' and others' if len(waiting) > _SHOWN else ''}: Slurm lets them go, or never starts them, as soon as "
    )
    fix = "let the script submit the next job, or RequeueExitHold in slurm.conf; docs/researcher.md, Chains of jobs"
    return [Finding("dependencies", NOT_KNOWN, f"{seen}the job that they wait for fails, though it is restarted", fix)]


def _nodes(seen: Mapping[str, Any]) -> list[Finding]:
    nodes: Mapping[str, Any] = seen["nodes"]
    if not nodes:
        why = "the daemon has no answer of Slurm yet"
        return [Finding("agents", NOT_KNOWN, why), Finding("clocks", NOT_KNOWN, why)]
    away = [name for name, node in nodes.items() if node["agent"] != "heard" and node.get("switched")]
    nodes = {name: node for name, node in nodes.items() if name not in away}
    silent = [name for name, node in nodes.items() if node["agent"] != "heard"]
    words = f"{len(nodes) - len(silent)} of {len(nodes)} heard" + (f"; not {folded(silent)}" if silent else "")
    words += f"; beside {folded(away)}, which Slurm switches off or on" if away else ""
    fix = "systemctl status sentinel-agent on them" if silent else ""
    found = [Finding("agents", BAD if silent else GOOD, words, fix)]
    found += [*_releases(nodes, str(seen["version"])), *_prologs(nodes), *_telemetry(nodes), *_kernel_logs(nodes)]
    return [*found, _clocks(nodes)]


def _releases(nodes: Mapping[str, Any], version: str) -> list[Finding]:
    others = [name for name, node in nodes.items() if node.get("version") and node["version"] != version]
    if not others:
        return []
    which = ", ".join(sorted({str(nodes[name]["version"]) for name in others})[:_SHOWN])
    seen = f"the agents of {folded(others)} have release {which}; the daemon has {version}"
    return [Finding("releases", BAD, seen, "upgrade the older ones")]


def _prologs(nodes: Mapping[str, Any]) -> list[Finding]:
    """Whether Slurm runs Sentinel's prolog where jobs began; nothing of nodes on which none did."""
    told = {name: node["prolog"] for name, node in nodes.items() if node.get("prolog")}
    missing = [name for name, prolog in told.items() if prolog["runs"] is False]
    unclear = [name for name, prolog in told.items() if prolog["runs"] is None]
    found = []
    if missing:
        last = when(max(told[name]["last_at"] for name in missing))
        seen = (
            f"{folded(missing)}: no report of the last jobs that began there, the latest {last}; they begin unchecked"
        )
        fix = "sentinel install --node on them; name its prolog in slurm.conf; SENTINEL_RUN_DIR must be the agent's run_dir"
        found.append(Finding("prolog on nodes", BAD, seen, fix))
    if unclear:
        jobs = sorted({job for name in unclear for job in told[name]["without"]})
        words = f"{folded(unclear)}: {counted(len(jobs), 'job')} began without its report, too few to tell"
        fix = "look again after the next jobs; jobs from before its installation have no report"
        found.append(Finding("prolog on nodes", NOT_KNOWN, words, fix))
    if told and not found:
        found.append(Finding("prolog on nodes", GOOD, f"reported the last job on {counted(len(told), 'node')}"))
    return found


def _telemetry(nodes: Mapping[str, Any]) -> list[Finding]:
    """Nodes whose agent cannot read their GPUs, with what it says."""
    blind: dict[str, list[str]] = {}
    for name, node in nodes.items():
        verdict = node.get("verdict")
        if node["agent"] == "heard" and isinstance(verdict, Mapping) and verdict.get("word") == "UNKNOWN":
            why = str(verdict.get("sentence") or verdict.get("code") or "it does not say why")
            blind.setdefault(why, []).append(name)
    if not blind:
        told = any("verdict" in node for node in nodes.values())
        return [Finding("GPUs", GOOD, "read on every node that is heard")] if told else []
    words = "; ".join(f"{folded(names)}: {why}" for why, names in list(blind.items())[:_SHOWN])
    return [Finding("GPUs", NOT_KNOWN, words, "is nvidia-dcgm running there?")]


def _kernel_logs(nodes: Mapping[str, Any]) -> list[Finding]:
    """Nodes whose agent does not read the kernel log, or could not hand over all that it found."""
    heard = {name: node for name, node in nodes.items() if node["agent"] == "heard"}
    told = {name: node["kernel_readable"] for name, node in heard.items() if node.get("kernel_readable") is not None}
    found = []
    if blind := [name for name, readable in told.items() if not readable]:
        fix = "sentinel doctor on them, kernel.path in agent.toml; journalctl -u sentinel-agent says why"
        found.append(Finding("kernel logs", NOT_KNOWN, f"not read on {folded(blind)}: no Xid is seen there", fix))
    elif told:
        found.append(Finding("kernel logs", GOOD, f"read on {counted(len(told), 'node')}"))
    if lost := {name: node["evidence_lost"] for name, node in heard.items() if node.get("evidence_lost")}:
        words = f"{counted(sum(lost.values()), 'piece')} never came from {folded(list(lost))}"
        seen = f"{words}: no space on the node, or refused"
        found.append(Finding("evidence", BAD, seen, "journalctl -u sentinel-agent on them; spool.bytes in agent.toml"))
    return found


def _clocks(nodes: Mapping[str, Any]) -> Finding:
    told = {name: node["clock_offset_s"] for name, node in nodes.items() if node["clock_offset_s"] is not None}
    own_s = ahead_s(told.values()) or 0.0
    skewed = [name for name, offset_s in told.items() if abs(offset_s + own_s) > MOST_SKEW_S]
    untold = [name for name in nodes if name not in told]
    if own_s:
        others = f"; off by more than {MOST_SKEW_S:g} s from those: {folded(skewed)}" if skewed else ""
        seen = f"the daemon's own is {in_words(own_s)} the clocks of most nodes{others}"
        return Finding("clocks", BAD, seen, "check NTP or chrony on the daemon's host")
    if skewed:
        seen = f"off by more than {MOST_SKEW_S:g} s: {folded(skewed)}"
        return Finding("clocks", BAD, seen, "check NTP or chrony on them")
    if untold:
        return Finding("clocks", NOT_KNOWN, f"not told by {folded(untold)}", "are their agents heard?")
    return Finding("clocks", GOOD, f"within {MOST_SKEW_S:g} s on {counted(len(told), 'node')}")
