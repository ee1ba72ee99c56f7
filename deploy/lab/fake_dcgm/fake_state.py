"""The JSON file that says what the GPUs do, read again when it changes."""

import json
import os
import time

# Healthy values by field number; what is not here is blank. Limit of the temperature, power and clock reasons (idle: 1, at
# work: none) as an idle H100 80GB HBM3 under driver 580 answers.
DEFAULTS = {
    310: 0, 311: 0, 319: 0, 312: 0, 313: 0, 346: 0, 393: 0, 394: 0, 395: 0, 396: 0, 202: 0, 236: 16, 237: 5, 238: 16,
    1501: 0, 409: 0, 419: 0, 429: 0, 439: 0, 150: 38, 140: 40, 158: 89, 155: 75.0, 112: 1, 203: 0, 252: 4, 1523: 0,
    1507: 0, 171: 0, 66: 1, 67: 0,
}  # fmt: skip
STATUS = {"unknown": 0, "ok": 1, "unsupported": 2, "inaccessible": 3, "lost": 4, "detached": 7}

# What a GPU of a training job shows by what it does: of the right order, not measured. Waiting in a collective is a kernel
# that polls a flag: full utilisation, little power, no traffic.
DOES = {
    "computes": {112: 0, 203: 98, 155: 612.0, 1004: 0.41, 1005: 0.52, 1009: 2.1e9, 1010: 3.4e9, 1011: 6e10, 1012: 6e10},
    "waits": {112: 0, 203: 100, 155: 188.0, 1004: 0.0, 1005: 0.004, 1009: 4e6, 1010: 4e6, 1011: 2e5, 1012: 2e5},
    "idles": {112: 1, 203: 0, 155: 75.0, 1004: 0.0, 1005: 0.0, 1009: 1e6, 1010: 1e6, 1011: 0.0, 1012: 0.0},
}
WORK_S = 0.3  # what the ranks tell of their GPUs is read again after so long

_memory = {"stamp": None, "state": None}
_work = {"read_s": 0.0, "does": {}}


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


def does():
    """GPU -> what it does, as the ranks of the lab's training job tell; without a GPU of which none tells."""
    now_s = time.monotonic()
    if now_s - _work["read_s"] >= WORK_S:
        _work.update(read_s=now_s, does=_told())
    return _work["does"]


def _told():
    folder = os.path.join(os.path.dirname(os.environ.get("SENTINEL_FAKE_GPUS", "")), "nvme", ".gpus")
    found = {}
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".json")]
    except OSError:
        return found
    for name in names:
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as stream:
                told = json.load(stream)
            with open(f"/proc/{int(told['pid'])}/stat", encoding="utf-8") as stream:
                state = stream.read().rpartition(")")[2].split()[0]
        except (OSError, ValueError, KeyError, IndexError):
            continue  # its process is gone
        word = "computes" if told["until"] > time.time() else "idles" if state in "TtZX" else "waits"
        found.update({int(gpu): word for gpu in told["gpus"]})
    return found


def gpus(state):
    return {int(gpu["index"]): gpu for gpu in state.get("gpus", [])}


def value(state, gpu, number):
    """A field of a GPU; None is blank."""
    if state.get("all_blank") or gpu.get("status", "ok") in ("lost", "detached"):
        return None
    fields = {**gpu.get("fields", {}), **gpu.get("injected", {})}  # the latter as by `dcgmi test --inject`
    if str(number) in fields:
        return fields[str(number)]
    if number in DOES["idles"]:
        word = does().get(int(gpu["index"]))
        if word is not None:
            return DOES[word][number]
    if number == 55:
        return int(gpu.get("minor", gpu["index"]))
    if number == 230:
        xids = gpu.get("xids", [])
        return xids[-1]["xid"] if xids else None
    return DEFAULTS.get(number)
