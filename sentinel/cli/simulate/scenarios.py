"""The options of ``sentinel simulate`` as scenarios: quantities with units, a failure history, a policy, a sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.cli.plan.history import read_history
from sentinel.cli.plan.inputs import answering
from sentinel.config.settings import Settings
from sentinel.config.settings_toml import parsed
from sentinel.errors import FileError, UserError
from sentinel.given_files import file_text, toml_of
from sentinel.planning import quantities
from sentinel.simulate.long_run.rates import PRESETS, Rates, rates_of
from sentinel.simulate.long_run.scenario import BEHAVIOURS, Scenario, acting, untested

MOST_VALUES = 50


@dataclass(frozen=True, slots=True)
class Sweep:
    """The values of one option or setting, as written, and as places on an axis where they are numbers."""

    key: str
    texts: tuple[str, ...]
    places: tuple[float, ...]


def names_of(text: str) -> list[str]:
    """The behaviours that ``--as`` names.

    Raises:
        UserError: one of them is not known.
    """
    if text.strip() == "all":
        return list(BEHAVIOURS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in BEHAVIOURS:
            raise UserError(
                f"--as {name!r:.60}: nobody of that name", fix=f"one or more of: {', '.join(BEHAVIOURS)}, all"
            )
    if not names:
        raise UserError("--as names nobody", fix=f"one or more of: {', '.join(BEHAVIOURS)}, all")
    return list(dict.fromkeys(names))


def _whole(text: str, what: str) -> int:
    number, _, rest = text.strip().partition(" ")
    if number.lstrip("+").replace("_", "").isdecimal() and not rest and int(number) == 0:
        return 0  # refused by the scenario, with what it may be; no spares are allowed
    return int(quantities.whole_count(text, what).value)


def _seconds(text: str, what: str) -> float:
    return quantities.duration_or_zero(text, what).value


def _share(text: str, what: str) -> float:
    return quantities.share(text, what, zero=True).value


# option -> field of the scenario, reader
_OPTIONS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "nodes": ("nodes", _whole),
    "gpus-per-node": ("gpus_per_node", _whole),
    "days": ("days", lambda text, what: quantities.days(text, what).value / quantities.DAY_S),
    "jobs": ("jobs", _whole),
    "spares": ("spares", _whole),
    "interval": ("interval_s", _seconds),
    "save": ("save_s", _seconds),
    "start": ("start_s", _seconds),
    "step": ("step_s", _seconds),
    "needs-code": ("needs_code", _share),
    "errors": ("errors", lambda text, what: text.strip()),
}


def scenarios_of(options: Mapping[str, Any]) -> tuple[Sweep | None, list[Scenario]]:
    """One scenario, or one for each value of the sweep.

    Raises:
        UserError: a value is not understood or makes no sense.
    """
    with answering():
        fields: dict[str, Any] = {"rates": _rates(str(options["failures"]))}
        settings, policy = _policy(options.get("policy"))
        fields |= {"settings": settings, "policy": policy}
        for option, (field, read) in _OPTIONS.items():
            text = options.get(option.replace("-", "_"))
            if text is not None:
                fields[field] = read(str(text), f"--{option}")
        sweep = options.get("sweep")
        if sweep is None:
            return None, [Scenario(**fields)]
        return _swept(str(sweep), fields)


def _rates(text: str) -> Rates:
    if text in PRESETS:
        return PRESETS[text]
    path = Path(text)
    if not path.exists():
        raise UserError(
            f"--failures {text!r:.80}: neither a published fleet ({', '.join(PRESETS)}) nor a file",
            fix="--failures llama3, or a history as sentinel plan --history reads it",
        )
    return rates_of(read_history(path), path.name)


def _policy(path: Path | None) -> tuple[Settings, str]:
    if path is None:
        return acting(Settings()), "built-in limits, every step allowed"
    text = file_text(path)
    settings = parsed(path, text, Settings)
    if "modes" not in toml_of(path, text):
        return acting(settings), f"{path.name}, which names no modes: every step allowed"
    return untested(settings), f"{path.name} in its modes; what is asked for is approved as soon as a person comes"


def _swept(text: str, fields: Mapping[str, Any]) -> tuple[Sweep, list[Scenario]]:
    key, equals, values = text.partition("=")
    key, texts = key.strip(), tuple(part.strip() for part in values.split(",") if part.strip())
    if not equals or not texts:
        raise UserError(f"--sweep {text!r:.80}: not KEY=VALUE,VALUE", fix="--sweep interval=1min,5min,15min")
    if len(set(texts)) < len(texts):
        raise UserError(
            f"--sweep {key}: a value stands there twice", fix=f"--sweep {key}={','.join(dict.fromkeys(texts))}"
        )
    if len(texts) > MOST_VALUES:
        raise UserError(f"--sweep: {len(texts)} values, at most {MOST_VALUES}", fix="leave some out")
    if key in _OPTIONS:
        field, read = _OPTIONS[key]
        found = [read(part, f"--sweep {key}") for part in texts]
        scenarios = [Scenario(**{**fields, field: value}) for value in found]
    else:
        scenarios = [Scenario(**{**fields, "settings": _with(fields["settings"], key, part)}) for part in texts]
        found = [_number(part) for part in texts]
    numbers = all(isinstance(value, (int, float)) for value in found)
    return Sweep(key, texts, tuple(float(v) if numbers else float(n) for n, v in enumerate(found))), scenarios


def _with(settings: Settings, key: str, text: str) -> Settings:
    """The settings with one of them changed, e.g. ``limits.drain_count``."""
    part, _, name = key.partition(".")
    section = getattr(settings, part, None) if part in {field.name for field in dataclasses.fields(settings)} else None
    old = getattr(section, name, None) if dataclasses.is_dataclass(section) and name else None
    if not isinstance(old, (int, float)) or isinstance(old, bool) or section is None:
        raise UserError(
            f"--sweep {key!r:.80}: neither an option ({', '.join(_OPTIONS)}) nor a setting that is a number",
            fix="--sweep spares=2,8,32, or --sweep limits.drain_count=4,8,16; sentinel config shows the settings",
        )
    _number(text)
    try:
        read = parsed(Path("--sweep"), f"{key} = {text}", Settings)  # with the bounds of a settings file
    except FileError as error:
        raise UserError(f"--sweep {error.message.partition(': ')[2]}", fix=error.fix) from error
    value = getattr(getattr(read, part), name)
    return dataclasses.replace(settings, **{part: dataclasses.replace(section, **{name: value})})


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"--sweep: {text!r:.40} is not a number", fix="--sweep limits.drain_count=4,8,16") from None
    if not 0 <= value < 1e12:
        raise UserError(f"--sweep: {text} is no value of a setting", fix="--sweep limits.drain_count=4,8,16")
    return value
