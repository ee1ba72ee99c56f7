"""What an earlier installation, or the site, left on this host: read before anything is planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sentinel.cli.install.files import SETTINGS, SLURM_CONF, File
from sentinel.cli.install.host import Write, below, writes
from sentinel.config.settings import Settings, load
from sentinel.errors import SentinelError


def daemon_settings(root: Path) -> Settings | None:
    """The daemon's settings of this host; None: there are none, or they cannot be read, which their own check says."""
    path = below(root, f"{SETTINGS}/sentinel.toml")
    try:
        return load(path, Settings) if path.exists() else None
    except SentinelError:
        return None


def recorded_slurm_conf(root: Path) -> Path | None:
    """The slurm.conf that the last installation was given; None: it lay where Slurm has it."""
    try:
        text = below(root, SLURM_CONF).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    place = next((line for line in text.splitlines() if line.startswith("/")), "")
    return below(root, place) if place else None


def slurm_conf_record(path: Path | None, root: Path, usual: Sequence[str]) -> list[Write]:
    """What an upgrade or a removal by the package, which are given no option, must know later: where slurm.conf lies."""
    if path is None or not path.is_relative_to(root.absolute()):
        return []
    place = f"/{path.relative_to(root.absolute())}"
    if place in usual and not below(root, SLURM_CONF).exists():
        return []
    text = f"# Written by `sentinel install`: the slurm.conf that names the hooks of this host.\n{place}\n"
    return writes([File(SLURM_CONF, text)], root)
