"""A real Prometheus says that the storage is ill: jobs that fail together failed of it, and nothing else is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from servers.prometheus import BINARY, PrometheusServer
from stories.timeline import Job, Story, until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.deep,
    pytest.mark.skipif(BINARY is None, reason="optional: needs the program prometheus (Debian package prometheus)"),
]

RULES = """\
[[signal]]
id = "vault-ill"
words = "the storage system says that it is ill"
query = 'vault_health{system="shared"}'
above = 0
for_s = 0
cause = "filesystem_storage"
weight = 3.0
"""
WELL, ILL = 'vault_health{system="shared"} 0', 'vault_health{system="shared"} 2'
SCRIPT = r"""#!/bin/bash
for i in 1 2 3; do echo "step $i | loss 2.0000 | step time 0.100 s | 160 tokens/s"; sleep 0.1; done
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
    until [ -e "$GO" ]; do sleep 0.2; done
    echo "OSError: [Errno 5] Input/output error: '/vault/data/shard-7'" >&2
    exit 1
fi
echo "starting from scratch"
i=3; while :; do i=$((i + 1)); echo "step $i | loss 1.0000 | step time 0.200 s | 80 tokens/s"; sleep 0.2; done
"""


@pytest.fixture
def prometheus() -> Iterator[PrometheusServer]:
    made = PrometheusServer(WELL)
    yield made
    made.stop()


@pytest.fixture
def asked(fresh: Story, prometheus: PrometheusServer) -> Iterator[Story]:
    """A lab whose daemon asks that Prometheus, every five seconds."""
    rules = fresh.lab.dir / "etc" / "signals.toml"
    rules.write_text(RULES)
    prometheus.wait()
    section = f'[prometheus]\nurl = "{prometheus.url}"\nrules = "{rules}"\nevery_s = 5\ndeadline_s = 30\n\n[recovery]\n'
    fresh.restart_daemon({"[recovery]\n": section})
    until(lambda: signals(fresh).get("answers"), lambda: f"Prometheus to be heard: {signals(fresh)}")
    yield fresh


def signals(story: Story) -> dict[str, object]:
    return dict((story.view("status") or {}).get("prometheus") or {})


def jobs_that_wait(story: Story, count: int) -> list[Job]:
    """Jobs of one node each that fail of the storage once they are told to, and train when they were restarted."""
    path = story.lab.dir / "shared" / "own.sh"
    path.write_text(SCRIPT)
    made = []
    for number in range(count):
        comment = json.dumps({"sentinel": {"restart": True, "global": [f"{story.lab.dir}/shared/own{number}"]}})
        words = ["sbatch", "--parsable", "--nodes=1", "--exclusive", "--open-mode=append", "--requeue"]
        words += [f"--output={story.lab.dir}/shared/own{number}-%j.out", f"--job-name=own{number}"]
        words += [f"--comment={comment}", f"--export=ALL,GO={story.lab.dir}/shared/go"]
        said = story.lab.slurm(*words, str(path))
        made.append(story.adopt(Job(story.lab, int(said.split(";")[0]), f"own{number}"), saved=False))
    for job in made:
        job.wait_log("step 3")
    return made


def fail(story: Story) -> None:
    (story.lab.dir / "shared" / "go").touch()


def test_jobs_that_fail_of_an_ill_storage_are_one_fault_of_the_cluster(asked: Story, prometheus: PrometheusServer):
    story = asked
    jobs = jobs_that_wait(story, 3)
    prometheus.metrics = [ILL]
    (told,) = story.expect(messages=[{"cause": "filesystem_storage", "scope": "cluster", "job": None}])
    assert "the storage system says that it is ill" in told["text"]
    assert "the storage system says that it is ill" in story.sentinel("status").stdout
    fail(story)
    story.expect(restarts=jobs)  # no message more: people know
    for job in jobs:
        (row,) = (story.view("incidents", job=job.id) or {})["incidents"]
        assert (row["cause"], row["scope"], row["culprit_nodes"]) == ("filesystem_storage", "cluster", [])
        why = story.sentinel("why", row["id"]).stdout
        assert "the storage system says that it is ill" in why
    prometheus.metrics = [WELL]
    until(lambda: not signals(story).get("firing"), lambda: f"the signal to be over: {signals(story)}")
    story.settle(6)


def test_a_prometheus_that_is_gone_says_nothing_and_delays_nothing(asked: Story, prometheus: PrometheusServer):
    story = asked
    job = story.job(2)
    prometheus.stop()
    until(lambda: signals(story).get("problem"), lambda: f"its silence to be known: {signals(story)}")
    assert signals(story)["answers"] is False
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
