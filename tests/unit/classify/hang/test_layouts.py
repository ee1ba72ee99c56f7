"""A part of the generated jobs of tests/bench/hang: two of every kind of fault, over layouts and releases."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench" / "hang"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCH))
    try:
        yield importlib.import_module("parallel")
    finally:
        sys.path.remove(str(BENCH))


@pytest.mark.parametrize("seed", range(28))
def test_culprits_and_kind_are_right(bench, seed):
    case = bench.make_case(seed)
    finding, culprits, kind = bench.judge(case)
    assert culprits, (case.fault, case.form, case.layout, case.right, finding)
    assert kind, (case.fault, case.form, case.layout, case.kinds, finding)


def test_the_faults_are_all_there(bench):
    assert {bench.make_case(seed).fault for seed in range(28)} == set(bench.FAULTS)
