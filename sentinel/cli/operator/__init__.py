"""Commands over the running daemon: status, nodes, jobs, incidents, why, history, drain, release, pause, resume, doctor."""
