"""Replaces a file by rename."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(
    path: Path, text: str, mode: int, owner: tuple[int, int] = (-1, -1), *, errors: str = "strict"
) -> None:
    """Whoever reads the file, also after a crash, has the old content or the new one, whole. Blocking.

    Args:
        owner: uid and gid that it gets; -1: those of this process.
        errors: as of ``str.encode``, for text that was read with the same.

    Raises:
        OSError: the folder or its disk does not take it; the file is as it was, and nothing else is left there.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors=errors) as file:
            file.write(text)
            if owner != (-1, -1):
                os.fchown(file.fileno(), *owner)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
