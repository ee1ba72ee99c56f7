"""Where a line of a job's log was said: at the node of the rank that it names, or nowhere that is known."""

from __future__ import annotations

import dataclasses

import pytest
from made_records import evidence, fleet, incident, job, node

from sentinel.correlate.rank_placement import located
from sentinel.detect.cluster_view import ClusterView
from sentinel.model.records import Evidence, Source


def live(*nodes: str, gpus: tuple[int | None, ...] = (8, 8)) -> ClusterView:
    made = ClusterView()
    views = [dataclasses.replace(node(name), gpus=count) for name, count in zip(nodes, gpus, strict=False)]
    made.see_fleet(fleet(views, [job(101, nodes=nodes)]))
    return made


def line(rank: int | None, *, at: str = "n1", text: str = "CUDA error", source: Source = Source.JOB_LOG) -> Evidence:
    return evidence("cuda-unknown", source=source, node=at, job=101, attempt=0, rank=rank, text=text)


def placed(item: Evidence, here: ClusterView) -> Evidence:
    """As the judge sees it when this is all that was said."""
    return located(incident(item), here).evidence[0]


def test_line_of_a_job_on_one_node_was_said_there() -> None:
    assert placed(line(None), live("n1")).where.node == "n1"


def test_line_without_a_rank_was_said_nobody_knows_where() -> None:
    assert placed(line(None), live("n1", "n2")).where.node is None


def test_rank_lies_where_launchers_put_it_once_all_nodes_are_seen_to_be_filled() -> None:
    here = live("n1", "n2")
    assert placed(line(3), here).where.node is None  # two ranks on each node, or eight?
    assert placed(line(15), here).where.node == "n2"
    assert placed(line(3), here).where.node == "n1" and placed(line(8), here).where.node == "n2"


@pytest.mark.parametrize("top", [1, 7, 16, 31])
def test_ranks_that_do_not_fill_the_gpus_are_not_placed(top: int) -> None:
    assert placed(line(top), live("n1", "n2")).where.node is None


def test_nodes_with_different_or_unknown_gpus_place_nobody() -> None:
    assert placed(line(11), live("n1", "n2", gpus=(8, 4))).where.node is None
    assert placed(line(15), live("n1", "n2", gpus=(None, None))).where.node is None


def test_what_the_tasks_told_counts_more() -> None:
    here = live("n1", "n2")
    here.attempts[101, 0].rank_nodes[15] = "n1"
    assert placed(line(15), here).where.node == "n1" and placed(line(14), here).where.node == "n2"


def test_line_that_names_its_node_is_believed() -> None:
    here = live("n1", "n2")
    assert placed(line(0, at="n2"), here).where.node == "n2"
    assert placed(line(0, text="n1: CUDA error"), here).where.node == "n1"


def test_only_lines_of_logs_are_placed() -> None:
    said = line(15, source=Source.PROCESS)
    assert placed(said, live("n1", "n2")) is said
    stranger = dataclasses.replace(line(1), where=dataclasses.replace(line(1).where, job=999))
    assert placed(stranger, live("n1", "n2")) is stranger
    assert located(incident(line(15), job=None), live("n1", "n2")).evidence == (line(15),)


def test_rank_that_speaks_last_places_those_before_it() -> None:
    said = located(incident(line(9), line(15)), live("n1", "n2")).evidence
    assert [item.where.node for item in said] == ["n2", "n2"]
