"""Makes files and folders unreadable for the code under test, also where that runs as root."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def lock(monkeypatch, *paths):
    """What lies in these folders cannot be looked at, as with 0700 of another user; these files not opened."""

    def refuse(path, inside):
        at = Path(os.path.abspath(path)) if isinstance(path, (str, Path)) else None
        if at is not None and any(one in at.parents or (not inside and one == at) for one in paths):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def guarded(real, inside):
        def call(path=".", *given, **named):
            refuse(path, inside)
            return real(path, *given, **named)

        return call

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name), inside=True))
    for name in ("open", "scandir", "listdir"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name), inside=False))
