"""NCCL's RAS answers in the forms that its releases write, and what is made of them."""

from __future__ import annotations

import json

import pytest

from sentinel.classify.hang.running_job import analyse_live, compare_polls
from sentinel.evidence.nccl.ras import read_ras, slim
from sentinel.model.collectives import Unreadable
from sentinel.model.live_collectives import Communicator, Member, RasPoll

FRONT = """NCCL version {version} compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12080

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          2            1          4        4

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         2         4         4   RUNNING  {errors}

Errors
======

"""
# One rank behind: it stands alone on a line of its own, which names no "GPU ... " group before it.
ONE_BEHIND = """Warnings
========

#0-0 (00c2f64a53edbe98) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 6650
  Rank 2 has launched up to operation {count} -- GPU 0 managed by process 4074 on node 10.0.0.21

"""


def text(body, version="2.28.9", errors="MISMATCH"):
    return (FRONT.format(version=version, errors=errors) + body).encode()


def read(data):
    found = read_ras(data, "node0")
    assert isinstance(found, RasPoll)
    return found


def test_a_single_rank_has_its_own_count_and_not_that_of_the_group_above():
    found = read(text(ONE_BEHIND.format(count=6649)))
    (communicator,) = found.communicators
    (member,) = communicator.members
    assert communicator.key == "00c2f64a53edbe98"
    assert (member.local_rank, member.host, member.pid, dict(member.counts)) == (
        2,
        "10.0.0.21",
        4074,
        {"AllReduce": 6649},
    )
    assert communicator.told == {"AllReduce": (6649, 6650)}
    assert not member.unresponsive and not member.dead


def test_the_text_of_two_polls_names_who_is_behind():
    poll = read(text(ONE_BEHIND.format(count=6649)))
    found = analyse_live((poll, poll), gap_s=12.0, ranks={("10.0.0.21", 4074): 2})
    assert (found.culprit_ranks, found.basis, found.sequence) == ((2,), "laggard", 6650)


def test_a_rank_that_moved_between_two_texts_is_no_hang():
    polls = read(text(ONE_BEHIND.format(count=6600))), read(text(ONE_BEHIND.format(count=6649)))
    assert compare_polls(*polls)[0].moved is True


def test_a_group_that_lists_its_ranks_gives_them_its_count():
    body = """Warnings
========

#0-0 (00c2f64a53edbe98) MISMATCH
  Communicator ranks have different status
  Rank 1 has status ABORT -- GPU 1 managed by process 4073 on node 10.0.0.20
  Communicator ranks have different Broadcast operation counts
  6 ranks have launched up to operation 12
  2 ranks have not launched any operations
  Rank 3 -- GPU 1 (NVML 5) managed by process 4075 on node fe80::7
  Rank 4 -- [process information not found]

"""
    (communicator,) = read(text(body)).communicators
    named = {member.local_rank: (member.host, member.pid, dict(member.counts)) for member in communicator.members}
    assert named == {3: ("fe80::7", 4075, {"Broadcast": 0}), 4: ("", None, {"Broadcast": 0})}
    assert communicator.told == {"Broadcast": (0, 12)}


def test_more_behind_than_are_listed_is_said_and_names_nobody():
    body = """#0-0 (00c2f64a53edbe98) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 6649
  Rank 2 has launched up to operation 6650 -- GPU 0 managed by process 4074 on node 10.0.0.21

"""
    poll = read(text(body))
    found = analyse_live((poll, poll), gap_s=12.0)
    assert (found.kind, found.culprit_ranks) == ("stuck", ())
    assert "does not list" in found.explanation


def test_who_did_not_answer_is_out_of_reach_and_may_be_dead():
    body = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 4075 on node 10.0.0.21 managing GPU 1

#0-0 (00c2f64a53edbe98) INCOMPLETE
  Missing communicator data from 2 ranks
  Rank 2 -- GPU 0 managed by process 4074 on node 10.0.0.21
  Rank 3 -- GPU 1 managed by process 4075 on node 10.0.0.21

#0-0 (00c2f64a53edbe98) ERROR
  Asynchronous error on 1 rank
  Rank 0 reported Remote process error -- GPU 0 managed by process 4072 on node 10.0.0.20

"""
    (communicator,) = read(text(body, errors="INCOMPLETE")).communicators
    seen = {member.local_rank: (member.unresponsive, member.dead) for member in communicator.members}
    assert seen == {2: (True, False), 3: (True, True), 0: (False, False)}


def test_the_first_release_counts_all_operations_together_and_lists_missing_ranks_by_number():
    body = """#0-0 (00c2f64a53edbe98) INCOMPLETE
  Missing communicator data from 2 ranks
  The missing ranks: 1,3

#0-0 (00c2f64a53edbe98) MISMATCH
  Communicator ranks have different collective operation counts
  5 ranks have launched up to operation 880
  Rank 6 has launched up to operation 879 -- GPU 6 managed by process 91 on node 10.0.0.9

"""
    (communicator,) = read(text(body, version="2.24.3")).communicators
    assert {m.local_rank for m in communicator.members if m.unresponsive} == {1, 3}
    assert communicator.told == {"collective": (879, 880)}


def test_a_quiet_report_is_an_answer_of_nobody_unusual():
    assert read(text("Warnings\n========\n\n", errors="OK")).communicators == ()


def json_report(missing, *, comma=True):
    """As NCCL indents it. 2.28.7 and 2.28.9 write no comma after the NVML number of a missing rank."""
    rank = """        {
          "rank": 0,
          "host": "10.0.0.20",
          "pid": 4072,
          "cuda_dev": 0,
          "nvml_dev": 0,
          "status": {
            "init_state": 0,
            "async_error": 7,
            "finalize_called": false,
            "destroy_flag": false,
            "abort_flag": false
          },
          "collective_counts": {
            "Broadcast": 3,
            "AllReduce": 50
          }
        }"""
    gone = ",\n".join(
        f"""        {{
          "rank": {number},
          "host": "{host}",
          "pid": {pid},
          "cuda_dev": 1,
          "nvml_dev": 1{"," if comma else ""}
          "status": {{
            "unresponsive": {json.dumps(silent)},
            "considered_dead": {json.dumps(dead)}
          }}
        }}"""
        for number, host, pid, silent, dead in missing
    )
    return f"""SERVER PROTOCOL 2
OK
OK
{{
  "nccl_version": "2.28.9",
  "communicators_count": 1,
  "communicators": [
    {{
      "hash": "0xc2f64a53edbe98",
      "secondary_hash": "0x1:0x2",
      "size": {1 + len(missing)},
      "ranks": [
{rank}
      ],
      "missing_ranks": [
{gone}
      ]
    }}
  ],
  "ras": {{
    "collection_time_sec": 0.004,
    "timeouts_count": 1
  }}
}}
""".encode()


LOST = (1, "10.0.0.20", 4073, True, True)
LEFT = (2, "10.0.0.21", 4074, False, False)  # answered, and is in no such communicator any more
NOT_KNOWN = (3, "unknown", -1, True, False)


@pytest.mark.parametrize("comma", [True, False])
def test_a_report_of_lost_ranks_is_read_with_and_without_the_comma_that_two_releases_forget(comma):
    (communicator,) = read(json_report([LOST, LEFT, NOT_KNOWN], comma=comma)).communicators
    seen = {m.local_rank: (m.pid, m.unresponsive, m.dead) for m in communicator.members}
    assert seen == {0: (4072, False, False), 1: (4073, True, True), 2: (4074, False, False), 3: (None, True, False)}


def test_a_rank_that_left_is_not_called_dead():
    polls = read(json_report([LEFT])), read(json_report([LEFT]))
    assert analyse_live(polls, gap_s=12.0).basis != "dead"


@pytest.mark.parametrize("comma", [True, False])
def test_what_is_sent_is_small_and_says_the_same(comma):
    report = json_report([LOST, LEFT], comma=comma)
    assert read(slim(report)) == read(report)
    assert len(slim(report)) < 0.6 * len(report)


@pytest.mark.parametrize("data", [b"", b"ERROR: no", b'{"communicators": [', b'{"other": 1}', text("")])
def test_what_is_no_report_of_ranks_is_sent_as_it_came(data):
    assert slim(data) == data


def test_a_text_without_a_word_of_nccl_is_unreadable():
    assert isinstance(read_ras(b"Rank 3 has launched up to operation 9\n", "node0"), Unreadable)


def test_a_host_name_that_is_no_text_hides_no_communicator():
    body = {"communicators": [{"hash": "0x1", "size": 2, "ranks": [{"rank": 0, "host": "h@"}], "missing_ranks": []}]}
    data = json.dumps(body).encode().replace(b"@", b"\xff")
    assert isinstance(read_ras(data, "node0"), RasPoll)
    assert isinstance(read_ras(slim(data), "node0"), RasPoll)


def test_many_ranks_with_an_operation_each_cost_little() -> None:
    """An answer is a user's, of up to 3 MiB."""

    class Counts(dict[str, int]):
        looked = 0

        def __contains__(self, name: object) -> bool:
            Counts.looked += 1
            return super().__contains__(name)

    members = tuple(Member(rank, counts=Counts({f"op{rank}": 1})) for rank in range(300))
    poll = RasPoll((Communicator("a", 300, members),))
    assert [state.moved for state in compare_polls(poll, poll)] == [False]
    assert Counts.looked <= 2 * len(members)
