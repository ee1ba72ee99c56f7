"""Any user of a node may write into DCGM's host engine at its port (``dcgmi test --inject``): alone it convicts nobody."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World
from made_records import AT, evidence, incident
from shipped import shipped_rules

from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.adapters.gpu.engine_owner import EngineOwner
from sentinel.agent.health.level1 import verdict_of
from sentinel.agent.health.verdict import VerdictKeeper
from sentinel.agent.probes.diagnose import diagnose
from sentinel.classify.verdict import classify
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import RECOVERY_ACTION, REMAP_FAILURE, Gpu, Sample, sample_from
from sentinel.hook import convicts
from sentinel.model.changes import of_users_words
from sentinel.model.records import Evidence, Kind, Source, Verdict, Where
from sentinel.model.vocabulary import OPEN_ENGINE

RULES = shipped_rules()
LATER = AT + timedelta(seconds=2)
XIDS = ((0, 79, int(LATER.timestamp() * 1e6)),)


def sample(
    closed: bool = False, via: str = "dcgm", events: tuple[tuple[int, int, int], ...] = (), **fields: int
) -> Sample:
    numbers = {150: 40, 155: 75, 203: 0, RECOVERY_ACTION: 0, REMAP_FAILURE: 0}
    gpus = [Gpu(n, f"GPU-{n}", f"0000:0{n}:00.0", n, 1, numbers) for n in range(8)]
    gpus[0] = replace(gpus[0], fields={**numbers, **{int(name[1:]): value for name, value in fields.items()}})
    return Sample(LATER, via, tuple(gpus), events, closed=closed)


def read(made: Sample) -> tuple[DcgmReader, list[Evidence]]:
    reader = DcgmReader("n1", RULES.convictions, promised=8)
    reader.read(replace(sample(made.closed, made.via), at=AT))
    return reader, reader.read(made)


def judged(*items: Evidence) -> Verdict:
    return classify(incident(*items), rules=RULES, now=LATER)


KERNEL_XID = replace(evidence(Kind.XID, source=Source.KERNEL, node="n1", data={"xid": 79}), where=Where("n1", gpu=0))


async def test_an_injected_xid_drains_no_node_and_stops_no_job(world: Callable[..., World]) -> None:
    there = world(nodes=12)
    victim = there.slurm.jobs[there.job]
    _, found = read(sample(events=XIDS))
    daemon = Daemon(there, [FakeSink()])
    await daemon.fleets.take()
    await daemon.observe(found)
    await daemon.quiet()
    await daemon.pass_time(60.0)
    assert [name for name, node in there.slurm.nodes.items() if node.drained] == [] and victim.restarts == 0


async def test_what_the_kernel_says_as_well_drains_the_node_at_once(world: Callable[..., World]) -> None:
    there = world(nodes=12)
    _, found = read(sample(events=XIDS))
    daemon = Daemon(there, [FakeSink()])
    await daemon.fleets.take()
    await daemon.observe([*found, replace(KERNEL_XID, at=LATER)])
    await daemon.quiet()
    await daemon.pass_time(60.0)
    assert [name for name, node in there.slurm.nodes.items() if node.drained] == ["n1"]
    assert there.slurm.jobs[there.job].restarts == 1


@pytest.mark.parametrize("fields", [{"_1523": 2}, {"_395": 1}])
def test_an_injected_field_lets_no_prolog_refuse(fields: dict[str, int], tmp_path: Path) -> None:
    for made, believed in (
        (sample(**fields), False),
        (sample(True, **fields), True),
        (sample(via="nvml", **fields), True),
    ):
        reader, found = read(made)
        assert bool(reader.facts()) is believed and reader.doubted is not believed and len(found) == 1
        assert (judged(*found).drain == ("n1",)) is believed
        keeper = VerdictKeeper(tmp_path, tmp_path, "b", reader.facts, lambda: None, RULES)
        keeper.consider(found[0])
        assert (keeper.now().word == "BAD") is believed


def test_the_node_is_a_suspect_until_something_else_agrees() -> None:
    _, found = read(sample(events=XIDS))
    alone = judged(*found)
    assert (alone.drain, alone.suspect) == ((), ("n1",))
    _, both = read(sample(events=XIDS, _1523=2, _395=1))
    assert len(both) == 3 and judged(*both).drain == (), "one user may have written all of it"
    by_driver = replace(both[-1], id="nvml", data={"field": REMAP_FAILURE}, source=Source.NVML)
    assert judged(*both, by_driver).drain == ("n1",)
    assert judged(*found, KERNEL_XID).drain == ("n1",)
    assert judged(KERNEL_XID).drain == ("n1",)


def test_what_only_an_open_engine_says_counts_as_what_users_programs_print() -> None:
    """Three of these would make a lemon of a node, and two jobs of one user a fault of the cluster."""
    fields = {f"_{REMAP_FAILURE}": 1}
    _, told = read(sample(**fields))
    _, believed = read(sample(True, **fields))
    assert told and of_users_words(judged(*told))
    assert not of_users_words(judged(*told, KERNEL_XID)) and not of_users_words(judged(*believed))


def test_one_that_advises_agrees_with_what_the_machine_says_and_not_with_its_like() -> None:
    links = [replace(evidence(kind, source=Source.DCGM, node="n1"), data={OPEN_ENGINE: True}, id=kind)
             for kind in ("nvlink_errors", "fabric_manager")]  # fmt: skip
    assert judged(*links).drain == ()
    assert judged(links[0], evidence(Kind.XID, source=Source.KERNEL, node="n1", data={"xid": 74})).drain == ("n1",)


def test_what_an_open_engine_said_is_said_again_by_one_that_is_believed() -> None:
    reader, first = read(sample(_395=1, _396=1))
    again = DcgmReader("n1", RULES.convictions, 8, reader.state)
    told = again.read(replace(sample(True, _395=1, _396=1), at=LATER + timedelta(seconds=1)))
    assert [item.kind for item in told] == ["row_remap_failure"], "the other convicts nobody"
    assert [OPEN_ENGINE in item.data for item in (*first, *told)] == [True, True, False]
    assert [fact.code for fact in again.facts()] == ["row_remap_failure"]


@pytest.mark.parametrize("closed_to_users", [False, True])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("there", [{0: 1, 1: 4}, {0: 1}])
def test_a_gpu_that_an_open_engine_tells_as_lost_lets_no_prolog_refuse(
    monkeypatch: pytest.MonkeyPatch, there: dict[int, int], closed: bool, closed_to_users: bool
) -> None:
    monkeypatch.setattr(Dcgmi, "check", lambda _: ())
    monkeypatch.setattr(
        Dcgmi, "gpus", lambda _: [{"id": n, "uuid": f"GPU-{n}", "status": status} for n, status in there.items()]
    )
    monkeypatch.setattr(Dcgmi, "diagnose", lambda *_, **__: (255, b""))
    monkeypatch.setattr(EngineOwner, "is_closed", lambda _: closed)
    arguments = {
        "node": "n1",
        "level": 1,
        "promised": 2,
        "dcgmi": "",
        "host": "",
        "deadline_s": 9.0,
        "tells_missing": True,
    }
    answer = diagnose({**arguments, "closed_to_users": closed_to_users})
    lost, _ = answer["evidence"]
    believed = closed or closed_to_users
    assert (lost["kind"], lost["data"].get(OPEN_ENGINE)) == ("gpu_lost", None if believed else True)
    assert any(map(convicts, answer["evidence"])) is believed
    assert (verdict_of(answer)[0] == "BAD") is believed


def test_an_engine_that_lists_no_gpu_is_no_proof_that_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dcgmi, "check", lambda _: ())
    monkeypatch.setattr(Dcgmi, "gpus", lambda _: [])
    monkeypatch.setattr(Dcgmi, "diagnose", lambda *_, **__: (0, b""))
    arguments = {"node": "n1", "level": 1, "promised": 8, "dcgmi": "", "host": "", "deadline_s": 9.0}
    answer = diagnose({**arguments, "tells_missing": True, "closed_to_users": True})
    assert (answer["result"], [item["kind"] for item in answer["evidence"]]) == ("inconclusive", ["unreadable"])
    assert verdict_of(answer)[0] == "UNKNOWN"


def test_an_engine_is_closed_only_where_nobody_else_may_write_to_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "engine"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        for mode, closed in ((0o755, True), (0o700, True), (0o775, False), (0o777, False)):
            os.chmod(path, mode)
            assert EngineOwner(host="", path=str(path), account="").is_closed() is closed, stat.filemode(mode)
    assert not EngineOwner(host="", path=str(tmp_path / "none"), account="").is_closed()
    assert not EngineOwner(host="127.0.0.1:5555", path="", account="").is_closed()


def test_a_sample_that_does_not_say_so_is_of_an_open_engine() -> None:
    assert [sample_from({"via": via, "gpus": [], **more}, AT).open_engine
            for via, more in (("dcgm", {}), ("dcgmi", {"closed": "yes"}), ("dcgm", {"closed": True}), ("nvml", {}))] == [
        True, True, False, False,
    ]  # fmt: skip
