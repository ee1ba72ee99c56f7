"""Reads DCGM through its own Python bindings. Runs in a probe's process, never in the agent's.

Fields go by number; structures go through the bindings, which fit the release they came with. The status of a GPU, which
the bindings of releases before 4.0 do not wrap, is asked by name in the library that they loaded. Every call may block for
as long as the driver does: whoever uses this module must be killable.

Diagnostics are not run here but by ``dcgmi`` (``sentinel.adapters.gpu.dcgmi``): it comes in the same package as the bindings
and fits its host engine, its JSON has two forms since 3.0 where the structures of a response have four (v8 to v12) that
must match on both sides, and ``DcgmDiag`` does not import in half of the 4.x releases.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sentinel.adapters.gpu.dcgm_values import GPU_GROUP, Values
from sentinel.adapters.gpu.engine_owner import ACCOUNT, EngineOwner, NobodyListens
from sentinel.errors import Denied, ProtocolError, Timeout, Unavailable
from sentinel.gpu_values import known_value

FOLDERS = (
    "/usr/share/datacenter-gpu-manager-4/bindings/python3",  # 4.x
    "/usr/local/dcgm/bindings/python3",  # 3.3
)
HEALTH_ALL = 0xFFFFFFFF
XID_FIELD = 230
KEEP_S = 300.0

BAD_PARAMETER, TIMEOUT, NO_PERMISSION, GPU_LOST, NOT_VALID, NOT_SUPPORTED = -1, -11, -17, -18, -21, -22
PROFILING = range(1001, 1100)  # fields of a module that a node may lack, or that a user's profiler holds
OK = 1  # GetGpuStatus
TOLD_EVENTS = 4096  # events remembered as told; a GPU that throws more within KEEP_S has said enough


class Bindings:
    """The imported modules.

    Args:
        folder: where they lie; empty to look where 4.x and 3.3 install them.

    Raises:
        Unavailable: there are none, or they cannot be imported.
    """

    def __init__(self, folder: str = "") -> None:
        candidates = [folder] if folder else [path for path in FOLDERS if Path(path).is_dir()]
        if not candidates or not (Path(candidates[0]) / "pydcgm.py").is_file():
            where = folder or " or ".join(FOLDERS)
            raise Unavailable(
                f"no DCGM bindings in {where}", fix="install datacenter-gpu-manager, or set dcgm.bindings"
            )
        self.folder = candidates[0]
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        _stand_in_for_logger()
        try:
            # pydcgm first: the modules import each other in a circle.
            self.pydcgm = importlib.import_module("pydcgm")
            self.structs = importlib.import_module("dcgm_structs")
            self.agent = importlib.import_module("dcgm_agent")
        except (ImportError, OSError, AttributeError, SyntaxError) as error:
            raise Unavailable(f"DCGM bindings in {self.folder} cannot be imported: {error}") from error
        self.error: type[Exception] = self.structs.DCGMError
        self.misuse: type[Exception] = self.pydcgm.DcgmException

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library by its name.

        Raises:
            DCGMError: what it returned, or that there is none of this name.
        """
        self.structs._dcgmCheckReturn(self.structs._dcgmGetFunctionPointer(name)(*arguments))


class HostEngine:
    """A connection to nv-hostengine and the fields watched on it. After an error it is not reused: make a new one.

    Args:
        host: TCP address; used when ``socket`` is empty. An embedded engine is never started.
        account: who may run an engine on this host besides root and us.
        interval_s: period at which DCGM refreshes the watched fields.

    Attributes:
        closed: no user of this node can connect to it, and so write values into it.

    Raises:
        Unavailable: no connection, or to an engine that is not believed.
    """

    def __init__(
        self, bindings: Bindings, *, host: str = "", socket: str = "", account: str = ACCOUNT,
        connect_s: float = 15.0, interval_s: float = 1.0,
    ) -> None:  # fmt: skip
        if not host and not socket:
            raise ValueError("neither host nor socket: that would start an embedded engine")
        self._bindings = bindings
        self._interval_us = max(1, int(interval_s * 1e6))
        self._identities: dict[int, tuple[str | None, str | None]] = {}  # UUID and PCI address, of working GPUs
        self._listed: list[int] = []
        self._groups: dict[str, Any] = {}
        self._events: Any = None
        self._told: dict[tuple[int, int, int], None] = {}  # events given out, the oldest first
        self.unknown_fields: list[int] = []  # asked for and not known to this engine
        self.unwatched: set[int] = set()  # GPUs that it refused to watch, as most releases do with lost ones
        owner = EngineOwner(host=host, path=socket, account=account)
        where = {"unixSocketPath": socket} if socket else {"ipAddress": owner.address}
        with contextlib.suppress(NobodyListens):  # DCGM's own words for it are known
            owner.look()
        with self._foreign(f"connecting to {socket or host}"):
            self._values = Values(bindings.agent, bindings.structs)
            self._handle = bindings.pydcgm.DcgmHandle(timeoutMs=int(connect_s * 1000), **where)
            self._system = self._handle.GetSystem()
        owner.require_own_connections(connect_s)
        self.closed = owner.is_closed()

    def gpus(self) -> list[dict[str, Any]]:
        """Id, uuid, pci and status of every GPU, lost ones among them. Of one that works, identity and status are asked
        once: DCGM lists those that may be used, in one call for all. While these are all that there were, nothing else
        is asked.
        """
        discovery = self._system.discovery
        made = []
        with self._foreign("listing the GPUs"):
            usable = set(map(int, discovery.GetAllSupportedGpuIds()))
            if not self._listed or usable != set(self._listed):
                self._listed = [int(gpu) for gpu in discovery.GetAllGpuIds()]
            for gpu in self._listed:
                status = OK if gpu in usable and gpu in self._identities else self._status(gpu)
                if gpu not in self._identities or status != OK:
                    self._identities[gpu] = self._identity(gpu)
                uuid, pci = self._identities[gpu]
                if status != OK or uuid is None:
                    del self._identities[gpu]  # what comes back may be another one
                made.append({"id": gpu, "uuid": uuid, "pci": pci, "status": status})
        return made

    def _identity(self, gpu: int) -> tuple[str | None, str | None]:
        try:
            identifiers = self._system.discovery.GetGpuAttributes(gpu).identifiers
        except self._bindings.error as error:
            if _code(error) in (NOT_VALID, TIMEOUT):
                raise
            return None, None
        return _text(identifiers.uuid), _text(identifiers.pciBusId)

    def _status(self, gpu: int) -> int:
        status = ctypes.c_uint()
        self._bindings.call("dcgmGetGpuStatus", self._handle.handle, ctypes.c_uint(gpu), ctypes.byref(status))
        return int(status.value)

    def watch(self, name: str, gpus: Sequence[int], fields: Sequence[int], *, every_s: float | None = None) -> None:
        """Watch fields from now on, as far as this engine gives them; the others stay blank and are listed in
        ``unknown_fields``. The same goes for GPUs (``unwatched``). Names carry our process id: duplicate names of field
        groups are refused.

        Args:
            every_s: period at which DCGM refreshes them, where it is not the connection's.
        """
        unique = f"sentinel-{name}-{os.getpid()}"
        with self._foreign(f"watching {name}"):
            group, empty = self._group(unique, gpus)
            watched = None if empty else self._field_group(unique, list(fields))
            every_us = self._interval_us if every_s is None else int(every_s * 1e6)
            if watched is not None:
                watched = self._watch_fields(group, watched, unique, list(fields), every_us)
            self._groups[name] = (group, watched)

    def _watch_fields(self, group: Any, watched: Any, name: str, fields: list[int], every_us: int) -> Any:
        """Watch these fields and return their group; without profiling fields if that module is not available."""
        try:
            group.samples.WatchFields(watched, every_us, KEEP_S, 0)
            return watched
        except self._bindings.error as error:
            rest = [number for number in fields if number not in PROFILING]
            if _code(error) in (NOT_VALID, TIMEOUT) or not rest or len(rest) == len(fields):
                raise
        watched.Delete()
        self.unknown_fields = sorted({*self.unknown_fields, *fields} - set(rest))
        watched = self._field_group(name, rest)
        if watched is not None:
            group.samples.WatchFields(watched, every_us, KEEP_S, 0)
        return watched

    def watch_if_possible(
        self, name: str, gpus: Sequence[int], fields: Sequence[int], *, every_s: float | None = None
    ) -> str | None:
        """Watch fields that this engine may not provide: a module may be missing, paused, or used by another tool.

        Returns: why not; None when they are watched.
        """
        try:
            self.watch(name, gpus, fields, every_s=every_s)
        except DcgmRefusal as error:
            if error.code in (NOT_VALID, TIMEOUT):
                raise
            return error.message
        # Without a GPU that may be watched nothing is missing: those that are lost are listed all the same.
        known = self._groups[name][1] is not None or set(gpus) <= self.unwatched
        return None if known else "this release does not know them"

    def _group(self, name: str, gpus: Sequence[int]) -> tuple[Any, bool]:
        """Create a group of all usable GPUs; also returns whether there are none."""
        group, count = self._bindings.pydcgm.DcgmGroup(self._handle, groupName=name), 0
        for gpu in gpus:
            try:
                group.AddGpu(gpu)
                count += 1
                self.unwatched.discard(gpu)
            except self._bindings.error as error:
                if _code(error) not in (GPU_LOST, NOT_SUPPORTED, BAD_PARAMETER):
                    raise
                self.unwatched.add(gpu)
        return group, not count

    def _field_group(self, name: str, fields: list[int]) -> Any:
        """Create a field group. DCGM refuses all of it for one unknown field: then each field is tried alone."""
        make = self._bindings.pydcgm.DcgmFieldGroup
        try:
            return make(self._handle, name, fields)
        except self._bindings.error as error:
            if _code(error) != BAD_PARAMETER:
                raise
        known = []
        for field in fields:
            try:
                make(self._handle, f"{name}-{field}", [field]).Delete()  # an engine holds 64 groups
                known.append(field)
            except self._bindings.error as error:
                if _code(error) != BAD_PARAMETER:
                    raise
        self.unknown_fields = sorted({*self.unknown_fields, *fields} - set(known))
        return make(self._handle, name, known) if known else None

    def refresh(self) -> None:
        with self._foreign("refreshing the fields"):
            self._system.UpdateAllFields(1)

    def latest(self, name: str) -> dict[int, dict[int, tuple[Any, int]]]:
        """GPU → field → (value or None, microseconds of its reading)."""
        group, watched = self._groups[name]
        if watched is None:
            return {}
        with self._foreign(f"reading {name}"):
            return self._values.latest(self._handle.handle, group.GetId(), watched.fieldGroupId)

    def events(
        self, name: str, newest: Mapping[int, tuple[Any, int]] | None = None, *, everything: bool = False
    ) -> list[tuple[int, int, int]]:
        """Xids not returned yet, as (GPU, Xid, microseconds). GetLatest would return only the last one.

        Asking costs a call for each GPU, some ten times that of a look at all fields.

        Args:
            newest: GPU → its last Xid and time, as ``latest`` gave them: where all of these were given, nothing is asked.
            everything: ask for all that the engine still has, as the first time. Otherwise what is dated before the call
                before this one does not come, as after a clock was set back.
        """
        group, watched = self._groups[name]
        if watched is None:
            return []
        if newest is not None and not everything:
            last = ((gpu, int(xid), at_us) for gpu, (xid, at_us) in newest.items() if isinstance(xid, int))
            if all(event in self._told for event in last):
                return []
        made: list[tuple[int, int, int]] = []
        with self._foreign(f"reading the events of {name}"):
            if everything or self._events is None:
                self._events = group.samples.GetAllSinceLastCall_v2(None, watched)  # only the last one of each GPU
            self._events.EmptyValues()  # or it grows for ever
            # Where there is nothing new, the bindings give the last one of each GPU again.
            self._events = group.samples.GetAllSinceLastCall_v2(self._events, watched)
            for gpu, fields in self._events.values.get(GPU_GROUP, {}).items():
                for value in fields.get(XID_FIELD, ()):
                    if not value.isBlank and known_value(value.value) is not None:
                        made.append((int(gpu), int(value.value), int(value.ts)))
        made = [event for event in made if event not in self._told]
        for event in made:
            self._told[event] = None
        while len(self._told) > TOLD_EVENTS:
            del self._told[next(iter(self._told))]
        return made

    def set_health(self, name: str) -> None:
        group, watched = self._groups[name]
        if watched is not None:
            with self._foreign("setting the health watches"):
                group.health.Set(HEALTH_ALL)

    def health(self, name: str) -> list[dict[str, Any]]:
        group, watched = self._groups[name]
        if watched is None:
            return []
        with self._foreign("checking health"):
            response = group.health.Check()
            return [
                {
                    "entity_group": int(incident.entityInfo.entityGroupId),
                    "entity": int(incident.entityInfo.entityId),
                    "system": int(incident.system) & 0xFFFFFFFF,
                    "health": int(incident.health),
                    "code": int(incident.error.code),
                    "text": _text(incident.error.msg) or "",
                }
                for incident in response.incidents[: response.incidentCount]
            ]

    def close(self) -> None:
        self._events = None
        for _, watched in self._groups.values():
            with contextlib.suppress(self._bindings.error):
                if watched is not None:
                    watched.Delete()  # some releases keep a reference of their own
        self._groups.clear()  # before the handle, or their finalisers complain
        with contextlib.suppress(self._bindings.error):  # the engine may be gone, which is why we close
            self._handle.Shutdown()

    @contextlib.contextmanager
    def _foreign(self, doing: str) -> Any:
        """Turn DCGM's errors into ours."""
        try:
            yield
        except self._bindings.error as error:
            raise refusal(_code(error), f"DCGM, {doing}: {error}") from error
        except (LookupError, TypeError, ValueError, AttributeError, NameError, self._bindings.misuse) as error:
            raise ProtocolError(f"DCGM, {doing}: answered in a form that is not known: {error!r}") from error


class DcgmRefusal(Unavailable):
    """DCGM answered with one of its error codes (``code``)."""

    code = 0


class _DeniedByDcgm(DcgmRefusal, Denied):
    pass


class _TimeoutOfDcgm(DcgmRefusal, Timeout):
    pass


def refusal(code: int, message: str) -> DcgmRefusal:
    kind = {TIMEOUT: _TimeoutOfDcgm, NO_PERMISSION: _DeniedByDcgm}.get(code, DcgmRefusal)
    made = kind(message)
    made.code = code
    return made


def _code(error: BaseException) -> int:
    value = getattr(error, "value", 0)
    return int(value) if isinstance(value, int) else 0


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return known_value(str(value)) if value is not None else None


def _stand_in_for_logger() -> None:
    """Provide the module ``logger`` that releases 4.0 to 4.5.1 import and do not ship."""
    if "logger" in sys.modules:
        return
    module = types.ModuleType("logger")

    def silent(*_: object, **__: object) -> None:
        return None

    for name in ("debug", "info", "warning", "error", "critical"):
        setattr(module, name, silent)
    attributes: Mapping[str, object] = {"nvvs_trace_log_filename": None}
    for name, value in attributes.items():
        setattr(module, name, value)
    sys.modules["logger"] = module
