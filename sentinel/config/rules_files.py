"""Where the rules lie: inside the installed package, in a checkout, and in a folder of the site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sentinel.config.convictions import Conviction, Convictions, Key
from sentinel.config.convictions_toml import read_convictions
from sentinel.config.rules import Rules
from sentinel.config.rules_document import Document, Origins
from sentinel.config.rules_toml import parse_rules
from sentinel.errors import FileError
from sentinel.given_files import file_text

SITE_FOLDER = Path("/etc/sentinel/rules.d")


def rules_folder() -> Path:
    """The rules that came with this Sentinel: ``sentinel/_data/rules`` when installed, ``rules/`` in a checkout.

    Raises:
        FileError: neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_data" / "rules", package.parent / "rules"):
        if any(folder.glob("*.toml")):
            return folder
    raise FileError(package / "_data" / "rules", "no rules found", fix="install the package again")


def load_rules(paths: Sequence[Path] | None = None, *, site: Path | None = None, try_shipped: bool = False) -> Rules:
    """The shipped rules (or those in ``paths``: files or folders), then the site's, which override by id.

    Patterns and examples of the site's are always tried. Those of the shipped rules were, by the tests of this version;
    ``sentinel rules test`` tries them again.

    Raises:
        FileError: a file cannot be read, or its content is refused; names file, line and key.
    """
    shipped = _files(paths if paths is not None else [rules_folder()])
    extra = [read_file(path) for path in _site_files(site)]
    try_first = try_shipped or paths is not None
    return parse_rules([read_file(path) for path in shipped], site=extra, try_first=try_first)


def load_convictions(site: Path | None = None) -> Convictions:
    """What convicts alone, by the same files: for hooks, which have no time for a thousand patterns.

    Raises:
        FileError: a file cannot be read, or one of its rows is refused; names file, line and key.
    """
    rows: dict[Key, Conviction] = {}
    origins = Origins()
    read_convictions(Document(*read_file(rules_folder() / "convictions.toml")), rows, origins)
    for path in _site_files(site):
        read_convictions(Document(*read_file(path), site=True), rows, origins)
    return Convictions(rows)


def without_rules(folder: str) -> str:
    """Why nothing of the folder that a site named for its rules is read; empty where something is, or none is named."""
    path = Path(folder)
    return (
        f"{folder} holds no rules: nothing there ends in .toml"
        if folder and path.is_dir() and not _files([path])
        else ""
    )


def _site_files(site: Path | None) -> list[Path]:
    if site is not None:
        return _files([site])
    return _files([SITE_FOLDER]) if SITE_FOLDER.is_dir() else []


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files.extend(sorted(path.glob("*.toml")))
        elif path.exists():
            files.append(path)
        else:
            raise FileError(path, "no such file or folder", fix="give a rules file or a folder of them")
    return files


def read_file(path: Path) -> tuple[str, str]:
    """Name and text of a rules or signals file.

    Raises:
        FileError: it cannot be read, or is no UTF-8.
    """
    return str(path), file_text(path)
