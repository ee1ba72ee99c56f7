"""Reads how a process ended from exit codes that launchers print: the code stands for a signal."""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.config.rules import Rule
from sentinel.model.records import Evidence

EXIT_STATUS = "exit_status"  # kind of a line that tells a process's exit code or signal by number or name
# Linux's signals, each with the rule that reads its name.
_SIGNALS = {
    1: ("SIGHUP", "signal-hup"),
    2: ("SIGINT", "interrupt"),
    3: ("SIGQUIT", "signal-term"),
    4: ("SIGILL", "illegal-instruction"),
    5: ("SIGTRAP", "aborted"),
    6: ("SIGABRT", "aborted"),
    7: ("SIGBUS", "bus-error"),
    8: ("SIGFPE", "segfault"),
    9: ("SIGKILL", "killed"),
    10: ("SIGUSR1", "signal-term"),
    11: ("SIGSEGV", "segfault"),
    12: ("SIGUSR2", "signal-term"),
    15: ("SIGTERM", "signal-term"),
    24: ("SIGXCPU", "cpu-limit"),
    25: ("SIGXFSZ", "errno-file-too-large"),
    31: ("SIGSYS", "not-implemented"),
}
_SHELL = 128  # a shell's exit code of what a signal ended, less the signal


def rule_of_exit(evidence: Evidence, by_id: Mapping[str, Rule]) -> Rule | None:
    """The rule for the signal that ended the process; None where it was none, or one that says nothing."""
    number, code, name = (evidence.data.get(field) for field in ("signal", "exit_code", "text"))
    if not isinstance(number, int) and isinstance(code, int):
        number = -code if code < 0 else code - _SHELL
    if not isinstance(number, int):
        number = next((known for known, (said, _) in _SIGNALS.items() if said == name), 0)
    _, rule = _SIGNALS.get(number, ("", ""))
    return by_id.get(rule)
