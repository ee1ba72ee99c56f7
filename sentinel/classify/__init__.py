"""Incident, history and rules in; verdict out. Pure: no I/O, no clock, no randomness."""

from sentinel.classify.history import EMPTY, History, NodeScore, PastFailure, each_once, node_scores
from sentinel.classify.verdict import classify

__all__ = ["EMPTY", "History", "NodeScore", "PastFailure", "classify", "each_once", "node_scores"]
