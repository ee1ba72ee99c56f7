"""Decides whether the node may take jobs: its dated verdict, the level 1 check for Slurm, diagnostics."""
