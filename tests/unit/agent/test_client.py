"""Requests are signed, answers are checked before anybody acts on them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sentinel.adapters.client import DaemonClient
from sentinel.errors import Denied, ProtocolError, Refused, Unavailable, UserError
from sentinel.protocol import EVIDENCE, digest_of


class Wire(DaemonClient):
    """What would go over the network is answered by ``reply``."""

    def __init__(self, credentials: Any, reply: Any, **rest: Any) -> None:
        super().__init__("http://daemon:1", credentials, **rest)
        self.reply = reply
        self.sent: list[tuple[str, bytes, str]] = []

    def _exchange(self, path: str, content: bytes, credential: str, deadline_s: float) -> tuple[int, str, bytes]:
        self.sent.append((path, content, credential))
        answer: tuple[int, str, bytes] = self.reply(credential)
        return answer


def honest(signer: Any, status: int = 200, content: bytes = b'{"acknowledged":3}') -> Any:
    return lambda credential: (status, signer.encode(digest_of(credential, content)), content)


def test_a_request_is_signed_for_its_path_and_body(credentials: Any) -> None:
    wire = Wire(credentials(), honest(credentials()))
    assert wire.post(EVIDENCE, {"node": "n1"}) == {"acknowledged": 3}
    path, content, credential = wire.sent[0]
    assert credentials().decode(credential).payload == digest_of(path, content)
    assert json.loads(content) == {"node": "n1"}


def test_an_answer_of_another_user_is_not_the_daemons(credentials: Any) -> None:
    with pytest.raises(Denied, match="uid 4242"):
        Wire(credentials(), honest(credentials(4242))).post(EVIDENCE, {})
    assert Wire(credentials(), honest(credentials(4242)), trusted_uids=[4242]).post(EVIDENCE, {})


def test_an_answer_signed_for_another_request_is_refused(credentials: Any) -> None:
    def reply(_credential: str) -> tuple[int, str, bytes]:
        return 200, credentials().encode(digest_of("another", b"{}")), b"{}"

    with pytest.raises(Denied):
        Wire(credentials(), reply).post(EVIDENCE, {})


def test_an_answer_changed_on_its_way_is_refused(credentials: Any) -> None:
    def reply(credential: str) -> tuple[int, str, bytes]:
        return 200, credentials().encode(digest_of(credential, b'{"orders":[]}')), b'{"orders":[{"id":"x"}]}'

    with pytest.raises(Denied):
        Wire(credentials(), reply).post(EVIDENCE, {})


def test_an_answer_without_signature_is_refused(credentials: Any) -> None:
    with pytest.raises(Denied):
        Wire(credentials(), lambda _: (200, "", b"{}")).post(EVIDENCE, {})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Denied),
        (403, Denied),
        (409, Refused),
        (422, UserError),
        (400, ProtocolError),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
def test_error_statuses_are_errors_of_ours(credentials: Any, status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="because"):
        Wire(credentials(), lambda _: (status, "", b'{"error": "because"}')).post(EVIDENCE, {})


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"null", b"\xff"])
def test_an_answer_that_is_no_object_is_refused(credentials: Any, content: bytes) -> None:
    with pytest.raises(ProtocolError):
        Wire(credentials(), honest(credentials(), content=content)).post(EVIDENCE, {})


@pytest.mark.parametrize("url", ["", "daemon", "https://", "ftp://x"])
def test_an_address_that_is_none_is_refused(credentials: Any, url: str) -> None:
    with pytest.raises(UserError):
        DaemonClient(url, credentials())


@pytest.mark.parametrize("signer", [None, 4242, 0])
def test_a_refusal_is_the_daemons_own_only_with_its_signature(credentials: Any, signer: int | None) -> None:
    content = b'{"error": "too much"}'

    def reply(credential: str) -> tuple[int, str, bytes]:
        signed = "" if signer is None else credentials(signer).encode(digest_of(credential, content))
        return 413, signed, content

    with pytest.raises(ProtocolError, match="too much") as caught:
        Wire(credentials(), reply).post(EVIDENCE, {})
    assert caught.value.signed is (signer == 0)
