"""Finds the ranks that a collective waits for: states of all ranks per process group, mismatches, order, wait graph.

Dumps or answers of a running job in, a finding with ranks and grounds out. Pure.
"""
