"""What nearly every job prints as it starts and as it is torn down changes no verdict on what is between.

The messages are those of vocabulary.txt, each alone the cause that an expert gives it; here they stand among warnings of
libraries, among what other ranks say once one is gone, and among launchers' reports.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident

NOW = datetime(2026, 3, 4, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
START = """\
NOTE: The SHMEM allocation limit is set to the default of 64MB.  This may be insufficient for PyTorch.
/env/lib/python3.11/site-packages/torch/utils/_pytree.py:185: FutureWarning: optree is installed but the version is too old.
[W414 10:40:02.0 socket.cpp:752] [c10d] The client socket cannot be initialized to connect to [n1]:29500 (errno: 97).
n1:77:77 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
[WARNING]  async_io requires the dev libaio .so object and headers but these were not found.
[WARNING]  please install triton==1.0.0 if you want to use sparse attention
/opt/trainer/specs.py:60: UserWarning: Apex is not installed. Falling back to Torch Norm
CUDA version 12.1 does not match the version torch was compiled with 12.2, but since the APIs are compatible, accepting it
Setting `use_cache=False` as it is incompatible with gradient checkpointing.
2024-05-02 10:11:13.3314: W tsl/platform/default/dso_loader.cc:64] Could not load dynamic library 'libcudart.so.11.0'
2024-05-02 10:11:13.2314: E xla/stream_executor/cuda/cuda_dnn.cc:9261] Unable to register cuDNN factory
2024-05-02 10:11:13.6021: E xla/stream_executor/cuda/cuda_driver.cc:271] failed call to cuInit: CUDA_ERROR_NO_DEVICE: none
INFO:jax._src.xla_bridge:Unable to initialize backend 'tpu': libtpu.so: cannot open shared object file: No such file
The installed version of bitsandbytes was compiled without GPU support. 8-bit optimizers are unavailable.
Detected kernel version 4.18.0, which is below the recommended minimum of 5.5.0; this can cause the process to hang.
"""
PEERS = """\
[rank3]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited, NCCL 2.27.3
[rank3]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
[rank3]: Last error:
[rank3]: socketPollConnect: connect to 10.0.0.5<41231> returned Connection refused, exceeded error retry count (35)
[rank4]:[W1229 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3, remote=[n0]:29500): Connection reset by peer
torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.
Exception ignored in: <function _ConnectionBase.__del__ at 0x7f>
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 132, in __del__
    self._close()
OSError: [Errno 9] Bad file descriptor
wandb: Network error (ConnectionError), entering retry loop.
"""
LAUNCHERS = """\
W0414 10:43:11.6 289 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 290 closing signal SIGTERM
E0414 10:43:12.0 289 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 0 (pid: 291)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
srun: error: n1: task 0: Exited with exit code 1
srun: Terminating StepId=12718546.0
srun: error: n2: tasks 1-3: Killed
"""


def cause(text: str) -> Cause:
    reader = LogReader(SIGNATURES)
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i1", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW).cause


@cache
def known_messages() -> tuple[tuple[list[str], str], ...]:
    """Causes and text of what is judged rightly alone; where nothing is shown, what stands around it may speak."""
    lines = (Path(__file__).parent / "vocabulary.txt").read_text().splitlines()
    pairs = [line.split(" | ", 1) for line in lines if " | " in line and not line.startswith("#")]
    said = [
        (causes.split(","), message.replace("\\n", "\n") + "\n") for causes, message in pairs if "unknown" not in causes
    ]
    return tuple((causes, text) for causes, text in said if cause(text) in causes)


@pytest.mark.parametrize(
    ("before", "behind", "most"),
    [(START, "", 0.012), ("", PEERS, 0.015), ("", LAUNCHERS, 0.012), (START, PEERS + LAUNCHERS, 0.02)],
    ids=["start", "peers", "launchers", "all"],
)
def test_surroundings_change_few_verdicts(before: str, behind: str, most: float) -> None:
    said = [
        (causes, text) for causes, text in known_messages() if crc32(text.encode()) % 3 == 0
    ]  # always the same third
    changed = [message for causes, message in said if cause(before + message + behind) not in causes]
    assert len(changed) <= most * len(said), changed


TIME = "2026-03-03T10:00:00.{:03}Z"


def docker(line: str, number: int) -> str:
    return json.dumps({"log": f"{line}\n", "stream": "stderr", "time": TIME.format(number)})


def cloud(line: str, number: int) -> str:
    return json.dumps({"textPayload": line, "severity": "ERROR", "timestamp": TIME.format(number)})


def logger(line: str, number: int) -> str:
    return json.dumps({"event": line, "level": "error", "timestamp": TIME.format(number)})


def container_runtime(line: str, number: int) -> str:
    return f"{TIME.format(number)} stderr F {line}"


def scheduler(line: str, number: int) -> str:
    return f"[2026-03-03, 10:00:{number % 60:02} UTC] {{subprocess.py:93}} INFO - {line}"


def forum(line: str, number: int) -> str:
    """Typed: curved quotes, an ellipsis, a dash, blanks that do not break."""
    curved = re.sub(r"(^|[\s([{=])'", "\\1\u2018", re.sub(r'(^|[\s([{=])"', "\\1\u201c", line))
    curved = curved.replace("'", "\u2019").replace('"', "\u201d").replace("...", "\u2026")
    return curved.replace(" --", " \u2013").replace("  ", "\u00a0 ")


def page(line: str, number: int) -> str:
    return html.escape(line)


def label(line: str, number: int) -> str:
    return f" 3: {line}"


def worker(line: str, number: int) -> str:
    return f"\x1b[36m(RayTrainWorker pid=4711, ip=10.0.0.7)\x1b[0m {line}"


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (docker, 0.005),
        (cloud, 0.005),
        (logger, 0.005),
        (container_runtime, 0.05),
        (scheduler, 0.05),
        (forum, 0.005),
        (page, 0.005),
        (label, 0.05),
        (worker, 0.05),
    ],
)
def test_what_stands_around_each_line_changes_few_verdicts(shape: Callable[[str, int], str], most: float) -> None:
    """Containers, clouds, schedulers and loggers store a log so."""
    said = [(causes, text) for causes, text in known_messages() if crc32(text.encode()) % 5 == 0]
    changed = [
        text
        for causes, text in said
        if cause("".join(f"{shape(line, number)}\n" for number, line in enumerate(text.splitlines()))) not in causes
    ]
    assert len(changed) <= most * len(said), (len(changed), len(said), changed)


def test_warnings_do_not_add_up() -> None:
    reader = LogReader(SIGNATURES)
    found = reader.feed(f"{START}exiting program after 230 minutes\n".encode(), NOW) + reader.finish(NOW)
    assert classify(Incident("i1", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW).confidence < 0.8


SEGFAULT = "srun: error: n4: task 3: Segmentation fault (core dumped)\n"
KILLED = "slurm_script: line 14: 511233 Killed                  python train.py\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "slurmstepd: error: *** JOB 8 ON g1 CANCELLED AT 2026-03-01T10:10:10 ***\n",
            Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT,
        ),
        ("kernel: watchdog: BUG: soft lockup - CPU#17 stuck for 67s!\n", Cause.NODE_OS_OR_HOST),
        ("run.sh: line 9: 4711 Terminated              python train.py\n", Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT),
        (SEGFAULT, Cause.SOFTWARE_ENV),
        (KILLED, Cause.APP_OOM_HOST),
    ],
)
def test_peers_miss_what_was_ended_before(line: str, said: Cause) -> None:
    assert cause(line + PEERS) is said


@pytest.mark.parametrize("line", [SEGFAULT, KILLED])
def test_what_ended_after_peers_were_missed_explains_nothing(line: str) -> None:
    assert cause(PEERS + line) is Cause.NETWORK_BOOTSTRAP


def test_memory_that_a_line_names_is_not_what_srun_killed() -> None:
    assert cause(f"Rank 12: unable to allocate 96 GB of memory for the density grid\n{LAUNCHERS}") is Cause.APP_OOM_HOST
    assert cause(LAUNCHERS) is Cause.UNKNOWN


def test_an_exception_that_python_ignores_ended_nothing() -> None:
    ignored = PEERS[PEERS.index("Exception ignored") : PEERS.index("wandb")]
    assert cause(ignored) is Cause.UNKNOWN
    assert cause(ignored.split("\n", 1)[1].replace("OSError: [Errno 9]", "KeyError:")) is Cause.USER_CODE
