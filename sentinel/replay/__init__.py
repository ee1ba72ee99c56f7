"""Runs recorded evidence through the engine again, with the rules and the policy of today, and compares.

Comes in: a ``Recording`` (from a store or a bundle), rules, settings. Goes out: for each incident what was judged and
planned then and what would be now, differences first. ``bundle`` writes and reads recordings as files, ``anonymise``
replaces names in them. Nothing here asks Slurm, a node or a person, and nothing is changed anywhere: steps of plans are
answered with their recorded outcomes.
"""
