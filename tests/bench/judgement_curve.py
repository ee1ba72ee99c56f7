"""Plots how often verdicts were right against the confidence they stated, on labelled logs that no rule was written from.

The counts of docs/images/calibration.svg are in judgement_curve.csv: a line for each stated confidence, with how many
verdicts were right and wrong; the line without a confidence counts *unknown*. The logs are not part of this repository.

Run: python tests/bench/judgement_curve.py --labelled FOLDER [FOLDER ...]   (writes the counts of such folders as
     judgement.py reads)
     python tests/bench/judgement_curve.py --plot docs/images/calibration.svg
"""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path

COUNTS = Path(__file__).with_suffix(".csv")
BINS = (0.0, 0.5, 0.65, 0.79, 0.865, 1.001)
LEFT, TOP, SIDE, GAP = 52, 34, 220, 84  # of the two panels, in pixels
_ON_WHITE = 'paint-order="stroke" stroke="#fff" stroke-width="3"'  # over another point's interval
Z = 1.96  # of the interval that holds 95 %
Count = tuple[float | None, int, int]  # confidence, right, wrong


def labelled(folders: Sequence[Path]) -> list[Count]:
    """The counts of the verdicts on labelled logs."""
    from judgement import labelled as answers_of

    from sentinel.adapters.hyperscan import best_screen
    from sentinel.cli.offline.unread_lines import with_unread
    from sentinel.config.rules_files import load_rules
    from sentinel.evidence.logs.reader import Signatures

    signatures = Signatures(with_unread(load_rules()), best_screen)
    counts: Counter[tuple[float | None, bool]] = Counter()
    for folder in folders:
        for answer in answers_of(folder, signatures):
            stated = None if answer.got == "unknown" else round(answer.confidence, 2)
            counts[stated, answer.got == answer.true] += 1
    stated_ones = sorted({stated for stated, _ in counts}, key=lambda stated: -1.0 if stated is None else stated)
    return [(stated, counts[stated, True], counts[stated, False]) for stated in stated_ones]


def wilson(right: int, n: int) -> tuple[float, float]:
    """Interval that holds the true share with 95 %."""
    share, square = right / n, Z * Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = Z * sqrt(share * (1 - share) / n + square / (4 * n * n)) / (1 + square / n)
    return middle - half, middle + half


def svg(counts: Sequence[Count]) -> str:
    total = sum(right + wrong for _, right, wrong in counts)
    told = [(stated, right, wrong) for stated, right, wrong in counts if stated is not None]
    parts = [
        *_axes(0, "stated confidence", f"right, with 95 % intervals ({total} logs)"),
        _line([(0, 0), (1, 1)], 0, "#bbb"),
    ]
    for low, high in pairwise(BINS):
        inside = [item for item in told if low <= item[0] < high]
        right, n = sum(item[1] for item in inside), sum(item[1] + item[2] for item in inside)
        if not n:
            continue
        mean = sum(stated * (good + bad) for stated, good, bad in inside) / n
        least, most = wilson(right, n)
        x, y = _at(mean, right / n, 0)
        parts += [
            _line([(mean, least), (mean, most)], 0, "#1f6f9f"),
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="#1f6f9f"/>',
            f'<text x="{x - 7:.0f}" y="{y + 4:.0f}" text-anchor="end" {_ON_WHITE}>{right}/{n}</text>',
        ]
    parts += _axes(1, "least confidence that counts", "what is kept where less is ignored")
    curves: dict[str, list[tuple[float, float]]] = {"answered": [], "right of answered": [], "right of all": []}
    for stated in sorted({0.0, *(item[0] for item in told)}):
        kept = [item for item in told if item[0] >= stated]
        right, n = sum(item[1] for item in kept), sum(item[1] + item[2] for item in kept)
        for name, share in zip(curves, (n / total, right / n if n else 0.0, right / total), strict=True):
            curves[name].append((stated, share))
    for (name, points), colour, row in zip(curves.items(), ("#888", "#1f6f9f", "#c4570e"), (0, 1, 2), strict=True):
        x, y = _at(0.04, 0.27 - 0.1 * row, 1)
        parts += [_line(points, 1, colour), f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}">{name}</text>']
    width, height = LEFT + 2 * SIDE + GAP + 16, TOP + SIDE + 44
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="#fff"/>', *parts, "</svg>", ""])


def _at(x: float, y: float, panel: int) -> tuple[float, float]:
    return LEFT + panel * (SIDE + GAP) + SIDE * x, TOP + SIDE * (1 - y)


def _line(points: Sequence[tuple[float, float]], panel: int, colour: str) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in (_at(*point, panel) for point in points))
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _axes(panel: int, below: str, above: str) -> list[str]:
    left, top = _at(0, 1, panel)
    parts = [
        f'<rect x="{left}" y="{top}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#444"/>',
        f'<text x="{left + SIDE / 2}" y="{top + SIDE + 34}" text-anchor="middle">{below}</text>',
        f'<text x="{left + SIDE / 2}" y="{top - 12}" text-anchor="middle">{above}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        (x, floor), (wall, y) = _at(share, 0, panel), _at(0, share, panel)
        parts.append(f'<text x="{x}" y="{floor + 16}" text-anchor="middle">{share:g}</text>')
        parts.append(f'<text x="{wall - 6}" y="{y + 4}" text-anchor="end">{share:.0%}</text>')
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labelled", type=Path, nargs="+", help="folders of labelled logs; writes their counts")
    parser.add_argument("--plot", type=Path, help="the picture to write")
    given = parser.parse_args()
    if given.labelled:
        with COUNTS.open("w", newline="") as file:
            rows = [
                ("" if stated is None else stated, right, wrong) for stated, right, wrong in labelled(given.labelled)
            ]
            csv.writer(file, lineterminator="\n").writerows([("confidence", "right", "wrong"), *rows])
    with COUNTS.open() as file:
        counts: list[Count] = [
            (float(row["confidence"]) if row["confidence"] else None, int(row["right"]), int(row["wrong"]))
            for row in csv.DictReader(file)
        ]
    if given.plot:
        given.plot.write_text(svg(counts))
    answered = [item for item in counts if item[0] is not None]
    n, right = sum(item[1] + item[2] for item in answered), sum(item[1] for item in answered)
    total = sum(item[1] + item[2] for item in counts)
    print(f"{total} logs, {n} answered, right of answered {right / n:.3f}, right of all {right / total:.3f}")


if __name__ == "__main__":
    main()
