"""Detects hangs, slowdowns, stragglers and bad numbers in series of evidence.

Input: evidence and times. Output: evidence of the findings. ``cluster_view`` keeps what is known of nodes and attempts
between events. Pure: nothing here acts on a node or asks one.
"""
