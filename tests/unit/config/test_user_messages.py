"""What a user's file may ask for: addresses that the site allows, and less of what is told. Anything else is refused."""

from __future__ import annotations

import pytest
from counted_calls import within_calls
from hypothesis import given
from hypothesis import strategies as st

from sentinel.config.alerts import ONE_ADDRESS, Channel
from sentinel.config.settings_toml import InvalidSetting
from sentinel.config.user_messages import channels_of
from sentinel.errors import UserError

SITE = Channel(
    kind="users", audience="owners", mail_domains=["example.org"], services=["slack", "mmosts://chat.example.org/"]
)
SLACK = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
MATTERMOST = "mmosts://chat.example.org/3ccdd113474722377935511fc85d3dd4"


def test_each_address_is_a_channel_with_the_users_choice() -> None:
    text = (
        f'mail = ["ada@example.org"]\nchat = ["{SLACK}", "{MATTERMOST}"]\nleast_severity = "warning"\nstages = ["held"]'
    )
    made = channels_of(text, SITE, "messages.toml")
    assert [(one.kind, one.to, one.url) for one in made] == [
        ("mail", ["ada@example.org"], ""), ("apprise", [], SLACK), ("apprise", [], MATTERMOST),
    ]  # fmt: skip
    assert {(one.audience, one.least_severity, tuple(one.stages)) for one in made} == {("owners", "warning", ("held",))}


@pytest.mark.parametrize(
    "line",
    [
        'mail = ["ada@evil.example"]',
        'mail = ["ada@example.org@evil.example"]',
        'mail = ["{user}@example.org"]',
        'mail = ["a b@example.org"]',
        'mail = ["-oX@example.org"]',
        'mail = ["ada@example.org\\r\\nBcc: x@evil.example"]',
        'chat = ["http://10.0.0.1/"]',
        'chat = ["json://10.0.0.1/"]',
        'chat = ["mmosts://chat.example.org.evil.example/x"]',
        'chat = ["mmosts://chat.example.org@evil.example/x"]',
        'chat = ["mmosts://chat.example.org"]',
        'chat = ["mmost://chat.example.org/x"]',
        f'chat = ["{SLACK}?redirect=yes"]',
        f'chat = ["{SLACK}?verify=no"]',
        'chat = ["file:///etc/passwd"]',
        'chat = ["SLACK://a/b/c"]',
        f"chat = {[SLACK] * 5}",
        f'chat = ["slack://{"a" * 500}"]',
        'url = "http://10.0.0.1"',
        'url_file = "/etc/shadow"',
        'template = "/etc/shadow"',
        "mail = 7",
        "least_severity = 0x" + "f" * 7000,
        "least_severity = " + "9" * 7000,
        'stages = ["all"]',
        "a = " + "[" * 4000,
        "\0",
    ],
)
def test_anything_else_is_refused(line: str) -> None:
    with pytest.raises(UserError):
        channels_of(line, SITE, "messages.toml")


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert channels_of(text, SITE, "messages.toml") == []
    except UserError:
        pass


def test_an_allowed_server_is_the_host_that_is_spoken_to() -> None:
    apprise = pytest.importorskip("apprise")
    for tail in ("token1234567890", "@evil.example/x", "..//evil.example/t", "x@evil.example:80/t", "#@evil.example/t"):
        try:
            (one,) = channels_of(f'chat = ["mmosts://chat.example.org/{tail}"]', SITE, "messages.toml")
        except UserError:
            continue
        found = apprise.Apprise.instantiate(one.url, suppress_exceptions=True)
        assert found is None or found.host == "chat.example.org", tail


def test_the_site_names_what_is_allowed() -> None:
    for wrong in (
        {"services": ["json"]}, {"services": ["mmosts://"]}, {"services": ["mmosts://chat.example.org"]},
        {"mail_domains": ["@example.org"]}, {"mail_domains": []}, {"mail_domains": ["a.b"], "audience": "operators"},
        {"mail_domains": ["a.b"], "quiet": "22:00-07:00"}, {"mail_domains": ["a.b"], "digest_s": 60.0},
        {"mail_domains": ["a.b"], "url": "http://x/"},
    ):  # fmt: skip
        with pytest.raises(InvalidSetting):
            Channel(**{"kind": "users", "audience": "owners", **wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting):
        Channel(kind="mail", to=["a@b"], mail_domains=["b"])


def test_services_with_one_address_are_known_to_apprise() -> None:
    apprise = pytest.importorskip("apprise")
    known = {scheme for plugin in apprise.Apprise().details()["schemas"] for scheme in plugin["secure_protocols"] or ()}
    known |= {scheme for plugin in apprise.Apprise().details()["schemas"] for scheme in plugin["protocols"] or ()}
    assert set(ONE_ADDRESS) <= known


@pytest.mark.parametrize(
    "text",
    [
        "mail." + ".".join(["a"] * 4000) + " = 1",
        "partitions = " + "{a=" * 60 + "1" + "}" * 60,
        '"' + "k" * 8000 + '" = 1',
        '"\\u001b[31m\\u0000" = 1',
        "[" + "k" * 8000,
        "\ud800 = 1",
    ],
    ids=["deep", "nested", "long key", "control", "no end", "surrogate"],
)
def test_what_is_wrong_with_a_file_is_said_in_a_line(text: str) -> None:
    with pytest.raises(UserError) as caught:
        channels_of(text, SITE, "messages.toml")
    assert len(caught.value.message) < 200 and caught.value.message.isprintable()


@pytest.mark.parametrize(
    "text",
    ['"' + "." * 8000 + '" = 1', '["' + "." * 8000 + '"]', "".join(f"k{n} = 1\n" for n in range(1100))],
    ids=["dots in a key", "dots in a header", "many keys"],
)
def test_a_file_that_is_wrong_costs_the_daemon_little(text: str) -> None:
    """It is read in the daemon's event loop."""

    def read() -> None:
        with pytest.raises(UserError):
            channels_of(text, SITE, "messages.toml")

    assert within_calls(60_000, read)


@pytest.mark.parametrize(
    "line", [f'chat = "{SLACK}"', f'mail = {{ to = "{SLACK}" }}', f'stages = ["{SLACK}"]', f"chat = {SLACK}"]
)
def test_a_slip_in_a_file_tells_nobody_its_addresses(line: str) -> None:
    """They are secrets: what is said of the file goes into the log, the store and what operators see."""
    with pytest.raises(UserError) as caught:
        channels_of(line, SITE, "messages.toml")
    assert "TIiajkdnlazkcOXrIdevi7FQ" not in f"{caught.value}" and "messages.toml:1: " in caught.value.message
