"""A signal means the same whichever launcher tells of it."""

from __future__ import annotations

import pytest
from in_memory.daemon import RULES
from made_records import AT
from shipped import shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Verdict


def verdict(*lines: str) -> Verdict:
    reader = LogReader(shipped_signatures())
    found = reader.feed("".join(f"{line}\n" for line in lines).encode(), AT) + reader.finish(AT)
    return classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("['python3', '-u', 'pretrain.py'] exits with return code = -9", Cause.APP_OOM_HOST),
        ("['python3', '-u', 'pretrain.py'] exits with return code = -7", Cause.DATALOADER),
        ("['python3', '-u', 'pretrain.py'] exits with return code = -11", Cause.SOFTWARE_ENV),
        ("  exitcode  : -9 (pid: 4242)", Cause.APP_OOM_HOST),
        ("subprocess.CalledProcessError: Command 'x' died with <Signals.SIGKILL: 9>.", Cause.APP_OOM_HOST),
        ("ProcessExitedException: process 3 terminated with signal SIGKILL", Cause.APP_OOM_HOST),
        ("mpirun noticed that process rank 1 with PID 7 on node n3 exited on signal 7 (Bus error).", Cause.DATALOADER),
        ("worker exited with exit code 135", Cause.DATALOADER),
        ("  exitcode  : -24 (pid: 4242)", Cause.USER_CONFIG),
        ("  exitcode  : -25 (pid: 4242)", Cause.DISK_FULL),
        ("  exitcode  : -31 (pid: 4242)", Cause.SOFTWARE_ENV),
        ("  exitcode  : -12 (pid: 4242)", Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT),
    ],
)
def test_a_launchers_number_is_the_signals_name(line: str, cause: Cause) -> None:
    assert verdict(line).cause is cause


@pytest.mark.parametrize("line", ["exits with return code = 1", "  exitcode  : 2 (pid: 4242)", "ExitCode=1:0"])
def test_an_exit_code_that_is_no_signal_says_nothing(line: str) -> None:
    assert verdict(line).cause is Cause.UNKNOWN


def test_it_is_the_consequence_of_what_was_said_before() -> None:
    found = verdict("ModuleNotFoundError: No module named 'apex'", "exits with return code = -9")
    assert found.cause is Cause.SOFTWARE_ENV
