"""What the agent needs of DCGM's bindings, over the stand-in always and over a real engine when one is named.

SENTINEL_DCGM=FOLDER names an installed DCGM (see tests/support/nodes/installed_dcgm.py). What only a double can do (lose a
GPU, hang) is tested over the double alone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes.installed_dcgm import REAL, RealDcgm, bindings_below

from sentinel.adapters.gpu.dcgm import FOLDERS as INSTALLED
from sentinel.adapters.gpu.dcgm import NOT_VALID, Bindings, DcgmRefusal, HostEngine
from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.agent.probes.diagnose import diagnose
from sentinel.config.rules_files import load_convictions
from sentinel.detect.activity import GpuActivity
from sentinel.errors import Timeout, Unavailable
from sentinel.evidence.diagnostics import Answer, read_diagnostic
from sentinel.evidence.gpu_samples import (
    DRAM_ACTIVE,
    FAST,
    GPU_UTILISATION,
    POWER_W,
    TENSOR_ACTIVE,
    TRAFFIC,
    WATCHED,
)

RULES = load_convictions()

DOUBLE = Path(__file__).parents[3] / "deploy" / "lab" / "fake_dcgm"
FOLDERS = {DOUBLE, *bindings_below(REAL), *map(Path, INSTALLED)}


class State:
    """The file that the double reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {
            "gpus": [
                {
                    "index": n,
                    "uuid": f"GPU-{n:08x}",
                    "pci": f"0000:{0x1B + n:02x}:00.0",
                    "status": "ok",
                    "fields": {},
                    "xids": [],
                }
                for n in range(4)
            ],
            "refuse_s": 0,
        }
        self.write()

    def write(self, **changes: Any) -> None:
        self.content.update(changes)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.content))
        temporary.replace(self.path)

    @property
    def has_diagnostic(self) -> bool:
        return Path(f"{self.path}.diag").exists()

    def xid(self, gpu: int, xid: int) -> int:
        at_us = int(time.time() * 1e6)
        self.content["gpus"][gpu]["xids"].append({"xid": xid, "at_us": at_us})
        self.write()
        return at_us


@pytest.fixture
def clean_imports() -> Iterator[None]:
    """The double and the real bindings have the same module names: all of their folders are forgotten, since one that
    stayed would hold on to classes of the others."""
    before, path = set(sys.modules), list(sys.path)

    def forget(but: set[str]) -> None:
        for name in set(sys.modules) - but:
            if Path(str(getattr(sys.modules[name], "__file__", None) or "/")).parent in FOLDERS or name == "logger":
                del sys.modules[name]

    forget(set())
    yield
    forget(before)
    sys.path[:] = path


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_imports: None) -> State:
    monkeypatch.setenv("SENTINEL_FAKE_GPUS", str(tmp_path / "gpus.json"))
    return State(tmp_path / "gpus.json")


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


# ------------------------------------------------------------------------------------------------- both


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


def test_the_engine_tells_its_version(engine: HostEngine) -> None:
    assert "version" in engine.version()


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


# ------------------------------------------------------------------------------------------------- the double


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


# ------------------------------------------------------------------------------------------------- dcgmi


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[str]:
    """A port that listens as a host engine would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def dcgmi(state: State, listener: str) -> Dcgmi:
    return Dcgmi(str(DOUBLE / "dcgmi"), host=listener)


def test_dcgmi_names_its_gpus(dcgmi: Dcgmi) -> None:
    assert dcgmi.gpus()[2] == {"id": 2, "status": 1, "pci": "0000:1d:00.0", "uuid": "GPU-00000002"}


def test_dcgmi_takes_nothing_else_for_a_gpu(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a node with a single switch and a CPU; a GPU without attributes has no identity."""
    said = b"""2 GPUs found.
| GPU ID | Device Information                                                   |
| 0      | Name: NVIDIA GH200 480GB                                             |
|        | PCI Bus ID: 00000009:01:00.0                                         |
|        | Device UUID: GPU-a                                                   |
| 1      | Error: Cannot get device attributes for GPU.                         |
|        | Return: GPU is lost                                                  |
1 NvSwitch found.
| 8         |
1 CPU found.
| 0      | Name: Grace TH500                                                    |
"""
    monkeypatch.setattr(dcgmi, "run", lambda *_: (0, said))
    assert dcgmi.gpus() == [{"id": 0, "status": 1, "pci": "00000009:01:00.0", "uuid": "GPU-a"}, {"id": 1, "status": 4}]


RECORDED = Path(__file__).parents[2] / "support" / "nodes" / "dcgm_4_6"


@pytest.mark.parametrize(("name", "status"), [("discovery", 0), ("discovery_module_missing", 223)])
def test_all_gpus_are_listed_where_an_optional_module_is_missing(
    dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch, name: str, status: int
) -> None:
    said = (RECORDED / f"{name}.out").read_bytes()
    monkeypatch.setattr(dcgmi, "run", lambda *_: (status, said))
    assert [(gpu["id"], gpu["status"]) for gpu in dcgmi.gpus()] == [(n, 1) for n in range(8)]
    assert dcgmi.gpus()[7]["uuid"] == "GPU-00000007-1111-2222-3333-444444444447"


@pytest.mark.parametrize("cut", [0, 40, 400, 1500])
def test_a_list_that_is_not_whole_is_none(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    said = (RECORDED / "discovery.out").read_bytes()[:cut]
    monkeypatch.setattr(dcgmi, "run", lambda *_: (0, said))
    with pytest.raises(Unavailable):
        dcgmi.gpus()


def test_a_lost_gpu_is_named(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: list[str], _deadline_s: float) -> tuple[int, bytes]:
        return 0, (RECORDED / ("discovery_lost_all.out" if "-a" in arguments else "discovery_lost.out")).read_bytes()

    monkeypatch.setattr(dcgmi, "run", run)
    found = dcgmi.gpus()
    assert found[3] == {"id": 3, "status": 4}, "its name, address and UUID are DCGM's words for not known"
    assert [gpu["status"] for gpu in found].count(1) == 7


def test_gpus_of_a_detached_driver_are_named(dcgmi: Dcgmi, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: list[str], _deadline_s: float) -> tuple[int, bytes]:
        return 0, (
            RECORDED / ("discovery_detached_all.out" if "-a" in arguments else "discovery_detached.out")
        ).read_bytes()

    monkeypatch.setattr(dcgmi, "run", run)
    assert [(gpu["status"], gpu["pci"]) for gpu in dcgmi.gpus()][:2] == [
        (7, "00000000:1B:00.0"),
        (7, "00000000:2B:00.0"),
    ]


@pytest.mark.parametrize(
    ("name", "level", "status", "reason"),
    [
        ("l2_pcie_skipped", 2, 0, "no GPU passed pcie: skipped or without result"),
        ("l2_memory_plugin_missing", 2, 0, "tests are missing from the answer: memory"),
        ("l2_stopped", 2, 190, "the diagnostic was stopped"),
        ("l1_another_runs", 1, 222, "another diagnostic is running"),
        ("l1_detached", 1, 226, "All 8 requested GPUs are detached"),
    ],
)
def test_what_a_real_engine_answered_without_a_pass(name: str, level: int, status: int, reason: str) -> None:
    made = read_diagnostic((RECORDED / f"{name}.out").read_bytes(), status, level, range(8), convictions=RULES)
    assert made.answer is Answer.INCONCLUSIVE and reason in made.reason, made.reason


def test_an_engine_that_ended_meanwhile_is_no_pass(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dcgmi` would start an engine inside itself; its answer alone cannot be told from the real one's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = Dcgmi(str(DOUBLE / "dcgmi"), host=f"127.0.0.1:{server.getsockname()[1]}")
        run = made.run

        def ends(arguments: list[str], deadline_s: float) -> tuple[int, bytes]:
            answer = run(arguments, deadline_s)
            server.close()
            return answer

        monkeypatch.setattr(made, "run", ends)
        with pytest.raises(Unavailable, match="no DCGM host engine"):
            made.diagnose(1, None, deadline_s=60)


def test_dcgmi_samples(dcgmi: Dcgmi, state: State) -> None:
    state.xid(1, 63)
    made = dcgmi.sample([150, 1004, 1523])
    assert made["gpus"][0]["fields"] == {"150": 38, "1004": None, "1523": 0}
    assert made["last_xids"] == {1: 63}


def test_dcgmi_asks_for_no_field_that_it_has_not(dcgmi: Dcgmi, state: State) -> None:
    state.write(unknown_fields=[1507, 1523])
    (first, *_) = dcgmi.sample(WATCHED)["gpus"]
    assert first["fields"]["150"] == 38
    assert "1523" not in first["fields"]


@pytest.mark.parametrize(
    ("script", "level", "answer"),
    [
        ({}, 1, Answer.PASS),
        ({}, 4, Answer.PASS),
        ({"absent": ["pcie"]}, 2, Answer.INCONCLUSIVE),
        ({"errors": [{"test": "memory", "gpu": 3, "code": 52, "severity": 2}]}, 2, Answer.FAIL),
        ({"errors": [{"test": "software", "gpu": 1, "code": 29, "severity": 5}]}, 1, Answer.INCONCLUSIVE),
        ({"busy": True}, 1, Answer.INCONCLUSIVE),
        ({"truncate": 300}, 1, Answer.INCONCLUSIVE),
        ({"text_before": "[x][1] noise {\n"}, 1, Answer.PASS),
        ({"text_before": "Error: unable to establish a connection to the specified host: h\n"}, 1, Answer.INCONCLUSIVE),
        ({"status": 203}, 1, Answer.INCONCLUSIVE),
    ],
)
def test_dcgmi_diagnostics(dcgmi: Dcgmi, state: State, script: dict[str, Any], level: int, answer: Answer) -> None:
    state.write(diag=script)
    status, output = dcgmi.diagnose(level, None, deadline_s=60)
    assert read_diagnostic(output, status, level, range(4), convictions=RULES).answer is answer


def test_dcgmi_without_an_engine(state: State) -> None:
    with pytest.raises(Unavailable, match="no DCGM host engine"):
        Dcgmi(str(DOUBLE / "dcgmi"), host="127.0.0.1:1").check()


def test_dcgmi_that_is_not_there(listener: str) -> None:
    with pytest.raises(Unavailable):
        Dcgmi("/nowhere/dcgmi", host=listener).gpus()


def test_a_late_diagnostic_is_killed_then_stopped_in_the_engine(dcgmi: Dcgmi, state: State) -> None:
    state.write(diag={"sleep_s": 600})
    deadline_s = 1.0
    while not state.has_diagnostic:  # one that is killed before it has begun leaves none in the engine
        with pytest.raises(Timeout):
            dcgmi.diagnose(1, None, deadline_s=deadline_s)
        deadline_s *= 2
    status, output = dcgmi.diagnose(1, None, deadline_s=60)
    assert "another diagnostic" in read_diagnostic(output, status, 1, convictions=RULES).reason, (
        "it goes on without its client"
    )
    assert dcgmi.stop_diagnostic(10)
    state.write(diag={})
    status, output = dcgmi.diagnose(1, None, deadline_s=60)
    assert read_diagnostic(output, status, 1, convictions=RULES).answer is Answer.PASS


def arguments(listener: str, **changes: Any) -> dict[str, Any]:
    return {"node": "n1", "level": 1, "gpus": None, "dcgmi": str(DOUBLE / "dcgmi"), "host": listener, "promised": 4,
            "deadline_s": 60.0, "stop_s": 5.0, **changes}  # fmt: skip


def test_an_order_to_diagnose(state: State, listener: str) -> None:
    made = diagnose(arguments(listener))
    assert (made["result"], made["evidence"][0]["kind"]) == ("pass", "diag_passed")


def test_an_order_names_gpus_by_uuid(state: State, listener: str) -> None:
    state.write(diag={"errors": [{"test": "memory", "gpu": 3, "code": 52, "severity": 2}]})
    made = diagnose(arguments(listener, level=2, gpus=["GPU-00000001"]))
    assert (made["result"], made["evidence"][0]["data"]) == ("pass", {"level": 2, "gpus": 1}), (
        "of other GPUs it says nothing"
    )
    made = diagnose(arguments(listener, level=2, gpus=["GPU-00000003"]))
    assert (made["result"], made["findings"][0]["gpu_uuid"]) == ("fail", "GPU-00000003")
    assert "does not see" in diagnose(arguments(listener, gpus=["GPU-gone"]))["reason"]


def test_a_pass_on_fewer_gpus_than_promised_is_none(state: State, listener: str) -> None:
    state.content["gpus"][2]["status"] = "lost"
    state.write()
    made = diagnose(arguments(listener))
    assert (made["result"], made["reason"]) == ("inconclusive", "3 GPUs were tested, 4 are known to DCGM")
    assert [item["kind"] for item in made["evidence"]] == ["unreadable"], "the agent's telemetry tells of the lost one"
    made = diagnose(arguments(listener, promised=-1, tells_missing=True, closed_to_users=True))
    (lost, _) = made["evidence"]
    assert (made["result"], lost["kind"], lost["where"]["gpu_uuid"]) == ("inconclusive", "gpu_lost", None)
    assert "GPU 2 (UUID not known)" in lost["text"]
    assert lost["data"]["convicts"] is True
    assert "6 are promised" in diagnose(arguments(listener, promised=6))["reason"]


def test_a_diagnostic_that_hangs_is_looked_at_again_after_it_was_told_to_stop(
    state: State, listener: str, tmp_path: Path
) -> None:
    """The engine kills it some seconds later: the first two times it is not over yet."""
    command = tmp_path / "dcgmi"
    command.write_text(
        f"""#!/bin/sh
if [ -n "$DCGMI_STOP_DIAG_HOSTNAME" ]; then
    echo x >> {tmp_path}/told
    [ "$(wc -l < {tmp_path}/told)" -ge 3 ] && exit 0
    exit 209
fi
[ "$1" = diag ] && exec sleep 600
exec {DOUBLE}/dcgmi "$@"
"""
    )
    command.chmod(0o755)
    made = diagnose(arguments(listener, dcgmi=str(command), deadline_s=40.0, stop_s=30.0, deadlines_s=[1.0] * 4))
    assert made["result"] == "inconclusive" and "it was stopped" in made["reason"], made["reason"]
    assert len((tmp_path / "told").read_text().splitlines()) == 3


def test_a_site_row_changes_what_a_diagnostic_says(state: State, listener: str, tmp_path: Path) -> None:
    state.write(diag={"errors": [{"test": "software", "gpu": 1, "code": 80, "severity": 6}]})
    assert diagnose(arguments(listener))["evidence"][0]["data"]["convicts"] is True
    (tmp_path / "ours.toml").write_text(
        '[[conviction]]\ndcgm = 80\ndrain = "no"\nremedy = "reset"\nsource = "this site"\n'
    )
    made = diagnose(arguments(listener, rules=str(tmp_path)))
    assert (made["result"], made["evidence"][0]["data"]["convicts"]) == ("fail", False)
    (tmp_path / "ours.toml").write_text("[[conviction]]\ndcgm = 80\n")
    made = diagnose(arguments(listener, rules=str(tmp_path)))
    assert made["result"] == "inconclusive" and "ours.toml" in made["reason"]


# ------------------------------------------------------------------------------------------------- the probe itself


Said = list[dict[str, Any]]


def probe(enough: Callable[[Said], bool] = lambda _: False, **changes: Any) -> Said:
    """What the probe's process says until it is enough, or until it ends by itself."""
    arguments = {"bindings": str(DOUBLE), "host": "127.0.0.1:1", "connect_s": 1, "interval_s": 0.2, "health_s": 0.5,
                 "dcgmi": "/nowhere/dcgmi", **changes}  # fmt: skip
    folders = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[3])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    process = subprocess.Popen(
        [sys.executable, "-m", "sentinel.agent.probes.dcgm"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    assert process.stdin is not None and process.stdout is not None
    late = threading.Timer(120, process.kill)
    late.start()
    said: Said = []
    try:
        process.stdin.write(json.dumps(arguments).encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            said.append(json.loads(line))
            if enough(said):
                break
        assert late.is_alive(), said
    finally:
        late.cancel()
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()
    return said


def samples(said: Said) -> Said:
    return [message for message in said if message["type"] == "sample"]


def test_the_probe_streams_samples(state: State) -> None:
    state.xid(1, 79)
    said = probe(lambda said: len(samples(said)) > 6 and any(message.get("health") == [] for message in said))
    assert {message["type"] for message in said} <= {"sample", "alive"}
    assert [event[:2] for message in samples(said) for event in message["events"]] == [[1, 79]]


def test_a_module_that_is_missing_leaves_the_rest_of_telemetry(state: State) -> None:
    state.write(modules_missing=["health", "profiling"])
    state.xid(1, 79)
    said = probe(lambda said: len(samples(said)) > 4)
    full = [message for message in samples(said) if message["full"]]
    assert {message["type"] for message in said} <= {"sample", "alive"}
    assert full[-1]["gpus"][0]["fields"]["150"] == 38
    assert full[-1]["missing"].keys() == {"health", "traffic"} and "-33" in full[-1]["missing"]["health"]
    assert [event[:2] for message in samples(said) for event in message["events"]] == [[1, 79]]
    assert all("health" not in message for message in full)


def test_a_frozen_engine_is_given_up_after_the_limit_of_a_connection(state: State) -> None:
    """It accepts the connection and answers nothing for ten minutes; the bindings' own limit does not hold there."""
    state.write(hang_s=600)
    said = probe(lambda said: any(message["type"] == "unreadable" for message in said), connect_s=0.5)
    assert "does not answer within 0.5 s" in said[-1]["reason"]


def test_all_gpus_lost_are_lost_gpus_and_no_missing_telemetry(state: State) -> None:
    for gpu in state.content["gpus"]:
        gpu["status"] = "lost"
    state.write()
    said = probe(lambda said: len(samples(said)) > 2)
    assert {gpu["status"] for message in samples(said) for gpu in message["gpus"]} == {4}


def test_every_sample_counts_gpus_by_their_device_files(state: State) -> None:
    for number, gpu in enumerate(state.content["gpus"]):
        gpu["minor"] = 7 - number
    state.write()
    said = probe(lambda said: len(samples(said)) > 5)
    assert {tuple(gpu["minor"] for gpu in message["gpus"]) for message in samples(said)} == {(7, 6, 5, 4)}


def test_the_probe_without_anything_says_so_and_ends(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('a node with a driver is asked without it, too')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = [message for message in probe(bindings="/nowhere") if message["type"] != "alive"]
    assert {message["type"] for message in said} == {"unreadable"}
    reason = said[-1]["reason"]
    assert "bindings" in reason
    assert "NVML" in reason or "nvidia-ml-py" in reason


def test_a_source_that_broke_is_tried_again_before_a_worse_one(state: State, listener: str) -> None:
    broken: list[bool] = []

    def break_it(said: Said) -> bool:
        if samples(said) and not broken:
            broken.append(True)
            state.write(engine="another")
        return False

    said = probe(break_it, dcgmi=str(DOUBLE / "dcgmi"), host=listener)
    assert {message.get("via") for message in samples(said)} == {"dcgm"}
    assert said[-1]["type"] == "unreadable"


def test_the_probe_falls_back_to_dcgmi(state: State, listener: str) -> None:
    said = probe(lambda said: bool(samples(said)), bindings="/nowhere", dcgmi=str(DOUBLE / "dcgmi"), host=listener)
    assert "bindings" in said[0]["reason"], "that DCGM's bindings are not there is said"
    sample = samples(said)[0]
    assert sample["via"] == "dcgmi"
    assert len(sample["gpus"]) == 4
