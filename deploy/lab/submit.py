"""`lab submit`: hand the training job to sbatch."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lab import slurm
from lab.account import account
from lab.layout import HERE, ROOT, Lab, LabError, write_atomic

# What `sentinel run` is made of: standard library, so that a job's user needs no package.
LAUNCHER = [f"sentinel/{name}.py" for name in ("__init__", "errors", "launcher", "model/__init__", "model/launching")]


@dataclass(frozen=True)
class Request:
    nodes: int
    tasks_per_node: int = 1
    run: str = "run1"
    steps: int = 2000
    step_time_s: float = 0.3
    local_every: int = 10
    global_every: int = 50
    standin: bool = False
    restart: bool = True
    spares: int = 0  # nodes that the job holds beside those on which it trains
    gpu_faults_kill: bool = False
    sbatch: tuple[str, ...] = ()  # further arguments for sbatch


def comment(lab: Lab, request: Request) -> str:
    """What a researcher tells Sentinel; %N is a node's name."""
    asked: dict[str, object] = {
        "restart": request.restart,
        "global": [str(lab.shared / request.run)],
        "local": [str(lab.node("%N") / "nvme" / request.run)],
    }
    if request.spares:
        asked["in_allocation"] = request.nodes
    return json.dumps({"sentinel": asked})


def command(lab: Lab, request: Request) -> list[str]:
    gres = [f"--gres=gpu:{lab.spec.gpus}"] if lab.spec.gpus else []
    program = [
        "lab.training.standin" if request.standin else "lab.training.train",
        *("--run", request.run),
        *("--steps", str(request.steps)),
        *("--step-time", str(request.step_time_s)),
        *("--local-every", str(request.local_every)),
        *("--global-every", str(request.global_every)),
        *("--global-dir", str(lab.shared / request.run)),
        *("--local-dir", str(lab.node("%N") / "nvme" / request.run)),
        *(["--gpu-faults-kill"] if request.gpu_faults_kill else []),
    ]
    return [
        "sbatch",
        "--parsable",
        f"--nodes={request.nodes + request.spares}",
        *(["--no-kill"] if request.spares else []),
        *([] if "--oversubscribe" in request.sbatch else ["--exclusive"]),  # newer releases refuse both
        f"--ntasks-per-node={request.tasks_per_node}",
        *gres,
        *account(lab.spec.python).sbatch,
        f"--job-name={request.run}",
        f"--output={lab.shared}/%x-%j.out",
        f"--chdir={lab.shared}",
        f"--comment={comment(lab, request)}",
        *request.sbatch,
        str(HERE / "training" / "train.sbatch"),
        *program,
    ]


def install(lab: Lab) -> None:
    """Copy the programs of jobs into the lab: this checkout may lie where only root can look, as in /root."""
    for program in (HERE / "__init__.py", *(HERE / "training").glob("*.py")):
        write_atomic(lab.lib / "lab" / program.relative_to(HERE), program.read_text(encoding="utf-8"))
    for name in LAUNCHER:
        write_atomic(lab.lib / name, (ROOT / name).read_text(encoding="utf-8"))


def submit(lab: Lab, request: Request) -> int:
    """The id of the new job."""
    if not 1 <= request.nodes <= request.nodes + request.spares <= lab.spec.nodes:
        raise LabError(f"--nodes {request.nodes}, --spares {request.spares}: this lab has {lab.spec.nodes}")
    runs_as = account(lab.spec.python)
    if not request.standin and not runs_as.finds("torch"):
        raise LabError(
            f"{runs_as.python} has no torch that uid {runs_as.uid} may read; pip install 'torch==2.13.0', or take the "
            "stand-in: lab submit --standin"
        )
    environment = {
        "PYTHONPATH": ":".join((str(lab.lib), *runs_as.packages)),
        "LAB_PYTHON": runs_as.python,
        "HOME": str(lab.shared),  # nobody has none
        "LAB_CONTROL": str(lab.control),
        **({"LAB_TRAINS_ON": f"{request.nodes}"} if request.spares else {}),
        "LAB_GPUS": str(lab.node("%N") / "gpus.json"),
    }
    return int(slurm.client(lab, command(lab, request), environment=environment).split(";")[0])
