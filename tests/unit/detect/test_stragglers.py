"""Timers that a framework prints across its ranks: read from a log as it grows, and who makes the steps slower by them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from shipped import shipped_signatures

from sentinel.detect.stragglers import from_start, lag
from sentinel.evidence.logs.reader import LogReader
from sentinel.evidence.logs.timers import FOREIGN, TIMERS, VALUES, Report, data_of, part_of, report_of, timer_of
from sentinel.model.records import Evidence, Scalar, Source

SIGNATURES = shipped_signatures()
START = datetime(2026, 1, 5, tzinfo=UTC)

ENDS = """ [2026-01-05 10:00:00] iteration      40/    900 | elapsed time per iteration (ms): 950.1 | lm loss: 2.5E+00 |
(min, max) time across ranks (ms):
    forward-backward ...............................: (901.12, 903.40)
    forward-compute ................................: (311.20, 398.75)
    all-grads-sync .................................: (12.02, 99.61)
    save-checkpoint ................................: (4000.00, 4001.00)
"""
HEAD, TAIL = "times across ranks (ms):", "next line\n"


def by_rank(times: Mapping[str, Sequence[float]], prefix: str = "") -> str:
    lines = [HEAD]
    for name, values in times.items():
        lines.append(f"  {name}:")
        lines += [f"     rank {rank:2d}: {value:.2f}" for rank, value in enumerate(values)]
    return "".join(f"{prefix}{line}\n" for line in lines)


def read(*texts: str | bytes, apart_s: float = 60.0) -> list[Report]:
    return [report_of(item.data) for item in evidence(*texts, apart_s=apart_s)]


def evidence(*texts: str | bytes, apart_s: float = 60.0) -> list[Evidence]:
    reader = LogReader(SIGNATURES, source=Source.JOB_LOG)
    found = []
    for i, text in enumerate(texts):
        found += reader.feed(text.encode() if isinstance(text, str) else text, START + timedelta(seconds=apart_s * i))
    found += reader.finish(START + timedelta(seconds=apart_s * len(texts)))
    return [item for item in found if item.kind == TIMERS]


# --- what is read -----------------------------------------------------------------------------------------------------


def test_ends_are_read_and_what_says_nothing_of_ranks_is_left_out() -> None:
    (report,) = read(ENDS)
    assert set(report.timers) == {"forward-compute", "all-grads-sync"} and report.form == "ends"
    assert (report.timers["forward-compute"].low_ms, report.timers["forward-compute"].high_ms) == (311.2, 398.75)
    assert report.timers["forward-compute"].mid_ms is None and report.timers["forward-compute"].high_rank is None


def test_the_longest_time_alone_is_no_gap() -> None:
    (report,) = read("max time across ranks (ms):\n    forward-compute ................................: 398.75\n")
    assert report.timers["forward-compute"].low_ms == report.timers["forward-compute"].high_ms == 398.75


def test_a_block_in_one_line_is_read() -> None:
    text = "done [ t 1/1, p 1/1 ] (min, max) time across ranks (ms): forward-compute .......: (2.00, 4.50)\n"
    (report,) = read(text)
    assert (report.timers["forward-compute"].low_ms, report.timers["forward-compute"].high_ms) == (2.0, 4.5)


@pytest.mark.parametrize("prefix", ["", "15: ", "[rank15]: ", "[default7]:"])
def test_every_rank_is_read_behind_prefixes(prefix: str) -> None:
    (report,) = read(
        by_rank({"forward-compute": [10.0, 10.1, 9.9, 16.0], "all-grads-sync": [8.0, 8.1, 8.2, 2.0]}, prefix)
    )
    timer = report.timers["forward-compute"]
    assert (report.ranks, timer.high_rank, timer.low_rank) == (4, 3, 2) and timer.mid_ms == pytest.approx(10.05)
    assert timer.slow == {3: pytest.approx(1.592, abs=0.001)} and timer.quick == {}
    assert set(report.timers["all-grads-sync"].quick) == {3}


def test_lines_of_other_ranks_in_between_do_not_count() -> None:
    own = by_rank({"forward-compute": [10.0, 10.1, 9.9, 10.2]}, "7: ").splitlines(keepends=True)
    others = ["3:      rank  2: 9999.00\n", "3:   backward-compute:\n", "warning: something else\n", "\n"]
    mixed = "".join(line + "".join(others) for line in own)
    (report,) = read(mixed)
    assert report == read("".join(own))[0] and report.timers["forward-compute"].high_ms == 10.2


def test_pieces_of_any_size_give_the_same() -> None:
    text = (ENDS + by_rank({"forward-compute": [5.0, 5.0, 9.0]}) + TAIL).encode()
    whole = [item.data for item in evidence(text)]
    assert len(whole) == 2
    for size in (1, 3, 17, 64, 250):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert [item.data for item in evidence(*pieces, apart_s=0.0)] == whole


def test_a_report_has_the_time_of_its_first_line() -> None:
    first, second = evidence(ENDS, TAIL, ENDS)
    assert [first.at, second.at] == [START, START + timedelta(seconds=120)]
    assert first.seen_at == START + timedelta(seconds=120)


def test_torn_numbers_are_not_read() -> None:
    torn = "(min, max) time across ranks (ms):\n    forward-compute .....: (311.2\n    backward-compute .....: (1.00, 2.0\n"
    assert read(torn) == []
    assert read(f"{HEAD}\n  forward-compute:\n     rank  0: 12\n     rank  1: 3.4\n") == []


def test_reports_come_no_faster_than_is_needed() -> None:
    assert len(read(*[ENDS] * 50, apart_s=1.0)) == 5
    assert len(read(*[ENDS] * 50, apart_s=20.0)) == 50


def test_an_old_file_is_not_read_for_who_is_slow_now() -> None:
    reader = LogReader(SIGNATURES, source=Source.JOB_LOG, own_times=True)
    assert [item for item in reader.feed((ENDS * 3).encode(), START) if item.kind == TIMERS] == []


def test_the_slowest_rank_by_name_with_its_clock() -> None:
    line = (
        " 0: INFO:core: | MnRtt/Rnk: 310.55ms/8 | MxRtt/Rnk: 512.20ms/21 | MnPwr/Rnk: 601796W/8 | MnClk/Rnk: 1305MHz/21"
        " | MxClk/Rnk: 1980MHz/0 | MnDRtt/Rnk: 1.20ms/1 | MxDRtt/Rnk: 1.40ms/3 | MnEtpt/Rnk: 20.02TF/21\n"
    )
    (report,) = read(line)
    assert report.form == "named" and report.timers["Rtt"].high_rank == 21 and report.timers["Clk"].low_rank == 21
    assert (report.timers["Rtt"].low_ms, report.timers["Rtt"].high_ms) == (310.55, 512.2)
    assert read(line.replace("ms/", "ms/Rank-"))[0].timers["Rtt"].high_rank == 21


def test_one_ranks_own_clock() -> None:
    line = "[2026-01-05 10:00:00] [INFO] [Rank 0] time (ms) | fwd: 41.20 | bwd_inner: 80.00 | bwd_allreduce: 12.90\n"
    (report,) = read(line)
    assert (report.single, report.form, set(report.timers)) == (0, "single", {"fwd", "bwd_inner", "bwd_allreduce"})
    assert read(line.replace("[Rank 0] ", "")) == []  # nobody's


def test_a_block_without_an_end_is_ended_by_others_lines() -> None:
    late = "    backward-compute ...............................: (1.00, 2.00)\n"
    assert "backward-compute" in read(ENDS + "line\n" * (FOREIGN - 1) + late)[0].timers
    assert "backward-compute" not in read(ENDS + "line\n" * FOREIGN + late)[0].timers


def test_a_hostile_block_is_bounded() -> None:
    ranks = b"".join(b"     rank %d: 1.00\n" % i for i in range(VALUES + 5000))
    (report,) = read(HEAD.encode() + b"\n  forward-compute:\n" + ranks)
    assert report.ranks <= VALUES
    names = b"".join(b"    all-gather-%d ...: (1.00, 2.00)\n" % i for i in range(3000))
    (item,) = evidence(b"(min, max) time across ranks (ms):\n" + names)
    assert len(item.data) < 100
    assert read(b"\xff\xfe\x00 times across ranks (ms):\n" * 500 + b"  \xff:\n     rank  0: nan\n") == []


def test_another_ones_data_is_held_to_its_form() -> None:
    (item,) = evidence(by_rank({"forward-compute": [5.0, 5.0, 9.0, 5.1]}))
    assert report_of(item.data) == report_of(data_of(report_of(item.data)))
    bad: dict[str, Scalar] = {
        "a:low": "x",
        "b:low": 1.0,
        "b:high": True,
        "c:low": -1,
        "c:high": 2.0,
        "d:low": 3.0,
        "d:high": 2.0,
        "ranks": -4,
    }
    assert report_of(bad) == Report({})


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("forward-compute", "compute"), ("backward-compute", "compute"), ("Rtt", "compute"), ("bwd_inner", "compute"),
        ("batch-generator", "loading"), ("DRtt", "loading"), ("all-grads-sync", "together"), ("bwd_allreduce", "together"),
        ("params-all-gather", "together"), ("forward-recv", "paired"), ("backward-send-forward-recv", "paired"),
        ("forward-backward", ""), ("save-checkpoint", ""), ("bwd", ""),
    ],
)  # fmt: skip
def test_what_timers_measure(name: str, part: str) -> None:
    assert part_of(name) == part


# --- who it is --------------------------------------------------------------------------------------------------------


def reports(count: int, times: Callable[[int], Mapping[str, Sequence[float]]], seed: int = 1) -> list[Report]:
    """Reports of all ranks, each time a little uneven."""
    uneven = random.Random(seed)
    made = []
    for i in range(count):
        timers = {
            name: timer_of({rank: value * uneven.uniform(0.99, 1.01) for rank, value in enumerate(values)})
            for name, values in times(i).items()
        }
        made.append(Report(timers, ranks=len(next(iter(times(i).values())))))
    return made


def usual(_: int) -> Mapping[str, Sequence[float]]:
    return {"forward-compute": [100.0] * 16, "all-grads-sync": [20.0] * 16}


def with_slow(rank: int, share: float = 1.4) -> Mapping[str, Sequence[float]]:
    compute, waits = [100.0] * 16, [20.0 + 100.0 * (share - 1)] * 16
    compute[rank], waits[rank] = 100.0 * share, 20.0
    return {"forward-compute": compute, "all-grads-sync": waits}


def ends(count: int, low: float, high: float, name: str = "forward-compute", rank: int | None = None) -> list[Report]:
    text = "(min, max) time across ranks (ms):\n    {} ...: ({:.2f}, {:.2f})\n"
    if rank is None:
        return [read(text.format(name, low, high))[0] for _ in range(count)]
    line = f"| MnRtt/Rnk: {low}ms/0 | MxRtt/Rnk: {high}ms/{rank} | MnClk/Rnk: 1300MHz/{rank} | MxClk/Rnk: 1980MHz/1\n"
    return read(line) * count


def test_the_same_rank_slow_in_its_own_work_is_named_and_not_those_who_wait() -> None:
    found = lag(reports(5, lambda _: with_slow(11)), reports(5, usual))
    assert found is not None and (found.pattern, found.ranks) == ("component", (11,))
    assert "rank 11 is slow in forward-compute in 5 of 5" in found.words and "1.4" in found.words
    alone = lag(reports(5, lambda _: with_slow(11)), [])
    assert alone is not None and alone.ranks == (11,)
    assert "before is not known" in alone.words and "not known" not in found.words


def test_few_who_wait_longer_are_not_the_slow_ones() -> None:
    waiting = {"forward-compute": [100.0] * 16, "all-grads-sync": [60.0] * 2 + [20.0] * 14}
    assert lag(reports(5, lambda _: waiting), reports(5, usual)) is None


def test_once_in_a_while_is_not_the_same_rank() -> None:
    found = lag(reports(8, lambda i: with_slow(11) if i % 2 else usual(i)), reports(5, usual))
    assert found is None


def test_who_was_as_slow_before_does_not_explain_it() -> None:
    found = lag(reports(5, lambda _: with_slow(11)), reports(5, lambda _: with_slow(11)))
    assert found is None or found.ranks == ()


def test_two_reports_are_too_few() -> None:
    assert lag(reports(2, lambda _: with_slow(11)), reports(5, usual)) is None


def test_another_rank_each_time_is_the_jobs_own_work() -> None:
    found = lag(reports(8, lambda i: with_slow((5 * i) % 16)), reports(5, usual))
    assert found is not None and (found.pattern, found.ranks) == ("application", ())


def test_variable_lengths_without_a_fixed_rank_name_nobody() -> None:
    uneven = random.Random(3)
    wide = reports(8, lambda _: {"forward-compute": [100.0 * uneven.lognormvariate(0.0, 0.3) for _ in range(16)]})
    found = lag(wide, wide)
    assert found is None or found.ranks == ()


def test_a_slow_stage_is_the_jobs_own_work() -> None:
    stage = {"forward-compute": [100.0] * 12 + [150.0] * 4}
    found = lag(reports(5, lambda _: stage), reports(5, lambda _: stage))
    assert found is not None and found.pattern == "application" and "ranks 12-15, one of 4" in found.words


def test_a_stage_that_became_slow_with_the_steps_may_be_a_node() -> None:
    late = {"forward-compute": [100.0] * 8 + [150.0] * 8}
    found = lag(reports(5, lambda _: late), reports(5, lambda _: {"forward-compute": [100.0] * 16}))
    assert found is not None and (found.pattern, found.ranks) == ("component", tuple(range(8, 16)))


def test_times_that_grow_with_the_rank_are_the_jobs_own_work() -> None:
    growing = {"forward-compute": [100.0 + 10.0 * rank for rank in range(7)]}
    found = lag(reports(5, lambda _: growing), [])
    assert found is not None and found.pattern == "application" and "grow with the rank" in found.words


def test_everyone_slower_alike_in_work_or_only_where_all_meet() -> None:
    before = reports(5, usual)
    slower = lag(reports(5, lambda _: {"forward-compute": [140.0] * 16, "all-grads-sync": [28.0] * 16}), before)
    assert slower is not None and (slower.pattern, slower.ranks) == ("everyone", ())
    meeting = lag(reports(5, lambda _: {"forward-compute": [100.0] * 16, "all-grads-sync": [60.0] * 16}), before)
    assert meeting is not None and meeting.pattern == "cluster" and "all-grads-sync" in meeting.words


def test_the_one_that_never_waits_is_whom_the_others_wait_for() -> None:
    waits = [60.0] * 15 + [20.0]
    found = lag(reports(5, lambda _: {"all-grads-sync": waits}), reports(5, lambda _: {"all-grads-sync": [20.0] * 16}))
    assert found is not None and (found.pattern, found.ranks) == ("component", (15,)) and "wait" in found.words


def test_a_gap_without_a_name_is_told_as_such() -> None:
    found = lag(ends(4, 100.0, 150.0), ends(4, 100.0, 104.0))
    assert found is not None and (found.pattern, found.ranks) == ("", ()) and "some rank" in found.words
    assert lag(ends(4, 100.0, 150.0), ends(4, 100.0, 150.0)) is None  # it was there before


def test_the_detectors_slowest_rank_is_named_with_its_clock() -> None:
    found = lag(ends(4, 100.0, 150.0, rank=6), ends(4, 100.0, 103.0, rank=2))
    assert found is not None and (found.pattern, found.ranks) == ("component", (6,)) and "1300 MHz" in found.words


def test_one_ranks_clock_tells_waiting_from_work() -> None:
    line = "[Rank 0] time (ms) | fwd: {:.2f} | bwd_inner: 80.00 | bwd_allreduce: {:.2f}\n"
    before, waits, works = (read(line.format(*pair)) * 4 for pair in ((40.0, 10.0), (40.0, 30.0), (60.0, 30.0)))
    found = lag(waits, before)
    assert (
        found is not None and found.pattern == "" and "rank 0 waits longer in bwd_allreduce (3.00 times)" in found.words
    )
    assert lag(works, before) is None


# --- who is like whom -------------------------------------------------------------------------------------------------

LAYOUT = (
    "using world size: {world}, data-parallel size: {data}, context-parallel size: 1, hierarchical context-parallel sizes: "
    "None, tensor-model-parallel size: 1, expert-model-parallel size: {expert}, pipeline-model-parallel size: {stages}\n"
)


def layout(stages: int, expert: int = 1, world: int = 16) -> str:
    return LAYOUT.format(world=world, data=world // stages, expert=expert, stages=stages)


def staged(slow: int | None = None) -> str:
    """Four stages of four ranks, each slower than the one before; one rank slower than those of its own stage."""
    times = [100.0 + 25.0 * (rank // 4) + rank % 4 * 0.1 for rank in range(16)]
    if slow is not None:
        times[slow] *= 1.4
    return by_rank({"forward-compute": times})


@pytest.mark.parametrize(
    ("said", "pipeline"),
    [
        ("", 0),
        (layout(4), 4),
        (layout(1), 1),
        (layout(4, expert=8), 0),
        ("  use_tp_pp_dp_mapping ............................ True\n" + layout(4), 0),
        ("  use_tp_pp_dp_mapping ............................ False\n" + layout(4), 4),
    ],
)
def test_stages_are_known_where_the_trainer_says_so(said: str, pipeline: int) -> None:
    (report,) = read(said + staged() + TAIL)
    assert report.pipeline == pipeline


@pytest.mark.parametrize("slow", [2, 6, 13])
def test_ranks_are_compared_with_those_of_their_stage(slow: int) -> None:
    found = from_start(read(layout(4), *[staged(slow)] * 10))
    assert found is not None and (found.pattern, found.ranks) == ("component", (slow,))


def test_stages_alone_name_nobody() -> None:
    assert from_start(read(layout(4), *[staged()] * 10)) is None


def test_a_stage_of_two_ranks_has_nobody_to_compare_with() -> None:
    times = [100.0] * 6 + [100.0, 150.0]
    assert from_start(read(layout(4, world=8), *[by_rank({"forward-compute": times})] * 10)) is None


def test_the_slowest_of_all_is_named_only_where_there_is_one_stage() -> None:
    line = "| MnRtt/Rnk: 800.00ms/5 | MxRtt/Rnk: 1200.00ms/2 |\n"
    patterns = [from_start(read(said, *[line] * 10)) for said in (layout(1), layout(4), "")]
    assert [found and (found.pattern, found.ranks) for found in patterns] == [
        ("component", (2,)),
        ("", (2,)),
        ("", (2,)),
    ]


def test_a_few_reports_name_nobody() -> None:
    assert from_start(read(layout(4), *[staged(6)] * 7)) is None
