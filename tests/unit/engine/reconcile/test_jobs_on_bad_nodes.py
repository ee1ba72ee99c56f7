"""Which jobs on a convicted node began there after its conviction, where this host's clock is off."""

from __future__ import annotations

import pytest
from in_memory.daemon import SETTINGS
from made_records import AT, fleet, job, node, plan, verdict
from shipped import shipped_rules

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import judging
from sentinel.engine.mass_failures import PreliminaryVerdicts
from sentinel.engine.reconcile import jobs_on_bad_nodes
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.records import Incident


@pytest.mark.parametrize("ahead_s", [0.0, 300.0, -300.0])
@pytest.mark.parametrize("began_s", [-60.0, 60.0])
def test_a_jobs_start_is_compared_on_slurmctlds_clock(
    ahead_s: float, began_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = ClusterView()
    state = State(rules=shipped_rules(), settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
    for name in ("n1", "n2", "n3", "n4"):
        seen = view.node(name)
        seen.state, seen.clock_offset_s = "heard", -ahead_s
    state.incidents["inc1"] = Incident(id="inc1", opened_at=AT, updated_at=AT, nodes=("n1",))
    state.verdicts["inc1"] = verdict(drain=("n1",))
    state.plans["inc1"] = plan()  # at AT, by this host's clock
    recovered: list[str] = []
    monkeypatch.setattr(judging, "recover_other_jobs", lambda _state, _out, one, *_rest: recovered.append(one.id))
    snapshot = fleet([node("n1"), node("n2")], [job(started_s=began_s - ahead_s)])
    looks = PreliminaryVerdicts.__new__(PreliminaryVerdicts)
    jobs_on_bad_nodes.snapshot_taken(state, Transition.__new__(Transition), snapshot, AT, looks)
    assert bool(recovered) is (began_s > 0)
