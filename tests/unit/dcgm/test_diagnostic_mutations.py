"""None is read as pass that is no pass: outputs of both versions, damaged at random, against an oracle by brute force.

The oracle knows nothing of how the reader works. It takes the whole output as one JSON document, with nothing but log text
before and behind it, and asks for every test of the level, a "Pass" for every GPU, and not one warning.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.config.rules_files import load_convictions
from sentinel.evidence.diagnostics import Answer, read_diagnostic

RULES = load_convictions()

SAMPLES = Path(__file__).parents[4] / "shared" / "samples" / "dcgm"
GPUS = range(8)
NEW = {
    1: ["software"],
    2: ["memory", "pcie"],
    3: ["diagnostic", "nvbandwidth", "memory_bandwidth", "targeted_stress", "targeted_power"],
    4: ["memtest", "pulse_test"],
}
OLD = {
    1: ["Denylist", "NVML Library", "CUDA Main Library", "Permissions and OS Blocks", "Persistence Mode",
        "Environment Variables", "Page Retirement/Row Remap", "Graphics Processes", "Inforom"],
    2: ["GPU Memory", "PCIe"],
    3: ["Diagnostic", "Targeted Stress", "Targeted Power", "Memory Bandwidth"],
    4: ["Memtest", "Pulse Test"],
}  # fmt: skip
OPTIONAL = {"nvbandwidth", "Memory Bandwidth"}  # not in every release


def whole(level: int, new: bool) -> dict[str, Any]:
    """A clean run."""
    tests = []
    for number in range(1, level + 1):
        for name in (NEW if new else OLD)[number]:
            if new:
                entities = [
                    {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": "Pass"} for gpu in GPUS
                ]
                tests.append({"name": name, "results": entities, "test_summary": {"status": "Pass"}})
            elif number == 1:
                tests.append({"name": name, "results": [{"status": "Pass"}]})
            else:
                tests.append({"name": name, "results": [{"gpu_id": str(gpu), "status": "Pass"} for gpu in GPUS]})
    categories = [{"category": "Any", "tests": tests}]
    if new:
        return {"DCGM Diagnostic": {"test_categories": categories}, "metadata": {"version": "4.6.0"}}
    return {"DCGM GPU Diagnostic": {"test_categories": categories, "version": "3.3.9"}}


# ------------------------------------------------------------------------------------------------- the oracle


def is_pass(content: bytes, status: int, level: int) -> bool:
    if status != 0:
        return False
    text = content.decode("utf-8", "surrogateescape")
    for start in (place for place, letter in enumerate(text) if letter == "{"):
        try:
            document, _ = json.JSONDecoder().raw_decode(text[start:])
        except (ValueError, RecursionError):
            continue
        if any(root in document for root in ("DCGM Diagnostic", "DCGM GPU Diagnostic")):
            return _passes(document, level)
    return False


def _passes(document: dict[str, Any], level: int) -> bool:
    new = "DCGM Diagnostic" in document
    body = document["DCGM Diagnostic" if new else "DCGM GPU Diagnostic"]
    if not isinstance(body, dict) or "runtime_error" in body or _warned(document):
        return False
    wanted = {
        _name(name) for number in range(1, level + 1) for name in (NEW if new else OLD)[number] if name not in OPTIONAL
    }
    passed: dict[str, set[object]] = {}
    try:
        for category in body["test_categories"]:
            for test in category["tests"]:
                for result in test["results"]:
                    mark = _word(result["status"])
                    if mark not in ("pass", "skip"):
                        return False
                    gpu = result.get("entity_id" if new else "gpu_id", result.get("gpu_ids", "all"))  # 3.1's name
                    of_gpu = result.get("entity_group", "GPU") == "GPU"
                    if mark == "pass" and of_gpu:
                        passed.setdefault(_name(test["name"]), set()).add(str(gpu))
                if "test_summary" in test and _word(test["test_summary"]["status"]) not in ("pass", "skip"):
                    return False
    except (KeyError, TypeError, AttributeError):
        return False
    everyone = {str(gpu) for gpu in GPUS}
    return all(passed.get(name) == {"all"} or everyone <= passed.get(name, set()) for name in wanted)


def _word(status: object) -> str:
    """Letter case and spaces differ between releases."""
    text = str(status).strip().lower()
    return "skip" if text in ("not run", "not_run") else text


def _name(test: str) -> str:
    return "".join(letter for letter in test.lower() if letter.isalnum())


def _warned(value: Any) -> bool:
    """A warning with anything in it, at any depth."""
    if isinstance(value, dict):
        return any((key == "warnings" and bool(item)) or _warned(item) for key, item in value.items())
    return any(map(_warned, value)) if isinstance(value, list) else False


# ------------------------------------------------------------------------------------------------- the damage


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(item, (dict, list)):
            yield from places(item)


WORDS: list[Any] = [
    None,
    0,
    -1,
    3,
    True,
    "",
    "Fail",
    "Warn",
    "Skip",
    "pass ",
    "PASSED",
    "Not Run",
    [],
    {},
    ["Pass"],
    1e9,
]
WARNING = {"error_category": 10, "error_id": 85, "error_severity": 6, "warning": "GPU 3 row remappings are pending"}


def damaged(document: dict[str, Any], random_: random.Random) -> bytes:
    """The document with one to three things wrong with it, or nothing."""
    made = copy.deepcopy(document)
    for _ in range(random_.randint(0, 3)):
        known = list(places(made))
        if not known:
            break
        container, key = random_.choice(known)
        kind = random_.randrange(7)
        if kind == 0:
            del container[key]
        elif kind == 1:
            container[key] = copy.deepcopy(random_.choice(WORDS))
        elif kind == 2 and isinstance(container, dict):
            container[random_.choice([f"{key}s", f"_{key}", "runtime_error", "status"])] = container.pop(key)
        elif kind == 3 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif kind == 4 and isinstance(container[key], dict):
            container[key]["warnings"] = copy.deepcopy(random_.choice([[WARNING], [None], "text", WARNING]))
        elif kind == 5 and isinstance(container, list):
            random_.shuffle(container)
        elif isinstance(container[key], int):
            container[key] += random_.choice([1, 8, -9])
    content = json.dumps(made, indent=random_.choice([None, 1])).encode()
    return _torn(content, random_)


def _torn(content: bytes, random_: random.Random) -> bytes:
    place = random_.randrange(len(content))
    kind = random_.randrange(10)
    if kind == 0:
        return content[:place]
    if kind == 1:
        return content[:place] + random_.choice([b"\x00", b"\xff", b"[host engine] restarting\n"]) + content[place:]
    if kind == 2:
        return content[:place] + content[place + random_.randint(1, 40) :]
    if kind == 3:  # two clients wrote to one file
        return content[:place] + content[random_.randrange(len(content)) :]
    if kind == 4:
        return b'warning: {"x": 1} of nvvs\n' + content + b"\ntrailing } text {"
    return content


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_generated_outputs(new: bool, level: int) -> None:
    random_ = random.Random(level * 2 + new)
    document = whole(level, new)
    assert is_pass(json.dumps(document).encode(), 0, level)
    seen = {True: 0, False: 0}
    for _ in range(500):
        content = damaged(document, random_)
        status = random_.choice([0, 0, 0, 0, 0, 205, 226])
        made = read_diagnostic(content, status, level, GPUS, convictions=RULES)
        good = is_pass(content, status, level)
        seen[good] += 1
        assert made.answer is not Answer.PASS or good, content
    assert min(seen.values()) > 50, "both kinds were tried"


def _recorded() -> list[tuple[str, int, dict[str, Any]]]:
    """(name, level, document) of every recorded diagnostic that is JSON."""
    found = []
    for line in (SAMPLES / "INDEX.md").read_text().splitlines() if SAMPLES.is_dir() else []:
        match = re.match(r"- (\S+) rc=\d+ : .*dcgmi diag(.*)", line)
        content = (SAMPLES / f"v4_{match[1]}.out").read_text(errors="replace") if match else ""
        if match is None or "{" not in content:
            continue
        level = re.search(r"-r (\d)", match[2])
        document, _ = json.JSONDecoder().raw_decode(content[content.index("{") :])
        found.append((match[1], int(level[1]) if level and level[1] in "1234" else 1, document))
    return found


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="recorded outputs of DCGM are not at hand")
def test_recorded_outputs_damaged() -> None:
    random_, tried = random.Random(7), 0
    recorded = _recorded()
    assert len(recorded) >= 15
    for name, level, document in recorded:
        for _ in range(100):
            content = damaged(document, random_)
            made = read_diagnostic(content, 0, level, GPUS, convictions=RULES)
            tried += 1
            assert made.answer is not Answer.PASS or is_pass(content, 0, level), (name, content)
    assert tried >= 1000
