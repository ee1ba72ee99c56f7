"""`lab inject`: have a fault, say what was done, and undo it."""

from __future__ import annotations

import argparse
import json
import sys

from lab import cluster, processes
from lab.faults import ALL
from lab.faults.base import Fault, Record, book
from lab.layout import ROOT, Lab, LabError


def add_arguments(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    names = parser.add_subparsers(dest="fault", required=True, metavar="FAULT")
    for fault in ALL.values():
        own = names.add_parser(fault.name, parents=[common], help=fault.line, description=fault.line)
        own.add_argument("--json", action="store_true", help="one line of JSON per fault")
        if fault.undo is not None:
            own.add_argument("--undo", action="store_true", help="end this fault where it is in force")
            own.add_argument("--for", dest="for_s", type=seconds, metavar="SECONDS", help="undo it after that time")
        fault.arguments(own)
        for action in own._actions:
            # --undo alone undoes everywhere: what injecting needs is checked by ourselves.
            if fault.undo is not None and action.required and action.dest in ("node", "xid"):
                action.required = False
        own.set_defaults(needs=[a.dest for a in own._actions if a.dest in ("node", "xid") and needed(fault, a.dest)])


def needed(fault: Fault, dest: str) -> bool:
    probe = argparse.ArgumentParser()
    fault.arguments(probe)
    return any(action.required and action.dest == dest for action in probe._actions)


def seconds(text: str) -> float:
    value = float(text.removesuffix("s"))
    if value <= 0:
        raise argparse.ArgumentTypeError("give a time above 0, in seconds")
    return value


def run(lab: Lab, options: argparse.Namespace) -> None:
    fault = ALL[options.fault]
    if getattr(options, "undo", False):
        undo(lab, fault, getattr(options, "node", None), as_json=options.json)
        return
    for dest in options.needs:
        if getattr(options, dest) is None:
            raise LabError(f"inject {fault.name} needs --{dest}")
    for record in fault.inject(lab, options):
        book(lab, record)
        show(record, as_json=options.json)
    if getattr(options, "for_s", None):
        later(lab, fault, options.for_s)


def show(record: Record, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(record))
        return
    hidden = ("id", "at", "fault", "lasting", "kmsg", "start")
    facts = " ".join(f"{key}={value}" for key, value in record.items() if key not in hidden and value is not None)
    print(f"{record['at']}  {record['fault']}  {facts}".rstrip())
    for line in record.get("kmsg", []):
        print(f"  kmsg: {line}")


def undo(lab: Lab, fault: Fault, node: str | None, *, as_json: bool) -> None:
    """End every fault of that name that is in force (on ``node``, when given)."""
    assert fault.undo is not None
    active = [r for r in cluster.faults_now(lab) if r["fault"] == fault.name and node in (None, r["node"])]
    if not active:
        raise LabError(f"no {fault.name} is in force{f' on {node}' if node else ''}; lab status lists what is")
    for record in active:
        did = fault.undo(lab, record)
        ended = fault.record(node=record["node"], job=record["job"], undoes=record["id"], did=did, lasting=False)
        book(lab, ended)
        print(json.dumps(ended) if as_json else f"{ended['at']}  {fault.name} undone: {did}")


def later(lab: Lab, fault: Fault, after_s: float) -> None:
    """Undo in a process of the lab, so that `lab down` finds it and a closed terminal does not matter."""
    script = 'sleep "$1"; shift; exec "$@"'
    command = [sys.executable, "-m", "lab", "inject", fault.name, "--undo", "--dir", str(lab.dir)]
    processes.start(
        lab,
        f"undo-{fault.name}",
        ["sh", "-c", script, "sh", str(after_s), *command],
        log=lab.log / "undo.log",
        env={"PYTHONPATH": str(ROOT / "deploy")},
    )
