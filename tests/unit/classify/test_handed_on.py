"""What a program hands to a library and does not fit is its own: labels, texts, columns, parts of a checkpoint."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
OWN = "/home/ann/run/train.py"
LIBRARY = "/env/lib/python3.11/site-packages/transformers/models/bert/modeling_bert.py"
TORCH = "/env/lib/python3.11/site-packages/torch/nn/functional.py"


def cause(
    *files: str,
    raised: str,
    source: str = "return self.go(batch)",
    function: str = "step",
    before: tuple[str, ...] = (),
) -> Cause:
    lines = [*before, "Traceback (most recent call last):"]
    for file in files:
        lines += [f'  File "{file}", line 12, in {function}', f"    {source}"]
    reader = LogReader(SIGNATURES)
    found = reader.feed("".join(f"{line}\n" for line in [*lines, raised]).encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW).cause


@pytest.mark.parametrize(
    "raised",
    [
        "IndexError: index out of range in self",
        "IndexError: Target 10 is out of bounds.",
        "ValueError: Expected input batch_size (324) to match target batch_size (4).",
        "RuntimeError: The size of tensor a (612) must match the size of tensor b (512) at non-singleton dimension 1",
        "TypeError: TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]",
    ],
)
def test_what_a_library_finds_in_what_it_was_given_is_the_programs(raised: str) -> None:
    assert cause(OWN, LIBRARY, TORCH, raised=raised) is Cause.USER_CODE
    assert cause(OWN, LIBRARY, raised=raised) is Cause.USER_CODE


def test_what_a_library_does_with_its_own_tensors_is_not() -> None:
    raised = "RuntimeError: The size of tensor a (37) must match the size of tensor b (36) at non-singleton dimension 3"
    assert cause(OWN, LIBRARY, raised=raised) is Cause.SOFTWARE_ENV


def test_a_column_that_a_data_set_lacks_was_asked_for() -> None:
    trainer = "/env/lib/python3.11/site-packages/trl/trainer/dpo_trainer.py"
    assert cause(OWN, trainer, raised="KeyError: 'chosen'", source='row["chosen"]') is Cause.USER_CONFIG
    assert cause(OWN, trainer, raised="KeyError: 'embed_tokens.weight'") is Cause.SOFTWARE_ENV
    assert cause(OWN, raised="KeyError: 'chosen'", source='row["chosen"]') is Cause.USER_CODE


def test_a_file_without_the_parts_of_a_checkpoint_was_asked_for() -> None:
    saving = "/env/lib/python3.11/site-packages/pytorch_lightning/core/saving.py"
    assert cause(OWN, saving, raised="KeyError: 'state_dict'", source='file["state_dict"]') is Cause.USER_CONFIG


def test_cuda_that_cannot_be_initialized_in_a_data_worker_was_used_before_the_fork() -> None:
    raised = "RuntimeError: CUDA error: initialization error"
    worker = "RuntimeError: Caught RuntimeError in DataLoader worker process 0."
    assert cause(OWN, raised=f"{worker}\n{raised}") is Cause.USER_CODE
    assert cause(OWN, raised=raised) is not Cause.USER_CODE


def test_what_a_models_forward_refuses_is_no_setting() -> None:
    raised = "ValueError: Image features and image tokens do not match: tokens: 0, features 1176"
    assert cause(OWN, LIBRARY, raised=raised, source="raise ValueError(", function="forward") is Cause.USER_CODE
    wrong = "ValueError: hidden_size must be divisible by num_heads"
    assert cause(OWN, LIBRARY, raised=wrong, source="raise ValueError(", function="__init__") is Cause.USER_CONFIG


def test_a_sample_that_lacks_what_a_librarys_transform_looks_for_is_the_data() -> None:
    worker = "/env/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py"
    transform = "/env/lib/python3.11/site-packages/mmdet/datasets/pipelines/formatting.py"
    assert cause(worker, transform, raised="KeyError: 'proposals'", source="results[key]") is Cause.DATALOADER


def test_a_file_that_a_data_worker_misses_after_steps_is_one_of_many() -> None:
    """At the first batch it is the path that was given."""
    worker = "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 3."
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/images/0412.jpg'"
    steps = tuple(f"step {step} | loss {3 - step / 10}" for step in range(9))
    assert cause(OWN, raised=f"{worker}\n{missing}", before=steps) is Cause.DATALOADER
    assert cause(OWN, raised=f"{worker}\n{missing}") is Cause.USER_CONFIG
    assert cause(OWN, raised=missing, before=steps) is not Cause.DATALOADER


def test_an_exception_of_a_worker_that_cannot_be_made_again_is_the_workers() -> None:
    loader = "/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
    raised = "TypeError: __init__() missing 2 required positional arguments: 'stdout' and 'stderr'"
    assert cause(OWN, loader, raised=raised, source="data.reraise()") is Cause.DATALOADER


def test_what_a_graph_compiler_raised_is_its_own() -> None:
    raised = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nNameError: name 's4' is not defined"
    assert cause(raised=raised) is Cause.SOFTWARE_ENV
