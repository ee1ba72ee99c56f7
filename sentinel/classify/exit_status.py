"""Reads how a process ended from exit codes that launchers print: the code stands for a signal."""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.config.rules import Rule
from sentinel.model.records import Evidence, Scalar

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
_OF_USERS = frozenset({10, 12})  # SIGUSR1 and SIGUSR2: sent by sbatch --signal or people, never by a fault
_CRASHES = frozenset({4, 6, 7, 8, 9, 11})  # signals that nobody sends to have a job save and end


def rule_of_exit(evidence: Evidence, by_id: Mapping[str, Rule]) -> Rule | None:
    """The rule for the signal that ended the process; None where it was none, or one that says nothing."""
    number, code, name = (evidence.data.get(field) for field in ("signal", "exit_code", "text"))
    if not isinstance(number, int) and isinstance(code, int):
        number = -code if code < 0 else code - _SHELL
    if not isinstance(number, int):
        number = next((known for known, (said, _) in _SIGNALS.items() if said == name), 0)
    _, rule = _SIGNALS.get(number, ("", ""))
    return by_id.get(rule)


def ends_by_a_warning(signal: Scalar, code: Scalar, *, near: bool) -> bool:
    """Whether a failed job ended by the signal with which Slurm tells it that its time is nearly over.

    Args:
        code: exit code of its script: a shell and srun add 128 to the signal that ended a process.
        near: whether it ended when that signal is sent.
    """
    sent = signal or (code - _SHELL if isinstance(code, int) and code > _SHELL else 0)
    return sent in _OF_USERS or (near and sent not in _CRASHES)
