"""Remembers what was read and found valid, so that it is not read again while it looks the same: name, size, both times and
inode of every file (the time of change too: a write in place cannot set that one back).

One small file per checkpoint in the user's cache folder. Only *valid* is remembered: a failed check may have been a bad
read, and what is not known is worth asking again. A damaged or foreign entry counts as none.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from sentinel.checkpoints.files import Tree
from sentinel.checkpoints.records import level_at_least
from sentinel.text import json_with_bytes

_VERSION = 1


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/sentinel/checkpoints``, or the same below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sentinel" / "checkpoints"


@dataclass(frozen=True, slots=True)
class Memory:
    """Remembered results in that folder."""

    folder: Path

    def _place(self, tree: Tree) -> Path:
        name = hashlib.sha256(os.fsencode(tree.root.absolute())).hexdigest()[:40]
        return self.folder / f"{name}.json"

    def covers(self, tree: Tree, level: str, step: int | None) -> bool:
        """Whether this tree, as it looks now, was found valid at that level or a higher one."""
        try:
            data = json_with_bytes(self._place(tree).read_bytes())
            return (
                data["version"] == _VERSION
                and data["looks"] == looks(tree, step)
                and level_at_least(str(data["level"]), level)
            )
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def keep(self, tree: Tree, level: str, step: int | None) -> None:
        """Remember it. A folder that cannot be written to is no error: then it is read again next time."""
        place = self._place(tree)
        temporary = place.with_suffix(f".{os.getpid()}.tmp")
        text = json.dumps({"version": _VERSION, "looks": looks(tree, step), "level": level})
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_text(text, "utf-8")
            temporary.replace(place)
        except OSError:
            temporary.unlink(missing_ok=True)


def looks(tree: Tree, step: int | None) -> str:
    """A digest of what the listing shows."""
    digest = hashlib.sha256(f"{step}".encode())
    for name, entry in sorted(tree.files.items()):
        line = f"{name}\0{entry.size}\0{entry.mtime_ns}\0{entry.ctime_ns}\0{entry.inode}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
