"""Addresses and paths that can never work are refused when a settings file is read, with line, key and fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.agent.settings import AgentSettings
from sentinel.config.settings import Settings, load
from sentinel.errors import FileError

CHANNEL = '[alerts.channels.x]\nkind = "{kind}"\nurl = "{url}"'


def loaded(folder: Path, text: str, kind: type[object] = Settings) -> object:
    path = folder / "here.toml"
    path.write_text(text + "\n")
    return load(path, kind)


def channel(kind: str, url: str) -> str:
    return CHANNEL.format(kind=kind, url=url)


def mail(audience: str, address: str) -> str:
    return f'[alerts.channels.x]\nkind = "mail"\naudience = "{audience}"\nto = ["{address}"]'


def test_the_account_of_the_owner_may_stand_anywhere_in_an_address(tmp_path: Path) -> None:
    for address in ("{user}@example.org", "hpc+{user}@example.org"):
        made = loaded(tmp_path, mail("owners", address))
        assert isinstance(made, Settings) and made.alerts.channels["x"].to == [address]


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ('[daemon]\nlisten = "127.0.0.1:99999"', "daemon.listen", 2),
        ('[daemon]\nlisten = "9478"', "daemon.listen", 2),
        ('[daemon]\nlisten = "127.0.0.1"', "daemon.listen", 2),
        ('[daemon]\nlisten = "127.0.0.1:"', "daemon.listen", 2),
        ('[daemon]\nlisten = "127.0.0.1:-1"', "daemon.listen", 2),
        ('[daemon]\nlisten = "127.0.0.1:\u0661\u0662"', "daemon.listen", 2),
        ('[daemon]\nurl = "head:9478"', "daemon.url", 2),
        ('[daemon]\nurl = "http://"', "daemon.url", 2),
        ('[daemon]\nurl = "http://head:99999"', "daemon.url", 2),
        ('[daemon]\nurl = "http://[::1"', "daemon.url", 2),
        ('[daemon]\nwire = "tls"\nurl = "http://head:9478"', "daemon.url", 3),
        ('[daemon]\nwire = "tls"', "daemon.url", 1),
        ('[daemon]\ndatabase = "postgresql+psycopg://a:b@db1:5432,db2:5432/sentinel"', "daemon.database", 2),
        ('[daemon]\nurl = "https://head:9478"', "daemon.url", 2),
        ('[daemon]\nstate = ""', "daemon.state", 2),
        ('[daemon]\nstate = "state"', "daemon.state", 2),
        ('[daemon]\nresume = "relative"', "daemon.resume", 2),
        ('[alerts]\nwebhooks = ["http://a", "not a url"]', "alerts.webhooks", 2),
        ('[alerts]\nwebhooks = ["ftp://a/b"]', "alerts.webhooks", 2),
        (channel("webhook", "ftp://x"), "alerts.channels.x.url", 3),
        (channel("alertmanager", "alertmanager:9093"), "alerts.channels.x.url", 3),
        (channel("apprise", "no scheme"), "alerts.channels.x.url", 3),
        (mail("owners", "{usr}@example.org"), "alerts.channels.x.to", 4),
        (mail("owners", "{user}@{cluster}.example.org"), "alerts.channels.x.to", 4),
        (mail("operators", "ops}@example.org"), "alerts.channels.x.to", 4),
        ('[prometheus]\nurl = "prometheus:9090"', "prometheus.url", 2),
        ('[page]\nlisten = "9479"', "page.listen", 2),
        ('[page]\nlisten = "unix:run/page.sock"', "page.listen", 2),
        ('[page]\nlisten = "127.0.0.1:70000"', "page.listen", 2),
    ],
)
def test_what_cannot_work_is_refused_with_its_line(tmp_path: Path, text: str, key: str, line: int) -> None:
    with pytest.raises(FileError) as caught:
        loaded(tmp_path, text)
    assert (caught.value.key, caught.value.line) == (key, line) and caught.value.fix


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ('url = "head:9478"', "url", 1),
        ('url = "http://head:9478"\nwire = "tls"', "url", 1),
        ('url = "https://head:9478"\nwire = "munge"', "url", 1),
        ('[metrics]\nlisten = "9479"', "metrics.listen", 2),
        ('[metrics]\nlisten = "127.0.0.1:99999"', "metrics.listen", 2),
        ('state = ""', "state", 1),
        ('state = "agent"', "state", 1),
        ('run_dir = "run"', "run_dir", 1),
        ('resume = "relative"', "resume", 1),
    ],
)
def test_the_agents_file_alike(tmp_path: Path, text: str, key: str, line: int) -> None:
    with pytest.raises(FileError) as caught:
        loaded(tmp_path, text, AgentSettings)
    assert (caught.value.key, caught.value.line) == (key, line) and caught.value.fix


@pytest.mark.parametrize(
    "text",
    [
        '[daemon]\nlisten = "127.0.0.1:0"\nurl = "http://127.0.0.1"',
        '[daemon]\nlisten = "[::1]:9478"\nurl = "http://[::1]:9478"',
        '[daemon]\nlisten = ":65535"',
        '[daemon]\nwire = "tls"\nurl = "https://head.example.org:9478"',
        '[daemon]\nwire = "munge"',
        '[daemon]\nresume = "/shared/resume"\nstate = "/srv/sentinel"',
        '[alerts]\nwebhooks = ["https://hooks.example.org/a?b=c"]',
        '[page]\nlisten = "unix:/run/sentinel-page/page.sock"',
        '[page]\nlisten = "127.0.0.1:9479"',
        channel("apprise", "slack://a/b/c"),
        channel("webhook", "https://example.org"),
    ],
)
def test_what_works_is_taken(tmp_path: Path, text: str) -> None:
    assert loaded(tmp_path, text) is not None


def test_a_refused_address_does_not_show_its_secret(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        loaded(tmp_path, channel("webhook", "slack://tokenA/tokenB"))
    assert "slack" in str(caught.value) and "token" not in str(caught.value)


@pytest.mark.parametrize("url", ["a:b@TOKEN:TOKEN@db1:5432", "a:b@TOKEN@db1", "a:TOKEN"])
def test_a_database_whose_password_is_not_written_as_urls_are_is_refused_without_it(tmp_path: Path, url: str) -> None:
    with pytest.raises(FileError) as caught:
        loaded(tmp_path, f'[daemon]\ndatabase = "postgresql+psycopg://{url}/sentinel"')
    assert caught.value.key == "daemon.database" and "%40" in caught.value.fix and "TOKEN" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "postgresql+psycopg://a:b@db1,db2:5432/sentinel?target_session_attrs=read-write",
        "postgresql+psycopg://a:b@/sentinel?host=db1:5432&host=db2:5433",
        "postgresql+psycopg://a:p[x:y/z@[::1]:5432/sentinel?options=a@b:c",
        "postgresql://db1/sentinel?password=a@b:c",
        "sqlite:////srv/a@b:c/sentinel.db",
    ],
)
def test_a_database_is_not_refused_for_what_stands_beside_its_port(tmp_path: Path, url: str) -> None:
    settings = loaded(tmp_path, f'[daemon]\ndatabase = "{url}"')
    assert isinstance(settings, Settings) and settings.daemon.database == url
