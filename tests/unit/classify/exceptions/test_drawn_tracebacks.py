"""What a notebook shows around the line of a frame is source: no word of what happened."""

from __future__ import annotations

import pytest
from in_memory.daemon import RULES
from made_records import AT
from shipped import shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Evidence, Incident

LIBRARY = "/opt/venv/lib/python3.10/site-packages/torch/serialization.py"


def read(*lines: str) -> list[Evidence]:
    reader = LogReader(shipped_signatures())
    return reader.feed("".join(f"{line}\n" for line in lines).encode(), AT) + reader.finish(AT)


def cause(*lines: str) -> Cause:
    return classify(Incident("i1", AT, AT, evidence=tuple(read(*lines))), rules=RULES, now=AT).cause


def test_an_exception_that_the_source_around_a_line_names_was_not_raised() -> None:
    shown = [
        "AssertionError                            Traceback (most recent call last)",
        "Cell In[8], line 11",
        '     10 model = build("base")',
        '---> 11 model.to("cuda")',
        "     12 model.eval()",
        "",
        "File ~/venv/lib/python3.10/site-packages/torch/cuda/__init__.py:310, in _lazy_init()",
        "    305     raise RuntimeError(",
        '    306         "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "',
        "    307         \"multiprocessing, you must use the 'spawn' start method\"",
        "    308     )",
        "    309 if not compiled:",
        '--> 310     raise AssertionError("Torch not compiled with CUDA enabled")',
        "",
    ]
    assert cause(*shown, "AssertionError: Torch not compiled with CUDA enabled") is Cause.SOFTWARE_ENV
    assert {item.line for item in read(*shown, "AssertionError: Torch not compiled with CUDA enabled")} <= {7, 15}


def test_the_heading_of_a_traceback_is_its_only_word_where_the_log_breaks_off() -> None:
    heading = "ModuleNotFoundError                       Traceback (most recent call last)"
    frame = [f"{LIBRARY} in load(f)", "    787     import lost", "--> 788     lost.load(f)"]
    assert [item.line for item in read(heading, *frame) if item.rule is not None and item.rule != "unread-error"] == [1]
    told = read(heading, *frame, "", "ModuleNotFoundError: No module named 'lost'")
    assert 1 not in {item.line for item in told}


def test_numbered_lines_that_no_frame_stands_above_are_a_log() -> None:
    numbered = [
        " 41 step 800 loss 2.1",
        " 42 torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    ]
    assert cause(*numbered) is Cause.APP_OOM_GPU


@pytest.mark.parametrize(
    "cell",
    [
        ["Cell In[8], line 2", "      1 out = model(batch)", "----> 2 out.mean(dims=1).lost()"],
        ["Cell In[8], line 2, in step(batch)", "      1 out = model(batch)", "----> 2 out.mean(dims=1).lost()"],
        ["Input In [8], in <cell line: 2>()", "      1 out = model(batch)", "----> 2 out.mean(dims=1).lost()"],
        ["<ipython-input-8-0a1b2c3d4e5f> in <module>", "      1 out = model(batch)", "----> 2 out.lost()"],
        [
            "/home/ann/first run.ipynb Cell 8 line 2",
            "      <a href='vscode-notebook-cell:/home/ann/first%20run.ipynb#X10s?line=0'>1</a> out = model(batch)",
            "----> <a href='vscode-notebook-cell:/home/ann/first%20run.ipynb#X10s?line=1'>2</a> out.lost()",
        ],
        ['  File "<ipython-input-8-0a1b2c3d4e5f>", line 2, in <module>', "    out.lost()"],
    ],
)
def test_a_cell_of_a_notebook_is_a_frame_of_the_users(cell: list[str]) -> None:
    library = [f"File {LIBRARY}:788, in load(f)", "    787     return lost", "--> 788     return f(lost)", ""]
    raised = "AttributeError: 'NestedShard' object has no attribute 'lost'"
    framed = [str(item.data["frame"]) for item in read(*library, *cell, "", raised) if "frame" in item.data]
    assert framed
    assert all(cell[0].strip().removeprefix('File "').startswith(frame) for frame in framed)
    assert cause(*library, *cell, "", raised) is Cause.USER_CODE
    assert cause(*cell, *library, raised) is Cause.SOFTWARE_ENV
