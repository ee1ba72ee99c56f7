"""How often `sentinel hang` names exactly the right ranks on generated failures. Run: python tests/bench/hang/accuracy.py"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from simulated_ranks import FAULTS, FORMATS, Case, make_case
from tally import Tally

from sentinel.classify.hang.analyse import HangFinding, analyse
from sentinel.evidence.nccl.flight_recorder import read_dump
from sentinel.model.collectives import RankTrace, Unreadable


def judge(case: Case) -> tuple[HangFinding, bool]:
    read = [read_dump(data, name) for name, data in case.files.items()]
    finding = analyse(
        [item for item in read if isinstance(item, RankTrace)], [item for item in read if isinstance(item, Unreadable)]
    )
    return finding, set(finding.culprit_ranks) in (case.truth, *case.also_right)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=900)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrong", type=int, default=0, help="print so many wrong ones")
    options = parser.parse_args()
    tally = Tally()
    for seed in range(options.seed, options.seed + options.cases):
        case = make_case(seed)
        finding, good = judge(case)
        tally.add((case.fault, case.form), finding.basis, culprits=good, kind=finding.kind in case.kinds)
        if not good and options.wrong > 0:
            options.wrong -= 1
            print(
                f"seed {seed}: {case.fault} {case.form} {case.shape} {case.detail}; said {finding.kind} "
                f"{finding.culprit_ranks} ({finding.basis}) in {finding.group} {finding.sequence}, truth {case.truth}"
            )
    tally.show((*FAULTS, *FORMATS))
    return 0 if tally.enough() else 1


if __name__ == "__main__":
    sys.exit(main())
