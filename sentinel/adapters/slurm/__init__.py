"""Slurm: snapshots and single records in, single requests out. By pyslurm where it fits, by Slurm's commands elsewhere
(``connect``). What one record's text holds never changes another record (``parse``).
"""
