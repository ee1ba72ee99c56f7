"""Weighs an exception by its innermost frame: whose code it is, what it did, and whether it refused or failed.

A frame at ``raise`` or ``assert`` is a deliberate check: the caller asked for something invalid. At any other line the
language itself failed: a bug in the code of that frame, or a wrong release of it.
"""

from __future__ import annotations

import re

from sentinel.classify.exceptions.damaged_content import NAMED, of_content, read_there
from sentinel.classify.exceptions.places import PLACES, STANDARD, Weights, first_of
from sentinel.model.records import Cause, Evidence
from sentinel.model.vocabulary import CRASH_STACK

C = Cause
# Installed packages, what an image or an administrator put into /opt (SageMaker's user code lies in ml and program), and
# trees of frameworks that are run from a checkout.
_LIBRARY = re.compile(
    r"(?i)/(?:site|dist)-packages/|^/opt/(?!(?:ml|program)/)[\w.-]{1,40}/|/(?:megatron|nemo|deepspeed|transformers|transformer[_-]?engine|torchtitan|torchtune"
    r"|maxtext|levanter|axolotl|verl|trl|accelerate|apex|flash[_-]attention|fairseq\d?|lightning|xformers|vllm|sglang|diffusers"
    r"|llamafactory|llmtuner|openrlhf|unsloth|colossalai|litgpt|llmfoundry|ms-swift|nanotron|gpt-neox|mmengine|mmcv)"
    r"[\w.-]{0,16}/"
)
# What a caller's input hardly brings about: names and signatures that this release of the library has not.
_OWN_FAULT = re.compile(
    r"\b(?:AttributeError|TypeError|NameError|UnboundLocalError|ImportError|NotImplementedError|RecursionError)\b"
)
# Packages that fetch and unpack data, and how they say that the source or its content failed them.
_DATA = re.compile(
    r"(?i)/(?:site|dist)-packages/(?:datasets|fsspec|s3fs|gcsfs|adlfs|aiobotocore|botocore|boto3|s3transfer|huggingface_hub"
    r"|webdataset|streaming|litdata|torchdata|megatron/energon|tensorflow_datasets|grain|pyarrow|fastparquet|zstandard|lmdb"
    r"|aiohttp|urllib3|requests|httpx|google/cloud/storage|azure/storage|decord|PIL|nvidia/dali)/"
)
_SOURCE_FAILED = re.compile(
    r"(?:Connection|Timeout|Timed ?Out|Disconnect\w{0,4}|Protocol|HTTP|Client|Server|SSL|Read|Payload|Endpoint|IO|OS|Decode"
    r"|Decompression|(?:struct|zlib|lzma)\.error|Zstd|Arrow\w{0,8}|EOF|Checksum|Corrupt\w{0,3})(?:Error|Exception)?\b"
    r"|Retries exceeded|Server Disconnected"
)
# A library's message that says that the library itself has a bug. "Raise an error" and the like name an argument's effect.
_ADMITS_BUG = re.compile(
    r"(?i)\b(?:report|file|submit) (?:an?|this|the) (?:[\w-]{1,20} ){0,2}(?:issue|bug|error|ticket)\b"
    r"|\b(?:open|raise|create) (?:an?|this|the) (?:[\w-]{1,20} ){0,2}(?:issue|bug|ticket)\b"
    r"|\breport (?:it|this) \w|\bshould (?:never|not) (?:have )?happen|\binternal (?:error|bug)\b"
    r"|\b(?:this is|indicates|likely|probably) an? (?:\w{1,20} )?bug\b"
)
# Exceptions with which a function refuses its arguments before it has called anybody.
_BAD_ARGUMENT = re.compile(r"\b(?:AssertionError|ValueError|TypeError)\b")
# What a check finds wrong in the order of the program's calls, not in what it was given.
_ORDER = re.compile(
    r"(?i)\b(?:not|never|already) (?:been |yet )?(?:initiali[sz]ed|set ?up|started|called|created|registered|built"
    r"|finali[sz]ed|prepared|closed)\b|\bcall\w{0,3} [\w.()]{1,40} (?:first|before|twice)\b|\b(?:before|after) calling\b"
    r"|\bin states? \[.{1,80}\bcurrent state is\b"
)
# A word where a number is asked for: a setting that a file or a command line gave as text.
_TEXT_FOR_NUMBER = re.compile(
    r"TypeError: (?:'[<>]=?' not supported between instances of '(?:str' and '(?:int|float)|(?:int|float)' and 'str)'"
    r"|unsupported operand type\(s\) for [^:\n]{1,8}: '(?:str' and '(?:int|float)|(?:int|float)' and 'str)')"
)
# What the program fed in, whoever finds it out: labels, predictions, indices, texts, sequences longer than a model knows.
_FED = re.compile(
    r"\bindex out of range in self\b|\bTarget (?:size|\d{1,12} is out of bounds)|\btarget (?:batch_size|size)\b"
    r"|\bargument '\w{1,40}' \(position \d{1,2}\) must be Tensor, not "
    r"|[`']preds[`']|\bdevice type tensor to numpy\b|\bTextEncodeInput must be\b|\btext input must be of type\b"
    r"|size of tensor b \((?:77|51[24]|1024|2048)\) at non-singleton dimension 1\b"
    r"|\bfinished reduction in the prior iteration\b|\bready (?:twice|only once)\b"  # which parameters a loss uses
    r"|\bwhile checking arguments for embedding\b|\bInput type \(\S{1,40}\) and weight type \("  # one of them was not moved
)
# A column of a data set, and a part of a checkpoint, that a library looks for and that is not there.
_COLUMN = re.compile(
    r"\bKeyError: ['\"](?:prompt|chosen|rejected|completion|text|sentence|messages|conversations?|instruction|input|output"
    r"|response|question|answer|query|role|content|images?|caption|audio|labels?|input_ids)['\"]\s*$"
)
_PART = re.compile(
    r"\bKeyError: ['\"](?:(?:model_|optimizer_)?state_dict|optimizer_states|pytorch-lightning_version)['\"]\s*$"
)
# A model's pass over what it is given; what it refuses there is no setting.
_FORWARD = re.compile(r"/modeling_\w{1,60}\.py:(?:forward|\w{0,60}(?:mask|merge|placeholder|feature|input)\w{0,60})$")
# What the tensor library says of a tensor: the program made it.
_OF_A_TENSOR = re.compile(
    r"\b[Tt]ensors?\b(?![ -]?(?:model[ -]?)?parallel)|\bdtypes?\b|\bleaf (?:node|module|variable)|\brequires?_grad\b"
)
# A list, number or text where that pass takes a tensor.
_NO_TENSOR = re.compile(
    r"\bTypeError: (?:list|string) indices must be integers"
    r"|\bAttributeError: '(?:list|dict|str|int|float)' object has no attribute"
    r" '(?:size|shape|dim|ndim|device|dtype|to|view)'"
)
# An option that no command line defines. Classes of settings of a library are another matter: their releases differ.
_OPTION = re.compile(r"\bAttributeError: '(?:argparse\.)?Namespace' object")
# Instead of an exception: it could not be sent to the other ranks with its traceback, or JAX tells what it leaves out.
_NOT_TOLD = re.compile(r"\bcannot pickle (?:code|frame|traceback) objects\b|\bjax\.errors\.SimplifiedTraceback: ")
NOT_TOLD = 0.3  # share of the usual weight of an exception that only hides another one
# What a process gets to see of another's exception that cannot be made again from its message.
_NOT_REBUILT = re.compile(r"\bTypeError: (?:\w{1,60}\.)?__init__\(\) missing \d{1,2} required")
_HANDS_ON = re.compile(r"/torch/(?:_utils|utils/data/dataloader)\.py$")
# What only says that another process, or rank, failed.
_RELAYS = re.compile(
    r"\b(?:CalledProcessError|ChildFailedError|ProcessRaisedException|ProcessExitedException|CheckpointException ranks:)"
)
# Code that another program writes, and runs from a cache of its own.
_GENERATED = re.compile(r"/torchinductor_|/\.?triton/cache/")
# What a compiler says of the source that it was given, and of what a kernel asks of the GPU.
_SOURCE = re.compile(
    r"\b(?:CompilationError|CompileError|CompileException|UnsupportedLanguageConstruct|CompileTimeAssertionFailure"
    r"|TypingError|LoweringError|NVRTC_ERROR_COMPILATION)\b"
)
_RESOURCES = re.compile(r"\bOutOfResources\b")
# A class of settings that a program makes for itself, by its name.
_OWN_SETTINGS = re.compile(
    r"\b(?:(?:Train(?:er|ing)?|Model|Data(?:set|[Ll]oader)?|Optim(?:izer)?|Exp(?:eriment)?|Run|Job|Main|App|Eval|Base|Global)"
    r"?(?:Config|Cfg|Args|Options|Settings|Params|Hparams|HParams))(?:\.__init__)?\(\) got an unexpected keyword"
)
# The file of a module that has not what is asked of it, as Python names it.
_NAME_OF = re.compile(r"\bcannot import name '[^'\n]{1,80}' from [^\n]{1,160}\((/[^()\n]{1,240}\.py)\)")
_OF_PYTHON = re.compile(r"/python\d[\d.]{0,6}/")
OWN_NAME = 3.6  # natural-log odds that the program is at fault whose own module lacks a name that it imports
CRASHED = 3.0  # natural-log odds for whose code the innermost frame of that stack is
COMPILED = 4.0  # natural-log odds that a kernel is wrong, of whose code launches it
SOURCE = 3.0  # natural-log odds that what the data come from is at fault
OWN_FAULT = 3.2  # natural-log odds that the library, or its version, is at fault
UNSEEN = 0.4  # what more it takes to outweigh the user's code where no frame says whose class it is
REFUSED = 1.0  # the same where the library may only have refused what it was given
IMPORTED = 4.2  # natural-log odds that a library is at fault that fails while it is imported
FED = 4.2  # natural-log odds that what the program hands on does not fit, where a library says so
NO_SUCH_NAME = 3.6  # natural-log odds that a setting holds a name that the program's table of names does not know
CHECKED = 3.0  # natural-log odds that what was asked of a library does not fit, where a check of its own said so
CALLED = 2.6  # natural-log odds that the program calls a native function with what that refuses
STATE = 1.6  # the same where it only says in what state it found itself
# Natural-log odds that a library is at fault whose assertion says nothing, or that looks a missing key up (``_INSIDE``).
INVARIANT = 2.8
# Where the exception itself is not known.
HALF_TOLD = 0.7  # share of the weight of a place
IN_LIBRARY: Weights = {C.SOFTWARE_ENV: 2.0, C.USER_CODE: 1.6, C.USER_CONFIG: 1.4}
WRITING: Weights = {C.DISK_FULL: 2.8, C.FILESYSTEM_STORAGE: 2.6, C.USER_CODE: 1.0}
IN_PROGRAM: Weights = {C.USER_CODE: 2.4, C.USER_CONFIG: 1.4}
DRIVEN = 2.2  # natural-log odds that a framework is at fault which drove the tensor library into what that refuses

# Where recorded operations run, backwards or as a graph: who asks for it tells nothing of who recorded them.
_RECORDED = re.compile(
    r"/(?:site|dist)-packages/(?:torch/autograd/|tensorflow(?:_core)?/python/(?:client/session|eager/execute)\.py)"
)
_WRONG_TYPE = re.compile(r"\b(?:TypeError|AttributeError): ")
_CORE = re.compile(r"/(?:site|dist)-packages/(?:torch|jax|jaxlib|tensorflow|numpy)/")  # does what its callers ask
_ASSERT = re.compile(r"(?:^|[\s:])assert\b")
_P_ASSERT = re.compile(r"\braise AssertionError\(s\)")  # torch.distributed.utils._p_assert: FSDP's own invariants
# Kinds of evidence: what the tensor library says of the tensors that it was given.
_OF_TENSORS = frozenset({"shapes", "tensor-form"})
_REFUSAL = "checked"  # kind of evidence: a sentence with which arguments are refused
# An assertion without a sentence, or a key that is not there.
_INSIDE = re.compile(r"\bAssertionError:?\s*$|\bKeyError: ")
# A data worker that runs a library's data set or transform, and a sample that lacks what that looks for.
_IN_WORKER = re.compile(r"/torch/utils/data/_utils/(?:worker|fetch)\.py$")
_LACKS = re.compile(r"\b(?:KeyError|IndexError): (?!Caught )")
_WAITS = re.compile(
    r"^_{0,2}(?:wait|barrier|poll|sleep|join|backward|synchronize|recv|result|all_?reduce|broadcast)(?:_\w{1,40})?$"
)
_WRITES = re.compile(r":_{0,2}(?:save|write|dump|flush)(?:_\w{1,40})?$")
_TAKES_DATA = re.compile(r"(?i)collat|dataset|tokeniz|processor|preprocess|/data/")
# What a class of a library has not in this release, and a method called with what it does not take; the built-in types have
# what they always had.
_NOT_ITS_OWN = re.compile(
    r"\bAttributeError: (?:type object )?'[A-Z]\w{2,60}' (?:object )?has no attribute"
    r"|\bTypeError: [A-Z]\w{2,60}\.\w{1,60}\(\) (?:got an unexpected keyword|takes \d{1,2} positional|missing \d{1,2})"
)
# Exceptions of modules that do not fit each other. Those of the system's tell of files, a RuntimeError of GPUs.
_OWN_TO_IMPORT = re.compile(r"\b(?:Type|Attribute|Name|Key|Index|Value|Assertion|Syntax|Recursion)Error\b")
_VARIABLE = r"(?!\w*VERSION)[A-Z][A-Z0-9]{1,20}_[A-Z0-9_]{2,40}\b"  # of the environment; constants are written so, too
_ENVIRONMENT = re.compile(
    rf"\benvironment variable|\bos\.environ\b|\b(?:for|in|set|unset|export) {_VARIABLE}"
    rf"|\b{_VARIABLE} (?:is not set|must be|should be|has)\b"
)
# A check of what was asked: the settings that it reads.
_SETTINGS = re.compile(
    r"\b(?:\w{0,12}args|cfg|\w{0,12}conf(?:ig)?|opts?|flags|FLAGS|hparams|params|settings|options|ds_config)\b[.\[]"
    r"|\b(?:lr|warmup|decay|train|eval|save|log)_(?:\w{1,20}_)?(?:steps|iters|samples|epochs|interval)\b"
    r"|\b(?:global_|micro_|train_|mini_|per_device_)?batch_size\b|\bworld_size\b|\bn(?:um_)?(?:gpus?|nodes?|workers|devices)\b"
    r"|\b(?:tensor|pipeline|context|expert|data|sequence)_(?:model_)?parallel_size\b|os\.environ|os\.path\.(?:exists|is)"
)
_DEVICE_COUNT_ERROR = re.compile(r"reshape|\bIndexError\b")  # the machine has fewer devices than were asked for
# What Python says of a setting without a value that is worked with, taken apart, or opened.
_UNSET = re.compile(r"\bTypeError: (?:unsupported operand|'[^'\n]{1,12}' not supported)[^\n]{0,60}'NoneType'")
_UNSET_TAKEN = re.compile(
    r"\bTypeError: (?:(?:argument of type )?'NoneType' (?:object )?is not (?:iterable|subscriptable|a container)"
    r"|object of type 'NoneType' has no len|cannot unpack non-iterable NoneType"
    r"|[^\n]{0,80} after \* must be an iterable, not NoneType)"
)
_UNSET_OPENED = re.compile(r"\bTypeError: [^\n]{0,60}\bPathLike object[^\n]{0,60}, not '?NoneType")
_BUILT_IN = re.compile(
    r"'(?:NoneType|Namespace|Tensor|DataFrame|Series|Sequential|\w{0,24}DataParallel|\w{0,24}Module)'"
)
# What raises for the status that a native library returned: it looked at no setting.
_HANDS_STATUS_ON = re.compile(
    r"^_{0,2}(?:c_?)?(?:check_(?:call|status|errors?|ret|rc|return|result|last_error|(?:cuda|hip|cu|nccl|acl|mpi)(?:_\w{1,20})?)"
    r"|raise_(?:on|if|from|for)_(?:\w{1,20}_)?(?:error|status|fail(?:ed|ure)?)|handle_status|ok_status|\w{1,12}_CHECK"
    r"|_do_call|quick_execute)$"  # TensorFlow: client/session.py, eager/execute.py
)
# A file of less than 64 KiB that was cut: the reader of archives looks for its end before its begin.
_BEFORE_ITS_BEGIN = re.compile(r"\bOSError: \[Errno 22\] Invalid argument\s*$")  # of no path
_ZIP_READER = "/torch/serialization.py"
_SAVES = re.compile(r"save|write|__exit__")


def by_frame(evidence: Evidence, weights: Weights, *, content: bool = False) -> Weights:
    """``weights`` of a line that names an exception, with what its innermost frame says.

    ``content``: the line is known to say that what was read is damaged.
    """
    frame, standard = str(evidence.data.get("frame") or ""), str(evidence.data.get("standard") or "")
    if _NOT_TOLD.search(evidence.text):
        return {cause: NOT_TOLD * weight for cause, weight in weights.items()}
    if standard and (said := first_of(STANDARD, standard)):
        return _moved(weights, said)
    if (asked := _NAME_OF.search(evidence.text)) and not _LIBRARY.search(asked[1]) and not _OF_PYTHON.search(asked[1]):
        return {C.USER_CODE: OWN_NAME, C.SOFTWARE_ENV: STATE}
    if evidence.data.get("handed") is True:
        return weights
    if evidence.data.get("table") is True and "KeyError" in evidence.text:
        return _moved(weights, {C.USER_CONFIG: NO_SUCH_NAME})
    if evidence.data.get("settings") is True and standard:
        return _of_settings(weights)
    if evidence.data.get("mesh") is True and _DEVICE_COUNT_ERROR.search(evidence.text):
        return _moved(weights, {C.USER_CONFIG: CHECKED})
    if _is_unset(evidence):
        return _of_settings(weights)
    if (check := str(evidence.data.get("check") or "")) and _SETTINGS.search(check):
        return _moved(weights, {C.USER_CONFIG: CHECKED})
    if (read := of_content(evidence, weights, known=content)) is not None:
        return read
    if not frame and _NOT_ITS_OWN.search(evidence.text) and not _BUILT_IN.search(evidence.text):
        return {**weights, C.SOFTWARE_ENV: max(weights.get(C.SOFTWARE_ENV, 0.0), OWN_FAULT + UNSEEN)}
    if evidence.kind == CRASH_STACK:
        return {C.SOFTWARE_ENV if _LIBRARY.search(frame) else C.USER_CODE: CRASHED} if frame else {}
    if _GENERATED.search(frame):
        return _moved(weights, {C.SOFTWARE_ENV: INVARIANT})
    if not _LIBRARY.search(frame):
        if evidence.data.get("spread") is True and _OWN_SETTINGS.search(evidence.text):
            return _of_settings(weights)
        if frame and evidence.kind == _REFUSAL and evidence.data.get("refused") is False and not standard:
            return {C.USER_CODE: CALLED, C.USER_CONFIG: REFUSED}
        return weights
    is_read = _SAVES.search(str(evidence.data.get("function") or "")) is None
    if is_read and _BEFORE_ITS_BEGIN.search(evidence.text) and _ZIP_READER in f"{frame} {evidence.data.get('caller')}":
        return _moved(weights, {C.CHECKPOINT_CORRUPT: CHECKED})
    if _SOURCE.search(evidence.text) or _RESOURCES.search(evidence.text):
        return _of_kernel(evidence, weights)
    return weights if _RELAYS.search(evidence.text) else _by_library(evidence, weights, frame)


def by_frame_alone(evidence: Evidence) -> Weights:
    """What the innermost frame says where the traceback breaks off before its exception."""
    frame, standard = str(evidence.data.get("frame") or ""), str(evidence.data.get("standard") or "")
    if _WAITS.search(str(evidence.data.get("function") or "")):
        return {}
    if reads := read_there(evidence):
        return reads
    place = f"{frame}:{evidence.data.get('function') or ''}"
    if said := first_of(STANDARD, standard) or first_of(PLACES, place) or (WRITING if _WRITES.search(place) else None):
        return {cause: HALF_TOLD * weight for cause, weight in said.items()}
    return IN_LIBRARY if _LIBRARY.search(frame) else IN_PROGRAM if frame else {}


def _by_library(evidence: Evidence, weights: Weights, frame: str) -> Weights:
    """What an exception says that ends in a library's ``frame``."""
    place = f"{frame}:{evidence.data.get('function') or ''}"
    if (told := _by_sentence(evidence.text, weights)) is not None:
        return told
    if _FORWARD.search(place) and _NO_TENSOR.search(evidence.text):
        return {C.USER_CODE: FED, C.DATALOADER: 1.6, C.SOFTWARE_ENV: STATE}
    if _HANDS_ON.search(frame) and _NOT_REBUILT.search(evidence.text):
        return {C.DATALOADER: CHECKED, C.USER_CODE: STATE}
    moved = dict(weights)
    if _DATA.search(frame) and _SOURCE_FAILED.search(evidence.text):
        moved[C.DATALOADER] = max(moved.get(C.DATALOADER, 0.0), SOURCE)
        return moved
    status = _HANDS_STATUS_ON.search(str(evidence.data.get("function") or "")) is not None
    refused = evidence.data.get("refused") is True and not status
    own = _OWN_FAULT.search(evidence.text) is not None
    if _fails_to_load(evidence, frame):
        return _moved(weights, {C.SOFTWARE_ENV: IMPORTED})
    said = first_of(PLACES, place)
    driven = _LIBRARY.search(str(evidence.data.get("caller") or "")) is not None
    if refused and not driven and _of_a_tensor(evidence.text, frame) and (said is None or C.USER_CONFIG in said):
        return {C.USER_CODE: CHECKED, C.SOFTWARE_ENV: STATE, C.USER_CONFIG: STATE}
    if said and refused and C.NETWORK_BOOTSTRAP in said and _BAD_ARGUMENT.search(evidence.text):
        said = None
    if said and not own and not status:
        return _moved(weights, said)
    if refused and "ValueError" in evidence.text and _FORWARD.search(place):
        return {C.USER_CODE: CHECKED, C.SOFTWARE_ENV: STATE, C.USER_CONFIG: REFUSED, C.DATALOADER: REFUSED}
    own = own and not refused
    if _IN_WORKER.search(str(evidence.data.get("caller") or "")) and _LACKS.search(evidence.text):
        return {C.DATALOADER: SOURCE, C.USER_CONFIG: STATE, C.USER_CODE: STATE, C.SOFTWARE_ENV: REFUSED}
    if refused and _ORDER.search(evidence.text):
        return _moved(weights, {C.SOFTWARE_ENV: INVARIANT}) if evidence.data.get("inside") is True else moved
    if _ADMITS_BUG.search(evidence.text):
        return _moved(weights, {C.SOFTWARE_ENV: INVARIANT})
    if _RECORDED.search(frame) and not own:
        return weights
    wrong_type = refused and _WRONG_TYPE.search(evidence.text) is not None  # of an argument: no setting's
    if evidence.kind in _OF_TENSORS and not refused and not _CORE.search(frame):
        return {**moved, C.SOFTWARE_ENV: DRIVEN + UNSEEN, C.USER_CODE: 0.5 * moved.get(C.USER_CODE, 0.0)}
    if _CORE.search(frame) and (wrong_type or not (own or refused)):
        if _LIBRARY.search(str(evidence.data.get("caller") or "")):
            moved[C.SOFTWARE_ENV] = max(moved.get(C.SOFTWARE_ENV, 0.0), DRIVEN)
            return {**moved, C.USER_CODE: 0.5 * moved.get(C.USER_CODE, 0.0)}
        if wrong_type:
            return weights
    inside = (_INSIDE.search(evidence.text) is not None or _asserts(evidence)) and not _TAKES_DATA.search(frame)
    state = refused and "RuntimeError" in evidence.text
    if refused and not inside:
        moved[C.USER_CONFIG] = max(moved.get(C.USER_CONFIG, 0.0), STATE if state else CHECKED)
    fault = OWN_FAULT if own else INVARIANT if inside else STATE if state else REFUSED
    moved[C.SOFTWARE_ENV] = max(moved.get(C.SOFTWARE_ENV, 0.0), fault)
    if (own or refused or inside) and C.USER_CODE in moved:
        moved[C.USER_CODE] = 0.5 * moved[C.USER_CODE]
    return moved


def _of_a_tensor(text: str, frame: str) -> bool:
    """Whether the tensor library refuses a tensor for what it is, and not the type of an argument."""
    return bool(_CORE.search(frame) and _OF_A_TENSOR.search(text) and not _WRONG_TYPE.search(text))


def _by_sentence(text: str, weights: Weights) -> Weights | None:
    """What a library's sentence says wherever it is raised; None where it says nothing of that kind."""
    if _FED.search(text):
        return {C.USER_CODE: FED, C.USER_CONFIG: 1.6, C.DATALOADER: 1.6}
    if _COLUMN.search(text):
        return {C.USER_CONFIG: NO_SUCH_NAME, C.DATALOADER: 2.2, C.USER_CODE: 2.0}
    if _PART.search(text):
        return {C.USER_CONFIG: NO_SUCH_NAME, C.CHECKPOINT_CORRUPT: 2.2, C.USER_CODE: 2.0}
    if _TEXT_FOR_NUMBER.search(text):
        return _moved(weights, {C.USER_CONFIG: CHECKED, C.USER_CODE: 0.5 * weights.get(C.USER_CODE, 0.0)})
    if _OPTION.search(text):
        return _of_settings(weights)
    return None


def _fails_to_load(evidence: Evidence, frame: str) -> bool:
    """Whether a library raised for itself while it was imported: before it was asked for anything."""
    if evidence.data.get("function") == "<module>" and "-packages/" in frame:
        return True
    if evidence.data.get("refused") is True and _ENVIRONMENT.search(evidence.text):
        return False
    importing = str(evidence.data.get("importing") or "")
    return _LIBRARY.search(importing) is not None and _OWN_TO_IMPORT.search(evidence.text) is not None


def _asserts(evidence: Evidence) -> bool:
    """An ``assert`` of a library that another library runs into: what the first takes for granted, no setting."""
    check, caller = str(evidence.data.get("check") or ""), str(evidence.data.get("caller") or "")
    driven = _LIBRARY.search(caller) is not None and _ASSERT.search(check) is not None
    return evidence.kind == "assertion" and (driven or _P_ASSERT.search(check) is not None)


def _of_kernel(evidence: Evidence, weights: Weights) -> Weights:
    """A kernel is of whose code launches it: nearest above the frames of the compiler."""
    caller = str(evidence.data.get("caller") or "")
    if not caller:
        return weights
    if _LIBRARY.search(caller) or _GENERATED.search(caller):
        return {C.SOFTWARE_ENV: COMPILED, C.USER_CODE: 0.8}
    if _RESOURCES.search(evidence.text):
        return {C.USER_CONFIG: COMPILED, C.USER_CODE: 2.4, C.SOFTWARE_ENV: 0.8}
    return {C.USER_CODE: COMPILED, C.SOFTWARE_ENV: 0.8}


def _is_unset(evidence: Evidence) -> bool:
    """Whether it was the setting itself that has no value, and not what a function returned that got one."""
    told = (("option", _UNSET), ("taken", _UNSET_TAKEN), ("opened", _UNSET_OPENED))
    return any(evidence.data.get(name) is True and said.search(evidence.text) for name, said in told)


def _of_settings(weights: Weights) -> Weights:
    return {C.USER_CONFIG: NO_SUCH_NAME, C.USER_CODE: 0.5 * weights.get(C.USER_CODE, 0.0)}


def _moved(weights: Weights, said: Weights) -> Weights:
    """``weights`` by the exception's class, each raised to what the frame's place says (``said``)."""
    moved = {cause: (NAMED if cause is C.USER_CODE else 1.0) * weight for cause, weight in weights.items()}
    for cause, weight in said.items():
        moved[cause] = max(moved.get(cause, 0.0), weight)
    return moved
