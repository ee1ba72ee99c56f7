"""A store with more incidents than one reading takes: what is open is loaded, and a whole history comes in parts."""

from __future__ import annotations

from datetime import timedelta

from in_memory.direct_store import DirectStore
from made_records import AT, evidence, incident, later

from sentinel.model.records import IncidentState, Kind

DAY = timedelta(days=1)


def test_what_is_open_is_loaded_behind_any_number_of_newer_incidents(store: DirectStore) -> None:
    item = evidence(Kind.XID, node="n1", id="e1")
    store.append([item])
    for state in IncidentState:
        store.save_incident(incident(item, id=f"old-{state}", state=state), user="ada")
    store.save_closed(5001, later(60.0))
    stored = store.load(month=AT - DAY, lately=AT + DAY, evidence_ids=10)
    there = {IncidentState.OPEN, IncidentState.WATCHING, IncidentState.WAITING, IncidentState.HELD}
    assert {one.id for one in stored.incidents} == {f"old-{state}" for state in there}
    assert all(one.evidence == (item,) for one in stored.incidents)
    assert len(stored.judged) == 5001  # what a daemon that had never stopped would know
