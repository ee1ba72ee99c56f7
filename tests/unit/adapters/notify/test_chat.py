"""Chats and pagers over Apprise, each held to a server that takes what the service documents and nothing else."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from made_records import AT
from servers import message_services

from sentinel.adapters.notify import chat as chats
from sentinel.adapters.notify.chat import Chat
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.markup import Markup, escaped
from sentinel.adapters.notify.wording import Wording
from sentinel.errors import Refused, Unavailable
from sentinel.model.records import Notice

URLS = {
    "slack": "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7F/",
    "discord": "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js",
    "mattermost": "mmosts://mm.example/3ccdd113474722377935511fc85d3dd4",
    "teams": "workflows://prod-161.westeurope.logic.azure.com:443/643e69f83c8944438d68119179a10a64/ABCDEFGHIJ/",
    "ntfy": "ntfys://ntfy.example/topic",
    "matrix": "matrixs://user:pass@matrix.example/!a:b?e2ee=no",
    "pagerduty": "pagerduty://12345678901234567890123456789012@abcdefghijklmnopqrstu",
    "opsgenie": "opsgenie://a-b-c-d-e/",
}
HOSTILE = (
    "_https://evil.example/u_ *bold* _it_ ~~s~~ `code` <@U1> <!channel> @everyone @here @all "
    "[x](https://evil.example/a) <https://evil.example|y> "
    "www.evil.example ![i](http://evil.example/i.png) ||s|| # head <b>html</b> &amp; mailto:eve@evil.example "
    "&commat;channel &commat;all &#64;here &#x40;here &lbrack;x&rbrack;"
)


def notice(text: str = "GPU 5 of n2 fell off the bus", **data: Any) -> Notice:
    given = {"severity": "warning", "operator_text": text, "owner_text": f"Yours: {text}", "stage": "handled", **data}
    return Notice("note1", "inc1", AT, f"job 8801: {text}"[:200], "a body", given)


@pytest.fixture
def threads() -> DeliveryThreads:
    return DeliveryThreads()


WORDING = Wording("operators")
Made = Callable[[str], tuple[Chat, message_services.Service]]


@pytest.fixture
def chat(threads: DeliveryThreads, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    running: list[message_services.Service] = []

    def make(name: str, wording: Wording = WORDING, deadline_s: float = 60.0) -> Any:
        service = message_services.Service(getattr(message_services, name))
        running.append(service)
        message_services.redirect_requests(service, monkeypatch)
        monkeypatch.setattr("apprise.plugins.opsgenie.OPSGENIE_API_LOOKUP", {"us": f"{service.url}/v2/alerts"})
        return Chat(URLS[name], wording, name=name, deadline_s=deadline_s, threads=threads), service

    yield make
    for service in running:
        service.stop()


def shown(service: message_services.Service) -> str:
    """Every text of the last message, as its service would show it to people."""

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from texts(item)

    (last,) = [request for request in service.got if request.body and "login" not in request.path][-1:]
    return "\n".join(texts(last.body))


@pytest.mark.parametrize("name", URLS)
async def test_message_is_as_the_service_documents_it(chat: Made, name: str) -> None:
    made, service = chat(name)
    await made.send(notice())
    assert service.broken == [] and "GPU 5 of n2 fell off the bus" in shown(service).replace("\\", "")


# What a service makes of text that nobody escaped for it.
LINKS = re.compile(r"(?:https?|mailto):|www\.(?!\])")
MENTIONS = re.compile(r"@(?:everyone|here|all|channel|U1)|<[!@#]")
REFERENCES = re.compile(r"&(?!amp;|lt;|gt;|quot;)[#\w]+;?")  # characters by name or number, which Markdown reads, too
MARKDOWN = re.compile(r"(?<!\\)[*_`~|\[\]<#]")


@pytest.mark.parametrize("name", URLS)
async def test_what_a_program_printed_forges_no_link_no_mention_and_no_markup(chat: Made, name: str) -> None:
    made, service = chat(name)
    await made.send(notice(HOSTILE))
    assert service.broken == []
    text = shown(service).replace("http://adaptivecards.io/schemas/adaptive-card.json", "")
    assert "evil" in text and not LINKS.search(text), text
    assert not MENTIONS.search(html.unescape(text)) and not REFERENCES.search(html.unescape(text)), text
    if name in ("discord", "mattermost"):
        assert not MARKDOWN.search(text), text
    if name == "teams":
        body = service.got[-1].body["attachments"][0]["content"]["body"]
        assert not re.search(r"(?<!\\)[*_`\[\]#]", "\n".join(block["text"] for block in body))
    if name == "slack":
        (attachment,) = service.got[-1].body["attachments"]
        assert service.got[-1].body["mrkdwn"] is False and "mrkdwn_in" not in attachment
        assert not re.search(r"<|&(?!amp;|lt;|gt;)", attachment["text"] + attachment["title"])


@pytest.mark.parametrize("before", ["", "_", "*", "~~", "1", "x", "(", "\u00e9", "\u200b", "||"])
@pytest.mark.parametrize(
    "link", ["https://evil.example", "HTTP://evil.example", "steam://x", "www.evil.example", "mailto:a"]
)
def test_no_character_before_an_address_saves_it(before: str, link: str) -> None:
    """Services look for one in the middle of a word, too; an underscore is a letter for Python alone."""
    for markup in Markup:
        text = escaped(before + link, markup)
        assert "://" not in text
        if before not in ("1", "x", "\u00e9"):  # within a word these are none anywhere
            assert "mailto:" not in text and "www.e" not in text


@pytest.mark.parametrize("markup", Markup)
def test_no_reference_to_a_character_is_left_and_other_ampersands_are(markup: Markup) -> None:
    for word in ("&commat;all", "&amp;commat;all", "&#64;all", "&#x40;all", "&commat", "&lt;!channel&gt;"):
        assert "&" not in escaped(word, markup)
    assert escaped("R&D: a && b &", markup) == "R＆D: a && b &"


@pytest.mark.parametrize("name", URLS)
async def test_long_text_is_cut_and_stays_one_message(chat: Made, name: str) -> None:
    made, service = chat(name)
    await made.send(notice("*_[" * 20_000))
    assert service.broken == [] and len([r for r in service.got if r.method != "GET" and "login" not in r.path]) <= 3
    assert not shown(service).rstrip("…").endswith("\\")


async def test_our_own_link_is_one(chat: Any) -> None:
    for name in ("slack", "discord", "teams"):
        made, service = chat(name, Wording("operators", link="https://sentinel.example/incidents/{incident}"))
        await made.send(notice("x*" * 3000))
        assert "https://sentinel.example/incidents/inc1" in shown(service).replace("\\", "")


async def test_pagers_one_alert_for_an_incident_from_its_begin_to_its_end(chat: Made) -> None:
    made, service = chat("pagerduty")
    await made.send(notice(severity="critical", stage="failed"))
    await made.send(notice(severity="info", stage="resolved", final=True))
    first, last = (request.body for request in service.got)
    assert first["dedup_key"] == last["dedup_key"] == "inc1"
    assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
    assert first["payload"]["severity"] == "critical"
    made, service = chat("opsgenie")
    await made.send(notice(stage="failed"))
    await made.send(notice(stage="resolved", final=True))
    assert service.broken == [] and [request.path for request in service.got] == ["/v2/alerts", "/v2/alerts/inc1/close"]
    assert service.got[0].body["alias"] == "inc1"


@pytest.mark.parametrize("status", [400, 401, 404, 301, 307])
@pytest.mark.parametrize("name", ["slack", "discord", "ntfy", "pagerduty"])
async def test_trying_again_cannot_help(chat: Made, name: str, status: int) -> None:
    made, service = chat(name)
    service.status, service.location = status, f"{service.url}/elsewhere" if status < 400 else ""
    with pytest.raises(Refused, match=f"answered {status}") as caught:
        await made.send(notice())
    assert len(service.got) == 1 and f"alerts.channels.{name}" in caught.value.fix
    assert not any(part in f"{caught.value}" for part in re.split("[/@]", URLS[name]) if len(part) > 15)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_trying_again_can_help(chat: Made, status: int) -> None:
    made, service = chat("slack")
    service.status = status
    with pytest.raises(Unavailable, match=f"answered {status}"):
        await made.send(notice())


async def test_service_that_does_not_answer_or_is_not_there(chat: Any) -> None:
    made, service = chat("ntfy", deadline_s=0.2)
    service.silent.clear()
    with pytest.raises(Unavailable):
        await made.send(notice())
    service.stop()
    with pytest.raises(Unavailable):
        await made.send(notice())


@pytest.mark.parametrize("url", ["nonsense", "http://", "slack://x", "xyzzy://a/b"])
async def test_address_that_is_none(threads: DeliveryThreads, url: str) -> None:
    made = Chat(url, Wording("operators"), name="ops", deadline_s=1.0, threads=threads)
    with pytest.raises(Refused, match="its address is none") as caught:
        await made.send(notice())
    assert url not in f"{caught.value}"


def test_apprise_is_not_loaded_before_it_is_needed() -> None:
    import subprocess
    import sys

    code = "import sys; import sentinel.daemon.wiring; print(sorted({'apprise', 'requests'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and chats.__doc__
