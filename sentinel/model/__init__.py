"""Frozen records, ids of causes, scopes, sources and kinds, what a researcher asked for, what a decision changes. No
I/O, no clock, no randomness. ``None`` means not known, never zero, empty or healthy.
"""
