"""An Alertmanager of a test's own: Debian's, on loopback, with its data in a folder that goes with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from typing import Any

from servers.keeper import Keeper
from servers.ports import free_ports

BINARY = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")


class AlertmanagerServer:
    def __init__(self, receiver: str = "") -> None:
        """``receiver``: URL of a webhook that it notifies."""
        assert BINARY is not None, "needs the program prometheus-alertmanager"
        self._keeper = Keeper("alertmanager-")
        folder = self._keeper.folder
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        hooks = f"webhook_configs: [{{url: '{receiver}', send_resolved: true}}]" if receiver else ""
        (folder / "am.yml").write_text(
            "route: {receiver: all, group_by: ['...'], group_wait: 0s, group_interval: 1s}\n"
            f"receivers: [{{name: all{', ' + hooks if hooks else ''}}}]\n"
        )
        self._command = [
            BINARY, f"--config.file={folder}/am.yml", f"--storage.path={folder}/data", "--cluster.listen-address=",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]  # fmt: skip
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self._keeper.environment},
        )

    def restart(self) -> None:
        """As a service is: told to end, and started with the same storage."""
        self._process.terminate()
        self._process.wait()
        self._process = self._started()
        self.wait()

    def alerts(self) -> list[Any]:
        """Those that are active now."""
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts", timeout=20) as answer:
            return list(json.load(answer))

    def wait(self, within_s: float = 60.0) -> None:
        """Until it answers."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            assert self._process.poll() is None, "alertmanager ended"
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=20):
                    return
            except (OSError, urllib.error.HTTPError):
                time.sleep(0.1)
        raise AssertionError(f"{self.url} does not answer")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._keeper.close()
