"""The connection to the daemon: evidence and heartbeats out, orders in."""
