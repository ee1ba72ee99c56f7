"""Turns the daemon's input into events: heartbeats and evidence of nodes, snapshots and hooks of Slurm, Prometheus."""
