"""A Slurm in memory: ``cluster`` (nodes, jobs, what happens to them), ``scheduling``, ``records`` (what slurmctld tells) and
``requests`` (what it is asked)."""
