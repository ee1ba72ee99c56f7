from __future__ import annotations

import tracemalloc
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.errors import ProtocolError
from sentinel.model.hostlist import expand, fold, names_in


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],m02", ["n1", "n2", "n3", "n7", "m02"]),
        ("gpu-[08-11]", ["gpu-08", "gpu-09", "gpu-10", "gpu-11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]c[1-2]", ["r1c1", "r1c2", "r2c1", "r2c2"]),
        ("r[1-2]-ib", ["r1-ib", "r2-ib"]),
        ("n[5]", ["n5"]),
        ("n3,n1,n3", ["n3", "n1", "n3"]),
        ("a.example.org,b[1-2].example.org", ["a.example.org", "b1.example.org", "b2.example.org"]),
        ("", []),
        ("(null)", []),
        ("None", []),
        ("  n1  ", ["n1"]),
        # As scontrol show hostnames of 22.05, 24.11 and 26.05 has them; slurmctld keeps such a text as a user typed it.
        ("n1, n2", ["n1", "n2"]),
        ("n1 n2\tn3\nn4", ["n1", "n2", "n3", "n4"]),
        (",n1,,n2,", ["n1", "n2"]),
        (" , ", []),
        ("n[1-2] ,m", ["n1", "n2", "m"]),
        ("n[1, 2]", ["n1", "n02"]),
        ("n[1- 3]", ["n1", "n2", "n3"]),
        ("n[1 -3]", ["n01", "n02", "n03"]),
    ],
)
def test_short_forms(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


@pytest.mark.parametrize(
    "text",
    [
        "n[1-3",
        "n1-3]",
        "n[[1]]",
        "n[3-1]",
        "n[a-b]",
        "n[1-]",
        "n[]",
        "n[1,,2]",
        "n[1 ,2]",
        "n[ 1-3 ]",
        "n1\rn2",
        "n[1-99999999999]",
        "n[1-999]" * 3,
        "n" + "[1]" * 10_000,
    ],
)
def test_damaged_lists_are_not_guessed(text: str) -> None:
    with pytest.raises(ProtocolError):
        expand(text)


@pytest.mark.parametrize(
    "text",
    [
        "n[1-100001]",
        "n[1-60000],m[1-60000]",
        "n" + "[0-9]" * 7,
        "n" + "[0-9]" * 31,
        "n[1-999999]",
        "a" * 15_900 + "[1-80000]",
        "[000000000000000001-80000]" * 6,
        ",".join(f"{'a' * 9_000}{letter}[1-500]" for letter in "bc"),
    ],
)
def test_what_would_fill_the_memory_is_refused_before_it_is_made(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="node list has more than"):
            expand(text)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["n[1-100000]", "n" + "[0-9]" * 5, f"n[1-100].{'a' * 240}", "n[1-50000],m[1-50000]"])
def test_what_a_cluster_may_have_is_not_refused(text: str) -> None:
    assert len(set(expand(text))) in (100, 100_000)


def test_the_first_names_come_without_the_others() -> None:
    assert list(islice(names_in("n[1-3],m[1-999999]p[1-999999],["), 5)) == ["n1", "n2", "n3", "m1p1", "m1p2"]


@given(st.lists(st.tuples(st.sampled_from(["n", "gpu-", "r1c"]), st.integers(0, 9999)), min_size=1, max_size=40))
def test_written_out_names_come_back_in_order(names: list[tuple[str, int]]) -> None:
    written = [f"{prefix}{number}" for prefix, number in names]
    assert list(expand(",".join(written))) == written


@given(st.integers(0, 500), st.integers(0, 60), st.integers(1, 5))
def test_ranges_have_every_number_once_and_keep_their_width(first: int, more: int, width: int) -> None:
    low, high = str(first).zfill(width), str(first + more).zfill(width)
    names = expand(f"n[{low}-{high}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))
    assert all(len(name) >= 1 + width for name in names)


# --- folded ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n3", "n1", "n2", "n7", "m02", "n1"], "n[1-3,7],m02"),
        (["gpu-09", "gpu-08", "gpu-10", "gpu-11"], "gpu-[08-11]"),
        (["n0", "n9", "n10", "n11"], "n[0,9-11]"),
        (["n1", "n01", "n001"], "n[1,01,001]"),
        (["r1c1", "r1c2", "r2c1"], "r1c[1-2],r2c1"),
        (["b1.example.org", "b2.example.org", "login"], "b[1-2].example.org,login"),
        (["n1:3", "n1:5"], "n1:[3,5]"),
        (["n", "n1"], "n,n1"),
        (["n 1", "n[2]", "n,3"], "n 1,n[2],n,3"),
    ],
)
def test_folded_as_slurm_writes_it(names: list[str], text: str) -> None:
    assert fold(names) == text


@given(
    st.lists(
        st.tuples(st.sampled_from(["n", "gpu-", "r1c", ""]), st.sampled_from(["", "0", "00"]), st.integers(0, 130),
                  st.sampled_from(["", "-ib", ".x.org"])),
        min_size=1,
        max_size=60,
    )
)  # fmt: skip
def test_what_is_folded_expands_to_the_same_names(parts: list[tuple[str, str, int, str]]) -> None:
    names = [f"{head}{zeros}{number}{tail}" for head, zeros, number, tail in parts]
    assert sorted(expand(fold(names))) == sorted(set(names))
