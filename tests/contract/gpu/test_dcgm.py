"""One suite for DCGM's host engine over its bindings: the double, and a real one where it is installed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes.dcgm_double import DOUBLE, State
from nodes.installed_dcgm import REAL, RealDcgm

from sentinel.adapters.gpu.dcgm import NOT_VALID, Bindings, DcgmRefusal, HostEngine
from sentinel.detect.activity import GpuActivity
from sentinel.errors import Unavailable
from sentinel.evidence.gpu_samples import (
    DRAM_ACTIVE,
    FAST,
    GPU_UTILISATION,
    POWER_W,
    TENSOR_ACTIVE,
    TRAFFIC,
    WATCHED,
)


@pytest.fixture
def double(state: State) -> Iterator[HostEngine]:
    engine = HostEngine(Bindings(str(DOUBLE)), host="127.0.0.1:5555")
    yield engine
    engine.close()


@pytest.fixture(params=["double", "real"])
def engine(request: pytest.FixtureRequest) -> Iterator[HostEngine]:
    if request.param == "double":
        yield request.getfixturevalue("double")
        return
    if not REAL:
        pytest.skip("SENTINEL_DCGM names no installed DCGM")
    request.getfixturevalue("clean_imports")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    installed = RealDcgm(request.getfixturevalue("tmp_path"), port)
    for name, value in installed.environment.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)
    installed.start()
    engine = HostEngine(Bindings(installed.bindings), host=installed.where["host"])
    yield engine
    engine.close()
    installed.kill()


def test_every_gpu_has_an_identity_and_a_status(engine: HostEngine) -> None:
    gpus = engine.gpus()
    assert gpus
    assert all(gpu["uuid"].startswith("GPU-") and ":" in gpu["pci"] and gpu["status"] in range(8) for gpu in gpus)
    assert engine.gpus() == gpus, "asked again"
    assert len({gpu["uuid"] for gpu in gpus}) == len(gpus)


def test_gpus_are_listed_anew_when_those_that_may_be_used_change(
    engine: HostEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    discovery, asked = engine._system.discovery, []
    monkeypatch.setattr(discovery, "GetAllGpuIds", lambda ask=discovery.GetAllGpuIds: asked.append(1) or ask())
    before = engine.gpus()
    assert engine.gpus() == before and len(asked) == 1
    usable = discovery.GetAllSupportedGpuIds()
    monkeypatch.setattr(discovery, "GetAllSupportedGpuIds", lambda: usable[1:])
    assert [gpu["id"] for gpu in engine.gpus()] == [gpu["id"] for gpu in before] and len(asked) == 2


def test_watched_fields_come_with_their_time(engine: HostEngine) -> None:
    ids = [gpu["id"] for gpu in engine.gpus() if gpu["status"] == 1]
    engine.watch("fields", ids, WATCHED)
    engine.refresh()
    latest = engine.latest("fields")
    assert set(latest) == set(ids)
    for fields in latest.values():
        temperature, at_us = fields[150]
        assert temperature is None or 0 < temperature < 130
        assert abs(at_us / 1e6 - time.time()) < 60


def test_blank_is_none_whatever_the_type(engine: HostEngine) -> None:
    """1002 and 1004 are of the profiling module; without it the others are watched all the same."""
    ids = [gpu["id"] for gpu in engine.gpus() if gpu["status"] == 1]
    engine.watch("fields", ids, [1002, 1004, 230, 150])
    engine.refresh()
    assert all(150 in fields for fields in engine.latest("fields").values())
    for fields in engine.latest("fields").values():
        for value, _ in fields.values():
            assert value is None or isinstance(value, str) or abs(value) < 1e14


def test_events_are_told_once(engine: HostEngine) -> None:
    ids = [gpu["id"] for gpu in engine.gpus() if gpu["status"] == 1]
    engine.watch("events", ids, [230])
    engine.refresh()
    engine.events("events")
    assert engine.events("events") == []


def test_health_answers_by_entity_and_code(engine: HostEngine) -> None:
    ids = [gpu["id"] for gpu in engine.gpus() if gpu["status"] == 1]
    engine.watch("fields", ids, FAST)
    try:
        engine.set_health("fields")
    except DcgmRefusal as error:
        assert error.code == -33  # an optional module is not loaded
        return
    for incident in engine.health("fields"):
        assert {"entity_group", "entity", "system", "health", "code", "text"} <= set(incident)


def test_fields_of_the_profiling_module_are_there_or_it_is_told_why_not(engine: HostEngine) -> None:
    ids = [gpu["id"] for gpu in engine.gpus() if gpu["status"] == 1]
    engine.watch("fields", ids, FAST)
    why = engine.watch_if_possible("traffic", ids, TRAFFIC)
    engine.refresh()
    assert engine.latest("fields"), "whatever came of it, the rest goes on"
    if why is None:
        for readings in engine.latest("traffic").values():
            values = [value for number, (value, _) in readings.items() if number in (TENSOR_ACTIVE, DRAM_ACTIVE)]
            assert all(value is None or 0.0 <= value <= 1.0 for value in values)


def test_the_same_name_twice_is_refused_as_an_error_of_ours(engine: HostEngine) -> None:
    ids = [gpu["id"] for gpu in engine.gpus() if gpu["status"] == 1]
    engine.watch("twice", ids, FAST)
    with pytest.raises(DcgmRefusal):
        engine.watch("twice", ids, FAST)


def test_every_xid_with_its_own_time(double: HostEngine, state: State) -> None:
    double.watch("events", [0, 1, 2, 3], [230])
    assert double.events("events") == []
    times = [state.xid(2, 31), state.xid(2, 79)]
    assert double.events("events") == [(2, 31, times[0]), (2, 79, times[1])]
    double.watch("fields", [2], [230])
    assert double.latest("fields")[2][230][0] == 79, "the last one stays for ever"


def test_a_release_without_the_profiling_fields(double: HostEngine, state: State) -> None:
    state.write(unknown_fields=list(TRAFFIC))
    assert double.watch_if_possible("traffic", [0], TRAFFIC) is not None
    state.write(unknown_fields=[TENSOR_ACTIVE])
    assert double.watch_if_possible("some", [0], TRAFFIC) is None, "what it has is watched"
    assert TENSOR_ACTIVE in double.unknown_fields


def test_gpus_of_the_lab_show_what_their_rank_does(double: HostEngine, state: State) -> None:
    """Computing, waiting for others, idle once the rank is stopped or gone: in the words of the rule that judges them."""
    folder = state.path.parent / "nvme" / ".gpus"
    folder.mkdir(parents=True)
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    fields = (GPU_UTILISATION, POWER_W, TENSOR_ACTIVE, DRAM_ACTIVE)
    double.watch("fields", [0, 1], fields)

    def word(gpu: int, *, until_s: float) -> str:
        told = {"pid": rank.pid, "gpus": [1], "until": time.time() + until_s}
        (folder / "0.json").write_text(json.dumps(told))
        sys.modules["fake_state"]._work["read_s"] = 0.0  # type: ignore[attr-defined]
        used, power, tensor, dram = (double.latest("fields")[gpu][number][0] for number in fields)
        traffic = max(tensor, dram) if tensor is not None and dram is not None else None
        return GpuActivity(gpu, used / 100, power, 612.0, traffic).word

    try:
        assert word(1, until_s=60.0) == "works"
        assert word(1, until_s=-1.0) == "spins"
        assert word(0, until_s=60.0) == "idle", "another's GPU"
        rank.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)
        assert word(1, until_s=-1.0) == "idle"
    finally:
        rank.kill()
        rank.wait()
    assert word(1, until_s=60.0) == "idle"


def test_a_profiling_module_in_other_hands(double: HostEngine, state: State) -> None:
    state.write(refused_watches={str(DRAM_ACTIVE): -34})
    double.watch("fields", [0], FAST)
    assert "-34" in (double.watch_if_possible("traffic", [0], TRAFFIC) or "")
    assert double.latest("fields")[0]
    state.write(engine="another")
    with pytest.raises(DcgmRefusal):  # a connection that is gone is no missing module
        double.watch_if_possible("again", [0], TRAFFIC)


def test_an_embedded_engine_is_never_started() -> None:
    with pytest.raises(ValueError, match="embedded"):
        HostEngine.__init__(object.__new__(HostEngine), None, host="", socket="")  # type: ignore[arg-type]


def test_an_engine_that_is_down(state: State) -> None:
    state.write(engine="down")
    with pytest.raises(DcgmRefusal) as caught:
        HostEngine(Bindings(str(DOUBLE)), host="127.0.0.1:5555")
    assert caught.value.code == NOT_VALID


def test_a_restarted_engine_needs_everything_again(double: HostEngine, state: State) -> None:
    double.watch("fields", [0], FAST)
    state.write(engine="another")
    with pytest.raises(DcgmRefusal) as caught:
        double.latest("fields")
    assert caught.value.code == NOT_VALID
    again = HostEngine(Bindings(str(DOUBLE)), host="127.0.0.1:5555")
    again.watch("fields", [0], FAST)
    assert again.latest("fields")[0]


def test_a_lost_gpu_is_still_listed_and_blank(double: HostEngine, state: State) -> None:
    state.content["gpus"][1]["status"] = "lost"
    state.write()
    assert [gpu["status"] for gpu in double.gpus()] == [1, 4, 1, 1]
    double.watch("fields", [0, 1], [150])
    latest = double.latest("fields")
    assert (latest[0][150][0], latest.get(1)) == (38, None)
    assert double.unwatched == {1}, "most releases refuse to watch it"
    double.set_health("fields")
    assert double.health("fields") == [], "and healthy, says health"


def test_after_a_fatal_xid_everything_is_blank(double: HostEngine, state: State) -> None:
    state.write(all_blank=True)
    double.watch("fields", [0, 1, 2, 3], WATCHED)
    assert {value for fields in double.latest("fields").values() for value, _ in fields.values()} == {None}


def test_health_incidents_stick(double: HostEngine, state: State) -> None:
    double.watch("fields", [0], FAST)
    state.write(health=[{"entity": 3, "code": 80, "system": 16, "health": 20}])
    assert [(i["entity"], i["code"]) for i in double.health("fields")] == [(3, 80)]
    state.write(health=[])
    assert len(double.health("fields")) == 1


def test_bindings_that_forgot_a_module(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_FAKE_DCGM_IMPORT", "broken")
    sys.modules.pop("pydcgm", None)
    assert Bindings(str(DOUBLE)).pydcgm


def test_no_bindings(tmp_path: Path, clean_imports: None) -> None:
    with pytest.raises(Unavailable, match="no DCGM bindings"):
        Bindings(str(tmp_path))


def test_bindings_that_do_not_import(tmp_path: Path, clean_imports: None) -> None:
    (tmp_path / "pydcgm.py").write_text("import dcgm_not_there\n")
    with pytest.raises(Unavailable, match="cannot be imported"):
        Bindings(str(tmp_path))
    sys.path.remove(str(tmp_path))


def test_fields_that_this_release_has_not_leave_the_others(double: HostEngine, state: State) -> None:
    state.write(unknown_fields=[346, 1507, 1523])
    double.watch("fields", [0, 1], WATCHED)
    double.watch("fast", [0, 1], FAST)
    assert double.unknown_fields == [346, 1507, 1523]
    latest = double.latest("fields")
    assert latest[0][150][0] == 38
    assert 1523 not in latest[0]
    for _ in range(3):  # each trial is taken back: an engine has room for 64 groups
        double.watch("fields", [0], [1523])
    assert double.latest("fields") == {}


def test_the_last_xid_stays_in_the_engine_and_is_told_once(double: HostEngine, state: State) -> None:
    at_us = state.xid(1, 79)
    double.watch("events", [0, 1], [230])
    told = [double.events("events") for _ in range(4)]
    assert told == [[(1, 79, at_us)], [], [], []]
    at_us = state.xid(1, 79)
    assert double.events("events") == [(1, 79, at_us)], "the same Xid at another time is another event"
