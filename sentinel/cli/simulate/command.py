"""``sentinel simulate``: weeks of large jobs on a cluster that does not exist, decided by the code that runs live."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli.offline.progress_bar import count_bar
from sentinel.cli.operator.arguments import refuse_unused, was_given
from sentinel.cli.operator.output import say
from sentinel.errors import UserError

if TYPE_CHECKING:
    from sentinel.cli.simulate.scenarios import Sweep
    from sentinel.simulate.long_run.scenario import Scenario
    from sentinel.simulate.long_run.seeds import Ran

MOST_SEED = 2**63 - 1
MOST_SEEDS = 10_000
BAR_FROM_DAYS = 20
_NOT_OF_TASKS = frozenset({"seed", "seeds", "slurm", "sbatch", "part", "plot", "no_chart", "as_json"})


@click.command()
@click.option("--nodes", default="1024", show_default=True, help="Nodes that the jobs need together.")
@click.option("--gpus-per-node", default="8", show_default=True)
@click.option("--days", default="54", show_default=True, help="How long.")
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed, other failures.")
@click.option("--seeds", type=int, default=1, show_default=True, help="So many seeds from --seed on; more say more.")
@click.option(
    "--failures", default="llama3", show_default=True, metavar="llama3|rsc1|rsc2|FILE",
    help="How often which cause: a published fleet, or the site's own history (the JSON of sentinel plan --history).",
)  # fmt: skip
@click.option("--policy", type=click.Path(path_type=Path), help="Settings file: limits, and modes if it names any.")
@click.option(
    "--as", "behaviours", default="sentinel", show_default=True, metavar="NAME,...",
    help="Who reacts: sentinel, byterobust, on-call, nccl-timeout, stock, or all; several side by side.",
)  # fmt: skip
@click.option("--jobs", default="1", show_default=True, help="Equal jobs that share the nodes.")
@click.option("--spares", default=None, help="Nodes beside those of the jobs.  [default: one in 64]")
@click.option("--interval", default="5min", show_default=True, help="Work between two checkpoints.")
@click.option("--save", default="1s", show_default=True, help="How long a save stops the training.")
@click.option("--start", default="60s", show_default=True, help="From the start of a job to its first step.")
@click.option("--step", default="10s", show_default=True, help="One step of training.")
@click.option(
    "--errors", type=click.Choice(["hold", "retry"]), default="retry", show_default=True,
    help="What the jobs' comments ask for when their program fails.",
)  # fmt: skip
@click.option("--needs-code", default=None, help="Share of software bugs that need new code.  [default: 3 of 419]")
@click.option(
    "--sweep", default=None, metavar="KEY=V1,V2,...",
    help="One run for each value of one option (spares, interval, ...) or setting (limits.drain_count, ...).",
)  # fmt: skip
@click.option("--slurm", type=int, default=0, metavar="N", help="Share the seeds out over a job array of N tasks.")
@click.option(
    "--sbatch", default="", metavar="OPTIONS", help='Of that job array, e.g. "--partition=cpu --time=2:00:00".'
)
@click.option("--part", type=click.Path(path_type=Path), hidden=True, help="Of a task: where its runs are written.")
@click.option("--plot", default=None, metavar="FILE", help="Write the curve as PNG or SVG.")
@click.option("--no-chart", is_flag=True, help="No curve in the terminal.")
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object a line: per behaviour, and per value of a sweep."
)
def simulate(
    seed: int, seeds: int, behaviours: str, plot: str | None, as_json: bool, no_chart: bool, slurm: int, sbatch: str,
    part: Path | None, **given: Any,
) -> None:  # fmt: skip
    """Simulate weeks of training, and what failures cost, before a node is drained anywhere.

    Failures strike jobs on a cluster in memory; machines and programs say what they would say; the engine, rules and
    policy that run live judge and act; Slurm, restarts, repairs and people take the times that the assumptions state.
    Nothing is touched outside. Every figure is simulated: it holds for its seed and its assumptions, which --json lists.

    \b
    Examples:
      sentinel simulate --nodes 2048 --days 54 --seed 1 --json
      sentinel simulate --nodes 256 --as all --seeds 5
      sentinel simulate --nodes 512 --failures history.json --policy sentinel.toml
      sentinel simulate --nodes 1024 --sweep interval=1min,5min,15min,1h --plot interval.png
      sentinel simulate --nodes 2048 --seeds 200 --slurm 20 --sbatch "--partition=cpu"
    """
    from sentinel.cli.offline.chart import check_file
    from sentinel.cli.simulate.job_array import MOST_TASKS, write_part
    from sentinel.cli.simulate.output import show
    from sentinel.cli.simulate.scenarios import names_of, scenarios_of
    from sentinel.simulate.long_run.seeds import summary

    if not 0 <= seed <= MOST_SEED:
        raise UserError(f"--seed {seed}: from 0 to {MOST_SEED}", fix="sentinel simulate --seed 1")
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(f"--seeds {seeds}: from 1 to {MOST_SEEDS}", fix="sentinel simulate --seeds 5")
    if not slurm:
        refuse_unused("without --slurm N", '--seeds 40 --slurm 8 --sbatch "..."', "sbatch")
    if not 0 <= slurm <= MOST_TASKS:
        raise UserError(f"--slurm {slurm}: from 1 to {MOST_TASKS} tasks", fix='--seeds 40 --slurm 8 --sbatch "..."')
    file, names = check_file(plot), names_of(behaviours)
    values, scenarios = scenarios_of(given)
    _refuse_unused(names, values)
    days = sum(scenario.days for scenario in scenarios) * seeds * len(names)
    found: dict[tuple[int, str], list[Ran]] = {}
    with count_bar("days", round(days), least=BAR_FROM_DAYS) as advance:
        numbers = range(seed, seed + seeds)
        runs = list(_runs(scenarios, numbers, names, slurm, sbatch, round(days / seeds), advance))
    if part is not None:
        write_part(part, runs)
        return
    for number, ran in runs:
        found.setdefault((number, ran.behaviour), []).append(ran)
    answers: list[dict[str, Any]] = [
        summary(scenarios[number], found[number, name])
        | ({"sweep": {values.key: values.texts[number]}} if values else {})
        for number in range(len(scenarios))
        for name in names
    ]
    if values is not None and len(values.texts) > 1 and _all_the_same(answers):
        words = f"no value of {values.key} changed anything: the simulation does not use it, or too little failed"
        answers = [answer | {"warnings": [*answer["warnings"], words]} for answer in answers]
    if as_json:
        for answer in answers:
            click.echo(json.dumps(answer, allow_nan=False))
    for words in () if as_json else sorted({words for answer in answers for words in answer["warnings"]}):
        say(f"warning: {words}", hanging=2, err=True)
    show(answers, values, file, quiet=as_json, curve=not no_chart)


def _all_the_same(answers: Sequence[dict[str, Any]]) -> bool:
    """Whether each behaviour did the same for all values of a sweep."""
    for name in {answer["as"] for answer in answers}:
        first, *others = [(one["lost_by_cause"], one["drains"], one["waits"]) for one in answers if one["as"] == name]
        if any(other != first for other in others):
            return False
    return True


def _refuse_unused(names: Sequence[str], sweep: Sweep | None) -> None:
    """
    Raises:
        UserError: an option that was given would change nothing.
    """
    if sweep is not None and "." not in sweep.key:
        fix = f"leave --{sweep.key} out"
        refuse_unused("beside --sweep, which gives it its values", fix, sweep.key.replace("-", "_"))
    if "sentinel" not in names:
        fix = f"--as {','.join(['sentinel', *names])}, or leave it out"
        refuse_unused(f"for {', '.join(names)}: only Sentinel has one", fix, "policy")
        refuse_unused(f"for {', '.join(names)}: only Sentinel reads the jobs' comments", fix, "errors")
        if sweep is not None and (sweep.key == "errors" or "." in sweep.key):
            raise UserError(f"--sweep {sweep.key} would change nothing for {', '.join(names)}", fix=fix)


def _runs(
    scenarios: Sequence[Scenario], seeds: range, names: Sequence[str], slurm: int, sbatch: str, days: int,
    advance: Callable[[int], None],
) -> Iterator[tuple[int, Ran]]:  # fmt: skip
    """Here, or in a job array. ``days``: of one seed."""
    from sentinel.cli.simulate.job_array import run_in_slurm
    from sentinel.simulate.long_run.seeds import run_all

    if not slurm:
        return run_all(scenarios, seeds, names, len(os.sched_getaffinity(0)), advance)
    return run_in_slurm(_given_again(), seeds, slurm, sbatch, lambda count: advance(count * days))


def _given_again() -> list[str]:
    """The options of this call that a task of the job array needs too."""
    context = click.get_current_context()
    words: list[str] = []
    for option in context.command.params:
        value, name = context.params.get(option.name or ""), option.name or ""
        if name in _NOT_OF_TASKS or not was_given(name):
            continue
        if name in ("policy", "failures") and Path(str(value)).exists():
            value = Path(str(value)).absolute()
        words += [option.opts[0], f"{value}"]
    return words
