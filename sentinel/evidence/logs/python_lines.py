"""Lines of a log that are Python's: source that a traceback quotes, exceptions that a check or the language raised."""

from __future__ import annotations

import re

from sentinel.config.rules import Form

# A line of source that a traceback quotes names an error that may never have happened.
QUOTED = re.compile(
    rb"[^\n]{0,60}?(?: {4,}|\t)(?:raise|if|elif|return|except|assert|with|for|while|yield|warnings\.warn)[ (]"
    rb"[^\n]{0,200}(?:[(:,\[{]|\))\s*$",
    re.MULTILINE,
)
# What Python, or a check in a program, says is no word of the machine's, whatever words it uses.
MACHINES = frozenset({Form.KERNEL, Form.DCGM, Form.SLURM, Form.FABRIC, Form.STORAGE})
RAISED = re.compile(
    rb"(?:^|[\s\]:>.])(?:Assertion|Value|Key|Type|Index|Attribute|Name|NotImplemented|Import|ModuleNotFound|Syntax|ZeroDivision)Error"
    rb"(?:: |$)",
    re.MULTILINE,
)
