"""Numbers that stay bad, told from steps that are skipped; and what step lines say of losses and gradients."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped import shipped_signatures

from sentinel.detect.numbers.bad_numbers import (
    QUIET,
    SCALING,
    Run,
    after_message,
    after_print,
    after_scaler_skip,
    persists,
)
from sentinel.evidence.logs.reader import LogReader
from sentinel.evidence.logs.step_numbers import numbers_of
from sentinel.model.records import Evidence, Kind, Source, Where, utc
from sentinel.wire import evidence_from, to_json

START = utc(1_790_000_000)
NAN = math.nan
SIGNATURES = shipped_signatures()


def read(line: str) -> list[Evidence]:
    reader = LogReader(SIGNATURES, source=Source.JOB_LOG, where=Where(job=1, attempt=0, path="job.out"))
    return reader.feed(line.encode() + b"\n", START)


def after(*losses: float | None, run: Run | None = None, first: int = 1, gap_s: float = 10.0) -> Run:
    """None: a step whose line holds no number."""
    run = run or Run()
    for n, loss in enumerate(losses):
        at = START + timedelta(seconds=gap_s * (first + n))
        run = after_print(run, first + n, at, {} if loss is None else {"loss": loss})
    return run


def told(run: Run) -> bool:
    return persists(run, prints=5, for_s=600.0)


def test_five_in_a_row_stay_and_four_do_not() -> None:
    assert told(after(2.0, *[NAN] * 5)) and not told(after(2.0, *[NAN] * 4))
    assert after(2.0, 2.0, NAN, math.inf, NAN).onset == 3


def test_one_good_number_clears_all() -> None:
    run = after(2.0, *[NAN] * 4, 2.0, *[NAN] * 4)
    assert not told(run) and run.onset == 7


@given(st.permutations([(8, 2.0), (9, 2.0), *((step, NAN) for step in range(10, 16))]))
def test_lines_may_come_in_any_order_and_again(lines: list[tuple[int, float]]) -> None:
    """As they do after the daemon was away or its store full."""
    run = Run()
    for step, loss in [*lines, *lines]:
        run = after(loss, run=run, first=step)
    assert told(run) and run.onset == 10 and (run.prints, run.last) == (6, 15)


def test_a_good_number_that_comes_late_ends_what_was_before_it() -> None:
    run = after(2.0, run=after(NAN, NAN, run=after(NAN, NAN, first=1), first=5), first=4)
    assert run.onset == 6 and run.prints == 1


def test_few_that_are_far_apart_are_enough() -> None:
    assert told(after(2.0, NAN, NAN, gap_s=600.0)) and not told(after(2.0, NAN, gap_s=600.0))
    assert not told(after(2.0, NAN, NAN, gap_s=300.0))


def test_a_step_counts_once_however_many_lines_tell_it() -> None:
    run = after(2.0, NAN)
    for _ in range(9):
        run = after_message(run, 2, START, "found NaN")
        run = after_print(run, 2, START, {"loss": NAN})
    assert run.prints == 1 and not told(run)


def test_a_scaler_that_looks_for_its_scale_is_given_time() -> None:
    run = Run()
    for step in range(1, SCALING):
        run = after(NAN, run=after_scaler_skip(run), first=step)
    assert not told(run) and told(after(NAN, run=after_scaler_skip(run), first=SCALING))


def test_a_scaler_at_its_end_is_given_none() -> None:
    run = after_message(
        after(*[NAN] * 5, run=after_scaler_skip(Run())), 5, START, "minimum loss scale reached", exhausted=True
    )
    assert told(run)


def test_a_skipped_step_that_the_line_itself_tells_is_the_scaler_s() -> None:
    run = Run()
    for step in range(1, 10):
        run = after_print(run, step, START, {"loss": NAN, "skipped": True})
    assert run.prints == 9 and not told(run)


def test_words_count_only_where_no_number_is_printed() -> None:
    wordy, numbered = after(None, None), after(2.0, 2.0)
    for step in range(3, 9):
        wordy, numbered = (after_message(run, step, START, "nan detected") for run in (wordy, numbered))
    assert told(wordy) and not told(numbered)
    assert numbered.onset == 3 and after(NAN, run=numbered, first=20).onset == 3
    assert after(2.0, run=numbered, first=20) == Run(numbered=True)


def test_steps_without_a_bad_word_clear_who_prints_no_numbers() -> None:
    run = after_message(after(None), 2, START, "nan detected")
    assert after(*[None] * (QUIET - 1), run=run, first=3).onset == 2
    assert after(*[None] * QUIET, run=run, first=3) == Run()


LOSS = st.one_of(st.floats(0.1, 9.0), st.sampled_from([NAN, math.inf, -math.inf]))


@given(st.lists(st.tuples(LOSS, st.booleans()), max_size=60))
def test_told_exactly_where_five_bad_prints_follow_each_other(lines: list[tuple[float, bool]]) -> None:
    """``again``: a line that comes twice, as after a connection that broke."""
    run, bad = Run(), 0
    for step, (loss, again) in enumerate(lines, 1):
        bad = 0 if math.isfinite(loss) else bad + 1
        for _ in range(1 + again):
            run = after_print(run, step, START + timedelta(seconds=step), {"loss": loss})
        assert told(run) == (bad >= 5)
        assert run.onset == (step - bad + 1 if bad else None)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("step: 12  loss:  8.12  grad_norm:  1.52  memory: 30GiB", {"loss": 8.12, "grad_norm": 1.52}),
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-05, 'epoch': 0.3}", {"loss": 0.0, "grad_norm": NAN}),
        ("{'loss': '2.1', 'grad_norm': 'inf', 'learning_rate': '1e-05'}", {"loss": 2.1, "grad_norm": math.inf}),
        (
            " iteration     120/    5000 | lm loss: 2.31E+00 | loss scale: 1.0 | grad norm: 1.204 | num zeros: 0 |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |",
            {"loss": 2.31, "grad_norm": 1.204},
        ),
        (
            " iteration     121/    5000 | loss scale: 4096.0 | number of skipped iterations:   1 |",
            {"skipped": True},
        ),
        ("Training epoch 0, iteration 7/99 | global_step: 7 | reduced_train_loss: nan ", {"loss": NAN}),
        ("Steps:   1%|1| 12/2000 [00:26<1:01:23,  1.85s/it, lr=0.0001, step_loss=nan]", {"loss": NAN}),
        ("step 12 | loss 2.5 | val_loss: nan | grad norm: 1.2.3", {"loss": 2.5, "grad_norm": 1.2}),
    ],
)
def test_what_step_lines_say(line: str, found: dict[str, object]) -> None:
    items = [item for item in read(line) if item.kind == Kind.STEP]
    assert items, line
    for item in items:
        for name in ("grad_norm", "skipped"):
            assert item.data.get(name) == pytest.approx(found.get(name), nan_ok=True)
    shown = [item.data["loss"] for item in items if "loss" in item.data]
    assert bool(shown) == ("loss" in found)
    assert all(loss == pytest.approx(found["loss"], nan_ok=True) for loss in shown)


@given(st.text(alphabet="grad_nomls=: 0123456789.eE+-'\"infaINF,", max_size=120))
def test_no_line_is_too_odd_to_read(line: str) -> None:
    assert set(numbers_of("grad_norm: " + line)) <= {"grad_norm", "loss", "skipped"}


def test_bad_numbers_travel_from_the_node() -> None:
    (item,) = [item for item in read("step 7 | loss nan | step time 0.4 s") if item.kind == Kind.STEP]
    assert math.isnan(float(str(evidence_from(to_json(item)).data["loss"])))


def test_what_a_save_took_is_no_steps_time() -> None:
    found = read("[titan] INFO - Finished saving the checkpoint in 12.60 seconds.")
    (item,) = [item for item in found if item.kind == Kind.CHECKPOINT_SAVED]
    assert item.data.get("time_s") == 12.6 and "step_time_s" not in item.data
    (item,) = [item for item in read("iter 300: loss 3.10, time 812.50ms, mfu 40%") if item.kind == Kind.STEP]
    assert item.data["step_time_s"] == pytest.approx(0.8125) and "time_s" not in item.data
