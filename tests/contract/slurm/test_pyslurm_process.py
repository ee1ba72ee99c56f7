"""The process around pyslurm when it misbehaves: stand-ins for it are scripts, so pyslurm itself is not needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sentinel.adapters.slurm.process import Answer, SlurmSaidNo
from sentinel.adapters.slurm.pyslurm_reader import Child, probe
from sentinel.errors import Denied, Timeout, Unavailable

ECHO = "import sys, json\nfor line in sys.stdin:\n    request = json.loads(line)\n"


def child(script: str, deadline_s: float = 60.0) -> Child:
    return Child({}, deadline_s, (sys.executable, "-u", "-c", script))


async def test_one_process_answers_many_requests() -> None:
    asked = child(f"{ECHO}    print(json.dumps({{'ok': [request['verb'], request['arguments'], {os.getpid()}]}}))")
    assert await asked.ask("a", 1, "x\ny") == ["a", [1, "x\ny"], os.getpid()]
    process = asked._process
    assert await asked.ask("b") == ["b", [], os.getpid()]
    assert asked._process is process
    await asked.close()
    await asked.close()


async def test_past_its_deadline_it_is_killed_and_another_one_starts(tmp_path: Path) -> None:
    script = (
        f"import os, time\nflag = '{tmp_path}/flag'\nif not os.path.exists(flag):\n"
        f"    open(flag, 'w').write(str(os.getpid()))\n    time.sleep(600)\n{ECHO}    print(json.dumps({{'ok': 1}}))"
    )
    asked = child(script, deadline_s=5.0)
    with pytest.raises(Timeout):
        await asked.ask("nodes")
    assert not Path(f"/proc/{(tmp_path / 'flag').read_text()}").exists()
    assert await asked.ask("nodes") == 1
    await asked.close()


@pytest.mark.parametrize("end", ["raise SystemExit(3)", "os.kill(os.getpid(), 11)", "print('{torn', end=''); break"])
async def test_a_crash_is_not_known(end: str) -> None:
    asked = child(f"import os\n{ECHO}    {end}")
    with pytest.raises(Unavailable, match="died"):
        await asked.ask("nodes")
    await asked.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"no": "Protocol authentication error (1007)"}, Denied),
        ({"no": "Unable to contact slurm controller (connect failure) (1000)"}, Unavailable),
        ({"no": "Invalid job id specified (2017)"}, SlurmSaidNo),
        ({"broken": "AttributeError: no such thing"}, Unavailable),
    ],
)
async def test_answers_become_our_errors(answer: dict[str, str], error: type[Exception]) -> None:
    asked = child(f"{ECHO}    print(json.dumps({answer!r}))")
    with pytest.raises(error) as caught:
        await asked.ask("release", 7)
    if isinstance(caught.value, SlurmSaidNo):
        assert caught.value.answer is Answer.NO_JOB
    await asked.close()


@pytest.mark.parametrize(
    ("script", "version", "why_not"),
    [
        ('print(\'{"ok": {"pyslurm": "25.11.2", "lacks": []}}\')', "25.11.2", ""),
        ('print(\'{"ok": {"pyslurm": "21.8.1", "lacks": ["Nodes"]}}\')', "", "too old"),
        ("import nowhere_to_be_found", "", "nowhere_to_be_found"),
        ("import time; time.sleep(600)", "", "does not answer"),
        ("import os; os.abort()", "", "does not import"),
    ],
)
def test_probe_says_whether_a_pyslurm_fits_and_why_not(script: str, version: str, why_not: str) -> None:
    found, reason = probe({}, 3.0 if "sleep" in script else 60.0, (sys.executable, "-c", script))
    assert found == version
    assert why_not in reason and bool(reason) is not bool(version)
