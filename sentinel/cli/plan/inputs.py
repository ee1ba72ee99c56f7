"""Inputs of ``sentinel plan``: each is given, taken from the history, or defaulted, and the answer says which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from sentinel.cli.operator.output import counted
from sentinel.cli.plan.history import history_of
from sentinel.errors import Refused, UserError
from sentinel.planning import bandwidth, fleet, history, quantities
from sentinel.planning.limits import OutOfRange, PlanningError
from sentinel.planning.quantities import Quantity

Reader = Callable[[str, str], Quantity]
MOST_PARAMETERS = 1e14


_FIX = "write a positive number with its unit, as 90s, 15min, 3h, 95%, or 8 for a count"


@contextmanager
def answering() -> Iterator[None]:
    """Errors of planning become errors of the command: refused formulas exit 4, bad quantities 2."""
    try:
        yield
    except OutOfRange as error:
        raise Refused(error.message, fix=error.fix) from error
    except PlanningError as error:
        raise UserError(error.message, fix=error.fix or _FIX) from error


@dataclass(frozen=True)
class Row:
    """One input: its key with unit, value, where it comes from and what to know about it."""

    key: str
    value: float
    source: str
    note: str = ""


class Inputs:
    """Reads a command's options and keeps the account of what was given, taken from history or defaulted."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.options = options
        self.rows: dict[str, Row] = {}
        self.warnings: list[str] = []
        path = options.get("history")
        self.history = None if path is None else history_of(str(path))
        if self.history is not None:
            self._judge_history(self.history)

    def _judge_history(self, past: history.FleetHistory) -> None:
        excess = history.clustered(past)
        if excess is not None:
            self.warnings.append(
                f"the failures come in clusters (dispersion {excess:.1f}, 1 for a constant rate): the confidence interval "
                "is too narrow and the mean hides bad days"
            )

    def has(self, option: str) -> bool:
        return self.options.get(option) is not None

    def read(
        self,
        key: str,
        option: str,
        reader: Reader,
        *,
        past: float | None = None,
        past_note: str = "",
        default: float | None = None,
        note: str = "",
    ) -> float | None:
        """The value of an option; else from history; else the default; else ``None`` (and no row)."""
        text = self.options.get(option)
        if text is not None:
            quantity = reader(str(text), "--" + option.replace("_", "-"))
            self.warnings.extend(quantity.warnings)
            self.rows[key] = Row(key, quantity.value, "given", quantity.text.strip())
        elif past is not None:
            self.rows[key] = Row(key, past, "history", past_note)
        elif default is not None:
            self.rows[key] = Row(key, default, "defaulted", note)
        else:
            return None
        return self.rows[key].value

    def need(self, key: str, option: str, reader: Reader, fix: str, **more: Any) -> float:
        """The same for what has no default: missing is refused with the sentence that helps."""
        value = self.read(key, option, reader, **more)
        if value is None:
            raise UserError(f"--{option.replace('_', '-')} is missing", fix=fix)
        return value

    def derive(self, key: str, value: float, note: str) -> float:
        """A value that follows from other inputs, shown among them."""
        self.rows[key] = Row(key, value, "computed", note)
        return value

    def as_json(self) -> dict[str, dict[str, Any]]:
        return {
            row.key: {
                "value": row.value,
                "source": row.source,
                **({"text" if row.source == "given" else "note": row.note} if row.note else {}),
            }
            for row in self.rows.values()
        }


def gpus_input(inputs: Inputs) -> int | None:
    """GPUs of the job: given, already known from the nodes, or from history its mean number at work."""
    if "gpus" in inputs.rows:
        return int(inputs.rows["gpus"].value)
    past = None if inputs.history is None else float(max(1, round(inputs.history.mean_gpus)))
    value = inputs.read("gpus", "gpus", quantities.whole_count, past=past, past_note="at work on average")
    return None if value is None else int(value)


def gpus_per_node_input(inputs: Inputs) -> int:
    past = None if inputs.history is None else float(inputs.history.gpus_per_node)
    value = inputs.read(
        "gpus_per_node", "gpus_per_node", quantities.whole_count, past=past, default=8, note="HGX boards"
    )
    assert value is not None
    return int(value)


LONGEST_MTBF_S = 5 * 365.25 * quantities.DAY_S
RATES = ("mtbf", "gpu_mtbf", "failures_per_1000_node_days", "interruptions")


def mtbf_input(inputs: Inputs) -> tuple[float, history.MtbfEstimate | None]:
    """MTBF of the job from exactly one of the ways to say it, and its confidence interval where events were counted."""
    value, estimate = _mtbf_input(inputs)
    if value > LONGEST_MTBF_S:
        inputs.warnings.append(
            f"an MTBF of {value / quantities.DAY_S / 365.25:,.3g} years for a job is hardly meant; is it that of one GPU?"
        )
    return value, estimate


def _mtbf_input(inputs: Inputs) -> tuple[float, history.MtbfEstimate | None]:
    named = [f"--{name.replace('_', '-')}" for name in RATES if inputs.has(name)]
    if len(named) > 1:
        raise UserError(f"{' and '.join(named)} both say how often the job fails", fix="Give one of them.")
    if inputs.has("mtbf"):
        value = inputs.read("mtbf_s", "mtbf", quantities.duration)
        assert value is not None
        gpus_input(inputs)
        return value, None
    if inputs.has("gpu_mtbf"):
        return _from_gpu_mtbf(inputs), None
    if inputs.has("failures_per_1000_node_days"):
        rate = inputs.read("failures_per_1000_node_days", "failures_per_1000_node_days", quantities.plain)
        gpus = _gpus_needed(inputs)
        assert rate is not None
        value = fleet.mtbf_from_node_days(rate, gpus, gpus_per_node_input(inputs))
        return inputs.derive("mtbf_s", value, "one over nodes x rate"), None
    if inputs.has("interruptions"):
        return _from_count(inputs)
    if inputs.history is not None:
        return _from_history(inputs, inputs.history)
    raise UserError(
        "nothing says how often the job fails",
        fix="Give --mtbf 3h, or --gpus 16384 with --gpu-mtbf 50000h, or --history FILE.",
    )


def _gpus_needed(inputs: Inputs) -> int:
    gpus = gpus_input(inputs)
    if gpus is None:
        raise UserError("--gpus is missing", fix="Say how many GPUs the job uses, such as --gpus 16384.")
    return gpus


def _from_gpu_mtbf(inputs: Inputs) -> float:
    gpus = _gpus_needed(inputs)
    per_gpu = inputs.need("gpu_mtbf_s", "gpu_mtbf", quantities.duration, "Some 50000h is usual.")
    warning = fleet.check_gpu_mtbf(per_gpu)
    if warning:
        inputs.warnings.append(warning)
    return inputs.derive("mtbf_s", fleet.fleet_mtbf_s(per_gpu, gpus), "MTBF of a GPU over their number")


def _from_count(inputs: Inputs) -> tuple[float, history.MtbfEstimate]:
    gpus_input(inputs)
    run_s = inputs.need("run_s", "days", quantities.days, "Say in how many days they happened, such as --days 54.")
    text = str(inputs.options["interruptions"])
    count = 0.0 if text.strip() == "0" else quantities.whole_count(text, "--interruptions").value
    inputs.rows["interruptions"] = Row("interruptions", count, "given")
    estimate = history.estimate_mtbf(int(count), run_s, confidence_input(inputs))
    if estimate.mtbf_s is None:
        raise UserError(
            f"no interruption in {quantities.show_duration(run_s)} gives no MTBF, only a bound: at least "
            f"{quantities.show_duration(estimate.mtbf_low_s)}",
            fix=f"Plan with the bound: --mtbf {estimate.mtbf_low_s:.0f}s.",
        )
    return inputs.derive("mtbf_s", estimate.mtbf_s, "days over interruptions"), estimate


def _from_history(inputs: Inputs, past: history.FleetHistory) -> tuple[float, history.MtbfEstimate]:
    gpus = _gpus_needed(inputs)
    estimate = history.job_mtbf(past, gpus, confidence_input(inputs))
    if estimate.mtbf_s is None:
        raise UserError(
            f"the history holds no failure: a job on {gpus} GPUs runs at least "
            f"{quantities.show_duration(estimate.mtbf_low_s)} between failures, more is not known",
            fix=f"Plan with the bound: --mtbf {estimate.mtbf_low_s:.0f}s.",
        )
    failures = counted(estimate.failures, "failure")
    if estimate.failures < 10:
        inputs.warnings.append(f"the history holds only {failures}: see the confidence interval")
    inputs.rows["mtbf_s"] = Row("mtbf_s", estimate.mtbf_s, "history", failures)
    return estimate.mtbf_s, estimate


def confidence_input(inputs: Inputs) -> float:
    value = inputs.read("confidence_fraction", "confidence", quantities.share, default=0.95, note="two-sided")
    assert value is not None
    if value == 1:
        raise UserError("--confidence: 100 % is every number there is", fix="Give 95%.")
    return value


def checkpoint_input(inputs: Inputs) -> float | None:
    """Size of a checkpoint: stated, or parameters times bytes, or the mean of the history's global saves."""
    per = inputs.options.get("bytes_per_parameter")
    computed = None
    if inputs.has("parameters"):
        parameters = inputs.need("parameters", "parameters", _parameters, "")
        note = "bf16 weights, fp32 master weights and two Adam moments"
        bytes_per = inputs.read(
            "bytes_per_parameter",
            "bytes_per_parameter",
            quantities.plain,
            default=bandwidth.BYTES_PER_PARAMETER,
            note=note,
        )
        assert bytes_per is not None
        if bytes_per > 64 or bytes_per < 0.25:
            inputs.warnings.append(f"{bytes_per:g} bytes per parameter is unusual: 14 is a full state, 2 weights alone")
        if parameters > MOST_PARAMETERS:
            inputs.warnings.append(f"{parameters:.3g} parameters are more than any model published has")
        computed = bandwidth.checkpoint_bytes(parameters, bytes_per)
    elif per is not None:
        raise UserError("--bytes-per-parameter needs --parameters", fix="Say how many, such as --parameters 405B.")
    if inputs.has("checkpoint"):
        stated = inputs.need("checkpoint_bytes", "checkpoint", quantities.size, "")
        if stated < 1e5:
            raise UserError(
                f"--checkpoint: {stated:g} bytes are hardly a checkpoint",
                fix="B is bytes here: 405B parameters go to --parameters.",
            )
        _compare_sizes(inputs, stated, computed)
        return stated
    if computed is not None:
        return inputs.derive("checkpoint_bytes", computed, "parameters x bytes per parameter")
    past = inputs.history
    mean = None if past is None else history.mean([s.size_bytes for s in past.saves if s.tier == "global"])
    return inputs.read(
        "checkpoint_bytes", "checkpoint", quantities.size, past=mean, past_note="mean of the global saves"
    )


def _parameters(text: str, what: str) -> Quantity:
    return quantities.count(text, what, least=1000, most=1e16)


def _compare_sizes(inputs: Inputs, stated: float, computed: float | None) -> None:
    if computed is None or abs(computed / stated - 1) < 0.01:
        return
    mixup = bandwidth.binary_mixup(stated, computed)
    why = f": {mixup}?" if mixup else ""
    inputs.warnings.append(
        f"--checkpoint says {quantities.show_bytes(stated)}, the parameters make {quantities.show_bytes(computed)}{why}; "
        "the first is used"
    )


def restart_input(inputs: Inputs) -> float:
    """Failure to first new step. Not given and not measured: 0, and the answer says that it is left out."""
    past = None
    if inputs.history is not None:
        failures = inputs.history.failures
        restart, seen = history.mean([f.restart_s for f in failures]), history.mean([f.detection_s for f in failures])
        past = None if restart is None else restart + (seen or 0.0)
    value = inputs.read(
        "restart_s",
        "restart",
        quantities.duration_or_zero,
        past=past,
        past_note="mean, detection included",
        default=0.0,
        note="left out of the overhead; no interval depends on it",
    )
    assert value is not None
    return value


def options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator: these options, in this order, then --history, --plot, --no-chart and --json."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        command = click.option("--json", "as_json", is_flag=True, help="One JSON object: plain numbers, SI units.")(
            command
        )
        command = click.option("--no-chart", is_flag=True, help="Leave out the curve.")(command)
        for name in reversed((*names, "history", "plot")):
            metavar, text = OPTIONS[name]
            command = click.option(f"--{name}", metavar=metavar, help=text)(command)
        return command

    return add


# option -> (metavar, help); the texts of quantities show their form
OPTIONS: dict[str, tuple[str, str]] = {
    "mtbf": ("3.09h", "Mean time between failures of the job."),
    "gpus": ("16384", "GPUs of the job."),
    "gpu-mtbf": ("50000h", "Mean time between failures of one GPU, its share of node and network included."),
    "failures-per-1000-node-days": ("6.5", "Failure rate as clusters publish it."),
    "interruptions": ("419", "Failures counted in --days."),
    "gpus-per-node": ("8", "GPUs of a node."),
    "days": ("54", "Length of the run."),
    "confidence": ("95%", "Confidence of intervals that come from counts."),
    "save": ("90s", "How long a save takes: stops the training or, for bandwidth, is on its way."),
    "restart": ("10min", "From the failure to the first new step."),
    "interval": ("15min", "Time between saves."),
    "local-save": ("10s", "The same for saves to the local tier (peers' memory, local disks)."),
    "local-restart": ("3min", "Restart from the local tier."),
    "local-share": ("90%", "Share of the failures that the local tier repairs."),
    "parameters": ("405B", "Parameters of the model."),
    "bytes-per-parameter": ("14", "Bytes saved for each."),
    "checkpoint": ("5.67TB", "Size of a checkpoint, instead of --parameters."),
    "overlap": ("10%", "Share of the interval that a save may take."),
    "read-factor": ("8", "Bytes read at a restart for each byte of a checkpoint."),
    "bandwidth": ("2TB/s", "Write bandwidth that is there: is it enough?"),
    "nodes": ("2048", "Nodes of the job."),
    "local-copies": ("1", "Copies of each shard on local drives."),
    "local-interval": ("5min", "Time between local saves; else --interval."),
    "drive-capacity": ("30.7TB", "Local drives of a node."),
    "drive-endurance": ("56PB", "Bytes that these drives may write in their life."),
    "drive-dwpd": ("1", "The same as drive writes per day over five years."),
    "goodput": ("95%", "Wished share of useful time: how many saves between failures?"),
    "checkpoints-between-failures": ("20", "Saves between two failures: how often, how much a day?"),
    "node-mtbf": ("6250h", "Mean time between failures of one node."),
    "repair": ("24h", "How long a broken node is away."),
    "wait": ("10min", "How long a job may wait for a replacement."),
    "probability": ("99%", "For what share of the failures that must hold."),
    "node-loss-share": ("60%", "Share of the failures that send a node to repair."),
    "copies": ("2", "Copies of each shard, the owner's included."),
    "losses": ("4", "Nodes lost at once."),
    "placement": ("group", "group, ring or random."),
    "domain-nodes": ("8", "Nodes that are lost together (a rack); --losses then counts domains."),
    "returns": ("60%", "Share of lost nodes that come back with their disks: copies on disk."),
    "storage-bandwidth": ("100GB/s", "Of the global storage: when do peer copies pay?"),
    "peer-bandwidth": ("40GB/s", "From a node to its peer."),
    "memory": ("2TiB", "Host memory of a node."),
    "detection": ("30s", "From the failure to its detection."),
    "load": ("1min", "Loading the checkpoint."),
    "history": ("FILE", "Failures, saves and repairs of this cluster (JSON); the word daemon asks the running daemon."),
    "plot": ("FILE", "Write the curve as PNG or SVG."),
}
