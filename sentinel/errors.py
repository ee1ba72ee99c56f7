"""The error tree. Only these cross from an adapter into a stage; the foreign error is kept as ``__cause__``.

SentinelError
├── UserError            a person can fix it: bad setting, bad argument, bad rule (exit status 2)
│   └── FileError        the same, with file, line and key
├── Unavailable          something outside did not answer: *not known*, never "empty" (exit status 3)
│   ├── Timeout          … within its deadline
│   ├── StandingBy       … since that daemon is not the active one
│   ├── Superseded       … since another daemon is active now: whatever this one still wants is not done
│   │   └── ContentLost  … since the database has lost what this daemon wrote: the same
│   └── Denied           … or refused us (authentication, rights)
├── Refused              a limit or a promise forbids it; nothing was done (exit status 4)
│   └── RefusedForNow    Slurm says no for a reason that nobody foresaw: it may be over in a minute
└── ProtocolError        an answer that cannot be understood
"""

from __future__ import annotations

from pathlib import Path


class SentinelError(Exception):
    """Base of all errors of ours. ``fix`` is the sentence that tells a person what to do next."""

    exit_status = 1
    usual_fix = "sentinel doctor looks for what is wrong"  # said by a command where the error itself has no fix
    took: tuple[str, ...] = ()  # of a message: addresses that have it all the same
    signed = False  # whether it is the daemon's own answer: its signature was checked

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class UserError(SentinelError):
    exit_status = 2
    usual_fix = "--help behind the command says what it takes"


class FileError(UserError):
    """Bad content of a file that a person wrote: always names the file, and line and key where known.

    ``others``: what else is wrong in it, where whoever read it went on.
    """

    def __init__(
        self, path: Path | str, message: str, *, line: int | None = None, key: str = "", fix: str = ""
    ) -> None:
        where = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{where}: {key + ': ' if key else ''}{message}", fix=fix)
        self.path = Path(path)
        self.line = line
        self.key = key
        self.others: tuple[FileError, ...] = ()


def all_of(faults: list[FileError]) -> FileError:
    """The first of these errors, with the rest and what each of them has as its ``others``."""
    first, *rest = [one for fault in faults for one in (fault, *fault.others)]
    first.others = tuple(rest)
    return first


class Unavailable(SentinelError):
    exit_status = 3
    usual_fix = "try again; sentinel doctor says what does not answer"
    after_s = 0.0  # the pause that the other side asks for before it is tried again
    unsure = False  # of a message: whether it may have arrived all the same
    late = False  # of a message: it was sent whole, and no answer came in time


class Timeout(Unavailable):
    pass


class StandingBy(Unavailable):
    pass


class Superseded(Unavailable):
    pass


class ContentLost(Superseded):
    pass


class Denied(Unavailable):
    usual_fix = "run it as an account that may: the files' owner, or an operator"


class Refused(SentinelError):
    exit_status = 4
    usual_fix = "nothing was done; sentinel status shows what is in force"


class RefusedForNow(Refused):
    pass


class ProtocolError(SentinelError):
    usual_fix = "both sides must be of one version: sentinel --version; sentinel doctor"
