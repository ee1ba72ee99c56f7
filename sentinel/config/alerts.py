"""Settings of messages: how often delivery is tried, and the channels with what each of them gets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import time
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sentinel.config.addresses import require_http
from sentinel.config.settings_toml import InvalidSetting, section, setting

KINDS = ("apprise", "alertmanager", "webhook", "mail", "users")
JOB_LOG = "job log"  # the receiver that is every job's own log; no channel can have that name
SEVERITIES = ("info", "warning", "critical")
STAGES = (
    "restarting", "running again", "held", "failed", "cancelled", "waiting", "asked", "lapsed", "refused",
    "handled", "resolved", "blind", "sees_again",
    "unreadable_state", "repair",
)  # fmt: skip
_HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,40}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S")
_DOMAIN = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_SERVER = re.compile(r"[a-z][a-z0-9]*://[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*(:\d{1,5})?/")
# Apprise's services whose host no address can change: what a user writes there reaches no machine of the site's.
ONE_ADDRESS = ("slack", "discord", "tgram", "pagerduty", "opsgenie", "pover", "pbul", "webex")
OWNER = "{user}"  # in an address: the account of the job's owner
_ADDRESS = re.compile(r"[^\s@<>,;]+@[^\s@<>,;]+")


@dataclass(frozen=True, slots=True)
class Channel:
    """Where messages go, and which. Addresses are secrets: a file keeps them out of the settings."""

    kind: str = setting(
        "",
        "apprise (chats and pagers), alertmanager, webhook, mail, or users (where their own files say); must be set",
        words=KINDS,
    )
    url: str = setting("", "address: Apprise's (https://appriseit.com/services/), Alertmanager's, or the webhook's")
    url_file: str = setting("", "file with the address in one line, for the daemon's account only", unit="path")
    to: list[str] = setting([], "mail: addresses; {user} stands for the account of the job's owner")
    keys_file: str = setting(
        "",
        "webhook: keys that sign, one a line; each signs, so that an old one can go when all know the new",
        unit="path",
    )
    authorization_file: str = setting(
        "", "alertmanager, webhook: a token, or the whole Authorization header, in one line", unit="path"
    )
    mail_domains: list[str] = setting(
        [], "users: what may stand behind the @ of an address in a user's file; empty: no mail"
    )
    services: list[str] = setting(
        [],
        "users: how a chat's address in a user's file may begin: a service with one address for all (\"slack\"), or a "
        'server by its name ("mmosts://chat.example.org/"); empty: no chat',
    )
    audience: str = setting("operators", "whose text it gets", words=("operators", "owners"))
    least_severity: str = setting("info", "messages below it are left out", words=SEVERITIES)
    stages: list[str] = setting([], "stages of an incident that are told here; empty: all", words=STAGES)
    partitions: list[str] = setting([], "jobs of these partitions only; empty: all, and what has no job")
    users: list[str] = setting([], "jobs of these users only; empty: all, and what has no job")
    quiet: str = setting("", 'hours without messages, e.g. "22:00-07:00"; what came then is one message at their end')
    timezone: str = setting("UTC", "of the quiet hours, e.g. Europe/Zurich")
    digest_s: float = setting(0.0, "what comes within this time is one message; 0: each at once", unit="s", least=0)
    at_once: str = setting(
        "critical", "from here on messages wait for no digest and no end of quiet hours", words=(*SEVERITIES, "none")
    )
    template: str = setting("", "file with the site's own words for a message (docs/webhooks.md)", unit="path")

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidSetting: keys that do not go together.
        """
        if self.kind not in KINDS:
            raise InvalidSetting("kind", "is missing", "write kind = " + " or ".join(f'"{kind}"' for kind in KINDS))
        if self.kind == "users":
            self._users()
        elif self.kind == "mail":
            self._mail()
        elif bool(self.url) == bool(self.url_file):
            raise InvalidSetting("url", "url or url_file must be set, and not both", "name the address, or its file")
        self._only("keys_file", self.keys_file, "webhook")
        self._only("authorization_file", self.authorization_file, "webhook", "alertmanager")
        self._only("to", self.to, "mail")
        self._only("mail_domains", self.mail_domains, "users")
        self._only("services", self.services, "users")
        if self.kind == "alertmanager" and self.audience == "owners":
            raise InvalidSetting("audience", "Alertmanager's alerts are for operators", 'leave it out, or use "mail"')
        if self.kind == "alertmanager" and (self.quiet or self.digest_s or self.template):
            key = "quiet" if self.quiet else "digest_s" if self.digest_s else "template"
            raise InvalidSetting(key, "Alertmanager groups, silences and words alerts itself", "set it there")
        if self.quiet and self.quiet_hours is None:
            raise InvalidSetting("quiet", f"{self.quiet!r} is no pair of times", 'write "22:00-07:00"')
        try:
            if self.timezone != "UTC":  # known everywhere, also without a database of zones
                ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            fix = "write a name as in /usr/share/zoneinfo, e.g. Europe/Zurich"
            raise InvalidSetting("timezone", f"{self.timezone!r} is not known here", fix) from None

    def check_loaded(self) -> None:
        if self.url and self.kind != "apprise":
            require_http("url", self.url)
        elif self.url and not _SCHEME.match(self.url):
            raise InvalidSetting("url", "has no scheme", "its form is at https://appriseit.com/services/")

    def _mail(self) -> None:
        if not self.to:
            raise InvalidSetting("to", "is missing", 'write to = ["ops@example.org"]')
        if self.url or self.url_file:
            raise InvalidSetting("url" if self.url else "url_file", "is not for mail", "set [alerts.mail] server")
        for address in self.to:
            if not _ADDRESS.fullmatch(address):
                raise InvalidSetting("to", f"{address!r} is no address", 'write "name@example.org"')
            if set(address.replace(OWNER, "")) & set("{}"):
                raise InvalidSetting(
                    "to", f"{address!r} has braces that stand for nothing", f"only {OWNER} is filled in"
                )
            if OWNER in address and self.audience != "owners":
                raise InvalidSetting("to", f"{address!r} is for owners of jobs", 'set audience = "owners"')

    def _users(self) -> None:
        """A user's file says where a message goes when it goes out: nothing is gathered before."""
        for key, value in (
            ("url", self.url),
            ("url_file", self.url_file),
            ("quiet", self.quiet),
            ("digest_s", self.digest_s),
        ):
            if value:
                raise InvalidSetting(key, "is not for what users' own files say", "leave it out")
        if self.audience != "owners":
            raise InvalidSetting("audience", "users get what is about own jobs", 'write audience = "owners"')
        if not self.mail_domains and not self.services:
            raise InvalidSetting("mail_domains", "nothing is allowed", "name mail_domains, services, or both")
        for domain in self.mail_domains:
            if not _DOMAIN.fullmatch(domain):
                raise InvalidSetting("mail_domains", f"{domain!r} is no domain", 'write "example.org"')
        for service in self.services:
            if service not in ONE_ADDRESS and not _SERVER.fullmatch(service):
                fix = f'write "mmosts://chat.example.org/", or one of: {", ".join(ONE_ADDRESS)}'
                raise InvalidSetting("services", f"{service!r} is no service with one address for all", fix)

    def _only(self, key: str, value: object, *kinds: str) -> None:
        if value and self.kind not in kinds:
            raise InvalidSetting(key, f"is not for {self.kind}", f"leave it out: it is for {' and '.join(kinds)}")

    @property
    def quiet_hours(self) -> tuple[time, time] | None:
        """Begin and end; None: no such hours, or what is written is none."""
        found = _HOURS.fullmatch(self.quiet)
        try:
            return (time(int(found[1]), int(found[2])), time(int(found[3]), int(found[4]))) if found else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Mail:
    """The server that takes our mail."""

    server: str = setting("localhost:25", "host and port of the SMTP server", unit="")
    security: str = setting(
        "none",
        "starttls or tls (from the first byte): wherever the server is not this host",
        words=("none", "starttls", "tls"),
    )
    sender: str = setting("", "address that mail comes from; empty: sentinel@ this host's name")
    user: str = setting("", "account at the server; empty: without")
    password_file: str = setting("", "its password, in one line", unit="path")
    accept_s: float = setting(
        60.0,
        "until the server says whether it has taken a mail: one that scans it first takes longer than for other answers, "
        "and what it does not say in time may come twice",
        unit="s",
        least=0.1,
    )

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidSetting: no host and port, or a password that would travel in clear.
        """
        host, colon, port = self.server.rpartition(":")
        if not (host and colon and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidSetting("server", f"{self.server!r} is no host and port", 'write "mail.example.org:587"')
        if bool(self.user) != bool(self.password_file):
            raise InvalidSetting(
                "user" if self.user else "password_file", "user and password_file go together", "set both or none"
            )
        if self.user and self.security == "none":
            raise InvalidSetting("security", "the password would travel in clear", 'write security = "starttls"')


@dataclass(frozen=True, slots=True)
class Alerts:
    webhooks: list[str] = setting([], "URLs that get one JSON POST for each message to operators")
    channels: dict[str, Channel] = setting({}, "by name: other places that messages go to ([alerts.channels.NAME])")
    link: str = setting("", "address of an incident's page in messages; {incident} stands for its id; empty: none")
    deadline_s: float = setting(5.0, "one delivery attempt", unit="s", least=0.1)
    attempts: int = setting(
        13, "delivery attempts with pauses that grow from 0.5 s to 10 min: a receiver may be away for an hour", least=1
    )
    repeat_s: float = setting(
        60.0,
        "alerts that stand are sent to Alertmanager again: a restarted one has forgotten them; as Prometheus does; 0: never",
        unit="s",
        least=0,
    )
    per_user: int = setting(
        10,
        "incidents of one user's jobs with one cause that are told within per_user_s, unless a node is drained: an array of "
        "failing jobs is told of ten times; the last of them says that it is",
        least=1,
    )
    per_user_s: float = setting(3600.0, "time within which these count", unit="s", least=1)
    within_s: float = setting(
        5.0,
        "people are told when the job is released or held, at the latest this long after the decision",
        unit="s",
        least=0,
    )
    job_log: bool = setting(
        True,
        "a job's own log gets a paragraph when the job is held, or its restart waits or fails: written as its user by the "
        "agent of its first node; a restart is told by TaskProlog in any case",
    )
    mail: Mail = section(Mail)

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidSetting: a channel's name that cannot be typed.
        """
        for name in self.channels:
            if not _NAME.fullmatch(name):
                raise InvalidSetting("channels", f"{name!r} is no name", "letters, digits, _ and -, at most 40")
        if self.link and "{incident}" not in self.link:
            raise InvalidSetting("link", "does not say where the incident's id goes", "write {incident} there")

    def check_loaded(self) -> None:
        for url in self.webhooks:
            require_http("webhooks", url)


@dataclass(frozen=True, slots=True)
class WeeklyReport:
    """``sentinel report --mail``, which a timer runs every Monday."""

    to: list[str] = setting(
        [], "addresses that get the report of the week, by the server of [alerts.mail]; empty: none"
    )

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidSetting: what is no address.
        """
        for address in self.to:
            if not _ADDRESS.fullmatch(address) or "{" in address:
                raise InvalidSetting("to", f"{address!r} is no address", 'write to = ["hpc-ops@example.org"]')
