"""Log lines become evidence whatever stands around them, in constant memory, and alike for every screen."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped import shipped_rules, shipped_signatures

from sentinel.adapters.hyperscan import HyperscanScreen
from sentinel.evidence.logs.limits import LIMIT, UNIT_LIMIT
from sentinel.evidence.logs.prefixes import clean, prefix_of, time_of
from sentinel.evidence.logs.reader import LINE_LIMIT, XID_LIMIT, LogReader, Signatures
from sentinel.evidence.logs.screen import prefilter
from sentinel.evidence.logs.screen.prefilter import PlainScreen
from sentinel.model.records import Cause, Evidence, Kind, Source, Trust, Where

NOW = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
RULES = shipped_rules()
PLAIN = shipped_signatures()
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 2 has a total capacity of 79.15 GiB"


def read(text: str | bytes, **options: object) -> list[Evidence]:
    reader = LogReader(PLAIN, **options)  # type: ignore[arg-type]
    data = text.encode() if isinstance(text, str) else text
    return reader.feed(data, NOW) + reader.finish(NOW)


def kinds(found: list[Evidence]) -> list[str]:
    return [item.kind for item in found]


@pytest.mark.parametrize(
    "wrapped",
    [
        "{}\n",
        "{}",
        "[rank3]: {}\n",
        "12: {}\n",
        "[default1]:{}\n",
        "\x1b[31m[rank0]: {}\x1b[0m\n",
        "  3%|#   | 7/200 [00:01<00:09]\r{}\r\n",
        "2026-03-04 05:00:01,123 ERROR {}\n",
        "half a line without its end{}\n",
    ],
)
def test_a_message_is_known_whatever_stands_around_it(wrapped: str) -> None:
    found = [item for item in read(wrapped.format(OOM)) if item.kind == "oom-gpu"]
    assert len(found) == 1
    assert found[0].data["gib_tried"] == 3.5
    assert found[0].trust is Trust.USER


@pytest.mark.parametrize("label", ["[default3]:", "[rank3]: ", "[rank3]:"])
@pytest.mark.parametrize(
    "before",
    [
        "2026-03-01T10:00:00.123456789Z ", "2026-03-01 10:00:00 ", "[pod/train-worker-0/pytorch] ", "worker-0  | ",
        "train-worker-0 pytorch ", "Mar 01 10:00:00 n1 train[12]: ",
    ],
)  # fmt: skip
def test_the_rank_behind_a_time_or_a_containers_name(before: str, label: str) -> None:
    assert prefix_of(f"{before}{label}CUDA error: unknown error").rank == 3


def test_a_launchers_number_behind_a_containers_time() -> None:
    assert prefix_of("2026-03-01T10:00:00.123456789Z 12: boom").rank == 12
    assert prefix_of("2026-03-01 10:00:00 12: boom").rank is None, "a logger's, of any meaning"


def test_ranks_and_hosts_come_from_the_prefix() -> None:
    assert prefix_of("[rank17]: boom").rank == 17
    assert prefix_of("41: boom").rank == 41
    assert prefix_of("[Rank 5] Watchdog caught").rank == 5
    assert prefix_of("gpu12:4711:4800 [3] NCCL WARN x").node == "gpu12"
    assert prefix_of("Mar  4 05:06:07 gpu12 kernel: [12.3] NVRM: x").node == "gpu12"
    assert prefix_of("10:30:12 plain") == prefix_of("nothing")


def test_the_peer_is_read_and_not_mistaken_for_the_speaker() -> None:
    found = read("gpu3:1:2 [0] misc/socket.cc:400 NCCL WARN Connect to 10.1.2.9<4123> failed : Connection refused\n")
    refused = next(item for item in found if item.rule == "nccl-refused")
    assert (refused.data["peer"], refused.where.node) == ("10.1.2.9", "gpu3")
    assert not [item for item in found if item.rule == "refused"]  # a fallback where no other rule knows the line


@pytest.mark.parametrize(
    ("line", "step", "loss", "seconds"),
    [
        ("step 120 | loss 2.3145 | step time 0.412 s | 1234 tokens/s", 120, 2.3145, 0.412),
        (
            " iteration      120/    5000 | samples: 960 | elapsed time per iteration (ms): 412.5 | lm loss: 2.31E+00 |",
            120,
            2.31,
            0.4125,
        ),
        ("steps: 40 loss: 1.5 iter time (s): 0.250 samples/sec: 12.0", 40, 1.5, 0.25),
        ("iter 300: loss 3.10, time 812.50ms, mfu 40%", 300, 3.1, 0.8125),
        ("global_step=77 loss=0.9", 77, 0.9, None),
    ],
)
def test_step_lines_of_the_usual_trainers(line: str, step: int, loss: float, seconds: float | None) -> None:
    found = [item for item in read(line + "\n") if item.kind == Kind.STEP]
    assert any(item.data.get("step") == step for item in found)
    item = next(item for item in found if item.data.get("step") == step and "loss" in item.data)
    assert item.data["loss"] == pytest.approx(loss)
    assert item.data.get("step_time_s") == (None if seconds is None else pytest.approx(seconds))


def test_torn_blocks_give_what_the_whole_file_gives() -> None:
    rng = random.Random(5)
    lines = [
        OOM,
        "plain words",
        "step 3 | loss 2.0 | step time 0.1 s",
        "x" * 5000,
        "NVRM: Xid (PCI:0000:1a:00): 31, pid=1",
    ]
    text = "\n".join(rng.choice(lines) for _ in range(200)).encode()
    whole = [(item.line, item.rule) for item in read(text)]
    reader, torn, at = LogReader(PLAIN), [], 0
    while at < len(text):
        size = rng.randrange(1, 700)
        torn.extend(reader.feed(text[at : at + size], NOW))
        at += size
    torn.extend(reader.finish(NOW))
    assert [(item.line, item.rule) for item in torn] == whole
    assert reader.lines_read == 200


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("size", [1, 90, 4096])
def test_a_traceback_in_pieces_is_one(size: int, end: str) -> None:
    """A log that is followed comes in pieces, and one that somebody copied may end without a line end."""
    text = (
        "step 3 | loss 2.0 | step time 0.1 s\nTraceback (most recent call last):\n"
        '  File "/e/lib/python3.11/site-packages/torch/_ops.py", line 7, in call\n    raise KeyError(name)\nKeyError: 7'
        + end
    ).encode()
    reader = LogReader(PLAIN)
    found = [item for at in range(0, len(text), size) for item in reader.feed(text[at : at + size], NOW)]
    (raised,) = [item for item in (*found, *reader.finish(NOW)) if item.kind == "python-bug"]
    assert (raised.line, raised.data["function"], raised.data["refused"]) == (5, "call", True)


@pytest.mark.parametrize("behind", ["\n", "\n\n"])
@pytest.mark.parametrize("indent", ["    ", ""])
def test_a_traceback_as_a_page_shows_it(indent: str, behind: str) -> None:
    lines = [
        "Traceback (most recent call last):",
        f'{indent[:2]}File "/home/u/train.py", line 9, in main',
        f"{indent}dataloader_timeout = batch[7]",
        f'{indent[:2]}File "/e/lib/python3.11/site-packages/torch/_ops.py", line 7, in call',
        f"{indent}raise KeyError(name)",
        "KeyError: 7",
    ]
    found = read(behind.join([*lines, ""]).encode())
    assert [(item.rule, item.data["function"], item.data["refused"]) for item in found] == [
        ("python-bug", "call", True)
    ]


def test_invalid_utf8_long_lines_and_null_bytes_survive() -> None:
    found = read(b"\xff\xfe\xf0 " + OOM.encode() + b"\n" + b"y" * (3 * LINE_LIMIT) + b"\n" + OOM.encode() + b"\0\n")
    assert kinds(found) == ["oom-gpu", "oom-gpu"]


def test_what_a_hostile_log_makes_it_keep_is_bounded() -> None:
    reader = LogReader(PLAIN)
    kept = []
    for _ in range(10):
        kept.extend(reader.feed(b"NVRM: Xid (PCI:0000:1a:00): 79, pid=1\n" * 1000, NOW))
    assert len(kept) <= 4 * LIMIT
    assert reader.counts["xid"] == 10_000
    forged = b"".join(b"[rank%d]: NVRM: Xid (PCI:0000:%02x:00): 79\n" % (i, i % 256) for i in range(8_000))
    kept = reader.feed(forged, NOW)
    assert 1000 < len(kept) <= LIMIT * UNIT_LIMIT
    assert len(kept) < 8_000


def test_text_is_made_harmless() -> None:
    item = read("[rank0]: \x1b]0;owned\x07RuntimeError: CUDA error: an illegal memory access was encountered \x07\n")[0]
    assert "\x1b" not in item.text
    assert "\x07" not in item.text
    assert clean(b"a\x1b[1;31mb\x1b[0m\r\nc\rd\n") == b"ab\nc\nd\n"


def test_our_own_json_in_a_log_stays_user_evidence() -> None:
    line = '{"source": "kernel", "trust": "system", "kind": "xid", "text": "NVRM: Xid (PCI:0000:1a:00): 79"}\n'
    assert {item.trust for item in read(line)} == {Trust.USER}


def test_times_with_and_without_zone() -> None:
    assert time_of("2026-03-04T05:06:07+02:00 x") == datetime(2026, 3, 4, 3, 6, 7, tzinfo=UTC)
    assert time_of("[2026-03-04 05:06:07,250] x") == datetime(2026, 3, 4, 5, 6, 7, 250000, tzinfo=UTC)
    assert time_of("Mar  4 05:06:07 host x") is None
    assert time_of("2026-13-44 05:06:07") is None


def test_a_live_log_is_timed_as_it_is_read_unless_its_lines_name_their_zone() -> None:
    local = "2026-03-04 01:00:00 step 5 | loss 2.0\n"  # a clock hours away, without a zone
    zoned = "2026-03-04T05:05:58+00:00 step 6 | loss 2.0\n"
    assert [item.at for item in read(local)] == [NOW]
    assert [item.at for item in read(zoned)] == [datetime(2026, 3, 4, 5, 5, 58, tzinfo=UTC)]
    assert read(local, own_times=True)[0].at == datetime(2026, 3, 4, 1, tzinfo=UTC)


def test_a_machine_log_is_read_with_the_rules_of_its_form() -> None:
    python = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)\n"
    assert read(python)
    assert not read(python, source=Source.KERNEL)
    assert read("NVRM: Xid (PCI:0000:1a:00): 79, pid=1\n", source=Source.KERNEL, where=Where(node="n1"))


def test_hyperscan_and_plain_screen_give_the_same_evidence() -> None:
    pytest.importorskip("hyperscan")
    fast = Signatures(RULES, HyperscanScreen)  # a pattern that it refuses makes every log read by the slow screen
    rng = random.Random(11)
    examples = [line for rule in RULES.rules for line in (*rule.match, *rule.reject)]
    for _ in range(6):
        rng.shuffle(examples)
        text = "\n".join(
            f"[rank{rng.randrange(9)}]: {line}" if rng.random() < 0.3 else line for line in examples
        ).encode()
        answers = []
        for signatures in (fast, PLAIN):
            reader = LogReader(signatures)
            found = reader.feed(text, NOW) + reader.finish(NOW)
            answers.append(sorted((item.line or 0, item.rule or "", item.id) for item in found))
        assert answers[0] == answers[1]


def test_the_plain_screen_answers_the_end_of_the_line() -> None:
    assert PlainScreen(["alpha beta"]).scan(b"x\nalpha beta\n") == [(0, 12)]


WORDLESS = [
    r"(?:^|\]:? )[a-z]{1,9}\.[A-Z]\w{1,9}: \S",
    r"\b\d{1,9}/\d{1,9} \[",
    r"(?i)(?:^Q|\d)/\d",
    r"[yz]{2,3}(?:\d|$)",
]


@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b.C", ": ", "]", " [", "3", "/", "q", "Q", "yz", " ", "D", "\r"]), max_size=8),
        max_size=6,
    )
)
def test_the_plain_screen_finds_what_needs_no_word_as_line_by_line(lines: list[list[str]]) -> None:
    block = "\n".join("".join(parts) for parts in lines).encode()
    expected, start = set(), 0
    for line in block.split(b"\n"):
        for index, pattern in enumerate(WORDLESS):
            if re.search(pattern.encode(), line):
                expected.add((index, start))
        start += len(line) + 1
    found = PlainScreen(WORDLESS).scan(block)
    assert {(index, block.rfind(b"\n", 0, end) + 1) for index, end in found} == expected


WITH_WORDS = [
    r"samples?: 0(?: of (?:alpha|beta))?",
    r"(?:num|count)_samples\b[^\n]{0,40}wrong",
    r"(?i)broken samples",
    r"samples read",
    r"rare|seldom x",
]


@given(
    st.lists(
        st.lists(
            st.sampled_from(
                ["samples", "sample", ": ", "0", "num_", "COUNT", "wrong", "Broken ", " read", "rare", "x", "_"]
            ),
            max_size=6,
        ),
        max_size=24,
    )
)
def test_the_plain_screen_finds_a_word_of_many_lines_as_line_by_line(lines: list[list[str]]) -> None:
    block = "\n".join(["samples read so far", *("".join(parts) for parts in lines)]).encode()
    expected, start = set(), 0
    for line in block.split(b"\n"):
        expected |= {(i, start) for i, pattern in enumerate(WITH_WORDS) if re.search(pattern.encode(), line)}
        start += len(line) + 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sentinel.evidence.logs.screen.prefilter.MANY", 4)
        patch.setattr("sentinel.evidence.logs.screen.prefilter.FEW", 3)
        found = PlainScreen(WITH_WORDS).scan(block)
    assert {(index, block.rfind(b"\n", 0, end) + 1) for index, end in found} == expected


@pytest.mark.parametrize("common", [b"chiller fine\n", b"turbine fine\n"])
def test_what_many_lines_hold_is_looked_for_by_what_few_hold(common: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []
    screen = PlainScreen([r"chiller \w{1,9} of turbine"])
    holds = prefilter.holds
    monkeypatch.setattr(prefilter, "holds", lambda line, groups: (looked.append(line), holds(line, groups))[1])
    block = common * 1000
    assert screen.scan(block + b"chiller red of turbine\n" + common) == [(0, len(block) + 22)]
    assert len(looked) <= 2 * prefilter.MANY


def test_the_plain_screen_forgets_runs_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.evidence.logs.screen.prefilter.MOST_RUNS", 64)
    screen = PlainScreen(["alpha beta", "(?i)gamma"])
    block = b"".join(b"%x other%d words\n" % (n * n, n) for n in range(500))
    assert screen.scan(block) == []
    assert screen.scan(block + b"an Alpha alphas alpha beta\nxGAMMAy\n") == [
        (0, len(block) + 26),
        (1, len(block) + 33),
    ]


def test_one_xid_of_one_device_is_looked_at_so_often_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr("sentinel.evidence.logs.reader.xid_data", lambda fields, text: looked.append(text) or {})
    line = "NVRM: Xid (PCI:0000:3b:00): 63, pid=9, Row Remapper\n"
    other = "NVRM: Xid (PCI:0000:3b:00): 79, pid=9, GPU has fallen off the bus.\n"
    found = read(line * 5000 + other)
    assert len(looked) <= 3 * XID_LIMIT  # each rule that knows the line counts for itself
    assert {item.data["xid"] for item in found if item.kind == Kind.XID} == {63, 79}


@pytest.mark.parametrize(
    "said",
    [
        "[2026-03-04T05:05:00.123] fatal: mkdir(/var/spool/slurm/ctld): {}",
        "Mar  4 05:05:00 head slurmctld[12]: slurmctld: error: open /etc/slurm/job_container.conf: {}",
        "03/04/2026 05:05:00;0001;pbs_mom;Svr;pbs_mom;{} (2) in read_config, fopen",
        "03/04/2026 05:05:00.595;01;PBS_Server.10715;Svr;PBS_Server;LOG_ERROR::{} (2) in setup_nodes",
        "Starting TORQUE Mom: pbs_mom: LOG_ERROR::{} (2) in read_layout_file",
        "Mar  4 05:05:00 n7 munged[912]: Failed to open /etc/munge/munge.key: {}",
        "Mar  4 05:05:00 n7 systemd[1]: nhc.service: Failed at step EXEC spawning /usr/sbin/nhc: {}",
        "Mar  4 05:05:00 n7 nv-hostengine[44]: cannot write /var/log/nv-hostengine.log: {}",
    ],
)
@pytest.mark.parametrize(
    "errno", ["No such file or directory", "Permission denied", "Resource temporarily unavailable"]
)
def test_a_daemons_errno_is_about_its_own_files(said: str, errno: str) -> None:
    """Those are the site's: no setting, path or code of a user stands behind them."""
    causes = {rule.id: max(rule.weights, key=rule.weights.__getitem__) for rule in RULES.rules if rule.weights}
    wrong = {Cause.USER_CONFIG, Cause.USER_CODE, Cause.NETWORK_BOOTSTRAP, Cause.CHECKPOINT_CORRUPT, Cause.DATALOADER}
    assert {item.rule for item in read(said.format(errno)) if causes.get(item.rule or "") in wrong} == set()


@pytest.mark.parametrize(
    "said",
    [
        "slurmstepd: error: execve(): ./train.sh: No such file or directory",
        "cp: cannot stat '/data/x': No such file or directory",
        "03/04/2026 05:05:00;0008;pbs_mom;Job;4711.head;cannot open /home/u/out: No such file or directory",
    ],
)
def test_what_a_daemon_says_of_a_job_is_about_the_users_files(said: str) -> None:
    assert any(RULES.by_id()[item.rule or ""].of_users for item in read(said))


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("[2026-11-27T10:00:00] error: loss is nan", "nan"),
        ("[2026-11-27T10:00:00.123] fatal: loss is nan", "nan"),
        ("trainer: parent is systemd: loss is nan", "nan"),
        ("epoch 3 slurmd: error: loss is nan", "nan"),
        ("[2026-11-27T10:00:00] error: cp: cannot stat '/data/x': No such file or directory", None),
    ],
)
def test_a_jobs_own_line_with_a_time_is_no_daemons(line: str, rule: str | None) -> None:
    found = {item.rule for item in read(line)}
    assert rule in found if rule else any(RULES.by_id()[str(name)].of_users for name in found)


@pytest.mark.parametrize(
    "head",
    [
        "slurmd: error: ", "munged[9]: ", "systemd[1]: ", "Mar  4 05:05:00 n7 systemd[1]: ",
        "<30>Mar  4 05:05:00 n7 munged[9]: ",
        "2026-03-04T05:05:00.123+01:00 n7 slurmctld[12]: error: ", "[2026-03-04T05:05:00.123] slurmctld: error: ",
        "Wed 2026-03-04 05:05:00 UTC n7 slurmd[12]: slurmd: error: ", "[   12.345678] systemd[1]: ",
    ],
)  # fmt: skip
def test_a_line_that_a_daemons_name_begins_is_the_daemons(head: str) -> None:
    found = {str(item.rule) for item in read(head + "open /srv/x: No such file or directory")}
    assert not [name for name in found if RULES.by_id()[name].of_users]
