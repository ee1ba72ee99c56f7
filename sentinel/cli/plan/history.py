"""Where ``sentinel plan`` takes a cluster's history from: a file, or the running daemon."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sentinel.errors import FileError, UserError
from sentinel.given_files import opened
from sentinel.planning import history
from sentinel.planning.limits import PlanningError

MOST_HISTORY_BYTES = 256 * 2**20


def history_of(given: str) -> history.FleetHistory:
    """``daemon`` asks the running daemon for the cluster's own history; anything else is a file."""
    if given != "daemon":
        return read_history(Path(given))
    from sentinel.cli.operator.daemon_client import CONFIG, view

    document = view(Path(os.environ.get("SENTINEL_CONFIG", CONFIG)), "past")
    if not document.get("gpu_s"):
        raise UserError("the daemon has no history yet: no job ran under its eyes", fix="give the inputs themselves")
    try:
        return history.history_from(document)
    except PlanningError as error:
        raise UserError(f"the daemon's history cannot be used: {error.message}", fix=error.fix) from error


_FIX = "write it with `sentinel import --out FILE`, or as docs/planning.md says"  # where the error has none


def read_history(path: Path) -> history.FleetHistory:
    """The history file, strictly: errors name file, line or key."""
    try:
        with opened(path) as file:
            document = json.loads(file.whole(MOST_HISTORY_BYTES).decode("utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}", fix="Check the path.") from error
    except UnicodeDecodeError as error:
        raise FileError(path, f"is not UTF-8 at byte {error.start}", fix="save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise FileError(path, f"is not JSON: {error.msg}", line=error.lineno, fix=_FIX) from error
    except (RecursionError, ValueError) as error:
        raise FileError(path, f"is not JSON of ours: {error}", fix=_FIX) from error
    try:
        return history.history_from(document)
    except history.HistoryError as error:
        raise FileError(path, error.message, key=error.key, fix=error.fix or _FIX) from error
    except PlanningError as error:
        raise FileError(path, error.message, fix=error.fix or _FIX) from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")
