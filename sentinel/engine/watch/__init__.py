"""Watches what fails to happen: heartbeats that stay away, jobs that print no more steps, job ends that no hook reported.

Input: messages of agents (``NodeHeard``, ``HeartbeatReceived``), a periodic timer, snapshots of Slurm, answers of nodes.

Output: evidence of silent nodes, hung and slow jobs, ended jobs and nodes that are down; questions to nodes and to Slurm.

``nodes`` counts who is in contact and probes silent nodes, ``jobs`` observes jobs that stopped printing steps and calls them
hung, ``log_coverage`` knows how much of a silence was observed, ``reconciliation`` compares snapshots, ``job_ends`` follows
up hooks, ``restored_attempts`` continues after a restart. ``routing`` sends each event to its file.

It never concludes anything from silence that may be the daemon's own: see ``sentinel.detect.visibility``. It is off until
``WatchStarted``: a runner that receives no messages has none to miss.
"""
