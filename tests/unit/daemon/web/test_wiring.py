"""The daemon serves the page where its settings say so, and says which setting is wrong where they cannot be meant."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_memory.daemon import SETTINGS
from in_memory.views import Shown
from in_memory.world import World

from sentinel.config.settings import Page, Settings, load
from sentinel.daemon.clock import SteadyClock
from sentinel.daemon.wiring import DaemonParts, page_server
from sentinel.errors import UserError
from sentinel.log import Log


def parts(world: World, **page: Any) -> tuple[DaemonParts, Any]:
    shown = Shown(world)
    means: Any = None
    settings = dataclasses.replace(SETTINGS, page=Page(**page))
    clock = SteadyClock(world.slurm.clock.now)
    made = DaemonParts(
        settings, world.store, shown.daemon.live, means, means, means, shown.daemon.fleets, means, clock,
        shown.daemon.telemetry, Log(io.StringIO()),
    )  # fmt: skip
    return made, shown.views


def test_page_is_off_by_default(world: Callable[..., World]) -> None:
    assert page_server(*parts(world()), {0}) is None


def test_page_that_is_wanted_is_built(world: Callable[..., World]) -> None:
    made = page_server(*parts(world(), listen="unix:/run/x.sock"), {0})
    assert made is not None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listen": "127.0.0.1:9479"}, "let nobody in"),
        ({"listen": "unix:/x", "racks": "r("}, "racks is no expression"),
        ({"listen": "unix:/x", "racks": "^r"}, "racks has no group"),
    ],
)
def test_setting_that_cannot_be_meant_is_named(
    world: Callable[..., World], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said) as raised:
        page_server(*parts(world(), **settings), {0})
    assert raised.value.fix


async def test_address_that_cannot_be_had_is_named(world: Callable[..., World], tmp_path: Path) -> None:
    made = page_server(*parts(world(), listen=f"unix:{tmp_path / 'no' / 'x.sock'}"), {0})
    assert made is not None
    with pytest.raises(UserError, match=r"\[page\] listen .* cannot be had"):
        await made.start()
    await made.stop()


def test_section_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "sentinel.toml"
    path.write_text('[page]\nlisten = "unix:/run/x"\nsee = "everybody"\n')
    with pytest.raises(UserError, match=r"page\.see"):
        load(path, Settings)
