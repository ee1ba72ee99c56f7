"""Sums up what was right at first sight, by kind of logs: sets that were labelled before the program saw them, scored once.

``judgement_sets.csv`` has a line for each set, oldest first. Counts of logs: ``decidable`` are those whose cause an expert
who sees only the log can name; ``no_drain`` and ``needed_drains`` those of which the label says so, the rest may go either
way; ``suspects`` are needed drains of which a test was advised. ``first_two_percent`` and ``unknown_percent`` are of the
logs whose cause is known. The logs are not part of this repository.

Run: python tests/bench/judgement_sets.py [--plot docs/images/first-sight.svg]
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from judgement_curve import wilson

SETS = Path(__file__).with_suffix(".csv")
ASKED = 0.90  # of the decidable
KINDS = {
    "training": "training: PyTorch and its frameworks",
    "clusters": "Slurm clusters",
    "machines and clusters": "machines and clusters together",
    "machines": "machines: kernel, GPUs, networks",
    "others": "JAX, ROCm, MPI, simulations",
    "mixed": "of all kinds",
    "broken on purpose": "programs broken on purpose",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One set, or several together."""

    kind: str
    sets: int
    logs: int
    right: int
    decidable: int
    decidable_right: int
    no_drain: int
    wrong_drains: int
    needed_drains: int
    drains_found: int


def read(path: Path = SETS) -> list[Row]:
    with path.open() as file:
        return [
            Row(row["kind"], 1, *(int(row[name]) for name in Row.__dataclass_fields__ if name not in {"kind", "sets"}))
            for row in csv.DictReader(file)
        ]


def together(rows: Sequence[Row], kind: str) -> Row:
    counts = [name for name in Row.__dataclass_fields__ if name != "kind"]
    return Row(kind, *(sum(getattr(row, name) for row in rows) for name in counts))


def by_kind(rows: Sequence[Row]) -> list[Row]:
    """One row for each kind in the order of `KINDS`, then one for all."""
    kinds = [together([row for row in rows if row.kind == kind], words) for kind, words in KINDS.items()]
    return [*kinds, together(rows, "all")]


def table(rows: Sequence[Row]) -> str:
    lines = ["| logs of | sets | logs | right over all | of the decidable | wrong drains | needed drains |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in rows:
        share = f"{row.decidable_right / row.decidable:.0%} of {row.decidable:,}"
        drains = f"{row.wrong_drains} of {row.no_drain:,} | {row.drains_found} of {row.needed_drains}"
        lines.append(f"| {row.kind} | {row.sets} | {row.logs:,} | {row.right / row.logs:.0%} | {share} | {drains} |")
    return "\n".join(lines).replace("%", " %")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Each set a small dot, each kind its mean with the interval that holds the true share with 95 %."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    for height, (kind, words) in enumerate(reversed(KINDS.items())):
        sets = [row for row in rows if row.kind == kind]
        whole = together(sets, words)
        axes.scatter([row.decidable_right / row.decidable for row in sets], [height] * len(sets), s=14, color="#9bb8cc")
        mean = whole.decidable_right / whole.decidable
        axes.plot(wilson(whole.decidable_right, whole.decidable), [height, height], color="#1f6f9f", linewidth=2)
        axes.scatter([mean], [height], s=46, color="#1f6f9f", zorder=3)
        axes.annotate(f"{mean:.0%}", (mean, height), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    axes.axvline(ASKED, color="#c4570e", linewidth=1)
    axes.annotate("asked", (ASKED, len(KINDS) - 0.45), (4, 0), textcoords="offset points", color="#c4570e", fontsize=8)
    axes.set_yticks(range(len(KINDS)), list(reversed(KINDS.values())), fontsize=9)
    axes.set_ylim(-0.6, len(KINDS) - 0.2)
    axes.set_xlim(0.35, 1.0)
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    logs = sum(row.logs for row in rows)
    axes.set_title(
        f"right at first sight, of the logs that show their cause ({len(rows)} sets, {logs:,} logs)", fontsize=10
    )
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--plot", type=Path, help="the picture to write, as SVG or PNG")
    given = parser.parse_args()
    rows = read()
    print(table(by_kind(rows)))
    if given.plot:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
