"""Opens the sources of ``sentinel replay`` and ``sentinel bundle``: a bundle, logs, or a store (read-only)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from sentinel.config.settings import Settings
from sentinel.errors import FileError, UserError
from sentinel.given_files import opened
from sentinel.model.recording import Recording

STORE = "sentinel.db"  # in the folder that [daemon] state names
LAST = "last"  # as `sentinel why` takes it
LEAST_BEGINNING = 4  # characters of an incident's id


def recording_of(
    source: str, *, since: datetime, incident: str | None = None, node: str | None = None, rules: Path | None = None
) -> Recording:
    """
    Args:
        source: a bundle, a SQLite file, the folder of one, a folder of logs, or the URL of a database.
        since: how far back; a bundle and logs are taken whole.
        rules: those of the site, by which lines of logs are recognised.

    Raises:
        UserError: there is no such source, or it is none.
        Unavailable: the database does not answer.
    """
    path = Path(source)
    if "://" not in source and not path.exists():
        raise FileError(
            path, "is not there", fix="name a bundle, the folder of a store or of logs, or the URL of a database"
        )
    if _is_bundle(source):
        from sentinel.replay.bundle import read_bundle

        _refuse_a_part(path, incident or node)
        return read_bundle(path)
    if _is_logs(source):
        from sentinel.cli.recordings.log_recording import recording_of_logs
        from sentinel.config.rules_files import load_rules
        from sentinel.evidence.logs.reader import Signatures

        _refuse_a_part(path, incident or node)
        return recording_of_logs(path, Signatures(load_rules(site=rules)))
    return _of_store(_url(source, path), since, datetime.now(UTC), incident, node)


def incident_named(source: str, what: str) -> str | None:
    """The incident of a store that a person means: by its id, by the beginning of it, or as the last one; None: by none.

    A node of that name is meant before an incident whose id only begins so.

    Raises:
        UserError: there is no incident at all, or several begin so.
    """
    from sentinel.adapters.store.store import Store

    store = Store(_url(source, Path(source)), read_only=True)
    try:
        if what == LAST:
            newest = store.incident_rows(limit=1)
            if not newest:
                raise UserError("there is no incident in the store", fix="name another store with --store")
            return str(newest[0]["id"])
        found = store.ids_that_begin(what) if len(what) >= LEAST_BEGINNING else []
        if what not in found and found and store.knows_node(what):
            return None
    finally:
        store.close()
    if what in found or len(found) == 1:
        return what if what in found else found[0]
    if found:
        raise UserError(f"several incidents begin with {what}: {', '.join(found)} ...", fix="write more of the id")
    return None


def is_taken_whole(source: str) -> bool:
    """Whether it is a bundle or a folder of logs, of which no time, incident or node is picked."""
    return _is_bundle(source) or _is_logs(source)


def _is_bundle(source: str) -> bool:
    return "://" not in source and Path(source).is_file() and _begins(Path(source), 2) == b"\x1f\x8b"


def _is_logs(source: str) -> bool:
    return "://" not in source and Path(source).is_dir() and not (Path(source) / STORE).exists()


def _refuse_a_part(path: Path, what: str | None) -> None:
    """Of a bundle and of logs no part can be taken: what was asked for would be given away with all the rest."""
    if what is not None:
        raise UserError(
            f"{path}: a bundle and a folder of logs are taken whole, not {what!a:.80} alone",
            fix="leave out the incident or node, or name the store that it is of",
        )


def _begins(path: Path, count: int) -> bytes:
    try:
        with opened(path) as file:
            if file.is_pipe:
                raise FileError(path, "is a pipe", fix="name a file")
            return file.read(count)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}", fix="run it as the account of the daemon") from error


def store_of(settings: Settings) -> str:
    """The store of the daemon with these settings, as a source."""
    return settings.daemon.database or settings.daemon.state


def _url(source: str, path: Path) -> str:
    if "://" in source:
        return source
    file = path / STORE if path.is_dir() else path
    if not file.exists():
        raise FileError(path, "holds no store", fix="name the folder that [daemon] state names, with sentinel.db in it")
    if _begins(file, 15) != b"SQLite format 3":
        raise FileError(
            path, "is neither a bundle nor a store", fix="name a file that `sentinel bundle` wrote, or a store"
        )
    return f"sqlite:///file:{file}?mode=ro&uri=true"


def _of_store(url: str, since: datetime, until: datetime, incident: str | None, node: str | None) -> Recording:
    from sentinel.adapters.store.store import Store

    store = Store(url, read_only=True)
    try:
        found = store.recording(since=since, until=until, incident=incident, node=node)
    finally:
        store.close()
    if not found.incidents:
        if incident is not None:
            raise UserError(f"no incident {incident!r} in the store", fix="sentinel incidents lists them")
        recent = f"opened since {since:%Y-%m-%d %H:%M}Z"
        what = f"{recent} names node {node}, and none has that id" if node else f"was {recent}"
        raise UserError(f"no incident in the store {what}", fix="give a longer --since")
    return found
