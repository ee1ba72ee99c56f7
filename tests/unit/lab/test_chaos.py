"""Random stories as data: the same for the same seed, and nothing drawn that cannot be performed."""

from __future__ import annotations

from chaos.acts import ACTS
from chaos.drawn import BAD_NODES, JOB_FAULTS, NODE_FAULTS, NODES, OURS, PEOPLE, SHARED_FAULTS, draw
from chaos.promises import expanded


def test_the_same_seed_gives_the_same_story():
    assert draw(7, 31) == draw(7, 31) != draw(7, 32)


def test_every_act_can_be_performed():
    drawable = {*NODE_FAULTS, *JOB_FAULTS, *SHARED_FAULTS, *PEOPLE, *OURS}
    assert drawable == set(ACTS)
    assert {act.what for number in range(300) for act in draw(1, number).acts} == drawable


def test_every_story_has_a_bad_node_and_leaves_room_for_its_jobs():
    for number in range(300):
        story = draw(2, number)
        bad = [act for act in story.acts if act.what in NODE_FAULTS]
        assert 1 <= len(bad) <= BAD_NODES
        assert sum(job.nodes for job in story.jobs) + BAD_NODES < NODES


def test_node_lists_are_read_as_slurm_writes_them():
    assert expanded("n7") == {"n7"}
    assert expanded("n[1-3,5]") == {"n1", "n2", "n3", "n5"}
