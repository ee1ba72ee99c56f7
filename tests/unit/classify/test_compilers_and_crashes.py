"""Whose kernel does not compile, whose settings a class does not take, and in whose code a process crashed."""

from __future__ import annotations

import pytest
from in_memory.daemon import RULES
from made_records import AT
from shipped import shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Verdict

OWN = "/home/ann/run/norm.py"
LIBRARY = "/opt/venv/lib/python3.12/site-packages/vllm/layers/norm.py"
GENERATED = "/tmp/torchinductor_ann/ab/cab.py"
TRITON = "/opt/venv/lib/python3.12/site-packages/triton/compiler/compiler.py"
CUPY = "/opt/venv/lib/python3.12/site-packages/cupy/cuda/compiler.py"


def verdict(text: str) -> Verdict:
    reader = LogReader(shipped_signatures())
    found = reader.feed(text.encode(), AT) + reader.finish(AT)
    return classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT)


def raised(*frames: tuple[str, str, str], by: str) -> Cause:
    lines = ["Traceback (most recent call last):"]
    for file, function, source in frames:
        lines += [f'  File "{file}", line 12, in {function}', f"    {source}"]
    return verdict("\n".join([*lines, by, ""])).cause


@pytest.mark.parametrize(
    ("launcher", "whose"),
    [(OWN, Cause.USER_CODE), (LIBRARY, Cause.SOFTWARE_ENV), (GENERATED, Cause.SOFTWARE_ENV)],
)
def test_a_kernel_that_does_not_compile_is_of_who_launches_it(launcher: str, whose: Cause) -> None:
    launch = (launcher, "step", "norm[(8,)](x, out, 512, BLOCK=512)")
    compiles = (TRITON, "make_ir", "return ast_to_ttir(self.fn, self)")
    assert raised(launch, compiles, by="triton.compiler.errors.CompilationError: at 9:8:") is whose


def test_a_kernel_that_wants_more_than_the_gpu_has_is_a_setting_of_who_launches_it() -> None:
    by = "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 524288, Hardware limit: 232448."
    refuses = (TRITON, "raise_", "raise err")
    assert raised((OWN, "step", "mm[(1,)](a, b, 128, num_stages=4)"), refuses, by=by) is Cause.USER_CONFIG
    assert raised((LIBRARY, "step", "mm[(1,)](a, b, 128, num_stages=4)"), refuses, by=by) is Cause.SOFTWARE_ENV


def test_compiled_frames_of_a_package_launch_nothing() -> None:
    by = 'cupy.cuda.compiler.CompileException: /tmp/a.cubin.cu(4): error: identifier "alpha" is undefined'
    compiled = ("cupy/_core/raw.pyx", "cupy._core.raw.RawKernel.__call__", "")
    compiles = (CUPY, "compile", "raise CompileException(log, self.src, self.name, options,")
    assert raised((OWN, "<module>", "k((16,), (256,), (u, v))"), compiled, compiles, by=by) is Cause.USER_CODE
    assert raised((LIBRARY, "step", "k((16,), (256,), (u, v))"), compiled, compiles, by=by) is Cause.SOFTWARE_ENV


@pytest.mark.parametrize("source", ["cfg = TrainConfig(**yaml.safe_load(f))", "cfg = TrainConfig(**raw_cfg)"])
def test_a_setting_that_the_programs_own_class_does_not_know_is_a_setting(source: str) -> None:
    by = "TypeError: TrainConfig.__init__() got an unexpected keyword argument 'learning_rte'"
    assert raised((OWN, "main", source), by=by) is Cause.USER_CONFIG
    assert raised((OWN, "main", "cfg = TrainConfig(lr=0.1, learning_rte=3)"), by=by) is not Cause.USER_CONFIG
    library = "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'"
    assert raised((OWN, "main", source.replace("TrainConfig", "TrainingArguments")), by=library) is Cause.SOFTWARE_ENV


STACK = (
    "double free or corruption (out)\nFatal Python error: Aborted\n\nCurrent thread 0x7f98 (most recent call first):\n"
)


@pytest.mark.parametrize(("file", "whose"), [(OWN, Cause.USER_CODE), (LIBRARY, Cause.SOFTWARE_ENV)])
def test_a_process_crashes_in_the_code_of_the_frame_that_its_stack_begins_with(file: str, whose: Cause) -> None:
    below = f'  File "{OWN}", line 40 in main\n  File "{OWN}", line 44 in <module>\n'
    assert verdict(f'{STACK}  File "{file}", line 7 in flush\n{below}').cause is whose
    standard = '  File "/usr/lib/python3.12/threading.py", line 1012 in run\n'
    assert verdict(f'{STACK}{standard}  File "{file}", line 7 in flush\n{below}').cause is whose
    assert verdict(f"{STACK}  <no Python frame>\n").cause is not Cause.USER_CODE
