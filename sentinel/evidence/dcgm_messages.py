"""What the messages of DCGM's diagnostics say: which error, of which GPU, and by how much a test was missed. Pure.

Releases before 3.3 write no error code, and no GPU in the tests of level one: there the message is all that is known, and
several messages come joined. The texts are those of DCGM's ``dcgm_errors.h``, 2.1.4 to 4.6.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_GPU = r"(?P<gpu>\d{1,4})\b"
_BEFORE = r"(?:GPU (?P<before>\d{1,4}) ?)?"  # 2.1 to 3.2 write before each message which GPU it is about
_MEASURED, _REQUIRED = r"(?P<measured>\d{1,12}(?:\.\d{1,6})?)", r"(?P<required>\d{1,12}(?:\.\d{1,6})?)"
# Behind a name that may have a value.
_SET = r"\s{0,9}(?:[:=(\[>\"'-]{1,3}\s{0,9}){0,2}"
_NOT_NO = rf"(?!{_SET}(?i:no|0|false|n/?a)[\"'\]]?\s{{0,9}}(?:[),;]|\.(?!\d)|$))"
_CALLS = frozenset({51, 64, 65, 66})  # a call into CUDA failed; what CUDA said of it stands in the message
_CUDA = {  # texts of cuGetErrorString → the error that DCGM has for the same
    57: re.compile(r"uncorrectable ECC error encountered"),
    71: re.compile(r"uncorrectable NVLink error detected"),
}
_FOR_GPU = re.compile(rf"for GPU {_GPU}")
# Errors that may be faults of a GPU, by code.
_FAULTS = {
    code: re.compile(f"{_BEFORE}(?:{pattern})")
    for code, pattern in {
        4: rf"Detected \d+ volatile double-bit ECC error\(s\) in GPU {_GPU}",
        6: rf"A pending retired page has been detected in GPU {_GPU}",
        7: rf"\d{{1,10}} or more retired pages have been detected in GPU {_GPU}",
        8: rf"An excess of \d+ retired pages due to DBEs have been detected.{{1,90}} in GPU {_GPU}",
        9: rf"A corrupt InfoROM has been detected in GPU {_GPU}",
        30: rf"Bandwidth of GPU {_GPU} in direction \S{{1,40}} of {_MEASURED} did not exceed minimum required bandwidth of "
            rf"{_REQUIRED}",
        31: rf"Latency type \S{{1,40}} of GPU {_GPU} value {_MEASURED} exceeded maximum allowed latency of {_REQUIRED}",
        45: rf"GPU {_GPU} is running at PCI link generation",
        46: rf"GPU {_GPU} is running at PCI link width",
        50: rf"Max stress level of {_MEASURED} did not reach desired stress level of {_REQUIRED} for GPU {_GPU}",
        52: rf"Found \d+ faulty memory elements on GPU {_GPU}",
        57: rf"CUDA APIs have indicated that a double-bit ECC error has occured on GPU {_GPU}",
        58: rf"A memory mismatch was detected on GPU {_GPU}",
        62: rf"GPU {_GPU} only achieved a memory bandwidth of {_MEASURED} GB/s, failing to meet {_REQUIRED} GB/s",
        63: rf"Max power of {_MEASURED} did not reach desired power minimum \S{{1,60}} of {_REQUIRED} for GPU {_GPU}",
        79: r"Detected a miscompare failure in the L1 cache",
        80: rf"(?:GPU {_GPU} had uncorrectable memory errors and row|Row) remapping failed\b{_NOT_NO}",
        81: r"GPU had an uncontained error",
        83: rf"Pending page retirements together with a DBE were detected on GPU {_GPU}",
        84: rf"GPU {_GPU} had uncorrectable memory errors and \d+ rows were remapped",
        85: rf"GPU {_GPU} ha[sd] (?:uncorrectable )?memory errors and row remappings are pending",
        86: rf"GPU {_GPU} was unsuccessfully written to",
        87: rf"GPU {_GPU} unsuccessfully wrote data",
        103: rf"Detected [1-9]\d{{0,9}} ecc_dbe_volatile_total for GPU {_GPU}",
        107: rf"Detected \d{{1,12}} pcie_replay_counter for GPU {_GPU} which is above the threshold",
        110: rf"Detected {_MEASURED} \S{{1,40}} for GPU {_GPU} which is below the threshold {_REQUIRED}",
    }.items()
}  # fmt: skip
# How the other errors begin, of releases that write no codes: settings, software, heat, and calls that failed. What they say
# is no part of the message before them. NVLinks that are down (14) are here: 2.4 to 3.1 say so of every board without any.
_OTHERS = re.compile(
    _BEFORE
    + "(?:"
    + "|".join(
        [
            r"Error using (?:CUDA|DCGM) API ", r"API call \S{1,80} failed",
            r"GPU (?P<gpu>\d{1,4}) failed to create a CUDA context", r"Error calling NVML API ",
            r"There was an internal error during the test", r"Test was aborted early",
            r"Couldn't allocate at least [\d.]{1,9}", r"Cannot allocate \d{1,20} bytes",
            r"Unable to find a corresponding CUDA device", r"Cuda GPU \d{1,4} is no longer bound",
            r"GPU \d{1,4}'s NvLink link \d", r"Detected \d{1,20} \S{1,60} NvLink errors on GPU",
            r"[\d.]{1,20} \S{1,60} NvLink errors found", r"Detected (?:non)?fatal errors on NvSwitch",
            r"N[Vv]Switch (?:physical|\d)", r"Detected XID \d", r"Only \d{1,10} NvLinks are up",
            r"Detected more than \d{1,10} PCIe replays", r"More than \d{1,10} single-bit ECC",
            r"GPU \d{1,4} (?:had PCIe replays|host-side PCIe replay)", r"Detected [\d.]{1,20} \S{1,60} for \S",
            r"\S{1,60} met or exceeded the threshold", r"Field \S{1,60} is not supported", r"Could not query field",
            r"Unable to (?:get field|generate|add field|run)", r"Cannot reliably read the power",
            r"Detected (?:clock throttling|clocks event) due to", r"Clocks (?:are|event) ",
            r"(?:There were t|T)hermal violations totaling", r"Temperature \d{1,20} of ", r"Enforced power limit on GPU",
            r"No (?:memory|graphics) clocks <=", r"Persistence mode for GPU", r"ECC [Mm]emory (?:is not|for GPU)",
            r"Skipping (?:test|plugin) ", r"The [^.,]{1,60} test is skipped", r"This card does not support",
            r"No valid GPUs passed", r"Found (?:blacklisted driver|driver on the denylist|CUDA performance-limiting)",
            r"Had to restore GPU state", r"File \S{1,200} could not be accessed", r"The number of devices NVML returns",
            r"Bad parameter to function", r"Cannot (?:open library|get pointer to) ", r"NVVS has detected processes",
            r"Could not connect to the host engine", r"The DCGM Diagnostic does not have permissions",
            r"This API can only return",
            r"(?<=, )GPU \d{1,4}\b",  # a text that is not known, behind a comma and its GPU
        ]
    )
    + ")"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DiagnosticError:
    """One error that a message tells of: its code, the GPU where it names one, and its own part of the message.

    ``missed_pct``: how far what was measured is from what the test requires, in percent of that; None where it does not say.
    """

    code: int | None
    gpu: int | None
    text: str
    missed_pct: float | None = None


def errors_in(code: int | None, text: str) -> list[DiagnosticError]:
    """The errors that ``text`` tells of, in its order; of one with a code only that error, or what CUDA said of a call.

    DCGM 2.x joins the messages of several GPUs: each error has the part up to the next one, whether that is a fault or not.
    None is left out here, however many there are: which of them count is known only when they are judged.
    """
    found = _beginnings(code, text)
    if not found:
        return [_error(code, None, text)]
    starts = [0, *(match.start() for _, match in found[1:])]
    ends = [*starts[1:], len(text)]
    return [
        _error(number, match, text[start:end].rstrip(" ,"))
        for start, end, (number, match) in zip(starts, ends, found, strict=True)
    ]


def _beginnings(code: int | None, text: str) -> list[tuple[int | None, re.Match[str]]]:
    """Where errors begin, with their codes; None for one that is no fault by itself."""
    known = _FAULTS if code is None else {code: _FAULTS[code]} if code in _FAULTS else {}
    every = ((number, match) for number, pattern in known.items() for match in pattern.finditer(text))
    faults = sorted(every, key=lambda item: item[1].start())
    apart: list[tuple[int | None, re.Match[str]]] = []
    begun, reach = 0, 0  # faults that begin before the other error ends, and where the last of them ends
    for match in _OTHERS.finditer(text) if code is None else ():
        while begun < len(faults) and faults[begun][1].start() < match.end():
            reach = max(reach, faults[begun][1].end())
            begun += 1
        if reach <= match.start():  # it overlaps none
            apart.append((None, match))
    return sorted([*faults, *apart], key=lambda item: item[1].start())


def _error(code: int | None, match: re.Match[str] | None, text: str) -> DiagnosticError:
    values = match.groupdict() if match is not None else {}
    gpu = values.get("gpu") or values.get("before")
    if code is None or code in _CALLS:
        said = next((number for number, words in _CUDA.items() if words.search(text)), None)
        named = _FOR_GPU.search(text) if said is not None else None
        code, gpu = said or code, gpu or (named["gpu"] if named else None)
    return DiagnosticError(code, int(gpu) if gpu else None, text, _missed_pct(values))


def _missed_pct(values: Mapping[str, str | None]) -> float | None:
    measured, required = values.get("measured"), values.get("required")
    if not measured or not required or not float(required):
        return None
    return round(abs(float(measured) - float(required)) / float(required) * 100, 2)
