"""Arguments that several commands share: nodes, jobs, incidents, since when. A shell completes them by asking the daemon."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from sentinel.cli.operator.daemon_client import CONFIG, view
from sentinel.errors import FileError, SentinelError, UserError
from sentinel.model.identity import task_named
from sentinel.model.vocabulary import Cause

COMPLETION_S = 1.0  # deadline for names: a person who presses Tab does not wait longer
if TYPE_CHECKING:
    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType  # not generic before click 8.4
F = TypeVar("F", bound=Callable[..., Any])


class Named(_Type):
    """Text that a shell completes with names that the daemon knows."""

    def __init__(self, name: str, *lists: str) -> None:
        self.name = name
        self._lists = lists

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        config = Path(ctx.params.get("config") or os.environ.get("SENTINEL_CONFIG", CONFIG))
        try:
            known = view(config, "names", deadline_s=COMPLETION_S)
        except SentinelError:
            return []  # no daemon, no names: an error in the middle of a line helps nobody
        names = [
            *(["last"] if "incidents" in self._lists else []),
            *(str(n) for key in self._lists for n in known[key]),
        ]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class Job(Named):
    """A job's id, or a task of an array as squeue shows it (440_2): the daemon knows its id."""

    def __init__(self) -> None:
        super().__init__("job", "jobs")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int) or task_named(value):
            return value  # type: ignore[no-any-return]
        if not value.isdecimal():
            self.fail(f"{value!r} is no id of a job; squeue lists them", param, ctx)
        return int(value)


class Finite(click.FloatRange):
    """A number from ``min`` on; click itself takes nan and inf, of which no time can be made."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is no finite number", param, ctx)
        return number


ABOVE_ZERO = Finite(0, min_open=True)


def _given(value: Any) -> Any:
    """
    Raises:
        UserError: it is empty. As a path that would be the current folder.
    """
    if value in ("", b""):
        raise UserError("a path is empty", fix="Was a variable not set? The current folder is written as a dot.")
    return value


class GivenPath(click.Path):
    """A path that is not empty."""

    def __init__(self, *, readable: bool = True) -> None:
        super().__init__(path_type=Path, readable=readable)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        return Path(os.fsdecode(super().convert(_given(value), param, ctx)))


class GivenText(click.types.StringParamType):
    """Text in which a path stands, and that is not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(_given(value), param, ctx)


class ExistingPath(GivenPath):
    """A file or folder that must be there: what is missing is a wrong argument (exit status 2) in every command."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = super().convert(value, param, ctx)
        require_there(path)
        return path


def require_there(path: Path) -> None:
    """
    Raises:
        FileError: nothing is there, or one may not look whether it is.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        fix = f"check the path; a relative one begins at {Path.cwd()}"
        raise FileError(path, "is not there", fix=fix) from None
    except OSError as error:
        fix = "check the path and the rights of the folders above it"
        raise FileError(path, f"cannot be read: {error.strerror}", fix=fix) from error


def rules_option(words: str) -> Callable[[F], F]:
    """``--rules``: rules of the site, a file or a folder with some."""

    def checked(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and path.is_dir() and not any(path.glob("*.toml")):
            raise FileError(path, "holds no rules", fix="name a folder with files *.toml in it, or one such file")
        return path

    return click.option("--rules", "rules_path", type=ExistingPath(), callback=checked, help=words)


def was_given(name: str) -> bool:
    """Whether this option stands on the command line: no default, nor from the environment."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_unused(why: str, fix: str, *names: str) -> None:
    """
    Args:
        why: the options of these names would change nothing, e.g. "beside --replay".

    Raises:
        UserError: one of them was given.
    """
    options = {option.name: option.opts[0] for option in click.get_current_context().command.params}
    unused = [options[name] for name in names if was_given(name)]
    if unused:
        raise UserError(f"{' and '.join(unused)} would change nothing {why}", fix=fix)


NODES = Named("nodes", "nodes")
JOB = Job()
SUBJECT = Named("what", "incidents", "nodes", "jobs")
INCIDENT = Named("incident", "incidents")
CAUSE = click.Choice([str(cause) for cause in Cause])


def nodes_argument(*, required: bool = True) -> Callable[[F], F]:
    """Nodes, each argument one name or a list as Slurm writes them: ``n2 n3``, ``n[2-3] n7``. The command gets one list."""

    def joined(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> str | None:
        return ",".join(given) or None

    metavar = "NODES..." if required else "[NODES]..."
    return click.argument("nodes", nargs=-1, required=required, type=NODES, metavar=metavar, callback=joined)


def since_time(text: str, now: datetime) -> datetime:
    """The moment that ``text`` means: a length of time before now (``7d``, ``90min``), or a date or time of this zone.

    Raises:
        UserError: neither of these.
    """
    from sentinel.planning.limits import PlanningError
    from sentinel.planning.quantities import duration

    try:
        return now - timedelta(seconds=duration(text, "--since").value)
    except (PlanningError, OverflowError):
        pass
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):  # also the first and the last day of the calendar, in another zone
        pass
    try:
        clock = time.fromisoformat(text)
    except ValueError as error:
        fix = "write how long ago (7d, 12h, 90min), a clock time (03:00), or a date (2026-03-01, 2026-03-01T03:00)"
        raise UserError(f"--since {text!r:.60} is no time", fix=fix) from error
    today = now.astimezone().date()
    at = datetime.combine(today, clock).astimezone()
    if at > now:  # by the clock of that day, which summer time may have changed since
        at = datetime.combine(today - timedelta(days=1), clock).astimezone()
    return at.astimezone(UTC)


def since_option(default: str | None = None) -> Callable[[F], F]:
    """``--since``, the same on every command; ``since_time`` reads it."""
    return click.option(
        "--since",
        metavar="WHEN",
        default=default,
        show_default=default is not None,
        help="From then on: 7d, 12h, 03:00, 2026-03-01.",
    )


def filter_options(command: F) -> F:
    """``--since --node --job --user --cause``, the same on every listing."""
    for option in (
        click.option("--cause", type=CAUSE, metavar="CAUSE", help="Of this cause."),
        click.option("--user", help="Of this user's jobs."),
        click.option("--job", type=JOB, help="Of this job."),
        click.option("--node", "node", type=NODES, metavar="NODES", help="Of these nodes: n7 or n[1-3,7]."),
        since_option(),
    ):
        command = option(command)
    return command


def asked_filters(**given: Any) -> dict[str, Any]:
    """The arguments of a view from the options of ``filter_options``; what was not given is left out."""
    since = given.pop("since", None)
    chosen = {name: value for name, value in given.items() if value is not None}
    if since is not None:
        chosen["since"] = since_time(since, datetime.now(UTC)).isoformat()
    return chosen


def filter_words(chosen: dict[str, Any]) -> str:
    """The chosen filters in words, to stand after "incidents"."""
    from sentinel.cli.operator.output import clock, shown

    words = [f" of {name} {shown(value)}" for name, value in chosen.items() if name != "since"]
    return "".join(words) + (f" since {clock(chosen['since'])}" if "since" in chosen else "")
