"""The hook's parts that need no process: what proves a fault, what a job file says, how an event is addressed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel import hook

PROOF = {"kind": "diag_failed", "text": "GPU 3: row remap failed", "data": {"convicts": True}}


@pytest.mark.parametrize(
    ("item", "proof"),
    [
        (PROOF, True),
        (PROOF | {"kind": "gpu_lost"}, True),
        (PROOF | {"kind": "unreadable"}, False),
        (PROOF | {"data": {"convicts": False}}, False),
        (PROOF | {"data": {"convicts": "yes"}}, False),
        (PROOF | {"data": None}, False),
        ({}, False),
    ],
)
def test_proof_is_what_the_diagnostic_calls_so(item: dict[str, Any], proof: bool) -> None:
    assert hook.convicts(item) is proof


@pytest.mark.parametrize(
    ("given", "engine"),
    [
        ("", ("127.0.0.1:5555", "")),
        ("gpu1:5555", ("gpu1:5555", "")),
        ("unix:///run/dcgm.sock", ("", "/run/dcgm.sock")),
        ("/run/dcgm.sock", ("", "/run/dcgm.sock")),
    ],
)
def test_an_engine_is_reached_by_tcp_or_by_a_unix_socket(given: str, engine: tuple[str, str]) -> None:
    assert hook.engine_of({"SENTINEL_DCGM_HOST": given}) == engine


def test_the_sites_rules_are_the_agents_unless_they_are_named(tmp_path: Path) -> None:
    environment = {"SENTINEL_RUN_DIR": str(tmp_path)}
    assert hook.rules_of(environment) == ""
    (tmp_path / "rules_dir").write_text("/shared/our rules\n")
    assert hook.rules_of(environment) == "/shared/our rules"
    assert hook.rules_of(environment | {"SENTINEL_RULES": "/etc/ours"}) == "/etc/ours"


def test_a_job_file_for_values_that_need_escaping(tmp_path: Path) -> None:
    environment = {
        "SENTINEL_RUN_DIR": str(tmp_path),
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_UID": "1004",
        "SLURM_JOB_RESTART_COUNT": "2",
        "SLURM_JOB_STDOUT": '/data/"odd"\\name\n.out',
        "SLURM_NODELIST": "n[3-4]",
    }
    assert hook.main(["job_file"], environment) == 0
    made = json.loads((tmp_path / "jobs" / "77.json").read_text())
    assert made["stdout"] == environment["SLURM_JOB_STDOUT"]
    assert (made["job"], made["attempt"], made["nodelist"]) == ("77", "2", "n[3-4]")
    assert [entry.name for entry in (tmp_path / "jobs").iterdir()] == ["77.json"]


@pytest.mark.parametrize("job", ["", "../../etc/x", "12x"])
def test_a_job_id_that_is_no_number_writes_nothing(tmp_path: Path, job: str) -> None:
    assert hook.main(["job_file"], {"SENTINEL_RUN_DIR": str(tmp_path), "SLURM_JOB_ID": job}) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://ctl:9478", ("ctl", 9478)),
        ("http://ctl:1/x", ("ctl", 1)),
        ("ctl", ("ctl", 9478)),
        ("http://[::1]:5", ("::1", 5)),
    ],
)
def test_addresses(url: str, address: tuple[str, int]) -> None:
    assert hook.address_of(url) == address


def test_trouble_of_our_own_never_refuses_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert hook.main(["job_file"], {"SENTINEL_RUN_DIR": str(file), "SLURM_JOB_ID": "1"}) == 0
    assert hook.main(["prolog"], {"SENTINEL_PROLOG_S": "soon"}) == 0
    assert hook.main(["nonsense"], {}) == 0
    assert hook.main(["event", "job_ended"], {"SENTINEL_URL": "http://x:notaport"}) == 0
    assert capsys.readouterr().err.count("\n") >= 4


def test_it_starts_light() -> None:
    """Only the standard library, and of it nothing that costs a prolog time."""
    source = Path(hook.__file__).read_text()
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"sentinel"}
    assert "from sentinel.protocol import" in source
    assert source.count("\nfrom sentinel") == 1
    assert not imported & {"asyncio", "http", "urllib", "ssl", "logging", "dataclasses"}


def test_an_event_goes_to_the_daemon_that_is_active(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    answers: dict[str, object] = {"http://a:1": OSError("no route"), "http://b:2": 421, "http://c:3": 200}

    def post(url: str, _ca: str, _path: str, _message: object, _deadline_s: float) -> hook.Answer:
        asked.append(url)
        answer = answers[url]
        if isinstance(answer, OSError):
            raise answer
        assert isinstance(answer, int)
        return answer, "", b""

    monkeypatch.setattr(hook, "signed", lambda *_: ({}, b""))
    monkeypatch.setattr(hook, "post", post)
    urls = {"SENTINEL_URL": "http://a:1, http://b:2,http://c:3"}
    assert hook.main(["event", "job_ended"], urls) == 0
    assert asked == ["http://a:1", "http://b:2", "http://c:3"] and capsys.readouterr().err == ""
    answers["http://c:3"] = 421
    assert hook.main(["event", "job_ended"], urls | {"SENTINEL_EVENT_S": "0.1"}) == 0
    assert "job_ended not told: a:1: no route" in capsys.readouterr().err


@pytest.mark.parametrize("status", [403, 404, 503])
def test_who_else_answers_at_an_address_keeps_no_event(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    """A daemon takes an event that comes twice once, so that the next may be asked whatever the answer was."""
    answers = {"http://a:1": status, "http://b:2": 200}
    monkeypatch.setattr(hook, "signed", lambda *_: ({}, b""))
    monkeypatch.setattr(hook, "post", lambda url, *_: (answers[url], "", b""))
    urls = {"SENTINEL_URL": "http://a:1,http://b:2"}
    assert hook.main(["event", "job_ended"], urls) == 0 and capsys.readouterr().err == ""
    answers["http://b:2"] = 421
    assert hook.main(["event", "job_ended"], urls) == 0
    assert f"answered {status} to job_ended" in capsys.readouterr().err


UNMUNGE = """#!/bin/sh
read credential
uid=${credential%%:*}
printf 'UID:              somebody (x) (%s)\\n\\n%s' "$uid" "${credential#*:}"
"""


@pytest.fixture
def munge_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that say ``UID:PAYLOAD``."""
    for name, text in {"munge": "#!/bin/sh\necho mine\n", "unmunge": UNMUNGE}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("signer", "said", "wrong"),
    [
        ("4711", "{}", ""),
        (str(os.getuid()), "{}", ""),
        ("4712", "{}", "its answer comes from uid 4712"),
        ("4711", '{"other": 1}', "its answer is not signed"),
        ("", "{}", "its answer is not signed"),
    ],
)
@pytest.mark.usefixtures("munge_commands")
def test_an_answer_counts_when_the_daemon_signed_it(signer: str, said: str, wrong: str) -> None:
    """Where a daemon is away, any user of its host may listen at its port and answer 200: the event would be lost."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(30)
            connection.recv(65536)
            credential = f"{signer}:{hook.digest_of('mine', b'{}').decode()}" if signer else ""
            head = f"HTTP/1.1 200 OK\r\n{hook.HEADER}: {credential}\r\nContent-Length: {len(said)}\r\n\r\n{said}"
            connection.sendall(head.encode())

    thread = threading.Thread(target=serve)
    thread.start()
    asked = {"SENTINEL_URL": f"http://127.0.0.1:{listener.getsockname()[1]}", "SENTINEL_DAEMON_USER": "4711"}
    with listener, pytest.raises(OSError, match=wrong) if wrong else contextlib.nullcontext():
        assert hook.post_to_active(asked, "/v1/event", b"{}", time.monotonic() + 20) == 200
    thread.join(30)


class Trickle:
    """A connection on which a byte comes before each silence is over; its clock is the hook's."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __enter__(self) -> Trickle:
        return self

    def __exit__(self, *_: object) -> None: ...

    def settimeout(self, _seconds: float) -> None: ...

    def sendall(self, _sent: bytes) -> None: ...

    def recv(self, _most: int) -> bytes:
        self.now_s += 0.04
        return b"x"


def test_an_answer_that_trickles_holds_no_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a daemon is away, any user of its host may answer at its port, byte for byte: Slurm waits for its hooks."""
    trickle = Trickle()
    monkeypatch.setattr(hook, "connected", lambda *_: trickle)
    monkeypatch.setattr(hook, "time", SimpleNamespace(monotonic=lambda: trickle.now_s))
    with pytest.raises(OSError, match="not whole in time"):
        hook.post("http://a:1", "", "/v1/event", ({}, b"{}"), 3.0)
    assert trickle.now_s < 4.0


@pytest.mark.parametrize("status", ["200", "²00"])
@pytest.mark.parametrize("unmunge", ["printf 'UID: x (4711)\\n\\n\\377'", "exec sleep 9"])
@pytest.mark.usefixtures("munge_commands")
def test_whatever_a_stranger_answers_the_next_daemon_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: str, unmunge: str
) -> None:
    """A status that is no number, a credential over bytes that are no text, or one so late that no time is left for it."""
    (tmp_path / "unmunge").write_text(f"#!/bin/sh\n{unmunge}\n")
    asked: list[str] = []
    real = hook.post

    def post(url: str, *arguments: Any) -> hook.Answer:
        asked.append(url)
        if url == "http://b:2":
            return 421, "", b""
        trickle = Trickle()
        parts = iter([f"HTTP/1.1 {status} OK\r\n{hook.HEADER}: x\r\n\r\n".encode("latin-1"), b""])
        monkeypatch.setattr(trickle, "recv", lambda _most: next(parts))
        with monkeypatch.context() as patched:
            patched.setattr(hook, "connected", lambda *_: trickle)
            return real(url, *arguments)

    monkeypatch.setattr(hook, "post", post)
    urls = {"SENTINEL_URL": "http://a:1,http://b:2", "SENTINEL_DAEMON_USER": "4711"}
    with pytest.raises(OSError, match="a:1"):
        hook.post_to_active(urls, "/v1/event", b"{}", time.monotonic() + 1.0)
    assert asked == ["http://a:1", "http://b:2"]
