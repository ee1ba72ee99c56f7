"""Weighs an exception that says that what was read is damaged, by what that was: a checkpoint, samples or settings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sentinel.model.records import Cause, Evidence

C = Cause
# Classes by which a reader says that the content ends early, or is not of its format.
_OF_READERS = re.compile(
    r"\b(?:JSONDecodeError|EOFError|UnpicklingError|zlib\.error|struct\.error|UnicodeDecodeError|Bad(?:Zip|Gzip)File"
    r"|LZMAError|ZstdError|ArrowInvalid|tarfile\.\w{0,16}Error|ReadError)\b|(?i:\bunpack failed\b)"
    r"|\bbuffer (?:size must be a multiple|is smaller than)|\bfile containing pickled data\b|\bNo data left in file\b"
    r"|\binvalid (?:load key|start byte)\b|\bPytorchStreamReader failed\b|\bunexpected EOF\b"
)
# Words of damage, and what must stand beside them: they are said of many things.
_DAMAGED = re.compile(
    r"(?i)\b(?:corrupt\w{0,4}|truncated|malformed|incomplete|checksums?|crc\d{0,2}|magic|shorter than|too short"
    r"|(?:unexpected|premature) (?:end|eof)|invalid header"
    r"|not an? (?:valid )?(?:zip|gzip|tar|hdf5|json|npy|pickle|archive))\b"
)
_A_FILE = re.compile(
    r"(?i)\b(?:files?|archive|header|footer|records?|shards?|bytes?|stream|blob|payload|pickle|zip|gzip|tar|hdf5|json|npy"
    r"|images?|checkpoint|ckpt|offset|eof|samples?)\b|\.[a-z]{2,5}\b"
)
# What is no damage: what a safe loader refuses, the terminal that a program asks, and what Python says of code.
_NO_DAMAGE = re.compile(
    r"Weights only load failed|\bweights_only\b|Unsupported (?:global|class|operand)|EOF when reading a line"
    r"|\b(?:Type|Attribute|Key|Index|Name|UnboundLocal|NotImplemented|ZeroDivision|Recursion|Import|ModuleNotFound|Timeout)Error\b"
)
_RESHAPED = "cannot reshape array of size"  # of NumPy's reader: the array is shorter than its header says
_OF_CONTENT: Mapping[str, Mapping[Cause, float]] = {
    "checkpoint": {C.CHECKPOINT_CORRUPT: 4.4, C.USER_CONFIG: 1.2, C.DATALOADER: 0.6},
    "data": {C.DATALOADER: 4.0, C.CHECKPOINT_CORRUPT: 0.6},
    "settings": {C.USER_CONFIG: 3.8, C.CHECKPOINT_CORRUPT: 0.8},
}
_READING: Mapping[str, Mapping[Cause, float]] = {  # where nothing says that it is damaged
    "checkpoint": {C.CHECKPOINT_CORRUPT: 2.4, C.USER_CONFIG: 2.0, C.USER_CODE: 1.0},
    "data": {C.DATALOADER: 2.6, C.USER_CODE: 1.6, C.USER_CONFIG: 1.0},
    "settings": {C.USER_CONFIG: 2.8, C.USER_CODE: 1.0},
}
NAMED = 0.25  # share of a class's usual weight for the user's code where a name says what was done


def of_content(evidence: Evidence, weights: Mapping[Cause, float], *, known: bool) -> Mapping[Cause, float] | None:
    """None where nothing says that what was read is damaged, or no name tells what was read.

    ``known``: the line's rule says that it is damaged.
    """
    read = _OF_CONTENT.get(str(evidence.data.get("reads") or ""))
    if read is None or _NO_DAMAGE.search(evidence.text) or not (known or _is_damaged(evidence)):
        return None
    likeliest = max(read, key=read.__getitem__)
    stronger = max(read[likeliest], weights.get(likeliest, 0.0))
    return {C.USER_CODE: NAMED * weights.get(C.USER_CODE, 0.0), **read, likeliest: stronger}


def read_there(evidence: Evidence) -> Mapping[Cause, float]:
    """Causes of a failure of which only is known what was being read; none where no name tells that."""
    return _READING.get(str(evidence.data.get("reads") or ""), {})


def _is_damaged(evidence: Evidence) -> bool:
    """Whether it says so, or a check of the length or of a mark of what was read failed."""
    text = evidence.text
    if evidence.data.get("measures") is True and ("AssertionError" in text or evidence.data.get("raises") is True):
        return True
    if _RESHAPED in text and "/numpy/lib/" in str(evidence.data.get("frame") or ""):
        return True
    damaged = _DAMAGED.search(text) is not None and _A_FILE.search(text) is not None
    return damaged or _OF_READERS.search(text) is not None
