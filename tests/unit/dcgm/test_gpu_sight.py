"""What cannot be read of a node's GPUs: known to be so, and neither a fault nor a proof that all is well."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sentinel.config.rules_files import load_convictions
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import ALWAYS_THERE, Gpu, Sample
from sentinel.model.records import Evidence, Kind

RULES = load_convictions()
T0 = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
READ = dict.fromkeys(ALWAYS_THERE, 0)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def gpu(number: int, status: int = 1, **fields: Any) -> Gpu:
    read = {**READ, **{int(name): value for name, value in fields.items()}}
    return Gpu(number, f"GPU-{number}", f"0000:{0x10 + number:02x}:00.0", number, status, read)


def sample(seconds: float, *gpus: Gpu, via: str = "dcgm") -> Sample:
    return Sample(at(seconds), via, gpus, closed=True)


def kinds(found: list[Evidence]) -> list[str]:
    return [str(item.kind) for item in found]


@pytest.mark.parametrize("via", ["dcgm", "dcgmi"])
@pytest.mark.parametrize("knew", [False, True])
def test_an_engine_that_lists_no_gpu_tells_nothing_of_them(knew: bool, via: str) -> None:
    """One that was started before the driver: a GPU that it knew and lost it goes on to list."""
    reader = DcgmReader("n7", RULES, 4)
    if knew:
        reader.read(sample(0, gpu(0, **{"395": 1}), gpu(1), gpu(2), gpu(3)))
    told = [item for n in range(9) for item in reader.read(Sample(at(1 + n), via, (), closed=True))]
    assert kinds(told) == [Kind.UNREADABLE] and told[0].text == "DCGM lists no GPU"
    assert [fact.code for fact in reader.facts()] == (["row_remap_failure"] if knew else []), "nothing is taken back"


def test_a_driver_without_gpus_where_some_are_promised() -> None:
    reader = DcgmReader("n7", RULES, 4)
    found = reader.read(Sample(at(0), "nvml", ()))
    assert kinds(found) == [Kind.GPU_LOST]


DUMB = {
    "every value blank": gpu(3, **{str(number): None for number in READ}),
    "no value renewed": Gpu(3, "GPU-3", "0000:13:00.0", 3, 1, {}),
    "no handle": Gpu(3, None, None, None, 0, {}),
}


@pytest.mark.parametrize("dumb", DUMB.values(), ids=DUMB)
def test_one_gpu_that_answers_nothing_is_told_once_and_convicts_nobody(dumb: Gpu) -> None:
    """As a GPU that died under NVML: "Unknown Error" at each reading, or at its handle."""
    reader = DcgmReader("n7", RULES, 4)
    others = (gpu(0), gpu(1), gpu(2))
    reader.read(sample(0, *others, gpu(3)))
    told = [kinds(reader.read(sample(1 + n, *others, dumb))) for n in range(5)]
    assert told == [[], [], [Kind.UNREADABLE], [], []]
    assert (reader.facts(), reader.sight.trouble) == ([], "")
    assert reader.sight.unread == ("GPU 3 (GPU-3)",)
    again = DcgmReader("n7", RULES, 4, reader.state)
    assert [kinds(again.read(sample(9 + n, *others, dumb))) for n in range(5)] == [[]] * 5
    assert again.read(sample(20, *others, gpu(3))) == [] and again.sight.unread == ()
    assert kinds([item for n in range(5) for item in again.read(sample(21 + n, *others, dumb))]) == [Kind.UNREADABLE]


@pytest.mark.parametrize("status", [2, 5, 6])
def test_of_a_gpu_that_dcgm_does_not_support_nothing_is_expected(status: int) -> None:
    reader = DcgmReader("n7", RULES, 2)
    display = Gpu(1, "GPU-1", "0000:11:00.0", 1, status, dict.fromkeys(READ))
    assert [reader.read(sample(n, gpu(0), display)) for n in range(5)] == [[]] * 5
    assert reader.sight.unread == ()
