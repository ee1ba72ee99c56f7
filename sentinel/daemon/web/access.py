"""Authenticates requests for pages.

Three ways, in this order: the header of a reverse proxy that the settings trust, a token, and the account at the other
end of a local socket (Linux's SO_PEERCRED). A person whose name is that of an operator's account sees all jobs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sentinel.config.settings import Page
from sentinel.daemon.api.accounts import name_of, uids_of
from sentinel.errors import Denied, FileError, UserError
from sentinel.given_files import MadeOfFiles, opened

SOCKET = "unix:"
_LONGEST_NAME = 255
_MOST_TOKENS = 10_000
_TOKENS_BYTES = 4 << 20
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who requests a page. ``operator``: sees everybody's jobs."""

    name: str
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    name: str
    digest: bytes  # SHA-256
    operator: bool


class PageAuthentication:
    """Determines who requests a page, by the page's settings.

    Args:
        operators: uids.

    Raises:
        UserError: the settings admit nobody, or everybody; names the key.
    """

    def __init__(self, page: Page, operators: Collection[int]) -> None:
        self._operators = operators
        self._on_socket = page.listen.startswith(SOCKET)
        self._header = page.user_header
        self._networks, self._uids = _proxies(page.proxies, on_socket=self._on_socket)
        # As the file is now: a token that was taken out of it lets nobody in any more.
        self._tokens = MadeOfFiles([page.tokens], partial(read_tokens, Path(page.tokens))) if page.tokens else None
        if self._header and not _HEADER.fullmatch(self._header):
            raise UserError(f"[page] user_header: {self._header!r:.80} is no name of a header", fix="as X-Remote-User")
        if bool(self._header) != bool(page.proxies):
            raise UserError(
                "[page] user_header and proxies belong together",
                fix="name the header, and from whom it is believed; a header that anybody may send proves nothing",
            )
        if not (self._on_socket or self._header or self._tokens):
            raise UserError(
                f"[page] listen = {page.listen!r:.80} would let nobody in",
                fix="set user_header and proxies, or tokens; or listen on a socket: unix:/run/sentinel-page/page.sock",
            )
        listening = "" if self._on_socket else page.listen.rpartition(":")[0].strip("[]").lower()
        self._hosts = _LOCAL | {listening} - {""} | {host.lower() for host in page.hosts}

    def check_host(self, host: str) -> None:
        """Check the request's Host header.

        Raises:
            Denied: the browser addressed another host: a web site may have redirected it here (DNS rebinding).
        """
        name = (host.rpartition(":")[0] if re.search(r":\d*$", host) else host).strip("[]").lower()
        if name not in self._hosts:
            raise Denied(f"the page is not called {name!r:.80}", fix="add the name to [page] hosts")

    def viewer(self, headers: Mapping[str, str], *, address: str, uid: int | None) -> Viewer:
        """Authenticate a request.

        Args:
            address: peer address of the connection; empty for a local socket.
            uid: of the process at the other end of a local socket; None otherwise.

        Raises:
            Denied: the requester cannot be determined.
        """
        if self._header and self._is_proxy(address, uid):
            named = [value for header, value in headers.items() if header.lower() == self._header.lower()]
            if len(named) > 1:  # a proxy that only appends its header keeps a forged one from the browser before it
                raise Denied(
                    f"{self._header} is there {len(named)} times", fix="let the proxy replace what browsers send"
                )
            name = "".join(named).strip()
            if not name or len(name) > _LONGEST_NAME or not name.isprintable():
                raise Denied(f"the proxy names nobody in {self._header}", fix="let it authenticate people first")
            return self._named(name)
        if self._tokens is not None and (given := headers.get("Authorization", "")):
            try:
                known = self._tokens.now()
            except FileError as error:  # what is wrong with it is nothing for whom nobody knows
                raise Denied("the file of tokens cannot be used", fix="sentinel config check on its host") from error
            return _by_token(given, known)
        if uid is not None:
            return Viewer(name_of(uid), uid in self._operators)
        raise Denied("it is not known who asks", fix="give a token, or ask through the site's proxy")

    @property
    def takes_tokens(self) -> bool:
        return self._tokens is not None

    def _is_proxy(self, address: str, uid: int | None) -> bool:
        if uid is not None:
            return uid in self._uids
        try:
            sender = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(sender, ipaddress.IPv6Address) and sender.ipv4_mapped is not None:
            sender = sender.ipv4_mapped
        return any(sender in network for network in self._networks)

    def _named(self, name: str) -> Viewer:
        known, _ = uids_of([name]) if not name.startswith("%") else (set(), [])
        return Viewer(name, bool(known & set(self._operators)))


def _by_token(given: str, known: Sequence[Token]) -> Viewer:
    """Check ``Bearer TOKEN``, or basic authentication with any name and the token as password (browsers)."""
    kind, _, value = given.partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:
            value = ""
    elif kind.lower() != "bearer":
        value = ""
    digest = hashlib.sha256(value.strip().encode(errors="surrogateescape")).digest()
    found = [token for token in known if hmac.compare_digest(token.digest, digest)]
    if not value or not found:
        raise Denied("the token is not known", fix="ask who runs Sentinel here for one")
    return Viewer(found[0].name, found[0].operator)


def read_tokens(path: Path) -> list[Token]:
    """Read the file of tokens.

    Raises:
        FileError: not readable, readable by others, or malformed; names the line.
    """
    try:
        with opened(path) as file:
            about, raw = file.status, file.whole(_TOKENS_BYTES)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}", fix="correct [page] tokens") from error
    if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or about.st_uid not in (0, os.getuid()):
        raise FileError(path, "is open to other accounts", fix=f"chown {name_of(os.getuid())} {path}; chmod 600 {path}")
    lines = raw.decode("utf-8", "replace").splitlines()
    if len(lines) > _MOST_TOKENS:
        raise FileError(path, f"holds more than {_MOST_TOKENS} lines", fix="remove tokens that nobody uses")
    found = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if (
            len(words) not in (2, 3)
            or not re.fullmatch(r"[0-9a-fA-F]{64}", words[1])
            or words[2:] not in ([], ["operator"])
        ):
            fix = "write: NAME SHA256 [operator], with the sum from: printf %s TOKEN | sha256sum"
            raise FileError(path, "is no token's line", line=number, fix=fix)
        found.append(Token(words[0], bytes.fromhex(words[1]), bool(words[2:])))
    if not found:
        raise FileError(path, "holds no token", fix="add one, or leave [page] tokens out")
    return found


def _proxies(
    named: Collection[str], *, on_socket: bool
) -> tuple[list[ipaddress.IPv4Network | ipaddress.IPv6Network], set[int]]:
    networks, uids = [], set()
    for name in named:
        try:
            networks.append(ipaddress.ip_network(name))
            continue
        except ValueError:
            pass
        found, _ = uids_of([name])
        if not found or not on_socket:
            what = "neither an address nor a network" + (" nor an account of this host" if on_socket else "")
            raise UserError(f"[page] proxies: {name!r:.80} is {what}", fix='as "10.1.0.5" or "10.1.0.0/24"')
        uids |= found
    return networks, uids
