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
# Packages that fetch and unpack data, and how they say that the source or its content failed them.
_DATA = re.compile(
    r"(?i)/(?:site|dist)-packages/(?:datasets|fsspec|s3fs|gcsfs|adlfs|aiobotocore|botocore|boto3|s3transfer|huggingface_hub"
    r"|webdataset|streaming|litdata|torchdata|megatron/energon|tensorflow_datasets|grain|pyarrow|fastparquet|zstandard|lmdb"
    r"|aiohttp|urllib3|requests|httpx|google/cloud/storage|azure/storage|decord|PIL|nvidia/dali)/"
)
_SOURCE_FAILED = re.compile(
    r"(?:Connection|Timeout|Timed ?Out|Disconnect\w{0,4}|Protocol|HTTP|Client|Server|SSL|Read|Payload|Endpoint|IO|OS|Decode"
    r"|Decompression|Zstd|Arrow\w{0,8}|EOF|Checksum|Corrupt\w{0,3})(?:Error|Exception)?\b"
    r"|Retries exceeded|Server Disconnected"
)
SOURCE = 3.0  # natural-log odds that what the data come from is at fault
OWN_FAULT = 3.2  # natural-log odds that the library, or its version, is at fault
REFUSED = 1.0  # the same where the library may only have refused what it was given


def by_frame(evidence: Evidence, weights: Mapping[Cause, float]) -> Mapping[Cause, float]:
    """``weights`` of a line that names an exception, with what its innermost frame says."""
    frame = str(evidence.data.get("frame") or "")
    if not _LIBRARY.search(frame):
        return weights
    moved = dict(weights)
    if _DATA.search(frame) and _SOURCE_FAILED.search(evidence.text):
        moved[Cause.DATALOADER] = max(moved.get(Cause.DATALOADER, 0.0), SOURCE)
        return moved
    own = _OWN_FAULT.search(evidence.text) is not None
    moved[Cause.SOFTWARE_ENV] = max(moved.get(Cause.SOFTWARE_ENV, 0.0), OWN_FAULT if own else REFUSED)
    if own and Cause.USER_CODE in moved:
        moved[Cause.USER_CODE] = 0.5 * moved[Cause.USER_CODE]
    return moved
