"""What the messages of DCGM's diagnostics say: which error, of which GPU, and by how much a test was missed. Pure.

Releases before 3.3 write no error code, and no GPU in the tests of level one: there the message is all that is known. The
texts are those of DCGM's ``dcgm_errors.h``, 2.1.4 to 4.6.0, for errors that may be faults of a GPU. NVLinks that are down
(14) are not among them: 2.4 to 3.1 say so of every board that has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_GPU = r"(?P<gpu>\d{1,4})\b"
_MEASURED, _REQUIRED = r"(?P<measured>\d{1,12}(?:\.\d{1,6})?)", r"(?P<required>\d{1,12}(?:\.\d{1,6})?)"
_CALLS = frozenset({51, 64, 65})  # a call into CUDA failed; what CUDA said of it stands in the message
_CUDA = {  # texts of cuGetErrorString → the error that DCGM has for the same
    57: r"uncorrectable ECC error encountered",
    71: r"uncorrectable NVLink error detected",
}
_MESSAGES = {
    code: re.compile(pattern)
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
        57: rf"double-bit ECC error has occured on GPU {_GPU}|{_CUDA[57]}",
        58: rf"A memory mismatch was detected on GPU {_GPU}",
        62: rf"GPU {_GPU} only achieved a memory bandwidth of {_MEASURED} GB/s, failing to meet {_REQUIRED} GB/s",
        63: rf"Max power of {_MEASURED} did not reach desired power minimum \S{{1,60}} of {_REQUIRED} for GPU {_GPU}",
        71: _CUDA[71],
        79: r"Detected a miscompare failure in the L1 cache",
        80: rf"GPU {_GPU} had uncorrectable memory errors and row remapping failed",
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

    DCGM 2.x joins the messages of several GPUs: each error has the part up to the next one.
    """
    found = sorted(
        ((match.start(), number, match) for number in _codes(code) for match in _MESSAGES[number].finditer(text)),
        key=lambda item: item[:2],
    )
    if not found:
        return [DiagnosticError(code, None, text)]
    starts = [0, *(start for start, _, _ in found[1:])]
    ends = [*starts[1:], len(text)]
    return [
        DiagnosticError(number, _gpu(match), text[start:end], _missed_pct(match))
        for start, end, (_, number, match) in zip(starts, ends, found, strict=True)
    ]


def _gpu(match: re.Match[str]) -> int | None:
    gpu = match.groupdict().get("gpu")
    return None if gpu is None else int(gpu)


def _missed_pct(match: re.Match[str]) -> float | None:
    values = match.groupdict()
    if not values.get("measured") or not float(values["required"]):
        return None
    required = float(values["required"])
    return round(abs(float(values["measured"]) - required) / required * 100, 2)


def _codes(code: int | None) -> Iterator[int]:
    if code is None:
        yield from _MESSAGES
    elif code in _CALLS:
        yield from _CUDA
    elif code in _MESSAGES:
        yield code
