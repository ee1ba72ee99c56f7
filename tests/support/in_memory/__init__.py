"""The engine and the rest of the daemon over a Slurm in memory, and the daemon as commands and browsers see it."""
