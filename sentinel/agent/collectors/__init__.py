"""Collects evidence on a node: from GPUs, kernel log, jobs and their logs, checkpoint saves, periodic checks."""
