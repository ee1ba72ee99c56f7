"""The innermost frame's package and the class of the exception speak: a library's own failure is not the user's code."""

from __future__ import annotations

import pytest
from in_memory.daemon import RULES
from made_records import AT
from shipped import shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident

OWN = "/home/ann/run/train.py"
LIBRARY = "/opt/venv/lib/python3.11/site-packages/transformers/trainer.py"
STANDARD = "/usr/lib/python3.11/pathlib.py"


def cause(
    *files: str, raised: str, prefix: str = "", function: str = "step", source: str = "return self.go(batch)"
) -> Cause:
    lines = ["Traceback (most recent call last):"]
    for file in files:
        lines += [f'  File "{file}", line 12, in {function}', f"    {source}", "           ^^^^^^^^^^^^^^"]
    text = "".join(f"{prefix}{line}\n" for line in [*lines, raised])
    reader = LogReader(shipped_signatures())
    found = reader.feed(text.encode(), AT) + reader.finish(AT)
    return classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT).cause


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "3: "])
@pytest.mark.parametrize("raised", ["AttributeError: 'Plan' object has no attribute 'mesh'", "TypeError: go() got two"])
def test_the_innermost_frame_decides(prefix: str, raised: str) -> None:
    assert cause(OWN, LIBRARY, raised=raised, prefix=prefix) is Cause.SOFTWARE_ENV
    assert cause(LIBRARY, OWN, raised=raised, prefix=prefix) is Cause.USER_CODE
    assert cause(OWN, raised=raised, prefix=prefix) is Cause.USER_CODE


def test_a_library_that_fails_while_it_is_imported_is_at_fault() -> None:
    raised = "RuntimeError: dictionary changed size during iteration"
    assert cause(OWN, LIBRARY, raised=raised, function="<module>", source="for name in names:") is Cause.SOFTWARE_ENV
    assert cause(LIBRARY, OWN, raised=raised, function="<module>", source="for name in names:") is Cause.USER_CODE


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("ValueError: Invalid value 'FOO' for VLLM_ATTENTION_BACKEND. Valid options are FLASH_ATTN", Cause.USER_CONFIG),
        ("ValueError: Please set CUDA_HOME to the folder of the toolkit", Cause.USER_CONFIG),
        ("ValueError: the environment variable of the backend has no value", Cause.USER_CONFIG),
        ("ValueError: MIN_TORCH_VERSION is 2.6, and 2.1 is installed in your environment", Cause.SOFTWARE_ENV),
    ],
)
def test_a_library_that_refuses_a_variable_as_it_is_imported_was_given_it(raised: str, expected: Cause) -> None:
    lines = ["Traceback (most recent call last):", f'  File "{OWN}", line 3, in <module>', "    import vllm"]
    lines += ['  File "<frozen importlib._bootstrap>", line 241, in _call_with_frames_removed']
    lines += [f'  File "{LIBRARY}", line 3, in <module>', "    from .backends import chosen"]
    lines += [f'  File "{LIBRARY}", line 12, in check', f"    raise {raised.partition(':')[0]}("]
    reader = LogReader(shipped_signatures())
    found = reader.feed("".join(f"{line}\n" for line in [*lines, raised]).encode(), AT) + reader.finish(AT)
    assert classify(Incident("i", AT, AT, evidence=tuple(found)), rules=RULES, now=AT).cause is expected


def test_a_folder_that_a_library_refuses_since_it_is_there_was_asked_for() -> None:
    raised = "FileExistsError: The folder of checkpoints already exists and is not empty: /run/best"
    assert cause(OWN, LIBRARY, raised=raised, source="raise FileExistsError(") is Cause.USER_CONFIG
    assert cause(OWN, raised="FileExistsError: [Errno 17] File exists: '/run/best'") is Cause.USER_CODE


def test_a_frameworks_own_tree_is_a_library() -> None:
    raised = "AttributeError: 'Plan' object has no attribute 'mesh'"
    assert cause(OWN, "/opt/Megatron-LM/megatron/core/tensor.py", raised=raised) is Cause.SOFTWARE_ENV


def test_what_an_image_has_in_opt_is_a_library_unless_it_is_where_user_code_goes() -> None:
    raised = "NameError: name 'sanitize' is not defined"
    assert cause(OWN, "/opt/Trainer/trainer_lib/run.py", raised=raised) is Cause.SOFTWARE_ENV
    assert cause("/opt/ml/code/run.py", raised=raised) is Cause.USER_CODE


def test_the_standard_library_is_nobodys() -> None:
    raised = "AttributeError: 'str' object has no attribute 'joinpath'"
    assert cause(OWN, STANDARD, raised=raised) is Cause.USER_CODE
    assert cause(OWN, LIBRARY, STANDARD, raised=raised) is Cause.SOFTWARE_ENV


def test_what_a_library_refuses_to_do_with_its_input_is_still_the_callers() -> None:
    assert cause(OWN, LIBRARY, raised="IndexError: list index out of range") is Cause.USER_CODE


def test_a_frame_far_above_is_not_this_exceptions() -> None:
    reader = LogReader(shipped_signatures())
    far = f'  File "{LIBRARY}", line 12, in step\n' + "epoch\n" * 9
    found = reader.feed((far + "TypeError: go() got two\n").encode(), AT)
    assert classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT).cause is Cause.USER_CODE


@pytest.mark.parametrize("package", ["datasets/utils/file_utils.py", "s3fs/core.py", "streaming/base/stream.py"])
def test_a_package_that_fetches_data_speaks_of_their_source(package: str) -> None:
    fetching = f"/opt/venv/lib/python3.11/site-packages/{package}"
    assert cause(OWN, fetching, raised="OSError: odd answer of the server") is Cause.DATALOADER
    assert cause(OWN, fetching, raised="TypeError: open() got two") is Cause.SOFTWARE_ENV
    assert cause(fetching, OWN, raised="CustomError: odd answer") is Cause.USER_CODE


def test_no_alternative_is_said_to_be_surer_than_the_verdict() -> None:
    reader = LogReader(shipped_signatures())
    found = reader.feed(b"RuntimeError: No HIP GPUs are available\n", AT) + reader.finish(AT)
    verdict = classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT)
    assert verdict.alternatives and all(other.confidence <= verdict.confidence for other in verdict.alternatives)


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "3: "])
@pytest.mark.parametrize(
    ("raised", "source"),
    [
        ("ValueError: odd stride", 'raise ValueError("odd stride")'),
        ("AssertionError: odd number of stages", "assert stages % 2 == 0, \\"),
    ],
)
def test_a_librarys_own_check_says_that_what_was_asked_does_not_fit(prefix: str, raised: str, source: str) -> None:
    assert cause(OWN, LIBRARY, raised=raised, source=source, prefix=prefix) is Cause.USER_CONFIG
    assert cause(LIBRARY, OWN, raised=raised, source=source, prefix=prefix) is Cause.USER_CODE


def test_a_check_of_the_order_of_calls_is_the_programs() -> None:
    raised = "AssertionError: the group of stages is not initialized"
    assert cause(OWN, LIBRARY, raised=raised, source="assert group is not None") is Cause.USER_CODE


def test_a_name_that_a_table_of_the_program_has_not_comes_from_a_setting() -> None:
    assert cause(OWN, raised="KeyError: 'pile3'", source="found = DATASETS[name]") is Cause.USER_CONFIG
    assert cause(OWN, raised="KeyError: 'mask'", source="found = batch[name]") is Cause.USER_CODE


def test_the_environment_is_a_setting() -> None:
    environment = "/usr/lib/python3.11/os.py"
    raised = "KeyError: 'RUN_FOLDER'"
    assert (
        cause(OWN, environment, raised=raised, function="__getitem__", source="raise KeyError(key)")
        is Cause.USER_CONFIG
    )


@pytest.mark.parametrize(
    ("file", "function", "raised", "expected"),
    [
        (
            "torch/distributed/checkpoint/planner_helpers.py",
            "_items",
            "KeyError: Index(fqn='a')",
            Cause.CHECKPOINT_CORRUPT,
        ),
        ("torch/_weights_only_unpickler.py", "load", "EOFError", Cause.CHECKPOINT_CORRUPT),
        ("torch/serialization.py", "save", "RuntimeError: File run/a.pt cannot be opened.", Cause.DISK_FULL),
        ("torch/_inductor/runtime/cache.py", "_read", "CacheError: odd", Cause.SOFTWARE_ENV),
        ("mmx/registry.py", "build", "KeyError: 'Ntm is not in the model registry'", Cause.USER_CONFIG),
        ("mmx/data.py", "_check_width", "RuntimeError: odd width", Cause.USER_CONFIG),
    ],
)
def test_the_place_in_a_library_says_what_was_done(file: str, function: str, raised: str, expected: Cause) -> None:
    place = f"/opt/venv/lib/python3.11/site-packages/{file}"
    assert cause(OWN, place, raised=raised, function=function) is expected


def test_a_frame_that_hands_an_exception_on_is_passed_over() -> None:
    hands_on = "/opt/venv/lib/python3.11/site-packages/torch/_utils.py"
    raised = "TypeError: go() got two"
    assert cause(OWN, hands_on, raised=raised, source="raise exception") is Cause.USER_CODE


def test_a_sentence_outranks_the_class_of_its_exception() -> None:
    assert cause(OWN, raised="KeyError: 'MASTER_ADDR'") is Cause.USER_CONFIG


def test_what_only_shifts_the_odds_does_not_silence_a_line() -> None:
    reader = LogReader(shipped_signatures())
    line = b"n1:7:9 [0] include/socket.h:344 NCCL WARN Socket creation failed : Address family not supported\n"
    found = reader.feed(line, AT) + reader.finish(AT)
    verdict = classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT)
    assert verdict.cause is Cause.NETWORK_BOOTSTRAP


@pytest.mark.parametrize(
    "line", ["RuntimeError: No HIP GPUs are available", "RuntimeError: No CUDA GPUs are available"]
)
def test_no_visible_gpu_is_no_lost_gpu(line: str) -> None:
    reader = LogReader(shipped_signatures())
    found = reader.feed(f"{line}\n".encode(), AT) + reader.finish(AT)
    verdict = classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT)
    assert verdict.cause is Cause.USER_CONFIG and not verdict.drain_recommended and not verdict.suspect


@pytest.mark.parametrize("known", ["NoneType", "DistributedDataParallel"])
def test_without_a_frame_a_class_without_its_attribute_is_of_another_release(known: str) -> None:
    assert cause(raised="AttributeError: 'GRPOTrainer' object has no attribute 'rounds'") is Cause.SOFTWARE_ENV
    assert cause(raised=f"AttributeError: '{known}' object has no attribute 'rounds'") is Cause.USER_CODE


def test_a_librarys_bare_assertion_is_its_own() -> None:
    assert cause(OWN, LIBRARY, raised="AssertionError", source="assert a == b") is Cause.SOFTWARE_ENV
    assert cause(OWN, raised="AssertionError", source="assert a == b") is Cause.USER_CODE


def test_what_python_says_is_not_read_as_the_machines_word() -> None:
    words = "row remapping failure, cable error, node down"
    assert cause(OWN, raised=f"AssertionError: {words}") in {Cause.USER_CODE, Cause.USER_CONFIG}


def test_a_rendezvous_behind_a_collective_call_that_timed_out_is_its_clean_up() -> None:
    reader = LogReader(shipped_signatures())
    text = (
        "RuntimeError: [gloo/transport/tcp/buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.\n"
    )
    found = reader.feed(text.encode(), AT) + reader.finish(AT)
    verdict = classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT)
    assert verdict.cause is Cause.NCCL_HANG_UNKNOWN


def judged(text: str) -> Cause:
    reader = LogReader(shipped_signatures())
    found = reader.feed(text.encode(), AT) + reader.finish(AT)
    return classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT).cause


@pytest.mark.parametrize(
    "form", ["File {}:2481, in Trainer.go(self)", "{} in go(self, batch)", "[{}](https://n/) in go(self)"]
)
def test_a_notebook_draws_its_frames(form: str) -> None:
    shown = "   2480 with context():\n-> 2481     loss = self.step(model, inputs)\n   2482\n   2483 if done:\n\n"
    raised = "TypeError: step() takes 3 positional arguments but 4 were given\n"
    assert judged(form.format(LIBRARY) + "\n" + shown + raised) is Cause.SOFTWARE_ENV
    assert judged(form.format(OWN) + "\n" + shown + raised) is Cause.USER_CODE


def test_rich_draws_its_frames() -> None:
    shown = "│ {}:245 in go   │\n│   244 │   # mesh │\n│ ❱ 245 │   return self.plan.mesh  │\n│   246 │  )  │\n╰────╯\n"
    raised = "AttributeError: 'Plan' object has no attribute 'mesh'\n"
    assert judged(shown.format(LIBRARY) + raised) is Cause.SOFTWARE_ENV
    assert judged(shown.format(OWN) + raised) is Cause.USER_CODE


@pytest.mark.parametrize(
    "check", ["assert args.batch_size % len(devices) == 0", "assert cfg.model.heads == 8", "assert world_size == 4"]
)
def test_a_bare_assertion_is_about_what_it_reads(check: str) -> None:
    assert cause(OWN, raised="AssertionError", source=check) is Cause.USER_CONFIG
    assert cause(OWN, raised="AssertionError", source="assert len(rows) == len(self.rows)") is Cause.USER_CODE


def test_a_method_called_with_what_it_does_not_take_is_of_another_release() -> None:
    assert (
        judged("TypeError: PairTrainer.compute_loss() got an unexpected keyword argument 'num'\n") is Cause.SOFTWARE_ENV
    )
    assert judged("TypeError: forward() got an unexpected keyword argument 'num'\n") is Cause.USER_CODE


TENSORS = "/opt/venv/lib/python3.11/site-packages/torch/optim/adamw.py"


def test_a_framework_that_drives_the_tensor_library_into_what_it_refuses_is_at_fault() -> None:
    raised = "RuntimeError: expected half for the second moment but got float"
    assert cause(OWN, LIBRARY, TENSORS, raised=raised) is Cause.SOFTWARE_ENV
    assert cause(LIBRARY, OWN, TENSORS, raised=raised) is Cause.USER_CODE


def test_a_library_that_calls_itself_in_the_wrong_order_is_at_fault() -> None:
    raised = "AssertionError: the group is already initialized"
    groups = LIBRARY.replace("trainer", "groups")
    assert cause(OWN, LIBRARY, groups, raised=raised, source="assert GROUP is None") is Cause.SOFTWARE_ENV
    assert cause(LIBRARY, OWN, groups, raised=raised, source="assert GROUP is None") is Cause.USER_CODE


def test_what_a_compiler_of_graphs_asks_for_is_not_asked_of_the_user() -> None:
    raised = "RuntimeError: the wrapper is on its own. Instead, please use it with its mode"
    wrapper = "/opt/venv/lib/python3.11/site-packages/torch/_functorch/_aot_autograd/utils.py"
    assert cause(OWN, wrapper, raised=raised) is Cause.SOFTWARE_ENV
    assert cause(OWN, raised=raised) is Cause.USER_CONFIG


def test_a_framework_that_runs_the_graph_backwards_did_not_record_it() -> None:
    engine = "/usr/lib/python3.12/site-packages/torch/autograd/graph.py"
    raised = "RuntimeError: result type Float can't be cast to the desired output type Long"
    assert cause(OWN, LIBRARY, engine, raised=raised, source="engine.run(outputs)") is Cause.USER_CODE
    linear = engine.replace("autograd/graph", "nn/functional")
    assert cause(OWN, LIBRARY, linear, raised=raised, source="bmm(a, b)") is Cause.SOFTWARE_ENV


LOOKED_UP = (
    '  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1940, in __getattr__\n'
    "    raise AttributeError(\n"
    "AttributeError: 'Decoder' object has no attribute 'heads'\n"
)


def test_who_asks_an_object_for_what_it_has_not_is_above_the_frame_that_looks_it_up() -> None:
    asked = 'Traceback (most recent call last):\n  File "{}", line 12, in step\n    print(model.heads)\n'
    assert judged(asked.format(OWN) + LOOKED_UP) is Cause.USER_CODE
    assert judged(asked.format(LIBRARY) + LOOKED_UP) is Cause.SOFTWARE_ENV
    drawn = f"File {OWN}:12, in step(model)\n---> 12 print(model.heads)\n\n"
    module = "~/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
    looked = f"File {module}:1940, in Module.__getattr__(self, name)\n"
    raised = "-> 1940 raise AttributeError(\n\nAttributeError: 'Decoder' object has no attribute 'heads'\n"
    assert judged(drawn + looked + raised) is Cause.USER_CODE


@pytest.mark.parametrize("file", [OWN, "/opt/venv/lib/python3.11/site-packages/orbax/checkpoint/type_handlers.py"])
def test_devices_that_do_not_make_the_mesh_that_was_asked_for_are_a_setting(file: str) -> None:
    raised = "ValueError: cannot reshape array of size 4 into shape (2,8)"
    for source in (
        "mesh = Mesh(np.array(jax.devices()).reshape(shape), axes)",
        "grid = np.asarray(devices).reshape(2, 8)",
    ):
        assert cause(file, raised=raised, source=source) is Cause.USER_CONFIG
    shown = "    135   mesh = Mesh(\n--> 136       np.array(jax.devices()).reshape(shape), names\n    137   )\n"
    more = "".join(f"    {line}   names = more({line})\n" for line in range(138, 160))  # IPython shows whole statements
    for drawn in (f"{shown}\n", f"{shown}{more}   (...)\n\n"):
        assert judged(f"File {file}:136, in restore(text)\n{drawn}{raised}\n") is Cause.USER_CONFIG
        assert judged(f"File ~{file}:136, in restore(text)\n{drawn}{raised}\n") is Cause.USER_CONFIG
    assert cause(OWN, raised=raised, source="x = images.reshape(2, 8)") is Cause.USER_CODE


@pytest.mark.parametrize("function", ["check_call", "_check_status", "raise_on_error", "check_cuda_errors"])
def test_what_hands_a_native_status_on_checks_no_setting(function: str) -> None:
    binding = "/env/lib/python3.10/site-packages/boiler/base.py"
    raised = "boiler.base.BoilerError: [10:11:12] src/engine/valve.cc:12: odd words"
    found = cause(OWN, binding, raised=raised, function=function, source="raise BoilerError(_LIB.last_error())")
    assert found in {Cause.USER_CODE, Cause.SOFTWARE_ENV}
    refused = cause(
        OWN, binding, raised="ValueError: valve 9", function="_check_valve", source="raise ValueError(valve)"
    )
    assert refused is Cause.USER_CONFIG


def test_a_device_taken_by_a_ranks_number_that_is_not_there_was_asked_for() -> None:
    raised = "IndexError: list index out of range"
    assert cause(OWN, LIBRARY, raised=raised, source="return self.devices[self.local_rank]") is Cause.USER_CONFIG
    assert cause(OWN, raised=raised, source="return self.heads[self.layer]") is Cause.USER_CODE


def test_a_library_that_asks_for_a_report_is_at_fault() -> None:
    raised = "ValueError: the shared buffers are empty. This should not happen. Please report this issue."
    assert cause(OWN, LIBRARY, raised=raised, source="raise ValueError(") is Cause.SOFTWARE_ENV


@pytest.mark.parametrize(
    "asks", ["set strict=False to not raise an error", "use mode=w to create the error", "open an error log first"]
)
def test_a_message_that_says_how_to_raise_no_error_refuses_an_argument(asks: str) -> None:
    raised = f"ValueError: unknown key lr; {asks}"
    assert cause(OWN, LIBRARY, raised=raised, source="raise ValueError(") is Cause.USER_CONFIG


def test_an_assertion_of_the_native_library_that_asks_for_a_report_is_its_own() -> None:
    torch = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    raised = 'RuntimeError: comm INTERNAL ASSERT FAILED at "/pytorch/comm.cpp":40, please report a bug to PyTorch.'
    assert cause(OWN, torch, raised=raised, source="return group.send([tensor], dst, tag)") is Cause.SOFTWARE_ENV
    plain = "RuntimeError: comm is not there"
    assert cause(OWN, torch, raised=plain, source="return group.send([tensor], dst, tag)") is Cause.USER_CODE


@pytest.mark.parametrize(
    "asks", ["Please open an issue", "Please raise a GitHub issue", "Report this error", "Create a ticket"]
)
def test_a_message_that_asks_for_a_report_admits_a_bug(asks: str) -> None:
    raised = f"ValueError: the buffers are empty. {asks}."
    assert cause(OWN, LIBRARY, raised=raised, source="raise ValueError(") is Cause.SOFTWARE_ENV


def test_a_check_of_arguments_where_ranks_meet_is_no_fault_of_the_network() -> None:
    raised, function = "AssertionError: rank 3 is not the one that was set up", "init_process_group"
    assert cause(OWN, LIBRARY, raised=raised, function=function, source="assert rank == mine") is Cause.USER_CONFIG


def test_a_package_that_unpacks_samples_speaks_of_them() -> None:
    package = "/opt/venv/lib/python3.11/site-packages/webdataset/tariterators.py"
    raised = "ValueError: shard 3: the same name twice"
    assert cause(OWN, package, raised=raised, source="raise ValueError(") is Cause.DATALOADER


@pytest.mark.parametrize(
    "raised",
    [
        "TypeError: '<=' not supported between instances of 'float' and 'str'",
        "TypeError: unsupported operand type(s) for /: 'str' and 'int'",
    ],
)
def test_a_word_where_a_library_takes_a_number_is_a_setting(raised: str) -> None:
    assert cause(OWN, LIBRARY, raised=raised, source="if not 0.0 <= lr:") is Cause.USER_CONFIG
    assert cause(OWN, raised=raised, source="if lr <= 0.1:") is Cause.USER_CODE


def test_tensors_that_do_not_fit_within_a_library_are_its_own() -> None:
    raised = "RuntimeError: The size of tensor a (64) must match the size of tensor b (65) at non-singleton dimension 3"
    assert cause(OWN, LIBRARY, raised=raised, source="scores = scores + mask") is Cause.SOFTWARE_ENV
    assert cause(OWN, raised=raised, source="scores = scores + mask") is Cause.USER_CODE
    core = "/env/lib/python3.10/site-packages/torch/nn/modules/linear.py"
    assert cause(OWN, core, raised=raised, source="return F.linear(x, self.weight)") is Cause.USER_CODE


def test_what_one_library_takes_for_granted_of_another_is_no_setting() -> None:
    raised, hook = "AssertionError: backward needs a module that trains", "assert module.training, text"
    engine = "/env/lib/python3.10/site-packages/deepspeed/runtime/zero/offload.py"
    assert cause(OWN, LIBRARY, engine, raised=raised, source=hook) is Cause.SOFTWARE_ENV
    assert cause(OWN, engine, raised=raised, source=hook) is Cause.USER_CONFIG
    assert cause(OWN, LIBRARY, engine, raised=raised, source="assert args.train, text") is Cause.USER_CONFIG


def test_a_file_of_settings_that_cannot_be_read_is_no_data() -> None:
    raised = "json.decoder.JSONDecodeError: Expecting value: line 18 column 21"
    files = (LIBRARY, "/usr/lib/python3.11/json/decoder.py")
    assert cause(OWN, *files, raised=raised, source="config = json.load(f)") is Cause.USER_CONFIG
    assert cause(OWN, *files, raised=raised, source="args = json.loads(line)") is Cause.DATALOADER


def test_what_a_native_function_refuses_is_of_whose_line_calls_it() -> None:
    raised = "RuntimeError: a Tensor with 16 elements cannot be converted to Scalar"
    assert cause(OWN, raised=raised, source="total += loss.item()") is Cause.USER_CODE
    assert cause(OWN, raised=raised.replace("Runtime", "Value"), source="raise ValueError(") is Cause.USER_CONFIG


def test_a_launcher_that_tells_of_its_childs_end_refuses_nothing() -> None:
    launcher = "/env/lib/python3.10/site-packages/accelerate/commands/launch.py"
    told = "subprocess.CalledProcessError: Command '['python', 'run.py', ' --num_steps 4']' returned non-zero exit status 1."
    assert cause(launcher, raised=told, source="raise subprocess.CalledProcessError(") is not Cause.USER_CONFIG
