"""Runs periodic checks, each in a killable child: host and fabric, mounts, the site's own checks, the clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.state_files import restore, save
from sentinel.agent.settings import AgentSettings, Check
from sentinel.evidence.counters import Ageing
from sentinel.evidence.disks import DiskReader
from sentinel.evidence.host import HostReader, check_evidence, check_meaning, reading_from
from sentinel.log import Log
from sentinel.model.records import Evidence, Kind, Scalar, Source, Where, stable_id

log = Log()


class PeriodicChecks:
    """Starts the checks periodically and reads their results. A condition is reported once, when it appears."""

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        keep: Callable[[Evidence], None],
        jobs: Callable[[], Sequence[int]],
        boot: str = "",
    ) -> None:
        self.node = node
        self._settings = settings
        self._children = children
        self._program = program
        self._keep = keep
        self._jobs = jobs
        host = settings.host
        self._state = Path(settings.state) / "ports.json"
        self._reader = HostReader(
            node, full_fraction=host.full_fraction, flaps=host.flaps, flap_window_s=host.flap_window_s,
            kept=restore(self._state), boot=boot,
        )  # fmt: skip
        self._saved = self._reader.state
        self._disks = DiskReader(node)
        self._ageing = {
            of: Ageing(node, Source.HOST, period_s=settings.dcgm.counters_s, of=of) for of in ("ports", "disks")
        }
        self._said: dict[str, str] = {}  # key of a checked thing -> kind of evidence last reported

    # ------------------------------------------------------------------------------------------------ starting

    def host(self) -> None:
        host = self._settings.host
        arguments = {
            "sysfs": host.sysfs,
            "proc": host.proc,
            "disks": ["/", "/tmp", "/var", self._settings.state],  # noqa: S108 - looked at, not written
            "jobs": list(self._jobs()),
        }
        self._start("host", "host", arguments, host.deadline_s, self._host_said)

    def mounts(self) -> None:
        for path in self._settings.host.mounts:
            self._start(
                f"mount:{path}",
                "mount",
                {"path": path},
                self._settings.host.mount_deadline_s,
                lambda message, path=path: self._mount_said(path, message),  # type: ignore[misc]
                path,
            )

    def smart(self) -> None:
        host = self._settings.host
        arguments = {"smartctl": host.smartctl, "disk_s": host.smart_deadline_s}
        self._start("smart", "smart", arguments, 6 * host.smart_deadline_s, self._smart_said)

    def check(self, name: str) -> None:
        check = self._settings.checks[name]
        self._start(
            f"check:{name}",
            "check",
            {"command": check.command},
            check.deadline_s,
            lambda message: self._check_said(name, check, message),
        )

    def clock(self, offset_s: float | None) -> None:
        """Report a node clock that is too far off. ``offset_s``: the daemon's clock minus ours; None: not known."""
        if offset_s is None:
            return  # what was reported before stays as it is
        wrong = abs(offset_s) > self._settings.host.clock_skew_s
        text = f"this node's clock is {offset_s:+.2f} s off the daemon's" if wrong else ""
        self._say("clock", "clock_skew" if wrong else "", text, Source.HOST, {"offset_s": offset_s})

    # ------------------------------------------------------------------------------------------------ results

    def _start(
        self,
        name: str,
        module: str,
        arguments: dict[str, Any],
        deadline_s: float,
        said: Callable[[dict[str, Any]], None],
        path: str | None = None,
    ) -> None:
        def ended(ending: Ending) -> None:
            if ending.silent:
                text = f"{name} did not answer within {deadline_s:g} s ({ending.where or 'state not known'})"
                self._say(name, Kind.PROBE_HUNG, text, Source.AGENT, {"probe": name}, path)
            elif ending.status != 0:
                reason = (ending.stderr.strip().splitlines() or [""])[-1]
                text = f"{name} ended with status {ending.status}: {reason}"
                self._say(name, Kind.UNREADABLE, text, Source.AGENT, {"probe": name}, path)

        started = self._children.start(
            self._program(
                name,
                f"sentinel.agent.probes.{module}",
                arguments,
                silent_s=deadline_s,
                total_s=deadline_s,
                on_message=said,
                on_end=ended,
            )
        )
        if not started and self._children.stuck(name):
            text = f"{name}: earlier probes of it do not die; it is left alone until they do"
            self._say(name, Kind.PROBE_HUNG, text, Source.AGENT, {"probe": name, "unkillable": True}, path)

    def _host_said(self, message: dict[str, Any]) -> None:
        self._say("host", "", "", Source.AGENT, {})
        reading = reading_from(message, datetime.now(UTC))
        counts = {
            f"{port.name}/{name}": float(value) for port in reading.ports or () for name, value in port.counters.items()
        }
        for evidence in [*self._reader.read(reading), *self._ageing["ports"].read(counts, reading.at)]:
            self._keep(evidence)
        if self._reader.state != self._saved:
            self._saved = self._reader.state
            save(self._state, self._saved)  # after the evidence: a crash in between only repeats it

    def _smart_said(self, message: dict[str, Any]) -> None:
        """Handle the result for one disk. A missing smartctl is logged once; the disks' health is then not known."""
        if "absent" in message:
            if self._said.get("smart") != "absent":
                self._said["smart"] = "absent"
                log.info("disks-not-known", reason=message["absent"])
            return
        disk = str(message.get("disk"))
        if "error" in message:
            self._say(f"smart:{disk}", Kind.UNREADABLE, f"disk {disk}: {message['error']}", Source.HOST, {"disk": disk})
            return
        self._say(f"smart:{disk}", "", "", Source.HOST, {})
        now = datetime.now(UTC)
        for evidence in [*self._disks.read(message, now), *self._ageing["disks"].read(self._disks.counters, now)]:
            self._keep(evidence)

    def _mount_said(self, path: str, message: dict[str, Any]) -> None:
        name, data = f"mount:{path}", {"path": path}
        if "error" in message:
            self._say(name, "mount_error", f"{path}: {message['error']}", Source.HOST, data, path)
        elif message.get("mounted") is False:
            self._say(name, "mount_missing", f"{path} is not mounted", Source.HOST, data, path)
        else:
            self._say(name, "", "", Source.HOST, data)
        used = message.get("used")
        full = isinstance(used, float) and used >= self._settings.host.full_fraction
        text = f"{path} is {used:.1%} full" if full else ""
        self._say(f"full:{path}", "disk_full" if full else "", text, Source.HOST, {"used_fraction": used}, path)

    def _check_said(self, name: str, check: Check, message: dict[str, Any]) -> None:
        meaning = check_meaning(check.convention, message.get("status"))
        text = str(message.get("output", ""))
        key = f"check:{name}"
        if meaning == "ok":
            self._said.pop(key, None)
        elif self._said.get(key) != meaning:
            self._said[key] = meaning
            self._keep(
                check_evidence(self.node, name, meaning, text or f"status {message.get('status')}", datetime.now(UTC))
            )

    def _say(
        self, key: str, kind: str, text: str, source: Source, data: Mapping[str, Scalar], path: str | None = None
    ) -> None:
        """Report evidence when the condition of ``key`` changes; an empty kind clears it."""
        if kind == self._said.get(key, ""):
            return
        if not kind:
            del self._said[key]
            return
        self._said[key] = str(kind)
        now = datetime.now(UTC)
        log.warning("round", of=key, kind=kind, text=text)
        self._keep(
            Evidence(
                id=stable_id("round", self.node, key, kind, now.isoformat()),
                at=now,
                seen_at=now,
                source=source,
                kind=str(kind),
                where=Where(node=self.node, path=path),
                text=text,
                data=dict(data),
            )
        )
