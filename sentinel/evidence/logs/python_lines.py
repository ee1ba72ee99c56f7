"""Lines of a log that are Python's: source that a traceback quotes, exceptions that a check or the language raised."""

from __future__ import annotations

import re

from sentinel.config.rules import Form, Role

OUTRIGHT = frozenset({Role.CAUSE, Role.SYMPTOM, Role.FALLBACK})

# A line of source that a traceback quotes names an error that may never have happened.
_QUOTED = re.compile(
    rb"[^\n]{0,60}?(?: {4,}|\t)(?:raise|if|elif|return|except|assert|with|for|while|yield|warnings\.warn)[ (]"
    rb"[^\n]{0,200}(?:[(:,\[{]|\))(?: {1,8}#[^\n]{0,120})?\s*$",
    re.MULTILINE,
)
# What Python, or a check in a program, says is no word of the machine's, whatever words it uses.
MACHINES = frozenset({Form.KERNEL, Form.DCGM, Form.SLURM, Form.FABRIC, Form.STORAGE})
RAISED = re.compile(
    rb"(?:^|[\s\]:>.])(?:Assertion|Value|Key|Type|Index|Attribute|Name|NotImplemented|Import|ModuleNotFound|Syntax|ZeroDivision)Error"
    rb"(?:: |$)",
    re.MULTILINE,
)
_FRAME_AT_END = re.compile(rb"([^\n]{0,60}?)File \"[^\"\n]{1,300}\", line \d{1,7}, in [^\n]{1,80}\n$")


def is_source(block: bytes, start: int, end: int) -> bool:
    """Whether the line is source that a traceback quotes: below a frame, and further in than that."""
    if _QUOTED.match(block, start, end):
        return True
    above = max(block.rfind(b"\n", 0, max(start - 1, 0)) + 1, start - 500)
    frame = _FRAME_AT_END.match(block, above, start)
    return frame is not None and block.startswith(frame[1] + b"  ", start, end)
