"""The table of incidents that several commands show. Its columns have the names of the JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sentinel.cli.operator.output import echo, shown, styled_state, table, when

COLUMNS = ("id", "opened", "state", "cause", "culprit nodes", "job", "scope", "confidence", "outcome")


_LESS = ("outcome", "scope")  # an open incident has no outcome, and its cause tells most of the scope
_WIDE = ("culprit nodes", "job", *_LESS, "confidence")


def incident_table(
    title: str, rows: Iterable[dict[str, Any]], *, of_one_job: bool = False, still_open: bool = False
) -> None:
    """``still_open``: these matter most; where a line is too short for culprit, job and confidence, each is a block."""
    kept = [n for n, name in enumerate(COLUMNS) if not (of_one_job and name == "job")]
    table(
        title,
        [COLUMNS[n] for n in kept],
        ([cells[n] for n in kept] for cells in map(_row, rows)),
        wide=_LESS if still_open else _WIDE,
        whole=("id", "opened", "state", "cause", "job", "scope", "confidence"),
    )


def tell_cut(seen: Mapping[str, Any], what: str = "incidents", *, beside: bool = False) -> None:
    """Say so where a view could not be made of all there are. ``beside``: on stderr, as JSON is on stdout."""
    if seen.get("cut"):
        echo(f"There are more {what} than are read at once: the oldest are missing.", err=beside)


def no_incident(seen: Mapping[str, Any], kind: str = "") -> str:
    """``No incident``, or that none is of the jobs of who asks, where those of others are not shown."""
    return f"No {kind}incident" + (" of your jobs" if seen.get("own_only") else "")


def state_words(row: dict[str, Any]) -> str:
    """The incident's state, and what it waits for where it waits."""
    kinds = ", ".join(dict.fromkeys(shown(wait["kind"]) for wait in row.get("waits") or ()))
    return f"{shown(row['state'])}: {kinds}" if kinds else shown(row["state"])


def _cause(row: dict[str, Any]) -> object:
    """What an operator said that it was, by which lists are chosen, and what was judged."""
    told = row.get("corrections")
    return f"{shown(told[-1]['cause'])}, judged {shown(row['cause'])}" if told else row["cause"]


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    state = styled_state(row["state"])
    state.append(state_words(row).removeprefix(shown(row["state"])))
    return (
        row["id"],
        when(row["opened_at"]),
        state,
        _cause(row),
        row["culprit_nodes"] or [],
        row["job"],
        row["scope"],
        f"{row['confidence']:.0%}" if row["confidence"] is not None else None,
        row["outcome"],
    )
