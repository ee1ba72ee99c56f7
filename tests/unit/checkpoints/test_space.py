"""Room on the storage: what a save that was cut off says about it, and when it will run out."""

from __future__ import annotations

import pytest

from sentinel.checkpoints.space import Space, filling, no_room, space_of
from sentinel.checkpoints.watch import Rhythm, Save

GB = 10**9
USUAL = Rhythm(600.0, 30.0, 10.0 * GB)
TORN = Save(40, 0.0, 30.0, 4 * GB, False, "cut short")


@pytest.mark.parametrize(
    ("space", "full"),
    [
        (Space(0, 100 * GB, 5), True),
        (Space(5 * GB, 100 * GB, 5), True),  # 6 GB were still to come
        (Space(7 * GB, 100 * GB, 5), False),
        (Space(50 * GB, 100 * GB, 0), True),
        (Space(50 * GB, 100 * GB, None), False),
        (None, False),
    ],
)
def test_a_save_without_room(space, full):
    text = no_room(TORN, USUAL, space)
    assert bool(text) is full
    if full:
        assert str(space) in text


def test_without_a_usual_size_only_full_is_full():
    unknown = Rhythm(None, None, None)
    assert no_room(TORN, unknown, Space(4096, GB, 9))
    assert not no_room(TORN, unknown, Space(GB, GB, 9))


def free_space(*free_gb):
    return [(600.0 * i, Space(int(free * GB), 1000 * GB, None)) for i, free in enumerate(free_gb)]


def test_the_rate_at_which_it_fills():
    trouble = filling(free_space(130, 120, 110, 100), USUAL)
    assert trouble.kind == "full"
    assert trouble.text == "full in 100 min at 16.7 MB/s, as in the last 30 min: 100 GB of 1 TB free"
    assert filling(free_space(900, 899.999, 899.998), USUAL) is None  # weeks


def test_two_minutes_say_nothing_of_the_next_day():
    assert filling([(0.0, Space(50 * GB, 100 * GB, None)), (60.0, Space(50 * GB, 100 * GB, None)),
                    (126.0, Space(50 * GB - 91_336_000, 100 * GB, None))], USUAL) is None  # fmt: skip


def test_a_burst_of_others_is_no_rate():
    burst = [0.0, 65.0, 130.0]
    free = [60 * GB, 55 * GB, 54 * GB]  # at 46 MB/s over all, and at 15 MB/s since it is over
    history = [(at, Space(left, 271 * GB, None)) for at, left in zip(burst, free, strict=True)]
    assert filling(history, Rhythm(60.0, 5.0, GB / 1000)) is None
    assert filling(free_space(500, 100, 100, 99.99), USUAL) is None


def test_what_is_deleted_again_is_no_growth():
    assert filling(free_space(50, 40, 50, 50), USUAL) is None


def test_too_little_for_the_next_one():
    assert "needs about" in filling(free_space(9, 9, 9), USUAL).text


def test_too_few_saves_to_say():
    assert filling(free_space(30, 15), USUAL) is None


def test_of_a_real_folder(tmp_path):
    space = space_of(str(tmp_path))
    assert 0 <= space.free_bytes <= space.total_bytes
    assert Space.from_json(space.to_json()) == space
    with pytest.raises(OSError):
        space_of(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("wrong", [None, 3, {}, {"free_bytes": "1", "total_bytes": 1, "free_files": None}])
def test_what_is_none(wrong):
    assert Space.from_json(wrong) is None
