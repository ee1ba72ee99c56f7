"""What an earlier installation, or the site, left on this host: read before anything is planned."""

from __future__ import annotations

from pathlib import Path

from sentinel.cli.install.files import SETTINGS
from sentinel.cli.install.host import below
from sentinel.config.settings import Settings, load
from sentinel.errors import SentinelError


def daemon_settings(root: Path) -> Settings | None:
    """The daemon's settings of this host; None: there are none, or they cannot be read, which their own check says."""
    path = below(root, f"{SETTINGS}/sentinel.toml")
    try:
        return load(path, Settings) if path.exists() else None
    except SentinelError:
        return None
