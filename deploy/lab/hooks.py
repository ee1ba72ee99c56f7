"""The Slurm hooks of the lab: wrappers around the project's own, which run as an operator would install them.

On a real cluster every node has its own /run/sentinel. Here many nodes share one host, so each wrapper points the hook
to the folder of its node and changes nothing else. The hooks are copied into the lab, as an installation would: one of them
runs as the job's user, who may not look into this checkout.
"""

from __future__ import annotations

import shlex

from lab import sentinel_config
from lab.layout import ROOT, Lab, write_atomic

# file below <dir>/etc -> (the project's hook, the folder it uses)
HOOKS = {
    "prolog.d/10-sentinel": ("prolog/10-sentinel", "node"),
    "epilog.d/10-sentinel": ("epilog/10-sentinel", "node"),
    "taskprolog": ("prolog/task-sentinel", "node"),
    "epilogslurmctld": ("epilog/slurmctld-sentinel", "controller"),
}

WRAPPER = """\
#!/bin/sh
# Written by `lab up`.
hook={hook}
[ -x "$hook" ] || exit 0
{exports}
exec "$hook" "$@"
"""


def install(lab: Lab) -> None:
    """Write the wrappers; without Sentinel they are there and do nothing, so that slurm.conf stays the same."""
    for name, (hook, kind) in HOOKS.items():
        path = lab.etc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        run_dir = f'{shlex.quote(str(lab.dir))}/nodes/"$SLURMD_NODENAME"/run' if kind == "node" else str(lab.run)
        config = (
            f'{shlex.quote(str(lab.dir))}/nodes/"$SLURMD_NODENAME"/sentinel.toml'
            if kind == "node"
            else shlex.quote(str(lab.etc / "sentinel.toml"))
        )
        exports = "\n".join(
            [
                f"SENTINEL_RUN_DIR={run_dir}",
                f"SENTINEL_CONFIG={config}",
                f"SENTINEL_PYTHON={shlex.quote(lab.spec.python)}",
                f"SENTINEL_HOME={shlex.quote(str(ROOT))}",
                f"SENTINEL_URL={shlex.quote(sentinel_config.daemon_url(lab))}",
                f"SENTINEL_MUNGE_SOCKET={shlex.quote(str(lab.munge_socket))}",
                f"SENTINEL_EVENTS={shlex.quote(str(sentinel_config.events_folder(lab)))}",
                f"PATH={shlex.quote(lab.environment()['PATH'])}",
                "export SENTINEL_RUN_DIR SENTINEL_CONFIG SENTINEL_PYTHON SENTINEL_HOME",
                "export SENTINEL_URL SENTINEL_MUNGE_SOCKET SENTINEL_EVENTS PATH",
            ]
        )
        target = "/nonexistent"
        if lab.spec.sentinel:
            target = str(lab.lib / hook)
            write_atomic(lab.lib / hook, (ROOT / hook).read_text(encoding="utf-8"), mode=0o755)
        write_atomic(path, WRAPPER.format(hook=shlex.quote(target), exports=exports), mode=0o755)
