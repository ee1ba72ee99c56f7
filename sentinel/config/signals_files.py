"""Where the signals and counters lie: beside the rules of this Sentinel, and in a file or folder of the site."""

from __future__ import annotations

from pathlib import Path

from sentinel.config.rules_files import read_file, rules_folder
from sentinel.config.signals_toml import Signals, parse_signals
from sentinel.errors import FileError


def load_signals(site: Path | None = None) -> Signals:
    """
    Raises:
        FileError: a file cannot be read, or its content is refused; names file, line and key.
    """
    shipped = sorted((rules_folder() / "signals").glob("*.toml"))
    if not shipped:
        raise FileError(rules_folder() / "signals", "no signals found", fix="install the package again")
    extra: list[Path] = []
    if site is not None:
        if not site.exists():
            raise FileError(site, "no such file or folder", key="prometheus.rules", fix="name an existing one, or none")
        extra = sorted(site.glob("*.toml")) if site.is_dir() else [site]
    return parse_signals([read_file(path) for path in shipped], site=[read_file(path) for path in extra])
