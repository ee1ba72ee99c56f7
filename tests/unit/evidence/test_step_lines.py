"""The lines that trainers print, in their own forms: steps are counted once, saves and evaluations are no steps."""

from __future__ import annotations

from datetime import timedelta

import pytest
from shipped import shipped_signatures

from sentinel.detect.step_rhythm import PAUSE, Rhythm, observe
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Kind, Source, Where, utc

START = utc(1_790_000_000)
SIGNATURES = shipped_signatures()


def follow(*lines: tuple[float, str]) -> Rhythm:
    """The rhythm after lines printed at these seconds."""
    reader = LogReader(SIGNATURES, source=Source.JOB_LOG, where=Where(job=1, attempt=0, path="job.out"))
    rhythm = Rhythm()
    for seconds, line in lines:
        for item in reader.feed(line.encode() + b"\n", START + timedelta(seconds=seconds)):
            rhythm = observe(rhythm, item)
    return rhythm


def steps(form: str, count: int = 20, gap_s: float = 2.0, first: int = 1) -> list[tuple[float, str]]:
    return [(gap_s * n, form.format(n=first + n, m=n % 10 + 1, loss=2.5)) for n in range(count)]


FORMS = {
    "megatron": " iteration {n:>8}/    5000 | elapsed time per iteration (ms): 1980.5 | lm loss: {loss:E} |",
    "deepspeed": "[2026-03-04 10:48:53,396] [INFO] [logging.py:96:log_dist] [Rank 0] step={n}, skipped=0, lr=[0.001]",
    "deepspeed-engine": "steps: {n} loss: {loss:.4f} iter time (s): 2.012 samples/sec: 155.2",
    "nemo-2": "Training epoch 0, iteration {n}/4999 | lr: 2.9e-06 | global_step: {n} | reduced_train_loss: {loss} ",
    "nemo-bar": "Epoch 0: :  10%|# | {n}/1000 [01:40<15:00, reduced_train_loss={loss}, global_step={n}.00]",
    "titan": "[titan] 2026-03-04 10:48:53,396 - root - INFO - step: {n:2}  loss:  {loss}  grad_norm:  1.2",
    "hf-bar": " 12%|#1        | {n}/1000 [00:10<01:15, 11.6it/s]",
    "hf-dict": "{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.31}}",
    "lightning": "Epoch 3:  12%|#1  | {n}/1000 [00:10<01:15, 11.60it/s, v_num=0, train_loss=2.300]",
    "nanogpt": "iter {n}: loss {loss}, time 2012.50ms, mfu 30.12%",
    "rank prefix": "  3: [rank3]: step {n}/5000 | loss {loss} | time 2.0 s",
}


@pytest.mark.parametrize("form", FORMS)
def test_each_step_counts_once(form: str) -> None:
    rhythm = follow(*steps(FORMS[form]))
    assert (rhythm.last_step, rhythm.gap_s, len(rhythm.gaps)) == (20, 2.0, 19)


@pytest.mark.parametrize(
    "line",
    [
        "resumed from step 400 (local) /nvme/run/step-400",
        "[rank0]: Resuming training at global step 400",
        "Continuing training from global step 400",
        " successfully loaded checkpoint from /ckpt [ t 1/8, p 1/4 ] at iteration 400",
        "INFO restored state of the optimizer, step: 400",
        "Loading checkpoint shards of step 400/5000",
    ],
)
def test_the_step_of_a_checkpoint_that_is_read_was_not_gained(line: str) -> None:
    assert follow((0.0, line)).last_step == 0


@pytest.mark.parametrize(
    "line", ["loading data | step 400", "continued run 7 step 400", "reloading at 3: step 400 | loss 2.1"]
)
def test_other_words_before_a_step_take_nothing_from_it(line: str) -> None:
    assert follow((0.0, line)).last_step == 400


def test_lightning_bar_whose_counters_differ_counts_once() -> None:
    """The bar counts batches from 1, global_step from 0: two numbers in one line, one step."""
    form = "Epoch 0: :  10%|# | {n}/1000 [01:40<15:00, reduced_train_loss={loss}, global_step={m}.00]"
    assert follow(*steps(form, count=9, first=2)).gap_s == 2.0


def test_bars_that_begin_anew_in_each_epoch_are_no_restart() -> None:
    form = "Epoch 1:  12%|#1  | {m}/10 [00:10<01:15, 11.60it/s, v_num=0]"
    rhythm = follow(*steps(form, count=25))
    assert rhythm.gap_s == 2.0 and rhythm.lines == 25


def test_losses_beside_a_bar_are_not_counted() -> None:
    lines = []
    for seconds, bar in steps(FORMS["hf-bar"]):
        lines += [(seconds, bar), (seconds + 0.1, FORMS["hf-dict"].format(loss=2.5))]
    assert follow(*lines).gap_s == 2.0


@pytest.mark.parametrize(
    "line",
    [
        " validation loss at iteration 500 on validation set | lm loss value: 2.1E+00 |",
        "Validation DataLoader 0:  10%|# | 1/10 [00:00<00:04,  2.00it/s]",
        "Sanity Checking DataLoader 0: 100%|##| 2/2 [00:00<00:00,  2.00it/s]",
        "[titan] INFO - validate step: 500  loss:  7.1034  memory: 12.3GiB(15%)",
        "Evaluating iter 3/10",
        "[Rank 0] Saving model checkpoint: ckpt/global_step100/mp_rank_00_model_states.pt",
        "saving checkpoint at iteration     500 to /ckpt in torch_dist format",
    ],
)
def test_an_evaluation_or_a_save_is_a_pause_and_no_step(line: str) -> None:
    before = steps(FORMS["nanogpt"])
    rhythm = follow(*before, (40.0, line))
    assert (rhythm.last_step, rhythm.lines) == (20, 20)
    assert rhythm.announced_at == START + timedelta(seconds=40)


@pytest.mark.parametrize(
    "line",
    [
        "  successfully saved checkpoint from iteration      20 to /ckpt [ t 1/8, p 1/4 ]",
        "[titan] INFO - Finished saving the checkpoint in 60.60 seconds.",
        "[NeMo I 2026-03-04 23:42:54] Successfully saved checkpoint from iteration      20 to /c/step=20.ckpt",
    ],
)
def test_a_save_that_is_over_excuses_no_more(line: str) -> None:
    before = steps(FORMS["nanogpt"])
    rhythm = follow(*before, (39.0, "saving checkpoint at iteration 20 to /ckpt"), (99.0, line))
    assert rhythm.announced_at is None and rhythm.last_at == START + timedelta(seconds=99)
    assert [round(pause.length_s) for pause in rhythm.pauses] == [61] and rhythm.told == 1


def test_stragglers_are_read_with_their_ranks() -> None:
    reader = LogReader(SIGNATURES, source=Source.JOB_LOG)
    line = b"STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {3, 7}\n"
    (found,) = reader.feed(line, START)
    assert (found.kind, found.data["text"]) == ("straggler", "3, 7")
    assert PAUSE != Kind.STEP


def test_the_number_of_an_epoch_is_no_step_of_it() -> None:
    """Of *Epoch 12/50* the digits behind the first one were read as the step."""
    assert follow((0.0, "[Epoch:12/50]: loss1:0.0732 loss2:0.1629")) == Rhythm()
    assert follow((0.0, "Epoch [12/50][20/500] loss: 0.31")).last_step == 20
