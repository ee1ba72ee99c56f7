"""Constants, errors and functions of the library, shaped like DCGM's module of that name."""

import ctypes

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
    "FUNCTION_NOT_FOUND": -20,
    "CONNECTION_NOT_VALID": -21,
    "MAX_LIMIT": -24,
    "DUPLICATE_KEY": -26,
    "NVVS_ERROR": -30,
    "MODULE_NOT_LOADED": -33,
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


class c_dcgmFieldValue_v1_value(ctypes.Union):
    _fields_ = [
        ("i64", ctypes.c_int64),
        ("dbl", ctypes.c_double),
        ("str", ctypes.c_char * 256),
        ("blob", ctypes.c_byte * 4096),
    ]


class c_dcgmFieldValue_v1(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("fieldId", ctypes.c_ushort),
        ("fieldType", ctypes.c_short),
        ("status", ctypes.c_int),
        ("ts", ctypes.c_int64),
        ("value", c_dcgmFieldValue_v1_value),
    ]


def _dcgmInit(_folder=None):
    return None


def _dcgmCheckReturn(ret):
    if ret != DCGM_ST_OK:
        raise error_of(ret)
    return ret


def _dcgmGetFunctionPointer(name):
    """Functions of the library itself: they return their status."""
    try:
        return _LIBRARY[name]
    except KeyError:
        raise error_of(-20) from None


def _status_of_gpu(handle, gpu, status):
    import fake_state

    known = fake_state.gpus(fake_state.call(handle)).get(gpu.value)
    status._obj.value = 0 if known is None else fake_state.STATUS[known.get("status", "ok")]
    return DCGM_ST_OK


_LIBRARY = {"dcgmGetGpuStatus": _status_of_gpu}
