"""Whose call it is that does not fit: of who asked, not of the frame that only hands the call on."""

from __future__ import annotations

import pytest
from in_memory.daemon import RULES
from made_records import AT
from shipped import shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident

OWN = "/home/ann/run/train.py"
PACKAGES = "/opt/venv/lib/python3.11/site-packages"
MODULE = f"{PACKAGES}/torch/nn/modules/module.py"


def cause(*frames: tuple[str, str, str], raised: str) -> Cause:
    """``frames``: file, function and line of source, the outermost first."""
    lines = ["Traceback (most recent call last):"]
    for file, function, source in frames:
        lines += [f'  File "{file}", line 12, in {function}', *([f"    {source}"] if source else [])]
    reader = LogReader(shipped_signatures())
    found = reader.feed("".join(f"{line}\n" for line in [*lines, raised]).encode(), AT) + reader.finish(AT)
    return classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT).cause


OWN_CALL = (OWN, "train_one_epoch", "out = model(images, mask)")
WRAPPED = (MODULE, "_wrapped_call_impl", "return self._call_impl(*args, **kwargs)")
RAISED_AGAIN = (
    f"{PACKAGES}/gin/utils.py",
    "augment_exception",
    "raise proxy.with_traceback(e.__traceback__) from None",
)
LIBRARYS_CALL = (f"{PACKAGES}/transformers/trainer.py", "compute_loss", "outputs = model(**inputs)")


@pytest.mark.parametrize(
    "handed_on",
    [
        [WRAPPED, (MODULE, "_call_impl", "return forward_call(*args, **kwargs)")],
        [(MODULE, "_call_impl", "result = self.forward(*input, **kwargs)")],
        [(MODULE, "_call_impl", "")],
        [(f"{PACKAGES}/torch/nn/parallel/data_parallel.py", "forward", "return self.module(*inputs[0], **kwargs[0])")],
        [
            (
                f"{PACKAGES}/torch/nn/parallel/distributed.py",
                "_run_ddp_forward",
                "return self.module(*inputs, **kwargs)  # type: ignore[index]",
            )
        ],
        [
            (
                f"{PACKAGES}/accelerate/utils/operations.py",
                "__call__",
                "return convert_to_fp32(self.model_forward(*args, **kwargs))",
            )
        ],
        [(f"{PACKAGES}/torch/autograd/grad_mode.py", "decorate_context", "return func(*args, **kwargs)")],
        [RAISED_AGAIN, (f"{PACKAGES}/gin/config.py", "gin_wrapper", "return fn(*new_args, **new_kwargs)")],
    ],
)
def test_a_call_that_is_handed_on_as_it_came_is_of_who_made_it(handed_on: list[tuple[str, str, str]]) -> None:
    raised = "TypeError: forward() takes 2 positional arguments but 3 were given"
    assert cause(OWN_CALL, *handed_on, raised=raised) is Cause.USER_CODE
    assert cause(OWN_CALL, LIBRARYS_CALL, *handed_on, raised=raised) is Cause.SOFTWARE_ENV


def test_a_refusal_and_a_kernel_that_fails_are_of_the_frame_that_shows_them() -> None:
    asked = (OWN, "main", "model = zoo.create(name)")
    refuses = (f"{PACKAGES}/zoo/registry.py", "create", "raise UnknownModel(*args, **kwargs)")
    assert cause(asked, refuses, raised="ValueError: unknown model resnetz") is Cause.USER_CONFIG
    for source in ("return self._op(*args, **kwargs)", "return self._op(*args, **(kwargs or {}))"):
        kernel = (f"{PACKAGES}/torch/_ops.py", "__call__", source)
        assert cause(asked, kernel, raised="RuntimeError: fuse: no such kernel was built") is Cause.SOFTWARE_ENV


def test_who_asks_a_module_for_what_it_has_not_is_above_the_lookup_of_older_releases_too() -> None:
    lookup = (MODULE, "__getattr__", "type(self).__name__, name))")
    asked = (OWN, "fit", "model.train_on_loader(loader)")
    assert (
        cause(asked, lookup, raised="AttributeError: 'Attack' object has no attribute 'train_on_loader'")
        is Cause.USER_CODE
    )


@pytest.mark.parametrize(
    ("name", "handed"),
    [("tokenize", "tokenize"), ("main.<locals>.tokenize", "tokenize"), ("Builder.encode", "self.encode")],
)
def test_a_function_that_the_program_hands_over_is_its_own(name: str, handed: str) -> None:
    raised = f"TypeError: {name}() missing 1 required positional argument: 'prompter'"
    called = (
        f"{PACKAGES}/datasets/arrow_dataset.py",
        "apply_function",
        "processed = function(*fn_args, *more, **fn_kwargs)",
    )
    assert cause((OWN, "main", f"train = data.map({handed}, batched=True)"), called, raised=raised) is Cause.USER_CODE
    assert cause((OWN, "main", "train = data.prepare()"), called, raised=raised) is Cause.SOFTWARE_ENV


@pytest.mark.parametrize(
    "worker",
    [
        [
            ("joblib/externals/loky/process_executor.py", "_process_worker", "r = call_item()"),
            ("joblib/parallel.py", "<listcomp>", "return [func(*args, **kwargs)"),
        ],
        [("multiprocess/pool.py", "worker", "result = (True, func(*args, **kwds))")],
    ],
)
def test_a_worker_only_hands_on_what_the_program_asked_for(worker: list[tuple[str, str, str]]) -> None:
    frames = [(f"{PACKAGES}/{file}", function, source) for file, function, source in worker]
    raised = "TypeError: featurize() got an unexpected keyword argument 'radius'"
    assert cause(*frames, raised=raised) is Cause.USER_CODE
    assert cause(LIBRARYS_CALL, *frames, raised=raised) is Cause.SOFTWARE_ENV


@pytest.mark.parametrize(
    ("source", "raised"),
    [
        ("for name in enumerate(data_args.validation_names):", "TypeError: 'NoneType' object is not iterable"),
        (
            "known = yaml.safe_load(open(config.density_path))",
            "TypeError: expected str, bytes or os.PathLike object, not NoneType",
        ),
        ("first = model_args.layers[0]", "TypeError: 'NoneType' object is not subscriptable"),
        ("for path in args.paths:", "TypeError: 'NoneType' object is not iterable"),
        ('if "lora" in args.modules:', "TypeError: argument of type 'NoneType' is not iterable"),
        ("height, width = config.size", "TypeError: cannot unpack non-iterable NoneType object"),
        ("layers = len(args.layers) - 1", "TypeError: object of type 'NoneType' has no len()"),
    ],
)
def test_a_setting_without_a_value_is_a_setting(source: str, raised: str) -> None:
    assert cause((OWN, "main", source), raised=raised) is Cause.USER_CONFIG
    assert (
        cause((OWN, "main", source.replace("args.", "found.").replace("config.", "found.")), raised=raised)
        is Cause.USER_CODE
    )


@pytest.mark.parametrize(
    ("source", "raised"),
    [
        ('loss = criterion(out, y, args.alpha)["total"]', "TypeError: 'NoneType' object is not subscriptable"),
        ("for batch in batches(corpus, config.size):", "TypeError: 'NoneType' object is not iterable"),
        ("x, y = augment(batch, args.crop)", "TypeError: cannot unpack non-iterable NoneType object"),
        ("steps = len(collect(files)) // args.batch_size", "TypeError: object of type 'NoneType' has no len()"),
        ("known = args.hooks[0](x)", "TypeError: 'NoneType' object is not callable"),
    ],
)
def test_what_a_function_returned_is_no_setting(source: str, raised: str) -> None:
    assert cause((OWN, "main", source), raised=raised) is Cause.USER_CODE


@pytest.mark.parametrize(
    ("joins", "raised"),
    [
        (("<frozen posixpath>", "join", ""), "TypeError: expected str, bytes or os.PathLike object, not NoneType"),
        (
            ("/usr/lib/python3.12/pathlib.py", "__init__", "raise TypeError("),
            "TypeError: argument should be a str or an os.PathLike object where __fspath__ returns a str, not 'NoneType'",
        ),
    ],
)
def test_a_path_without_a_value_is_a_setting_where_the_standard_library_asks_for_it(
    joins: tuple[str, str, str], raised: str
) -> None:
    assert cause((OWN, "main", "os.path.join(args.output_dir, name)"), joins, raised=raised) is Cause.USER_CONFIG
    assert cause((OWN, "main", "os.path.join(latest(args.runs), name)"), joins, raised=raised) is Cause.USER_CODE


@pytest.mark.parametrize(
    ("file", "raised"),
    [
        ("torch/optim/sgd.py", "ValueError: can't optimize a tensor that is no leaf variable"),
        (
            "torch/distributed/fsdp/_flat_param.py",
            "ValueError: Must flatten tensors with uniform dtype",
        ),
    ],
)
def test_a_tensor_that_the_tensor_library_refuses_was_made_by_the_program(file: str, raised: str) -> None:
    refuses = (f"{PACKAGES}/{file}", "_validate_tensors", "raise ValueError(")
    assert cause((OWN, "main", "trainer = Trainer(model)"), refuses, raised=raised) is Cause.USER_CODE
    assert (
        cause((OWN, "main", "trainer = Trainer(model)"), LIBRARYS_CALL, refuses, raised=raised) is not Cause.USER_CODE
    )
    parallel = "ValueError: tensor parallel size 3 does not divide 8"
    assert cause((OWN, "main", "trainer = Trainer(model)"), refuses, raised=parallel) is Cause.USER_CONFIG


def test_arrays_that_do_not_fit_together_are_no_options_that_exclude_each_other() -> None:
    raised = "ValueError: operands could not be broadcast together with shapes (4,) (3,)"
    assert cause((OWN, "main", "total += value"), raised=raised) is Cause.USER_CODE
    options = "ValueError: --resume cannot be used together with --from-scratch"
    assert cause((OWN, "main", "raise ValueError("), raised=options) is Cause.USER_CONFIG
