"""Schedules GPU diagnostics on idle nodes: suspect nodes first, then the others in rotation, within limits.

A node is suspect if a verdict named it so, if it fails more often than others, or if its hardware counters show ageing.
It is tested as soon as it is idle, outside the prolog, and stays suspect until a diagnostic passes on all its GPUs. Other
idle nodes are tested in rotation, the longest untested first, only while no job waits. The node is not reserved in Slurm:
it can be allocated at any moment, and its agent then ends the diagnostic. A test therefore never delays a job, and a
suspect that is allocated before its test ends is tested when it is idle again.

Findings are ordinary evidence of the node. They come with the answer, so that a failed node is being judged before the next
round, and again through the agent's spool in case the answer is lost. The state kept here (suspects, test times, running
tests) is in the store, because agents finish a diagnostic even if the daemon died: a restarted daemon must neither repeat
tests nor undercount the running ones.

``due_tests`` chooses the nodes, ``turns`` orders the tests and takes the answers.
"""
