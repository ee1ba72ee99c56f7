"""The file in which a user says where messages about own jobs go, held to what the site allows. Its text is hostile.

A user may name addresses and narrow down what they get; hosts that the daemon then speaks to are the site's choice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

from sentinel.config.alerts import ONE_ADDRESS, SEVERITIES, STAGES, Channel
from sentinel.config.settings_toml import InvalidSetting, parsed, setting
from sentinel.errors import FileError, UserError

MOST_ADDRESSES = 4  # of a user: each is a delivery of every message
_MOST_LENGTH = 400  # characters of an address
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_CHAT = re.compile(r"[a-z][a-z0-9]*://[A-Za-z0-9._~:/@%+#-]+")  # no "?": Apprise's options are not a user's to set


@dataclass(frozen=True, slots=True)
class UserMessages:
    """What may stand in the file."""

    mail: list[str] = setting([], "addresses that get mail")
    chat: list[str] = setting([], "addresses of chats, as Apprise writes them")
    least_severity: str = setting("info", "messages below it are left out", words=SEVERITIES)
    stages: list[str] = setting([], "stages of an incident that are told; empty: all", words=STAGES)
    partitions: list[str] = setting([], "jobs of these partitions only; empty: all")

    def __post_init__(self) -> None:
        """
        Raises:
            InvalidSetting: too many addresses, or one too long.
        """
        for key, addresses in (("mail", self.mail), ("chat", self.chat)):
            if len(self.mail) + len(self.chat) > MOST_ADDRESSES:
                raise InvalidSetting(key, "too many addresses", f"name {MOST_ADDRESSES} at most")
            if any(len(address) > _MOST_LENGTH for address in addresses):
                raise InvalidSetting(key, "an address is too long", f"at most {_MOST_LENGTH} characters")


def channels_of(text: str, site: Channel, name: str) -> list[Channel]:
    """The channels that the file asks for, one for each address.

    Args:
        site: the site's settings of channel ``name``: what users may name.

    Raises:
        UserError: names what is wrong in the file.
    """
    try:
        asked = parsed(Path(name), text, UserMessages)
        require_allowed(asked, site)
    except FileError as error:
        raise UserError(_words_about(error), fix=error.fix) from None
    except InvalidSetting as error:
        raise UserError(f"{error.key}: {error.message}", fix=error.fix) from None
    except (ValueError, RecursionError):  # a number or a table that cannot even be shown
        raise UserError("a value is far too large", fix="write addresses and words") from None
    chosen = {"least_severity": asked.least_severity, "stages": asked.stages, "partitions": asked.partitions}
    base = replace(site, mail_domains=[], services=[], kind="mail", to=["x@example.org"], **chosen)  # type: ignore[arg-type]
    return [
        *(replace(base, to=[address]) for address in asked.mail),
        *(replace(base, kind="apprise", to=[], url=address) for address in asked.chat),
    ]


def _words_about(error: FileError) -> str:
    """What is wrong, without what stands there: an address is a secret, and whatever is said goes to logs and operators."""
    known = {field.name for field in fields(UserMessages)}
    what = (
        f"{error.key} is not what it must be" if error.key in known else "unknown key" if error.key else "is not TOML"
    )
    return f"{error.path}{f':{error.line}' if error.line else ''}: {what}"


def require_allowed(asked: UserMessages, site: Channel) -> None:
    """
    Raises:
        InvalidSetting: an address that the site does not allow.
    """
    domains = {domain.lower() for domain in site.mail_domains}
    for address in asked.mail:
        account, at, domain = address.partition("@")
        if not at or not _NAME.fullmatch(account) or domain.lower() not in domains:
            raise InvalidSetting("mail", "an address is not allowed here", f"behind the @: {_known(site.mail_domains)}")
    for address in asked.chat:
        if not _CHAT.fullmatch(address) or not any(_begins(address, service) for service in site.services):
            fix = (
                f"it begins with: {_known([f'{s}://' if s in ONE_ADDRESS else s for s in site.services])}; without a ?"
            )
            raise InvalidSetting("chat", "an address is not allowed here", fix)


def _begins(address: str, service: str) -> bool:
    return address.lower().startswith(f"{service}://" if service in ONE_ADDRESS else service.lower())


def _known(names: list[str]) -> str:
    return ", ".join(names) or "nothing is"
