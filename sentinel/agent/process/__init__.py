"""Child processes of the agent, its small state files, and which user owns a job."""
