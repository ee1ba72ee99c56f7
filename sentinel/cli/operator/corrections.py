"""``sentinel correct``: what the cause of an incident really was, and the labelled cases that come of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from sentinel.cli.operator.arguments import CAUSE, INCIDENT, asked_filters, since_option
from sentinel.cli.operator.daemon_client import ask, config_option, view
from sentinel.cli.operator.incident_table import tell_cut
from sentinel.cli.operator.output import echo, json_option, print_json, shown, table, when
from sentinel.errors import FileError, UserError
from sentinel.model.vocabulary import Cause, Scope


@click.command()
@click.argument("incident", required=False, type=INCIDENT)
@click.option("--cause", type=CAUSE, metavar="CAUSE", help="What it was.")
@click.option(
    "--scope",
    type=click.Choice([str(scope) for scope in Scope]),
    metavar="SCOPE",
    help="Where it was.  [default: where this cause is as a rule]",
)
@click.option("--note", help="How it was found out.")
@click.option(
    "--export", type=click.Path(path_type=Path), metavar="FILE", help="Write the corrected incidents as labelled cases."
)
@since_option()
@config_option
@json_option
def correct(
    incident: str | None,
    cause: str | None,
    scope: str | None,
    note: str | None,
    export: Path | None,
    since: str | None,
    config: Path,
    as_json: bool,
) -> None:
    """Say what the cause of INCIDENT was, where the verdict is wrong; without INCIDENT, list what was corrected.

    The verdict stays as it was judged, and so does what was done; what you say stands beside it and in the audit. From then
    on reports, scores of nodes and the history of failures count the incident as you said.

    --export writes one JSON object a line: the cause and scope that were found out, what had been judged, and the lines of
    evidence: cases for a rule of your own (sentinel rules --help). They hold what users printed; an existing file is not
    overwritten.

    \b
    Examples:
      sentinel correct 0f3a9c --cause user_code --note "same traceback on three other nodes"
      sentinel correct last --cause gpu_nvlink --scope link
      sentinel correct --since 30d
      sentinel correct --export cases.jsonl
    """
    if incident is not None:
        if cause is None:
            raise UserError("--cause is missing", fix=f"name what it was: {', '.join(Cause)}")
        if export is not None or since is not None:
            raise UserError("--export and --since are for all corrections", fix="leave INCIDENT out, or leave them out")
        _correct(incident, {"cause": cause, "scope": scope, "note": note}, config, as_json)
        return
    if cause is not None or scope is not None or note is not None:
        raise UserError("no incident is named", fix="sentinel incidents lists them; the beginning of an id is enough")
    seen = view(config, "incidents", corrected=True, **asked_filters(since=since))
    rows = seen["incidents"]
    tell_cut(seen, beside=as_json)
    if export is not None:
        cases = [_case(row, view(config, "why", incident=row["id"])["evidence"]) for row in rows]
        _write(export, cases)
        echo(f"{export}: {len(cases)} labelled cases, with lines that users' programs printed", err=as_json)
    elif not as_json:
        _list(rows)
    if as_json:
        print_json(rows)


def _correct(incident: str, said: Mapping[str, str | None], config: Path, as_json: bool) -> None:
    from sentinel.protocol import CHANGE

    if incident == "last":
        incident = view(config, "why", what=incident)["incident"]["id"]
    arguments = {"incident": incident} | {name: value for name, value in said.items() if value is not None}
    made = ask(config, CHANGE, {"change": "correct", "arguments": arguments})
    if as_json:
        print_json([made])
        return
    was = f"{shown(made['was'])} ({shown(made['was_scope'])})" if made["was"] else "nothing"
    echo(
        f"Incident {shown(made['incident'])}: {was} was judged, {corrected_words(made)} it was. Nothing is undone by this."
    )


def corrected_words(made: Mapping[str, Any]) -> str:
    return f"{shown(made['cause'])} ({shown(made['scope'])})"


def _list(rows: Iterable[Mapping[str, Any]]) -> None:
    told = [(row["id"], row["corrections"][-1]) for row in rows]
    if not told:
        echo("No verdict was corrected.")
        return
    columns = ("incident", "at", "by", "judged", "was", "scope", "note")
    table(
        "",
        columns,
        [(name, when(c["at"]), c["by"], c["was"], c["cause"], c["scope"], c["note"]) for name, c in told],
        wide=("scope", "note"),
        whole=("incident", "at", "judged", "was", "scope"),
    )


def _case(row: Mapping[str, Any], evidence: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A labelled case: what was found out, what was judged, and the lines in order of time."""
    told = row["corrections"][-1]
    lines = [{key: item[key] for key in ("at", "source", "kind", "rule", "trust", "text")} for item in evidence]
    return {
        "id": row["id"],
        "cause": told["cause"],
        "scope": told["scope"],
        "judged": told["was"],
        "judged_scope": told["was_scope"],
        "confidence": row["confidence"],
        "by": told["by"],
        "at": told["at"],
        "note": told["note"],
        "lines": lines,
    }


def _write(path: Path, cases: Iterable[Mapping[str, Any]]) -> None:
    """
    Raises:
        FileError: it is there already, or cannot be written.
    """
    import os

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            out.writelines(json.dumps(case) + "\n" for case in cases)
    except FileExistsError as error:
        raise FileError(path, "is there already", fix="name another file with --export, or remove this one") from error
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}", fix="name another file with --export") from error
