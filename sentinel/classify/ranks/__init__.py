"""Compares what several ranks of a job said with each other: the calls they made, and how far they came."""
