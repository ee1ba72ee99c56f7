"""The page in a real Chromium, with 2,048 nodes: axe finds nothing, it fits a phone, the keyboard gets on."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_memory.page import ServedPage, serving_page
from in_memory.page_fleet import HOSTILE, furnish
from in_memory.world import World, opened

try:
    from axe_playwright_python.base import AXE_FILE_PATH
    from playwright.async_api import Browser, Page, async_playwright
except ImportError:  # the extra "browser"
    AXE_FILE_PATH = None

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    AXE_FILE_PATH is None or CHROMIUM is None,
    reason="optional: needs chromium (Debian's package), and playwright and axe: pip install slurm-sentinel[browser]",
)
NODES = 2048
MOST_BYTES = 500_000
RULES = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']"
LOOKS = [(360, "dark"), (1440, "light")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as store:
        yield World(store)


@pytest.fixture
async def served(world: World) -> AsyncIterator[tuple[ServedPage, dict[str, str]]]:
    async with serving_page(world) as page:
        incident = await furnish(page, NODES)
        names = ("", "nodes", "nodes/n0012", "incidents", f"incidents/{incident}", "jobs", "jobs/9001", "history", "plan",
                 "report", "nodes/no-such")  # fmt: skip
        yield page, {name: f"{page.url}/{name}" for name in names}


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=300_000)
        yield made
        await made.close()


async def opened_page(browser: Browser, width: int, scheme: Any) -> Page:
    context = await browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, extra_http_headers={"X-User": "root"}
    )
    context.set_default_timeout(300_000)  # ms; a busy machine
    return await context.new_page()


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
async def test_every_page_is_accessible_and_fits(
    served: tuple[ServedPage, dict[str, str]], browser: Browser, width: int, scheme: str
) -> None:
    _, urls = served
    page = await opened_page(browser, width, scheme)
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if "Content Security" in message.text else None)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    axe = Path(AXE_FILE_PATH).read_text()
    for name, url in urls.items():
        answer = await page.goto(url)
        assert answer is not None and answer.status == (404 if name.endswith("no-such") else 200), name
        assert len(await answer.body()) < MOST_BYTES, name
        wider = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{name} is {wider} pixels wider than the window"
        await page.evaluate(axe + ";0")
        found = await page.evaluate(f"axe.run(document, {{runOnly: {RULES}}})")
        assert len(found["passes"]) > 20, name
        assert [(fault["id"], fault["nodes"][0]["html"]) for fault in found["violations"]] == [], name
    assert refused == []
    here = urls[""]
    assert [url for url in asked if not url.startswith((here, "data:"))] == []


async def test_keyboard_and_tree_for_screen_readers(
    served: tuple[ServedPage, dict[str, str]], browser: Browser
) -> None:
    _, urls = served
    page = await opened_page(browser, 1440, "light")
    await page.goto(urls[""])
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.closest('main') !== null")
    stops = await page.evaluate(
        "[...document.querySelectorAll('main a, main button')].filter(a => a.tabIndex == 0).length"
    )
    cells = await page.evaluate("document.querySelectorAll('.cells a').length")
    assert cells == NODES and stops < 200, "healthy nodes are no stops of the keyboard: their switch's list has them"
    unnamed = await page.evaluate("[...document.querySelectorAll('.cells a')].filter(a => !a.title).length")
    assert unnamed == 0


async def test_what_a_user_wrote_does_nothing_in_a_browser(
    served: tuple[ServedPage, dict[str, str]], browser: Browser
) -> None:
    page_of, urls = served
    page = await opened_page(browser, 1440, "light")
    spoken: list[str] = []
    page.on("dialog", lambda dialog: spoken.append(dialog.message))
    started = page_of.daemon.live.fleet.jobs[9002]  # type: ignore[union-attr]
    page_of.world.store.save_attempt(started, first_step=1, last_step=9, step_time_s=1.0)
    await page.goto(urls["jobs"])
    assert HOSTILE in await page.inner_text("table") and spoken == []
    assert await page.evaluate("document.querySelectorAll('a[href^=http], script').length") == 0
