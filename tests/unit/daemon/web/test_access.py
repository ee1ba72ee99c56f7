"""Who asks for a page: the account at a socket, a trusted proxy's header, a token; everybody else is refused."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

from sentinel.config.settings import Page
from sentinel.daemon.web.access import PageAuthentication, Viewer
from sentinel.errors import Denied, UserError

ME = os.getuid()
NAME = pwd.getpwuid(ME).pw_name
SOCKET, TCP = "unix:/run/x.sock", "127.0.0.1:9479"
PROXY: dict[str, Any] = {"listen": TCP, "user_header": "X-Remote-User", "proxies": ["10.1.0.0/24", "fd00::5"]}


def asks(*, operators: set[int] | None = None, **settings: Any) -> PageAuthentication:
    return PageAuthentication(Page(**settings), operators if operators is not None else {0})


def test_account_at_the_other_end_of_a_socket() -> None:
    assert asks(listen=SOCKET, operators={ME}).viewer({}, address="", uid=ME) == Viewer(NAME, True)
    assert asks(listen=SOCKET, operators=set()).viewer({}, address="", uid=ME) == Viewer(NAME, False)
    assert asks(listen=SOCKET).viewer({}, address="", uid=59998) == Viewer("uid 59998", False)


@pytest.mark.parametrize("address", ["10.1.0.77", "::ffff:10.1.0.77", "fd00::5"])
def test_header_of_a_trusted_proxy(address: str) -> None:
    who = asks(**PROXY, operators={ME})
    assert who.viewer({"X-Remote-User": "somebody-else"}, address=address, uid=None) == Viewer("somebody-else", False)
    assert who.viewer({"X-Remote-User": NAME}, address=address, uid=None) == Viewer(NAME, True)


@pytest.mark.parametrize("address", ["10.2.0.77", "127.0.0.1", "fd00::6", ""])
def test_header_of_anybody_else_proves_nothing(address: str) -> None:
    with pytest.raises(Denied, match="not known who asks"):
        asks(**PROXY).viewer({"X-Remote-User": NAME}, address=address, uid=None)


@pytest.mark.parametrize("name", ["", " ", "a\x1bb", "x" * 256])
def test_proxy_must_name_somebody(name: str) -> None:
    with pytest.raises(Denied, match="names nobody"):
        asks(**PROXY).viewer({"X-Remote-User": name}, address="10.1.0.1", uid=None)


def test_two_names_are_nobodys() -> None:
    """Of a proxy that adds its header to what the browser sent: the first one is the browser's word."""
    both = CIMultiDict([("x-remote-user", NAME), ("X-Remote-User", "mallory")])
    with pytest.raises(Denied, match="2 times"):
        asks(**PROXY, operators={ME}).viewer(both, address="10.1.0.1", uid=None)


def test_group_s_name_in_the_header_is_no_group() -> None:
    assert not asks(**PROXY, operators={ME}).viewer({"X-Remote-User": "%root"}, address="10.1.0.1", uid=None).operator


def test_proxy_at_a_socket_is_an_account_and_others_are_themselves() -> None:
    who = asks(listen=SOCKET, user_header="X-Remote-User", proxies=["nobody"])
    nobody = pwd.getpwnam("nobody").pw_uid
    assert who.viewer({"X-Remote-User": "ada"}, address="", uid=nobody) == Viewer("ada", False)
    assert who.viewer({"X-Remote-User": "ada"}, address="", uid=ME).name == NAME


def tokens(folder: Path, *lines: str, mode: int = 0o600) -> str:
    path = folder / "tokens"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)
    return str(path)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.mark.parametrize("given", ["Bearer s3cret", "bearer s3cret", "Basic " + base64.b64encode(b"x:s3cret").decode()])
def test_token(tmp_path: Path, given: str) -> None:
    file = tokens(tmp_path, "# people", f"ada {digest('other')}", f"wall {digest('s3cret')} operator")
    assert asks(listen=TCP, tokens=file).viewer({"Authorization": given}, address="9.9.9.9", uid=None) == Viewer(
        "wall", True
    )


@pytest.mark.parametrize(
    "given",
    [
        "Bearer wrong",
        "Bearer ",
        "Bearer \udcff",
        "Basic !!",
        "Basic \udcff",
        "Basic " + base64.b64encode(b"s3cret").decode(),
    ],
)
def test_token_that_is_none(tmp_path: Path, given: str) -> None:
    file = tokens(tmp_path, f"wall {digest('s3cret')}")
    with pytest.raises(Denied, match="token is not known"):
        asks(listen=TCP, tokens=file).viewer({"Authorization": given}, address="9.9.9.9", uid=None)


def test_no_token_at_all(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="not known who asks"):
        asks(listen=TCP, tokens=tokens(tmp_path, f"wall {digest('x')}")).viewer({}, address="9.9.9.9", uid=None)


def test_a_token_counts_while_it_is_in_the_file(tmp_path: Path) -> None:
    file = tokens(tmp_path, f"wall {digest('old')}")
    page = asks(listen=TCP, tokens=file)

    def named(token: str) -> str:
        return page.viewer({"Authorization": f"Bearer {token}"}, address="9.9.9.9", uid=None).name

    assert named("old") == "wall"
    tokens(tmp_path, f"wall {digest('newer')} operator")
    assert named("newer") == "wall"
    with pytest.raises(Denied, match="not known"):
        named("old")
    tokens(tmp_path, "half a")
    with pytest.raises(Denied, match="the file of tokens cannot be used") as caught:
        named("newer")
    assert file not in str(caught.value)
    tokens(tmp_path, f"wall {digest('newer')}")
    assert named("newer") == "wall"


@pytest.mark.parametrize(
    ("lines", "mode", "said"),
    [
        ((f"ada {'0' * 64}",), 0o640, "open to other accounts"),
        (("ada secret",), 0o600, "tokens:1: is no token's line"),
        (("# ok", f"ada {'0' * 64} admin"), 0o600, "tokens:2: is no token's line"),
        (("# nobody",), 0o600, "holds no token"),
    ],
)
def test_file_of_tokens_is_read_strictly(tmp_path: Path, lines: tuple[str, ...], mode: int, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        asks(listen=TCP, tokens=tokens(tmp_path, *lines, mode=mode))
    assert raised.value.fix


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listen": TCP}, "would let nobody in"),
        ({"listen": TCP, "user_header": "X-User"}, "belong together"),
        ({"listen": TCP, "proxies": ["10.0.0.1"]}, "belong together"),
        ({"listen": TCP, "user_header": "X User", "proxies": ["10.0.0.1"]}, "no name of a header"),
        ({"listen": TCP, "user_header": "X-User", "proxies": ["nobody"]}, "neither an address nor a network"),
        ({"listen": SOCKET, "user_header": "X-User", "proxies": ["nobody-here"]}, "nor an account"),
        ({"listen": TCP, "tokens": "/no/such"}, "cannot be read"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        asks(**settings)
    assert raised.value.fix


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:9479", "[::1]:80", "HEAD.example.org"])
def test_names_of_the_page(host: str) -> None:
    page = asks(listen=SOCKET, hosts=["head.example.org"])
    page.check_host(host)
    with pytest.raises(Denied):
        page.check_host(f"x{host}")


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example", "head.example.org.evil", "10.0.0.1:80"])
def test_other_names_are_refused(host: str) -> None:
    with pytest.raises(Denied) as raised:
        asks(listen=SOCKET, hosts=["head.example.org"]).check_host(host)
    assert "hosts" in raised.value.fix
