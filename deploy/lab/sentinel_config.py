"""The settings files of Sentinel in the lab: written here and nowhere else.

`etc/sentinel.toml` is the daemon's, `nodes/nX/sentinel.toml` the agent's of that node.
"""

from __future__ import annotations

import json
from pathlib import Path

from lab.layout import HERE, ROOT, Lab, write_atomic

# Services that `lab up` starts beside Slurm, unless --no-sentinel.
SERVICES: tuple[str, ...] = ()  # ("daemon", "agent") once both commands exist


def text(value: object) -> str:
    """A TOML string: JSON's escapes are a subset of TOML's."""
    return json.dumps(str(value))


def write(lab: Lab) -> None:
    write_atomic(lab.etc / "sentinel.toml", daemon(lab))
    for name in lab.names:
        write_atomic(lab.node(name) / "sentinel.toml", agent(lab, name))


def daemon(lab: Lab) -> str:
    return f"""\
# Written by `lab up`. The daemon of this lab.
[daemon]
listen = {text(f"{lab.controller_address}:{lab.spec.daemon_port}")}
state_dir = {text(lab.state / "sentinel")}
run_dir = {text(lab.run)}
mode = {text(lab.spec.mode)}

[slurm]
conf = {text(lab.slurm_conf)}

[munge]
socket = {text(lab.munge_socket)}

[alerts.webhook]
url = {text(webhook_url(lab))}
"""


def agent(lab: Lab, name: str) -> str:
    folder = lab.node(name)
    return f"""\
# Written by `lab up`. The agent of node {name}.
[agent]
node = {text(name)}
daemon = {text(f"{lab.controller_address}:{lab.spec.daemon_port}")}
run_dir = {text(folder / "run")}
spool_dir = {text(folder / "agent-spool")}
kmsg = {text(folder / "kmsg")}

[munge]
socket = {text(lab.munge_socket)}

[dcgm]
bindings = {text(HERE / "fake_dcgm")}
"""


def webhook_url(lab: Lab) -> str:
    return f"http://127.0.0.1:{lab.spec.webhook_port}/webhook"


def daemon_command(lab: Lab) -> list[str]:
    return [lab.spec.python, "-m", "sentinel", "daemon", "--config", str(lab.etc / "sentinel.toml")]


def agent_command(lab: Lab, name: str) -> list[str]:
    return [lab.spec.python, "-m", "sentinel", "agent", "--config", str(lab.node(name) / "sentinel.toml")]


def agent_environment(lab: Lab, name: str) -> dict[str, str]:
    """The agent imports the fake DCGM bindings, which read the state of this node's GPUs."""
    return {
        "PYTHONPATH": f"{ROOT / 'deploy'}:{HERE / 'fake_dcgm'}",
        "SENTINEL_FAKE_GPUS": str(lab.node(name) / "gpus.json"),
        "SENTINEL_RUN_DIR": str(lab.node(name) / "run"),
        "SENTINEL_CONFIG": str(lab.node(name) / "sentinel.toml"),
    }


def root_of(lab: Lab) -> Path:
    return lab.dir
