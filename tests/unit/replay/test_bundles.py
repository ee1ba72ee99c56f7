"""A bundle comes back as it was; one that is torn, newer, foreign or huge is refused with the sentence that helps."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from made_records import AT, ended, evidence, incident, plan, step, verdict

from sentinel.errors import FileError
from sentinel.model.corrections import Correction
from sentinel.model.recording import RecordedAttempt, RecordedIncident, Recording
from sentinel.model.records import Cause, Kind, Outcome, Result, Scope, Source, StepKind, Where
from sentinel.model.stored import StoredStep
from sentinel.replay import bundle
from sentinel.replay.anonymise import Pseudonyms
from sentinel.replay.bundle import lines_of, read_bundle, write_bundle

DRAIN = step(StepKind.DRAIN, node="gpu017")
XID = evidence(
    Kind.XID,
    node="gpu017",
    data={"xid": 79},
    text="gpu017.site.example.org kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1",
)
LINE = evidence(
    "x", source=Source.JOB_LOG, job=7, attempt=0, at_s=1.0,
    text='gpu[017-019]: File "/home/ada/run/train.py" by ada (ada@site.org) from 10.1.2.3: see /usr/lib/x.so, '
    "/opt/venv/lib/python3.11/site-packages/torch/nn.py, GPU-5f0c1f5e-1b2c-3d4e-5f60-112233445566",
)  # fmt: skip
RECORDING = Recording(
    evidence=(XID, LINE, ended(7, at_s=2.0)),
    incidents=(
        RecordedIncident(
            incident(id="i1", job=7, attempt=0, nodes=("gpu017",)),
            (XID.id, LINE.id),
            "ada",
            verdict(drain=("gpu017",)),
            plan(DRAIN, incident="i1"),
            (StoredStep("i1", DRAIN, AT, Outcome(DRAIN, Result.DONE, AT, "drained gpu017")),),
            (
                Correction(
                    AT, "grace", Cause.PCIE, Scope.LINK, "gpu_fallen_off_bus", "gpu", "gpu017: reseated by grace"
                ),
            ),
        ),
    ),
    attempts=(RecordedAttempt(7, 0, AT - timedelta(hours=1), ("gpu017", "gpu018"), "ada", "train", "pretrain-7b"),),
)


def written(path: Path, recording: Recording = RECORDING) -> Path:
    write_bundle(path, lines_of(recording), anonymised=False)
    return path


def text_of(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def test_a_bundle_comes_back_whole_and_is_its_owners_only(tmp_path: Path) -> None:
    path = written(tmp_path / "b")
    assert read_bundle(path) == RECORDING
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("b", "link"):
        with pytest.raises(FileError, match="already"):
            written(tmp_path / name)
    assert (tmp_path / "b").read_text() == "mine" and not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_a_torn_bundle_is_refused(tmp_path: Path, kept: float) -> None:
    path = written(tmp_path / "b")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(FileError, match=r"torn|not a bundle"):
        read_bundle(path)


def test_a_bundle_cut_between_two_lines_is_torn(tmp_path: Path) -> None:
    path = written(tmp_path / "b")
    lines = text_of(path).splitlines(keepends=True)
    for kept in (lines[:-1], [*lines[:-2], lines[-1]]):
        path.write_bytes(gzip.compress(b"".join(kept)))
        with pytest.raises(FileError, match="torn"):
            read_bundle(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a bundle"), (b"\x1f\x8b", "torn|not a bundle"), (b"hello", "not a bundle"),
        (gzip.compress(b""), "not a bundle"), (gzip.compress(b"[]"), "not a bundle"), (gzip.compress(b"{"), "not JSON"),
        (gzip.compress(b"[" * 200_000), "not JSON"),
        (gzip.compress(json.dumps({"format": "sentinel-bundle", "version": 2, "release": "9.0"}).encode()), "release '9.0'"),
    ],
    ids=["nothing", "half a head", "text", "no line", "a list", "no JSON", "deep", "newer"],
)  # fmt: skip
def test_what_is_no_bundle_of_ours_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(FileError, match=words):
        read_bundle(tmp_path / "b")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MOST_LINE_BYTES", 1 << 16)
    monkeypatch.setattr(bundle, "MOST_BYTES", 1 << 18)
    head = json.dumps({"format": "sentinel-bundle", "version": 1}).encode() + b"\n"
    for name, bomb in (("line", b"x" * (1 << 20)), ("lines", b"{}\n" * (1 << 18))):
        (tmp_path / name).write_bytes(gzip.compress(head + bomb))
        with pytest.raises(FileError, match="larger than a bundle"):
            read_bundle(tmp_path / name)


def test_more_records_or_a_higher_ratio_than_an_honest_one_has_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "b")
    read_bundle(path)
    monkeypatch.setattr(bundle, "RATIO_FROM_BYTES", 1 << 16)
    head = json.dumps({"format": "sentinel-bundle", "version": 1}).encode() + b"\n"
    (tmp_path / "ratio").write_bytes(gzip.compress(head + b"{}\n" * (1 << 16)))
    with pytest.raises(FileError, match="larger than a bundle"):
        read_bundle(tmp_path / "ratio")
    monkeypatch.setattr(bundle, "MOST_RECORDS", 2)
    with pytest.raises(FileError, match="larger than a bundle"):
        read_bundle(path)


@pytest.mark.parametrize(("job", "attempt"), [(7, -1), (0, 0), (-7, 0), (2**40, 0), (7, 2**40)])
def test_an_attempt_that_slurm_does_not_number_so_is_not_read(tmp_path: Path, job: int, attempt: int) -> None:
    path = written(tmp_path / "b")
    head, *lines, _ = text_of(path).splitlines()
    strange = {"attempt": {"job": job, "attempt": attempt, "started_at": "2026-03-01T12:00:00Z"}}
    end = {"records": len(lines) + 1}
    path.write_bytes(
        gzip.compress(b"\n".join([head, json.dumps(strange).encode(), *lines, json.dumps(end).encode(), b""]))
    )
    assert read_bundle(path).unreadable == 1


def test_no_record_names_an_attempt_that_takes_minutes_to_count_to(tmp_path: Path) -> None:
    far = 2**32
    named = (
        dataclasses.replace(LINE, where=Where(job=7, attempt=far)),
        RecordedIncident(incident(id="i2", job=7, attempt=far)),
        RecordedIncident(incident(id="i3", job=7), plan=plan(step(StepKind.HOLD, job=7, attempt=far), incident="i3")),
    )
    found = read_bundle(written(tmp_path / "x.bundle", Recording(named[:1], named[1:])))
    assert found == Recording(unreadable=3)


def test_a_record_that_is_not_understood_hides_no_other(tmp_path: Path) -> None:
    path = written(tmp_path / "b")
    head, *lines, _ = text_of(path).splitlines()
    strange = [b'{"evidence": {"id": 3}}', b'{"oracle": {}}', b"[]", b"{}", b'{"incident": {"incident": null}}']
    end = json.dumps({"records": len(lines) + len(strange)}).encode()
    path.write_bytes(gzip.compress(b"\n".join([head, *strange, *lines, end, b""])))
    found = read_bundle(path)
    assert found.unreadable == len(strange)
    assert dataclasses.replace(found, unreadable=0) == RECORDING


def test_names_are_replaced_everywhere_by_the_same(tmp_path: Path) -> None:
    names = Pseudonyms(RECORDING)
    path = tmp_path / "b"
    write_bundle(path, map(names.line, lines_of(RECORDING)), anonymised=True)
    text = text_of(path).decode()
    for secret in (
        "gpu017",
        "gpu018",
        "gpu[",
        "ada",
        "grace",
        "pretrain-7b",
        "site.org",
        "example.org",
        "10.1.2.3",
        "5f0c1f5e",
        "/home",
    ):
        assert secret not in text, secret
    for common in ("/usr/lib/x.so", "site-packages/torch/nn.py", "NVRM: Xid (PCI:0000:3b:00): 79, pid=1"):
        assert common in text, common
    found = read_bundle(path)
    (node,) = found.incidents[0].incident.nodes
    assert found.evidence[0].where.node == node == found.attempts[0].nodes[0] == found.incidents[0].plan.steps[0].node
    assert found.evidence[0].text.startswith(f"{node} kernel:") and found.incidents[0].verdict.drain == (node,)
    assert found.incidents[0].user == found.attempts[0].user
    assert names.kept == 1  # the line of the user's program


ODD_NODES = ("rack1n3", "Knoten-ä7", "gpu9.hpc.corp", "n1")
ODD_LINES = (
    "Error on rack[1-2]n[1,3-4] and n[1-4].hpc.corp, then login1.hpc.corp",
    "RACK1N3 and rack1n3-ib0 and rack1n3.cluster lost Knoten-ä7",
    "nas7:/export/geheim/run[1]/x PATH=/opt/secretlab/bin:/home/jürgen/bin",
    "s3://secret-bucket/jürgen/ckpt?key=1 and file:///home/jürgen/x and https://wandb.example/team-secret/run",
    "fe80::1%ib0 2001:db8::7 10.9.8.7:4711 and jürgen@corp and j.weiß@hpc.corp",
    "jürgen_run2 wrote geheim 7b-v2.pt, JÜRGEN did",
)


def test_odd_names_leave_nothing_behind() -> None:
    items = tuple(
        dataclasses.replace(
            RECORDING.evidence[0],
            id=f"e{number}",
            text=text,
            where=Where(node=ODD_NODES[number % 4], path="/home/jürgen/a"),
        )
        for number, text in enumerate(ODD_LINES)
    )
    attempts = tuple(
        dataclasses.replace(item, user="jürgen", name="geheim 7b", nodes=ODD_NODES) for item in RECORDING.attempts
    )
    odd = dataclasses.replace(RECORDING, evidence=items, attempts=attempts, incidents=())
    names = Pseudonyms(odd)
    text = json.dumps([names.line(line) for line in lines_of(odd)], ensure_ascii=False).lower()
    for secret in (
        "rack", "knoten", "hpc", "corp", "n[", "login1", "nas7", "geheim", "secret", "jürgen", "wandb", "fe80", "db8",
        "10.9.8", "weiß", "export", "7b",
    ):  # fmt: skip
        assert secret not in text, (secret, text)


def test_a_job_that_is_called_like_a_rule_keeps_the_records_words() -> None:
    """The names of rules and kinds are what a replay goes by."""
    items = tuple(dataclasses.replace(item, rule="python-bug", kind="nccl-net") for item in RECORDING.evidence)
    attempts = tuple(dataclasses.replace(item, user="python", name="nccl") for item in RECORDING.attempts)
    named = dataclasses.replace(RECORDING, evidence=items, attempts=attempts)
    found = [line["evidence"] for line in map(Pseudonyms(named).line, lines_of(named)) if "evidence" in line]
    assert {(item["rule"], item["kind"]) for item in found} == {("python-bug", "nccl-net")}


HOSTILE_TIMES = ("0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00", "2026-03-01T12:00:00")


@pytest.mark.parametrize("time", HOSTILE_TIMES)
def test_a_record_of_no_time_of_ours_is_not_read(tmp_path: Path, time: str) -> None:
    """A replay adds to times and takes from them: at the ends of the calendar it would stop with an error."""
    path = written(tmp_path / "b")
    head, *lines, end = text_of(path).decode().splitlines()
    strange = [re.sub(r"20\d\d-\d\d-\d\dT[^\"]*", time, line) for line in lines]
    path.write_bytes(gzip.compress("\n".join([head, *strange, end, ""]).encode()))
    found = read_bundle(path)
    assert found == Recording(unreadable=len(lines))


@pytest.mark.parametrize("time", HOSTILE_TIMES)
def test_an_attempt_that_ends_at_no_time_of_ours_is_not_read(tmp_path: Path, time: str) -> None:
    path = written(tmp_path / "b")
    lines = text_of(path).decode().splitlines()
    strange = [re.sub(r"\"ended_at\": ?[^,}]*", f'"ended_at": "{time}"', line) for line in lines]
    assert strange != lines
    path.write_bytes(gzip.compress("\n".join([*strange, ""]).encode()))
    found = read_bundle(path)
    assert found.unreadable == len(RECORDING.attempts) and found.attempts == ()


def test_a_user_who_is_called_as_a_word_of_ours_breaks_no_record(tmp_path: Path) -> None:
    named = dataclasses.replace(
        RECORDING,
        incidents=tuple(dataclasses.replace(item, user="gpu") for item in RECORDING.incidents),
        attempts=tuple(dataclasses.replace(item, user="gpu", name="drain") for item in RECORDING.attempts),
    )
    write_bundle(tmp_path / "b", map(Pseudonyms(named).line, lines_of(named)), anonymised=True)
    found = read_bundle(tmp_path / "b")
    assert found.unreadable == 0 and len(found.incidents) == 1
    assert found.incidents[0].user == found.attempts[0].user != "gpu" and found.attempts[0].name != "drain"


def test_no_form_of_a_name_takes_long(tmp_path: Path) -> None:
    """Lines are hostile: none may make the search run away."""
    names = Pseudonyms(RECORDING)
    for hostile in ("a." * 2000, "/a" * 2000, "0:" * 2000, "a@" * 2000, "gpu[" * 1000, "1." * 2000, "-" * 4000):
        shown = names.text(hostile)
        assert len(shown) <= 3 * len(hostile)
