"""Records that are written as JSON: what the program printed is read as if it stood there by itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.json_records import unwrapped
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Evidence, Incident, Verdict
from sentinel.model.vocabulary import LOG_LINE

NOW = datetime(2026, 3, 4, tzinfo=UTC)
TIME = "2026-03-04T10:00:00Z"
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 80, in <module>
    main()
  File "/home/u/train.py", line 71, in main
    dataloader_timeout = batch["label"]
KeyError: 'label'"""
WRITERS = {
    "docker": lambda line: {"log": f"{line}\n", "stream": "stderr", "time": TIME},
    "cloud": lambda line: {"textPayload": line, "severity": "INFO", "timestamp": TIME},
    "logger": lambda line: {"level": "error", "ts": 1772618400.1, "caller": "run/exec.go:88", "msg": line},
    "logger in docker": lambda line: {"log": json.dumps({"message": line, "level": "error"}) + "\n", "time": TIME},
    "launcher": lambda line: {"event": line, "level": "info", "timestamp": TIME},
}


def evidence(text: str, size: int = 1 << 20) -> list[Evidence]:
    reader, data = LogReader(shipped_signatures(), own_times=True), text.encode()
    found = [e for at in range(0, len(data), size) for e in reader.feed(data[at : at + size], NOW)]
    return [*found, *reader.finish(NOW)]


def verdict(text: str) -> Verdict:
    return classify(Incident("i1", NOW, NOW, evidence=tuple(evidence(text))), rules=shipped_rules(), now=NOW)


def records(*values: object) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("size", [1 << 20, 7])
def test_a_line_in_each_record(writer: str, size: int) -> None:
    text = records(*map(WRITERS[writer], TRACEBACK.split("\n")))
    found = verdict(text)
    assert (found.cause, found.confidence) == (Cause.USER_CODE, verdict(TRACEBACK).confidence)
    (raised,) = [e for e in evidence(text, size) if e.kind == "python-bug"]
    assert (raised.line, raised.data["frame"]) == (6, "/home/u/train.py")


def test_a_whole_error_in_one_record() -> None:
    text = records(
        {"event": "step 1", "level": "info", "timestamp": TIME},
        {"event": "failed", "level": "error", "rank": 3, "timestamp": TIME, "exception": TRACEBACK},
        {"message": "CUDA error: out of memory", "level": "error", "time": TIME},
    )
    raised, memory = (next(e for e in evidence(text) if e.kind == kind) for kind in ("python-bug", "oom-gpu"))
    assert raised.where.rank == 3 and raised.data["function"] == "main"
    assert raised.line is not None and memory.line is not None and raised.line < memory.line
    assert (raised.data[LOG_LINE], memory.data[LOG_LINE]) == (2, 3)


def test_a_record_of_a_warning_is_told_only() -> None:
    told = {"event": "trying again", "level": "warning", "timestamp": TIME, "exception": TRACEBACK}
    full = {"event": "RuntimeError: CUDA error: out of memory", "level": "error", "timestamp": TIME}
    assert verdict(records(told, full)).cause is Cause.APP_OOM_GPU


def test_steps_in_fields_beside_the_message() -> None:
    fields = {"event": "train", "level": "info", "timestamp": TIME, "step": 10, "train_loss": 2.5, "lineno": 88}
    (step,) = evidence(records(fields))
    assert (step.kind, step.data["step"], step.data["loss"]) == ("step", 10, 2.5)


FRAMES = [
    {"filename": "/home/u/train.py", "lineno": 80, "name": "<module>", "line": "main()"},
    {"filename": "/home/u/train.py", "lineno": 71, "name": "main", "line": 'batch["label"]'},
]


@pytest.mark.parametrize(
    "record",
    [
        {
            "event": "failed",
            "level": "error",
            "exception": [{"exc_type": "KeyError", "exc_value": "'label'", "frames": FRAMES}],
        },
        {"message": "failed", "@timestamp": TIME, "error": {"type": "KeyError", "stack_trace": TRACEBACK}},
        {
            "text": f"10:00:00 | ERROR | a:b:1 - failed\n{TRACEBACK}\n",
            "record": {"message": "failed", "exception": None},
        },
        {"log": "\x1b[31m" + TRACEBACK.replace("\n", "\r\n") + "\x1b[0m\r\n", "time": TIME},
    ],
)
def test_errors_as_loggers_write_them(record: dict[str, object]) -> None:
    (raised,) = [e for e in evidence(records(record)) if e.kind == "python-bug"]
    assert (raised.data["frame"], raised.data["function"]) == ("/home/u/train.py", "main")


@pytest.mark.parametrize(
    "line",
    [
        f"worker 3 failed: {TRACEBACK!r}",
        f"stderr: {TRACEBACK.encode()!r}",
        f'E0304 agent] "detail": {json.dumps(json.dumps(TRACEBACK))}',
    ],
)
def test_a_traceback_in_one_line(line: str) -> None:
    (raised,) = [e for e in evidence(f"begin\n{line}\nCUDA error: out of memory\n") if e.kind == "python-bug"]
    assert (raised.data["frame"], raised.data["function"], raised.data[LOG_LINE]) == ("/home/u/train.py", "main", 2)
    memory = next(e for e in evidence(f"{line}\nCUDA error: out of memory\n") if e.kind == "oom-gpu")
    assert memory.data[LOG_LINE] == 2
    assert unwrapped(b"a\\nb\\nc, see line 4, in short\n")[1] == []


def test_an_error_s_parts_of_other_kinds_are_passed_over() -> None:
    odd = [{"frames": 3}, None, {"frames": [None, {"lineno": []}], "exc_type": []}]
    assert unwrapped(
        records({"msg": "a", "level": 30, "exception": odd, "error": {"message": 4, "reason": "4"}}).encode()
    )[0].startswith(b"WARNING: a error: 4\n")


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 10, "loss": 2.1, "time": 3}',  # numbers only
        '{"message": "KeyError: \'label\'", "id": 4}',  # a sample: neither time nor level
        '{"text": "Traceback", "level": "info"}',
        '{"message": "half a record", "level": "in',
        '["message", "level"]',
        '{"message": {"level": "info"}, "time": 3}',
        '{"message": "deep", "level": ' + "[" * 100_000,
    ],
)
def test_what_is_no_record_stays(line: str) -> None:
    block = f"{line}\n".encode()
    assert unwrapped(block)[0] == block


def test_characters_that_no_text_has() -> None:
    block = b'{"log": "a\\ud800\\u0000b\\n", "time": "x"}\n{"log": "\xff\xfe", "time": "x"}\nend'
    lines, numbers = unwrapped(block)
    assert lines.startswith(b"a") and lines.endswith(b"\nend") and numbers == [0, 1, 2]


def test_each_line_has_its_record_whatever_stands_in_it() -> None:
    odd = "a\nb\r\n\u2028\x0bc\x1b[0m"
    record = {"msg": odd, "level": "info", "time": 1, "x\n_step": 4, "loss": float("nan"), "err": {"stack_trace": odd}}
    raised = [
        {"exc_type": odd, "exc_value": odd, "frames": [{"filename": odd, "lineno": odd, "name": odd, "line": odd}]}
    ]
    for block in (records(record), records(record | {"exception": raised}, record), json.dumps(record)):
        lines, numbers = unwrapped(block.encode())
        assert len(lines.removesuffix(b"\n").split(b"\n")) == len(numbers) and b"\x1b" not in lines


def test_records_within_records_end() -> None:
    inner = "KeyError: 'label'"
    for _ in range(9):
        inner = json.dumps({"log": inner, "time": TIME})
    assert unwrapped(f"{inner}\n".encode())[0].count(b"log") == 6  # of nine the three outermost are read


def test_a_launcher_gives_each_line_a_level_of_its_own() -> None:
    wrapped = [
        f"2026-03-04 10:00:00,{number:03} - run - INFO - {line}" for number, line in enumerate(TRACEBACK.split("\n"))
    ]
    assert verdict("\n".join([*wrapped, ""])).confidence == verdict(TRACEBACK).confidence
    assert verdict(wrapped[-1]).cause is Cause.UNKNOWN
    about = '/e/x.py:3: UserWarning: deprecated, see File "/e/y.py", line 4'
    warned = "WARNING: ModuleNotFoundError: No module named 'apex'\n"
    assert verdict(f"{about}\n{warned}").confidence == verdict(warned).confidence
    deprecated = "2026-03-04 10:00:00,999 - run - INFO - WARNING: ModuleNotFoundError: No module named 'apex'"
    assert verdict("\n".join([*wrapped, deprecated, ""])).cause is Cause.USER_CODE


MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RAISED = f'Traceback (most recent call last):\n  File "/home/u/train.py", line 71, in main\n    step()\n{MEMORY}'
FRAMES_ONLY = RAISED.rpartition("\n")[0]


@pytest.mark.parametrize(
    "beside",
    [
        {"detail": MEMORY},
        {"error": MEMORY, "output": "exit status 1"},
        {"err": {"type": "Error", "message": "worker died", "stack": RAISED}},
        {"error": {"type": "torch.OutOfMemoryError", "message": MEMORY.partition(": ")[2], "stack_trace": FRAMES_ONLY}},
        {
            "error.type": "torch.OutOfMemoryError",
            "error.message": MEMORY.partition(": ")[2],
            "error.stack": FRAMES_ONLY,
        },
        {"error.stack_trace": RAISED},
        {"stacktrace": RAISED},
        {"exc_info": [f"{line}\n" for line in RAISED.split("\n")]},
        {"exception": {"type": "OutOfMemoryError", "value": MEMORY.partition(": ")[2]}},
        {"errors": [{"reason": MEMORY}]},
        {"attributes": {"task": {"stderr": RAISED}}},
        {"message": "", "log": MEMORY},
    ],
)
def test_what_a_record_says_beside_its_message(beside: dict[str, object]) -> None:
    record = {"message": "task ended", "level": "error", "time": TIME, **beside}
    assert verdict("step 1 loss: 2.1\n" + records(record)).cause is Cause.APP_OOM_GPU


def test_a_record_within_a_cloud_s_or_a_tracer_s_record() -> None:
    for key in ("jsonPayload", "fields"):
        assert (
            verdict(records({"timestamp": TIME, "severity": "INFO", key: {"message": MEMORY}})).cause
            is Cause.APP_OOM_GPU
        )


@pytest.mark.parametrize("level", ["warn", "W", "notice", "trace", 30, {"name": "WARNING"}])
@pytest.mark.parametrize("key", ["level", "lvl", "log.level"])
def test_levels_below_an_error_in_every_loggers_words(key: str, level: object) -> None:
    told = verdict(records({"message": f"tried again\n  {MEMORY}", "time": TIME, key: level}))
    alone = verdict(records({"message": MEMORY, "time": TIME}))
    assert told.confidence < alone.confidence


def test_words_that_lower_an_error_reach_the_rest_of_its_record() -> None:
    record = {"level": "error", "time": TIME, "msg": "upload failed, retrying in 5s", "error": MEMORY}
    assert verdict(records(record)).confidence < verdict(records({**record, "msg": "upload failed"})).confidence


def test_numbers_that_are_none_beside_the_message() -> None:
    for fields in ({"loss": float("nan")}, {"loss": "NaN"}, {"data": {"step": 3, "loss": float("nan")}}):
        assert verdict(records({"message": "train", "level": "info", "ts": 1, **fields})).cause is Cause.NUMERICAL_NAN


def test_an_error_by_its_level_alone_is_no_good_end() -> None:
    text = "".join(f"step {step} loss: 2.1\n" for step in range(9))
    assert (
        verdict(text + records({"message": "the pod went away", "level": "info", "ts": 1})).unknown_kind == "no_failure"
    )
    told = verdict(text + records({"message": "the pod went away", "level": "error", "ts": 1}))
    assert told.unknown_kind != "no_failure"
    block = unwrapped(records({"message": "the pod went away", "level": "error", "ts": 1}).encode())[0]
    assert block == b"the pod went away\nERROR: the pod went away\n"


def test_a_traceback_in_one_line_keeps_the_level_of_its_line() -> None:
    line = f"WARNING: worker 3 raised {RAISED!r}, starting it again\n"
    assert verdict(line).confidence < verdict(line.removeprefix("WARNING: ")).confidence


def test_only_records_that_begin_alike_are_a_launchers() -> None:
    """A traceback that was caught and told line by line does not make errors of the program's warnings."""
    told = "".join(f"INFO: {line}\n" for line in TRACEBACK.split("\n"))
    assert verdict(f"{told}WARNING: {MEMORY}\n{TRACEBACK}\n").cause is Cause.USER_CODE


@pytest.mark.parametrize(
    "record",
    [
        {"time": 1, "message": "\n" * 50_000, "rank": int("9" * 4200)},
        {"time": 1, "message": "a\n" * 50_000, "rank": 7},
        {"time": 1, "message": "a", "exception": [{}] * 50_000},
        {"time": 1, "message": "a", "exception": [{"frames": [{}] * 50_000}]},
        {"time": 1, "message": "a", "fields": {str(n): "b c" for n in range(50_000)}},
    ],
)
def test_no_record_grows_beyond_measure(record: dict[str, object]) -> None:
    block = records(record).encode()
    assert len(unwrapped(block)[0]) < 2 * len(block) + 200_000


@pytest.mark.parametrize("level", ["info", None])
def test_what_surrounds_a_record_is_no_error_of_its_own(level: str | None) -> None:
    """What a program tells of its settings, its labels or another's message ended nothing; an error's own field does."""
    told = {
        "time": TIME,
        "message": "git",
        "commit_message": "Handle Xid 79 (GPU has fallen off the bus)",
        "note": MEMORY,
    }
    steps = "".join(f"step {step} loss: 2.1\n" for step in range(4))
    text = steps + records(told | ({"level": level} if level else {}))
    assert verdict(text + steps).unknown_kind == "no_failure"
    assert verdict(text + TRACEBACK + "\n").cause is Cause.USER_CODE
    assert verdict(steps + records({**told, "error": MEMORY})).cause is Cause.APP_OOM_GPU


@pytest.mark.parametrize("nothing", ["", "none", "None", "null", "no error", "ok", "-", "0"])
def test_an_error_that_is_none(nothing: str) -> None:
    steps = "".join(f"step {step} loss: 2.1\n" for step in range(4))
    record = {"time": TIME, "level": "error", "message": "worker pool idle: exception-free", "error": nothing}
    assert unwrapped(records(record).encode())[0] == b"worker pool idle: exception-free\n"
    assert verdict(steps + records({**record, "level": "info"}) + steps).unknown_kind == "no_failure"


def test_another_program_s_record_within_a_field_is_text() -> None:
    inner = json.dumps({"level": "error", "message": MEMORY, "time": TIME})
    block = records({"level": "error", "time": TIME, "message": "a task failed", "body": f"first\n{inner}"}).encode()
    assert unwrapped(block)[0] == f"a task failed\nfirst\n{inner}\n".encode()


@pytest.mark.parametrize("size", [7, 64, 100_000])
def test_a_line_is_counted_as_an_editor_counts_it_behind_bars(size: int) -> None:
    bar = "".join(f"\rEpoch 1: {n:3}%|# | {n}/100 [00:0{n},  9.00it/s]" for n in range(1, 9))
    text = f"start\r\n{bar}\n{bar}\nRuntimeError: CUDA error: an illegal memory access was encountered\nend\n"
    (error,) = [item for item in evidence(text, size) if item.kind == "cuda-illegal-access"]
    assert error.data[LOG_LINE] == 4
    assert text.split("\n")[3].startswith("RuntimeError")
