"""Functions of the library with the arguments of DCGM's module of that name."""

import ctypes
import itertools
import weakref

import dcgm_structs

dcgmFieldValueEntityEnumeration_f = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_uint32,
    ctypes.c_uint32,
    ctypes.POINTER(dcgm_structs.c_dcgmFieldValue_v1),
    ctypes.c_int32,
    ctypes.c_void_p,
)
_KNOWN = weakref.WeakValueDictionary()  # groups and field groups by the numbers that the library gives them
_NUMBERS = itertools.count(1)


def known(group):
    number = next(_NUMBERS)
    _KNOWN[number] = group
    return number


def dcgmGetLatestValues_v2(dcgm_handle, groupId, fieldGroupId, enumCB, userData):
    for gpu, fields in _KNOWN[groupId].samples.latest(_KNOWN[fieldGroupId]).items():
        values = (dcgm_structs.c_dcgmFieldValue_v1 * len(fields))()
        for value, (number, series) in zip(values, fields.items(), strict=True):
            _fill(value, number, series[-1])
        enumCB(1, gpu, values, len(fields), None)
    return dcgm_structs.DCGM_ST_OK


def _fill(made, number, told):
    made.fieldId, made.ts = number, told.ts
    if isinstance(told.value, float):
        made.fieldType, made.value.dbl = ord("d"), told.value
    elif isinstance(told.value, str):
        made.fieldType, made.value.str = ord("s"), told.value.encode()
    else:
        made.fieldType, made.value.i64 = ord("i"), 0x7FFFFFFFFFFFFFF0 if told.value is None else told.value
