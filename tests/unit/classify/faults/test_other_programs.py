"""In a machine's log, where all its programs write, a service's error is no cause beside what the kernel says is broken."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.machine_logs import writer_of
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Source, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
DENIED = 'audit: type=1400 audit(1772.3:9): apparmor="DENIED" operation="mount" error=-13 profile="c9"'
HUNG = "INFO: task containerd:4711 blocked for more than 120 seconds."
MISMATCH = "NVRM: API mismatch: the client has the version 570.86.10, but"
REFUSED = "open /var/run/nvx-0: Permission denied"
MISSED = "Error opening file /usr/share/x.desktop: No such file or directory"


def judge(*lines: str) -> Verdict:
    reader = LogReader(shipped_signatures(), source=Source.JOB_LOG, where=Where(path="node.log"))
    found = reader.feed("".join(f"{line}\n" for line in lines).encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i1", NOW, NOW, evidence=tuple(found)), rules=shipped_rules(), now=NOW)


def syslog(tag: str, text: str) -> str:
    return f"Mar  4 05:06:07 c4 {tag}: {text}"


def test_what_the_kernel_denied_to_a_container_is_not_the_cause_of_a_hung_task() -> None:
    lines = [f"[  100.{n}00000] {DENIED}" for n in range(3)]

    assert judge(*lines).cause is not Cause.NODE_OS_OR_HOST
    assert judge(*lines, f"[  300.000000] {HUNG}").cause is Cause.NODE_OS_OR_HOST


def test_a_service_that_misses_a_file_is_not_the_cause_of_a_drivers_mismatch() -> None:
    services = [syslog(f"tracker[{n}]", text) for n, text in enumerate((REFUSED, MISSED, REFUSED))]

    verdict = judge(*services, syslog("kernel", MISMATCH))

    assert verdict.cause is Cause.GPU_GSP_OR_DRIVER


def test_in_the_log_of_a_job_the_first_error_stays_the_cause() -> None:
    lines = [*(f"{REFUSED} (try {n})" for n in range(4)), syslog("kernel", HUNG)]

    assert judge(*lines).cause is Cause.USER_CONFIG


def test_a_full_disk_is_the_machines_whoever_says_it() -> None:
    full = syslog("python[33]", "OSError: [Errno 28] No space left on device")

    assert judge(full, syslog("kernel", HUNG)).cause is Cause.DISK_FULL


def test_without_a_fault_that_the_kernel_names_a_service_may_be_the_cause() -> None:
    assert judge(*(syslog(f"tracker[{n}]", REFUSED) for n in range(4))).cause is Cause.USER_CONFIG


BUSY = [  # a desktop's boot, in which nothing failed that a job would notice
    syslog("snapd[851]", "state ensure error: dial tcp: lookup a.example: Temporary failure in name resolution"),
    syslog("login[1318]", "pam_unix(login:auth): Couldn't open /etc/securetty: No such file or directory"),
    syslog("sh[1630]", "/bin/sh: 1: initctl: not found"),
    syslog("kernel", DENIED),
]


def test_where_many_programs_write_a_service_names_no_cause_of_a_job() -> None:
    assert judge(*BUSY).cause is Cause.UNKNOWN


def test_what_starts_jobs_is_heard_among_services() -> None:
    refused = syslog("slurmstepd[99]", "error: execve(): /opt/run.sh: Permission denied")

    assert judge(*BUSY, refused).cause is Cause.USER_CONFIG


@pytest.mark.parametrize(
    ("line", "writer"),
    [
        (f"[  100.000000] {HUNG}", "kernel"),
        (f"[Wed Mar  4 05:06:07 2026] {HUNG}", "kernel"),
        (f"4,812,99100,-;{HUNG}", "kernel"),
        (f"<3>[  100.000000] {HUNG}", "kernel"),
        (syslog("kernel", f"[  100.000000] {HUNG}"), "kernel"),
        (f"2026-03-04T05:06:07.123456+00:00 c4 kernel: {HUNG}", "kernel"),
        (f"c4: kern: info: [2026-03-04T05:06:07.123Z]: {HUNG}", "kernel"),
        (f"[  100.000000] {DENIED}", "audit"),
        (syslog("kernel", DENIED), "audit"),
        (syslog("systemd[1]", "x.service: Failed with result 'exit-code'."), "systemd"),
        (HUNG, None),
        ("[rank0]: ValueError: no such key", None),
        ("[2026-03-04 05:06:07,123] [INFO] step 3", None),
        ("2026-03-04 05:06:07 INFO trainer: step 3", None),
    ],
)
def test_the_form_of_a_line_tells_which_program_wrote_it(line: str, writer: str | None) -> None:
    assert writer_of(line) == writer


def test_a_sentence_of_programs_in_the_kernel_s_own_line_tells_of_no_job() -> None:
    line = 'cgroup: cgroup2: unknown option "nsdelegate"'
    assert judge(line).cause is Cause.USER_CONFIG
    assert judge(f"[    5.276452] {line}").cause is Cause.UNKNOWN


@pytest.mark.parametrize("word", ["Epoch", "epoch", "step", "Iter", "batch"])
def test_a_count_and_a_time_before_what_a_training_prints_is_no_date_of_a_syslog(word: str) -> None:
    said = (
        "train loss: 0.31",
        "eval accuracy: 0.84",
        "save path: /scratch/run",
        "train RuntimeError: CUDA out of memory",
    )
    lines = [f"{word} 12 10:03:2{n} {text}" for n, text in enumerate(said)]
    assert [writer_of(line) for line in lines] == [None] * 4
    assert judge(*lines).cause is Cause.APP_OOM_GPU
