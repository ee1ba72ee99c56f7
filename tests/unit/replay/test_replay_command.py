"""``sentinel bundle`` and ``sentinel replay`` over a store that a daemon wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from core_daemon import Daemon, FakeSink
from core_records import evidence
from core_world import World

from sentinel.cli import cli
from sentinel.errors import UserError
from sentinel.model.records import Kind

BUS = evidence(Kind.XID, node="n1", data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid (PCI:0000:3b:00): 79, pid=7")
LONG = "--since=36500d"  # the worlds of the tests have a time of their own


@pytest.fixture
async def store(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SENTINEL_CONFIG", raising=False)
    there = world(nodes=20)
    daemon = Daemon(there, [FakeSink()])
    await daemon.start()
    assert await daemon.observe([BUS])
    await daemon.quiet()
    return str(there.store.engine.url.database)


def call(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(cli, list(arguments))
    if isinstance(found.exception, (UserError, click.ClickException)):
        raise found.exception
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.output


def counts(output: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(output.splitlines()[-1])
    return found


def test_a_store_and_its_bundle_replay_the_same(store: str, tmp_path: Path) -> None:
    same = {"incidents": 1, "same": 1, "different": 0, "unreadable": 0}
    status, output = call("replay", store, LONG, "--json")
    assert (status, counts(output)) == (0, same)
    _, told = call("bundle", "n1", LONG, "--store", store, "--out", "plain")
    assert "1 incident" in told
    _, told = call("bundle", LONG, "--store", store, "--out", "hidden", "--anonymise")
    assert "names replaced" in told and "only people recognise" in told
    for bundle in ("plain", "hidden"):
        status, output = call("replay", bundle, "--json")
        assert (status, counts(output)) == (0, same), output


def test_a_difference_is_an_exit_status_and_says_why(store: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(
        '[limits]\ndrain_count = 0\n[modes.default]\ndrain = "act"\nrestart = "act"\n'
    )
    status, output = call("replay", store, LONG, "--policy", "policy.toml")
    assert status == 1 and "refusal: none then, drain-budget now" in output
    status, output = call("replay", store, LONG, "--policy", "policy.toml", "--json")
    first, *_ = map(json.loads, output.splitlines())
    assert status == 1 and first["now"]["refusal"] == "drain-budget" and first["reasons"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "nowhere"], "is not there"), (["replay", "."], "holds no store"),
        (["replay", "text"], "neither a bundle"),
        (["replay", "STORE", "--since", "7"], "is no time"), (["bundle", "ghost", "--store", "STORE"], "names node ghost"),
        (["replay", "STORE", "--since", "1s"], "opened in that time"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_is_said(store: str, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UserError, match=words):
        call(*[store if argument == "STORE" else argument for argument in arguments])


def test_a_store_is_only_read(store: str) -> None:
    before = Path(store).read_bytes()
    call("replay", store, LONG)
    assert Path(store).read_bytes() == before
