"""What is read from and written to files of a job's user, as that user, on the daemon's word."""
