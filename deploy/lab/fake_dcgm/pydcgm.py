"""Handle, system, groups and samples, shaped like DCGM's module of that name."""

import os
import time
import types

import dcgm_agent
import dcgm_structs
import fake_state

if os.environ.get("SENTINEL_FAKE_DCGM_IMPORT") == "broken":
    import logger  # noqa: F401 - some releases import a module that is not shipped


class DcgmException(Exception):
    pass


class DcgmHandle:
    def __init__(self, handle=None, ipAddress=None, unixSocketPath=None, timeoutMs=0, **_):
        if ipAddress is None and unixSocketPath is None:
            raise DcgmException("the stand-in has no embedded engine")
        state = fake_state.call(None)
        engine = state.get("engine", "up")
        if engine == "down":
            time.sleep(float(state.get("refuse_s", 5.0)))  # a refused connection is tried again for 5 s
            raise dcgm_structs.error_of(-21)
        self.handle = engine
        self.field_groups = {}

    def GetSystem(self):
        return DcgmSystem(self)

    def Shutdown(self):
        self.handle = None


class DcgmSystem:
    def __init__(self, handle):
        self._handle = handle
        self.discovery = _Discovery(handle)

    def UpdateAllFields(self, waitForUpdate):
        fake_state.call(self._handle.handle)


class _Discovery:
    def __init__(self, handle):
        self._handle = handle

    def _state(self):
        return fake_state.gpus(fake_state.call(self._handle.handle))

    def GetAllGpuIds(self):
        return sorted(self._state())

    def GetAllSupportedGpuIds(self):
        return sorted(index for index, gpu in self._state().items() if gpu.get("status", "ok") == "ok")

    def GetGpuAttributes(self, gpuId):
        gpu = self._state().get(gpuId)
        if gpu is None:
            raise dcgm_structs.error_of(-1)
        return types.SimpleNamespace(
            identifiers=types.SimpleNamespace(
                uuid=gpu["uuid"],
                pciBusId=gpu.get("pci", "<<<NULL>>>"),
                serial="<<<NULL>>>",
                deviceName="NVIDIA H100 80GB HBM3",
            )
        )


class DcgmFieldGroup:
    def __init__(self, dcgmHandle, name="", fieldIds=None, **_):
        state = fake_state.call(dcgmHandle.handle)
        if set(fieldIds or []) & set(state.get("unknown_fields", [])):
            raise dcgm_structs.error_of(-1)  # one is enough
        if name in dcgmHandle.field_groups:
            raise dcgm_structs.error_of(-26)
        if len(dcgmHandle.field_groups) >= 64:
            raise dcgm_structs.error_of(-24)
        dcgmHandle.field_groups[name] = self
        self._handle, self._name = dcgmHandle, name
        self.fieldIds = list(fieldIds or [])
        self.fieldGroupId = dcgm_agent.known(self)

    def Delete(self):
        fake_state.call(self._handle.handle)
        self._handle.field_groups.pop(self._name, None)


class DcgmGroup:
    def __init__(self, dcgmHandle, groupId=None, groupName=None, **_):
        if groupId is None and groupName is None:
            raise DcgmException("Either groupId or groupName is required")
        fake_state.call(dcgmHandle.handle)
        self._handle = dcgmHandle
        self._ids = []
        self.samples = _Samples(dcgmHandle, self._ids)
        self.health = _Health(dcgmHandle)
        self._id = dcgm_agent.known(self)

    def GetId(self):
        return self._id

    def AddGpu(self, gpuId):
        """Most releases take no GPU that is lost, and none that is not there."""
        gpu = fake_state.gpus(fake_state.call(self._handle.handle)).get(gpuId)
        status = gpu.get("status", "ok") if gpu is not None else "unknown"
        if status != "ok":
            raise dcgm_structs.error_of(-18 if status == "lost" else -1)
        self._ids.append(gpuId)


class _Value:
    def __init__(self, value, ts):
        self.value, self.isBlank, self.ts = value, value is None, ts


class _Collection:
    def __init__(self):
        self.values = {}
        self.told = {}  # GPU -> how many of its Xids were given

    def EmptyValues(self):
        self.values = {}

    def put(self, gpu, field, value):
        self.values.setdefault(1, {}).setdefault(gpu, {}).setdefault(field, []).append(value)


class _Samples:
    def __init__(self, handle, ids):
        self._handle, self._ids = handle, ids
        self._watched = set()

    def _asked(self, fieldGroup):
        state = fake_state.call(self._handle.handle)
        missing = set(fieldGroup.fieldIds) - self._watched
        if missing:
            raise dcgm_structs.error_of(-16)
        return state, fake_state.gpus(state)

    def WatchFields(self, fieldGroup, updateFreq, maxKeepAge, maxKeepSamples):
        state = fake_state.call(self._handle.handle)
        for number, code in state.get("refused_watches", {}).items():
            if int(number) in fieldGroup.fieldIds:
                raise dcgm_structs.error_of(code)
        profiling = any(1001 <= number < 1100 for number in fieldGroup.fieldIds)
        if profiling and "profiling" in state.get("modules_missing", []):
            raise dcgm_structs.error_of(-33)
        self._watched.update(fieldGroup.fieldIds)

    def latest(self, fieldGroup):
        state, known = self._asked(fieldGroup)
        made, now_us = _Collection(), int(time.time() * 1e6)
        for gpu in self._ids:
            for field in fieldGroup.fieldIds:
                if field == 230:
                    made.put(gpu, field, self._last_xid(known, gpu))
                    continue
                made.put(
                    gpu, field, _Value(fake_state.value(state, known[gpu], field) if gpu in known else None, now_us)
                )
        return made.values.get(1, {})

    def _last_xid(self, known, gpu):
        """With its own time; it stays for ever."""
        last = known.get(gpu, {}).get("xids", [])[-1:]
        return _Value(int(last[0]["xid"]), int(last[0]["at_us"])) if last else _Value(None, 0)

    def GetAllSinceLastCall_v2(self, collection, fieldGroup):
        """Every Xid with its own time; where there is no new one, the last one again, as GetLatest keeps it for ever.

        The first call is one of GetLatest, the second gives everything that is still kept.
        """
        _, known = self._asked(fieldGroup)
        made = collection or _Collection()
        if collection is not None:
            for gpu in self._ids:
                xids = known.get(gpu, {}).get("xids", [])
                told = min(made.told.get(gpu, 0), len(xids))
                for event in xids[told:]:
                    made.put(gpu, 230, _Value(int(event["xid"]), int(event["at_us"])))
                made.told[gpu] = len(xids)
        if not made.values:
            for gpu in self._ids:
                made.put(gpu, 230, self._last_xid(known, gpu))
        return made


_STICKY = {}  # engine -> its incidents


class _Health:
    def __init__(self, handle):
        self._handle = handle

    def Set(self, mask, updateInterval=None, maxKeepAge=None):
        if "health" in fake_state.call(self._handle.handle).get("modules_missing", []):
            raise dcgm_structs.error_of(-33)

    def Check(self):
        """Incidents stay until the engine is another one; the text names a GPU that does not exist."""
        state = fake_state.call(self._handle.handle)
        kept = _STICKY.setdefault(self._handle.handle, {})
        for incident in state.get("health", []):
            kept[(incident.get("group", 1), incident["entity"], incident["code"], incident.get("system"))] = incident
        incidents = [
            types.SimpleNamespace(
                system=incident.get("system", 0xFFFFFFFF),
                health=incident.get("health", 20),
                error=types.SimpleNamespace(
                    code=incident["code"], msg=incident.get("text", "GPU 555771712 had %d errors")
                ),
                entityInfo=types.SimpleNamespace(entityGroupId=incident.get("group", 1), entityId=incident["entity"]),
            )
            for incident in kept.values()
        ]
        overall = max([incident.health for incident in incidents], default=0)
        return types.SimpleNamespace(
            version=5, overallHealth=overall, incidentCount=len(incidents), incidents=incidents
        )
