"""Words in the names of users' files and folders are no report of the part that they name.

Found on a real log: torchelastic ends with `/home/.../.dcgm/train.py FAILED`, which a rule took for DCGM's word. At sites
whose home folders lie in `/gpfs` or `/weka` each traceback has such a path.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.evidence.logs.reader import LogReader

RULES = {rule.id: rule for rule in shipped_rules().rules}
WORDS = (
    "dcgm", "dcgmi", ".dcgm", "nvvs", "nccl", "nvlink", "nvswitch", "ecc", "xid", "gpu", "memory", "oom", "ib",
    "infiniband", "mlx5", "rdma", "nvme", "lustre", "gpfs", "mmfs", "beegfs", "ceph", "weka", "vast", "daos", "s3fs",
    "nfs", "slurm", "cuda", "cublas", "disk", "checkpoints", "storage", "pcie", "fabricmanager",
    "nvidia-fabricmanager", "imex", "ras", "rccl", "rocm", "dataloader", "timeout", "hang", "watchdog", "kernel",
    "edac", "mce", "hbm", "thermal", "power", "ucx", "fabric", "row",
)  # fmt: skip
LINES = (
    "/home/u/{}/train.py FAILED",
    "/{}/home/u/train.py FAILED",
    "/home/u/{}-run/train.py FAILED",
    "/home/u/my_{}/{}_train.py FAILED",
    '  File "/home/u/{}/failed.py", line 5, in error',
    "FileNotFoundError: [Errno 2] No such file or directory: '/home/u/{}/error/failed.json'",
    "python: can't open file '/home/u/{}/failed.py': [Errno 2] No such file or directory",
)
OF_A_PROGRAM = {"user_code", "user_config", "software_env", "storage_full_or_quota", "checkpoint_corrupt", "unknown"}


@pytest.mark.parametrize("line", LINES)
def test_a_path_speaks_for_no_fault_of_a_machine(line: str) -> None:
    wrong = {}
    for word in WORDS:
        reader, now = LogReader(shipped_signatures()), datetime(2026, 3, 4, tzinfo=UTC)
        text = line.replace("{}", word)
        for item in [*reader.feed(text.encode() + b"\n", now), *reader.finish(now)]:
            weights = RULES[str(item.rule)].weights
            leading = max(weights, key=lambda cause: weights[cause], default="unknown")
            if weights and str(leading) not in OF_A_PROGRAM:
                wrong[text] = (str(item.rule), str(leading))
    assert wrong == {}


def test_no_shipped_rule_searches_for_any_number_of_blanks() -> None:
    """Tried at each of them: a line of 6,000 blanks took the reader half a second."""
    searched = {rule.id: f"{rule.pattern} {rule.capture}" for rule in RULES.values()}
    assert [name for name, text in searched.items() if re.search(r"\{\d*,\}", text)] == []
