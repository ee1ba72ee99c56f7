"""Reads and writes files of a job's user, as that user, on the daemon's order."""
