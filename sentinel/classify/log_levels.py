"""Tells by a record's level, as many loggers write it, whether a program only warns or says what it does."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sentinel.model.records import Evidence

# What a program tells below an error it mostly survives. How loggers write such a level: Python's, loguru's, structlog's,
# spdlog's, logfmt, JSON, log4j's, Rust's, letters of glog and TensorFlow, Python's warnings.
_LEVEL = re.compile(
    r"(?:\[| - |\| ?)(?:INFO|DEBUG)(?: ?\]| - | {0,5}\|)"
    r"|\[(?:info|debug|warn(?:ing)?) {0,6}\]|(?:^|\s)level=(?:info|debug|warn(?:ing)?)\b"
    r"|\"(?:level|levelname|severity)\": ?\"(?:info|debug|warn(?:ing)?|INFO|DEBUG|WARN)\"|\[NeMo [IW] "
    r"|[\dZ\]] {1,3}(?:(?:INFO|DEBUG) {1,8}|WARN {1,3})[\w.:\[(]"  # not NCCL's WARN, its word for errors
    r"|\b(?:INFO|DEBUG):(?:jax[\w.]{0,60}:|\d{4}-\d\d-\d\d )|:\d\d[.,]\d{3,9} [DIW] [a-z][\w.]{1,80}\] "  # of JAX, absl
    r"|\d\d:\d\d:\d\d\.\d{3,9}: I [\w./-]{0,120}/(?:cuda_diagnostics|cudart_stub|dso_loader|gpu_device)\.cc:\d"
    r"|\]:[WI]\d{4} \d\d:\d\d:[\d.]{2,9} \d{1,8} [\w./-]{1,120}\.py:\d"  # torch's own logger, behind the rank's number
    r"|(?:^|[\s\]>):])\[?[WI]\d{0,4} (?:\w+\.(?:cpp|cc|py)|\d\d:\d\d:)"
    r"|\[?\b(?:WARNING|WARN:|Warning:|NOTE:|INFO:|DEBUG:)(?:\W|$)"  # not behind Ray's tab: its word for a dead node, too
    r"|(?:^|[\s\]])\[[DIW]\] "
    # TensorFlow's and XLA's W is the level of an allocation that fails, too: only what they find at their start.
    r"|\d\d:\d\d:\d\d\.\d{3,9}: W [\w./-]{0,120}/"
    r"(?:dso_loader|gpu_device|py_utils|nvptx_compiler|asm_compiler|redzone_allocator)\.cc:\d"
    r"|\b\w*Warning: |^(?:\S{1,8} )?(?:WARN|INFO|DEBUG) {1,5}\d{2,4}-\d\d[ -]"
    r"|\[[DIW] \d{4}-\d\d-\d\d[ T]"  # of optuna, tornado
    r"|\)[,;] using (?:the )?(?:step|previous|last|default|older|local|cached)"
    r"|\b[Rr]etrying (?:in|after|request|\()|\bwill (?:be )?retr(?:y|ied)\b|\bretry ([1-9]\d?)/(?!\1\b)\d"
    # What is tried again has ended nothing yet.
)
# What it says that it goes on without, where it raises nothing.
_GOES_ON = re.compile(
    r"(?i)\bUsing the latest cached version\b"
    r"|\bfall(?:s|ing)? back (?:to|on)\b|\b(?:going to|using) \S{1,80} instead\b|\bcaught (?:in \w{1,20}, |by \w)"
    r"|\bresetting TMPDIR=|\(skipped\b|[,;.] skipping\b|\bretries with\b"
    r"|\bregistered handlers? for\b|\(only needed (?:for|by|with)\b"
    r"|\b(?:is|be|are|was) (?:ignored|disabled|skipped)\b|\(ignored\)"
    # The shell runs the next line of its script.
    r"|\bLmod has detected the following error\b|\bcannot be loaded due to a conflict\b"
    r"|\bignore (?:the )?error\b|\baccepting this\b|\bcontinuing (?:without|anyway)\b"
    r"|\bfailed call to cuInit: CUDA_ERROR_NO_DEVICE"  # TensorFlow and XLA then use the CPU
    r"|\bcompiled without GPU support\. 8-bit"  # bitsandbytes, as it is imported
    # Printed where it was caught: Python puts the exception's class before it.
    r"|(?:^|[\]:}\d-] {1,2}| F )No module named '[\w.]{1,80}'$"
    r"|does not currently take into account|\bthrown while requesting\b"
    r"|\b(?:may|might|can|could) (?:crash|cause|lead|result|harm|break)\b|\bbut you have \S{1,60} \S{1,40} which is incomp"
)
_FRAME = re.compile(r'(\S.{4,120}?) {0,12}\bFile "[^"]{1,300}", line \d{1,7}\b')
# What stands before a record's text: its level, and behind that at most who wrote it.
_RECORD = re.compile(r"\b(?:INFO|DEBUG|WARN(?:ING)?|info|debug|warn(?:ing)?)\b(?:\W{1,8}[\w.:<>]{1,60}){0,2}\W{0,4}$")
_HEAD = 200  # characters in which a record's level stands
_NUMBERS = re.compile(r"\d{1,20}")
# Whatever its level, it is the last word.
_ENDS = re.compile(r"(?i)[.;,:!] {1,2}(?:exiting|aborting|quitting)\b[.! ]{0,4}$")
_RAISED = re.compile(r"\b[A-Z]\w*(?:Error|Exception): ")


def records_of_lines(evidence: Iterable[Evidence]) -> dict[str | None, re.Pattern[str]]:
    """By log whose every line is a record: what stands before a line's text, its numbers aside.

    A launcher that hands on what its program prints gives each line its own level, a traceback's, too. A line that begins
    otherwise, as with another level, is no such record.
    """
    prefixes = ((item.where.path, item.data.get("prefix") or _before_frame(item.text)) for item in evidence)
    found = {path: text for path, text in prefixes if isinstance(text, str) and _RECORD.search(text)}
    return {path: re.compile(r"\d{1,20}".join(map(re.escape, _NUMBERS.split(text)))) for path, text in found.items()}


def _before_frame(text: str) -> str:
    found = _FRAME.match(text)
    return found[1] if found else ""


def only_told(text: str) -> bool:
    """Whether a line of a program's is no error: a warning of its own, or a mere record of what it does."""
    head = text[:_HEAD]
    if _ENDS.search(text):
        return False
    return _LEVEL.search(head) is not None or (_GOES_ON.search(head) is not None and not _RAISED.search(head))
