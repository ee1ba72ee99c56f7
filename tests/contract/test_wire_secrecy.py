"""Hooks, agents and commands reach the daemon by TLS and by MUNGE-encrypted bodies: a real munged, and processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_memory.fixtures import store, world
from in_memory.server import serving
from in_memory.world import World
from nodes.agent_process import running_munged
from servers.certificates import authority

from sentinel.adapters.client import DaemonClient
from sentinel.adapters.munge import Munge
from sentinel.agent.settings import AgentSettings
from sentinel.config.settings import load
from sentinel.errors import Denied
from sentinel.protocol import HEARTBEAT, PART_BYTES

__all__ = ["store", "world"]
ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
Worlds = Callable[..., World]


@pytest.fixture(scope="module")
def munge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Munge]:
    for program in ("munged", "munge", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("munge")
    folder.chmod(0o755)
    with running_munged(folder) as munge_socket:
        yield Munge(munge_socket)


def test_only_the_uid_that_it_is_for_decodes_it(munge: Munge) -> None:
    secret = b"/home/ada/secret " * (PART_BYTES // 17)
    own = munge.encrypt(secret, os.getuid())
    assert munge.decode(own).payload == secret and b"secret" not in own.encode()
    with pytest.raises(Denied, match="nauthorized"):
        munge.decode(munge.encrypt(secret, NOBODY))


@pytest.mark.parametrize("wire", ["munge", "tls"])
async def test_hook_agent_and_commands(world: Worlds, munge: Munge, tmp_path: Path, wire: str) -> None:
    settings: dict[str, Any] = {"wire": wire}
    environment = {
        "SENTINEL_MUNGE_SOCKET": os.fsdecode(munge.socket),
        "SENTINEL_WIRE": wire,
        "PATH": os.environ["PATH"],
    }
    environment["SENTINEL_DAEMON_USER"] = str(os.getuid())
    if wire == "tls":
        site = authority(tmp_path / "site")
        settings["certificate_file"], settings["key_file"] = site.sign("daemon")
        environment["SENTINEL_CA_FILE"] = site.file
    async with serving(world(), **settings) as served:
        served.server._credentials = munge
        reported: list[Any] = []
        served.daemon.runner.report = lambda name, jobs: reported.append((name, set(jobs)))  # type: ignore[method-assign]
        url = served.url if wire == "munge" else served.url.replace("http:", "https:")
        environment |= {"SENTINEL_URL": url, "SENTINEL_EVENT_S": "60", "SLURM_JOB_ID": "77", "PYTHONPATH": str(ROOT)}
        hook = await run("-S", "-m", "sentinel.hook", "event", "job_ended", **environment)
        assert (hook.returncode, hook.stderr, reported) == (0, "", [("job_ended", {77})])
        missing = environment | {"SENTINEL_CONFIG": str(tmp_path / "none.toml"), "LANG": "C.UTF-8"}
        status = await run("-m", "sentinel", "status", **missing)
        assert status.returncode == 0, status.stderr
        file = tmp_path / "agent.toml"
        file.write_text(
            f'url = "{url}"\nwire = "{wire}"\nca_file = "{environment.get("SENTINEL_CA_FILE", "")}"\n'
            f'munge_socket = "{os.fsdecode(munge.socket)}"\ndaemon_uid = {os.getuid()}\n'
        )
        given = load(file, AgentSettings)
        client = DaemonClient(
            given.url, munge, wire=given.wire, ca_file=given.ca_file, daemon_uid=given.daemon_uid, deadline_s=60.0
        )
        answer = await in_thread(partial(client.post, HEARTBEAT, {"node": "n1"}))
        client.close()
        assert "at" in answer
        # What is in clear gets no further.
        plain = environment | {"SENTINEL_WIRE": "clear", "SENTINEL_URL": served.url, "SENTINEL_EVENT_S": "2"}
        refused = await run("-S", "-m", "sentinel.hook", "event", "job_ended", **plain)
        assert refused.returncode == 0 and "sentinel: " in refused.stderr and len(reported) == 1


async def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    started = partial(
        subprocess.run, command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    return await in_thread(started)


async def in_thread(function: Callable[[], Any]) -> Any:
    """The world's own ``asyncio.to_thread`` does it at once."""
    return await asyncio.get_running_loop().run_in_executor(None, function)
