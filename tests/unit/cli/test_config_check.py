"""``sentinel config check`` says what daemon or agent would say at their start, with the settings file's line and key."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli import cli
from sentinel.errors import FileError, UserError

CHANNEL = '[alerts.channels.x]\nkind = "webhook"\n'


def checked(folder: Path, text: str, *words: str) -> FileError:
    path = folder / "here.toml"
    path.write_text(text + "\n")
    error = CliRunner().invoke(cli, ["config", "check", "--config", str(path), *words]).exception
    assert isinstance(error, FileError) and error.exit_status == 2 and error.fix and error.path == path
    return error


@pytest.mark.parametrize(
    ("text", "key", "line", "words"),
    [
        ('[daemon]\nwire = "tls"\nurl = "https://h:1"', "daemon.wire", 2, "needs certificate_file"),
        ('[daemon]\nwire = "tls"\nurl = "https://h:1"\ncertificate_file = "/nonexist"',
         "daemon.certificate_file", 4, "/nonexist"),
        ('[page]\nlisten = "127.0.0.1:9479"', "page.listen", 2, "would let nobody in"),
        ('[page]\nlisten = "unix:/run/p"\ntokens = "/nonexist"', "page.tokens", 3, "/nonexist"),
        ('[page]\nlisten = "unix:/run/p"\nracks = "("', "page.racks", 3, "no expression"),
        ('[page]\nlisten = "unix:/run/p"\nracks = "r"', "page.racks", 3, "no group"),
        ('[page]\nlisten = "unix:/run/p"\nproxies = ["x y"]', "page.proxies", 3, "neither an address"),
        ('[judgement]\nrules = "/nonexist"', "judgement.rules", 2, "/nonexist"),
        ('[prometheus]\nrules = "/nonexist"', "prometheus.rules", 2, "/nonexist"),
        (CHANNEL + 'url_file = "/nonexist"', "alerts.channels.x.url_file", 3, "/nonexist"),
        (CHANNEL + 'url = "http://a"\nkeys_file = "/nonexist"', "alerts.channels.x.keys_file", 4, "/nonexist"),
        (CHANNEL + 'url = "http://a"\ntemplate = "/nonexist"', "alerts.channels.x.template", 4, "/nonexist"),
        (CHANNEL.replace("webhook", "apprise") + 'url = "ftp://x/secret"', "alerts.channels.x.url", 3, "none that Apprise"),
        ('[daemon]\naudit_syslog = "foo"', "daemon.audit_syslog", 2, "no address of syslog"),
        ("[diagnostics]\ndeadline_s = [1.0]", "diagnostics.deadline_s", 2, "four positive"),
    ],
)  # fmt: skip
def test_what_the_daemon_would_refuse_at_its_start(tmp_path: Path, text: str, key: str, line: int, words: str) -> None:
    if "template" in text:
        text = text.replace('"webhook"', '"apprise"').replace("http://a", "json://a")
    error = checked(tmp_path, text)
    assert (error.key, error.line) == (key, line) and words in error.message


@pytest.mark.parametrize(
    ("text", "key", "line", "words"),
    [
        ('[host]\nmounts = ["data"]', "host.mounts", 2, "not absolute"),
        ('[checks.fans]\nperiod_s = 9', "checks.fans.command", 1, "is missing"),
        ('rules = "/nonexist"', "rules", 1, "/nonexist"),
    ],
)  # fmt: skip
def test_what_the_agent_would_refuse_at_its_start(tmp_path: Path, text: str, key: str, line: int, words: str) -> None:
    error = checked(tmp_path, text, "--agent")
    assert (error.key, error.line) == (key, line) and words in error.message


def test_what_is_wrong_inside_a_named_file_names_that_file(tmp_path: Path) -> None:
    template, config = tmp_path / "words.txt", tmp_path / "here.toml"
    template.write_text("title\n${nonsense}\n")
    config.write_text(f'{CHANNEL.replace("webhook", "apprise")}url = "json://a"\ntemplate = "{template}"\n')
    error = CliRunner().invoke(cli, ["config", "check", "--config", str(config)]).exception
    assert isinstance(error, UserError) and f"{template}:2: nonsense" in str(error)


def test_a_file_with_all_that_is_named_there_is_good(tmp_path: Path) -> None:
    for name, text in (("tokens", f"ada {'0' * 64}"), ("url", "http://a.example.org"), ("words.txt", "title\ntext")):
        (tmp_path / name).write_text(text + "\n")
        (tmp_path / name).chmod(0o600)
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "site.toml").write_text("")
    config = tmp_path / "here.toml"
    config.write_text(
        f'[daemon]\naudit_syslog = "/dev/log"\n[judgement]\nrules = "{tmp_path}/rules"\n'
        f'[page]\nlisten = "127.0.0.1:9479"\ntokens = "{tmp_path}/tokens"\nracks = "^(r.)"\n'
        f'{CHANNEL}url_file = "{tmp_path}/url"\ntemplate = "{tmp_path}/words.txt"\n'
    )
    found = CliRunner().invoke(cli, ["config", "check", "--config", str(config)])
    assert (found.output.splitlines()[0], found.exit_code) == (f"{config}: good", 0)


def told(folder: Path, text: str) -> list[str]:
    path = folder / "here.toml"
    path.write_text(text + "\n")
    found = CliRunner().invoke(cli, ["config", "check", "--config", str(path)])
    assert found.exit_code == 0 and ": good" in found.output.splitlines()[0]
    return [line.strip() for line in found.output.splitlines()[1:]]


def test_the_policy_is_told_in_sentences(tmp_path: Path) -> None:
    text = (
        '[modes.partitions.gpu]\ndrain = "act"\nrestart = "suggest"\n[modes.partitions.gpu.causes.network_fabric]\n'
        'drain = "observe"\n[limits]\nkeep_healthy = 2\n'
    )
    assert told(tmp_path, text) == [
        "Partition gpu: drains bad nodes at once; suggests to restart or hold jobs and asks for at most 2 h.",
        "Partition gpu, cause network_fabric: drains nothing.",
        "Other partitions: drains nothing; restarts nothing.",
        "At most 8 nodes and 10% of a partition (but one) are drained by Sentinel at once, 6 in an hour; it always leaves "
        "2 usable nodes of each partition. What a person drains is not limited.",
        "Under one switch at most 4; 3 of its nodes failing within 1 min wait until fewer are bad or a person has looked.",
        "5 nodes failing within 1 min stop all drains and restarts until fewer are bad or a person has looked.",
        "Nodes in a maintenance reservation are not drained before it ends.",
        "Only jobs whose comment asks for it are restarted.",
    ]


@pytest.mark.parametrize(("share", "words"), [("0.999", "99.9%"), ("0.07", "7%"), ("0.3333333", "33.33333%")])
def test_a_limit_is_not_rounded(tmp_path: Path, share: str, words: str) -> None:
    text = f'[modes.default]\ndrain = "act"\n[limits]\ndrain_fraction = {share}\n'
    assert any(f"At most 8 nodes and {words} of a partition" in line for line in told(tmp_path, text))


def test_a_policy_that_changes_nothing_says_so(tmp_path: Path) -> None:
    assert told(tmp_path, "")[-1] == "So nothing is changed anywhere: plans are made and shown."


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[limits]\ndrain_fraction = 1.0\nkeep_healthy = 0", "limits.keep_healthy", "all nodes of a partition"),
        ("[modes.default.causes.gpu_memory]\n", "modes.default.causes.gpu_memory", "is no cause"),
        ('[modes.default.causes.disk_full]\ndrain = "ask"', "modes.default.causes.disk_full.drain", "'ask'"),
        ("[modes]\napproval_s = 1", "modes.approval_s", "below"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, key: str, words: str) -> None:
    error = checked(tmp_path, text)
    assert error.key == key and error.line is not None and words in error.message


@pytest.mark.parametrize("words", [(), ("--agent",)])
def test_a_folder_for_rules_that_holds_none_is_said(tmp_path: Path, words: tuple[str, ...]) -> None:
    """What lies there under another name (rules.yaml, rules.toml.new) would be read by nobody."""
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "own.yaml").write_text("")
    path, key = tmp_path / "here.toml", f'rules = "{tmp_path}/rules"\n'
    path.write_text(key if words else f"[judgement]\n{key}")
    found = CliRunner().invoke(cli, ["config", "check", "--config", str(path), *words])
    assert found.exit_code == 0 and "rules holds no rules" in found.output.replace("\n", " "), found.output
