"""Reads from the environment of a running job's processes where they will write dumps and error files."""

from __future__ import annotations

from pathlib import Path

from sentinel.adapters.host.environ import environment_of
from sentinel.agent.probes import begin, say
from sentinel.agent.probes.job_processes import Groups

# Variable -> kind of path in its value, including PyTorch's older names.
VARIABLES = {
    "TORCH_FR_DUMP_TEMP_FILE": "dumps",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "dumps",
    "TORCHELASTIC_ERROR_FILE": "errors",
    "HOME": "homes",
    "XDG_CACHE_HOME": "caches",
    "TMPDIR": "temporary",
}
_NAMES = frozenset({*VARIABLES, "SLURM_JOB_ID", "SLURMD_NODENAME"})
MOST = 16  # most paths of each kind
LONGEST = 1024


def places_of(job: int, uid: int | None, node: str, proc: Path = Path("/proc")) -> dict[str, list[str]]:
    """Absolute paths by kind, each once, in the order of the processes."""
    found: dict[str, dict[str, None]] = {kind: {} for kind in VARIABLES.values()}
    groups = Groups(proc)
    for entry in sorted((e for e in proc.iterdir() if e.name.isdigit()), key=lambda e: int(e.name)):
        try:
            if not groups.may_be_of(entry, job, uid):
                continue
            pairs = environment_of(entry, _NAMES)
        except OSError:
            continue  # gone, or not permitted
        if pairs.get("SLURM_JOB_ID") != str(job):
            continue
        if node and pairs.get("SLURMD_NODENAME", node) != node:
            continue  # several nodes may share one host
        for name, kind in VARIABLES.items():
            value = pairs.get(name, "")
            if value.startswith("/") and len(value) <= LONGEST and len(found[kind]) < MOST:
                found[kind][value] = None
    return {kind: list(values) for kind, values in found.items()}


def main() -> None:
    arguments = begin()
    say({"places": places_of(int(arguments["job"]), arguments.get("uid"), str(arguments.get("node", "")))})


if __name__ == "__main__":
    main()
