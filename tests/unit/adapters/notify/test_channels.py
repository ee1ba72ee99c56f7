"""Channels from settings: what is wrong is an error that names file, line, key and fix; secrets are read from files."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from datetime import timedelta
from pathlib import Path

import jsonschema_of
import pytest
from made_records import AT

from sentinel.adapters.notify.alertmanager import alerts_of
from sentinel.adapters.notify.channels import receivers
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.webhook import body_of, signature
from sentinel.adapters.notify.wording import Wording, template_of
from sentinel.config.settings import Settings, load
from sentinel.errors import FileError
from sentinel.model.records import Notice
from sentinel.wire import to_json

NOTICE = Notice("note1", "inc1", AT, "title", "body", {"user": "ada", "nodes": ["n1", "n2"], "operator_text": "ops"})


def settings(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "sentinel.toml"
    path.write_text(text)
    return load(path, Settings)


def made(tmp_path: Path, text: str) -> list[str]:
    return [sink.name for sink in receivers(settings(tmp_path, text).alerts, DeliveryThreads())]


def test_one_receiver_for_each(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("slack://a/b/c\n")
    (tmp_path / "url").chmod(0o640)
    names = made(
        tmp_path,
        f"""
        alerts.webhooks = ["https://hooks.example/1"]
        [alerts.channels.chat]
        kind = "apprise"
        url_file = "{tmp_path}/url"
        least_severity = "warning"
        stages = ["restarting", "failed"]
        quiet = "22:00-07:00"
        timezone = "Europe/Zurich"
        [alerts.channels.am]
        kind = "alertmanager"
        url = "http://127.0.0.1:9093"
        [alerts.channels.owners]
        kind = "mail"
        to = ["{{user}}@alps.example"]
        audience = "owners"
        digest_s = "10min"
        """,
    )
    assert re.fullmatch(r"hooks\.example#\w{8}", names[0]) and names[1:] == ["chat", "am", "owners"]


@pytest.mark.parametrize(
    ("lines", "key", "words"),
    [
        ('url = "x"', "kind", "missing"),
        ('kind = "webhok"\nurl = "x"', "kind", '"webhook"'),
        ('kind = "webhook"', "url", "must be set"),
        ('kind = "webhook"\nurl = "x"\nurl_file = "y"', "url", "not both"),
        ('kind = "webhook"\nulr = "x"', "ulr", "did you mean 'url'"),
        ('kind = "apprise"\nurl = "x"\nkeys_file = "y"', "keys_file", "is not for apprise"),
        ('kind = "mail"', "to", "missing"),
        ('kind = "mail"\nto = ["ops"]', "to", "no address"),
        ('kind = "mail"\nto = ["{user}@x.example"]', "to", 'audience = "owners"'),
        ('kind = "mail"\nto = ["a@x.example"]\nurl = "y"', "url", "alerts.mail"),
        ('kind = "webhook"\nurl = "x"\nquiet = "22-7"', "quiet", "22:00-07:00"),
        ('kind = "webhook"\nurl = "x"\nquiet = "25:00-07:00"', "quiet", "22:00-07:00"),
        ('kind = "webhook"\nurl = "x"\ntimezone = "Mars/Base"', "timezone", "not known here"),
        ('kind = "webhook"\nurl = "x"\nstages = ["restarted"]', "stages", '"restarting"'),
        ('kind = "webhook"\nurl = "x"\nleast_severity = "high"', "least_severity", '"critical"'),
        ('kind = "alertmanager"\nurl = "x"\nquiet = "22:00-07:00"', "quiet", "set it there"),
        ('kind = "alertmanager"\nurl = "x"\naudience = "owners"', "audience", "operators"),
    ],
)
def test_what_does_not_go_together_names_line_key_and_fix(tmp_path: Path, lines: str, key: str, words: str) -> None:
    with pytest.raises(FileError) as caught:
        settings(tmp_path, f"[alerts.channels.ops]\n{lines}\n")
    error = caught.value
    assert error.key == f"alerts.channels.ops.{key}" and words in f"{error.message} {error.fix}"
    written = ["[alerts.channels.ops]", *lines.split("\n")]
    assert error.line == next((n for n, line in enumerate(written, 1) if line.startswith(f"{key} =")), 1)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('[alerts.mail]\nserver = "mail"\n', "alerts.mail.server", "no host and port"),
        ('[alerts.mail]\nuser = "x"\n', "alerts.mail.user", "go together"),
        ('[alerts.mail]\nuser = "x"\npassword_file = "y"\n', "alerts.mail.security", "in clear"),
        ('[alerts]\nlink = "https://x"\n', "alerts.link", "{incident}"),
        ('[alerts.channels."a b"]\nkind = "mail"\nto = ["a@b"]\n', "alerts.channels", "'a b' is no name"),
    ],
)
def test_settings_of_mail_and_names(tmp_path: Path, text: str, key: str, words: str) -> None:
    with pytest.raises(FileError) as caught:
        settings(tmp_path, text)
    assert caught.value.key == key and words in f"{caught.value.message} {caught.value.fix}"


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (None, 0, "cannot be read"),
        ("https://x\n", 0o644, "others may read it"),
        ("", 0o600, "holds 0 lines"),
        ("a\nb\n", 0o600, "holds 2 lines"),
    ],
)
def test_address_in_a_file(tmp_path: Path, content: str | None, mode: int, words: str) -> None:
    path = tmp_path / "url"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(FileError) as caught:
        made(tmp_path, f'[alerts.channels.ops]\nkind = "webhook"\nurl_file = "{path}"\n')
    assert words in caught.value.message and caught.value.key == "alerts.channels.ops.url_file" and caught.value.fix


def test_short_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("0123456789abcdef0123\nshort\n")
    path.chmod(0o600)
    with pytest.raises(FileError) as caught:
        made(tmp_path, f'[alerts.channels.ops]\nkind = "webhook"\nurl = "http://x"\nkeys_file = "{path}"\n')
    assert caught.value.line == 2 and "openssl rand" in caught.value.fix


def test_template_says_what_a_site_wants(tmp_path: Path) -> None:
    path = tmp_path / "template"
    path.write_text("[$cluster] ${title}\nNodes: ${nodes} for $$5\n${text}\n${job}\n")
    wording = Wording("operators", "https://x/{incident}", template_of(path))
    assert wording.of(NOTICE) == ("[-] title", "Nodes: n1, n2 for $5\nops\n-")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("x\n${nodez}\n", 2, "did you mean ${nodes}?"),
        ("cost: $ 5\n", 1, "$$"),
        ("\n\n", None, "empty"),
        ("${__class__}", 1, "known here"),
    ],
)
def test_template_that_cannot_be_used(tmp_path: Path, text: str, line: int | None, words: str) -> None:
    path = tmp_path / "template"
    path.write_text(text)
    with pytest.raises(FileError) as caught:
        template_of(path)
    assert caught.value.line == line and words in f"{caught.value.message} {caught.value.fix}"


def test_values_of_a_template_are_no_template(tmp_path: Path) -> None:
    hostile = Notice("n", "i", AT, "${user} $x", "b", {"user": "ada", "operator_text": "$user"})
    assert Wording("operators", template="${title}\n${text}").of(hostile) == ("${user} $x", "$user")


def test_signature_is_of_time_and_body_by_every_key() -> None:
    body, keys = b'{"a": 1}', [b"old key of 16 bytes", b"new key of 16 bytes"]
    at, *digests = signature(body, keys, 1_770_000_000).split(",")
    assert at == "t=1770000000"
    wanted = [hmac.new(key, b"1770000000." + body, hashlib.sha256).hexdigest() for key in keys]
    assert digests == [f"v1={digest}" for digest in wanted]
    assert signature(body, keys, 1_770_000_001).split(",")[1] != digests[0]


def test_example_of_the_documentation_verifies_what_we_sign() -> None:
    text = (Path(__file__).parents[4] / "docs/webhooks.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    there: dict[str, object] = {}
    exec(code, there)
    verified = there["verified"]
    body, key = json.dumps(body_of(NOTICE)).encode(), b"a key of 16 bytes or more"
    signed = signature(body, [b"another key of 16 bytes", key], 1000)
    assert callable(verified) and verified(body, signed, [key], now_s=1100.0)
    assert not verified(body, signed, [key], now_s=1000.0 + 301), "too old: it may be a repeat by somebody else"
    assert not verified(body + b" ", signed, [key], now_s=1100.0)
    assert not verified(body, signed, [b"another key that is not it"], now_s=1100.0)


def test_messages_are_as_the_schema_says() -> None:
    schema = jsonschema_of.documented()
    assert jsonschema_of.errors(schema, body_of(NOTICE)) != [], "an incident's message lacks its keys"
    for notice in jsonschema_of.messages():
        assert jsonschema_of.errors(schema, body_of(notice)) == [], notice.title


@pytest.mark.parametrize(("incident", "days"), [("inc1", 30), ("", 1)])
def test_an_alert_that_no_incident_ends_does_not_stand_for_a_month(incident: str, days: int) -> None:
    made = Notice("note1", incident, AT, "title", "body", {"event": "unreadable_state", "final": False})
    assert [alert["endsAt"] for alert in alerts_of(made)][:1] == [to_json(AT + timedelta(days=days))]


@pytest.mark.parametrize("final", [False, True])
def test_an_alert_says_when_it_began(final: bool) -> None:
    """Alertmanager takes the end for the beginning of one that does not: that of what stands lies weeks ahead."""
    made = Notice("note1", "inc1", AT, "title", "body", {"severity": "critical", "final": final})
    assert [alert["startsAt"] for alert in alerts_of(made)] == [to_json(AT)] * 3


@pytest.mark.parametrize("template", ["", "${title}\n${operator_text}\n${user}"], ids=["own words", "template"])
def test_names_forge_no_line_and_move_no_cursor_whatever_made_the_text(template: str) -> None:
    """Found as an attack: a template took the values of a message as they are."""
    name = "eve\r\nDrained: n1\x1b[2J\u202eright\u2028next"
    text = "What: \x1b[2Ja\u202eb\nWhere: n1"
    hostile = Notice("n", "i", AT, name, text, {"user": name, "operator_text": text})
    title, said = Wording("operators", template=template).of(hostile)
    assert title.isprintable() and all(line.isprintable() for line in said.split("\n"))
    assert len(said.split("\n")) == (3 if template else 2)
