"""How long the prolog takes with a fresh verdict, beside /bin/true started in the same way, run about.

    python tests/bench/node_prolog.py [--runs 1000]

Prints one JSON object: milliseconds at the 50th and 99th percentile of each, and of their difference run by run. Where
SENTINEL_NHC names a checkout of LBNL's Node Health Check (https://github.com/mej/nhc), three of its checks are run in
between, every tenth time: a file system mounted writable, free space on it, memory.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


SETTINGS = (
    "# As a site would write it.\nSENTINEL_FRESH_S=15\nSENTINEL_PROLOG_S=20\nSENTINEL_URL=http://controller:9478\n"
)
EVERY = 10  # a run of NHC costs as much as this many of the others together
CHECKS = "* || check_fs_mount_rw -f /\n* || check_fs_free / 1%\n* || check_hw_mem 1MB 100TB 5%\n"


def once(command: list[str], environment: dict[str, str]) -> float:
    """Milliseconds from fork to the exit status, as slurmd would see them."""
    began = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"{command}: status {status}"
    return (time.perf_counter() - began) * 1000


def nhc(run: Path) -> list[str]:
    """NHC with three checks and no marking of nodes; nothing where no checkout is named."""
    home = os.environ.get("SENTINEL_NHC")
    if not home:
        return []
    (run / "nhc.conf").write_text(CHECKS)
    settings = {
        "INCDIR": f"{home}/scripts", "HELPERDIR": f"{home}/helpers", "CONFFILE": f"{run}/nhc.conf", "MARK_OFFLINE": "0",
        "DETACHED_MODE": "0", "LOGFILE": f"{run}/nhc.log",
    }  # fmt: skip
    return ["/bin/bash", f"{home}/nhc", *(f"{name}={value}" for name, value in settings.items())]


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {name: round(ordered[int((len(ordered) - 1) * share)], 3) for name, share in (("p50", 0.5), ("p99", 0.99))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    prolog = str(ROOT / "prolog" / "10-sentinel")
    with tempfile.TemporaryDirectory() as run:
        (Path(run) / "hook.conf").write_text(SETTINGS)
        environment = {
            "SENTINEL_HOOK_CONF": f"{run}/hook.conf",
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SENTINEL_RUN_DIR": run, "SLURM_JOB_ID": "1", "SLURM_JOB_UID": "1000",
            "SLURM_JOB_USER": "someone", "SLURM_NODELIST": "n[1-64]", "SLURM_JOB_STDOUT": "/shared/run/slurm-1.out",
            "SLURM_JOB_GPUS": "0,1,2,3,4,5,6,7", "SLURMD_NODENAME": "n1",
        }  # fmt: skip
        ours, bare, other = [], [], []
        command = nhc(Path(run))
        for number in range(runs):
            uptime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
            (Path(run) / "verdict").write_text(
                f"OK {int(time.time())} ok nothing speaks against this node\n{uptime_s}\n"
            )
            bare.append(once(["/bin/true"], environment))
            ours.append(once([prolog], environment))
            if command and number % EVERY == 0:
                other.append(once(command, environment))
        assert json.loads((Path(run) / "jobs" / "1.json").read_text())["nodelist"] == "n[1-64]"
    difference = [mine - least for mine, least in zip(ours, bare, strict=True)]
    answer = {"prolog_ms": percentiles(ours), "true_ms": percentiles(bare), "difference_ms": percentiles(difference)}
    if other:
        answer |= {"nhc_3_checks_ms": percentiles(other)}
    print(json.dumps({"runs": runs, "load": os.getloadavg()[0], **answer}))


if __name__ == "__main__":
    main()
