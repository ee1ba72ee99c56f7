"""Whose code raised: the package of a traceback's innermost frame, beside the class of the exception."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sentinel.model.records import Cause, Evidence

# Installed packages, and trees of frameworks that are run from a checkout.
_LIBRARY = re.compile(
    r"(?i)/(?:site|dist)-packages/|/(?:megatron|nemo|deepspeed|transformers|transformer[_-]?engine|torchtitan|torchtune"
    r"|maxtext|levanter|axolotl|verl|trl|accelerate|apex|flash[_-]attention|fairseq\d?|lightning|xformers|vllm|sglang)"
    r"[\w.-]{0,16}/"
)
# What a caller's input hardly brings about: names and signatures that this release of the library has not.
_OWN_FAULT = re.compile(
    r"\b(?:AttributeError|TypeError|NameError|UnboundLocalError|ImportError|NotImplementedError|RecursionError)\b"
)
OWN_FAULT = 3.2  # natural-log odds that the library, or its version, is at fault
REFUSED = 1.0  # the same where the library may only have refused what it was given


def by_frame(evidence: Evidence, weights: Mapping[Cause, float]) -> Mapping[Cause, float]:
    """``weights`` of a line that names an exception, with what its innermost frame says."""
    if not _LIBRARY.search(str(evidence.data.get("frame") or "")):
        return weights
    moved = dict(weights)
    own = _OWN_FAULT.search(evidence.text) is not None
    moved[Cause.SOFTWARE_ENV] = max(moved.get(Cause.SOFTWARE_ENV, 0.0), OWN_FAULT if own else REFUSED)
    if own and Cause.USER_CODE in moved:
        moved[Cause.USER_CODE] = 0.5 * moved[Cause.USER_CODE]
    return moved
