"""The JSON file that says what the GPUs do, read again when it changes."""

import json
import os
import time

# Healthy values by field number; what is not here is blank.
DEFAULTS = {
    310: 0, 311: 0, 319: 0, 312: 0, 313: 0, 346: 0, 393: 0, 394: 0, 395: 0, 396: 0, 202: 0, 236: 16, 237: 5, 238: 16,
    1501: 0, 409: 0, 419: 0, 429: 0, 439: 0, 150: 38, 140: 40, 158: 87, 155: 95.5, 112: 1, 203: 0, 252: 4, 1523: 0,
    1507: 0, 171: 0, 66: 1, 67: 0,
}  # fmt: skip
STATUS = {"unknown": 0, "ok": 1, "unsupported": 2, "inaccessible": 3, "lost": 4, "detached": 7}

_memory = {"stamp": None, "state": None}


def load():
    """The state now. A missing file is an engine without GPUs."""
    path = os.environ.get("SENTINEL_FAKE_GPUS", "")
    try:
        status = os.stat(path)
    except OSError:
        return {"gpus": []}
    stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
    if _memory["stamp"] != stamp:
        for _ in range(50):  # a writer that does not replace the file leaves it half written for a moment
            try:
                with open(path, encoding="utf-8") as stream:
                    _memory.update(stamp=stamp, state=json.load(stream))
                break
            except ValueError:
                time.sleep(0.01)
    return _memory["state"] or {"gpus": []}


def call(engine):
    """What every call of the library meets first: a hang, or an engine that is gone or was restarted."""
    import dcgm_structs

    state = load()
    if state.get("hang_s"):
        time.sleep(float(state["hang_s"]))
    if engine is not None and state.get("engine", "up") != engine:
        raise dcgm_structs.error_of(-21)
    return state


def gpus(state):
    return {int(gpu["index"]): gpu for gpu in state.get("gpus", [])}


def value(state, gpu, number):
    """A field of a GPU; None is blank."""
    if state.get("all_blank") or gpu.get("status", "ok") == "lost":
        return None
    fields = gpu.get("fields", {})
    if str(number) in fields:
        return fields[str(number)]
    if number == 55:
        return int(gpu.get("minor", gpu["index"]))
    if number == 230:
        xids = gpu.get("xids", [])
        return xids[-1]["xid"] if xids else None
    return DEFAULTS.get(number)
