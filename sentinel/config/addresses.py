"""Checks of addresses and paths in settings: what can never be listened at, asked or written is refused when it is read."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from sentinel.config.settings_toml import InvalidSetting

SOCKET = "unix:"
_SCHEMES = ("http", "https")
_DATABASE = re.compile(r"[\w+]+://(?:[^:/]*(?::[^@]*)?@)?(?P<hosts>[^/?]*)")  # as SQLAlchemy reads it


def require_listen(key: str, value: str, *, socket: bool = False) -> None:
    """A host and port to listen at; without a host all addresses of this machine, with port 0 any free one.

    Args:
        socket: whether ``unix:/PATH`` is one as well.

    Raises:
        InvalidSetting: it is none, e.g. a port above 65535, which the kernel would cut to another one.
    """
    if socket and value.startswith(SOCKET):
        require_absolute(key, value.removeprefix(SOCKET))
        return
    host, colon, port = value.rpartition(":")
    if not colon or any(letter.isspace() for letter in host):
        raise InvalidSetting(key, f"{value!r:.120} is no host and port", 'write "127.0.0.1:9478" or "[::1]:9478"')
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise InvalidSetting(key, f"{port!r:.40} is no port", "write a port from 1 to 65535, or 0 for any free one")


def require_http(key: str, value: str) -> None:
    """
    Raises:
        InvalidSetting: no URL of HTTP with a host, or with a port that is none.
    """
    try:
        parts = urlsplit(value)
        sound = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port out of range, an IPv6 address without its end
        sound = False
    if not sound or any(letter.isspace() or not letter.isprintable() for letter in value):
        scheme = value.partition(":")[0] if "://" in value else ""  # the rest may hold a secret
        what = f"the scheme {scheme!r:.40} is not for this" if scheme and scheme not in _SCHEMES else "is no URL"
        raise InvalidSetting(key, what, "write http://HOST:PORT or https://HOST:PORT")


def require_wires(key: str, urls: str, wire: str) -> None:
    """One daemon's URL, or several separated by commas.

    Raises:
        InvalidSetting: one of them cannot be asked.
    """
    for url in urls.split(","):
        require_wire(key, url.strip(), wire)


def require_wire(key: str, url: str, wire: str) -> None:
    """A daemon's URL that goes with how requests travel: https with tls, http without.

    Raises:
        InvalidSetting: it cannot be asked.
    """
    require_http(key, url)
    if (wire == "tls") != url.lower().startswith("https:"):
        needed, written = ("https", "tls") if wire == "tls" else ("http", wire)
        raise InvalidSetting(key, f'{url!r:.120} does not go with wire = "{written}"', f"write {needed}://HOST:PORT")


def require_database(key: str, value: str) -> None:
    """A URL of SQLAlchemy, which has one port at most behind its hosts. Other faults of one are found where it is opened.

    Raises:
        InvalidSetting: host or port are none, e.g. since each of several hosts has a port, as in libpq's own URLs, or since
            a password has an @ in it. They are not shown: they may be part of the password.
    """
    found = _DATABASE.match(value)
    hosts = found["hosts"] if found is not None else ""
    port = hosts.rpartition("]")[2].partition(":")[2]
    if "@" in hosts or (port and not (port.isascii() and port.isdigit())):
        fix = (
            "write DRIVER://USER:PASSWORD@/NAME?host=db1:5432&host=db2:5432 where each of several hosts has a port, and %40 "
            "for an @ in the password"
        )
        raise InvalidSetting(key, "its host and port are none", fix)


def require_absolute(key: str, value: str) -> None:
    """
    Raises:
        InvalidSetting: the path depends on where a program was started, or is empty.
    """
    if not value.startswith("/"):
        raise InvalidSetting(key, f"{value!r:.120} is not absolute" if value else "is empty", "write the path from /")
