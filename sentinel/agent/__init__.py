"""The agent: a service that runs as root on each node.

It reads GPUs, kernel log, host and job logs, writes the node's dated verdict for the hooks, sends evidence to the daemon and
carries out its orders. Whatever may hang runs in a killable child (``probes``); what touches a user's files runs there as
that user.
"""
