"""The adapter over DCGM's own Python modules: every symbol, signature, structure and constant that it uses is theirs.

SENTINEL_DCGM_BINDINGS names one or several folders of bindings (as installed, or ``testing/python3`` of DCGM's sources),
separated by ``:``. No libdcgm is needed: below the modules lies a library of Python functions that reads and fills the
structures which the modules declare. What only a real host engine can show is in ``test_dcgm.py``.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.gpu.dcgm import NOT_VALID, Bindings, DcgmRefusal, HostEngine
from sentinel.errors import Unavailable
from sentinel.evidence.gpu_samples import FAST, MINOR, PCI_BUS_ID, SLOW, WATCHED

FOLDERS = [folder for folder in os.environ.get("SENTINEL_DCGM_BINDINGS", "").split(":") if folder]
pytestmark = pytest.mark.skipif(not FOLDERS, reason="SENTINEL_DCGM_BINDINGS names no folder of DCGM's bindings")

DOUBLES = {206: 0.0, 155: 86.0}  # fields of type double; all others here are integers but the PCI address
NOW_US = int(time.time() * 1e6)


class Library:
    """libdcgm as the modules see it: functions that take their ctypes arguments and return a status."""

    def __init__(self, structs: Any, fields: Any) -> None:
        self.structs = structs
        self.known = {value for name, value in vars(fields).items() if name.startswith("DCGM_FI_")}
        self.gone = False
        self.xids: list[tuple[int, int, int]] = []
        self.groups: dict[int, list[int]] = {}  # GPU groups and their GPUs
        self.field_groups: dict[int, tuple[str, list[int]]] = {}
        self.status = {0: 1, 1: 4}
        self.refuses_lost = False  # 4.5 and later take them
        self.called: set[str] = set()
        self._next = 10

    def __getattr__(self, name: str) -> Callable[..., int]:
        """As a shared library has its functions: under their names, each of which can be given a result type."""
        method = type(self).__dict__.get(f"_{name}")
        if method is None:
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.called.add(name)
            return NOT_VALID if self.gone else int(method(self, *arguments))

        return function

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _dcgmInit(self, *_: Any) -> int:
        return 0

    def _dcgmConnect_v2(self, address: bytes, parameters: Any, handle: Any) -> int:
        assert parameters._obj.timeoutMs == 15000
        return self._connect(address, handle)

    def _dcgmConnect_v3(self, address: bytes, parameters: Any, handle: Any) -> int:
        assert address.startswith(b"tcp://")
        return self._dcgmConnect_v2(address.removeprefix(b"tcp://"), parameters, handle)

    def _connect(self, address: bytes, handle: Any) -> int:
        assert address == b"127.0.0.1:5555"
        handle._obj.value = 7
        return 0

    def _dcgmDisconnect(self, _handle: Any) -> int:
        return 0

    def _dcgmGetAllDevices(self, _handle: Any, ids: Any, count: Any) -> int:
        count._obj.value = len(self.status)
        for place, gpu in enumerate(self.status):
            ids[place] = gpu
        return 0

    def _dcgmGetAllSupportedDevices(self, handle: Any, ids: Any, count: Any) -> int:
        usable = [gpu for gpu, status in self.status.items() if status == 1]
        count._obj.value = len(usable)
        for place, gpu in enumerate(usable):
            ids[place] = gpu
        return 0

    def _dcgmGetGpuStatus(self, _handle: Any, gpu: Any, status: Any) -> int:
        status._obj.value = self.status[gpu.value]
        return 0

    def _dcgmGetDeviceAttributes(self, _handle: Any, gpu: Any, attributes: Any) -> int:
        identifiers = attributes._obj.identifiers
        identifiers.uuid = b"GPU-%08x" % gpu.value
        identifiers.pciBusId = b"00000000:%02X:00.0" % (27 + gpu.value)
        return 0

    def _dcgmGroupCreate(self, _handle: Any, _kind: int, name: bytes, group: Any) -> int:
        assert name.startswith(b"sentinel-")
        group._obj.value = self._number()
        self.groups[group._obj.value] = []
        return 0

    def _dcgmGroupDestroy(self, _handle: Any, group: Any) -> int:
        del self.groups[group.value]
        return 0

    def _dcgmGroupAddDevice(self, _handle: Any, group: Any, gpu: int) -> int:
        if self.refuses_lost and self.status[gpu] == 4:
            return -18
        self.groups[group.value].append(gpu)
        return 0

    def _dcgmFieldGroupCreate(self, _handle: Any, count: Any, fields: Any, name: bytes, group: Any) -> int:
        wanted = list(fields._obj)
        assert len(wanted) == count.value
        if any(number not in self.known for number in wanted):
            return -1
        if any(name.decode() == other for other, _ in self.field_groups.values()):
            return -26
        group._obj.value = self._number()
        self.field_groups[group._obj.value] = (name.decode(), wanted)
        return 0

    def _dcgmFieldGroupDestroy(self, _handle: Any, group: Any) -> int:
        return 0 if self.field_groups.pop(group.value, None) else -14

    def _dcgmWatchFields(self, _h: Any, group: Any, fields: Any, every_us: Any, keep_s: Any, samples: Any) -> int:
        assert (every_us.value, keep_s.value, samples.value) == (1_000_000, 300.0, 0)
        return 0 if group.value in self.groups and fields.value in self.field_groups else -1

    def _dcgmUpdateAllFields(self, _handle: Any, wait: Any) -> int:
        assert wait.value == 1
        return 0

    def _dcgmGetLatestValues_v2(self, _handle: Any, group: Any, fields: Any, tell: Any, data: Any) -> int:
        for gpu in self.groups[group.value]:
            self._tell(tell, data, gpu, [self._value(gpu, number) for number in self.field_groups[fields.value][1]])
        return 0

    def _dcgmGetValuesSince_v2(
        self, _handle: Any, group: Any, _fields: Any, since: Any, following: Any, tell: Any, data: Any
    ) -> int:
        for gpu in self.groups[group.value]:
            new = [self._made(230, xid, at_us) for at, xid, at_us in self.xids if at == gpu and at_us >= since.value]
            if new:
                self._tell(tell, data, gpu, new)
        following._obj.value = max([since.value, *(at_us + 1 for _, _, at_us in self.xids)])
        return 0

    def _tell(self, tell: Any, data: Any, gpu: int, values: list[Any]) -> None:
        array = (self.structs.c_dcgmFieldValue_v1 * len(values))(*values)
        tell(1, gpu, array, len(values), id(data.value))

    def _value(self, gpu: int, number: int) -> Any:
        if number == 230:
            mine = [(xid, at_us) for at, xid, at_us in self.xids if at == gpu]
            return self._made(230, *mine[-1]) if mine else self._made(230, 0x7FFFFFFFFFFFFFF0, 0)
        return self._made(number, 38 if self.status[gpu] == 1 else 0x7FFFFFFFFFFFFFF2, NOW_US)

    def _made(self, number: int, value: int, at_us: int) -> Any:
        made = self.structs.c_dcgmFieldValue_v1()
        made.fieldId, made.status, made.ts = number, 0, at_us
        if number == PCI_BUS_ID:
            made.fieldType, made.value.str = ord("s"), b"00000000:1B:00.0"
        elif number in DOUBLES:
            made.fieldType = ord("d")
            made.value.dbl = DOUBLES[number] if value < 1 << 60 else 140737488355330.0
        else:
            made.fieldType, made.value.i64 = ord("i"), value
        return made

    def _dcgmHealthSet(self, _handle: Any, _group: Any, systems: Any) -> int:
        assert getattr(systems, "value", systems) == 0xFFFFFFFF
        return 0

    def _dcgmHealthCheck(self, _handle: Any, _group: Any, response: Any) -> int:
        answer = response._obj
        assert answer.version & 0xFFFFFF == ctypes.sizeof(answer) & 0xFFFFFF
        answer.overallHealth, answer.incidentCount = 20, 1
        incident = answer.incidents[0]
        incident.system, incident.health = 0x10, 20
        incident.error.code, incident.error.msg = 80, b"GPU 555771712 had %d"
        incident.entityInfo.entityGroupId, incident.entityInfo.entityId = 1, 1
        return 0


@pytest.fixture(params=FOLDERS, ids=lambda folder: Path(folder).name)
def bindings(request: pytest.FixtureRequest) -> Iterator[Bindings]:
    """The modules of one folder, imported as the probe does, and forgotten afterwards."""
    before, path = set(sys.modules), list(sys.path)
    yield Bindings(request.param)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(request.param) or name == "logger":
            del sys.modules[name]


@pytest.fixture
def library(bindings: Bindings, monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(bindings.structs, sys.modules["dcgm_fields"])
    monkeypatch.setattr(bindings.structs, "dcgmLib", made)
    monkeypatch.setattr(bindings.structs, "_dcgmGetFunctionPointer_cache", {})
    return made


@pytest.fixture
def engine(bindings: Bindings, library: Library) -> Iterator[HostEngine]:
    made = HostEngine(bindings, host="127.0.0.1:5555")
    yield made
    made.close()


def test_without_its_library_it_is_unavailable(bindings: Bindings) -> None:
    if any(list(Path(folder).glob("libdcgm.so.*")) for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")):
        pytest.skip("libdcgm is installed here")
    with pytest.raises(Unavailable, match=r"could not be found|DCGM"):
        HostEngine(bindings, host="127.0.0.1:1")


def test_identity_and_status_of_every_gpu(engine: HostEngine) -> None:
    assert engine.gpus() == [
        {"id": 0, "uuid": "GPU-00000000", "pci": "00000000:1B:00.0", "status": 1},
        {"id": 1, "uuid": "GPU-00000001", "pci": "00000000:1C:00.0", "status": 4},
    ]


def test_what_the_probe_watches_is_watched_as_far_as_the_release_has_it(engine: HostEngine, library: Library) -> None:
    engine.watch("fields", [0, 1], [*WATCHED, *SLOW, MINOR, PCI_BUS_ID])
    engine.watch("events", [0, 1], [230])
    engine.watch("fast", [0, 1], FAST)
    engine.refresh()
    latest = engine.latest("fields")
    asked = {*WATCHED, *SLOW, MINOR, PCI_BUS_ID}
    assert set(latest[0]) == asked & library.known
    assert set(engine.unknown_fields) == asked - library.known
    assert {150, 155, 310, 311, 395, 396, 202, 238, 409} <= set(latest[0]), "what every release has"
    assert latest[0][150] == (38, NOW_US)
    assert latest[0][155] == (86.0, NOW_US)
    assert latest[0][PCI_BUS_ID][0] == "00000000:1B:00.0"
    assert {value for value, _ in latest[1].values()} <= {None, "00000000:1B:00.0"}, "blank is not known"


def test_a_lost_gpu_that_may_not_be_watched_leaves_the_others(engine: HostEngine, library: Library) -> None:
    library.refuses_lost = True
    engine.watch("fields", [0, 1], FAST)
    engine.set_health("fields")
    assert engine.unwatched == {1}
    assert set(engine.latest("fields")) == {0}
    engine.watch("none", [1], FAST)
    assert (engine.latest("none"), engine.events("none"), engine.health("none")) == ({}, [], [])


def test_every_xid_once_with_its_own_time(engine: HostEngine, library: Library) -> None:
    library.xids = [(0, 43, NOW_US)]
    engine.watch("events", [0, 1], [230])
    assert [engine.events("events") for _ in range(3)] == [[(0, 43, NOW_US)], [], []], (
        "the last one stays in the engine"
    )
    library.xids += [(1, 31, NOW_US + 5), (1, 79, NOW_US + 9)]
    assert engine.events("events") == [(1, 31, NOW_US + 5), (1, 79, NOW_US + 9)]
    assert engine.events("events") == []
    newest = {0: (43, NOW_US), 1: (79, NOW_US + 9)}
    library.called.clear()
    assert engine.events("events", newest) == [] and not library.called, "all of these were told"
    library.xids.insert(0, (0, 48, NOW_US - 7))
    assert engine.events("events") == [], "dated before what was asked for"
    assert engine.events("events", newest, everything=True) == [(0, 48, NOW_US - 7)]


def test_health_by_entity_and_code(engine: HostEngine) -> None:
    engine.watch("fields", [0, 1], FAST)
    engine.set_health("fields")
    (incident,) = engine.health("fields")
    assert {name: incident[name] for name in ("entity_group", "entity", "system", "health", "code")} == {
        "entity_group": 1,
        "entity": 1,
        "system": 16,
        "health": 20,
        "code": 80,
    }


def test_an_engine_that_is_gone_is_a_refusal_with_its_code(engine: HostEngine, library: Library) -> None:
    engine.watch("fields", [0], FAST)
    library.gone = True
    for call in (lambda: engine.latest("fields"), engine.gpus, lambda: engine.health("fields")):
        with pytest.raises(DcgmRefusal) as caught:
            call()
        assert caught.value.code == NOT_VALID
    library.gone = False


def test_closing_takes_everything_back(bindings: Bindings, library: Library) -> None:
    for _ in range(2):  # the same names again, in the same process
        engine = HostEngine(bindings, host="127.0.0.1:5555")
        engine.watch("fields", [0], [*WATCHED, 99999])
        engine.close()
        assert library.field_groups == {}
