"""What a researcher asked for, from the job's ``--comment``: user-written, hence hostile.

The comment holds JSON (Slurm keeps at most 1,024 characters of it and carries it through a requeue)::

    --comment='{"sentinel": {"restart": true, "global": ["/shared/run1"], "local": ["/nvme/%N/run1"], "retries": 20}}'

``"bad_numbers"`` ("tell", "hold" or "restart") says what is done while the job runs and its losses stay no numbers; without
it the site's setting holds.
``"errors": "retry"``: what looks like the program's own error is retried while attempts gain steps; else the job is held for
its user.
``"nodes": [2, 4]`` says with how many nodes it can run, as its ``--nodes=2-4`` does, which Slurm forgets when it starts.
``"manifests": false``: its saves are not read while it runs. In folders ``%N`` stands for the name of each node, and ``%j``
for the job's id (SLURM_JOB_ID): the tasks of an array have one comment. Other keys of the object belong to other tools and
are left alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Intent:
    restart: bool = False
    global_roots: tuple[str, ...] = ()
    local_roots: tuple[str, ...] = ()  # absolute, may hold %N
    retries: int | None = None  # an upper bound below the site's own
    bad_numbers: str | None = None  # what to do when losses stay no numbers while it runs; None: as the site does
    retry_errors: bool = False  # whether a program's own error is retried, as long as steps are gained
    nodes: tuple[int, int] | None = None  # least and most with which it can run; None: it is not elastic
    in_allocation: int | None = None  # nodes on which ``sentinel run`` trains; the others of its allocation are spares
    manifests: bool = True  # whether its finished saves may be read once while it runs
    problem: str = ""  # why the comment could not be understood; the user is told


NOTHING = Intent()
KEYS = frozenset(
    {"restart", "global", "local", "retries", "bad_numbers", "errors", "manifests", "nodes", "in_allocation"}
)
MOST_NODES = 65_536  # of a job: MAX_SLURM_NODES
MOST_FOLDERS = 16  # of a kind; jobs have one or two, and each is held against those of all other jobs of the user
BAD_NUMBERS = ("tell", "hold", "restart")


def intent_of(comment: str, job: int | None = None) -> Intent:
    """Intent of a comment; a comment that is not ours gives ``NOTHING``, a broken one says what is wrong with it.

    Args:
        job: whose comment it is; without it the folders are as they are written, with ``%j``.
    """
    intent = _intent_of(comment)
    if job is None or not any("%j" in root for root in (*intent.global_roots, *intent.local_roots)):
        return intent
    shared, local = ([root.replace("%j", str(job)) for root in r] for r in (intent.global_roots, intent.local_roots))
    return replace(intent, global_roots=tuple(shared), local_roots=tuple(local))


@lru_cache(maxsize=16_384)  # of all jobs that Slurm knows (MaxJobCount is 10,000 as a rule); 3 KB each at most
def _intent_of(comment: str) -> Intent:
    if "sentinel" not in comment:
        return NOTHING
    try:
        value = json.loads(comment)
    except (ValueError, RecursionError) as error:  # a thousand brackets are a comment too
        return Intent(problem=f"the comment is not JSON ({error}): quote it as --comment='{{\"sentinel\": ...}}'")
    asked = value.get("sentinel") if isinstance(value, dict) else None
    if asked is None:
        return NOTHING
    if isinstance(asked, bool):
        return Intent(restart=asked)
    if not isinstance(asked, dict):
        return Intent(problem='"sentinel" in the comment must be true, false or an object')
    unknown = sorted(set(asked) - KEYS)
    if unknown:
        return Intent(problem=f'unknown key {unknown[0]!r} in the comment\'s "sentinel" object')
    return _checked(asked)


def _checked(asked: dict[str, object]) -> Intent:
    restart = asked.get("restart", True)
    retries = asked.get("retries")
    if not isinstance(restart, bool):
        return Intent(problem='"restart" in the comment must be true or false')
    if retries is not None and (not isinstance(retries, int) or isinstance(retries, bool) or retries < 0):
        return Intent(problem='"retries" in the comment must be a whole number')
    numbers = asked.get("bad_numbers")
    if numbers is not None and numbers not in BAD_NUMBERS:
        return Intent(
            problem=f'"bad_numbers" in the comment must be {", ".join(BAD_NUMBERS[:-1])} or {BAD_NUMBERS[-1]}'
        )
    errors = asked.get("errors", "hold")
    if errors not in ("hold", "retry"):
        return Intent(problem='"errors" in the comment must be hold or retry')
    manifests = asked.get("manifests", True)
    if not isinstance(manifests, bool):
        return Intent(problem='"manifests" in the comment must be true or false')
    nodes = asked.get("nodes")
    if nodes is not None and not _is_range(nodes):
        return Intent(problem='"nodes" in the comment must be the least and the most nodes, e.g. [2, 4]')
    count = asked.get("in_allocation")
    if count is not None and not (type(count) is int and 1 <= count <= MOST_NODES):
        return Intent(problem='"in_allocation" in the comment must be the number of nodes on which it trains')
    roots: dict[str, tuple[str, ...]] = {}
    for key in ("global", "local"):
        value = asked.get(key, [])
        folders = [value] if isinstance(value, str) else value
        if not isinstance(folders, list) or not all(_absolute(folder) for folder in folders):
            return Intent(problem=f'"{key}" in the comment must be absolute folders')
        if len(folders) > MOST_FOLDERS:
            return Intent(problem=f'"{key}" in the comment names more than {MOST_FOLDERS} folders')
        roots[key] = tuple(str(folder) for folder in folders)
    return Intent(
        restart=restart,
        global_roots=roots["global"],
        local_roots=roots["local"],
        retries=retries,
        bad_numbers=None if numbers is None else str(numbers),
        retry_errors=errors == "retry",
        manifests=manifests,
        nodes=(nodes[0], nodes[1]) if isinstance(nodes, list) else None,
        in_allocation=count if isinstance(count, int) else None,
    )


def _is_range(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(number) is int for number in value)
        and 1 <= value[0] <= value[1] <= MOST_NODES
    )


def _absolute(folder: object) -> bool:
    return isinstance(folder, str) and folder.startswith("/") and ".." not in folder.split("/") and folder.isprintable()
