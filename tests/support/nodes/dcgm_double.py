"""A host engine's double whose answers a test writes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from nodes.installed_dcgm import REAL, bindings_below
from sentinel.adapters.gpu.dcgm import FOLDERS as INSTALLED

DOUBLE = Path(__file__).parents[3] / "deploy" / "lab" / "fake_dcgm"
FOLDERS = {DOUBLE, *bindings_below(REAL), *map(Path, INSTALLED)}


class State:
    """The file that the double reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = {
            "gpus": [
                {
                    "index": n,
                    "uuid": f"GPU-{n:08x}",
                    "pci": f"0000:{0x1B + n:02x}:00.0",
                    "status": "ok",
                    "fields": {},
                    "xids": [],
                }
                for n in range(4)
            ],
            "refuse_s": 0,
        }
        self.write()

    def write(self, **changes: Any) -> None:
        self.content.update(changes)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.content))
        temporary.replace(self.path)

    @property
    def has_diagnostic(self) -> bool:
        return Path(f"{self.path}.diag").exists()

    def xid(self, gpu: int, xid: int) -> int:
        at_us = int(time.time() * 1e6)
        self.content["gpus"][gpu]["xids"].append({"xid": xid, "at_us": at_us})
        self.write()
        return at_us


def arguments(listener: str, **changes: Any) -> dict[str, Any]:
    return {"node": "n1", "level": 1, "gpus": None, "dcgmi": str(DOUBLE / "dcgmi"), "host": listener, "promised": 4,
            "deadline_s": 60.0, "stop_s": 5.0, **changes}  # fmt: skip
