"""What ``rocm-smi`` prints of RAS, as sentences: uncorrectable errors by block of a GPU."""

from __future__ import annotations

import re

from sentinel.evidence.reports.page import Page, gpu_number, positive

_OF = re.compile(r"^GPU\[(\d{1,4})\]\s{0,8}: {1,4}RAS INFO\s{0,8}$")
_HEAD = re.compile(r"^\s{1,40}Block\s{1,16}Status\s{1,16}Correctable Error\s{1,8}Uncorrectable Error\s{0,8}$")
_BLOCK = re.compile(
    r"^\s{1,40}([A-Z][A-Z0-9_]{1,15})\s{1,16}(?:ENABLED|DISABLED)\s{1,40}(\d{1,12})\s{1,40}(\d{1,12})\s{0,8}$"
)


def read_ras(page: Page) -> None:
    """``rocm-smi --showrasinfo``."""
    gpu: int | None = None
    for number, line in enumerate(page.lines):
        if card := _OF.match(line):
            gpu = gpu_number(card[1])
        elif gpu is not None and (block := _BLOCK.match(line)):
            page.silence(number)
            if positive(block[3]):
                page.say(number, f"GPU {gpu} {block[1]}: {block[3]} uncorrectable ECC errors", gpu)
        elif gpu is not None and line.strip() and not _HEAD.match(line):
            gpu = None
