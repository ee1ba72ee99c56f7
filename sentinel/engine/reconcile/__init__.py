"""Compares what Sentinel wants with what is, at every Slurm snapshot, until an incident is over.

``waits`` judges anew what was refused, ``situations`` and ``node_proof`` tell policy how things stand.
"""
