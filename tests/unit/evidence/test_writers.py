"""Ranks that print at once: each line is read with the lines of its own writer around it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain, zip_longest

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.evidence.logs.writers import label_of, line_above, text_above, text_below
from sentinel.model.records import Cause, Incident, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
PACKAGES = "/opt/env/lib/python3.11/site-packages"
OWN = "/home/u/run"
REFUSED = (
    "Traceback (most recent call last):\n"
    f'  File "{OWN}/train.py", line 8, in main\n    sched.load_state_dict(state)\n'
    f'  File "{PACKAGES}/megatron/core/optimizer_param_scheduler.py", line 260, in load_state_dict\n'
    "    assert self.override or cls == sd, f'{name} do not match'\n"
    "AssertionError: the number of warmup iterations do not match\n"
)
NO_SUCH_NAME = (
    "Traceback (most recent call last):\n"
    f'  File "{PACKAGES}/torch/utils/data/dataloader.py", line 725, in __next__\n    data = self._next_data()\n'
    f'  File "{PACKAGES}/torch/utils/data/_utils/fetch.py", line 33, in fetch\n'
    "    data = self.dataset.fetch(index)  # may raise StopIteration\n"
    f'  File "{OWN}/data.py", line 31, in __getitem__\n    return x.astype(np.float)\n'
    "AttributeError: module 'numpy' has no attribute 'float'.\n"
)
STALE = (
    f'  File "{PACKAGES}/torch/_utils.py", line 733, in reraise\n    raise exception\n'
    "OSError: Caught OSError in DataLoader worker process 0.\n"
    "Original Traceback (most recent call last):\n"
    f'  File "{PACKAGES}/torch/utils/data/_utils/worker.py", line 349, in _worker_loop\n    data = fetcher.fetch(index)\n'
    f'  File "{OWN}/data.py", line 31, in __getitem__\n    return np.load(self.files[i])\n'
    "OSError: [Errno 116] Stale file handle: '/mnt/lustre/in1k/train/000158.npz'\n"
)
CRASH = (
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f08fae77b80 (most recent call first):\n"
    f'  File "{OWN}/native.py", line 4 in poke\n  File "{OWN}/train.py", line 12 in main\n'
)


def judge(text: str) -> Verdict:
    reader = LogReader(SIGNATURES, where=Where(job=52, path="out.txt"))
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i1", NOW, NOW, job=52, evidence=tuple(found)), rules=RULES, now=NOW)


def at_once(text: str, ranks: int, label: Callable[[int], str]) -> str:
    """What so many ranks print that write the same, each later than the one before by a few lines."""
    texts = [[None] * (2 * r) + [f"{label(r)}{line}\n" for line in text.splitlines()] for r in range(ranks)]
    return "".join(line for line in chain(*zip_longest(*texts)) if line is not None)


@pytest.mark.parametrize(
    "label",
    [
        lambda r: f"{r}: ",
        lambda r: f"{r:3d}: ",
        lambda r: f"[rank{r}]: ",
        lambda r: f"[default{r}]:",
        lambda r: f"0: [rank{r}]: ",
        lambda r: f"[{r}] ",
        lambda r: f"[1,{r}]<stderr>:",
        lambda r: f"(Worker pid=42{r}, ip=10.0.0.{r}) ",
        lambda r: f"(Train(rank={r}) pid=4211) ",
        lambda r: f"worker-{r}  | ",
        lambda r: f"node{r}: ",
        lambda r: f"DGX0{r}.cluster.local: ",
        lambda r: f"2026-03-04T12:00:0{r}.125Z {r}: ",
    ],
    ids="srun srun-wide torch tee srun-torch mpich openmpi ray ray-rank compose pdsh pdsh-domain timed".split(),
)
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (REFUSED, Cause.USER_CONFIG),
        (NO_SUCH_NAME, Cause.SOFTWARE_ENV),
        (STALE, Cause.FILESYSTEM_STORAGE),
        (CRASH, Cause.USER_CODE),
    ],
    ids=["refused", "no-such-name", "stale", "crash"],
)
def test_ranks_that_fail_alike_at_once_are_judged_as_one_alone(
    label: Callable[[int], str], text: str, cause: Cause
) -> None:
    assert judge(text).cause is cause
    assert judge(at_once(text, 4, label)).cause is cause


def test_what_every_rank_heads_its_traceback_with_counts_once() -> None:
    assert judge(STALE * 16).cause is Cause.FILESYSTEM_STORAGE
    assert judge(at_once(STALE, 16, lambda r: f"{r}: ")).cause is Cause.FILESYSTEM_STORAGE


def test_what_another_rank_ignores_is_not_this_ones() -> None:
    ignored = "Exception ignored in: <function Pool.__del__ at 0x7f10>\nTraceback (most recent call last):\n" + "".join(
        f'  File "{PACKAGES}/torch/a.py", line {n}, in close\n    self.go()\n' for n in range(2)
    )
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    full = "OSError: [Errno 28] No space left on device: '/scratch/x'\n"
    beside = "".join(f"1: {line}\n" for line in ignored.splitlines()) + f"0: {memory}"
    assert judge(memory).cause is judge(beside).cause is Cause.APP_OOM_GPU
    assert judge(ignored + full).cause is judge(at_once(ignored + full, 4, lambda r: f"{r}: ")).cause is Cause.UNKNOWN


def test_the_worker_that_a_launcher_names_is_the_one_of_its_own_table() -> None:
    heading = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-04_12:00:00\n  host      : {}\n"
    worker = "  rank      : {} (local_rank: 0)\n  exitcode  : {} (pid: 71)\n"
    tables = [heading.format(f"n{n}") + worker.format(8 * n, -7 if n == 2 else 1) for n in (1, 2)]
    lines = zip(*[[f"{n}: {line}\n" for line in table.splitlines()] for n, table in enumerate(tables)], strict=True)
    reader = LogReader(SIGNATURES, where=Where(job=52, path="out.txt"))
    found = reader.feed("".join(chain(*lines)).encode(), NOW) + reader.finish(NOW)
    named = {(e.where.node, e.where.rank, e.data.get("exit_code")) for e in found if e.kind == "first-failure"}
    assert named == {("n1", 8, 1), ("n2", 16, -7)}


def test_no_label_means_that_every_line_counts() -> None:
    block = b"ValueError: a\nsecond line\nValueError: b\n"
    assert label_of(block, 0) == b""
    assert text_above(block, 26, 100) == block[:26]
    assert line_above(block, 26, 100) == b"second line\n"
    assert text_below(block, 0, 13, 100) == block[14:]


def test_only_the_writers_own_lines_count() -> None:
    block = b"0: a\n1: b\n0: c\n1: d\n0: e\n"
    assert text_above(block, 20, 100) == b"0: a\n0: c\n"
    assert text_above(block, 20, 4) == b"0: c\n"  # whole lines
    assert line_above(block, 15, 100) == b"1: b\n"
    assert text_below(block, 5, 9, 100) == b"1: d"
    assert line_above(block, 0, 100) == b""
    assert text_above(b"7: a\n0: b\n", 5, 100) == b""  # another's
    assert text_above(b"a\n0: b\n", 2, 100) == b"a\n"  # nobody else has one: it may be no label
