"""Real servers of a test's own: Slurm with its accounting, PostgreSQL, Prometheus, Alertmanager; fakes of chat services."""
