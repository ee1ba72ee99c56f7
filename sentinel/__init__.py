"""Sentinel keeps large training jobs alive on Slurm GPU clusters."""

__version__ = "0.2.0"
