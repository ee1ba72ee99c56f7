"""Samples → evidence: edges, Xid cursors, lost GPUs, blindness. Shapes as observed on DCGM 4.6.0 with injected NVML."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

import pytest

from sentinel.config.rules_files import load_convictions
from sentinel.correlate.incidents import opens
from sentinel.errors import ProtocolError
from sentinel.evidence.counters import Ageing
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import ALWAYS_THERE, Gpu, HealthIncident, Sample, sample_from
from sentinel.model.records import Evidence, Kind, Source

RULES = load_convictions()
T0 = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
HEALTHY = {
    150: 41,
    155: 90.5,
    112: 1,
    203: 3,
    252: 812,
    395: 0,
    396: 0,
    1523: 0,
    311: 0,
    319: 0,
    202: 0,
    238: 16,
    236: 16,
}


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def gpu(number: int, status: int = 1, **changes: Any) -> Gpu:
    fields = {**HEALTHY, **{int(name[1:]): value for name, value in changes.items()}}
    return Gpu(number, f"GPU-{number:04x}", f"0000:{0x10 + number:02x}:00.0", number, status, fields)


def sample(seconds: float, *gpus: Gpu, events: tuple[tuple[int, int, int], ...] = (), **rest: Any) -> Sample:
    rest.setdefault("closed", True)
    return Sample(at(seconds), "dcgm", gpus or tuple(gpu(n) for n in range(4)), events, **rest)


def us(seconds: float) -> int:
    return int(at(seconds).timestamp() * 1e6)


def kinds(found: list[Evidence]) -> list[str]:
    return [str(item.kind) for item in found]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "41", True, 2**64 - 1, -(10**400)])
def test_a_value_that_is_no_number_is_not_known(value: object) -> None:
    reader, ages = DcgmReader("n7", RULES, 1), Ageing("n7", Source.DCGM, change_s=0)
    reader.read(sample(0, gpu(0)))
    for seconds, number in enumerate([*HEALTHY, 310, 312], 1):
        fields = {**{str(key): known for key, known in HEALTHY.items()}, str(number): value}
        message = {"via": "dcgm", "gpus": [{"id": 0, "uuid": "GPU-0000", "minor": 0, "status": 1, "fields": fields}]}
        strange = sample_from(message, at(seconds))
        assert reader.read(strange) == []
        assert all(isfinite(float(count)) for item in ages.gpus(strange) for count in item.data.values())


def test_healthy_gpus_are_no_evidence() -> None:
    reader = DcgmReader("n7", RULES, 4)
    assert [reader.read(sample(n)) for n in range(5)] == [[]] * 5
    assert reader.facts() == []


def test_every_xid_is_an_event_with_its_own_time() -> None:
    reader = DcgmReader("n7", RULES, 4)
    (first, second) = reader.read(sample(1, events=((2, 31, us(0.2)), (2, 79, us(0.7)))))
    assert [first.data["xid"], second.data["xid"]] == [31, 79]
    assert second.at == at(0.7)
    assert second.where.gpu == 2
    assert second.where.gpu_uuid == "GPU-0002"
    assert second.data["pci"] == "0000:12:00.0"
    assert second.source is Source.DCGM


def test_an_xid_is_told_by_whom_it_came() -> None:
    for via, named in (("dcgm", "DCGM: Xid 31"), ("dcgmi", "DCGM: Xid 31"), ("nvml", "NVML: Xid 31")):
        (told,) = DcgmReader("n7", RULES, 4).read(replace(sample(1, events=((2, 31, us(0.2)),)), via=via))
        assert told.text.startswith(named)


def test_an_xid_given_again_is_not_said_again_even_by_the_next_agent() -> None:
    reader = DcgmReader("n7", RULES, 4)
    events = ((2, 31, us(0.5)), (2, 79, us(0.5)))
    assert len(reader.read(sample(1, events=events))) == 2
    assert reader.read(sample(2, events=events)) == []
    after_restart = DcgmReader("n7", RULES, 4, reader.state)
    assert after_restart.read(sample(3, events=events)) == []
    assert kinds(after_restart.read(sample(4, events=((2, 79, us(3.5)),)))) == ["xid"]


def test_old_xids_found_at_the_first_start_are_history() -> None:
    reader = DcgmReader("n7", RULES, 4)
    assert reader.read(sample(0, events=((0, 79, us(-3600)),))) == []
    assert len(reader.read(sample(0, events=((0, 79, us(-20)),)))) == 1


def test_a_lost_gpu_that_health_calls_healthy() -> None:
    reader = DcgmReader("n7", RULES, 4)
    reader.read(sample(0))
    found = reader.read(sample(1, gpu(0), gpu(1), gpu(2, status=4), gpu(3), health=()))
    assert kinds(found) == [Kind.GPU_LOST]
    assert found[0].where.gpu == 2
    assert [fact.code for fact in reader.facts()] == ["gpu_lost"]
    assert reader.read(sample(2, gpu(0), gpu(1), gpu(2, status=4), gpu(3))) == []


def test_a_gpu_that_is_gone_is_named_by_its_uuid() -> None:
    reader = DcgmReader("n7", RULES, 4)
    reader.read(sample(0))
    found = reader.read(sample(1, gpu(0), gpu(1), gpu(3)))
    assert kinds(found) == [Kind.GPU_LOST]
    assert found[0].where.gpu_uuid == "GPU-0002"
    reader.read(sample(2))
    assert reader.facts() == []


def test_fewer_than_promised_from_the_start() -> None:
    found = DcgmReader("n7", RULES, 8).read(sample(0))
    assert kinds(found) == [Kind.GPU_LOST]
    assert found[0].data == {"promised": 8, "found": 4}


def test_more_than_promised_is_a_matter_of_gres() -> None:
    assert kinds(DcgmReader("n7", RULES, 2).read(sample(0))) == ["gpu_count_mismatch"]


def test_an_unknown_promise_compares_with_nothing() -> None:
    assert DcgmReader("n7", RULES, None).read(sample(0, gpu(0))) == []


def test_the_recovery_action_is_said_when_it_changes() -> None:
    reader = DcgmReader("n7", RULES, 4)
    (first,) = reader.read(sample(0, gpu(0, _1523=1), full=False))
    assert (first.kind, first.data["action"]) == (Kind.RECOVERY_ACTION, 1)
    assert reader.read(sample(1, gpu(0, _1523=1), full=False)) == []
    (second,) = reader.read(sample(2, gpu(0, _1523=2), full=False))
    assert second.data["action"] == 2
    assert reader.facts()[0].code == "recovery_action"
    assert reader.read(sample(3, gpu(0, _1523=None), full=False)) == []
    assert reader.facts() != [], "blank takes nothing back"
    reader.read(sample(4, gpu(0, _1523=0), full=False))
    assert reader.facts() == []


def test_all_blank_is_a_fault_of_its_own_but_convicts_nobody() -> None:
    reader = DcgmReader("n7", RULES, 4)
    blank = {f"_{number}": None for number in ALWAYS_THERE}
    gpus = [gpu(n, **blank) for n in range(4)]
    found = [kinds(reader.read(sample(n, *gpus))) for n in range(5)]
    assert found == [[], [], ["dcgm_all_blank"], [], []]
    assert reader.facts() == []


def test_what_was_not_read_is_not_blank() -> None:
    """A clock that was set back stops DCGM's reading; a part may be refused. Neither is a fault of the GPUs."""
    reader = DcgmReader("n7", RULES, 4)
    gpus = [Gpu(n, f"GPU-{n:04x}", f"0000:{0x10 + n:02x}:00.0", n, 1, {}) for n in range(4)]
    assert [reader.read(sample(n, *gpus)) for n in range(5)] == [[]] * 5


def test_growth_over_a_clock_that_was_set_back_is_no_rate() -> None:
    reader = DcgmReader("n7", RULES)
    assert reader.read(sample(3600, gpu(0, _202=0))) == []
    assert reader.read(sample(0, gpu(0, _202=9))) == []
    assert reader.read(sample(1, gpu(0, _202=9))) == []
    assert kinds(reader.read(sample(2, gpu(0, _202=30)))) == ["pcie_replay"]


@pytest.mark.parametrize("status", [3, 7])
def test_gpus_that_dcgm_cannot_use_are_blank_and_that_says_nothing(status: int) -> None:
    """In another's hands, or the driver was detached, as before it is changed."""
    reader = DcgmReader("n7", RULES, 4)
    blank = {f"_{number}": None for number in HEALTHY}
    found = [kinds(reader.read(sample(n, *[gpu(m, status, **blank) for m in range(4)]))) for n in range(5)]
    assert found == [["unreadable"] * 4, [], [], [], []]


def test_row_remap_failure_is_a_hard_fact() -> None:
    reader = DcgmReader("n7", RULES, 4)
    assert kinds(reader.read(sample(0, gpu(0, _395=1), gpu(1), gpu(2), gpu(3)))) == ["row_remap_failure"]
    assert reader.facts()[0].code == "row_remap_failure"


def test_double_bit_errors_count_from_what_was_there_before() -> None:
    reader = DcgmReader("n7", RULES, 1)
    assert reader.read(sample(0, gpu(0, _311=3))) == [], "an old count is no new error"
    (found,) = reader.read(sample(1, gpu(0, _311=5)))
    assert (found.kind, found.data["before"], found.data["now"]) == ("ecc_dbe", 3, 5)
    assert reader.read(sample(2, gpu(0, _311=0))) == [], "a counter that was reset"
    assert len(reader.read(sample(3, gpu(0, _311=1)))) == 1


def test_few_pcie_replays_are_noise_many_are_not() -> None:
    reader = DcgmReader("n7", RULES, 1)
    reader.read(sample(0, gpu(0, _202=0)))
    assert reader.read(sample(1, gpu(0, _202=3))) == []
    assert kinds(reader.read(sample(2, gpu(0, _202=500)))) == ["pcie_replay"]


def test_a_narrow_link() -> None:
    assert kinds(DcgmReader("n7", RULES, 1).read(sample(0, gpu(0, _238=8)))) == ["pcie_width"]


def test_a_slowdown_must_last() -> None:
    reader = DcgmReader("n7", RULES, 1)
    found = [kinds(reader.read(sample(n, gpu(0, _112=0x48)))) for n in range(4)]
    assert found == [[], [], ["clocks_slowdown"], []]


def test_sticky_health_incidents_are_said_once_by_entity_and_code() -> None:
    reader = DcgmReader("n7", RULES, 4)
    incident = HealthIncident(1, 3, 16, 20, 80, "GPU 555771712 had %d remapped rows")
    (found,) = reader.read(sample(0, health=(incident,)))
    assert (found.where.gpu, found.data["code"]) == (3, 80)
    assert reader.read(sample(30, health=(incident,))) == []
    assert reader.read(sample(60, health=())) == []
    assert len(reader.read(sample(90, health=(incident,)))) == 1


def test_the_index_is_the_minor_number_of_the_device() -> None:
    odd = Gpu(0, "GPU-x", "0000:99:00.0", 5, 1, HEALTHY)
    (found,) = DcgmReader("n7", RULES, None).read(sample(1, odd, events=((0, 48, us(0.5)),)))
    assert found.where.gpu == 5


def test_equal_samples_give_equal_ids() -> None:
    first = DcgmReader("n7", RULES, 4).read(sample(1, events=((2, 79, us(0.7)),)))
    second = DcgmReader("n7", RULES, 4).read(sample(1, events=((2, 79, us(0.7)),)))
    assert [item.id for item in first] == [item.id for item in second]


@pytest.mark.parametrize(
    "message",
    [{}, {"gpus": 3, "via": "dcgm"}, {"gpus": [{}], "via": "dcgm"}, {"gpus": [], "via": "dcgm", "events": [[1]]},
     {"gpus": [{"id": 0, "fields": []}], "via": "dcgm"}, {"gpus": [], "via": "dcgm", "health": [{"code": 1}]}],
)  # fmt: skip
def test_a_message_of_another_shape_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        sample_from(message, T0)


def test_a_clock_that_was_set_back_hides_no_xid() -> None:
    reader = DcgmReader("n7", RULES, 4, {"xids": {"GPU-0002": [us(3600), [31]]}})
    assert kinds(reader.read(sample(1, events=((2, 79, us(0.5)),)))) == ["xid"]
    assert reader.read(sample(2, events=((2, 79, us(0.5)),))) == [], "and each is still said once"


def test_persistence_mode_is_said_and_opens_nothing() -> None:
    reader = DcgmReader("n7", RULES, 4)
    found = reader.read(sample(1, gpu(0), gpu(1, f66=0), gpu(2), gpu(3)))
    assert kinds(found) == ["persistence_off"]
    assert not opens(found[0])
    assert reader.read(sample(2, gpu(0), gpu(1, f66=None), gpu(2), gpu(3))) == []


def test_two_incidents_with_one_code_are_each_said_once() -> None:
    """Xid 48 and 31 on one GPU: one code (101), two systems and healths, as 4.6 gave them."""
    reader = DcgmReader("n7", RULES, 4)
    both = (HealthIncident(1, 2, 0xFFFFFFFF, 20, 101, "XID 48"), HealthIncident(1, 2, 0x10, 10, 101, "XID 31"))
    assert [item.data["health"] for item in reader.read(sample(0, health=both))] == [20, 10]
    for turn in range(1, 5):
        assert reader.read(sample(30 * turn, health=both[:: (-1) ** turn])) == []
    again = DcgmReader("n7", RULES, 4, reader.state)
    assert again.read(sample(200, health=both)) == []
    assert kinds(again.read(sample(230, health=(*both, HealthIncident(1, 2, 0x10, 20, 101, "worse"))))) == [
        "gpu_health"
    ]


def nameless(number: int, status: int = 4) -> Gpu:
    """A GPU that is lost, as DCGM lists it: by its number alone."""
    return Gpu(number, None, None, None, status, {})


@pytest.mark.parametrize("restarts", [False, True])
def test_a_gpu_that_is_lost_then_gone_is_told_once_and_forgotten_when_it_is_back(restarts: bool) -> None:
    reader = DcgmReader("n7", RULES, 4)
    reader.read(sample(0))
    others = (gpu(0), gpu(1), gpu(3))
    told: list[Evidence] = []
    for turn, gpus in enumerate(
        [(*others, nameless(2)), (*others, nameless(2)), others, (*others, nameless(2)), others]
    ):
        told += reader.read(sample(1 + turn, *gpus))
        if restarts:
            reader = DcgmReader("n7", RULES, 4, reader.state)
    assert kinds(told) == [Kind.GPU_LOST]
    assert (told[0].where.gpu_uuid, told[0].where.gpu) == ("GPU-0002", 2)
    assert [fact.code for fact in reader.facts()] == ["gpu_lost"]
    assert reader.read(sample(9)) == []
    assert reader.facts() == []


def test_a_gpu_that_was_lost_before_anybody_knew_its_name() -> None:
    reader = DcgmReader("n7", RULES, 4)
    (found,) = reader.read(sample(0, gpu(0), gpu(1), nameless(2), gpu(3)))
    assert (found.kind, found.where.gpu_uuid) == (Kind.GPU_LOST, None)
    assert reader.facts()
    assert reader.read(sample(1, gpu(0), gpu(1), gpu(2, status=4), gpu(3))) == [], "now it has one: the same fault"
    assert reader.read(sample(2)) == []
    assert reader.facts() == []


def test_a_board_that_was_replaced_while_the_node_was_down_is_not_missed() -> None:
    reader = DcgmReader("n7", RULES, 4, boot="one")
    reader.read(sample(0))
    reader.read(sample(1, gpu(0), gpu(1), gpu(3)))
    assert [fact.code for fact in reader.facts()] == ["gpu_lost"]
    new = Gpu(2, "GPU-new", "0000:12:00.0", 2, 1, HEALTHY)
    again = DcgmReader("n7", RULES, 4, reader.state, boot="two")
    assert again.read(sample(90, gpu(0), gpu(1), new, gpu(3))) == []
    assert again.facts() == []
    same_boot = DcgmReader("n7", RULES, 4, reader.state, boot="one")
    same_boot.read(sample(90, gpu(0), gpu(1), gpu(3)))
    assert [fact.code for fact in same_boot.facts()] == ["gpu_lost"]


@pytest.mark.parametrize("condition", ["_395", "_1507", "_1523"])
def test_what_a_replaced_board_had_ends_with_it(condition: str) -> None:
    reader = DcgmReader("n7", RULES, 2, boot="one")
    reader.read(sample(0, gpu(0), gpu(1, **{condition: 2})))
    assert reader.facts()
    new = Gpu(1, "GPU-new", "0000:11:00.0", 1, 1, HEALTHY)
    again = DcgmReader("n7", RULES, 2, reader.state, boot="two")
    assert again.read(Sample(at(90), "dcgm", (), full=False, closed=True)) == []
    assert again.facts(), "an engine that lists nothing does not tell who is there"
    again.read(sample(91, gpu(0), nameless(1)))
    assert len(again.facts()) == 2, "the nameless one may be that"
    again = DcgmReader("n7", RULES, 2, again.state, boot="two")
    assert again.read(sample(92, gpu(0), new)) == []
    assert again.facts() == []


def test_a_board_that_is_still_there_after_a_boot_keeps_what_it_had() -> None:
    reader = DcgmReader("n7", RULES, 2, boot="one")
    reader.read(sample(0, gpu(0), gpu(1, _395=1)))
    again = DcgmReader("n7", RULES, 2, reader.state, boot="two")
    assert again.read(sample(90, gpu(0), gpu(1, _395=None))) == []
    assert [fact.code for fact in again.facts()] == ["row_remap_failure"]


def test_gpus_that_are_promised_no_more_are_not_missed() -> None:
    reader = DcgmReader("n7", RULES, 8)
    assert kinds(reader.read(sample(0))) == [Kind.GPU_LOST]
    again = DcgmReader("n7", RULES, None, reader.state)
    assert again.read(sample(90)) == [] and again.facts() == []


def test_a_lost_gpu_keeps_the_index_of_its_device_file() -> None:
    reader = DcgmReader("n7", RULES)
    reader.read(sample(0, Gpu(0, "GPU-x", "0000:99:00.0", 5, 1, HEALTHY)))
    (found,) = reader.read(sample(1, nameless(0)))
    assert (found.where.gpu, found.where.gpu_uuid) == (5, "GPU-x")


def test_a_gpu_that_was_away_is_judged_anew_though_its_readings_are_the_same() -> None:
    reader = DcgmReader("n7", RULES, 2)
    everyone = (gpu(0), gpu(1))
    assert reader.read(sample(0, *everyone)) == []
    assert kinds(reader.read(sample(1, gpu(0)))) == ["gpu_lost"]
    assert [fact.code for fact in reader.facts()] == ["gpu_lost"]
    assert reader.read(sample(2, *everyone)) == [] and reader.facts() == []


def test_a_slowdown_that_lasts_is_counted_though_its_reading_stays() -> None:
    reader = DcgmReader("n7", RULES, 1)
    slow = [kinds(reader.read(sample(n, gpu(0, _112=0x40)))) for n in range(5)]
    assert slow == [[], [], ["clocks_slowdown"], [], []]
