"""``sentinel classify`` and ``sentinel rules`` on files, folders and everything that is neither."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli.offline.classify import classify
from sentinel.cli.offline.rules import rules

XID = "[  12.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n"


def ask(*arguments: object, code: int = 0) -> list[dict]:
    result = CliRunner().invoke(classify, ["--json", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_one_object_for_each_path(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text("CUDA out of memory. Tried to allocate 2.00 GiB\n")
    (tmp_path / "b.out").write_text("step 1 | loss 2.0\nall well\n")
    first, second = ask(tmp_path / "a.out", tmp_path / "b.out")
    assert (first["cause"], first["scope"], first["drain"], first["drain_recommended"]) == (
        "app_oom_gpu", "application", [], False,
    )  # fmt: skip
    assert first["evidence"][0]["line"] == 1 and first["evidence"][0]["trust"] == "user"
    assert second["cause"] == "unknown"


def test_a_file_of_the_kernel_convicts_its_node_and_a_job_log_does_not(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text(XID)
    (tmp_path / "job.out").write_text(XID)
    kernel, job = ask("--node", "gpu7", tmp_path / "dmesg.txt", tmp_path / "job.out")
    assert (kernel["drain"], kernel["xids"]) == (["gpu7"], [79])
    assert (job["drain"], job["suspect"], job["drain_recommended"]) == ([], ["gpu7"], True)
    told = ask("--source", "kernel", "--node", "gpu7", tmp_path / "job.out")[0]
    assert told["drain"] == ["gpu7"]


def test_what_users_make_the_kernel_or_its_files_say_drains_nobody(tmp_path: Path) -> None:
    (tmp_path / "kern.log").write_text(
        "Mar  4 05:06:07 gpu9 kernel: [  812.500000] GPU_IS_LOST[4711]: segfault at 0 ip 7f sp 7f error 4 in a[1+2]\n"
        "Mar  4 05:06:08 gpu9 kernel: [  813.500000] AER: Fatal[4711]: segfault at 0 ip 7f sp 7f error 4 in a[1+2]\n"
    )
    assert ask(tmp_path / "kern.log")[0]["drain"] == []
    (tmp_path / "messages").write_text(f"Mar  4 05:06:07 gpu9 alice[123]: {XID.partition('] ')[2]}")
    claimed = ask(tmp_path / "messages")[0]
    assert (claimed["drain"], claimed["xids"], claimed["suspect"]) == ([], [79], ["gpu9"])
    assert {ground["trust"] for ground in claimed["evidence"]} == {"user"}
    slurm = tmp_path / "slurmctld.log"
    slurm.write_text("[2026-03-04T12:00:00.123] error: execve(): /home/Node failure on gpu9: No such file\n")
    assert ask("--node", "gpu9", slurm)[0]["drain"] == []
    slurm.write_text("[2026-03-04T12:00:00.123] error: Nodes gpu9 not responding, setting DOWN\n")
    assert ask(slurm)[0]["drain"] == ["gpu9"]


def test_lines_without_a_time_stay_between_those_that_have_one(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text(
        "[rank1]: KeyError: 'labels'\n"
        "[2026-01-16T14:02:17.857] error: *** JOB 7 ON n1 CANCELLED AT 2026-01-16T14:02:17 ***\n"
        "[rank1]: OSError: [Errno 116] Stale file handle\n"
    )
    answer = ask(tmp_path / "a.out")[0]
    assert answer["cause"] == "user_code"  # the first line, although only the second one has a time


def test_a_folder_is_one_failure(tmp_path: Path) -> None:
    (tmp_path / "rank0.err").write_text("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n")
    (tmp_path / "kern.log").write_text("Mar  4 05:06:07 gpu9 kernel: " + XID)
    answer = ask(tmp_path)[0]
    assert (answer["cause"], answer["drain"]) == ("gpu_fallen_off_bus", ["gpu9"])


@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02\x03" * 4000, b"\xff\xfe\n" * 50])
def test_empty_binary_and_invalid_files_get_an_answer(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    answer = ask(path, code=2 if content[:1] == b"\x00" else 0)[0]
    assert answer["cause"] == "unknown" and answer["drain"] == []
    assert ("binary" in answer.get("error", "")) == (content[:1] == b"\x00")


def test_what_is_not_there_or_holds_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing, empty = ask(tmp_path / "missing", tmp_path / "empty", code=2)
    assert "no such file" in missing["error"]
    assert "without a readable file" in empty["error"]
    device = ask("/dev/null", code=2)[0]
    assert "neither a file nor a pipe" in device["error"]


def test_holes_of_a_sparse_file_are_skipped(tmp_path: Path) -> None:
    log = tmp_path / "slurm-1.out"
    with log.open("wb") as file:
        file.truncate(1 << 40)  # a tebibyte of nothing, in which
        file.seek(3 << 30)
        file.write(b"\nOSError: [Errno 122] Disk quota exceeded\n")
    (answer,) = ask(log)
    assert (answer["cause"], "error" in answer) == ("disk_full", False)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(
        target=lambda: path.write_text("OSError: [Errno 28] No space left on device\n"), daemon=True
    )
    writer.start()
    answer = ask(path)[0]
    writer.join(5)
    assert answer["cause"] == "disk_full"


def test_dumps_in_a_folder_name_the_rank_that_never_arrived(tmp_path: Path) -> None:
    for rank in range(3):
        calls = range(1, 8 if rank == 2 else 9)
        entries = [
            {
                "record_id": n, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": n, "p2p_seq_id": 0,
                "op_id": n, "profiling_name": "nccl:all_reduce", "input_sizes": [[8]], "input_dtypes": ["Float"],
                "output_sizes": [[8]], "output_dtypes": ["Float"], "state": "completed" if n < 8 else "scheduled",
                "time_created_ns": 1000 * n, "retired": n < 8, "timeout_ms": 600000, "is_p2p": False,
            }
            for n in calls
        ]  # fmt: skip
        status = {"last_enqueued_collective": max(calls), "last_started_collective": -1, "last_completed_collective": 7}
        dump = {
            "version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
            "pg_status": {"0": status}, "entries": entries,
        }  # fmt: skip
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    (tmp_path / "job.out").write_text("[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)\n")
    answer = ask(tmp_path)[0]
    assert (answer["cause"], answer["culprits"]["ranks"][0], answer["drain"]) == ("nccl_hang_unknown", 2, [])


def test_for_people_the_text_is_harmless(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text(
        "\x1b]0;owned\x07[bold]RuntimeError[/bold]: CUDA error: device-side assert triggered\n"
    )
    result = CliRunner().invoke(classify, [str(tmp_path / "a.out")])
    assert result.exit_code == 0
    assert "user_code" in result.output and "\x1b" not in result.output and "\x07" not in result.output


def test_rules_test_list_and_explain() -> None:
    runner = CliRunner()
    tested = json.loads(runner.invoke(rules, ["test", "--json"]).output)
    assert tested["rules"] > 150 and tested["xids"] == 172
    listed = [
        json.loads(line) for line in runner.invoke(rules, ["list", "--json", "--cause", "pcie"]).output.splitlines()
    ]
    assert listed and all(row["weights"]["pcie"] > 0 for row in listed)
    xids = [json.loads(line) for line in runner.invoke(rules, ["list", "--json", "--xid"]).output.splitlines()]
    assert next(row for row in xids if row["id"] == "xid-79")["immediate"] == "restart_bm"
    explained = json.loads(runner.invoke(rules, ["explain", "--json", XID.strip()]).output.splitlines()[0])
    assert (explained["weights"], explained["drain"]) == ({"gpu_fallen_off_bus": 6.0}, "yes")
    assert "no rule knows" in runner.invoke(rules, ["explain", "a", "fine", "day"]).output
    headline = ["explain", "--json", "12: max time across ranks (ms):"]
    assert json.loads(runner.invoke(rules, headline).output) == {"rule": "timers-across-ranks", "kind": "timers"}


def test_a_bad_site_rule_names_file_line_and_fix(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text('[[rule]]\nid = "x1"\npattern = "a.*b"\n')
    result = CliRunner().invoke(rules, ["test", "--rules", str(tmp_path)])
    assert "site.toml:3" in str(result.exception)


def test_name_of_a_file_drives_no_terminal(tmp_path: Path) -> None:
    evil = tmp_path / "a\n\x1b[31mb.out"
    evil.write_text("step 1 | loss 2.0\n")
    result = CliRunner().invoke(classify, [str(evil), str(tmp_path / "gone\x1b[2J.out")])
    assert "\x1b" not in result.output and "\\x1b[31mb.out: unknown: " in " ".join(result.output.split())


def test_headlines_are_shown_only_where_nothing_else_looks_like_an_error(tmp_path: Path) -> None:
    head, odd = "Traceback (most recent call last):\n", "fatal: the frobnicator gave up\n"
    (tmp_path / "a.out").write_text(f"{head}{odd}")
    (tmp_path / "b.out").write_text(head)
    both, alone = ask(tmp_path / "a.out", tmp_path / "b.out")
    assert [line["text"] for line in both["unread"]] == [odd.strip()]
    assert [line["text"] for line in alone["unread"]] == [head.strip()]


@pytest.mark.parametrize(("how", "kind"), [("SUCCEEDED", "no_failure"), ("FAILED", None)])
def test_worker_groups_that_succeeded_ended_the_run_well(tmp_path: Path, how: str, kind: str | None) -> None:
    (tmp_path / "a.out").write_text(
        "slurmstepd: error: execve(): hostname: No such file or directory\n"
        f"INFO:torch.distributed.elastic.agent.server.api:Local worker group finished ({how}). Waiting 300 seconds\n"
        "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'c4' has failed to shutdown\n"
    )
    assert ask(tmp_path / "a.out")[0]["unknown_kind"] == kind
