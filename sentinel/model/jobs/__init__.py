"""What jobs are to each other."""
