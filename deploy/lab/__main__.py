"""Command line of the lab."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from lab import cluster, inject, layout, processes
from lab.layout import LabError
from lab.submit import Request, submit


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="lab",
        description="A real Slurm cluster on one machine: try Sentinel, and your own policies, without a GPU.",
        epilog="Example: lab up --nodes 4 --gpus 8 && lab submit && lab inject xid --node n2 --gpu 3 --xid 79 && lab down",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--dir", type=Path, default=None, help="folder of the lab (default: $SENTINEL_LAB_DIR or in /tmp)"
    )
    up = commands.add_parser("up", parents=[common], help="bring a lab up")
    up.add_argument("--nodes", type=int, default=4)
    up.add_argument("--gpus", type=int, default=8, help="GPUs per node (faked)")
    up.add_argument("--partition", default="gpu")
    up.add_argument("--isolated", action="store_true", help="each node in its own network and host name (root)")
    up.add_argument(
        "--no-sentinel", dest="sentinel", action="store_false", help="Slurm alone: no daemon, agents, hooks"
    )
    up.add_argument("--observe", action="store_true", help="Sentinel judges and tells, and changes nothing")
    up.add_argument(
        "--ready-s", type=float, default=120.0, help="longest wait for Slurm to be ready, and for the daemon, seconds"
    )
    down = commands.add_parser("down", parents=[common], help="end everything and remove the folder")
    down.add_argument("--keep", action="store_true", help="keep the folder (logs, checkpoints)")
    status = commands.add_parser("status", parents=[common], help="what runs, what is broken on purpose")
    status.add_argument("--json", action="store_true")
    commands.add_parser("env", parents=[common], help='for this shell: eval "$(lab env)"')
    logs = commands.add_parser("logs", parents=[common], help="where the logs lie, and their last lines")
    logs.add_argument("name", nargs="?", help="slurmctld, daemon, receiver, a node, or a job id")
    logs.add_argument("--lines", type=int, default=20)
    messages = commands.add_parser("messages", parents=[common], help="what Sentinel told people (webhook)")
    messages.add_argument("--json", action="store_true")
    add_submit(commands.add_parser("submit", parents=[common], help="submit the training job; prints its id"))
    inject.add_arguments(commands.add_parser("inject", help="have a fault: inject --help lists them"), common)
    return top


def add_submit(submit: argparse.ArgumentParser) -> None:
    submit.add_argument("--nodes", type=int, default=2)
    submit.add_argument("--tasks-per-node", type=int, default=1)
    submit.add_argument("--run", default="run1", help="name of the run: its checkpoint folders and its log")
    submit.add_argument("--steps", type=int, default=2000)
    submit.add_argument("--step-time", type=float, default=0.3, help="seconds a step takes at least")
    submit.add_argument("--local-every", type=int, default=10, help="steps between checkpoints on the nodes' disks")
    submit.add_argument("--global-every", type=int, default=50, help="steps between checkpoints on the shared folder")
    submit.add_argument("--standin", action="store_true", help="the stand-in that needs no torch")
    submit.add_argument(
        "--spares", type=int, default=0, help="nodes held beside those, for a restart in the allocation"
    )
    submit.add_argument("--no-restart", dest="restart", action="store_false", help="opt out in the --comment")
    submit.add_argument(
        "--gpu-faults-kill", action="store_true", help="a broken GPU raises an error instead of stalling"
    )
    submit.add_argument("sbatch", nargs="*", help="after --: further arguments for sbatch")


def cmd_inject(options: argparse.Namespace, directory: Path) -> None:
    inject.run(layout.load(directory), options)


def cmd_submit(options: argparse.Namespace, directory: Path) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,40}", options.run):
        raise LabError(f"--run {options.run!r}: letters, digits, '.', '_' and '-' only")
    request = Request(
        nodes=options.nodes,
        tasks_per_node=options.tasks_per_node,
        run=options.run,
        steps=options.steps,
        step_time_s=options.step_time,
        local_every=options.local_every,
        global_every=options.global_every,
        standin=options.standin,
        restart=options.restart,
        spares=options.spares,
        gpu_faults_kill=options.gpu_faults_kill,
        sbatch=tuple(options.sbatch),
    )
    print(submit(layout.load(directory), request))


def positive(value: int, name: str, largest: int) -> int:
    if not 1 <= value <= largest:
        raise LabError(f"--{name} {value}: give 1 to {largest}")
    return value


def cmd_up(options: argparse.Namespace, directory: Path) -> None:
    began = time.monotonic()
    if not options.partition.isidentifier():
        raise LabError(f"--partition {options.partition}: letters, digits and _ only")
    if not 0 <= options.gpus <= 64:
        raise LabError(f"--gpus {options.gpus}: give 0 to 64")
    spec = layout.new_spec(
        directory,
        nodes=positive(options.nodes, "nodes", 1024),
        gpus=options.gpus,
        partition=options.partition,
        isolated=options.isolated,
        sentinel=options.sentinel,
        python=sys.executable,
        mode="observe" if options.observe else "act",
    )
    # What this command runs on the way (sinfo, mkfs) is the lab's too, should the command itself be killed.
    os.environ[processes.MARK] = str(directory)
    lab = cluster.up(spec, ready_s=options.ready_s)
    print(f"lab up in {time.monotonic() - began:.1f} s: {spec.nodes} nodes of {spec.gpus} GPUs in {lab.dir}")
    entry = layout.HERE / "lab"
    print(f'for sinfo, squeue, sentinel in this shell:  eval "$(bash {entry} env --dir {lab.dir})"')


def cmd_down(options: argparse.Namespace, directory: Path) -> None:
    cluster.down(directory, keep=options.keep)
    print(f"lab down; {directory} {'kept' if options.keep else 'removed'}")


def cmd_status(options: argparse.Namespace, directory: Path) -> None:
    answer = cluster.status(layout.load(directory))
    if options.json:
        print(json.dumps(answer))
    else:
        show_status(answer)


def show_status(answer: dict[str, Any]) -> None:
    print(f"{answer['cluster']}: {answer['nodes']} nodes of {answer['gpus']} GPUs in {answer['dir']}")
    ports = answer["ports"]
    print(f"ports: slurmctld {ports['slurmctld']}, daemon {ports['daemon']}, webhook {ports['webhook']}")
    amiss = {name: state for name, state in answer["services"].items() if not state.startswith("running")}
    print(f"services: {len(answer['services']) - len(amiss)} of {len(answer['services'])} run")
    for name, state in amiss.items():
        print(f"  {name}: {state}")
    for fault in answer["faults"]:
        print(f"fault in force: {fault['fault']} {fault.get('node') or ''} since {fault['at']}")
    if answer["slurm"] is None:
        print(f"Slurm: not known ({answer['error']})")
        return
    for node in answer["slurm"]:
        print(f"  {node['node']:<6} {node['state']:<12} {node['reason'] if node['reason'] != 'none' else ''}".rstrip())
    for job in answer["jobs"]:
        print(f"  job {job['job']} {job['name']} {job['state']} {job['nodes'] or job['reason']}")


def cmd_env(options: argparse.Namespace, directory: Path) -> None:
    for name, value in layout.load(directory).environment().items():
        print(f"export {name}={shlex.quote(value)}")


def cmd_logs(options: argparse.Namespace, directory: Path) -> None:
    lab = layout.load(directory)
    name = options.name
    if name is None:
        paths = sorted([*lab.log.iterdir(), *lab.dir.glob("nodes/*/log/*"), *lab.shared.glob("*.out")])
        for path in paths:
            if path.stat().st_size:
                print(path)
        return
    if name in lab.names:
        paths = sorted((lab.node(name) / "log").iterdir())
    elif name.isdigit():
        paths = sorted(lab.shared.glob(f"*{name}.out"))
    else:
        paths = sorted(lab.log.glob(f"{name}.*"))
    if not paths:
        raise LabError(f"no log of {name!r}; lab logs lists them")
    for path in paths:
        print(f"==> {path}")
        print("\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-options.lines :]))


def cmd_messages(options: argparse.Namespace, directory: Path) -> None:
    lab = layout.load(directory)
    for line in lab.messages.read_text(encoding="utf-8").splitlines():
        if options.json:
            print(line)
            continue
        record = json.loads(line)
        message = record["message"]
        text = message.get("text") if isinstance(message, dict) else message
        body = text if isinstance(text, str) else json.dumps(message, indent=2)
        print(f"{record['at']}  {ascii_only(body)}")


def ascii_only(body: str) -> str:
    """Control characters made visible: a message holds text from logs."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in body)


COMMANDS = {
    "up": cmd_up,
    "down": cmd_down,
    "status": cmd_status,
    "env": cmd_env,
    "logs": cmd_logs,
    "messages": cmd_messages,
    "submit": cmd_submit,
    "inject": cmd_inject,
}


def main() -> int:
    options = parser().parse_args()
    directory = (options.dir or layout.default_dir()).resolve()
    try:
        COMMANDS[options.command](options, directory)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
