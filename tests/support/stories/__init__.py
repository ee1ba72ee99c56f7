"""What stories of a lab are told with: a timeline that counts, jobs, nodes, witnesses, and the times that a lab takes."""
