"""Runs what the daemon and the agent check of their settings at their start, and says where in the settings file it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.config.settings_toml import Reader
from sentinel.errors import FileError, UserError, all_of
from sentinel.given_files import file_text

if TYPE_CHECKING:
    from sentinel.agent.settings import AgentSettings
    from sentinel.config.alerts import Channel
    from sentinel.config.settings import Settings

Check = tuple[str, Callable[[], object]]  # the key that is meant where the error names none; what is made at the start
# How errors name a key: "[page] racks is ..." or "host.mounts: ...".
_SECTION = re.compile(r"\[(\w+)\] (\w+)")
_DOTTED = re.compile(r"(\w+(?:\.[\w-]+)+): ")


def run_checks(config: Path, checks: Iterable[Check]) -> None:
    """
    Raises:
        FileError: checks that fail, the first with the others in it: of the settings file with the key's line, or of a line
            in a file named there.
    """
    faults: dict[str, FileError] = {}  # by its words: two checks may meet the same
    for key, check in checks:
        try:
            check()
        except UserError as error:
            whole = error if isinstance(error, FileError) and error.line is not None else _located(config, key, error)
            faults.setdefault(str(error), whole)
    if faults:
        raise all_of(list(faults.values()))


def daemon_checks(settings: Settings) -> Iterator[Check]:
    """The daemon's checks at start that need no Slurm, munged or store."""
    from sentinel.adapters.notify.channels import channel
    from sentinel.adapters.notify.chat import Chat
    from sentinel.adapters.notify.delivery_threads import DeliveryThreads
    from sentinel.adapters.syslog import Syslog
    from sentinel.adapters.tls import ServerCertificate
    from sentinel.daemon.effects.diagnostics import check_deadlines
    from sentinel.daemon.web.access import PageAuthentication
    from sentinel.daemon.web.pages import rack_pattern
    from sentinel.daemon.wiring import rules

    daemon, alerts, page = settings.daemon, settings.alerts, settings.page
    yield "diagnostics.deadline_s", partial(check_deadlines, settings)
    if daemon.audit_syslog:
        yield "daemon.audit_syslog", partial(Syslog, daemon.audit_syslog)
    yield "judgement.rules", partial(rules, settings)
    threads = DeliveryThreads()  # nothing is sent: it starts no thread

    def known(name: str, one: Channel) -> None:
        made = channel(name, one, alerts, threads)
        if isinstance(made, Chat):
            made.require_known()  # the daemon asks Apprise when it sends the first message

    for name, one in alerts.channels.items():
        if one.kind == "users":  # where they go stands in the users' files
            continue
        where = f"alerts.channels.{name}"
        yield f"{where}.template", partial(channel, name, one, alerts, threads)
        yield f"{where}.{'url' if one.url else 'url_file'}", partial(known, name, one)
    if daemon.wire == "tls":
        yield "daemon.certificate_file", partial(ServerCertificate, daemon.certificate_file, daemon.key_file)
    if page.listen:
        yield "page.racks", partial(rack_pattern, page.racks)
        yield "page.tokens", partial(PageAuthentication, page, {0})


def agent_checks(settings: AgentSettings) -> Iterator[Check]:
    """The agent's checks at start that need no devices of the node."""
    from sentinel.adapters.tls import client_context
    from sentinel.agent.settings import require_sound
    from sentinel.config.rules_files import load_rules

    yield "", partial(require_sound, settings)
    if settings.rules:
        yield "rules", partial(load_rules, site=Path(settings.rules))
    if settings.wire == "tls":
        yield "ca_file", partial(client_context, settings.ca_file)


def _located(config: Path, key: str, error: UserError) -> FileError:
    message = str(error.args[0])
    if isinstance(error, FileError):
        key = error.key if "." in error.key else key
        message = message.replace(f"{error.key}: ", "", 1) if error.key else message
    elif found := _SECTION.match(message):
        key = ".".join(found.groups())
    elif found := _DOTTED.match(message):
        key, message = found[1], message[found.end() :]
    reader = Reader(config, file_text(config))
    line = reader.line_of(key) or reader.line_of(key.rpartition(".")[0])  # a key that is missing: of its section
    return FileError(config, message, line=line, key=key, fix=error.fix)
