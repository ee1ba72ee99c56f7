"""What is read from and written to files of a job's user, as that user, when the daemon orders it."""
