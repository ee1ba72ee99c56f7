"""How often `sentinel hang` is right on dumps of many layouts and releases. Run: python tests/bench/hang/parallel.py"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from parallel_dumps import FAULTS, FORMS, Case, make_case
from tally import Tally

from sentinel.classify.hang.analyse import HangFinding, analyse
from sentinel.evidence.nccl.flight_recorder import read_dump
from sentinel.model.collectives import RankTrace, Unreadable


def judge(case: Case) -> tuple[HangFinding, bool, bool]:
    """(what was found, whether the culprits are right, whether the kind is)."""
    read = [read_dump(data, name) for name, data in case.files.items()]
    finding = analyse(
        [item for item in read if isinstance(item, RankTrace)], [item for item in read if isinstance(item, Unreadable)]
    )
    named = set(finding.culprit_ranks)
    return finding, named in case.right or bool(named and named <= case.within), finding.kind in case.kinds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=420)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one fault")
    parser.add_argument("--wrong", type=int, default=0, help="print so many wrong ones")
    options = parser.parse_args()
    tally = Tally()
    for seed in range(options.seed, options.seed + options.cases):
        if options.only and FAULTS[seed % len(FAULTS)] != options.only:
            continue
        case = make_case(seed)
        finding, good, kind = judge(case)
        tally.add((case.fault, case.form), finding.basis, culprits=good, kind=kind)
        if not (good and kind) and options.wrong > 0:
            options.wrong -= 1
            print(
                f"seed {seed}: {case.fault} {case.form} {case.layout}; {case.detail}; right {case.right} {case.kinds}\n"
                f"    said {finding.kind} {finding.culprit_ranks} ({finding.basis}): {finding.explanation}"
            )
    tally.show((*FAULTS, *FORMS))
    return 0 if tally.enough() else 1


if __name__ == "__main__":
    sys.exit(main())
