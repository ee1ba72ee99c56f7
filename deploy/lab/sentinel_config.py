"""The settings files of Sentinel in the lab: written here and nowhere else.

`etc/sentinel.toml` is the daemon's, `nodes/nX/sentinel.toml` the agent's of that node.
"""

from __future__ import annotations

import json
from pathlib import Path

from lab.layout import HERE, ROOT, Lab, write_atomic

# Services that `lab up` starts beside Slurm, unless --no-sentinel.
SERVICES: tuple[str, ...] = ("daemon", "agent")


def text(value: object) -> str:
    """A TOML string: JSON's escapes are a subset of TOML's."""
    return json.dumps(str(value))


def write(lab: Lab) -> None:
    resume_folder(lab).mkdir(parents=True, exist_ok=True)
    events_folder(lab).mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(lab.etc / "sentinel.toml", daemon(lab))
    for name in lab.names:
        write_atomic(lab.node(name) / "sentinel.toml", agent(lab, name))


def daemon(lab: Lab) -> str:
    return f"""\
# Written by `lab up`. The daemon of this lab. `sentinel config show` explains every key.
cluster = {text(lab.spec.cluster)}

[slurm]
conf = {text(lab.slurm_conf)}

[daemon]
listen = {text(f"0.0.0.0:{lab.spec.daemon_port}" if lab.spec.isolated else f"127.0.0.1:{lab.spec.daemon_port}")}
url = {text(daemon_url(lab))}
state = {text(lab.state / "sentinel")}
resume = {text(resume_folder(lab))}
munge_socket = {text(lab.munge_socket)}
events = {text(events_folder(lab))}
heartbeat_lost_s = 3.0

# A lab is small and its faults come quickly: a real cluster keeps the defaults.
[limits]
drain_fraction = 0.5
drain_per_hour = 100
drain_count = 100
silent_restarts_per_hour = 100
hung_jobs = 100

[modes.default]
drain = {text(lab.spec.mode)}
restart = {text(lab.spec.mode)}

[judgement]
stall_first_step_s = 100.0

[recovery]
local_survives = true

[alerts]
webhooks = [{text(webhook_url(lab))}]
"""


def agent(lab: Lab, name: str) -> str:
    folder = lab.node(name)
    return f"""\
# Written by `lab up`. The agent of node {name}.
node = {text(name)}
url = {text(daemon_url(lab))}
munge_socket = {text(lab.munge_socket)}
run_dir = {text(folder / "run")}
state = {text(folder / "agent-state")}
resume = {text(resume_folder(lab))}
gpus = {lab.spec.gpus}
heartbeat_s = 1.0
dcgm_bindings = {text(HERE / "fake_dcgm")}

[kernel]
path = {text(folder / "kmsg")}

[dcgm]
nvml = {text(HERE / "fake_nvml")}

[slurm]
conf = {text(lab.slurm_conf)}
"""


def resume_folder(lab: Lab) -> Path:
    return lab.shared / ".sentinel"


def events_folder(lab: Lab) -> Path:
    return lab.state / "events"


def daemon_url(lab: Lab) -> str:
    return f"http://{lab.controller_address}:{lab.spec.daemon_port}"


def webhook_url(lab: Lab) -> str:
    return f"http://127.0.0.1:{lab.spec.webhook_port}/webhook"


def daemon_command(lab: Lab) -> list[str]:
    return [lab.spec.python, "-m", "sentinel", "daemon", "--config", str(lab.etc / "sentinel.toml")]


def agent_command(lab: Lab, name: str) -> list[str]:
    return [lab.spec.python, "-m", "sentinel", "agent", "--config", str(lab.node(name) / "sentinel.toml")]


def agent_environment(lab: Lab, name: str) -> dict[str, str]:
    """The agent imports the fake DCGM bindings, which read the state of this node's GPUs."""
    return {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'deploy'}:{HERE / 'fake_dcgm'}",
        "SENTINEL_FAKE_GPUS": str(lab.node(name) / "gpus.json"),
        "SENTINEL_RUN_DIR": str(lab.node(name) / "run"),
    }
