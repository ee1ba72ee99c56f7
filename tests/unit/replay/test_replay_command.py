"""``sentinel bundle`` and ``sentinel replay`` over a store that a daemon wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World
from made_records import evidence

from sentinel.adapters.store.store import Store
from sentinel.cli import cli
from sentinel.cli.recordings.sources import recording_of
from sentinel.errors import Unavailable, UserError
from sentinel.model.records import Kind
from sentinel.replay.bundle import lines_of, write_bundle

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


def counts(output: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(output.splitlines()[-1])
    return found


def test_a_store_and_its_bundle_replay_the_same(store: str, tmp_path: Path) -> None:
    done = {"incidents": 1, "drains": 1, "restarts": 1, "holds": 0, "refused": 0}
    same = {"incidents": 1, "same": 1, "different": 0, "not_compared": 0, "unreadable": 0, "was": done, "now": done}
    status, output = call("replay", store, LONG, "--json")
    assert (status, counts(output)) == (0, same)
    _, told = call("bundle", "n1", LONG, "--store", store, "--out", "plain")
    assert "1 incident" in told
    _, told = call("bundle", LONG, "--store", store, "--out", "hidden", "--anonymise")
    assert "names replaced" in told and "only people recognise" in told
    for bundle in ("plain", "hidden"):
        status, output = call("replay", bundle, "--json")
        assert (status, counts(output)) == (0, same), output
    assert "now: 1 incident, 1 drain, 1 restart, 0 holds, 0 refused" in call("replay", "plain")[1]


def test_a_difference_is_an_exit_status_and_says_why(store: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(
        '[limits]\ndrain_count = 0\n[modes.default]\ndrain = "act"\nrestart = "act"\n'
    )
    status, output = call("replay", store, LONG, "--policy", "policy.toml")
    assert status == 1 and "refusal: none then, drain-budget now" in output
    status, output = call("replay", store, LONG, "--policy", "policy.toml", "--json")
    first, *_ = map(json.loads, output.splitlines())
    assert status == 1 and first["now"]["refusal"] == "drain-budget" and first["reasons"]


def test_two_policies_are_compared_over_the_same_past(store: str, tmp_path: Path) -> None:
    acting = '[modes.default]\ndrain = "act"\nrestart = "act"\n'
    (tmp_path / "old.toml").write_text(f"[limits]\ndrain_count = 0\n{acting}")
    (tmp_path / "new.toml").write_text(acting)
    status, output = call("replay", store, LONG, "--against", "old.toml", "--policy", "new.toml", "--json")
    first, last = map(json.loads, output.splitlines())
    assert status == 1 and (first["was"]["refusal"], first["now"]["refusal"]) == ("drain-budget", "")
    assert (last["was"]["drains"], last["now"]["drains"]) == (0, 1)
    assert call("replay", store, LONG, "--against", "old.toml", "--policy", "old.toml")[0] == 0


SACCT = """\
4711|ada|train|FAILED|1:0|2026-03-01T00:00:00|2026-03-01T10:00:05|cpu=64,gres/gpu=16,node=2|n[1-2]|4711
4712|bob|train|FAILED|1:0|2026-03-02T00:00:00|2026-03-03T00:00:00|cpu=64,gres/gpu=8,node=1|n4|4712
"""


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SENTINEL_CONFIG", raising=False)
    folder = tmp_path / "logs"
    (folder / "n1").mkdir(parents=True)
    (folder / "sacct.txt").write_text(SACCT)
    (folder / "n1" / "kern.log").write_text(f"2026-03-01T10:00:00+00:00 n1 kernel: {BUS.text}\n")
    (folder / "train-4711.out").write_text(
        "2026-03-01 10:00:02 [rank3]: torch.AcceleratorError: CUDA error: unknown error\n"
    )
    (folder / "slurm-4712.out").write_text("Traceback (most recent call last):\nIndexError: list index out of range\n")
    return folder


def test_logs_with_times_show_what_would_have_been_done(logs: Path) -> None:
    """No incident was recorded: each is a difference, and the log without times has those of its job."""
    status, output = call("replay", str(logs), "--json")
    *found, last = map(json.loads, output.splitlines())
    assert status == 1 and last["was"]["incidents"] == 0
    gpu, bug = found
    assert (gpu["now"]["cause"], gpu["now"]["drain"]) == ("gpu_fallen_off_bus", ["n1"])
    assert "drain n1" in gpu["now"]["steps"] and "release 4711" in gpu["now"]["steps"]
    assert "nothing was decided then; now: drain n1" in gpu["reasons"][0]
    assert (bug["now"]["cause"], bug["now"]["steps"], bug["at"][:10]) == ("user_code", ["hold 4712"], "2026-03-03")


def test_what_is_no_log_among_logs_is_counted_and_passed_over(logs: Path) -> None:
    (logs / "core.4711").write_bytes(b"\x7fELF\x01\x02\x03" * 1000)
    status, output = call("replay", str(logs), "--json")
    *found, last = map(json.loads, output.splitlines())
    assert status == 1 and len(found) == 2 and last["unreadable"] == 1


def test_logs_show_the_effect_of_a_budget_alone(logs: Path, tmp_path: Path) -> None:
    acting = '[modes.default]\ndrain = "act"\nrestart = "act"\n'
    (tmp_path / "old.toml").write_text(acting)
    (tmp_path / "new.toml").write_text(f"[limits]\ndrain_count = 0\n{acting}")
    words = ["replay", str(logs), "--against", str(tmp_path / "old.toml"), "--policy"]
    assert call(*words, str(tmp_path / "old.toml"))[0] == 0
    status, output = call(*words, str(tmp_path / "new.toml"), "--json")
    *found, last = map(json.loads, output.splitlines())
    assert status == 1 and "not done now: drain n1 (Waits (drain-budget)" in found[0]["reasons"][0], output
    # The job is restarted without the node that stays in service, as often as before, and nothing else is judged.
    assert last["was"] == {"incidents": 2, "drains": 1, "restarts": 1, "holds": 1, "refused": 0}
    assert last["now"] == {**last["was"], "drains": 0} and last["different"] == 1


def test_what_sacct_printed_is_bounded_over_all_its_files(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (logs / "sacct_2.txt").write_text(SACCT)
    size = (logs / "sacct.txt").stat().st_size + len(SACCT)
    monkeypatch.setattr("sentinel.adapters.slurm.accounting.MOST_BYTES", size)
    call("replay", str(logs))
    monkeypatch.setattr("sentinel.adapters.slurm.accounting.MOST_BYTES", size - 1)
    with pytest.raises(UserError, match="and those before it are larger"):
        call("replay", str(logs))


def test_logs_without_accounting_and_without_times_are_not_judged_at_a_guess(logs: Path) -> None:
    (logs / "sacct.txt").unlink()
    status, output = call("replay", str(logs), "--json")
    *found, last = map(json.loads, output.splitlines())
    assert status == 1 and last["unreadable"] == 1  # the log of 4712
    assert [one["now"]["cause"] for one in found] == ["gpu_fallen_off_bus"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "nowhere"], "is not there"), (["replay", "."], "holds no store .* and no logs"),
        (["replay", "text"], "neither a bundle"),
        (["replay", "STORE", "--since", "7"], "is no time"),
        (["bundle", "ghost", "--store", "STORE"], "opened since .* names node ghost, and none has that id"),
        (["replay", "STORE", "--since", "1s"], "opened since"),
        (["replay", "STORE", "--policy", "nothing.toml"], "nothing.toml: cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_replayed_is_said(store: str, tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UserError, match=words) as refused:
        call(*[store if argument == "STORE" else argument for argument in arguments])
    assert "--config" not in refused.value.fix, "there is no such option"


def test_a_database_that_is_not_reached_is_told_from_a_full_disk() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1") as refused:
        CliRunner().invoke(cli, ["replay", "postgresql://u:secret@127.0.0.1:1/x"], catch_exceptions=False)
    assert "server runs" in refused.value.fix and "secret" not in str(refused.value)


@pytest.mark.parametrize("what", ["n1", "ghost"])
def test_no_part_of_a_bundle_or_of_logs_is_exported(store: str, logs: Path, what: str) -> None:
    """They are taken whole: who asks for one node would give away all of them."""
    call("bundle", LONG, "--store", store, "--out", "whole")
    for source in ("whole", str(logs)):
        with pytest.raises(UserError, match="taken whole"):
            call("bundle", what, "--store", source, "--out", "part")
    assert not Path("part").exists()


def test_no_time_is_picked_of_what_is_taken_whole(store: str, logs: Path) -> None:
    call("bundle", LONG, "--store", store, "--out", "whole")
    for source in ("whole", str(logs)):
        for words in (["replay", source], ["bundle", "--store", source, "--out", "part"]):
            with pytest.raises(UserError, match="--since would change nothing"):
                call(*words, "--since", "7d")
    with pytest.raises(UserError, match="--config would change nothing"):
        call("bundle", LONG, "--store", store, "--config", "sentinel.toml", "--out", "part")


def test_a_store_is_only_read(store: str) -> None:
    before = Path(store).read_bytes()
    call("replay", store, LONG)
    assert Path(store).read_bytes() == before


def test_incidents_beside_the_one_that_is_exported_are_no_differences(store: str) -> None:
    """Of a bundle that has their evidence, and not what was decided of it."""
    whole = recording_of(store, since=datetime(2000, 1, 1, tzinfo=UTC))
    bare = tuple(replace(one, verdict=None, plan=None, steps=()) for one in whole.incidents)
    write_bundle(Path("beside"), lines_of(replace(whole, incidents=bare)), anonymised=False)
    status, output = call("replay", "beside")
    assert status == 0 and "0 incidents: 0 the same, 0 differ" in output, output
    assert "1 more incident not compared: what was decided then is not in beside" in output
    status, output = call("replay", "beside", "--json")
    assert status == 0 and counts(output)["not_compared"] == 1 and counts(output)["different"] == 0
    _, told = call("bundle", "--store", "beside", "--out", "again")
    assert "0 incidents" in told and "1 incident beside, of which it has evidence, but not what was decided" in told


def test_an_incident_is_exported_by_the_beginning_of_its_id_and_as_the_last_one(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = recording_of(store, since=datetime(2000, 1, 1, tzinfo=UTC)).incidents[0].incident.id
    for what in ("last", name, name[:4]):
        (Path(what)).mkdir()
        _, told = call("bundle", what, "--store", store, "--out", f"{what}/x")
        assert "1 incident" in told
        assert [one.incident.id for one in recording_of(f"{what}/x", since=datetime.now(UTC)).incidents] == [name]
    call("bundle", "last", "--store", store)
    assert list(Path().glob(f"sentinel-{name}-*.bundle"))
    with pytest.raises(UserError, match="--since would change nothing"):
        call("bundle", "last", "--store", store, LONG)
    monkeypatch.setattr(Store, "knows_node", lambda _, node: node == name[:4])
    with pytest.raises(UserError, match="names node"):
        call("bundle", name[:4], "--store", store, "--out", "y")
    with pytest.raises(UserError, match="names node"):  # as short as a node's name
        call("bundle", name[:3], "--store", store, "--out", "y")


def test_a_beginning_that_several_ids_have_is_refused(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "ids_that_begin", lambda *_: ["abcd1", "abcd2"])
    with pytest.raises(UserError, match="several incidents begin with abcd: abcd1, abcd2"):
        call("bundle", "abcd", "--store", store, "--out", "y")
