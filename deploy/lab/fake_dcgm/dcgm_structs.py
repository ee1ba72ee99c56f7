"""Constants, errors and the stop function, shaped like DCGM's module of that name."""

import time

DCGM_ST_OK = 0
_CODES = {
    "BADPARAM": -1,
    "NOT_SUPPORTED": -6,
    "TIMEOUT": -11,
    "VER_MISMATCH": -12,
    "NO_DATA": -14,
    "NOT_WATCHED": -16,
    "NO_PERMISSION": -17,
    "GPU_IS_LOST": -18,
    "CONNECTION_NOT_VALID": -21,
    "DUPLICATE_KEY": -26,
    "NVVS_ERROR": -30,
    "IN_USE": -34,
    "DIAG_ALREADY_RUNNING": -39,
    "CHILD_NOT_KILLED": -47,
    "NVVS_ISOLATE_ERROR": -51,
}


class DCGMError(Exception):
    def __init__(self, value):
        super().__init__(f"DCGM error {value}")
        self.value = value


def _make():
    for name, code in _CODES.items():
        title = "DCGMError_" + "".join(part.capitalize() for part in name.split("_"))

        def init(self, _code=code):
            DCGMError.__init__(self, _code)

        globals()[title] = type(title, (DCGMError,), {"__init__": init})
        globals()["DCGM_ST_" + name] = code


_make()


def error_of(code):
    for name, value in _CODES.items():
        if value == code:
            return globals()["DCGMError_" + "".join(part.capitalize() for part in name.split("_"))]()
    return DCGMError(code)


def _dcgmInit(_folder=None):
    return None


def _dcgmGetFunctionPointer(name):
    if name != "dcgmStopDiagnostic":
        raise AttributeError(name)

    def stop(_handle):
        import fake_state

        diag = fake_state.load().get("diag", {})
        time.sleep(float(diag.get("stop_s", 0)))
        if diag.get("unstoppable"):
            raise error_of(-47)
        fake_state.stop_diag()
        return 0

    return stop
