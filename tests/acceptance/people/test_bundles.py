"""What a job that ended badly leaves is kept before the next one comes, and the incident says where. Its user's files may be
anything: links to what is not his, pipes, files of 10 GB, names with a newline.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from lab import gpus
from stories.lab_nodes import agents_with
from stories.timeline import Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

NOBODY = 65534
SECRET = "nobody but root may read this"
LATER = "dma-buf: opened while the job ran"
BEFORE = "dma-buf: opened before the job"
SCRIPT = r"""#!/bin/bash
echo "step 1 | loss 2.0000 | step time 0.100 s | 160 tokens/s"
until [ -e go ]; do sleep 0.2; done
setsid sleep 600 </dev/null >/dev/null 2>&1 &
echo $! > stray.pid
cp "$PREPARED"/rank_0 "$PREPARED"/rank_1 flight/
cp "$PREPARED"/error.json elastic/run_x1/attempt_0/0/error.json
# What only looks like it.
ln -s "$PREPARED"/secret flight/rank_2
head -c 200 "$PREPARED"/rank_0 > flight/rank_3
truncate -s 10G flight/rank_3
mkfifo flight/rank_4
mkdir -p a b $'new\nKept on n9: line'
ln -s "$PREPARED"/secret a/error.json
mkfifo b/error.json
ln -s /etc c
ln -s / d
ln -s .. e
cp "$PREPARED"/error.json $'new\nKept on n9: line/error.json'
cat "$PREPARED"/traceback >&2
exit 1
"""
TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in step\n    x["tokens"]\nKeyError: \'tokens\'\n'
)


def dump(rank: int, calls: int) -> bytes:
    """A flight-recorder dump: so many collectives called, all but the last completed."""
    entries = [
        {
            "record_id": n, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": n + 1, "p2p_seq_id": 0,
            "op_id": n + 1, "profiling_name": "nccl:all_reduce", "input_sizes": [[64]], "output_sizes": [[64]],
            "input_dtypes": ["Float"], "output_dtypes": ["Float"], "retired": n + 1 < calls, "is_p2p": False,
            "state": "completed" if n + 1 < calls else "scheduled", "time_created_ns": 1000 + n,
            "time_discovered_completed_ns": 2000 + n if n + 1 < calls else None,
        }
        for n in range(calls)
    ]  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return pickle.dumps({"version": "2.10", "entries": entries, "pg_config": groups})


def prepare(story: Story) -> Path:
    folder = story.lab.dir / "shared" / "prepared"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank_{rank}").write_bytes(dump(rank, 6 - rank))
    words = {"message": "KeyError: 'tokens'", "extraInfo": {"py_callstack": TRACEBACK, "timestamp": "0"}}
    (folder / "error.json").write_text(json.dumps({"message": words}))
    (folder / "traceback").write_text(TRACEBACK)
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    (folder / "script").write_text(SCRIPT)
    return folder


class Ours:
    """A job of an ordinary user on one node, which ends when it is told to."""

    def __init__(self, story: Story, node: str, prepared: Path) -> None:
        self.story, self.node = story, node
        self.work = story.lab.dir / "shared" / f"work-{node}"
        places = [self.work / "flight", self.work / "elastic" / "run_x1" / "attempt_0" / "0"]
        for place in places:
            place.mkdir(parents=True)
        words = ["sbatch", "--parsable", f"--nodelist={node}", "--exclusive", f"--chdir={self.work}"]
        words += [f"--output={story.lab.dir}/shared/own-{node}-%j.out", f"--job-name=own-{node}"]
        environment = {
            "PREPARED": prepared,
            "TORCH_FR_DUMP_TEMP_FILE": places[0] / "rank_",
            "TORCHELASTIC_ERROR_FILE": places[1] / "error.json",
        }
        words.append("--export=ALL," + ",".join(f"{name}={value}" for name, value in environment.items()))
        if os.geteuid() == 0:
            for path in (self.work, *self.work.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        said = story.lab.slurm(*words, str(prepared / "script"))
        job = Job(story.lab, int(said.split(";")[0]), f"own-{node}", forges=True)
        self.job = story.adopt(job, saved=False)

    @property
    def state(self) -> Path:
        return Path(self.story.lab.dir) / "nodes" / self.node / "agent-state"

    @property
    def bundle(self) -> Path:
        return self.state / "bundles" / f"{self.job.id}.0"

    def wait_known(self) -> None:
        """Until the agent knows where dumps will lie."""
        places = self.state / "places.json"
        until(lambda: "flight/rank_" in self.story.read(places), lambda: f"places: {self.story.read(places)}")

    def end(self) -> None:
        (self.work / "go").touch()

    def stray(self) -> int:
        return int((self.work / "stray.pid").read_text())

    def there(self) -> bool:
        """Whether the process that it left behind still is."""
        with contextlib.suppress(OSError):
            return b"SLURM_JOB_ID=%d\0" % self.job.id in Path(f"/proc/{self.stray()}/environ").read_bytes()
        return False

    def told(self, message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        seen = self.story.view("why", incident=message["incident"])
        return [item for item in seen["evidence"] if item["kind"] == kind] if seen is not None else []

    def files(self) -> dict[str, dict[str, Any]]:
        about = json.loads((self.bundle / "about.json").read_text())
        return {file["file"]: file for file in about["files"]}


def test_what_a_failed_job_leaves_is_kept_and_its_incident_says_where(fresh: Story):
    story = fresh
    agents_with(story, "[collect]\nplaces_s = [0.0, 1.0, 2.0, 5.0]\nend_stray = false\n")
    path = story.lab.dir / "nodes" / "n2" / "sentinel.toml"
    path.write_text(path.read_text().replace("end_stray = false", "end_stray = true"))
    story.stop_agent("n2", 15)
    story.start_agent("n2")
    story.wait_agents()
    prepared = prepare(story)
    for node in ("n1", "n2"):
        gpus.kernel_line(story.paths, node, BEFORE)
    ours = {node: Ours(story, node, prepared) for node in ("n1", "n2")}
    try:
        for node, own in ours.items():
            own.wait_known()
            gpus.kernel_line(story.paths, node, LATER)
            own.end()
        told = story.expect(messages=[{"job": own.job.id, "cause": "user_code"} for own in ours.values()])
        by_job = {message["job"]: message for message in told}
        for own in ours.values():
            looked_at(own, by_job[own.job.id])
        stays, ended = ours["n1"], ours["n2"]
        (left,) = stays.told(by_job[stays.job.id], "left_behind")
        assert f"process {stays.stray()} (sleep" in left["text"] and "ended" not in left["text"]
        assert stays.there(), "named, and left to a person"
        (left,) = ended.told(by_job[ended.job.id], "left_behind")
        assert "it was ended (TERM)" in left["text"] and not ended.there()
    finally:
        for own in ours.values():
            if own.there():
                os.kill(own.stray(), signal.SIGKILL)
            shutil.rmtree(own.work, ignore_errors=True)  # also the 10 GB that take no room


def looked_at(own: Ours, message: dict[str, Any]) -> None:
    """The bundle has what explains the end, and nothing that is not the user's."""
    (kept,) = until(lambda: own.told(message, "bundle"), lambda: f"a bundle of {own.job.id}: {own.story.daemon_log()}")
    assert (kept["where"]["node"], kept["where"]["path"]) == (own.node, str(own.bundle))
    files = own.files()
    found = {name: (own.bundle / name).read_bytes() for name in files}
    lines = found["kernel.txt"].decode()
    assert LATER in lines and BEFORE not in lines
    assert "KeyError: 'tokens'" in found["log-end.txt"].decode()
    assert str(own.stray()) in found["processes.json"].decode()
    read = {Path(file["from"]).name: name for name, file in files.items() if file["kind"] == "dump"}
    assert read.keys() == {"rank_0", "rank_1", "rank_3"}
    assert [found[read[f"rank_{rank}"]] for rank in (0, 1)] == [dump(0, 6), dump(1, 5)]
    assert files[read["rank_3"]]["size"] == 10 << 30 and len(found[read["rank_3"]]) <= 16 << 20
    errors = [name for name, file in files.items() if file["kind"] == "error"]
    assert len(errors) == 2 and all(b"KeyError: 'tokens'" in found[name] for name in errors)
    assert all(SECRET.encode() not in content for content in found.values())
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in files)
    assert own.bundle.stat().st_mode & 0o077 == 0
    (dumps,) = own.told(message, "dumps")
    assert "3 flight-recorder dumps" in dumps["text"] and "1 of them cannot be read" in dumps["text"]
    shown = own.story.sentinel("why", message["incident"]).stdout
    assert f"Kept on {own.node}: {own.bundle}" in shown.splitlines()
    assert not any(line.startswith("Kept on n9") for line in shown.splitlines())
