"""Decides what broke. Input: an incident, history and rules. Output: a verdict with its grounds. Pure."""

from sentinel.classify.history import EMPTY, History, NodeScore, PastFailure, each_once, node_scores
from sentinel.classify.verdict import classify

__all__ = ["EMPTY", "History", "NodeScore", "PastFailure", "classify", "each_once", "node_scores"]
