"""Metrics in Prometheus's text form (dcgm-exporter, nvidia_gpu_exporter): values, not words."""

from __future__ import annotations

import re

from sentinel.evidence.reports.fields import field_of, say_field
from sentinel.evidence.reports.page import Page, gpu_number, positive

_ABOUT = re.compile(r"^# (?:HELP|TYPE) [a-zA-Z_:][\w:]{0,200}(?: |$)")
_SAMPLE = re.compile(
    r"^([a-zA-Z_:][\w:]{0,200})(?:\{([^\n]{0,4000})\})? (-?[0-9][0-9.eE+-]{0,40}|NaN|[+-]Inf)(?: -?\d{1,16})?\s{0,8}$"
)
_GPU = re.compile(r'(?:^|,)\s{0,4}gpu="(\d{1,5})"')
_XID = re.compile(r'(?:^|,)\s{0,4}xid="(\d{1,3})"')
_COUNTER = re.compile(r"^#? {0,4}DCGM_(?:FI|EXP)_\w{2,80}\s{0,8}(?:,[^\n]{0,400})?$")  # of an exporter's list of fields
_OF_GPUS = re.compile(r"^(?:DCGM_|nvidia_smi_|amd_|nvml_)")


def read_metrics(page: Page) -> None:
    """Samples and their comments, where the text is such a page: HELP lines tell what a fault would be called."""
    for number, line in enumerate(page.lines):
        if _ABOUT.match(line) or _COUNTER.match(line):
            page.silence(number)
            continue
        match = _SAMPLE.match(line)
        if match is None or not (match[2] is not None or _OF_GPUS.match(match[1])):
            continue
        page.silence(number)
        labels = _GPU.search(match[2] or "")
        gpu = gpu_number(labels[1]) if labels else None
        counted = _XID.search(match[2] or "") if match[1].startswith("DCGM_EXP_XID_ERRORS_COUNT") else None
        if counted and positive(match[3]):
            say_field(page, number, field_of("XIDER"), counted[1], gpu)
        say_field(page, number, field_of(match[1]), match[3], gpu)
