"""Weighs an exception that says that what was read is damaged, by what that was: a checkpoint, samples or settings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sentinel.model.records import Cause, Evidence

C = Cause
# What a file's content failed, whoever reads it and however: it ends early, or is not of the format that is expected.
_UNREADABLE = re.compile(
    r"\b(?:JSONDecodeError|EOFError|UnpicklingError|zlib\.error|struct\.error|UnicodeDecodeError|Bad(?:Zip|Gzip)File"
    r"|LZMAError|ZstdError|ArrowInvalid|tarfile\.\w{0,16}Error|ReadError)\b"
    r"|(?i:\bunpack failed\b|\bbuffer (?:size must be a multiple|is smaller than)|\bcannot reshape array of size"
    r"|\bfile containing pickled data\b|\bno data left in file\b|\bcorrupt|\btruncated\b|\bmalformed\b|\bincomplete\b"
    r"|\bchecksums?\b|\bcrc\d{0,2}\b|\bmagic\b|\b(?:unexpected|premature) (?:end|eof)\b|\bshorter than\b|\btoo short\b"
    r"|\binvalid (?:header|load key|start byte)\b|\bnot an? (?:valid |g?zip|tar |hdf5)|\bPytorchStreamReader failed\b)"
)
_OF_CONTENT: Mapping[str, Mapping[Cause, float]] = {
    "checkpoint": {C.CHECKPOINT_CORRUPT: 4.4, C.USER_CONFIG: 1.2, C.DATALOADER: 0.6},
    "data": {C.DATALOADER: 4.0, C.CHECKPOINT_CORRUPT: 0.6},
    "settings": {C.USER_CONFIG: 3.8, C.CHECKPOINT_CORRUPT: 0.8},
}
_OF_TYPES = re.compile(r"\b(?:TypeError|AttributeError): ")  # the program's own slip, wherever it happens
OWN = 0.25  # share of an exception's usual weight for the user's code where what was read is known


def of_content(evidence: Evidence, weights: Mapping[Cause, float], *, known: bool) -> Mapping[Cause, float] | None:
    """None where nothing says that what was read is damaged, or no name tells what was read.

    ``known``: the line's rule says that it is damaged.
    """
    read = _OF_CONTENT.get(str(evidence.data.get("reads") or ""))
    if read is None or not (known or _is_damaged(evidence)):
        return None
    likeliest = max(read, key=read.__getitem__)
    stronger = max(read[likeliest], weights.get(likeliest, 0.0))
    return {C.USER_CODE: OWN * weights.get(C.USER_CODE, 0.0), **read, likeliest: stronger}


def _is_damaged(evidence: Evidence) -> bool:
    """Whether it says so, or a check of the length or of a mark of what was read failed."""
    checked = evidence.data.get("measures") is True and _OF_TYPES.search(evidence.text) is None
    return checked or _UNREADABLE.search(evidence.text) is not None
