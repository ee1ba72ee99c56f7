"""Child processes of the agent, its small state files, and whose a job is."""
