"""After how many histories plain ``sentinel explore`` finds each planted fault: ``python tests/bench/planted_faults.py``.

For each promise the fault of ``tests/support/planted_faults.py``, and the histories of one seed in their order, until one
breaks the promise.
``explore`` spends a second run on what it has found, to shrink it; this stops before.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from planted_faults import PLANTED  # noqa: E402

from sentinel.simulate.explore import run  # noqa: E402
from sentinel.simulate.stories import history_of  # noqa: E402


def search(asked: tuple[str, int, int]) -> dict[str, object]:
    promise, seed, most = asked
    began_s = time.process_time()
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[promise](patch)
        for number in range(most):
            history = history_of(seed, number)
            if promise in {one.promise for one in run(history)[0]}:
                break
        else:
            return {"promise": promise, "fault": PLANTED[promise].__name__, "histories": None, "searched": most}
    return {
        "promise": promise, "fault": PLANTED[promise].__name__, "histories": number + 1, "story": history.story,
        "cpu_s": round(time.process_time() - began_s, 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most", type=int, default=5000)
    parser.add_argument("promises", nargs="*", metavar="PROMISE", help=f"of {', '.join(PLANTED)}; default: all")
    given = parser.parse_args()
    asked = [(name, given.seed, given.most) for name in given.promises or PLANTED]
    with get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        for found in pool.imap_unordered(search, asked, chunksize=1):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
